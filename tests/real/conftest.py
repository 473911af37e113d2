"""Fixtures for the tests against real servers."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

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
    if not MCP1_IS_WANTED:
        terminalreporter.write_line("servers of mcp 1.x were left out: MCP1_PYTHON names no Python for them")
