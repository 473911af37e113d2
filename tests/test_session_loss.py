"""Six ways in which servers refuse a lost session, after the conformance suite's proposed scenario.

Session A is lost at the first `tools/call`. A client that recovers initializes again without the
session header and makes the call again on session B. The control is the plain SDK client.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import h11
import pytest
import trio
from mcp import Client as SdkClient
from mcp import MCPError
from mcp_types import CallToolResult, TextContent

from trio_mcp_resilient import is_session_terminated, open_client

SESSION_A, SESSION_B = "A" * 8, "B" * 8


@dataclass(frozen=True)
class Answer:
    """One HTTP answer."""

    status: int
    content_type: str = ""
    body: bytes = b""
    session_id: str = ""


def rpc_error(status: int, error: dict[str, Any], **more: Any) -> Answer:
    body = {"jsonrpc": "2.0", **more, "error": error}
    return Answer(status, "application/json", json.dumps(body).encode())


REFUSALS = {
    "404-rpc": rpc_error(404, {"code": -32600, "message": "Session not found"}, id=None),
    "404-32001": rpc_error(404, {"code": -32001, "message": "Session not found"}, id=None),
    "404-empty": Answer(404),
    "404-html": Answer(404, "text/html", b"<h1>Not Found</h1>"),
    "400-text": Answer(400, "text/html", b"Invalid or missing session ID"),
    "400-rpc": rpc_error(400, {"code": -32000, "message": "Bad Request: No valid session ID provided"}),
}


@dataclass
class LossyServer:
    """Speaks MCP over HTTP, forgets session A at its first `tools/call`, and notes all it is sent."""

    refusal: Answer
    received: list[tuple[str, str | None]] = field(default_factory=list)
    """JSON-RPC or HTTP method, and the session id that came with it."""
    port: int = 0
    _a_is_lost: bool = False

    def session_ids_of(self, method: str) -> list[str | None]:
        return [session_id for name, session_id in self.received if name == method]

    async def serve(self, stream: trio.SocketStream) -> None:
        """Answer one connection's requests until the client closes it."""
        connection = h11.Connection(h11.SERVER)
        async with stream:
            while (request := await self._next_event(connection, stream)) is not None:
                if not isinstance(request, h11.Request):
                    break
                body = b""
                while isinstance(data := await self._next_event(connection, stream), h11.Data):
                    body += bytes(data.data)
                await stream.send_all(_encoded(connection, self.answer(request, body)))
                connection.start_next_cycle()

    @staticmethod
    async def _next_event(connection: h11.Connection, stream: trio.SocketStream) -> h11.Event | None:
        while (event := connection.next_event()) is h11.NEED_DATA:
            try:
                connection.receive_data(await stream.receive_some())
            except trio.BrokenResourceError:
                return None
        return event if isinstance(event, h11.Request | h11.Data | h11.EndOfMessage) else None

    def answer(self, request: h11.Request, body: bytes) -> Answer:
        """Judge one request: the whole behavior of the server."""
        headers = dict(request.headers)
        raw_id = headers.get(b"mcp-session-id")
        session_id = None if raw_id is None else raw_id.decode()
        if request.method != b"POST":
            self.received.append((request.method.decode(), session_id))
            return Answer(405 if request.method == b"GET" else 200)
        message = json.loads(body)
        method = message["method"]
        self.received.append((method, session_id))
        if method == "initialize":
            return self._initialized(message)
        if session_id == SESSION_A and (method == "tools/call" or self._a_is_lost):
            self._a_is_lost = True
            return self.refusal
        if "id" not in message:
            return Answer(202)
        return _result(message, RESULTS.get(method, {}))

    def _initialized(self, message: dict[str, Any]) -> Answer:
        result = {
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "lossy", "version": "1"},
        }
        number = len(self.session_ids_of("initialize"))
        return _result(message, result, session_id="ABCDEFGH"[number - 1] * 8)


RESULTS: dict[str, dict[str, Any]] = {
    "tools/list": {"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]},
    "tools/call": {"content": [{"type": "text", "text": "ok"}]},
}


def _result(message: dict[str, Any], result: dict[str, Any], session_id: str = "") -> Answer:
    body = {"jsonrpc": "2.0", "id": message["id"], "result": result}
    return Answer(200, "application/json", json.dumps(body).encode(), session_id)


def _encoded(connection: h11.Connection, answer: Answer) -> bytes:
    headers = [("content-length", str(len(answer.body)))]
    if answer.content_type:
        headers.append(("content-type", answer.content_type))
    if answer.session_id:
        headers.append(("mcp-session-id", answer.session_id))
    events = (
        h11.Response(status_code=answer.status, headers=headers),
        h11.Data(data=answer.body),
        h11.EndOfMessage(),
    )
    return b"".join(connection.send(event) or b"" for event in events)


@asynccontextmanager
async def lossy_server(variant: str) -> AsyncGenerator[tuple[LossyServer, str], None]:
    """Run one on a real socket of loopback; yields it and its URL."""
    server = LossyServer(REFUSALS[variant])
    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = listeners[0].socket.getsockname()[1]
        nursery.start_soon(trio.serve_listeners, server.serve, listeners)
        yield server, f"http://127.0.0.1:{port}/mcp"
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("variant", REFUSALS)
async def test_the_call_that_meets_the_loss_is_made_again_on_a_new_session(variant: str) -> None:
    async with lossy_server(variant) as (server, url):
        async with open_client(url, mode="legacy") as client:
            result = await client.call_tool("echo", {})
        assert isinstance(result, CallToolResult)
        assert result.content == [TextContent(type="text", text="ok")]
        # The second handshake carries no id, above all not the lost one.
        assert server.session_ids_of("initialize") == [None, None]
        assert server.session_ids_of("tools/call") == [SESSION_A, SESSION_B]
        # The lost session is not said goodbye to; the live one is.
        assert server.session_ids_of("DELETE") == [SESSION_B]


@pytest.mark.parametrize("variant", REFUSALS)
async def test_control_the_plain_sdk_client_stays_on_the_lost_session(variant: str) -> None:
    async with lossy_server(variant) as (server, url):
        async with SdkClient(url, mode="legacy") as client:
            for _ in range(2):
                with pytest.raises(MCPError) as raised:
                    await client.call_tool("echo", {})
                # The SDK says so only when the server's answer has no JSON-RPC error of its own.
                assert is_session_terminated(raised.value) is (variant in {"404-empty", "404-html"})
        assert server.session_ids_of("initialize") == [None]
        assert set(server.session_ids_of("tools/call")) == {SESSION_A}
