"""Calls that are running when their session or their server goes: none hangs, none runs twice."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from mcp import Client as SdkClient

from trio_mcp_resilient import Backoff, Client, OutcomeUnknown, open_client

from .calling import MANY, act, act_slowly, gather, once_each, plain_sdk_leaks
from .servers import SSE_KINDS, Kind, RealServer, open_server

pytestmark = [pytest.mark.real, pytest.mark.limit(60)]

SOON = 10.0
"""Seconds, far below the recovery timeout, that a busy machine may need for what needs no waiting."""

PERSISTENT = Backoff(first=0.05, cap=0.2, attempts=0)
"""Attempts in quick succession without end: a busy machine may take its time to start a server."""


class Dials:
    """Makes a client's connections, and tells when it has been refused a few times."""

    def __init__(self) -> None:
        self._still_to_come = 0
        self._refused = trio.Event()

    async def dial(self, host: str, port: int) -> trio.abc.Stream:
        try:
            return await trio.open_tcp_stream(host, port)
        except OSError:
            self._still_to_come -= 1
            if self._still_to_come == 0:
                self._refused.set()
            raise

    async def wait_for_refusals(self, count: int) -> None:
        """Wait until `count` more dials have been refused."""
        self._still_to_come, self._refused = count, trio.Event()
        await self._refused.wait()


async def run_slow_calls(client: Client | SdkClient, ends: list[Exception | None]) -> None:
    ends += await gather(act_slowly, client, "slow")


async def wait_until_all_run(server: RealServer) -> None:
    await server.wait_until(lambda: len(server.executions("slow")) == MANY)


async def test_many_running_calls_whose_session_is_deleted(server: RealServer) -> None:
    ends: list[Exception | None] = []
    async with open_client(server.url, mode="legacy") as client:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run_slow_calls, client, ends)
            await wait_until_all_run(server)
            await server.delete_session(server.newest_session)
        assert [type(end) for end in ends] == [OutcomeUnknown] * MANY
        await act(client, "after")
    assert server.executions("slow") == once_each("slow")
    assert server.executions("after").total() == 1
    assert server.handshakes == 2


async def test_many_running_calls_whose_server_is_killed(server: RealServer) -> None:
    ends: list[Exception | None] = []
    async with open_client(server.url, mode="legacy", backoff=PERSISTENT) as client:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run_slow_calls, client, ends)
            await wait_until_all_run(server)
            await server.process.kill()
            # The server stays down: nobody has to wait for the repair to learn of this.
            nursery.cancel_scope.deadline = trio.current_time() + SOON
        assert [type(end) for end in ends] == [OutcomeUnknown] * MANY
        await server.process.start()
        await act(client, "after")
    assert server.executions("slow") == once_each("slow")
    assert server.executions("after").total() == 1
    assert server.handshakes == 2


async def test_a_cancelled_call_is_stopped_on_the_server_and_its_session_lives_on(server: RealServer) -> None:
    async with open_client(server.url, mode="legacy") as client:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(act_slowly, client, "slow")
            await server.wait_until(lambda: server.executions("slow").total() == 1)
            nursery.cancel_scope.cancel()
        await server.wait_until(lambda: server.stopped() == ["slow"])
        await act(client, "after")
    assert server.executions() == {"slow": 1, "after": 1}
    assert server.handshakes == 1


@pytest.mark.parametrize("kind", SSE_KINDS, ids=str)
async def test_calls_made_while_the_server_is_down_wait_for_it(server: RealServer) -> None:
    ends: list[Exception | None] = []

    async def call_many() -> None:
        ends.extend(await gather(act, client, "down"))

    dials = Dials()
    async with open_client(server.url, mode="legacy", backoff=PERSISTENT, connect=dials.dial) as client:
        await act(client, "before")
        await server.process.kill()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call_many)
            await dials.wait_for_refusals(5)
            assert ends == []
            await server.process.start()
        assert ends == [None] * MANY
    assert server.executions("down") == once_each("down")
    assert server.handshakes == 2


@pytest.mark.parametrize("kind", SSE_KINDS, ids=str)
async def test_a_server_that_is_down_at_first_is_tried_again(kind: Kind, tmp_path: Path) -> None:
    dials = Dials()

    async def use() -> None:
        async with open_client(server.url, mode="legacy", backoff=PERSISTENT, connect=dials.dial) as client:
            await act(client, "first")

    async with open_server(kind, tmp_path, started=False) as server:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(use)
            await dials.wait_for_refusals(5)
            await server.process.start()
        assert server.executions() == {"first": 1}
        assert server.handshakes == 1


@plain_sdk_leaks
@pytest.mark.parametrize("kind", SSE_KINDS, ids=str)
async def test_control_the_plain_sdk_client_does_not_outlive_its_server(server: RealServer) -> None:
    ends: list[Exception | None] = []
    async with SdkClient(server.url, mode="legacy") as client:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run_slow_calls, client, ends)
            await wait_until_all_run(server)
            await server.process.kill()
        assert len(ends) == MANY
        assert None not in ends
        await server.process.start()
        with pytest.raises(Exception, match="Session not found"):
            await act(client, "after")
    assert server.handshakes == 1
