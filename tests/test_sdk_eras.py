"""The SDK's own client over both eras of the protocol, and over servers that move from one to the other."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import mcp
import mcp_types as types
import pytest
import trio
from mcp import MCPError
from mcp.client.subscriptions import (
    ListenNotSupportedError,
    ResourceUpdated,
    Subscription,
    SubscriptionLost,
    ToolsListChanged,
)
from mcp_types import LATEST_PROTOCOL_VERSION
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.kit import STEADY, add, open_server, text, told
from trio_mcp_resilient import Event, GaveUp, OutcomeUnknown, StreamGap, resilient_transport
from trio_mcp_resilient.testing import DISCOVER_DIALECTS, ScriptedServer

CALL = "tools/call"
LEGACY, MODERN = "2025-11-25", "2026-07-28"

# The SDK deprecates what servers of 2025 still need.
pytestmark = pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")


@asynccontextmanager
async def open_client_of(
    server: ScriptedServer, *, sdk: dict[str, Any] | None = None, **options: Any
) -> AsyncGenerator[mcp.Client, None]:
    transport = resilient_transport(server.url, connect=server.connect, **{"backoff": STEADY, **options})
    async with mcp.Client(transport, **(sdk or {})) as client:
        yield client


def handshakes(server: ScriptedServer) -> list[str]:
    """What the server was asked to agree on, in order."""
    return [
        seen.rpc_method for seen in server.requests if seen.rpc_method in ("initialize", "server/discover")
    ]


# -- how it begins ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("era", "mode", "agreed", "asked"),
    [
        ("legacy", "auto", LEGACY, ["server/discover", "initialize"]),
        ("legacy", "legacy", LEGACY, ["initialize"]),
        ("modern", "auto", MODERN, ["server/discover"]),
        ("modern", MODERN, MODERN, ["server/discover"]),
        ("both", "auto", MODERN, ["server/discover"]),
        ("both", "legacy", LEGACY, ["initialize"]),
    ],
)
async def test_it_agrees_on_a_version(
    era: Any, mode: str, agreed: str, asked: list[str], autojump_clock: MockClock
) -> None:
    async with open_server(era=era) as server:
        async with open_client_of(server, sdk={"mode": mode}) as client:
            assert client.protocol_version == agreed
            assert await add(client) == "3"
            assert handshakes(server) == asked
            assert {seen.protocol_version for seen in server.posts(CALL)} == {agreed}
            assert server.client_faults == {}


@pytest.mark.parametrize("dialect", DISCOVER_DIALECTS)
async def test_a_server_of_sessions_in_every_dialect(dialect: str, autojump_clock: MockClock) -> None:
    async with open_server(discover_dialect=dialect) as server:
        async with open_client_of(server) as client:
            assert client.protocol_version == LEGACY
            server.lose_session()
            assert await add(client) == "3"
            assert server.handshakes == 2


async def test_a_transport_of_one_era_decides_for_its_client(autojump_clock: MockClock) -> None:
    async with open_server(era="both") as server:
        async with open_client_of(server, mode="legacy") as client:
            assert client.protocol_version == LEGACY
            assert handshakes(server) == ["initialize"]


async def test_a_client_of_sessions_meets_a_server_without(autojump_clock: MockClock) -> None:
    async with open_server(era="modern") as server:
        with pytest.RaisesGroup(MCPError):
            async with open_client_of(server, sdk={"mode": "legacy"}):
                pytest.fail("they have no version in common")


async def test_calls_at_once_from_a_client_that_does_not_ask(autojump_clock: MockClock) -> None:
    async with open_server(era="modern") as server:
        async with open_client_of(server, sdk={"mode": MODERN}) as client:
            async with trio.open_nursery() as nursery:
                for _ in range(20):
                    nursery.start_soon(add, client)
            assert server.executed["add"] == 20
            assert handshakes(server) == ["server/discover"]


async def test_a_client_that_does_not_ask_over_a_server_of_sessions(autojump_clock: MockClock) -> None:
    async with open_server() as server:
        async with open_client_of(server, sdk={"mode": MODERN}) as client:
            server.lose_session()
            assert await add(client) == "3"
            assert client.protocol_version == MODERN
            assert {seen.protocol_version for seen in server.posts(CALL)} == {LEGACY}


async def test_a_server_that_is_late_for_discovery(autojump_clock: MockClock) -> None:
    """The SDK asks for 10 s and then takes the server for one of sessions."""
    slowly = {"backoff": STEADY, "recovery_timeout": 60}
    async with open_server(era="modern") as server:
        server.restart(down_for=14)
        async with open_client_of(server, **slowly) as client:
            assert client.protocol_version == MODERN
            assert await add(client) == "3"
            assert server.client_faults == {}


async def test_a_server_that_is_down_is_given_up_once(autojump_clock: MockClock) -> None:
    quick = {"backoff": STEADY, "recovery_timeout": 5}
    async with open_server() as server:
        server.down()
        began = trio.current_time()
        with pytest.RaisesGroup(MCPError) as caught:
            async with open_client_of(server, **quick):
                pytest.fail("there is nobody")
        # Not once more for the other era, since it was for both.
        assert trio.current_time() - began == pytest.approx(5)
        assert GaveUp.from_mcp(caught.value.exceptions[0]) is not None


async def test_a_handshake_that_failed_may_be_tried_again(autojump_clock: MockClock) -> None:
    async with open_server() as server:
        server.down()
        transport = resilient_transport(
            server.url, connect=server.connect, backoff=STEADY, recovery_timeout=5
        )
        async with transport as streams, mcp.ClientSession(*streams) as session:
            with pytest.raises(MCPError) as caught:
                await session.initialize()
            assert GaveUp.from_mcp(caught.value) is not None
            server.up()
            await session.initialize()
            assert text(await session.call_tool("add", {"a": 1, "b": 2})) == "3"


# -- without sessions ------------------------------------------------------------------------------


async def test_a_restart_goes_unnoticed(autojump_clock: MockClock) -> None:
    async with open_server(era="modern") as server:
        async with open_client_of(server) as client:
            await add(client)
            server.restart(down_for=5)
            async with trio.open_nursery() as nursery:
                for _ in range(20):
                    nursery.start_soon(add, client)
            assert server.executed["add"] == 21
            assert server.client_faults == {}


async def test_an_unknown_outcome_can_be_told_apart(autojump_clock: MockClock) -> None:
    async with open_server(era="modern") as server:
        async with open_client_of(server) as client:
            await client.list_tools()
            server.cut("before-head", when=CALL)
            with pytest.raises(MCPError) as caught:
                await add(client)
            assert OutcomeUnknown.from_mcp(caught.value) is not None
            assert server.executed["add"] == 1
            assert await add(client) == "3"


async def test_a_cancelled_call_is_cancelled_by_its_connection(autojump_clock: MockClock) -> None:
    async with open_server(era="modern") as server:
        async with open_client_of(server) as client:
            await client.list_tools()
            with trio.move_on_after(1):
                await client.call_tool("slow", {"seconds": 1000})
            await wait_all_tasks_blocked()
            assert server.posts("notifications/cancelled") == []
            assert server.open_connections <= 1
            assert server.client_faults == {}
            assert await add(client) == "3"


async def test_what_the_server_asks_for_is_answered_in_rounds(autojump_clock: MockClock) -> None:
    async def elicit(context: Any, params: Any) -> types.ElicitResult:
        await trio.lowlevel.checkpoint()
        return types.ElicitResult(action="accept", content={"name": "Ada"})

    async def greet(ctx: Any) -> str:
        asked = {"mode": "form", "message": "Who?", "requestedSchema": {"type": "object", "properties": {}}}
        answer = await ctx.request("elicitation/create", asked)
        return f"hello {answer['content']['name']}"

    async with open_server(era="modern") as server:
        server.tool("greet", greet)
        async with open_client_of(server, sdk={"elicitation_callback": elicit}) as client:
            result = await client.call_tool("greet")
            assert isinstance(result, types.CallToolResult)
            assert text(result) == "hello Ada"
            assert server.client_faults == {}


async def test_progress_and_log_messages_come_with_the_answer(autojump_clock: MockClock) -> None:
    heard: list[Any] = []

    async def log(params: Any) -> None:
        await trio.lowlevel.checkpoint()
        heard.append(params.data)

    async def report(progress: float, total: float | None, message: str | None) -> None:
        await trio.lowlevel.checkpoint()
        heard.append(progress)

    async def busy(ctx: Any) -> str:
        ctx.progress(1)
        ctx.log("working")
        await trio.sleep(1)
        return "done"

    async with open_server(era="modern") as server:
        server.tool("busy", busy)
        async with open_client_of(server, sdk={"logging_callback": log, "log_level": "info"}) as client:
            await client.call_tool("busy", progress_callback=report)
            assert sorted(heard, key=str) == [1.0, "working"]


async def test_the_hidden_listings_error_does_not_replace_a_result(autojump_clock: MockClock) -> None:
    async with open_server(era="modern") as server:
        async with open_client_of(server) as client:
            server.answer(500, "", when="tools/list", times=2)
            assert await add(client) == "3"
            assert server.executed["add"] == 1


# -- subscriptions ---------------------------------------------------------------------------------


async def next_event(subscription: Subscription) -> Any:
    with trio.fail_after(100):
        return await anext(subscription)


async def none_for(seconds: float, subscription: Subscription) -> None:
    with trio.move_on_after(seconds):
        pytest.fail(f"told of {await anext(subscription)}")


@pytest.mark.parametrize("end", ["cut", "end", "restart"])
async def test_a_subscription_goes_on_after_a_cut_and_tells_the_gap(
    end: str, autojump_clock: MockClock
) -> None:
    events: list[Event] = []
    async with open_server(era="modern") as server:
        async with open_client_of(server, on_event=events.append) as client:
            async with client.listen(
                tools_list_changed=True, resource_subscriptions=["memo://one"]
            ) as subscription:
                server.resource_updated("memo://one")
                assert await next_event(subscription) == ResourceUpdated("memo://one")
                server.prompts_list_changed()
                await none_for(10, subscription)
                if end == "cut":
                    server.subscriptions[0].cut()
                elif end == "end":
                    server.end_subscriptions()
                else:
                    server.restart(down_for=5)
                told_of = [await next_event(subscription), await next_event(subscription)]
                assert told_of == [ToolsListChanged(), ResourceUpdated("memo://one")]
                await none_for(10, subscription)
                assert told(events, StreamGap) != []
                # It is the same one still: the server stamps what it tells with the same id.
                assert server.tools_list_changed() == 1
                assert await next_event(subscription) == ToolsListChanged()
                assert server.client_faults == {}
            await wait_all_tasks_blocked()
            assert server.subscriptions == []


async def test_a_gap_evicts_what_the_client_keeps(autojump_clock: MockClock) -> None:
    sdk = {"cache": mcp.client.CacheConfig(default_ttl_ms=1000 * 3600)}
    async with open_server(era="modern") as server:
        async with open_client_of(server, sdk=sdk) as client:
            async with client.listen(tools_list_changed=True) as subscription:
                await client.list_tools()
                server.subscriptions[0].cut()
                server.tool("new", lambda: "n")
                assert await next_event(subscription) == ToolsListChanged()
                assert "new" in {tool.name for tool in (await client.list_tools()).tools}


async def test_a_subscription_that_was_never_acknowledged_is_its_clients_to_see(
    autojump_clock: MockClock,
) -> None:
    async with open_server(era="modern") as server:
        async with open_client_of(server) as client:
            server.cut("before-head", when="subscriptions/listen")
            with pytest.raises(MCPError, match="broke off"):
                async with client.listen(tools_list_changed=True):
                    pytest.fail("it is not open")
            server.answer(
                200,
                lambda seen: {
                    "jsonrpc": "2.0",
                    "id": seen.rpc_id,
                    "error": {"code": -32602, "message": "too many"},
                },
                when="subscriptions/listen",
            )
            with pytest.raises(MCPError, match="too many"):
                async with client.listen(tools_list_changed=True):
                    pytest.fail("it was refused")


async def test_an_acknowledgment_that_says_nothing_costs_only_the_news_of_the_gap(
    autojump_clock: MockClock,
) -> None:
    async with open_server(era="modern") as server:
        async with open_client_of(server) as client:
            async with client.listen(tools_list_changed=True) as subscription:
                acknowledged = "notifications/subscriptions/acknowledged"
                server.subscriptions[0].tell(acknowledged, {"notifications": {"toolsListChanged": "what"}})
                await none_for(10, subscription)
                server.tools_list_changed()
                assert await next_event(subscription) == ToolsListChanged()


async def test_an_end_that_comes_again_and_again_is_believed(autojump_clock: MockClock) -> None:
    async with open_server(era="modern") as server:
        async with open_client_of(server) as client:
            async with client.listen() as subscription:
                for _ in range(6):
                    with trio.fail_after(100):
                        (await server.subscribed()).end()
                    await wait_all_tasks_blocked()
                with pytest.raises(StopAsyncIteration):
                    await anext(subscription)


async def test_a_subscription_without_a_server_is_lost(autojump_clock: MockClock) -> None:
    async with open_server(era="modern") as server:
        async with open_client_of(server) as client:
            async with client.listen(tools_list_changed=True) as subscription:
                server.down()
                with trio.fail_after(1000), pytest.raises(SubscriptionLost):
                    await anext(subscription)


# -- from one era to the other ---------------------------------------------------------------------


@pytest.mark.parametrize(("first", "then"), [("legacy", "modern"), ("modern", "legacy")])
async def test_a_redeploy_to_the_other_era_goes_unnoticed(
    first: Any, then: Any, autojump_clock: MockClock
) -> None:
    async with open_server(era=first) as server:
        server.resource("memo://one", "text of one")
        server.prompt("greet", "hello {name}")
        async with open_client_of(server, sdk={"log_level": "info"}) as client:
            agreed = client.protocol_version
            await add(client)
            for era, version in ((then, MODERN if then == "modern" else LEGACY), (first, agreed)):
                server.restart(era=era, down_for=5)
                assert await add(client) == "3"
                assert (await client.list_tools(cache_mode="bypass")).tools
                assert (await client.read_resource("memo://one", cache_mode="bypass")).contents
                assert await client.get_prompt("greet", {"name": "Ada"})
                assert server.posts(CALL)[-1].protocol_version == version
                # It knows of one version only: what it does is translated.
                assert client.protocol_version == agreed
            assert server.executed["add"] == 3
            # One request each way has to find out.
            assert set(server.client_faults) <= {"envelope", "session id"}
            assert set(server.client_faults.values()) <= {1}


async def test_a_subscription_ends_with_its_era(autojump_clock: MockClock) -> None:
    async with open_server(era="modern") as server:
        async with open_client_of(server) as client:
            async with client.listen(tools_list_changed=True) as subscription:
                server.restart(era="legacy")
                with trio.fail_after(1000), pytest.raises(SubscriptionLost):
                    await anext(subscription)
            assert await add(client) == "3"


async def test_a_legacy_client_knows_no_subscriptions(autojump_clock: MockClock) -> None:
    async with open_server() as server:
        async with open_client_of(server) as client:
            with pytest.raises(ListenNotSupportedError):
                async with client.listen(tools_list_changed=True):
                    pytest.fail("it is of the other era")


def test_the_versions_are_the_sdks() -> None:
    assert LATEST_PROTOCOL_VERSION == MODERN
