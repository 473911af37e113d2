"""The clients that are compared: each is opened as its documentation shows, and makes any call.

Each imports what it needs only when it is used, because not all of it is in every environment.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

Act = Callable[[str, float], Awaitable[str]]
"""Call the tool `act` with a key and seconds, and return the text of its answer."""


def acting(call_tool: Callable[..., Awaitable[Any]]) -> Act:
    """Make an `Act` of a client's method."""

    async def act(key: str, seconds: float) -> str:
        result = await call_tool("act", {"key": key, "seconds": seconds})
        return str(result.content[0].text)

    return act


@asynccontextmanager
async def ours(url: str) -> AsyncIterator[Act]:
    """This package."""
    from trio_mcp_resilient import open_client

    async with open_client(url) as client:
        yield acting(client.call_tool)


@asynccontextmanager
async def ours_below(url: str) -> AsyncIterator[Act]:
    """The SDK's client on this package's transport."""
    from mcp import Client

    from trio_mcp_resilient import resilient_transport

    async with Client(resilient_transport(url)) as client:
        yield acting(client.call_tool)


@asynccontextmanager
async def mcp2(url: str) -> AsyncIterator[Act]:
    """The client of the SDK's 2.x line."""
    from mcp import Client

    async with Client(url) as client:
        yield acting(client.call_tool)


@asynccontextmanager
async def mcp1(url: str) -> AsyncIterator[Act]:
    """The client of the SDK's 1.x line."""
    from mcp import ClientSession
    from mcp.client.streamable_http import streamablehttp_client  # type: ignore[attr-defined, unused-ignore]

    async with streamablehttp_client(url) as (receive, send, _), ClientSession(receive, send) as session:
        await session.initialize()
        yield acting(session.call_tool)


@asynccontextmanager
async def fastmcp(url: str) -> AsyncIterator[Act]:
    """FastMCP's client, which runs on the SDK's."""
    import fastmcp  # type: ignore[import-not-found, unused-ignore]

    async with fastmcp.Client(url) as client:
        yield acting(client.call_tool)


@dataclass(frozen=True)
class Caller:
    """A client that is compared, and where it runs."""

    title: str
    open: Callable[[str], AbstractAsyncContextManager[Act]]
    backend: str = "trio"
    environment: str = "main"
    """`main`, or the name of an environment of its own: the SDK's lines exclude each other."""


CALLERS = {
    "ours": Caller("trio_mcp_resilient", ours),
    "ours-below": Caller("mcp.Client on resilient_transport", ours_below),
    "mcp2-trio": Caller("mcp.Client, Trio", mcp2),
    "mcp2-asyncio": Caller("mcp.Client, asyncio", mcp2, "asyncio"),
    "mcp1-asyncio": Caller("mcp 1.x, asyncio", mcp1, "asyncio", "mcp1"),
    "fastmcp": Caller("fastmcp.Client, asyncio", fastmcp, "asyncio", "fastmcp"),
}
"""By the name that the command line knows."""
