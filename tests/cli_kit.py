"""What the tests of the command line share: a server on loopback, and a way to run a command."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
import trio

from trio_mcp_resilient._cli import carry_out
from trio_mcp_resilient._cli_parser import parse
from trio_mcp_resilient.testing import ScriptedServer, ToolContext, open_scripted_server

Capture = pytest.CaptureFixture[str]


@asynccontextmanager
async def open_url() -> AsyncGenerator[tuple[ScriptedServer, str], None]:
    """A server on loopback with something of everything."""
    async with open_scripted_server() as server:
        server.tool("add", lambda a, b: str(a + b), description="adds")
        server.tool("fail", _fail)
        server.tool("hang", trio.sleep_forever)
        server.tool("count", _count)
        server.resource("note://one", "first\nsecond", mimeType="text/plain")
        server.template("note://{name}", mimeType="text/plain")
        server.prompt("greet", "Hello {name}!", arguments=[{"name": "name", "required": True}])
        yield server, f"http://127.0.0.1:{await server.serve_tcp()}/mcp"


def _fail() -> None:
    raise ValueError("it broke")


def _count(ctx: ToolContext) -> str:
    ctx.progress(1, 2, "half")
    return "counted"


async def run(*words: str) -> int:
    """Carry a command out inside this test."""
    return await carry_out(parse(words))
