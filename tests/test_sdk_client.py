"""The main job once more, through the SDK's own client: it keeps its features, and loses no session."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import mcp
import mcp_types as types
import pytest
import trio
from mcp import MCPError
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.kit import STEADY, add, open_sdk_pair, open_server, text, told
from tests.test_endings import CALL, ENDINGS
from trio_mcp_resilient import (
    ConnectionLost,
    Event,
    GaveUp,
    HandshakeFailed,
    OutcomeUnknown,
    Resend,
    Resent,
    ResilientError,
    SessionLost,
    SessionStarted,
    ToolsChanged,
    resilient_transport,
)
from trio_mcp_resilient.testing import DIALECTS, ScriptedServer

# The SDK deprecates what servers of 2025 still need.
pytestmark = pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")


# -- the call that meets the loss ------------------------------------------------------------------


@pytest.mark.parametrize("dialect", sorted(DIALECTS))
async def test_a_lost_session_in_every_dialect(dialect: str, autojump_clock: MockClock) -> None:
    async with open_sdk_pair(get_stream=False) as (server, client):
        assert await add(client) == "3"
        server.dialect(dialect)
        server.lose_session()
        assert await add(client, 2, 3) == "5"
        assert server.handshakes == 2
        assert server.executed["add"] == 2
        assert len(server.posts(CALL)) == 3
        assert [seen.session_id for seen in server.posts("initialize")] == [None, None]


METHODS: dict[str, Callable[[mcp.Client], Awaitable[Any]]] = {
    "tools/list": lambda client: client.list_tools(),
    "tools/call": lambda client: client.call_tool("add", {"a": 1, "b": 2}),
    "resources/list": lambda client: client.list_resources(),
    "resources/templates/list": lambda client: client.list_resource_templates(),
    "resources/read": lambda client: client.read_resource("memo://one"),
    "resources/subscribe": lambda client: client.subscribe_resource("memo://one"),
    "prompts/list": lambda client: client.list_prompts(),
    "prompts/get": lambda client: client.get_prompt("greet", {"name": "Ada"}),
    "completion/complete": lambda client: client.complete(
        types.PromptReference(type="ref/prompt", name="greet"), {"name": "name", "value": "A"}
    ),
    "logging/setLevel": lambda client: client.set_logging_level("warning"),
    "ping": lambda client: client.send_ping(),
}


@pytest.mark.parametrize("method", METHODS)
async def test_every_request_recovers_when_it_is_the_first_to_meet_the_loss(
    method: str, autojump_clock: MockClock
) -> None:
    events: list[Event] = []
    async with open_sdk_pair(get_stream=False, on_event=events.append) as (server, client):
        server.resource("memo://one", "text of one")
        server.prompt("greet", "hello {name}")
        server.lose_session()
        await METHODS[method](client)
        assert server.handshakes == 2
        assert [resent.method for resent in told(events, Resent)] == [method]


@pytest.mark.parametrize("json_mode", [False, True], ids=["SSE", "JSON"])
@pytest.mark.parametrize("name", ENDINGS)
async def test_ending(name: str, json_mode: bool, autojump_clock: MockClock) -> None:
    """Every row of the table of endings; an error is what `from_mcp` makes of it."""
    ending = ENDINGS[name]
    options = {"get_stream": False, "read_timeout": 60, "resend": ending.resend}
    async with open_sdk_pair(**options) as (server, client):
        server.json_mode = json_mode
        if ending.listed:
            server.tool("add", lambda a, b: str(a + b), **ending.listed)
        await client.list_tools()
        ending.breaks(server)
        got: str | Exception
        try:
            got = await add(client)
        except MCPError as error:
            got = ResilientError.from_mcp(error) or error
        if isinstance(ending.gets, str):
            assert got == ending.gets
        else:
            assert type(got) is ending.gets, got
        assert server.executed["add"] == ending.ran
        assert len(server.posts(CALL)) == ending.posts
        if name != "refused for good":
            server.forget_script()
            before = server.executed["add"]
            assert await add(client) == "3"
            assert server.executed["add"] == before + 1
        assert server.handshakes == ending.handshakes


async def test_a_session_on_the_bare_streams(autojump_clock: MockClock) -> None:
    async with open_server() as server:
        transport = resilient_transport(server.url, connect=server.connect, mode="legacy")
        async with transport as streams, mcp.ClientSession(*streams) as session:
            await session.initialize()
            server.lose_session()
            assert text(await session.call_tool("add", {"a": 1, "b": 2})) == "3"
            assert server.handshakes == 2


async def test_idle_eviction_goes_unnoticed(autojump_clock: MockClock) -> None:
    async with open_sdk_pair(get_stream=False) as (server, client):
        server.idle_timeout = 1800.0
        await add(client)
        await trio.sleep(1801)
        assert await add(client) == "3"
        assert server.handshakes == 2
        assert server.executed["add"] == 2


# -- many at once ----------------------------------------------------------------------------------


async def test_20_calls_on_a_dead_id_are_all_rescued_by_one_handshake(autojump_clock: MockClock) -> None:
    async with open_sdk_pair(get_stream=False) as (server, client):
        await add(client)
        server.lose_session()
        results: list[str] = []

        async def call(number: int) -> None:
            results.append(await add(client, number, 0))

        async with trio.open_nursery() as nursery:
            for number in range(100, 120):
                nursery.start_soon(call, number)
        assert sorted(results) == [str(number) for number in range(100, 120)]
        runs = Counter(run.arguments["a"] for run in server.executions)
        assert all(runs[number] == 1 for number in range(100, 120))
        assert server.handshakes == 2


async def test_slow_calls_in_flight_keep_their_answers_when_another_meets_the_loss(
    autojump_clock: MockClock,
) -> None:
    async with open_sdk_pair(get_stream=False) as (server, client):
        await client.list_tools()
        held = server.hold(CALL, point="before-head", times=20)
        results: list[str] = []

        async def call(number: int) -> None:
            results.append(await add(client, number, 0))

        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(call, number)
            await held.reached(20)
            server.lose_session()
            assert await add(client, 20, 0) == "20"
            assert results == []
            held.release()
        assert sorted(map(int, results)) == list(range(20))
        assert Counter(run.arguments["a"] for run in server.executions) == dict.fromkeys(range(21), 1)
        assert server.handshakes == 2


async def test_calls_made_while_the_server_is_down_wait_for_it(autojump_clock: MockClock) -> None:
    async with open_sdk_pair(get_stream=False) as (server, client):
        await add(client)
        server.restart(keep_sessions=False, down_for=5)
        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(add, client)
        assert server.executed["add"] == 21
        assert server.handshakes == 2


# -- cancellation ----------------------------------------------------------------------------------


async def test_a_cancelled_call_is_never_sent_again_and_the_server_is_told(autojump_clock: MockClock) -> None:
    async with open_sdk_pair(get_stream=False) as (server, client):
        await client.list_tools()
        with trio.move_on_after(1):
            await client.call_tool("slow", {"seconds": 10})
        await wait_all_tasks_blocked()
        (call,) = server.posts(CALL)
        # Once, and by the id that the server knows.
        (notice,) = server.posts("notifications/cancelled")
        assert notice.params["requestId"] == call.rpc_id
        assert notice.session_id == call.session_id
        server.lose_session()
        assert await add(client) == "3"
        assert server.executed["slow"] == 1
        assert server.handshakes == 2


async def test_a_call_cancelled_while_it_waits_for_a_session_is_not_sent(autojump_clock: MockClock) -> None:
    async with open_sdk_pair(get_stream=False) as (server, client):
        server.lose_session()
        held = server.hold("initialize")
        with trio.move_on_after(1) as scope:
            await add(client)
        assert scope.cancelled_caught
        held.release()
        await client.send_ping()
        assert server.executed["add"] == 0
        assert len(server.posts(CALL)) == 1
        assert server.posts("notifications/cancelled") == []


async def test_a_read_timeout_is_the_sdks_error(autojump_clock: MockClock) -> None:
    async with open_sdk_pair(get_stream=False) as (server, client):
        with pytest.raises(MCPError) as caught:
            await client.call_tool("slow", {"seconds": 10}, read_timeout_seconds=1)
        assert caught.value.code == types.REQUEST_TIMEOUT
        assert ResilientError.from_mcp(caught.value) is None
        await wait_all_tasks_blocked()
        assert len(server.posts("notifications/cancelled")) == 1


# -- errors ----------------------------------------------------------------------------------------


async def test_an_unknown_outcome_can_be_told_apart(autojump_clock: MockClock) -> None:
    async with open_sdk_pair(get_stream=False) as (server, client):
        session_id = server.sessions[0].id
        server.cut("before-head", when=CALL)
        with pytest.raises(MCPError) as caught:
            await add(client)
        error = caught.value
        assert error.code == -31900
        assert (error.data["kind"], error.data["executed"]) == ("OutcomeUnknown", "unknown")
        assert error.data["evidence"]["generation"] == 1
        unknown = OutcomeUnknown.from_mcp(error)
        assert unknown is not None
        assert unknown is ResilientError.from_mcp(error)
        assert SessionLost.from_mcp(error) is None
        assert str(unknown) == str(error)
        assert session_id not in repr(error)
        assert session_id not in repr(unknown)


async def test_what_was_not_executed_says_so_and_why(autojump_clock: MockClock) -> None:
    async with open_sdk_pair(get_stream=False) as (server, client):
        await add(client)
        server.restart(keep_sessions=False, down_for=1000)
        with pytest.raises(MCPError) as caught:
            await add(client)
        assert (caught.value.data["kind"], caught.value.data["executed"]) == ("ConnectionLost", "no")
        assert caught.value.data["recovery"]["attempts"] == 5
        lost = ConnectionLost.from_mcp(caught.value)
        assert lost is not None
        assert lost.executed is False
        # Nothing is serialized on the way, so the attempts' own errors are still there.
        assert isinstance(lost.__cause__, GaveUp)


async def test_refused_authentication_is_the_sdks_error_and_ours(autojump_clock: MockClock) -> None:
    async with open_sdk_pair(get_stream=False) as (server, client):
        server.answer(401, {"error": "invalid_token"}, when=CALL)
        with pytest.raises(MCPError) as caught:
            await add(client)
        assert caught.value.code == types.INTERNAL_ERROR
        assert (caught.value.data["kind"], caught.value.data["status"]) == ("RequestRefused", 401)


async def test_an_ordinary_mcp_error_is_unchanged_and_none_of_ours(autojump_clock: MockClock) -> None:
    async with open_sdk_pair(get_stream=False) as (server, client):
        # A server that imitates ours is not believed.
        error = {"code": -31900, "message": "bad", "data": {"kind": "SessionLost", "executed": "no"}}
        server.answer(200, lambda seen: {"jsonrpc": "2.0", "id": seen.rpc_id, "error": error}, when=CALL)
        with pytest.raises(MCPError) as caught:
            await add(client)
        assert caught.value.error.model_dump() == error
        assert ResilientError.from_mcp(caught.value) is None


async def test_a_hook_that_raises_costs_its_own_call(autojump_clock: MockClock) -> None:
    class Locked(httpx.Auth):
        broken = False

        def auth_flow(self, request: httpx.Request) -> Any:
            if self.broken:
                raise RuntimeError("the keyring is locked")
            yield request

    auth = Locked()
    async with open_sdk_pair(get_stream=False, auth=auth) as (server, client):
        auth.broken = True
        with pytest.raises(
            MCPError, match="tools/call failed: RuntimeError: the keyring is locked"
        ) as caught:
            await add(client)
        failed = ResilientError.from_mcp(caught.value)
        assert failed is not None
        assert isinstance(failed.__cause__, RuntimeError)
        auth.broken = False
        assert await add(client) == "3"
        assert server.handshakes == 1


async def test_an_argument_that_is_no_json_costs_its_own_call(autojump_clock: MockClock) -> None:
    async with open_sdk_pair(get_stream=False) as (_, client):
        with pytest.raises(MCPError) as caught:
            await client.session._dispatcher.send_raw_request(
                CALL, {"name": "add", "arguments": {"a": float("nan"), "b": {1, 2}}}
            )
        assert caught.value.code == types.INVALID_PARAMS
        assert await add(client) == "3"


# -- the first connect -----------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_wrong_url_is_said_at_once(mode: str, autojump_clock: MockClock) -> None:
    async with open_server() as server:
        server.answer(404, "<h1>Not Found</h1>", content_type="text/html", when="initialize", times=9)
        began = trio.current_time()
        transport = resilient_transport(server.url, connect=server.connect, mode="legacy")
        # The group is that of the SDK session's own task group.
        with pytest.RaisesGroup(pytest.RaisesExc(MCPError, match="404.*is the URL that of")) as caught:
            async with mcp.Client(transport, mode=mode):
                pytest.fail("there is no session to work with")
        assert trio.current_time() == began
        assert len(server.requests) == 1
        (error,) = caught.value.exceptions
        assert HandshakeFailed.from_mcp(error) is not None


async def test_a_server_that_is_down_at_start_is_retried(autojump_clock: MockClock) -> None:
    async with open_server() as server:
        server.restart(down_for=5)
        began = trio.current_time()
        transport = resilient_transport(server.url, connect=server.connect, backoff=STEADY, mode="legacy")
        async with mcp.Client(transport) as client:
            assert trio.current_time() - began == pytest.approx(7)
            assert await add(client) == "3"


# -- state that follows ----------------------------------------------------------------------------


async def test_every_session_hears_the_clients_own_introduction(autojump_clock: MockClock) -> None:
    async def roots(context: Any) -> types.ListRootsResult:
        await trio.lowlevel.checkpoint()
        return types.ListRootsResult(roots=[])

    info = types.Implementation(name="app", version="7")
    sdk = {"client_info": info, "list_roots_callback": roots}
    async with open_sdk_pair(get_stream=False, sdk=sdk) as (server, client):
        server.lose_session()
        await add(client)
        first, second = server.posts("initialize")
        assert first.params == second.params
        assert second.params["clientInfo"] == {"name": "app", "version": "7"}
        assert second.params["capabilities"] == {"roots": {"listChanged": True}}
        assert len(server.posts("notifications/initialized")) == 2


async def test_the_client_keeps_what_it_negotiated_first(autojump_clock: MockClock) -> None:
    async with open_sdk_pair(get_stream=False) as (server, client):
        server.protocol_version = "2025-06-18"
        server.lose_session()
        await add(client)
        assert client.protocol_version == "2025-11-25"
        # What goes on the wire is what the new session agreed on.
        assert server.posts(CALL)[-1].protocol_version == "2025-06-18"


async def test_level_and_subscriptions_are_restored(autojump_clock: MockClock) -> None:
    async with open_sdk_pair(get_stream=False) as (server, client):
        server.resource("memo://one", "1")
        await client.set_logging_level("warning")
        await client.subscribe_resource("memo://one")
        server.lose_session()
        await add(client)
        (session,) = server.sessions
        assert session.log_level == "warning"
        assert set(session.subscriptions) == {"memo://one"}


class Heard:
    """What the client's message handler was given."""

    def __init__(self) -> None:
        self.methods: list[str] = []

    async def __call__(self, message: Any) -> None:
        await trio.lowlevel.checkpoint()
        self.methods.append(message.method)


async def test_a_change_of_the_tools_is_announced(autojump_clock: MockClock) -> None:
    events: list[Event] = []
    heard = Heard()
    options = {"get_stream": False, "on_event": events.append, "sdk": {"message_handler": heard}}
    async with open_sdk_pair(**options) as (server, client):
        await client.list_tools()
        server.lose_session()
        await add(client)
        await wait_all_tasks_blocked()
        assert heard.methods == []
        server.tool("new", lambda: "n")
        server.lose_session()
        await add(client)
        await wait_all_tasks_blocked()
        assert heard.methods == ["notifications/tools/list_changed"]
        assert told(events, ToolsChanged) == [ToolsChanged(("new",), (), ())]


async def test_tools_are_listed_again_page_by_page(autojump_clock: MockClock) -> None:
    heard = Heard()
    async with open_sdk_pair(get_stream=False, sdk={"message_handler": heard}) as (server, client):
        server.page_size = 1
        page = await client.list_tools()
        await client.list_tools(cursor=page.next_cursor)
        asked = len(server.posts("tools/list"))
        server.lose_session()
        await client.send_ping()
        await wait_all_tasks_blocked()
        assert len(server.posts("tools/list")) == asked * 2
        assert heard.methods == []


async def test_a_listing_of_no_tools_at_all_is_its_readers_to_refuse(autojump_clock: MockClock) -> None:
    async with open_sdk_pair(get_stream=False) as (server, client):
        server.answer(
            200,
            lambda seen: {"jsonrpc": "2.0", "id": seen.rpc_id, "result": {"tools": "none"}},
            when="tools/list",
        )
        with pytest.raises(ValueError, match="tools"):
            await client.list_tools()
        assert await add(client) == "3"


async def test_tools_that_cannot_be_listed_again_may_have_changed(autojump_clock: MockClock) -> None:
    heard = Heard()
    async with open_sdk_pair(get_stream=False, sdk={"message_handler": heard}) as (server, client):
        await client.list_tools()
        server.lose_session()
        server.answer(500, "", when="tools/list", times=2)
        await add(client)
        await wait_all_tasks_blocked()
        assert heard.methods == ["notifications/tools/list_changed"]


async def test_other_listings_may_have_changed(autojump_clock: MockClock) -> None:
    heard = Heard()
    async with open_sdk_pair(get_stream=False, sdk={"message_handler": heard}) as (server, client):
        server.resource("memo://one", "1")
        await client.list_resources()
        await client.list_resource_templates()
        server.lose_session()
        await client.send_ping()
        await wait_all_tasks_blocked()
        assert heard.methods == ["notifications/resources/list_changed"]
        # One that was never asked for is nobody's business.
        assert server.posts("tools/list") == []


async def test_a_listing_kept_by_the_client_is_evicted(autojump_clock: MockClock) -> None:
    """The SDK's client keeps listings by its own clock, longer than their server lives."""
    sdk = {"cache": mcp.client.CacheConfig(default_ttl_ms=1000 * 3600)}
    async with open_sdk_pair(get_stream=False, sdk=sdk) as (server, client):
        await client.list_tools()
        await client.list_tools()
        kept = len(server.posts("tools/list")) == 1
        server.tool("new", lambda: "n")
        server.lose_session()
        await client.send_ping()
        await wait_all_tasks_blocked()
        assert "new" in {tool.name for tool in (await client.list_tools()).tools}
        assert kept


# -- the hidden listing ----------------------------------------------------------------------------


def lose_between(server: ScriptedServer, *, for_good: bool) -> None:
    """Lose the session after the first call of a tool, before the listing that follows it."""

    def lose(seen: Any) -> None:
        if seen.rpc_method == "tools/list" and server.handshakes == 1:
            if for_good:
                server.answer(404, when="tools/list", times=2)
            else:
                server.lose_session()

    server.on_request(lose)


async def test_the_hidden_listing_after_a_first_call_recovers_by_itself(autojump_clock: MockClock) -> None:
    async with open_sdk_pair(get_stream=False) as (server, client):
        lose_between(server, for_good=False)
        assert await add(client) == "3"
        assert server.executed["add"] == 1
        assert server.handshakes == 2


@pytest.mark.parametrize("policy", [Resend.REFUSED, Resend.NEVER])
async def test_a_result_is_not_lost_with_the_listing_that_would_validate_it(
    policy: Resend, autojump_clock: MockClock
) -> None:
    """Its error would say of the call that it was not executed."""
    async with open_sdk_pair(get_stream=False, resend=policy) as (server, client):
        server.answer(404, when="tools/list", times=2)
        assert await add(client) == "3"
        assert server.executed["add"] == 1
        # The next call of it looks again.
        server.forget_script()
        assert await add(client) == "3"


@pytest.mark.parametrize("before", ["nothing", "a failed call", "a call of a listed tool", "another task"])
async def test_a_listing_that_was_asked_for_says_what_it_met(before: str, autojump_clock: MockClock) -> None:
    async with open_sdk_pair(get_stream=False, resend="never") as (server, client):

        def fail() -> str:
            raise RuntimeError("no")

        server.tool("fail", fail)
        if before == "a failed call":
            assert (await client.call_tool("fail")).is_error
        elif before == "a call of a listed tool":
            await client.list_tools()
            await add(client)
        elif before == "another task":
            async with trio.open_nursery() as nursery:
                nursery.start_soon(add, client)
        server.answer(404, when="tools/list")
        with pytest.raises(MCPError) as caught:
            await client.list_tools()
        assert SessionLost.from_mcp(caught.value) is not None


async def test_events_are_told(autojump_clock: MockClock) -> None:
    events: list[Event] = []
    async with open_sdk_pair(get_stream=False, on_event=events.append) as (server, client):
        server.lose_session()
        await add(client)
    assert [event.generation for event in told(events, SessionStarted)] == [1, 2]
