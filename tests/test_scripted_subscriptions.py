"""What is listened to on the scripted server without sessions, and how that ends."""

from __future__ import annotations

import gc
from typing import Any

import mcp
import mcp_types
import pytest
import trio
import trio.testing
from mcp.client.subscriptions import ResourceUpdated, SubscriptionLost, ToolsListChanged
from scripted_peer import ADD, MODERN, Answer, Peer, meet

from trio_mcp_resilient.testing import ToolContext, open_scripted_server

STAMP = "io.modelcontextprotocol/subscriptionId"
TOOLS_CHANGED = "notifications/tools/list_changed"
UPDATED = "notifications/resources/updated"


def stamps(answer: Answer) -> set[Any]:
    return {message.get("params", message.get("result"))["_meta"][STAMP] for message in answer.messages}


async def test_hears_what_it_asked_for(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server(era="modern") as server:
        peer = await Peer(server).open()
        stream = await peer.listen(toolsListChanged=True, resourceSubscriptions=["a://b"], unknown=True)
        subscription = await server.subscribed()
        (acknowledged,) = stream.messages
        assert acknowledged["method"] == "notifications/subscriptions/acknowledged"
        honoured = {"toolsListChanged": True, "resourceSubscriptions": ["a://b"]}
        assert acknowledged["params"]["notifications"] == honoured == subscription.notifications
        assert server.tools_list_changed() == 1 and server.prompts_list_changed() == 0
        assert server.resources_list_changed() == 0
        assert server.resource_updated("a://b") == 1 and server.resource_updated("a://c") == 0
        server.end_subscriptions()
        await peer.receive(stream)
        _, changed, updated, result = stream.messages
        assert (changed["method"], updated["method"]) == (TOOLS_CHANGED, UPDATED)
        assert updated["params"]["uri"] == "a://b"
        assert result["id"] == subscription.id and result["result"]["resultType"] == "complete"
        assert stamps(stream) == {subscription.id} and stream.whole
        assert server.subscriptions == [] and server.tools_list_changed() == 0
        assert server.disconnects == []


async def test_what_is_not_honoured_is_left_out(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server(era="modern") as server:
        server.honoured = ("promptsListChanged",)
        peer = await Peer(server).open()
        stream = await peer.listen(toolsListChanged=True, promptsListChanged=True)
        assert stream.messages[0]["params"]["notifications"] == {"promptsListChanged": True}
        assert server.tools_list_changed() == 0 and server.prompts_list_changed() == 1
        # A server with bad manners tells all the same.
        assert (await server.subscribed()).tell(TOOLS_CHANGED)


async def test_several_are_open_at_once(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server(era="modern") as server:
        server.json_mode = True
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon((await Peer(server).open()).listen)
            await server.subscribed(2)
        assert len(server.subscriptions) == 2


async def test_a_client_that_leaves_is_forgotten(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server(era="modern") as server:
        peer = await Peer(server).open()
        await peer.listen(toolsListChanged=True)
        subscription = await server.subscribed()
        assert peer.stream is not None
        peer.stream.close()
        await trio.testing.wait_all_tasks_blocked()
        assert server.subscriptions == [] and server.disconnects == [subscription.id]
        assert not subscription.tell(TOOLS_CHANGED)


async def test_a_subscription_is_cut(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server(era="modern") as server:
        peer = await Peer(server).open()
        stream = await peer.listen(toolsListChanged=True)
        (await server.subscribed()).cut()
        assert server.subscriptions == [] and server.tools_list_changed() == 0
        with pytest.raises(trio.BrokenResourceError):
            await peer.receive(stream)
        await trio.testing.wait_all_tasks_blocked()
        assert server.running == 0 and server.disconnects == []


async def test_a_subscription_ends_without_a_result(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server(era="modern") as server:
        peer = await Peer(server).open()
        stream = await peer.listen(toolsListChanged=True)
        (await server.subscribed()).end(result=False)
        assert server.subscriptions == []
        await peer.receive(stream)
        await trio.testing.wait_all_tasks_blocked()
        assert stream.whole and len(stream.messages) == 1
        assert server.running == 0 and server.disconnects == []


async def test_faults_strike_what_listens(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server(era="modern") as server:
        cut = server.cut("after-head", when="subscriptions/listen")
        with pytest.raises(trio.BrokenResourceError):
            await (await Peer(server).open()).listen()
        assert cut.hits == 1 and server.subscriptions == []
        server.cut("mid-body", when="subscriptions/listen")
        peer = await Peer(server).open()
        stream = await peer.listen(toolsListChanged=True)
        server.end_subscriptions()
        with pytest.raises(trio.BrokenResourceError):
            await peer.receive(stream)
        server.answer(503, when="subscriptions/listen", ran=True)
        assert (await (await Peer(server).open()).listen()).status == 503


async def test_a_restart_ends_them_without_a_word(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server(era="modern") as server:
        peer = await Peer(server).open()
        stream = await peer.listen(toolsListChanged=True)
        server.restart(how="fin")
        await trio.testing.wait_all_tasks_blocked()
        assert server.subscriptions == [] and len(stream.messages) == 1 and not stream.whole


async def test_sessions_hear_the_same(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server(era="both") as server:
        older = await meet(server)
        await older.post("resources/subscribe", {"uri": "a://b"})
        await older.send("GET")
        await server.listening()
        await (await Peer(server).open()).listen(toolsListChanged=True, resourceSubscriptions=["a://b"])
        assert server.tools_list_changed() == 2 and server.resource_updated("a://b") == 2


# The SDK leaves its readers of event streams to the garbage collector.
sdk_leaks = pytest.mark.filterwarnings("ignore:Async generator 'http(x|core)2:ResourceWarning")


async def ask(ctx: ToolContext) -> str:
    schema = {"type": "object", "properties": {"name": {"type": "string"}}}
    params = {"mode": "form", "message": "who?", "requestedSchema": schema}
    answer = await ctx.request("elicitation/create", params)
    ctx.progress(1)
    return f"hello {answer['content']['name']}"


async def introduce(context: Any, params: Any) -> mcp_types.ElicitResult:
    return mcp_types.ElicitResult(action="accept", content={"name": "Ada"})


@sdk_leaks
@pytest.mark.parametrize(("era", "mode"), [("modern", "auto"), ("modern", MODERN), ("both", "auto")])
async def test_the_sdk_client_calls_and_listens(era: Any, mode: Any) -> None:
    async with open_scripted_server(era=era) as server:
        server.tool("add", lambda a, b: a + b)
        server.tool("ask", ask)
        url = f"http://127.0.0.1:{await server.serve_tcp()}/mcp"
        async with mcp.Client(url, mode=mode, elicitation_callback=introduce) as client:
            assert client.protocol_version == MODERN
            assert [tool.name for tool in (await client.list_tools()).tools] == ["add", "ask"]
            three = await client.call_tool("add", ADD)
            assert three.content == [mcp_types.TextContent(type="text", text="3")]
            hello = await client.call_tool("ask", progress_callback=ignore_progress)
            assert hello.content == [mcp_types.TextContent(type="text", text="hello Ada")]
            asked = {"tools_list_changed": True, "resource_subscriptions": ["a://b"]}
            async with client.listen(**asked) as subscription:
                assert server.tools_list_changed() == server.resource_updated("a://b") == 1
                server.end_subscriptions()
                heard = [event async for event in subscription]
                assert heard == [ToolsListChanged(), ResourceUpdated("a://b")]
            async with client.listen(tools_list_changed=True) as subscription:
                server.subscriptions[0].end(result=False)
                with pytest.raises(SubscriptionLost):
                    await anext(aiter(subscription))
        assert not server.client_faults and not server.disconnects
    gc.collect()


async def ignore_progress(progress: float, total: float | None, message: str | None) -> None:
    pass


@sdk_leaks
async def test_the_sdk_client_cancels_by_leaving() -> None:
    async with open_scripted_server(era="modern") as server:
        server.tool("add", lambda a, b: a + b)
        url = f"http://127.0.0.1:{await server.serve_tcp()}/mcp"
        async with mcp.Client(url) as client, trio.open_nursery() as nursery:
            held = server.hold("tools/call")
            nursery.start_soon(client.call_tool, "add", ADD)
            await held.reached()
            nursery.cancel_scope.cancel()
        while not server.disconnects:
            await trio.lowlevel.checkpoint()
        (call,) = server.posts("tools/call")
        assert server.disconnects == [call.rpc_id] and not server.client_faults
    gc.collect()


@pytest.mark.parametrize("dialect", ["400-session", "404-html", "200-older"])
@sdk_leaks
async def test_the_sdk_client_falls_back(dialect: str) -> None:
    async with open_scripted_server(discover_dialect=dialect) as server:
        server.json_mode, server.offer_get_stream = True, False
        url = f"http://127.0.0.1:{await server.serve_tcp()}/mcp"
        async with mcp.Client(url) as client:
            assert client.protocol_version == "2025-11-25"
        assert server.posts()[0].rpc_method == "server/discover" and server.handshakes == 1
    gc.collect()
