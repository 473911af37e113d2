"""A backend that calls tools for many users, each with a token of their own.

    python many_users.py http://127.0.0.1:8000/mcp

A session belongs to whoever opened it: to share one between users is to share what the server
knows of them. So each user has a client, and a pool keeps those that are in use lately.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Unpack

import httpx
import httpx2
import mcp_types
import trio

from trio_mcp_resilient import ClientOptions, Pool, open_pool


def who(url: str, headers: Mapping[str, str], auth: httpx.Auth | httpx2.Auth | None) -> str:
    """Name the identity that a lease is for: the user, not the token, which changes every hour."""
    return headers["x-user"]


class Tools:
    """The tools of one server, as the rest of an application would like to see them."""

    def __init__(self, pool: Pool, url: str) -> None:
        self._pool = pool
        self._url = url
        self._tokens: dict[str, str] = {}

    def log_in(self, user: str, token: str) -> None:
        """Remember a user's token."""
        self._tokens[user] = token
        # A client goes on with the headers it was opened with; the next lease is to have these.
        self._pool.invalidate(self._url, headers={"x-user": user})

    def log_out(self, user: str) -> None:
        """Forget a user. Calls under way finish; then the session is ended at the server."""
        del self._tokens[user]
        self._pool.invalidate(self._url, headers={"x-user": user})

    async def call(self, user: str, tool: str, arguments: dict[str, object]) -> str:
        """Call a tool in a user's name."""
        headers = {"x-user": user, "authorization": f"Bearer {self._tokens[user]}"}
        # A lease for each call: the pool can only close, replace or make room among clients that
        # nobody holds, and leasing one that is there costs microseconds.
        async with self._pool.client(self._url, headers=headers) as client:
            result = await client.call_tool(tool, arguments)
        (content,) = result.content
        assert isinstance(content, mcp_types.TextContent)
        return content.text


@asynccontextmanager
async def open_tools(url: str, **options: Unpack[ClientOptions]) -> AsyncGenerator[Tools]:
    """Open the tools for as long as the block runs."""
    # At most so many sessions, however many users there are; whoever was idle for longest makes room.
    async with open_pool(max_clients=200, idle_timeout=120, key=who, **options) as pool:
        yield Tools(pool, url)


async def main(url: str) -> None:
    """Let three users add at the same time."""
    async with open_tools(url) as tools, trio.open_nursery() as nursery:

        async def show(user: str, number: int) -> None:
            print(user, await tools.call(user, "add", {"a": number, "b": number}))

        for number, user in enumerate(["ada", "grace", "hedy"]):
            tools.log_in(user, f"token of {user}")
            nursery.start_soon(show, user, number)


if __name__ == "__main__":
    trio.run(main, sys.argv[1])
