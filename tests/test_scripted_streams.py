"""The scripted server's streams: of bytes in memory, and of events."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing
from scripted_peer import ADD, Answer, Peer, meet

from trio_mcp_resilient.testing import (
    MemoryStream,
    RpcError,
    ToolContext,
    memory_connection,
    open_scripted_server,
)


async def test_the_streams_keep_trios_contract() -> None:
    async def make() -> tuple[MemoryStream, MemoryStream]:
        await trio.lowlevel.checkpoint()
        return memory_connection()

    await trio.testing.check_half_closeable_stream(make, None)


async def test_a_reset_is_not_a_clean_end() -> None:
    ours, theirs = memory_connection()
    await ours.send_all(b"last words")
    assert theirs.is_readable()
    ours.reset()
    assert await theirs.receive_some() == b"last words"
    with pytest.raises(trio.BrokenResourceError):
        await theirs.receive_some()
    with pytest.raises(trio.BrokenResourceError):
        await theirs.send_all(b"x")


async def test_an_idle_connection_can_be_probed() -> None:
    ours, theirs = memory_connection()
    assert not theirs.is_readable()
    ours.close()
    assert theirs.is_readable()
    assert await theirs.receive_some() == b""


# Streams of events.


async def test_speaks_on_the_calls_own_stream(autojump_clock: trio.testing.MockClock) -> None:
    async def chatty(ctx: ToolContext) -> str:
        ctx.progress(1, 2, "half")
        ctx.log("secret detail", "debug")
        ctx.log("news", "warning", logger="chatty")
        answer = await ctx.request("roots/list")
        return str(len(answer["roots"]))

    async with open_scripted_server() as server:
        peer = await meet(server)
        await peer.post("logging/setLevel", {"level": "info"})
        server.tool("chatty", chatty)
        await peer.send("POST", peer.tool_call("chatty"))
        answer = await peer.receive(Answer(), events=3)
        assert [message["params"] for message in answer.messages[:2]] == [
            {"progressToken": "p", "progress": 1, "total": 2, "message": "half"},
            {"level": "warning", "data": "news", "logger": "chatty"},
        ]
        question = answer.messages[2]
        assert question["method"] == "roots/list"
        other = await peer.another()
        response = {"jsonrpc": "2.0", "id": question["id"], "result": {"roots": [1, 2]}}
        assert (await other.ask("POST", response)).status == 202
        await peer.receive(answer)
        assert answer.whole and answer.messages[3]["result"]["content"][0]["text"] == "2"


async def test_the_get_stream(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server() as server:
        peer = await meet(server)
        assert server.notify("notifications/tools/list_changed") == 0
        await peer.send("GET")
        session = await server.listening()
        assert server.notify("notifications/tools/list_changed") == 1
        assert server.resource_updated("memo://1") == 0
        session.subscriptions.add("memo://1")
        assert server.resource_updated("memo://1") == 1
        heard = await peer.receive(Answer(), events=2)
        assert [message["method"] for message in heard.messages] == [
            "notifications/tools/list_changed",
            "notifications/resources/updated",
        ]
        other = await peer.another()
        assert (await other.ask("GET")).status == 409
        assert peer.stream is not None
        peer.stream.close()
        await trio.testing.wait_all_tasks_blocked()
        assert not session.listening.is_set()
        await other.send("GET")
        await server.listening()
        server.offer_get_stream = False
        third = await peer.another()
        assert (await third.ask("GET")).headers["allow"] == "POST, DELETE"


async def test_asks_the_client_unasked(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server() as server, trio.open_nursery() as nursery:
        peer = await meet(server)
        results: list[Any] = []

        async def ask(method: str) -> None:
            try:
                results.append(await server.request(method))
            except RpcError as error:
                results.append(error.code)

        nursery.start_soon(ask, "ping")
        await trio.testing.wait_all_tasks_blocked()
        await peer.send("GET")
        heard = await peer.receive(Answer(), events=1)
        other = await peer.another()
        await other.ask("POST", {"jsonrpc": "2.0", "id": heard.messages[0]["id"], "result": {}})
        nursery.start_soon(ask, "elicitation/create")
        await peer.receive(heard, events=2)
        refusal = {"code": -32601, "message": "no"}
        await other.ask("POST", {"jsonrpc": "2.0", "id": heard.messages[1]["id"], "error": refusal})
        nursery.start_soon(ask, "sampling/createMessage")
        await peer.receive(heard, events=3)
        server.lose_session()
        await trio.testing.wait_all_tasks_blocked()
        assert results == [{}, -32601, -32000]
        with pytest.raises(ValueError, match="0 sessions"):
            await server.request("ping")


async def test_a_cut_stream_is_replayed_from_the_event_on(autojump_clock: trio.testing.MockClock) -> None:
    async def steps(ctx: ToolContext) -> str:
        for step in range(3):
            ctx.progress(step)
            await trio.sleep(10)
            if step == 0:
                ctx.cut()
        return "done"

    async with open_scripted_server() as server:
        server.resumable, server.retry = True, 500
        peer = await meet(server)
        server.tool("steps", steps)
        await peer.send("POST", peer.tool_call("steps"))
        answer = Answer()
        with pytest.raises(trio.BrokenResourceError):
            await peer.receive(answer)
        primer, first = answer.events
        assert primer == {"id": primer["id"], "retry": "500", "data": ""}
        other = await peer.another()
        rest = await other.ask("GET", last_event_id=first["id"])
        assert rest.whole and rest.messages[0]["params"]["progress"] == 1
        assert rest.messages[2]["result"]["content"][0]["text"] == "done"
        again = await other.ask("GET", last_event_id=primer["id"])
        assert again.messages[1:] == rest.messages
        assert len({event["id"] for event in again.events}) == 4
        nothing = await other.ask("GET", last_event_id="never given")
        assert nothing.status == 200 and nothing.whole and nothing.body == b""
        assert server.executed["steps"] == 1


async def test_a_stream_is_replayed_alone(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server() as server:
        server.resumable = True
        peer = await meet(server)
        server.cut("mid-body", when="tools/call", times=2)
        cut: list[Answer] = []
        for a in (1, 10):
            caller = await peer.another()
            await caller.send("POST", caller.tool_call("add", {"a": a, "b": 0}))
            cut.append(Answer())
            with pytest.raises(trio.BrokenResourceError):
                await caller.receive(cut[-1])
        for a, partial_answer in zip((1, 10), cut, strict=True):
            primer = dict(line.split(": ", 1) for line in partial_answer.body.decode().splitlines()[:1])
            rest = await (await peer.another()).ask("GET", last_event_id=primer["id"])
            assert [m["result"]["content"][0]["text"] for m in rest.messages] == [str(a)]


async def test_the_standalone_stream_is_replayed(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server() as server:
        server.resumable = True
        peer = await meet(server)
        await peer.send("GET")
        await server.listening()
        server.notify("one")
        heard = await peer.receive(Answer(), events=1)
        server.cut_connections()
        server.notify("two")
        other = await peer.another()
        await other.send("GET", last_event_id=heard.events[0]["id"])
        rest = await other.receive(Answer(), events=1)
        assert [message["method"] for message in rest.messages] == ["two"]
        assert (await (await peer.another()).ask("GET")).status == 409


async def test_a_tool_may_ask_to_be_polled(autojump_clock: trio.testing.MockClock) -> None:
    async def slow(ctx: ToolContext) -> str:
        ctx.close_stream()
        await trio.sleep(60)
        return "done"

    async with open_scripted_server() as server:
        server.resumable = True
        peer = await meet(server)
        server.tool("slow", slow)
        answer = await peer.tool("slow")
        assert answer.whole and answer.messages == []
        rest = await peer.ask("GET", last_event_id=answer.events[0]["id"])
        assert rest.messages[0]["result"]["content"][0]["text"] == "done"


async def test_no_ids_and_no_primer_unless_asked(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server() as server:
        peer = await meet(server)
        (event,) = (await peer.tool("add", ADD)).events
        assert "id" not in event
        server.resumable = True
        old = Peer(server)
        old.version = "2025-06-18"
        await old.open()
        await old.initialize()
        (event,) = (await old.tool("add", ADD)).events
        assert "id" in event and event["data"]
