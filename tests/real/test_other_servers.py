"""Other people's servers, each through every kind of loss: none hangs, runs a call twice, or loses an
answer that it kept.

A proxy stands between. It counts what each server was sent, for not all of them write down what
they run, and it resets connections at a chosen byte of an answer.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import trio
from mcp_types import TextContent

from trio_mcp_resilient import Backoff, Client, OutcomeUnknown, open_client

from .others import EXPIRING, LONG, OTHERS, SECONDS, Call, Other
from .proxy import Proxy, Seen, open_proxy
from .servers import RealServer, open_server

pytestmark = [pytest.mark.real, pytest.mark.limit(120)]

FEW = 5

PERSISTENT = Backoff(first=0.05, cap=0.2, attempts=0)
"""Attempts in quick succession without end: a busy machine may take its time to start a server."""

FIRST_EVENT = re.compile(rb"\ndata:[^\n]*\n\r?\n")


@dataclass(frozen=True)
class Scene:
    """A running server, with the proxy in front of it."""

    other: Other
    server: RealServer
    proxy: Proxy

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.proxy.port}/mcp"

    async def quick(self, client: Client, key: str = "quick") -> None:
        """Call once, and check the answer."""
        await answered(client, self.other.quick(key))

    async def all_at_once(
        self, client: Client, prefix: str, *, seconds: float | None = None
    ) -> list[Exception | None]:
        """Make a few calls at the same time, quick ones or of so many seconds; return how each ended."""
        ends: list[Exception | None] = []

        async def one(call: Call) -> None:
            try:
                await answered(client, call)
            except Exception as error:
                ends.append(error)
            else:
                ends.append(None)

        async with trio.open_nursery() as nursery:
            for number, key in enumerate(keys(prefix)):
                nursery.start_soon(
                    one,
                    self.other.quick(key) if seconds is None else self.other.in_steps(key, number, seconds),
                )
        return ends

    async def wait_until_all_run(self, prefix: str) -> None:
        """Wait until each call runs: by the journal, or where there is none, until it is being answered.

        The beginning of an answer is no proof: servers that keep answers say its first event id
        before they run anything.
        """
        if self.other.records:
            await self.server.wait_until(lambda: self.server.executions(prefix).total() == FEW)
        else:
            await self.server.wait_until(lambda: sum(bool(one.body) for one in self.calls(prefix)) == FEW)

    def calls(self, prefix: str) -> list[Seen]:
        return [one for one in self.proxy.posts("tools/call") if one.key.startswith(prefix)]

    def check_that_none_ran_twice(self, prefix: str) -> None:
        """Each call was sent, and let in once; where the server keeps a journal, it ran once."""
        assert self.proxy.let_in(prefix) == Counter(keys(prefix))
        if self.other.records:
            assert self.server.executions(prefix) == Counter(keys(prefix))


async def answered(client: Client, call: Call) -> None:
    async def progressed(progress: float, total: float | None, message: str | None) -> None:
        pass

    # Some servers say nothing in between unless they are asked to report progress.
    result = await client.call_tool(call.tool, call.arguments, progress_callback=progressed)
    (block,) = result.content
    assert isinstance(block, TextContent)
    assert block.text == call.text


def keys(prefix: str) -> list[str]:
    return [f"{prefix}-{number}" for number in range(FEW)]


@asynccontextmanager
async def open_scene(other: Other, directory: Path, **env: str) -> AsyncGenerator[Scene, None]:
    async with open_server(other.kind.with_env(**env), directory) as server:
        async with open_proxy(server.process.port) as proxy:
            yield Scene(other, server, proxy)


@pytest.fixture(params=OTHERS, ids=str)
async def scene(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Scene, None]:
    async with open_scene(request.param, tmp_path) as opened:
        yield opened


async def test_killed_and_started_again(scene: Scene) -> None:
    async with open_client(scene.url, mode="legacy", backoff=PERSISTENT) as client:
        await scene.quick(client)
        await scene.server.restart()
        assert await scene.all_at_once(client, "after") == [None] * FEW
    assert scene.proxy.handshakes == 2
    scene.check_that_none_ran_twice("after")


async def test_deleted_by_somebody_else(scene: Scene) -> None:
    # Without the standalone stream it is the calls, and nothing before them, that meet the loss.
    async with open_client(scene.url, mode="legacy", get_stream=False) as client:
        await scene.quick(client)
        await scene.server.delete_session(scene.proxy.newest_session)
        assert await scene.all_at_once(client, "after") == [None] * FEW
        assert client.statistics().resends >= 1
    assert scene.proxy.handshakes == 2
    scene.check_that_none_ran_twice("after")


@pytest.mark.parametrize("other", EXPIRING, ids=str)
async def test_expired_from_idleness(other: Other, tmp_path: Path) -> None:
    async with open_scene(other, tmp_path, IDLE="1") as scene:
        async with open_client(scene.url, mode="legacy", get_stream=False) as client:
            await scene.quick(client)
            await scene.server.wait_until_refused(scene.proxy.newest_session, pause=1.2)
            known = scene.proxy.handshakes
            assert await scene.all_at_once(client, "after") == [None] * FEW
        assert scene.proxy.handshakes == known + 1
        scene.check_that_none_ran_twice("after")


async def test_cut_within_the_answer(scene: Scene) -> None:
    """Each call's answer was half here when its connection was reset."""

    def within_the_answer(seen: Seen) -> int | None:
        number = seen.key.partition("cut-")[2]
        if seen.http_method != "POST" or not number:
            return None
        text = scene.other.in_steps(seen.key, int(number)).text.encode()
        at = seen.answer.find(text)
        return None if at < 0 else at + len(text) // 2

    scene.proxy.cutter = within_the_answer
    await check_cut_calls(scene)


async def test_cut_long_before_the_answer(scene: Scene) -> None:
    """Each call went on when its connection was reset, and was not done when the client was back."""

    def after_the_first_event(seen: Seen) -> int | None:
        if seen.http_method != "POST" or not seen.key.startswith("cut-"):
            return None
        found = FIRST_EVENT.search(seen.answer)
        return found.end() if found else None

    scene.proxy.cutter = after_the_first_event
    await check_cut_calls(scene)


async def check_cut_calls(scene: Scene) -> None:
    async with open_client(scene.url, mode="legacy") as client:
        ends = await scene.all_at_once(client, "cut", seconds=SECONDS)
        assert scene.proxy.cuts == FEW
        if scene.other.resumable:
            assert ends == [None] * FEW
        else:
            assert [type(end) for end in ends] == [OutcomeUnknown] * FEW
        await scene.quick(client, "after")
    # It was connections that were cut: the session is still good.
    assert scene.proxy.handshakes == 1
    assert scene.proxy.sent("cut") == Counter(keys("cut"))
    scene.check_that_none_ran_twice("cut")


async def test_running_calls_whose_server_is_killed(scene: Scene) -> None:
    ends: list[Exception | None] = []
    async with open_client(scene.url, mode="legacy", backoff=PERSISTENT) as client:

        async def call() -> None:
            ends.extend(await scene.all_at_once(client, "running", seconds=LONG))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)
            await scene.wait_until_all_run("running")
            await scene.server.restart()
        assert [type(end) for end in ends] == [OutcomeUnknown] * FEW
        await scene.quick(client, "after")
    assert scene.proxy.handshakes == 2
    scene.check_that_none_ran_twice("running")


async def test_running_calls_whose_session_is_deleted(scene: Scene) -> None:
    ends: list[Exception | None] = []
    async with open_client(scene.url, mode="legacy") as client:

        async def call() -> None:
            ends.extend(await scene.all_at_once(client, "running", seconds=LONG))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)
            await scene.wait_until_all_run("running")
            await scene.server.delete_session(scene.proxy.newest_session)
        assert [type(end) for end in ends] == [OutcomeUnknown] * FEW
        await scene.quick(client, "after")
    assert scene.proxy.handshakes == 2
    scene.check_that_none_ran_twice("running")
