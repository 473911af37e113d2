"""The scripted server itself, spoken to in raw HTTP/1.1; and the SDK's client on it, as a control."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import h11
import mcp
import pytest
import trio
import trio.testing

from trio_mcp_resilient.testing import (
    DIALECTS,
    MemoryStream,
    Reply,
    RpcError,
    ScriptedServer,
    SeenRequest,
    ToolContext,
    memory_connection,
    open_scripted_server,
)

BASE = {"host": "scripted.test", "accept": "application/json, text/event-stream"}


class Answer:
    """What came back, as far as it came."""

    def __init__(self) -> None:
        self.status: int | None = None
        self.headers: dict[str, str] = {}
        self.body = b""
        self.whole = False

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[dict[str, str]]:
        blocks = [block for block in self.body.decode().split("\n\n") if block]
        return [dict(line.split(": ", 1) for line in block.splitlines()) for block in blocks]

    @property
    def messages(self) -> list[Any]:
        return [json.loads(event["data"]) for event in self.events if event["data"]]


class Peer:
    """A client of one connection and one session, without any manners."""

    def __init__(self, server: ScriptedServer) -> None:
        self.server = server
        self.session: str | None = None
        self.version = "2025-11-25"
        self._ids = iter(range(1, 1000))
        self._h11 = h11.Connection(h11.CLIENT)
        self.stream: MemoryStream | None = None

    async def open(self) -> Peer:
        opened = await self.server.connect("scripted.test", 80)
        assert isinstance(opened, MemoryStream)
        self.stream = opened
        return self

    async def another(self) -> Peer:
        peer = await Peer(self.server).open()
        peer.session, peer._ids = self.session, self._ids
        return peer

    async def send(self, method: str, message: Any = None, **fields: str) -> None:
        body = b"" if message is None else json.dumps(message).encode()
        headers = {**BASE, "content-length": str(len(body)), "content-type": "application/json"}
        if self.session is not None:
            headers |= {"mcp-session-id": self.session, "mcp-protocol-version": self.version}
        headers |= {name.replace("_", "-"): value for name, value in fields.items()}
        head = h11.Request(method=method, target="/mcp", headers=list(headers.items()))
        data = self._h11.send(head) or b""
        data += self._h11.send(h11.Data(data=body)) or b""
        data += self._h11.send(h11.EndOfMessage()) or b""
        assert self.stream is not None
        await self.stream.send_all(data)

    async def receive(self, answer: Answer, *, events: float = math.inf) -> Answer:
        """Read on until the end of the answer, or until that many events are here."""
        assert self.stream is not None
        while len(answer.events if "event-stream" in answer.headers.get("content-type", "") else []) < events:
            event = self._h11.next_event()
            if event is h11.NEED_DATA:
                self._h11.receive_data(await self.stream.receive_some())
            elif isinstance(event, h11.Response):
                answer.status = event.status_code
                answer.headers = {name.decode(): value.decode() for name, value in event.headers}
            elif isinstance(event, h11.Data):
                answer.body += event.data
            else:
                answer.whole = True
                if self._h11.our_state is h11.DONE and self._h11.their_state is h11.DONE:
                    self._h11.start_next_cycle()
                break
        return answer

    async def ask(self, method: str, message: Any = None, **fields: str) -> Answer:
        await self.send(method, message, **fields)
        return await self.receive(Answer())

    def call(self, rpc_method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        return {"jsonrpc": "2.0", "id": next(self._ids), "method": rpc_method, "params": params or {}}

    def tool_call(self, name: str, arguments: Mapping[str, Any] | None = None) -> dict[str, Any]:
        params = {"name": name, "arguments": arguments or {}, "_meta": {"progressToken": "p"}}
        return self.call("tools/call", params)

    async def post(self, rpc_method: str, params: Mapping[str, Any] | None = None) -> Answer:
        return await self.ask("POST", self.call(rpc_method, params))

    async def tool(self, name: str, arguments: Mapping[str, Any] | None = None) -> Answer:
        return await self.ask("POST", self.tool_call(name, arguments))

    async def notify(self, rpc_method: str, params: Mapping[str, Any] | None = None) -> Answer:
        return await self.ask("POST", {"jsonrpc": "2.0", "method": rpc_method, "params": params or {}})

    async def initialize(self) -> Answer:
        params = {
            "protocolVersion": self.version,
            "capabilities": {"roots": {}},
            "clientInfo": {"name": "peer", "version": "1"},
        }
        answer = await self.post("initialize", params)
        self.session = answer.headers.get("mcp-session-id")
        await self.notify("notifications/initialized")
        return answer


async def meet(server: ScriptedServer) -> Peer:
    """Return a peer that has shaken hands, with one tool to call."""
    server.tool("add", lambda a, b: a + b)
    peer = await Peer(server).open()
    await peer.initialize()
    return peer


ADD = {"a": 1, "b": 2}
ADDED = [{"type": "text", "text": "3"}]


# The streams.


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


# A good server.


async def test_shakes_hands_and_calls(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server() as server:
        server.instructions = "add things"
        server.tool("add", lambda a, b: a + b)
        peer = await Peer(server).open()
        hello = await peer.initialize()
        assert hello.status == 200 and hello.whole
        result = hello.messages[0]["result"]
        assert result["protocolVersion"] == "2025-11-25"
        assert result["serverInfo"]["name"] == "scripted" and result["instructions"] == "add things"
        answer = await peer.tool("add", ADD)
        assert answer.messages[0]["result"]["content"] == ADDED
        assert server.executed == {"add": 1}
        assert server.executions[0].arguments == ADD and server.executions[0].session_id == peer.session
        session = server.the_session
        assert session.initialized and session.client_info["name"] == "peer"
        assert server.handshakes == 1 and server.connections_made == 1


async def test_records_every_request(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server() as server:
        observed: list[SeenRequest] = []
        server.on_request(observed.append)
        peer = await meet(server)
        await trio.sleep(5)
        await peer.tool("add", ADD)
        first, second, third = server.requests
        assert [seen.rpc_method for seen in observed] == [
            "initialize",
            "notifications/initialized",
            "tools/call",
        ]
        assert (first.session_id, first.status) == (None, 200)
        assert (second.rpc_id, second.status) == (None, 202)
        assert (third.tool, third.session_id) == ("add", peer.session)
        assert third.arrived_at == second.arrived_at + 5
        assert server.posts("tools/call") == [third] == server.seen(lambda seen: seen.tool == "add")
        assert observed[2].status is None
        assert peer.session is not None and peer.session not in repr(server.requests + observed)


async def test_what_tools_return(autojump_clock: trio.testing.MockClock) -> None:
    async def later(seconds: float) -> dict[str, float]:
        await trio.sleep(seconds)
        return {"slept": seconds}

    def fails() -> None:
        raise ValueError("no luck")

    def refuses() -> None:
        raise RpcError(-32042, "not today", {"when": "never"})

    async with open_scripted_server() as server:
        peer = await meet(server)
        for tool in (later, fails, refuses):
            server.tool(tool.__name__, tool)
        server.tool("raw", lambda: {"content": [], "isError": True})
        slept = (await peer.tool("later", {"seconds": 3600})).messages[0]["result"]
        assert slept["structuredContent"] == {"slept": 3600}
        failed = (await peer.tool("fails")).messages[0]["result"]
        assert failed == {"content": [{"type": "text", "text": "no luck"}], "isError": True}
        refused = (await peer.tool("refuses")).messages[0]["error"]
        assert refused == {"code": -32042, "message": "not today", "data": {"when": "never"}}
        assert (await peer.tool("raw")).messages[0]["result"] == {"content": [], "isError": True}
        assert (await peer.tool("add", {"a": 1})).messages[0]["result"]["isError"]
        assert (await peer.tool("unknown")).messages[0]["error"]["code"] == -32602
        server.remove_tool("raw")
        assert (await peer.tool("raw")).messages[0]["error"]["code"] == -32602


async def test_lists_what_it_offers(autojump_clock: trio.testing.MockClock) -> None:
    def typed(ctx: ToolContext, count: int, name: str = "x") -> str:
        return name * count

    async with open_scripted_server() as server:
        peer = await meet(server)
        server.tool("typed", typed, description="repeats", annotations={"readOnlyHint": True})
        server.page_size = 1
        page = (await peer.post("tools/list")).messages[0]["result"]
        assert [tool["name"] for tool in page["tools"]] == ["add"]
        page = (await peer.post("tools/list", {"cursor": page["nextCursor"]})).messages[0]["result"]
        assert page["tools"] == [
            {
                "name": "typed",
                "description": "repeats",
                "annotations": {"readOnlyHint": True},
                "inputSchema": {
                    "type": "object",
                    "properties": {"count": {"type": "integer"}, "name": {"type": "string"}},
                    "required": ["count"],
                },
            }
        ]
        assert "nextCursor" not in page


async def test_resources_prompts_and_the_rest(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server() as server:
        peer = await meet(server)

        async def result(method: str, **params: Any) -> Any:
            message = (await peer.post(method, params)).messages[0]
            return message.get("result", message.get("error"))

        server.resource("memo://1", "hello")
        server.template("memo://{id}")
        server.prompt("greet", "Hello {name}", description="greets")
        assert [entry["uri"] for entry in (await result("resources/list"))["resources"]] == ["memo://1"]
        assert (await result("resources/templates/list"))["resourceTemplates"][0][
            "uriTemplate"
        ] == "memo://{id}"
        assert (await result("resources/read", uri="memo://1"))["contents"][0]["text"] == "hello"
        assert (await result("resources/read", uri="memo://2"))["code"] == -32002
        assert await result("resources/subscribe", uri="memo://1") == {}
        assert server.the_session.subscriptions == {"memo://1"}
        assert await result("resources/unsubscribe", uri="memo://1") == {}
        assert server.the_session.subscriptions == set()
        assert (await result("prompts/list"))["prompts"] == [{"name": "greet", "description": "greets"}]
        greeting = await result("prompts/get", name="greet", arguments={"name": "Ada"})
        assert greeting["messages"][0]["content"]["text"] == "Hello Ada"
        assert (await result("prompts/get", name="part"))["code"] == -32602
        assert (await result("completion/complete"))["completion"]["values"] == []
        assert await result("logging/setLevel", level="error") == {}
        assert server.the_session.log_level == "error"
        assert (await result("logging/setLevel", level="loud"))["code"] == -32602
        assert await result("ping") == {}
        assert await result("no/such/method") == {"code": -32601, "message": "Method not found"}
        server.methods["my/method"] = lambda ctx: {"got": ctx.params["x"]}
        assert await result("my/method", x=1) == {"got": 1}


async def test_negotiates_the_version(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server() as server:
        for spoken, asked, agreed in [
            ("2025-11-25", "2025-03-26", "2025-03-26"),
            ("2025-11-25", "2099-01-01", "2025-11-25"),
            ("2025-06-18", "2025-11-25", "2025-06-18"),
        ]:
            server.protocol_version = spoken
            peer = await Peer(server).open()
            peer.version = asked
            hello = await peer.initialize()
            assert hello.messages[0]["result"]["protocolVersion"] == agreed
        wrong = await peer.ask("POST", peer.call("ping"), mcp_protocol_version="2099-01-01")
        assert wrong.status == 400 and "Unsupported protocol version" in wrong.json["error"]["message"]


async def test_refuses_what_is_malformed(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server() as server:
        peer = await meet(server)
        ping = peer.call("ping")
        assert (await peer.ask("POST", ping, accept="application/json")).status == 406
        assert (await peer.ask("POST", ping, content_type="text/plain")).status == 415
        assert (await peer.ask("POST", [ping])).status == 400
        assert (await peer.ask("POST")).json["error"]["code"] == -32700
        assert (await peer.ask("PUT", ping)).headers["allow"] == "POST, GET, DELETE"
        again = await peer.post("initialize")
        assert again.status == 400 and "already" in again.json["error"]["message"]
        session, peer.session = peer.session, None
        missing = await peer.post("tools/list")
        assert missing.status == 400 and "Missing session ID" in missing.json["error"]["message"]
        peer.session = session
        assert (await peer.post("ping")).status == 200
        assert server.executed == {}


async def test_junk_closes_the_connection(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server() as server:
        stream = await server.connect("scripted.test", 80)
        await stream.send_all(b"this is no HTTP\r\n\r\n")
        assert await stream.receive_some() == b""
        assert server.open_connections == 0


async def test_checks_host_and_origin_if_asked(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server() as server:
        peer = await meet(server)
        server.allowed_hosts = {"localhost"}
        assert (await peer.post("ping")).status == 421
        ping = partial(peer.ask, "POST", peer.call("ping"), host="localhost:80")
        assert (await ping(origin="http://evil.example")).status == 403
        assert (await ping(origin="http://localhost:80")).status == 200


async def test_json_mode(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server() as server:
        peer = await meet(server)
        server.json_mode = True
        answer = await peer.tool("add", ADD)
        assert answer.headers["content-type"] == "application/json"
        assert answer.json["result"]["content"] == ADDED


async def test_stateless_mode(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server() as server:
        server.stateless = True
        peer = await meet(server)
        assert peer.session is None and server.sessions == []
        assert (await peer.tool("add", ADD)).messages[0]["result"]["content"] == ADDED
        peer.session = "stale"
        assert (await peer.post("ping")).status == 200
        assert (await peer.ask("GET")).headers["allow"] == "POST"
        assert (await peer.ask("DELETE")).status == 405


async def test_session_ids_are_visible_ascii_and_replay(autojump_clock: trio.testing.MockClock) -> None:
    ids: list[str] = []
    for name in ("one", "one", "two"):
        async with open_scripted_server(name) as server:
            for _ in range(2):
                peer = await Peer(server).open()
                await peer.initialize()
            ids.append(" ".join(session.id for session in server.sessions))
    assert ids[0] == ids[1] != ids[2]
    assert all(id_.isascii() and id_.isprintable() for id_ in ids)
    assert len({*ids[0].split(), *ids[2].split()}) == 4


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


# How sessions end.


@pytest.mark.parametrize("name", sorted(DIALECTS))
async def test_a_lost_session_is_refused_in_the_dialect(
    name: str, autojump_clock: trio.testing.MockClock
) -> None:
    async with open_scripted_server() as server:
        peer = await meet(server)
        server.dialect(name)
        assert server.lose_session() == 1 and server.sessions == []
        answer = await peer.tool("add", ADD)
        assert answer.status == DIALECTS[name].status
        assert (await peer.notify("notifications/initialized")).status == answer.status
        assert (await peer.ask("GET")).status == answer.status
        assert (await peer.ask("DELETE")).status == answer.status
        assert (await peer.post("initialize")).status == answer.status
        assert server.executed == {}


async def test_dialects_are_exact_where_it_matters(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server() as server:
        peer = await meet(server)
        server.lose_session()
        assert (await peer.post("ping")).json == {
            "jsonrpc": "2.0",
            "id": None,
            "error": {"code": -32600, "message": "Session not found"},
        }
        server.dialect("404-echo")
        call = peer.call("ping")
        assert (await peer.ask("POST", call)).json["id"] == call["id"]
        server.dialect("404-empty")
        assert (await peer.post("ping")).body == b""
        server.dialect("400-text")
        assert "content-type" not in (await peer.post("ping")).headers
        server.dialect("401-bearer")
        assert "www-authenticate" in (await peer.post("ping")).headers
        server.dialect("200-sse-error")
        answer = await peer.post("ping")
        assert answer.messages[0]["error"]["message"] == "Server not initialized"
        server.dialect(Reply(418, "short and stout"))
        assert (await peer.post("ping")).body == b"short and stout"


async def test_one_session_is_lost_and_not_the_other(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server() as server:
        first, second = await meet(server), await meet(server)
        assert first.session is not None and first.session != second.session
        server.lose_session(first.session)
        assert (await first.post("ping")).status == 404
        assert (await second.post("ping")).status == 200
        server.lose_session(server.the_session)
        assert (await second.post("ping")).status == 404


async def test_what_becomes_of_calls_when_the_session_is_lost(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def slow() -> str:
        await trio.sleep(10)
        return "done"

    async with open_scripted_server() as server:
        server.tool("slow", slow)
        for streams, whole, answers in [("keep", True, 1), ("end", True, 0), ("cut", False, 0)]:
            peer = await meet(server)
            await peer.send("POST", peer.tool_call("slow"))
            await trio.sleep(1)
            server.lose_session(streams=streams)
            answer = Answer()
            try:
                await peer.receive(answer)
            except trio.BrokenResourceError:
                pass
            assert (answer.whole, len(answer.messages)) == (whole, answers)
            assert (await (await peer.another()).post("ping")).status == 404
        assert server.executed["slow"] == 3


async def test_delete_ends_streams_cleanly_without_an_answer(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server() as server:
        peer = await meet(server)
        server.tool("forever", trio.sleep_forever)
        listener, caller = await peer.another(), await peer.another()
        await listener.send("GET")
        await caller.send("POST", caller.tool_call("forever"))
        await trio.testing.wait_all_tasks_blocked()
        assert (await peer.ask("DELETE")).status == 200
        for each in (listener, caller):
            answer = await each.receive(Answer())
            assert answer.whole and answer.body == b""
        assert (await peer.ask("DELETE")).status == 404
        assert server.deleted == [peer.session]
        server.offer_delete = False
        assert (await peer.ask("DELETE")).status == 405


async def test_delete_under_a_call_in_json_mode(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server() as server:
        server.json_mode = True
        peer = await meet(server)
        server.tool("forever", trio.sleep_forever)
        caller = await peer.another()
        await caller.send("POST", caller.tool_call("forever"))
        await trio.testing.wait_all_tasks_blocked()
        await peer.ask("DELETE")
        answer = await caller.receive(Answer())
        assert answer.status == 500 and "before the request completed" in answer.json["error"]["message"]


async def test_an_idle_session_is_forgotten(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server() as server:
        server.idle_timeout = 1800.0
        peer = await meet(server)
        await trio.sleep(1799)
        assert (await peer.post("ping")).status == 200
        listener = await peer.another()
        await listener.send("GET")
        await trio.sleep(5000)
        assert (await peer.post("ping")).status == 200
        server.cut_connections()
        await trio.sleep(1801)
        assert server.sessions == []
        assert (await (await peer.another()).post("ping")).status == 404


async def test_a_cancelled_call_stops_and_is_not_answered(autojump_clock: trio.testing.MockClock) -> None:
    stopped: list[bool] = []

    async def forever() -> None:
        try:
            await trio.sleep_forever()
        finally:
            stopped.append(True)

    async with open_scripted_server() as server:
        peer = await meet(server)
        server.tool("forever", forever)
        caller = await peer.another()
        call = caller.tool_call("forever")
        await caller.send("POST", call)
        await trio.testing.wait_all_tasks_blocked()
        await peer.notify("notifications/cancelled", {"requestId": call["id"]})
        answer = await caller.receive(Answer())
        assert answer.whole and answer.body == b"" and stopped
        assert server.cancelled == [call["id"]] and server.the_session.running == {}


# How connections end.


async def test_refuses_while_down(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server() as server:
        peer = await meet(server)
        server.down()
        with pytest.raises(ConnectionRefusedError):
            await server.connect("scripted.test", 80)
        assert peer.stream is not None
        with pytest.raises(trio.BrokenResourceError):
            await peer.stream.receive_some()
        server.up()
        assert (await (await peer.another()).post("ping")).status == 200
        assert server.connects_refused == 1


async def test_hangs_while_down_if_asked(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server() as server, trio.open_nursery() as nursery:
        server.down("hang", cut=False)
        with trio.move_on_after(60) as scope:
            await server.connect("scripted.test", 80)
        assert scope.cancelled_caught
        nursery.start_soon(server.connect, "scripted.test", 80)
        await trio.testing.wait_all_tasks_blocked()
        server.up()
        await trio.testing.wait_all_tasks_blocked()
        assert server.connections_made == 1


@pytest.mark.parametrize("keep_sessions", [False, True])
async def test_a_restart_stops_all_that_ran(
    keep_sessions: bool, autojump_clock: trio.testing.MockClock
) -> None:
    finished: list[bool] = []

    async def slow() -> None:
        await trio.sleep(10)
        finished.append(True)

    async with open_scripted_server() as server:
        peer = await meet(server)
        server.tool("slow", slow)
        await peer.send("POST", peer.tool_call("slow"))
        await trio.sleep(1)
        server.restart(keep_sessions=keep_sessions, down_for=5)
        with pytest.raises(trio.BrokenResourceError):
            await peer.receive(Answer())
        with pytest.raises(ConnectionRefusedError):
            await peer.another()
        await trio.sleep(5)
        after = await (await peer.another()).post("ping")
        assert after.status == (200 if keep_sessions else 404)
        await trio.sleep(20)
        assert server.executed["slow"] == 1 and not finished


async def test_a_client_that_leaves_does_not_stop_its_call(autojump_clock: trio.testing.MockClock) -> None:
    finished = trio.Event()

    async def slow() -> None:
        await trio.sleep(10)
        finished.set()

    async with open_scripted_server() as server:
        peer = await meet(server)
        server.tool("slow", slow)
        await peer.send("POST", peer.tool_call("slow"))
        assert peer.stream is not None
        # It arrived whole, so it runs, even though nobody waits any more.
        peer.stream.close()
        await finished.wait()
        assert server.open_connections == 0


async def test_idle_connections_are_closed_if_asked(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server() as server:
        server.keep_alive_timeout = 5.0
        peer = await meet(server)
        await trio.sleep(4)
        assert peer.stream is not None and not peer.stream.is_readable()
        await trio.sleep(2)
        assert peer.stream.is_readable() and await peer.stream.receive_some() == b""


# What can be scripted.


async def outcome(peer: Peer, call: dict[str, Any]) -> tuple[Answer, type[Exception] | None]:
    answer = Answer()
    try:
        with trio.fail_after(60):
            await peer.send("POST", call)
            await peer.receive(answer)
    except (trio.BrokenResourceError, h11.RemoteProtocolError, trio.TooSlowError) as error:
        return answer, type(error)
    return answer, None


ENDS: dict[str, type[Exception] | None] = {
    "reset": trio.BrokenResourceError,
    "fin": h11.RemoteProtocolError,
    "silence": trio.TooSlowError,
    "end": None,
}


@pytest.mark.parametrize("json_mode", [False, True])
@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize(
    ("point", "ran", "head", "body"),
    [
        ("before-run", 0, None, ""),
        ("before-head", 1, None, ""),
        ("after-head", 1, 200, ""),
        ("mid-body", 1, 200, "half"),
        ("before-end", 1, 200, "whole"),
    ],
)
async def test_cuts(
    point: Any,
    ran: int,
    head: int | None,
    body: str,
    how: Any,
    json_mode: bool,
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_scripted_server() as server:
        peer = await meet(server)
        server.json_mode = json_mode
        fault = server.cut(point, how=how, when="tools/call")
        assert (await peer.post("ping")).status == 200
        answer, error = await outcome(peer, peer.tool_call("add", ADD))
        whole = json_mode and b'"text": "3"' in answer.body or not json_mode and len(answer.events) == 1
        assert answer.status == head and server.executed["add"] == ran
        assert fault.hits == 1
        if body == "":
            assert answer.body == b""
        elif body == "half":
            assert answer.body and not answer.body.endswith((b"}", b"\n\n"))
        else:
            assert whole and answer.body.endswith((b"}", b"\n\n"))
        # What has no head yet cannot end properly.
        assert error is (h11.RemoteProtocolError if how == "end" and head is None else ENDS[how])
        after = await (await peer.another()).tool("add", ADD)
        assert after.whole and server.executed["add"] == ran + 1


async def test_cut_after_any_number_of_bytes(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server() as server:
        peer = await meet(server)
        sizes: list[int] = []
        for after_bytes in (0, 1, 20, 200):
            fault = server.cut(after_bytes=after_bytes, when="tools/call")
            caller = await peer.another()
            await caller.send("POST", caller.tool_call("add", ADD))
            received = b""
            assert caller.stream is not None
            with pytest.raises(trio.BrokenResourceError):
                while True:
                    received += await caller.stream.receive_some()
            sizes.append(len(received))
            assert fault.hits == 1
        assert sizes == [0, 1, 20, 200] and server.executed["add"] == 4


async def test_a_request_cut_short_never_runs(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server() as server:
        peer = await meet(server)
        fault = server.cut("mid-request", after_bytes=100, when="tools/call")
        assert (await peer.post("ping")).status == 200
        with pytest.raises(trio.BrokenResourceError):
            await peer.send("POST", peer.tool_call("add", ADD))
        assert fault.hits == 1 and server.executed["add"] == 0 and len(server.posts("tools/call")) == 0
        # Never the last byte, however many are admitted.
        server.cut("mid-request", after_bytes=10_000, when=lambda seen: seen.tool == "add")
        other = await peer.another()
        with pytest.raises(trio.BrokenResourceError):
            await other.send("POST", other.tool_call("add", ADD))
        assert server.executed["add"] == 0


async def test_scripted_answers(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server() as server:
        peer = await meet(server)
        server.answer(503, "busy", headers={"retry-after": "7"}, when="tools/call", times=2)
        server.answer(502, lambda seen: {"said": seen.tool}, when=lambda seen: seen.tool == "add", ran=True)
        for _ in range(2):
            answer = await peer.tool("add", ADD)
            assert (answer.status, answer.body, answer.headers["retry-after"]) == (503, b"busy", "7")
        assert server.executed["add"] == 0
        answer = await peer.tool("add", ADD)
        assert (answer.status, answer.json) == (502, {"said": "add"})
        assert server.executed["add"] == 1
        assert (await peer.tool("add", ADD)).status == 200
        assert [seen.status for seen in server.posts("tools/call")] == [503, 503, 502, 200]
        server.answer(500, times=math.inf)
        server.forget_script()
        assert (await peer.post("ping")).status == 200


async def test_holds_and_lets_go(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server() as server:
        peer = await meet(server)
        for point, ran in (("before-run", 0), ("before-head", 4)):
            held = server.hold("tools/call", point=point, times=2)
            callers = [await peer.another() for _ in range(2)]
            for caller in callers:
                await caller.send("POST", caller.tool_call("add", ADD))
            await held.reached(2)
            assert server.executed["add"] == ran
            held.release()
            for caller in callers:
                assert (await caller.receive(Answer())).whole
            await held.reached(2)
            assert held.hits == 2
            assert (await peer.post("ping")).status == 200
        assert server.executed["add"] == 4


async def test_silence_lasts_until_the_client_leaves(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server() as server:
        peer = await meet(server)
        silent = server.go_silent(when="ping")
        await peer.send("POST", peer.call("ping"))
        await silent.reached()
        assert server.requests[-1].status is None
        assert peer.stream is not None
        with trio.move_on_after(3600):
            await peer.stream.receive_some()
            pytest.fail("it spoke")
        peer.stream.close()
        await trio.testing.wait_all_tasks_blocked()
        assert server.open_connections == 0


async def test_a_fault_needs_a_place(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server() as server:
        with pytest.raises(ValueError, match="say where"):
            server.cut()
        with pytest.raises(ValueError, match="say where"):
            server.cut("mid-body", after_bytes=3)
        with pytest.raises(ValueError, match="reset or a fin"):
            server.cut(after_bytes=3, how="silence")


async def test_delays(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server() as server:
        peer = await meet(server)
        server.delay = lambda seen: 3.0 if seen.tool == "add" else 0.0
        start = trio.current_time()
        await peer.post("ping")
        await peer.tool("add", ADD)
        assert trio.current_time() == start + 3


# Its block.


async def test_the_block_raises_what_it_raised(autojump_clock: trio.testing.MockClock) -> None:
    with pytest.raises(KeyError, match="mine"):
        async with open_scripted_server() as server:
            await meet(server)
            raise KeyError("mine")


async def test_what_a_handler_asserts_ends_the_block(autojump_clock: trio.testing.MockClock) -> None:
    def suspicious() -> None:
        raise AssertionError("never called with this")

    with pytest.raises(AssertionError, match="never called"):
        async with open_scripted_server() as server:
            peer = await meet(server)
            server.tool("suspicious", suspicious)
            await peer.tool("suspicious")


async def test_cancelling_the_block_is_a_cancellation(autojump_clock: trio.testing.MockClock) -> None:
    with trio.move_on_after(5) as scope:
        async with open_scripted_server() as server:
            await meet(server)
            await trio.sleep_forever()
    assert scope.cancelled_caught


async def test_the_end_closes_every_connection(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server() as server:
        peer = await meet(server)
    assert peer.stream is not None
    assert await peer.stream.receive_some() == b""


# The SDK's own client, over a real socket: what our client is measured against.


async def test_the_sdk_client_works_until_its_session_is_lost() -> None:
    async with open_scripted_server() as server:
        server.tool("add", lambda a, b: a + b)
        # The SDK leaves its readers of event streams to the garbage collector, which warns.
        server.json_mode, server.offer_get_stream = True, False
        port = await server.serve_tcp()
        async with mcp.Client(f"http://127.0.0.1:{port}/mcp", mode="legacy") as client:
            assert [tool.name for tool in (await client.list_tools()).tools] == ["add"]
            assert not (await client.call_tool("add", ADD)).is_error
            server.lose_session()
            for _ in range(3):
                with pytest.raises(mcp.MCPError, match="Session not found"):
                    await client.call_tool("add", ADD)
        assert server.executed["add"] == 1 and server.handshakes == 1


async def test_a_socket_is_reset_as_memory_is() -> None:
    async with open_scripted_server() as server:
        port = await server.serve_tcp()
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        while not server.open_connections:
            await trio.lowlevel.checkpoint()
        server.down()
        with pytest.raises(trio.BrokenResourceError):
            await stream.receive_some()
        late = await trio.open_tcp_stream("127.0.0.1", port)
        with pytest.raises(trio.BrokenResourceError):
            await late.receive_some()
        await stream.aclose()
        await late.aclose()
