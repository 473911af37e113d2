"""The scripted server left alone, spoken to in raw HTTP/1.1; and the SDK's client on it, as a control."""

from __future__ import annotations

import types
from functools import partial
from typing import Any

import mcp
import pytest
import trio
import trio.testing
from scripted_peer import ADD, ADDED, Answer, Peer, meet

from trio_mcp_resilient import testing
from trio_mcp_resilient.testing import (
    RpcError,
    SeenRequest,
    ToolContext,
    open_scripted_server,
)


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


# Its block.


async def test_the_block_raises_what_it_raised(autojump_clock: trio.testing.MockClock) -> None:
    with pytest.raises(KeyError, match="mine"):
        async with open_scripted_server() as server:
            await meet(server)
            raise KeyError("mine")


class Fatal(BaseException):
    """Like a KeyboardInterrupt, without its special treatment."""


@pytest.mark.parametrize("error", [AssertionError, KeyError, Fatal])
@pytest.mark.parametrize("where", ["tool", "observer", "matcher", "method"])
def test_what_the_tests_own_functions_raise_ends_the_block(where: str, error: type[BaseException]) -> None:
    def suspicious(*_: object) -> Any:
        raise error("never called with this")

    survived: list[str] = []

    async def main() -> None:
        async with open_scripted_server() as server:
            peer = await meet(server)
            if where == "tool":
                server.tool("suspicious", suspicious)
            elif where == "observer":
                server.on_request(suspicious)
            elif where == "matcher":
                server.answer(500, when=suspicious)
            else:
                server.methods["tools/call"] = suspicious
            await peer.send("POST", peer.tool_call("suspicious"))
            await trio.sleep(1)
            survived.append(where)
            answer = await peer.receive(Answer())
            assert answer.messages[0]["result"]["isError"]

    # Not within a test's nursery: it would let a stray cancellation pass.
    def run() -> None:
        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))

    if where == "tool" and error is KeyError:
        # This is the tool's own error, for the client to hear.
        run()
        assert survived
        return
    with pytest.raises(BaseExceptionGroup if error is Fatal else error):
        run()
    assert not survived


async def test_cancelling_the_block_is_a_cancellation(autojump_clock: trio.testing.MockClock) -> None:
    with trio.move_on_after(5) as scope:
        async with open_scripted_server() as server:
            await meet(server)
            await trio.sleep_forever()
    assert scope.cancelled_caught


@pytest.mark.parametrize("name", sorted(name for name in vars(testing) if name[0].isalpha()))
def test_shows_the_public_path(name: str) -> None:
    value = getattr(testing, name)
    if isinstance(value, type | types.FunctionType):
        assert value.__module__ == "trio_mcp_resilient.testing"
        assert (value.__doc__ or "").strip() and not (value.__doc__ or "").startswith(f"{name}(")


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
