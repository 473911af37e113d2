"""What the simulation found, each made as small as it gets."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.kit import STEADY, add, open_pair, open_server, text, told
from trio_mcp_resilient import (
    Client,
    ConnectionLost,
    Event,
    OutcomeUnknown,
    RecoveryFailed,
    SessionLost,
    SessionStarted,
    open_client,
)
from trio_mcp_resilient.testing import DIALECTS, ScriptedServer, ToolContext

CALL = "tools/call"


async def test_a_second_attempt_that_is_refused_does_not_unsay_the_first(autojump_clock: MockClock) -> None:
    """The first may have run, so "not executed" would be untrue, whatever became of the second."""
    async with open_pair(get_stream=False, resend="always") as (server, client):
        await client.list_tools()
        server.cut("before-head", when=CALL)
        server.answer(404, when=CALL)
        with pytest.raises(OutcomeUnknown, match="sent twice") as caught:
            await add(client)
        assert server.executed["add"] == 1
        assert isinstance(caught.value.__cause__, SessionLost)
        assert client.statistics().outcome_unknown == 1


async def test_a_second_attempt_that_never_left_does_not_unsay_the_first(autojump_clock: MockClock) -> None:
    async with open_pair(get_stream=False, resend="always") as (server, client):
        await client.list_tools()
        server.cut("before-head", when=CALL)
        server.cut("mid-request", when=lambda seen: seen.rpc_method == CALL and server.executed["add"] == 1)
        with pytest.raises(OutcomeUnknown) as caught:
            await add(client)
        assert server.executed["add"] == 1
        assert isinstance(caught.value.__cause__, ConnectionLost)


async def test_a_call_that_is_cut_twice_is_counted_once(autojump_clock: MockClock) -> None:
    async with open_pair(get_stream=False, resend="always") as (server, client):
        await client.list_tools()
        server.cut("before-head", when=CALL, times=2)
        with pytest.raises(OutcomeUnknown):
            await add(client)
        assert client.statistics().outcome_unknown == 1


async def test_a_call_that_ran_is_not_said_to_have_failed_by_the_listing_after_it(
    autojump_clock: MockClock,
) -> None:
    """The SDK lists the tools after the first call of one, to validate its result."""
    async with open_pair(get_stream=False) as (server, client):
        server.answer(404, when="tools/list", times=2)
        assert await add(client) == "3"
        assert server.executed["add"] == 1


async def test_a_handshake_whose_stream_ends_cleanly_is_made_again(autojump_clock: MockClock) -> None:
    """That is how a server shuts down, and no reason to give up for good."""
    async with open_server() as server:
        events: list[object] = []
        server.cut("after-head", how="end", when="initialize")
        async with open_client(
            server.url, connect=server.connect, backoff=STEADY, on_event=events.append
        ) as client:
            assert await add(client) == "3"
        assert told(events, RecoveryFailed) == []  # type: ignore[arg-type]


async def test_a_session_that_ends_before_the_second_attempt_is_written_has_not_had_it(
    autojump_clock: MockClock,
) -> None:
    """The second attempt was still to connect when the application threw its session away."""
    slow, second = False, trio.Event()

    def watch(event: Event) -> None:
        if isinstance(event, SessionStarted) and event.generation == 2:
            second.set()

    async with open_server() as server:

        async def connect(host: str, port: int) -> trio.abc.Stream:
            if slow:
                await trio.sleep(1)
            return await server.connect(host, port)

        options: dict[str, Any] = {"get_stream": False, "backoff": STEADY, "on_event": watch}
        async with open_client(server.url, connect=connect, **options) as client:
            server.lose_session()
            slow = True
            # So that the call has to connect, and not only the handshake before it.
            closing = {"connection": "close"}
            server.answer(202, headers=closing, when="notifications/initialized", ran=True)
            async with trio.open_nursery() as nursery:

                @nursery.start_soon
                async def call() -> None:
                    assert await add(client) == "3"

                await second.wait()
                await trio.sleep(0.5)
                assert server.executed["add"] == 0
                client.invalidate()
            assert server.executed["add"] == 1
            assert client.generation == 3
            assert len(server.posts(CALL)) == 2


@asynccontextmanager
async def open_resuming_pair(**options: Any) -> AsyncGenerator[tuple[ScriptedServer, Client], None]:
    """A server whose tool `job` leaves its caller to resume, and a client of it."""
    async with open_server() as server:
        server.resumable = True
        server.retry = 5000

        async def job(ctx: ToolContext) -> str:
            ctx.close_stream()
            await trio.sleep(1)
            return "done"

        server.tool("job", job)
        async with open_client(
            server.url, connect=server.connect, get_stream=False, backoff=STEADY, **options
        ) as client:
            await client.list_tools()
            yield server, client


async def test_a_call_to_be_resumed_does_not_wait_for_ever_for_the_head(autojump_clock: MockClock) -> None:
    async with open_resuming_pair() as (server, client):
        silence = server.go_silent("before-head", when="GET")
        began = trio.current_time()
        assert text(await client.call_tool("job", {})) == "done"
        assert silence.hits == 1
        assert trio.current_time() - began < 60


@pytest.mark.parametrize("dialect", sorted(DIALECTS))
async def test_a_loss_met_by_resuming_does_not_unsay_that_the_call_was_taken_on(
    dialect: str, autojump_clock: MockClock
) -> None:
    """Some servers say it on the stream, as they say it to a request that they did not take on."""
    async with open_resuming_pair() as (server, client):
        server.dialect(dialect)
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def call() -> None:
                with pytest.raises(OutcomeUnknown):
                    await client.call_tool("job", {})

            await trio.sleep(2)
            server.lose_session()
        assert server.executed["job"] == 1
        assert len(server.seen("GET")) == 1
        # A loss of which the stream said nothing is found by the next call.
        assert await add(client) == "3"
        assert client.generation == 2


async def test_an_invalidated_session_lets_calls_resume(autojump_clock: MockClock) -> None:
    """They finish on it, and not before the time that the server has set."""
    async with open_resuming_pair() as (server, client):
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def call() -> None:
                assert text(await client.call_tool("job", {})) == "done"

            await trio.sleep(2)
            client.invalidate()
            await client.wait_ready()
            assert client.generation == 2
        assert server.executed["job"] == 1
        (resumed,) = server.seen("GET")
        (posted,) = server.posts(CALL)
        assert resumed.arrived_at - posted.arrived_at == pytest.approx(5)


async def test_an_answer_of_the_older_era_is_read_in_the_newer(autojump_clock: MockClock) -> None:
    """The SDK's session has been moved on meanwhile, and would miss what the older era does not say."""
    async with open_pair("legacy", mode="auto", get_stream=False) as (server, client):
        await client.list_tools()
        answers: list[str] = []

        async def rest() -> None:
            answers.append(text(await client.call_tool("slow", {"seconds": 10})))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(rest)
            await wait_all_tasks_blocked()
            server.era = "modern"
            client.invalidate()
            await client.wait_ready()
            assert client.protocol_version == "2026-07-28"
        assert answers == ["rested"]
