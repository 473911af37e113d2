"""Programs on anyio: on its Trio backend everything works, on its other one the first word is why not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import anyio
import mcp
import pytest
from trio.testing import MockClock

from tests.kit import STEADY, add, open_server
from trio_mcp_resilient import Client, open_client, resilient_transport
from trio_mcp_resilient.testing import ScriptedServer

Opened = AbstractAsyncContextManager[Client | mcp.Client]


def ours(server: ScriptedServer) -> Opened:
    return open_client(server.url, connect=server.connect, get_stream=False, backoff=STEADY, mode="legacy")


def the_sdks(server: ScriptedServer) -> Opened:
    return mcp.Client(
        resilient_transport(
            server.url, connect=server.connect, get_stream=False, backoff=STEADY, mode="legacy"
        )
    )


CLIENTS = [ours, the_sdks]


def run(main: Callable[..., Awaitable[None]], *args: Any) -> None:
    """Run as an anyio program does, in virtual time."""
    anyio.run(main, *args, backend="trio", backend_options={"clock": MockClock(autojump_threshold=0)})


async def many_calls(open_one: Callable[[ScriptedServer], Opened]) -> None:
    async with open_server() as server, open_one(server) as client:
        await add(client)
        server.lose_session()
        async with anyio.create_task_group() as group:
            for _ in range(20):
                group.start_soon(add, client)
        assert server.executed["add"] == 21
        assert server.handshakes == 2


async def cancelled_calls(open_one: Callable[[ScriptedServer], Opened]) -> None:
    async with open_server() as server, open_one(server) as client:
        await client.list_tools()
        with anyio.move_on_after(1) as scope:
            await client.call_tool("slow", {"seconds": 10})
        assert scope.cancelled_caught
        async with anyio.create_task_group() as group:
            for _ in range(20):
                group.start_soon(client.call_tool, "slow", {"seconds": 1000})
            await anyio.sleep(1)
            group.cancel_scope.cancel()
        await anyio.sleep(1)
        assert server.executed["slow"] == 21
        assert len(server.posts("notifications/cancelled")) == 21
        # A cancelled call is a cancelled call also while a session is being made.
        server.lose_session()
        held = server.hold("initialize")
        with pytest.raises(TimeoutError), anyio.fail_after(1):
            await add(client)
        held.release()
        assert await add(client) == "3"
        assert server.executed["add"] == 1


async def cancelled_whole(open_one: Callable[[ScriptedServer], Opened]) -> None:
    async with open_server() as server:
        with anyio.move_on_after(5) as scope:
            async with open_one(server) as client:
                async with anyio.create_task_group() as group:
                    group.start_soon(client.call_tool, "slow", {"seconds": 1000})
        assert scope.cancelled_caught
        await anyio.wait_all_tasks_blocked()
        assert server.sessions == []
        assert server.open_connections == 0


@pytest.mark.parametrize("program", [many_calls, cancelled_calls, cancelled_whole])
@pytest.mark.parametrize("open_one", CLIENTS)
def test_on_trio(open_one: Any, program: Any) -> None:
    run(program, open_one)


async def use(opened: Any) -> None:
    async with opened:
        pytest.fail("it cannot run here")


@pytest.mark.parametrize("start", ["asyncio.run", "anyio.run"])
@pytest.mark.parametrize(
    "opened",
    [
        lambda: open_client("http://127.0.0.1:1/mcp"),
        lambda: resilient_transport("http://127.0.0.1:1/mcp"),
        lambda: mcp.Client(resilient_transport("http://127.0.0.1:1/mcp")),
    ],
    ids=["open_client", "resilient_transport", "mcp.Client"],
)
def test_on_asyncio_it_is_said_at_once(opened: Callable[[], Any], start: str) -> None:
    with pytest.raises(RuntimeError, match="runs on Trio, and this program does not"):
        if start == "asyncio.run":
            asyncio.run(use(opened()))
        else:
            anyio.run(use, opened(), backend="asyncio")
