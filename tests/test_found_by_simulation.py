"""What the simulation found, each made as small as it gets."""

from __future__ import annotations

import pytest
from trio.testing import MockClock

from tests.kit import STEADY, add, open_pair, open_server, told
from trio_mcp_resilient import ConnectionLost, OutcomeUnknown, RecoveryFailed, SessionLost, open_client

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
