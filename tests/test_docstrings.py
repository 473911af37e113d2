"""What the docstrings of public names say: nobody should have to read the code to call it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any

import pytest

import trio_mcp_resilient
from trio_mcp_resilient import otel, testing

PACKAGE = trio_mcp_resilient.__name__
AS_THERE = {"resilient_transport"}
"""Its parameters are those of `open_client`, and it says so."""


def members(owner: type) -> Iterator[tuple[str, Any]]:
    """Methods that are the class's own or come from a base of ours."""
    for base in owner.__mro__:
        if base.__module__.startswith(PACKAGE):
            for name, value in vars(base).items():
                function = value.__func__ if isinstance(value, classmethod) else value
                if isinstance(function, FunctionType) and not name.startswith("_"):
                    yield f"{owner.__name__}.{name}", function


def callables(module: ModuleType) -> dict[str, Any]:
    """Public functions and methods, by the name that the reference shows."""
    found: dict[str, Any] = {}
    for name, value in vars(module).items():
        if name.startswith("_") or not getattr(value, "__module__", "").startswith(PACKAGE):
            continue
        if isinstance(value, FunctionType):
            found[name] = value
        elif isinstance(value, type):
            found.update(members(value))
    return found


FACE = callables(trio_mcp_resilient) | callables(otel)
EVERYTHING = FACE | {f"testing.{name}": value for name, value in callables(testing).items()}
WAITING = {
    name: value
    for name, value in EVERYTHING.items()
    if inspect.iscoroutinefunction(value) or inspect.isasyncgenfunction(inspect.unwrap(value))
}


def test_they_are_found() -> None:
    # So that the others cannot pass for want of anything to look at.
    assert {"open_client", "Client.call_tool", "Pool.aclose", "OpenTelemetryInstrument.event"} <= FACE.keys()
    assert {"open_pool", "Client.ping", "testing.ScriptedServer.subscribed"} <= WAITING.keys()


@pytest.mark.parametrize("name", EVERYTHING)
def test_begins_with_one_sentence(name: str) -> None:
    first, _, rest = (inspect.getdoc(EVERYTHING[name]) or "").partition("\n")
    assert re.match(r"[A-Z].*[.:]$", first) or (not rest and first.endswith(".")), first


@pytest.mark.parametrize("name", WAITING)
def test_what_waits_says_what_cancellation_leaves_and_where_it_checkpoints(name: str) -> None:
    text = inspect.getdoc(WAITING[name]) or ""
    assert "Cancellation:" in text
    assert re.search(r"\bCheckpoints?:", text)


@pytest.mark.parametrize("name", sorted(FACE.keys() - AS_THERE))
def test_every_argument_is_explained(name: str) -> None:
    text = inspect.getdoc(FACE[name]) or ""
    for parameter in inspect.signature(FACE[name]).parameters.values():
        if parameter.name not in ("self", "cls"):
            told = f"{parameter.name}: " in text or f"`{parameter.name}`" in text
            assert told, parameter.name
