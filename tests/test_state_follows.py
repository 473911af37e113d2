"""What a new session is given of the old one, and what is told of how it differs."""

from __future__ import annotations

from typing import Any

import mcp_types as types
import pytest
import trio
from mcp import MCPError
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.kit import add, open_pair, told
from trio_mcp_resilient import Event, RestoreFailed, SessionStarted, ToolsChanged


def sent(server: Any, method: str) -> list[Any]:
    return [seen for seen in server.requests if seen.rpc_method == method]


# The SDK deprecates what servers of 2025 still need.
pytestmark = pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")


async def test_every_session_hears_the_same_introduction(autojump_clock: MockClock) -> None:
    info = types.Implementation(name="app", version="7")
    async with open_pair(get_stream=False, client_info=info) as (server, client):
        server.lose_session()
        await add(client)
        first, second = sent(server, "initialize")
        assert first.params == second.params
        assert second.params["clientInfo"] == {"name": "app", "version": "7"}


async def test_what_the_new_session_negotiated_is_visible_and_used(autojump_clock: MockClock) -> None:
    async with open_pair(get_stream=False) as (server, client):
        assert client.protocol_version == "2025-11-25"
        server.protocol_version = "2025-06-18"
        server.capabilities = {"tools": {}}
        server.info = {"name": "redeployed", "version": "2"}
        server.lose_session()
        await add(client)
        assert client.protocol_version == "2025-06-18"
        assert client.server_info == types.Implementation(name="redeployed", version="2")
        assert client.server_capabilities is not None
        assert client.server_capabilities.prompts is None
        # The call that was resent was stamped for the old version by the SDK's session.
        assert sent(server, "tools/call")[-1].protocol_version == "2025-06-18"


async def test_an_unsupported_version_fails_clearly(autojump_clock: MockClock) -> None:
    async with open_pair(get_stream=False) as (server, client):
        result = {
            "protocolVersion": "1999-01-01",
            "capabilities": {},
            "serverInfo": {"name": "s", "version": "1"},
        }
        server.answer(
            200, lambda seen: {"jsonrpc": "2.0", "id": seen.rpc_id, "result": result}, when="initialize"
        )
        server.lose_session()
        with pytest.raises(Exception, match="protocol version '1999-01-01'"):
            await add(client)


async def test_level_and_subscriptions_are_restored_before_waiting_calls(autojump_clock: MockClock) -> None:
    async with open_pair(get_stream=False) as (server, client):
        server.resource("memo://one", "1")
        server.resource("memo://two", "2")
        await client.session.set_logging_level("warning")
        await client.session.subscribe_resource("memo://one")
        await client.session.subscribe_resource("memo://two")
        await client.session.unsubscribe_resource("memo://two")
        await client.list_tools()
        server.lose_session()
        mark = len(server.requests)
        await add(client)
        seen = [seen.rpc_method for seen in server.requests[mark:]]
        assert seen[:6] == [
            "tools/call",
            "initialize",
            "notifications/initialized",
            "logging/setLevel",
            "resources/subscribe",
            "tools/call",
        ] or sorted(seen[5:7]) == ["tools/call", "tools/list"]
        (session,) = server.sessions
        assert session.log_level == "warning"
        assert set(session.subscriptions) == {"memo://one"}


async def test_a_failure_to_restore_is_told_and_not_fatal(autojump_clock: MockClock) -> None:
    events: list[Event] = []
    async with open_pair(get_stream=False, on_event=events.append) as (server, client):
        await client.session.set_logging_level("warning")
        server.lose_session()
        error = {"code": -32601, "message": "Method not found"}
        server.answer(
            200, lambda seen: {"jsonrpc": "2.0", "id": seen.rpc_id, "error": error}, when="logging/setLevel"
        )
        assert await add(client) == "3"
        assert told(events, RestoreFailed) == [RestoreFailed(2, "logging/setLevel", "Method not found")]


async def test_tools_are_listed_again_and_their_difference_is_told(autojump_clock: MockClock) -> None:
    events: list[Event] = []
    async with open_pair(get_stream=False, on_event=events.append) as (server, client):
        await client.list_tools()
        server.remove_tool("slow")
        server.tool("new", lambda: "n")
        server.tool("add", lambda a, b, c=0: str(a + b + c))
        server.lose_session()
        await add(client)
        await wait_all_tasks_blocked()
        assert told(events, ToolsChanged) == [ToolsChanged(("new",), ("slow",), ("add",))]


async def test_tools_that_were_never_listed_are_not_listed(autojump_clock: MockClock) -> None:
    async with open_pair(get_stream=False) as (server, client):
        server.lose_session()
        await client.ping()
        await wait_all_tasks_blocked()
        assert sent(server, "tools/list") == []


async def test_roots_are_announced_again_where_declared(autojump_clock: MockClock) -> None:
    async def roots(context: Any) -> types.ListRootsResult:
        await trio.lowlevel.checkpoint()
        return types.ListRootsResult(roots=[])

    async with open_pair(get_stream=False, list_roots_callback=roots) as (server, client):
        assert sent(server, "notifications/roots/list_changed") == []
        server.lose_session()
        await add(client)
        (notice,) = sent(server, "notifications/roots/list_changed")
        assert notice.session_id == server.sessions[0].id


async def test_requests_of_the_server_are_answered_on_the_session_that_asked(
    autojump_clock: MockClock,
) -> None:
    gate = trio.Event()

    async def sample(context: Any, params: Any) -> types.CreateMessageResult:
        await gate.wait()
        content = types.TextContent(type="text", text="ok")
        return types.CreateMessageResult(role="assistant", content=content, model="m")

    async with open_pair(get_stream=False, sampling_callback=sample) as (server, client):

        async def ask(ctx: Any) -> str:
            params = {"messages": [], "maxTokens": 1}
            result = await ctx.request("sampling/createMessage", params)
            return str(result["content"]["text"])

        server.tool("ask", ask)
        answers: list[Any] = []

        async def call() -> None:
            answers.append(await client.call_tool("ask"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)
            await wait_all_tasks_blocked()
            gate.set()
        assert answers[0].content[0].text == "ok"
        (reply,) = [seen for seen in server.requests if seen.message and "result" in seen.message]
        assert reply.session_id == sent(server, "tools/call")[0].session_id


async def test_a_handler_that_raises_answers_with_an_error(autojump_clock: MockClock) -> None:
    async def sample(context: Any, params: Any) -> types.CreateMessageResult:
        await trio.lowlevel.checkpoint()
        raise RuntimeError("secret detail")

    async with open_pair(get_stream=False, sampling_callback=sample) as (server, client):

        async def ask(ctx: Any) -> str:
            await ctx.request("sampling/createMessage", {"messages": [], "maxTokens": 1})
            return "unreachable"

        server.tool("ask", ask)
        with pytest.raises(MCPError, match="the client's handler failed"):
            await client.call_tool("ask")
        (reply,) = [seen for seen in server.requests if seen.message and "error" in seen.message]
        assert reply.message["error"]["code"] == -32603
        assert "secret" not in str(reply.message)


async def test_keepalive_finds_a_dead_session_before_a_caller_does(autojump_clock: MockClock) -> None:
    events: list[Event] = []
    async with open_pair(get_stream=False, keepalive=60, on_event=events.append) as (server, client):
        await trio.sleep(100)
        server.lose_session()
        await trio.sleep(60)
        assert client.generation == 2
        assert told(events, SessionStarted)[-1].generation == 2
        await add(client)
        assert client.statistics().resends == 0


async def test_keepalive_holds_a_session_open_and_leaves_a_busy_one_alone(autojump_clock: MockClock) -> None:
    async with open_pair(get_stream=False, keepalive=60) as (server, client):
        server.idle_timeout = 90
        await trio.sleep(1000)
        assert client.generation == 1
        pings = len(sent(server, "ping"))
        assert 14 <= pings <= 17
        for _ in range(100):
            await client.list_tools()
            await trio.sleep(10)
        assert len(sent(server, "ping")) == pings


async def test_keepalive_finds_a_half_open_connection(autojump_clock: MockClock) -> None:
    async with open_pair(get_stream=False, keepalive=60, handshake_timeout=10) as (server, client):
        await add(client)
        server.go_silent(when="ping", times=2)
        await trio.sleep(300)
        assert client.state == "ready"
        assert await add(client) == "3"
