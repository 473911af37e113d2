"""Fixtures for the tests against real servers."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from .others import FASTMCP_IS_WANTED, NPM_IS_WANTED
from .servers import KINDS, MCP1_IS_WANTED, Kind, RealServer, open_server


@pytest.fixture(params=KINDS, ids=str)
def kind(request: pytest.FixtureRequest) -> Kind:
    """Every kind of server there is here, one after the other; a test may parametrize it itself."""
    chosen: Kind = request.param
    return chosen


@pytest.fixture
async def server(kind: Kind, tmp_path: Path) -> AsyncGenerator[RealServer, None]:
    """A running server of that kind, which is ended with the test."""
    async with open_server(kind, tmp_path) as running:
        yield running


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for wanted, which, variable in (
        (MCP1_IS_WANTED, "mcp 1.x", "MCP1_PYTHON"),
        (NPM_IS_WANTED, "npm", "NPM_FOLDER"),
        (FASTMCP_IS_WANTED, "PyPI's fastmcp", "FASTMCP_PYTHON"),
    ):
        if not wanted:
            terminalreporter.write_line(f"servers of {which} were left out: {variable} is not set")
