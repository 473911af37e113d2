"""What was found by reading and by trying, each made as small as it gets."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Generator
from itertools import pairwise
from typing import Any, Literal

import mcp_types as types
import pytest
import trio
from mcp.client import ClientRequestContext
from mcp.shared.exceptions import MCPError
from trio.testing import MockClock

from tests.kit import STEADY, add, open_pair, open_sdk_pair, open_server, text, told
from trio_mcp_resilient import (
    Backoff,
    Client,
    ConnectionLost,
    Event,
    OutcomeUnknown,
    RequestRefused,
    State,
    StateChanged,
    ToolsChanged,
    open_client,
)
from trio_mcp_resilient.testing import RpcError, ScriptedServer, SeenRequest, ToolContext

CALL = "tools/call"


# -- a policy is one call's --------------------------------------------------------------------


def _cut_the_next_add(server: ScriptedServer) -> None:
    server.cut("before-head", when=lambda seen: seen.tool == "add")


async def test_a_progress_callback_does_not_inherit_the_policy_of_its_call(autojump_clock: MockClock) -> None:
    """It runs in the caller's task, and what it calls may not be harmless to repeat."""
    async with open_pair(get_stream=False) as (server, client):

        async def work(ctx: ToolContext) -> str:
            ctx.progress(1)
            await trio.sleep(1)
            return "worked"

        async def progress(done: float, total: float | None, message: str | None) -> None:
            _cut_the_next_add(server)
            with pytest.raises(OutcomeUnknown):
                await add(client)

        server.tool("work", work)
        await client.list_tools()
        result = await client.call_tool("work", {}, progress_callback=progress, resend="always")
        assert text(result) == "worked"
        assert server.executed["add"] == 1


async def _call_add(client: Client, met: list[object]) -> None:
    try:
        # By the SDK's session, which says nothing of a policy. `Client.call_tool` always does.
        met.append(await client.session.call_tool("add", {"a": 1, "b": 2}))
    except OutcomeUnknown as error:
        met.append(error)


async def test_the_answer_to_a_server_does_not_inherit_the_policy_of_the_call(
    autojump_clock: MockClock,
) -> None:
    """Its task has the context of the call on whose stream the server asked."""
    met: list[object] = []

    async def roots(context: ClientRequestContext) -> types.ListRootsResult:
        _cut_the_next_add(server)
        await _call_add(client, met)
        return types.ListRootsResult(roots=[])

    async with open_pair(get_stream=False, list_roots_callback=roots) as (server, client):

        async def work(ctx: ToolContext) -> str:
            await ctx.request("roots/list")
            return "worked"

        server.tool("work", work)
        await client.list_tools()
        assert text(await client.call_tool("work", {}, resend="always")) == "worked"
        assert [type(one) for one in met] == [OutcomeUnknown]
        assert server.executed["add"] == 1


async def test_the_answer_of_a_round_does_not_inherit_the_policy_of_the_call(
    autojump_clock: MockClock,
) -> None:
    met: list[object] = []

    async def roots(context: ClientRequestContext) -> types.ListRootsResult:
        _cut_the_next_add(server)
        await _call_add(client, met)
        return types.ListRootsResult(roots=[])

    async with open_pair("modern", list_roots_callback=roots) as (server, client):

        async def work(ctx: ToolContext) -> str:
            await ctx.request("roots/list")
            return "worked"

        server.tool("work", work)
        await client.list_tools()
        # The policy still holds for the second round of its own call.
        server.cut("before-head", when=lambda seen: seen.tool == "work" and server.executed["work"] == 1)
        assert text(await client.call_tool("work", {}, resend="always")) == "worked"
        assert [type(one) for one in met] == [OutcomeUnknown]
        assert server.executed["add"] == 1


# -- those who watch cost nothing --------------------------------------------------------------


class Tracer:
    """An instrument that does at the end of a request what it should not."""

    def __init__(self, *, swallows: bool) -> None:
        self.swallows = swallows

    def event(self, event: Event) -> None: ...

    @contextlib.contextmanager
    def request(self, method: str, target: str | None) -> Generator[dict[str, object]]:
        try:
            yield {}
        except BaseException:
            if not self.swallows:
                raise
        if not self.swallows and method == CALL:
            raise RuntimeError("an instrument's bug")


async def test_an_instrument_that_raises_at_the_end_does_not_cost_the_result(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_pair(get_stream=False, instruments=[Tracer(swallows=False)]) as (_server, client):
        assert await add(client) == "3"
        assert "an instrument raised at the end of tools/call" in caplog.text


async def test_an_instrument_hides_no_error_and_no_cancellation(autojump_clock: MockClock) -> None:
    async with open_pair(get_stream=False, instruments=[Tracer(swallows=True)]) as (_server, client):
        with pytest.raises(MCPError, match="Unknown tool"):
            await client.call_tool("unknown")
        with trio.move_on_after(1) as scope:
            await client.call_tool("slow", {"seconds": 5})
        assert scope.cancelled_caught


async def test_a_reader_of_events_may_go_on_with_a_clone(autojump_clock: MockClock) -> None:
    """The recovery failed with the channel that it told its events to."""
    async with open_pair(get_stream=False) as (server, client):
        async with client.events(1) as events:
            clone = events.clone()
            events.close()
            server.lose_session()
            assert await add(client) == "3"
            with clone:
                assert clone.receive_nowait() is not None
            server.lose_session()
            assert await add(client) == "3"


async def test_a_channel_that_holds_no_event_is_refused(autojump_clock: MockClock) -> None:
    async with open_pair(get_stream=False) as (_server, client):
        with pytest.raises(ValueError, match="max_buffered is a count of 1 or more"):
            async with client.events(0):
                pass


# -- whose words they are ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "message"),
    [(-32602, "Session not found"), (-32601, "unsupported protocol version"), (-32022, "no")],
)
async def test_the_words_of_a_tool_are_no_reason_to_run_it_again(
    autojump_clock: MockClock, code: int, message: str
) -> None:
    """The SDK's modern server gives a tool's own errors the HTTP statuses of the protocol's."""
    async with open_pair("modern") as (server, client):

        def fail() -> str:
            raise RpcError(code, message)

        server.tool("fail", fail)
        for _ in range(2):
            with pytest.raises(MCPError, match=message):
                await client.call_tool("fail")
        assert server.executed["fail"] == 2
        assert {seen.status for seen in server.posts(CALL)} <= {400, 404}
        # The server was asked whether it is still the same, and is.
        await client.wait_ready()
        assert client.generation == 1


async def test_a_server_of_sessions_that_answers_by_the_requests_name_is_found_out(
    autojump_clock: MockClock,
) -> None:
    """A call may get its error, for a tool could have said so; the next ones do not."""
    async with open_pair("modern", mode="auto") as (server, client):
        await add(client)

        def refuse(seen: SeenRequest) -> dict[str, Any]:
            error = {"code": -32000, "message": "Bad Request: No valid session ID provided"}
            return {"jsonrpc": "2.0", "id": seen.rpc_id, "error": error}

        server.restart(era="legacy")
        server.answer(400, refuse, when=lambda seen: seen.rpc_method == CALL and seen.session_id is None)
        with pytest.raises(MCPError, match="No valid session ID"):
            await add(client)
        assert await add(client) == "3"
        assert client.generation == 2


# -- another era -------------------------------------------------------------------------------


@pytest.mark.parametrize(("era", "then"), [("modern", "legacy"), ("legacy", "modern")])
async def test_a_ping_outlives_a_change_of_era(
    autojump_clock: MockClock, era: Literal["legacy", "modern"], then: Literal["legacy", "modern"]
) -> None:
    """It was sent again as what the new server does not know."""
    async with open_pair(era, mode="auto") as (server, client):
        server.restart(era=then)
        await client.ping()
        assert client.generation == 2


async def test_a_ping_of_the_sdk_outlives_a_change_of_era(autojump_clock: MockClock) -> None:
    async with open_sdk_pair(mode="auto") as (server, client):
        server.restart(era="modern")
        await client.session.send_ping()


# -- state that follows ------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:resources")
@pytest.mark.parametrize("wanted", [True, False])
async def test_what_is_set_while_the_session_is_replaced_is_set_on_the_new_one(
    autojump_clock: MockClock, wanted: bool
) -> None:
    """The old session answered after the new one had been given the state of before."""
    async with open_pair(get_stream=False) as (server, client):
        server.resource("memo://one", "text of one")
        if not wanted:
            await client.session.subscribe_resource("memo://one")
        change = client.session.subscribe_resource if wanted else client.session.unsubscribe_resource
        held = server.hold("resources/subscribe" if wanted else "resources/unsubscribe")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(change, "memo://one")
            await held.reached()
            client.invalidate()
            assert await add(client) == "3"
            held.release()
        session = server.sessions[-1]
        assert set(session.subscriptions) == ({"memo://one"} if wanted else set())


# -- what is remembered ------------------------------------------------------------------------


async def test_listings_at_the_same_time_are_not_taken_for_changes(autojump_clock: MockClock) -> None:
    """Their pages were mixed: the second to end was taken for a list that had lost its first page."""
    events: list[Event] = []

    async def list_all() -> None:
        page = await client.list_tools()
        while page.next_cursor is not None:
            await trio.sleep(1)
            page = await client.list_tools(params=types.PaginatedRequestParams(cursor=page.next_cursor))

    async with open_pair(get_stream=False, on_event=events.append, resend="idempotent") as (server, client):
        server.tool("read", lambda: "r", annotations={"readOnlyHint": True})
        for number in range(4):
            server.tool(f"t{number}", lambda: "t")
        server.page_size = 2
        async with trio.open_nursery() as nursery:
            nursery.start_soon(list_all)
            await trio.sleep(0.5)
            nursery.start_soon(list_all)
        await list_all()
        assert told(events, ToolsChanged) == []
        server.remove_tool("slow")
        await list_all()
        assert told(events, ToolsChanged) == [ToolsChanged(added=(), removed=("slow",), changed=())]


async def test_a_second_attempt_that_is_refused_by_http_does_not_unsay_the_first(
    autojump_clock: MockClock,
) -> None:
    async with open_pair(get_stream=False, resend="always") as (server, client):
        await client.list_tools()
        server.cut("before-head", when=CALL)
        server.answer(401, when=CALL)
        with pytest.raises(OutcomeUnknown, match="sent twice") as caught:
            await add(client)
        assert server.executed["add"] == 1
        assert isinstance(caught.value.__cause__, RequestRefused)
        # Of a list it makes no difference, and the refusal tells more.
        server.cut("before-head", when="tools/list")
        server.answer(401, when="tools/list")
        with pytest.raises(RequestRefused):
            await client.list_tools()


async def test_what_a_watcher_causes_is_told_to_all_in_order(autojump_clock: MockClock) -> None:
    clients: list[Client] = []

    def invalidate_once(event: Event) -> None:
        if clients and isinstance(event, StateChanged) and event.after is State.READY:
            clients.pop().invalidate()

    async with open_pair(get_stream=False, on_event=invalidate_once) as (server, client):
        async with client.events() as events:
            server.lose_session()
            assert await add(client) == "3"
            clients.append(client)
            server.lose_session()
            assert await add(client) == "3"
            await client.wait_ready()
            moves: list[StateChanged] = []
            while events.statistics().current_buffer_used:
                event = events.receive_nowait()
                moves += [event] if isinstance(event, StateChanged) else []
    assert len(moves) >= 4
    for before, after in pairwise(moves):
        assert before.after is after.before


# -- where it is -------------------------------------------------------------------------------


async def test_a_detour_that_leads_nowhere_is_not_remembered(autojump_clock: MockClock) -> None:
    """It was, also by the requests that would not have been redirected."""
    async with open_server() as server:
        server.answer(307, headers={"location": "/elsewhere"}, when="server/discover", times=math.inf)
        async with open_client(server.url, connect=server.connect, backoff=STEADY) as client:
            assert await add(client) == "3"


# -- time --------------------------------------------------------------------------------------


async def test_a_recovery_without_end_keeps_only_the_last_errors(autojump_clock: MockClock) -> None:
    for_ever = Backoff(first=1, factor=1, cap=1, jitter=0, attempts=0)
    async with open_pair(get_stream=False, backoff=for_ever, recovery_timeout=1000) as (server, client):
        server.restart(down_for=math.inf)
        with pytest.raises(ConnectionLost) as caught:
            await add(client)
        assert caught.value.recovery is not None
        assert caught.value.recovery.attempts > 900
        group: Any = caught.value.__cause__ and caught.value.__cause__.__cause__
        assert 0 < len(group.exceptions) < 20


async def test_a_new_session_has_not_been_idle(autojump_clock: MockClock) -> None:
    """The clock of a program does not begin at 0, unlike that of most tests."""
    await trio.sleep(1000)
    async with open_pair(get_stream=False, keepalive=600) as (server, _client):
        await trio.sleep(599)
        assert server.posts("ping") == []
        await trio.sleep(2)
        assert len(server.posts("ping")) == 1
