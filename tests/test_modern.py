"""The whole client in the era without sessions, and when a redeploy moves it from one to the other."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import mcp_types as types
import pytest
import trio
from mcp import MCPError
from mcp.client import ClientRequestContext, InputRequiredRoundsExceededError
from mcp.client.subscriptions import (
    ListenNotSupportedError,
    ResourceUpdated,
    SubscriptionLost,
    ToolsListChanged,
    listen,
)
from mcp_types import LOG_LEVEL_META_KEY
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.kit import STEADY, Era, add, open_pair, open_server, text, told
from trio_mcp_resilient import (
    Client,
    ConnectionLost,
    Event,
    GaveUp,
    HandshakeFailed,
    OutcomeUnknown,
    RestoreFailed,
    SessionEnded,
    SessionStarted,
    State,
    StreamGap,
    open_client,
)
from trio_mcp_resilient.testing import DISCOVER_DIALECTS, InputRequired, ScriptedServer, ToolContext

CALL = "tools/call"
LISTEN = "subscriptions/listen"
DISCOVER = "server/discover"
LEGACY, MODERN = "2025-11-25", "2026-07-28"


def methods(server: ScriptedServer) -> list[str]:
    """What was asked of a server, in order."""
    return [seen.rpc_method or seen.http_method for seen in server.requests]


@asynccontextmanager
async def client_of(server: ScriptedServer, **options: Any) -> AsyncGenerator[Client, None]:
    """A client of a server that a test has set up before."""
    options.setdefault("backoff", STEADY)
    async with open_client(server.url, connect=server.connect, **options) as client:
        yield client


# -- what is sent ------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["auto", MODERN])
@pytest.mark.parametrize("json_mode", [True, False], ids=["json", "sse"])
async def test_nothing_is_sent_that_the_era_does_not_know(
    autojump_clock: MockClock, mode: str, json_mode: bool
) -> None:
    async with open_pair("modern", mode=mode) as (server, client):
        server.json_mode = json_mode
        assert client.protocol_version == MODERN
        assert client.server_capabilities is not None
        assert await add(client) == "3"
        await client.list_tools()
        await client.ping()
    assert methods(server) == [DISCOVER, CALL, "tools/list", "tools/list", DISCOVER]
    assert server.client_faults == {}
    assert server.sessions == []
    assert server.open_connections == 0


async def test_progress_and_log_messages_come_with_the_answer(autojump_clock: MockClock) -> None:
    progress: list[float] = []
    logged: list[Any] = []

    async def report(done: float, total: float | None, message: str | None) -> None:
        progress.append(done)

    async def log(params: types.LoggingMessageNotificationParams) -> None:
        logged.append(params.data)

    async def work(ctx: ToolContext) -> str:
        ctx.progress(1, 2)
        ctx.log("half of it")
        ctx.log("not asked for", "debug")
        return "done"

    async with open_pair("modern", log_level="info", logging_callback=log) as (server, client):
        server.tool("work", work)
        await client.call_tool("work", progress_callback=report)
        await wait_all_tasks_blocked()
    assert progress == [1]
    assert logged == ["half of it"]


@pytest.mark.parametrize("says", [True, False])
async def test_a_result_that_does_not_say_its_type_is_complete(autojump_clock: MockClock, says: bool) -> None:
    async with open_pair("modern") as (server, client):
        server.says_result_type = says
        server.cache_hints = {}
        assert await add(client) == "3"
        assert [tool.name for tool in (await client.list_tools()).tools] == ["add", "slow"]


async def test_a_cancelled_call_is_cancelled_by_its_connection(autojump_clock: MockClock) -> None:
    async with open_pair("modern") as (server, client):
        with trio.move_on_after(1):
            await client.call_tool("slow", {"seconds": 60})
        await wait_all_tasks_blocked()
        assert server.running == 0
        assert len(server.disconnects) == 1
        assert await add(client) == "3"
    assert server.client_faults == {}, "a notification was sent, or the like"


# -- which era ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", DISCOVER_DIALECTS)
async def test_a_server_of_sessions_is_found_out_however_it_refuses(
    autojump_clock: MockClock, dialect: str
) -> None:
    async with open_server() as server:
        server.discover_dialect(dialect)
        async with client_of(server, get_stream=False) as client:
            assert await add(client) == "3"
            assert client.protocol_version == LEGACY
        assert methods(server)[:3] == [DISCOVER, "initialize", "notifications/initialized"]
        initialize = server.posts("initialize")[0]
        assert initialize.session_id is None
        assert "_meta" not in initialize.params


async def test_a_server_that_never_answers_the_question_is_initialized(
    autojump_clock: MockClock,
) -> None:
    async with open_server() as server:
        server.go_silent(when=DISCOVER, times=math.inf)
        began = trio.current_time()
        async with client_of(server, get_stream=False) as client:
            assert trio.current_time() - began == 10
            assert await add(client) == "3"
            # Once is enough: a lost session is no reason to wait as long again.
            server.lose_session()
            assert await add(client) == "3"
            assert trio.current_time() - began == 10


async def test_a_short_handshake_has_time_for_both_eras(autojump_clock: MockClock) -> None:
    async with open_server() as server:
        server.go_silent(when=DISCOVER, times=math.inf)
        began = trio.current_time()
        async with client_of(server, handshake_timeout=5) as client:
            assert trio.current_time() - began == 2.5
            assert await add(client) == "3"


async def test_a_server_that_hangs_up_on_the_question_is_initialized(
    autojump_clock: MockClock,
) -> None:
    async with open_server() as server:
        server.cut("before-head", when=DISCOVER)
        async with client_of(server) as client:
            assert await add(client) == "3"
        # It told nothing of the era: the next one asks again.
        async with client_of(server) as client:
            assert await add(client) == "3"
        assert len(server.posts(DISCOVER)) == 2


async def test_a_server_that_hangs_up_and_is_known_to_be_modern_is_asked_again(
    autojump_clock: MockClock,
) -> None:
    async with open_pair("modern") as (server, client):
        server.cut("before-head", when=DISCOVER)
        client.invalidate()
        await client.wait_ready()
        assert await add(client) == "3"
        assert client.protocol_version == MODERN
    assert server.posts("initialize") == []


async def test_an_outage_is_no_sign_of_an_era(autojump_clock: MockClock) -> None:
    async with open_server(era="modern") as server:
        server.answer(503, "no server available", headers={"retry-after": "7"}, when=DISCOVER)
        began = trio.current_time()
        async with client_of(server) as client:
            assert client.protocol_version == MODERN
            assert trio.current_time() - began == 7
        assert server.posts("initialize") == []


@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
async def test_a_stray_answer_to_the_question_is_outlived(autojump_clock: MockClock, known: bool) -> None:
    """It says not modern, and `initialize` is refused in the words of the modern era: ask again."""
    async with open_server(era="modern") as server:
        if known:
            async with client_of(server):
                pass
        server.answer(404, "<h1>Not Found</h1>", content_type="text/html", when=DISCOVER)
        async with client_of(server) as client:
            assert client.protocol_version == MODERN
        assert methods(server)[-3:] == [DISCOVER, "initialize", DISCOVER]


async def test_the_era_is_remembered_for_the_origin(autojump_clock: MockClock) -> None:
    async with open_server() as server:
        for _ in range(2):
            async with client_of(server):
                pass
        assert len(server.posts(DISCOVER)) == 1
        assert len(server.posts("initialize")) == 2


@pytest.mark.parametrize(("mode", "era"), [("legacy", "modern"), (MODERN, "legacy")])
async def test_a_client_of_one_era_refuses_a_server_of_the_other(
    autojump_clock: MockClock, mode: str, era: Era
) -> None:
    async with open_server(era=era) as server:
        with pytest.raises(HandshakeFailed):
            async with client_of(server, mode=mode):
                pytest.fail("they have nothing in common")
        assert len(server.requests) == 1


async def test_versions_that_nobody_shares_are_said(autojump_clock: MockClock) -> None:
    async with open_server(era="modern") as server:
        server.modern_versions = ["2099-01-01"]
        with pytest.raises(HandshakeFailed, match="speaks 2099-01-01 only"):
            async with client_of(server):
                pytest.fail("they have nothing in common")


# -- when something breaks ---------------------------------------------------------------------


async def test_calls_wait_for_a_server_that_is_down(autojump_clock: MockClock) -> None:
    async with open_pair("modern") as (server, client):
        server.restart(down_for=2)
        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(add, client)
        assert server.executed == {"add": 20}
        assert client.generation == 1, "it is the same server"
        server.down()
        with pytest.raises((ConnectionLost, GaveUp)) as caught:
            await add(client)
        assert caught.value.executed is False
    assert server.executed == {"add": 20}


@pytest.mark.parametrize("point", ["before-head", "after-head"])
async def test_a_cut_answer_is_unknown_and_sent_once(autojump_clock: MockClock, point: Any) -> None:
    async with open_pair("modern") as (server, client):
        await client.list_tools()
        server.cut(point, when=CALL)
        with pytest.raises(OutcomeUnknown):
            await add(client)
        assert len(server.posts(CALL)) == 1
        assert await add(client) == "3"


async def test_what_may_be_repeated_is_sent_again_under_a_new_id(autojump_clock: MockClock) -> None:
    async with open_pair("modern", resend="always") as (server, client):
        server.cut("before-head", when=CALL)
        assert await add(client) == "3"
        first, second = server.posts(CALL)
        assert first.rpc_id != second.rpc_id
        server.cut("before-head", when="resources/list")
        await client.list_resources()


# -- redeploys ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("before", "after"), [("legacy", "modern"), ("modern", "legacy")])
@pytest.mark.parametrize("refused", [True, False], ids=["refused", "cut first"])
async def test_a_redeploy_in_the_other_era_is_noticed_by_whoever_calls(
    autojump_clock: MockClock, before: Era, after: Era, refused: bool
) -> None:
    events: list[Event] = []
    async with open_pair(before, mode="auto", get_stream=False, on_event=events.append) as (server, client):
        answers: list[str] = []

        async def call() -> None:
            answers.append(await add(client))

        await client.list_tools()
        if refused:
            server.restart(era=after, how="fin")
        else:
            server.restart(era=after, down_for=2)
        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(call)
        assert answers == ["3"] * 20
        assert server.executed == {"add": 20}, "none ran twice"
        assert client.protocol_version == (MODERN if after == "modern" else LEGACY)
        assert [event.protocol_version for event in told(events, SessionStarted)] == [
            MODERN if era == "modern" else LEGACY for era in (before, after)
        ]
        assert len(told(events, SessionEnded)) == 1
        if after == "modern":
            assert {fault for fault in server.client_faults if fault != "session id"} <= {
                "header",
                "envelope",
            }
            server.client_faults.clear()
            assert await add(client) == "3"
            assert server.client_faults == {}


async def test_another_server_of_the_same_era_is_adopted(autojump_clock: MockClock) -> None:
    async with open_pair("modern") as (server, client):
        server.instructions = "changed"
        server.restart(down_for=1)
        assert await add(client) == "3"
        assert client.generation == 2
        assert client.session.instructions == "changed"


async def test_the_log_level_follows_into_the_other_era_and_subscriptions_cannot(
    autojump_clock: MockClock,
) -> None:
    events: list[Event] = []
    async with open_pair("legacy", mode="auto", get_stream=False, on_event=events.append) as (server, client):
        server.resource("memo://one", "text of one")
        with pytest.warns(Warning, match="2026-07-28"):
            await client.session.set_logging_level("warning")
        with pytest.warns(Warning, match="2026-07-28"):
            await client.session.subscribe_resource("memo://one")
        server.restart(era="modern")
        await add(client)
        assert server.posts(CALL)[-1].params["_meta"][LOG_LEVEL_META_KEY] == "warning"
        assert {event.method for event in told(events, RestoreFailed)} == {"resources/subscribe"}


# -- arguments in headers ----------------------------------------------------------------------

SCHEMA = {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}


async def test_a_call_is_refused_for_its_headers_and_made_again_by_the_new_schema(
    autojump_clock: MockClock,
) -> None:
    async with open_pair("modern") as (server, client):
        server.tool("deploy", lambda region: f"to {region}")
        await client.list_tools()
        server.tool("deploy", lambda region: f"to {region}", inputSchema=SCHEMA)
        assert text(await client.call_tool("deploy", {"region": "eu"})) == "to eu"
        assert methods(server)[-3:] == [CALL, "tools/list", CALL]
        assert server.executed == {"deploy": 1}
        assert server.requests[-1].headers["mcp-param-region"] == "eu"
        assert server.client_faults == {"header": 1}


async def test_a_refusal_that_a_new_schema_does_not_help_is_raised(
    autojump_clock: MockClock,
) -> None:
    """What would be sent again is what was refused; and if a tool gave the code itself, it has run."""
    mismatch = {"jsonrpc": "2.0", "id": None, "error": {"code": -32020, "message": "header mismatch"}}
    async with open_pair("modern") as (server, client):
        server.answer(400, mismatch, when=CALL, times=9)
        with pytest.raises(MCPError, match="header mismatch"):
            await add(client)
        assert methods(server)[-2:] == [CALL, "tools/list"]
        assert len(server.posts(CALL)) == 1
        with pytest.raises(MCPError, match="header mismatch"):
            await client.call_tool("add", {"a": 1, "b": 2}, resend="never")
        assert len(server.posts(CALL)) == 2


# -- rounds ------------------------------------------------------------------------------------


async def elicit(context: ClientRequestContext, params: types.ElicitRequestParams) -> types.ElicitResult:
    return types.ElicitResult(action="accept", content={"name": "you"})


async def ask_name(ctx: ToolContext) -> str:
    form = {"mode": "form", "message": "who?", "requestedSchema": {"type": "object", "properties": {}}}
    answer = await ctx.request("elicitation/create", form)
    return f"hello {answer['content']['name']}"


async def test_a_question_in_a_result_is_answered_by_the_callback(autojump_clock: MockClock) -> None:
    async with open_pair("modern", elicitation_callback=elicit) as (server, client):
        server.tool("greet", ask_name)
        assert text(await client.call_tool("greet")) == "hello you"
        first, second = server.posts(CALL)
        assert first.rpc_id != second.rpc_id
        assert "requestState" not in first.params
        assert second.params["requestState"]


async def test_a_server_that_goes_down_between_rounds_costs_no_answer(autojump_clock: MockClock) -> None:
    async def elicit_and_die(
        context: ClientRequestContext, params: types.ElicitRequestParams
    ) -> types.ElicitResult:
        server.restart(down_for=2)
        return await elicit(context, params)

    async with open_pair("modern", elicitation_callback=elicit_and_die) as (server, client):
        server.tool("greet", ask_name)
        assert text(await client.call_tool("greet")) == "hello you"


async def test_a_callback_that_refuses_ends_the_call(autojump_clock: MockClock) -> None:
    async def refuse(context: ClientRequestContext, params: types.ElicitRequestParams) -> types.ErrorData:
        return types.ErrorData(code=-1, message="nobody is there")

    async with open_pair("modern", elicitation_callback=refuse) as (server, client):
        server.tool("greet", ask_name)
        with pytest.raises(MCPError, match="nobody is there"):
            await client.call_tool("greet")
        assert len(server.posts(CALL)) == 1


async def test_a_callback_that_raises_is_raised_as_itself(autojump_clock: MockClock) -> None:
    async def fail(context: ClientRequestContext, params: types.ElicitRequestParams) -> types.ElicitResult:
        raise LookupError("no such person")

    async with open_pair("modern", elicitation_callback=fail) as (server, client):
        server.tool("greet", ask_name)
        with pytest.raises(LookupError, match="no such person"):
            await client.call_tool("greet")


async def test_a_server_that_asks_for_ever_is_left(autojump_clock: MockClock) -> None:
    async def wait() -> str:
        raise InputRequired(state="not yet")

    async with open_pair("modern", input_required_max_rounds=3) as (server, client):
        server.tool("wait", wait)
        began = trio.current_time()
        with pytest.raises(InputRequiredRoundsExceededError):
            await client.call_tool("wait")
        assert len(server.posts(CALL)) == 4
        assert trio.current_time() - began == pytest.approx(0.05 + 0.1 + 0.2)


# -- subscriptions -----------------------------------------------------------------------------


async def test_changes_are_told_as_they_happen(autojump_clock: MockClock) -> None:
    async with open_pair("modern") as (server, client):
        async with client.listen(tools_list_changed=True, resource_subscriptions=["memo://x"]) as heard:
            assert heard.honored.tools_list_changed
            assert server.tools_list_changed() == 1
            assert await anext(heard) == ToolsListChanged()
            assert server.resource_updated("memo://x") == 1
            assert await anext(heard) == ResourceUpdated("memo://x")
        await wait_all_tasks_blocked()
        assert server.subscriptions == []
        assert await add(client) == "3"
    assert server.client_faults == {}


async def test_who_asks_for_sessions_only_teaches_nobody(autojump_clock: MockClock) -> None:
    async with open_server(era="both") as server:
        for mode, version in (("legacy", "2025-11-25"), ("auto", "2026-07-28")):
            async with open_client(server.url, connect=server.connect, mode=mode) as client:
                assert client.protocol_version == version


async def test_a_subscription_that_outlives_the_client_says_that_it_is_closed(
    autojump_clock: MockClock,
) -> None:
    async def listen(client: Client, task_status: trio.TaskStatus[None]) -> None:
        with pytest.raises(trio.ClosedResourceError):
            async with client.listen(tools_list_changed=True) as heard:
                task_status.started()
                await anext(heard)

    async with open_server(era="modern") as server, trio.open_nursery() as nursery:
        async with open_client(server.url, connect=server.connect) as client:
            await nursery.start(listen, client)
        closed = trio.current_time()
        with pytest.raises(trio.ClosedResourceError):
            async with client.listen(tools_list_changed=True):
                pass
        await wait_all_tasks_blocked()
        assert not nursery.child_tasks
        assert trio.current_time() == closed


async def test_silence_is_no_sign_of_a_cut(autojump_clock: MockClock) -> None:
    async with open_pair("modern", read_timeout=10) as (server, client):
        server.ping_interval = 10_000
        async with client.listen(tools_list_changed=True) as subscription:
            await trio.sleep(1000)
            server.tools_list_changed()
            assert await anext(subscription) == ToolsListChanged()
        assert len(server.posts(LISTEN)) == 1


@pytest.mark.parametrize("how", ["cut", "end", "restart", "redeploy"])
async def test_a_stream_that_ends_is_opened_again(autojump_clock: MockClock, how: str) -> None:
    events: list[Event] = []
    async with open_pair("modern", on_event=events.append) as (server, client):
        await client.list_tools()
        async with client.listen(
            tools_list_changed=True, prompts_list_changed=True, resource_subscriptions=["memo://x"]
        ) as subscription:
            match how:
                case "cut":
                    server.subscriptions[0].cut()
                case "end":
                    server.end_subscriptions()
                case "restart":
                    server.restart(down_for=3)
                case _:
                    server.instructions = "changed"
                    server.restart(down_for=3)
            missed = [await anext(subscription) for _ in range(3)]
            assert {type(event).__name__ for event in missed} == {
                "ToolsListChanged",
                "PromptsListChanged",
                "ResourceUpdated",
            }
            assert told(events, StreamGap) == [StreamGap(client.generation)]
            server.tools_list_changed()
            assert await anext(subscription) == ToolsListChanged()
        first, second = server.posts(LISTEN)
        assert first.rpc_id != second.rpc_id
        assert client.statistics().outcome_unknown == 0


async def test_a_wait_for_a_change_can_be_given_up_and_taken_up(autojump_clock: MockClock) -> None:
    async with open_pair("modern") as (server, client):
        async with client.listen(tools_list_changed=True) as subscription:
            for _ in range(3):
                with trio.move_on_after(1) as scope:
                    await anext(subscription)
                assert scope.cancelled_caught
            server.subscriptions[0].cut()
            with trio.move_on_after(0.01):
                await anext(subscription)
            assert await anext(subscription) == ToolsListChanged()


async def test_a_server_that_ends_every_stream_is_believed(autojump_clock: MockClock) -> None:
    async with open_pair("modern") as (server, client):
        async with client.listen(tools_list_changed=True) as subscription:
            refused = {"jsonrpc": "2.0", "id": None, "error": {"code": -32603, "message": "no more"}}
            server.answer(400, refused, when=LISTEN, times=99)
            server.subscriptions[0].cut()
            with trio.fail_after(600), pytest.raises(MCPError, match="no more"):
                await anext(subscription)
        assert len(server.posts(LISTEN)) == 6
        assert await add(client) == "3"


async def test_a_refused_subscription_is_the_servers_error(autojump_clock: MockClock) -> None:
    refused = {"jsonrpc": "2.0", "id": None, "error": {"code": -32603, "message": "none here"}}
    async with open_pair("modern") as (server, client):
        server.answer(400, refused, when=LISTEN)
        with pytest.raises(MCPError, match="none here"):
            async with client.listen(tools_list_changed=True):
                pytest.fail("it was refused")
        assert await add(client) == "3"
        assert client.state is State.READY


async def test_a_server_of_sessions_offers_no_subscriptions(autojump_clock: MockClock) -> None:
    async with open_pair("legacy", mode="auto") as (_, client):
        with pytest.raises(ListenNotSupportedError):
            async with client.listen(tools_list_changed=True):
                pytest.fail("there are none")
        with pytest.raises(TypeError, match="sequence of URIs"):
            client.listen(resource_subscriptions="memo://x")


async def test_the_clients_end_is_the_subscriptions(autojump_clock: MockClock) -> None:
    with pytest.raises(RuntimeError, match="the application's"):
        async with open_pair("modern") as (server, client):
            async with client.listen(tools_list_changed=True):
                raise RuntimeError("the application's")
    assert server.subscriptions == []
    assert server.open_connections == 0


async def test_an_sdks_own_subscription_on_the_session_is_lost_and_not_the_client(
    autojump_clock: MockClock,
) -> None:
    async with open_pair("modern") as (server, client):
        async with listen(client.session, tools_list_changed=True) as stream:
            server.restart(down_for=1)
            with pytest.raises(SubscriptionLost):
                await anext(stream)
        assert await add(client) == "3"
