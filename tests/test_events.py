"""The events: every kind is told by a real story, in the order things happened."""

from __future__ import annotations

import typing
from itertools import pairwise

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.kit import add, open_pair, told
from trio_mcp_resilient import Event, OutcomeUnknown, SessionLost, State, StateChanged
from trio_mcp_resilient._states import TRANSITIONS
from trio_mcp_resilient._supervisor import FLAPPING_LOSSES

pytestmark = pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")


async def test_every_kind_of_event_is_told_and_every_move_is_legal(autojump_clock: MockClock) -> None:
    events: list[Event] = []
    async with open_pair(on_event=events.append) as (server, client):
        await client.list_tools()
        await client.session.set_logging_level("warning")
        error = {"code": -32601, "message": "Method not found"}
        server.answer(
            200, lambda seen: {"jsonrpc": "2.0", "id": seen.rpc_id, "error": error}, when="logging/setLevel"
        )
        server.remove_tool("slow")
        server.lose_session()
        await add(client)
        await trio.sleep(10)
        server.cut("before-head", when="tools/call")
        with pytest.raises(OutcomeUnknown):
            await add(client)
        await client.wait_ready()
        server.lose_session()
        server.answer(404, when="initialize")
        with pytest.raises(SessionLost):
            await add(client)
        await client.wait_ready()
        for _ in range(FLAPPING_LOSSES):
            server.lose_session()
            await add(client)
    kinds = {type(event) for event in events}
    assert kinds == set(typing.get_args(Event))
    moves = [(event.before, event.after) for event in told(events, StateChanged)]
    assert all(after in TRANSITIONS[before] for before, after in moves)
    assert all(one[1] is other[0] for one, other in pairwise(moves))
    assert moves[0] == (State.CONNECTING, State.READY)
    assert moves[-1][1] is State.CLOSED
    assert set(moves) >= {
        (State.READY, State.RECOVERING),
        (State.RECOVERING, State.READY),
        (State.RECOVERING, State.DORMANT),
        (State.DORMANT, State.RECOVERING),
    }


async def test_a_watcher_that_raises_costs_nothing_but_its_event(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    def watch(event: Event) -> None:
        raise RuntimeError("watcher")

    async with open_pair(on_event=watch) as (server, client):
        server.lose_session()
        assert await add(client) == "3"
        await wait_all_tasks_blocked()
    assert "on_event raised for SessionStarted" in caplog.text


async def test_nothing_told_or_shown_holds_the_session_id(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    events: list[Event] = []
    ids: set[str] = set()
    said: list[str] = []
    headers = {"authorization": "Bearer s3cr3t-token"}
    async with open_pair(on_event=events.append, headers=headers) as (server, client):
        for breaks in (
            server.lose_session,
            lambda: server.cut("before-head", when="tools/call"),
            lambda: server.restart(keep_sessions=False, down_for=3),
        ):
            ids |= {session.id for session in server.sessions}
            breaks()
            try:
                await add(client)
            except OutcomeUnknown as error:
                said += [str(error), repr(error), repr(error.evidence)]
            said += [repr(client), repr(client.session), repr(client.statistics())]
        ids |= {session.id for session in server.sessions}
    assert len(ids) == 3
    everything = "\n".join([*map(repr, events), *said, caplog.text])
    assert not [secret for secret in (*ids, "s3cr3t-token") if secret in everything]
    assert "#" in everything
