"""The typing file speaks of everything public, so that a change of any type is seen by the checkers."""

from __future__ import annotations

import ast
from pathlib import Path
from types import ModuleType

import pytest

import trio_mcp_resilient
from trio_mcp_resilient import otel, testing

PATH = Path(__file__).parent / "typing" / "api.py"


def used(module: ModuleType) -> set[str]:
    """Names of a module that the typing file imports and then uses."""
    tree = ast.parse(PATH.read_text())
    imported = {
        alias.asname or alias.name: alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == module.__name__
        for alias in node.names
    }
    read = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return {name for known_as, name in imported.items() if known_as in read}


@pytest.mark.parametrize("module", [trio_mcp_resilient, testing, otel], ids=lambda module: module.__name__)
def test_every_public_name_is_used_there(module: ModuleType) -> None:
    public = getattr(module, "__all__", None) or [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and not isinstance(value, ModuleType)
    ]
    assert set(public) <= used(module)
