"""Streams that break: answers resumed where they broke, and the standalone GET stream."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import mcp_types as types
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.kit import add, open_pair, open_server, text, told
from trio_mcp_resilient import Event, OutcomeUnknown, StreamGap, open_client
from trio_mcp_resilient.testing import RpcError


def gets(server: Any) -> list[Any]:
    return [seen for seen in server.requests if seen.http_method == "GET"]


# -- answers ---------------------------------------------------------------------------------------


async def test_a_cut_answer_is_resumed_after_the_servers_retry(autojump_clock: MockClock) -> None:
    async with open_server() as server:
        server.resumable = True
        server.retry = 500
        async with open_client(server.url, connect=server.connect, get_stream=False) as client:
            await client.list_tools()
            cut = server.cut("mid-body", when="tools/call")

            async def call() -> None:
                assert text(await client.call_tool("slow", {"seconds": 10})) == "rested"

            async with trio.open_nursery() as nursery:
                nursery.start_soon(call)
                await cut.reached()
                at = trio.current_time()
                await trio.sleep(0.6)
                (resumed,) = gets(server)
                assert resumed.last_event_id
                assert 0.5 <= resumed.arrived_at - at <= 0.7
            assert server.executed["slow"] == 1
            assert client.statistics().resends == 0
            assert client.generation == 1


async def test_a_stream_the_server_closes_itself_is_polled(autojump_clock: MockClock) -> None:
    async with open_server() as server:
        server.resumable = True
        server.retry = 500

        async def polled(ctx: Any) -> str:
            ctx.close_stream()
            await trio.sleep(3)
            return "done"

        server.tool("polled", polled)
        async with open_client(server.url, connect=server.connect, get_stream=False) as client:
            await client.list_tools()
            assert text(await client.call_tool("polled")) == "done"
            assert server.executed["polled"] == 1
            assert client.statistics().resends == 0


async def test_a_cut_without_an_event_id_is_of_unknown_outcome(autojump_clock: MockClock) -> None:
    async with open_pair(get_stream=False) as (server, client):
        await client.list_tools()
        server.cut("before-head", when="tools/call")
        with pytest.raises(OutcomeUnknown) as caught:
            await add(client)
        assert "POST tools/call was cut" in str(caught.value)
        assert server.executed["add"] == 1
        assert await add(client) == "3"
        assert (client.generation, server.handshakes) == (1, 1)


@pytest.mark.parametrize("point", ["before-head", "after-head", "mid-body"])
@pytest.mark.parametrize("how", ["reset", "fin", "end"])
async def test_harmless_requests_are_repeated_after_a_cut(
    point: Any, how: Any, autojump_clock: MockClock
) -> None:
    if (point, how) == ("before-head", "end"):
        how = "fin"
    async with open_pair(get_stream=False) as (server, client):
        server.cut(point, how=how, when="tools/list")
        assert len((await client.list_tools()).tools) == 2
        assert client.statistics().resends == 1
        assert client.generation == 1


async def test_a_clean_end_without_an_answer_is_a_cut(autojump_clock: MockClock) -> None:
    async with open_pair(get_stream=False) as (server, client):
        await client.list_tools()
        server.cut("after-head", how="end", when="tools/call")
        with pytest.raises(OutcomeUnknown, match="ended without a result"):
            await add(client)


async def test_the_answer_of_a_session_that_is_gone_is_unknown_and_the_next_call_works(
    autojump_clock: MockClock,
) -> None:
    async with open_server() as server:
        server.resumable = True
        server.retry = 500
        async with open_client(server.url, connect=server.connect, get_stream=False) as client:
            await client.list_tools()
            cut = server.cut("mid-body", when="tools/call")

            async def call() -> None:
                with pytest.raises(OutcomeUnknown):
                    await client.call_tool("slow", {"seconds": 10})

            async with trio.open_nursery() as nursery:
                nursery.start_soon(call)
                await cut.reached()
                server.lose_session()
            assert await add(client) == "3"
            assert client.generation == 2
            assert server.executed["slow"] == 1


async def test_half_open_silence_ends_with_the_read_timeout(autojump_clock: MockClock) -> None:
    async with open_pair(get_stream=False, read_timeout=60) as (server, client):
        await client.list_tools()
        server.go_silent("before-head", when="tools/call")
        began = trio.current_time()
        with pytest.raises(OutcomeUnknown):
            await add(client)
        assert trio.current_time() - began == pytest.approx(60)
        assert await add(client) == "3"


async def test_a_drain_is_bounded(autojump_clock: MockClock) -> None:
    async with open_pair(get_stream=False, drain_timeout=20) as (server, client):
        await client.list_tools()
        server.go_silent("before-head", when="tools/call")
        began = trio.current_time()

        async def call() -> None:
            with pytest.raises(OutcomeUnknown, match="no answer when its session was done with"):
                await client.call_tool("slow", {"seconds": 100})
            assert trio.current_time() - began == pytest.approx(21)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)
            await trio.sleep(1)
            server.lose_session()
            assert await add(client) == "3"


# -- the GET stream --------------------------------------------------------------------------------


async def test_the_stream_is_opened_after_initialized_with_the_sessions_id(autojump_clock: MockClock) -> None:
    async with open_pair() as (server, _):
        await wait_all_tasks_blocked()
        methods = [seen.rpc_method or seen.http_method for seen in server.requests]
        assert methods == ["initialize", "notifications/initialized", "GET"]
        assert gets(server)[0].session_id == server.sessions[0].id
        assert gets(server)[0].headers["accept"] == "text/event-stream"


async def test_a_loss_met_by_the_stream_is_repaired_before_a_call_has_to_meet_it(
    autojump_clock: MockClock,
) -> None:
    async with open_pair() as (server, client):
        await wait_all_tasks_blocked()
        server.restart(keep_sessions=False)
        await trio.sleep(5)
        assert client.generation == 2
        assert await add(client) == "3"
        assert client.statistics().resends == 0


async def test_a_server_without_the_stream_is_not_asked_again(autojump_clock: MockClock) -> None:
    async with open_server() as server:
        server.offer_get_stream = False
        async with open_client(server.url, connect=server.connect) as client:
            await trio.sleep(1000)
            assert len(gets(server)) == 1
            assert gets(server)[0].status == 405
            assert await add(client) == "3"


async def test_a_stream_that_closes_at_once_does_not_spin(autojump_clock: MockClock) -> None:
    async with open_server() as server:
        server.answer(200, b"", content_type="text/event-stream", when="GET", times=float("inf"))
        async with open_client(server.url, connect=server.connect):
            await trio.sleep(600)
        assert len(gets(server)) < 50


@pytest.mark.parametrize("status", [409, 503])
async def test_a_refusal_that_may_pass_is_retried(status: int, autojump_clock: MockClock) -> None:
    async with open_server() as server:
        server.answer(status, b"", when="GET", times=2)
        async with open_client(server.url, connect=server.connect) as client:
            await trio.sleep(30)
            assert [seen.status for seen in gets(server)] == [status, status, 200]
            assert client.generation == 1


async def test_what_is_no_event_stream_is_no_stream(autojump_clock: MockClock) -> None:
    async with open_server() as server:
        server.answer(200, "<html>", content_type="text/html", when="GET", times=float("inf"))
        async with open_client(server.url, connect=server.connect):
            await trio.sleep(1000)
        assert len(gets(server)) == 1


@pytest.mark.limit(1_000_000)
async def test_an_idle_stream_is_never_ended_by_us(autojump_clock: MockClock) -> None:
    async with open_pair(read_timeout=60) as (server, _):
        await trio.sleep(80_000)
        assert len(gets(server)) == 1


async def test_the_stream_can_be_turned_off(autojump_clock: MockClock) -> None:
    async with open_pair(get_stream=False) as (server, client):
        await add(client)
        await trio.sleep(100)
        assert gets(server) == []


async def test_a_gap_between_sessions_is_told(autojump_clock: MockClock) -> None:
    events: list[Event] = []
    async with open_pair(on_event=events.append) as (server, client):
        await wait_all_tasks_blocked()
        assert told(events, StreamGap) == []
        server.lose_session()
        await add(client)
        await trio.sleep(1)
        assert told(events, StreamGap) == [StreamGap(2)]


async def test_notifications_arrive_in_order_and_progress_before_the_result(
    autojump_clock: MockClock,
) -> None:
    logged: list[Any] = []

    async def log(params: Any) -> None:
        await trio.lowlevel.checkpoint()
        logged.append(params.data)

    async with open_pair(logging_callback=log) as (server, client):

        async def busy(ctx: Any) -> str:
            for step in range(10):
                ctx.log(f"line {step}")
                ctx.progress(step + 1, 10)
            return "done"

        server.tool("busy", busy)
        progress: list[float] = []

        async def report(done: float, total: float | None, message: str | None) -> None:
            await trio.lowlevel.checkpoint()
            progress.append(done)

        assert text(await client.call_tool("busy", progress_callback=report)) == "done"
        assert progress == [float(step) for step in range(1, 11)]
        await wait_all_tasks_blocked()
        assert logged == [f"line {step}" for step in range(10)]


@pytest.mark.parametrize("odd", ["  7", "7 ", "a\x0bb", "a\x7fb"])
async def test_an_event_id_that_fits_no_header_is_not_sent_back(odd: str, autojump_clock: MockClock) -> None:
    event = f"id: {odd}\ndata: \n\n"
    async with open_pair(get_stream=False) as (server, client):
        await client.list_tools()
        server.answer(200, event, content_type="text/event-stream", when="tools/call")
        with pytest.raises(OutcomeUnknown):
            await add(client)
        assert [seen.last_event_id for seen in gets(server)] == []


async def test_a_loss_after_progress_is_of_unknown_outcome(autojump_clock: MockClock) -> None:
    began = '{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":1}}'
    lost = '{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"Session not found"}}'
    async with open_pair(get_stream=False) as (server, client):
        await client.list_tools()
        events = f"data: {began}\n\ndata: {lost}\n\n"
        server.answer(200, events, content_type="text/event-stream", when="tools/call")
        with pytest.raises(OutcomeUnknown, match="Session not found"):
            await add(client)
        assert await add(client) == "3"
        assert client.generation == 2


# -- servers that resume badly ---------------------------------------------------------------------


def sse(*events: tuple[str, str]) -> str:
    return "".join(f"id: {event_id}\ndata: {data}\n\n" for event_id, data in events)


def result(request_id: Any, said: str) -> str:
    return json.dumps(
        {"jsonrpc": "2.0", "id": request_id, "result": {"content": [{"type": "text", "text": said}]}}
    )


async def test_a_resumed_stream_with_other_calls_answers_is_searched_for_our_own(
    autojump_clock: MockClock,
) -> None:
    """As npm server-everything replays: the messages of every stream, other calls' answers included."""
    async with open_pair(get_stream=False) as (server, client):
        await client.list_tools()
        asked: list[Any] = []

        def cut_short(seen: Any) -> str:
            asked.append(seen.rpc_id)
            return sse(("1", ""))

        def replay(seen: Any) -> str:
            ours = asked[0]
            return sse(
                ("2", result(ours + 1000, "another call's")),
                ("3", result(ours - 1, "an old one, again")),
                ("4", result(ours, "ours")),
                ("5", result(ours, "ours, twice")),
            )

        server.answer(200, cut_short, content_type="text/event-stream", when="tools/call")
        server.answer(200, replay, content_type="text/event-stream", when="GET")
        assert await add(client) == "ours"
        assert [seen.last_event_id for seen in gets(server)] == ["1"]
        assert len(server.posts("tools/call")) == 1


async def test_a_resumed_stream_that_stays_silent_is_asked_again(autojump_clock: MockClock) -> None:
    async with open_pair(get_stream=False) as (server, client):
        await client.list_tools()
        asked: list[Any] = []

        def cut_short(seen: Any) -> str:
            asked.append(seen.rpc_id)
            return sse(("1", ""))

        server.answer(200, cut_short, content_type="text/event-stream", when="tools/call")
        server.go_silent("after-head", when="GET")
        server.answer(
            200,
            lambda seen: sse(("2", result(asked[0], "late"))),
            content_type="text/event-stream",
            when="GET",
        )
        began = trio.current_time()
        assert await add(client) == "late"
        assert len(gets(server)) == 2
        assert trio.current_time() - began < 60


async def test_a_server_that_always_ends_a_resumed_stream_is_given_up(autojump_clock: MockClock) -> None:
    async with open_pair(get_stream=False) as (server, client):
        await client.list_tools()
        server.answer(200, sse(("1", "")), content_type="text/event-stream", when="tools/call")
        server.answer(200, "", content_type="text/event-stream", when="GET", times=float("inf"))
        with pytest.raises(OutcomeUnknown):
            await add(client)
        assert 5 <= len(gets(server)) <= 10
        pauses = [b.arrived_at - a.arrived_at for a, b in pairwise(gets(server))]
        assert pauses == sorted(pauses)
        assert pauses[-1] > 10


@pytest.mark.parametrize("status", [400, 405, 500])
async def test_a_server_that_cannot_resume_leaves_the_outcome_unknown(
    status: int, autojump_clock: MockClock
) -> None:
    async with open_pair(get_stream=False) as (server, client):
        await client.list_tools()
        server.answer(200, sse(("1", "")), content_type="text/event-stream", when="tools/call")
        server.answer(status, "Invalid event ID format", when="GET", times=float("inf"))
        with pytest.raises(OutcomeUnknown):
            await add(client)
        assert client.generation == 1
        server.forget_script()
        assert await add(client) == "3"


async def test_the_servers_retry_is_never_undercut_by_the_standalone_stream(
    autojump_clock: MockClock,
) -> None:
    async with open_server() as server:
        server.answer(200, "retry: 20000\nid: 7\ndata: \n\n", content_type="text/event-stream", when="GET")
        async with open_client(server.url, connect=server.connect):
            await trio.sleep(60)
        first, second = gets(server)[:2]
        assert 20 <= second.arrived_at - first.arrived_at <= 20.2
        assert second.last_event_id == "7"


# -- bodies that take their time -------------------------------------------------------------------


async def test_a_refusal_whose_body_never_comes_delays_no_sibling(autojump_clock: MockClock) -> None:
    async with open_pair(get_stream=False) as (server, client):
        await client.list_tools()
        server.lose_session()
        server.go_silent(
            "after-head", when=lambda seen: seen.tool == "add" and seen.params["arguments"]["a"] == 0
        )
        began = trio.current_time()
        took: dict[int, float] = {}

        async def call(number: int) -> None:
            assert await add(client, number, 0) == str(number)
            took[number] = trio.current_time() - began

        async with trio.open_nursery() as nursery:
            for number in range(5):
                nursery.start_soon(call, number)
        assert [took[number] for number in range(1, 5)] == [0] * 4
        # Its own verdict waits for the words, but not for long: the status says enough.
        assert took[0] == pytest.approx(5)
        assert server.handshakes == 2


# -- what the server says and asks -----------------------------------------------------------------


async def test_a_refused_notification_raises_nothing_and_condemns_the_session(
    autojump_clock: MockClock,
) -> None:
    async with open_pair(get_stream=False) as (server, client):
        server.lose_session()
        await client.session.send_notification(types.RootsListChangedNotification())
        await client.wait_ready()
        assert client.generation == 2
        server.answer(500, "", when="notifications/roots/list_changed")
        await client.session.send_notification(types.RootsListChangedNotification())
        assert client.generation == 2


async def test_a_handler_that_outlives_its_session_is_cancelled(autojump_clock: MockClock) -> None:
    ended: list[str] = []

    async def sample(context: Any, params: Any) -> types.CreateMessageResult:
        try:
            await trio.sleep_forever()
        finally:
            ended.append("cancelled")

    async with open_pair(sampling_callback=sample) as (server, client):

        async def ask() -> None:
            with pytest.raises(RpcError):
                await server.request("sampling/createMessage", {"messages": [], "maxTokens": 1})

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await trio.sleep(1)
            assert ended == []
            server.lose_session(streams="cut")
            await add(client)
            await wait_all_tasks_blocked()
            assert ended == ["cancelled"]


async def test_a_session_made_in_vain_is_deleted(autojump_clock: MockClock) -> None:
    async with open_server() as server:
        held = server.hold("notifications/initialized")
        with trio.move_on_after(5):
            async with open_client(server.url, connect=server.connect):
                pytest.fail("it was cancelled on the way")
        held.release()
        await wait_all_tasks_blocked()
        assert server.sessions == []
        assert len(server.deleted) == 1
