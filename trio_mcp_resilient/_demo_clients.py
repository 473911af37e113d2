"""The two clients that the demo compares, each as one `call`: the ticket in, the server's words out."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TypeAlias

from mcp import Client as SdkClient
from mcp_types import CallToolResult, TextContent

from trio_mcp_resilient._open import open_client

Call: TypeAlias = Callable[[str], Awaitable[str]]
"""Books a ticket and returns the answer; raises what the client raises."""
Opener: TypeAlias = Callable[[str], AbstractAsyncContextManager[Call]]
"""Connects to a URL."""


@asynccontextmanager
async def ours(url: str) -> AsyncGenerator[Call, None]:
    """Open a client of this package.

    Without the standalone stream nothing tells it of a lost session before a call meets one: the
    harder case, and the same one at every run.
    """
    async with open_client(url, get_stream=False, mode="legacy") as client:

        async def call(ticket: str) -> str:
            return _text(await client.call_tool("book", {"ticket": ticket}))

        yield call


@asynccontextmanager
async def plain_sdk(url: str) -> AsyncGenerator[Call, None]:
    """Open the control: the SDK's own client, with a session (`legacy` is its word for that)."""
    async with SdkClient(url, mode="legacy") as client:

        async def call(ticket: str) -> str:
            return _text(await client.call_tool("book", {"ticket": ticket}))

        yield call


def _text(result: object) -> str:
    if not isinstance(result, CallToolResult) or result.is_error:
        raise RuntimeError(f"the tool failed: {result!r:.200}")
    return "".join(block.text for block in result.content if isinstance(block, TextContent))
