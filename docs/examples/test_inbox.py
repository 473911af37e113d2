"""The watcher's tests: no sockets, and a day takes a moment."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import trio
from inbox import HOUR, Step, open_watcher
from trio.testing import MockClock

from trio_mcp_resilient.testing import BREAKS, ScriptedServer, assert_recovers


def look_once(tools: Sequence[str], said: Sequence[str]) -> Step | None:
    """The simplest of models."""
    return None if said else Step("inbox", {})


def pay_once(tools: Sequence[str], said: Sequence[str]) -> Step | None:
    return None if said else Step("pay", {"amount": 5})


async def test_works_through_the_day(mcp_server: ScriptedServer, autojump_clock: MockClock) -> None:
    mcp_server.tool("inbox", lambda: "nothing new")
    mcp_server.idle_timeout = HOUR / 2
    # Without the stream that would keep the session from being idle.
    async with open_watcher(
        mcp_server.url, look_once, connect=mcp_server.connect, get_stream=False
    ) as watcher:
        assert await watcher.work(rounds=24) == ["nothing new"]
    assert trio.current_time() >= 23 * HOUR
    assert mcp_server.executed["inbox"] == 24
    assert mcp_server.handshakes == 24


async def test_sees_the_tools_of_a_new_release(mcp_server: ScriptedServer, autojump_clock: MockClock) -> None:
    offered: list[list[str]] = []

    def note(tools: Sequence[str], said: Sequence[str]) -> Step | None:
        offered.append(sorted(tools))
        return None

    mcp_server.tool("inbox", lambda: "nothing new")
    async with open_watcher(mcp_server.url, note, connect=mcp_server.connect) as watcher:
        await watcher.work(rounds=1)
        mcp_server.tool("outbox", lambda: "all sent")
        mcp_server.restart()
        await watcher.work(rounds=2)
        assert watcher.tools.listings == 2
    assert offered == [["inbox"], ["inbox"], ["inbox", "outbox"]]


async def test_does_not_pay_twice(mcp_server: ScriptedServer, autojump_clock: MockClock) -> None:
    mcp_server.tool("pay", lambda amount: "paid")
    async with open_watcher(mcp_server.url, pay_once, connect=mcp_server.connect) as watcher:
        mcp_server.cut("before-head", when="tools/call")
        assert await watcher.work(rounds=1) == ["pay may or may not have run"]
    assert mcp_server.executed["pay"] == 1


@pytest.mark.parametrize("how", BREAKS)
async def test_its_client_recovers(how: str, mcp_server: ScriptedServer, autojump_clock: MockClock) -> None:
    async with open_watcher(mcp_server.url, look_once, connect=mcp_server.connect) as watcher:
        await assert_recovers(watcher.client, mcp_server, how)
