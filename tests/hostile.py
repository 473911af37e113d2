"""A server that does what a test tells it to, byte by byte, and a client that talks to it."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import trio
from trio.testing import wait_all_tasks_blocked

from tests.http_peer import FarEnd, Peer, tolerant
from tests.kit import STEADY
from trio_mcp_resilient import Client, TrioHTTPTransport, open_client

URL = "http://hostile.example/mcp"
SESSION = "0a1b2c3d-hostile-session"
CAPABILITIES = {"tools": {}}
ACCEPTED = b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n"
NOT_OFFERED = b"HTTP/1.1 405 Method Not Allowed\r\ncontent-length: 0\r\n\r\n"
GONE = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"
MIB = 1024 * 1024


@dataclass(frozen=True)
class Heard:
    """One request, as it arrived."""

    http_method: str
    headers: dict[str, str]
    message: dict[str, Any]
    end: FarEnd

    @property
    def rpc(self) -> str:
        """The JSON-RPC method, or the HTTP method of what has none."""
        return str(self.message.get("method", self.http_method))

    @property
    def id(self) -> Any:
        """The JSON-RPC id."""
        return self.message.get("id")


Answer = Callable[[Heard], "bytes | Awaitable[None] | None"]
"""Gives the bytes to send, or sends its own, or None for what a well-behaved server would send."""


def http(body: bytes, *fields: str, status: int = 200) -> bytes:
    """A whole answer."""
    lines = [f"HTTP/1.1 {status} Some Reason", f"content-length: {len(body)}", *fields]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


def said(message: object, *fields: str, status: int = 200) -> bytes:
    """A whole answer of one JSON text."""
    body = message if isinstance(message, bytes) else json.dumps(message).encode()
    return http(body, "content-type: application/json", *fields, status=status)


def envelope(**members: Any) -> dict[str, Any]:
    """A JSON-RPC message."""
    return {"jsonrpc": "2.0", **members}


def result_of(heard: Heard, text: str = "3") -> dict[str, Any]:
    """The answer to `tools/call`."""
    return envelope(id=heard.id, result={"content": [{"type": "text", "text": text}]})


def introduction(heard: Heard, version: str = "2025-11-25") -> dict[str, Any]:
    """The answer to `initialize`."""
    info = {"name": "hostile", "version": "1"}
    return envelope(
        id=heard.id, result={"protocolVersion": version, "capabilities": CAPABILITIES, "serverInfo": info}
    )


def chunk(data: bytes) -> bytes:
    """One chunk of a body."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(message: object = None, *lines: str) -> bytes:
    """One event, as a chunk."""
    data = [] if message is None else [f"data: {json.dumps(message)}"]
    return chunk("".join(f"{line}\n" for line in [*lines, *data, ""]).encode())


def behaved(heard: Heard) -> bytes:
    """What a well-behaved server without a GET stream answers."""
    if heard.http_method != "POST":
        return NOT_OFFERED
    if heard.rpc == "server/discover":
        return said(envelope(id=heard.id, error={"code": -32601, "message": "Method not found"}), status=404)
    if heard.rpc == "initialize":
        return said(introduction(heard), f"mcp-session-id: {SESSION}")
    if heard.id is None or heard.rpc == "POST":
        return ACCEPTED
    if heard.rpc == "tools/list":
        tool = {"name": "add", "inputSchema": {"type": "object"}}
        return said(envelope(id=heard.id, result={"tools": [tool]}))
    return said(result_of(heard) if heard.rpc == "tools/call" else envelope(id=heard.id, result={}))


class Hostile:
    """The server."""

    def __init__(self, nursery: trio.Nursery, answer: Answer) -> None:
        self.answer = answer
        self.heard: list[Heard] = []
        self.peer = Peer(nursery, tolerant(self._serve))
        self.connect = self.peer.connect

    def count(self, rpc: str) -> int:
        """How many requests of one method arrived."""
        return sum(heard.rpc == rpc for heard in self.heard)

    async def _serve(self, end: FarEnd) -> None:
        while (body := await end.request()) is not None:
            head = end.requests[-1][0]
            headers = {name.decode(): value.decode("latin-1") for name, value in head.headers}
            message = json.loads(body) if body else {}
            heard = Heard(head.method.decode(), headers, message, end)
            self.heard.append(heard)
            answer = self.answer(heard)
            if answer is None:
                answer = behaved(heard)
            if isinstance(answer, bytes):
                await end.send(answer, size=MIB)
            else:
                await answer
        await end.finish()


@asynccontextmanager
async def open_hostile(answer: Answer) -> AsyncGenerator[Hostile, None]:
    """The server alone."""
    async with trio.open_nursery() as nursery:
        yield Hostile(nursery, answer)
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def open_victim(answer: Answer, **options: Any) -> AsyncGenerator[tuple[Hostile, Client], None]:
    """The server, and a client of it that is ready."""
    options = {"backoff": STEADY, "get_stream": False, **options}
    async with open_hostile(answer) as server:
        async with open_client(URL, connect=server.connect, **options) as client:
            yield server, client


def to(**answers: bytes | Callable[[Heard], Any]) -> Answer:
    """Answer the methods that are named, and behave otherwise; `tools_call` names `tools/call`."""
    table: Mapping[str, Any] = {name.replace("_", "/"): answer for name, answer in answers.items()}

    def answer(heard: Heard) -> Any:
        found = table.get(heard.rpc)
        return found(heard) if callable(found) else found

    return answer


@contextmanager
def peak(limit: int) -> Generator[None, None, None]:
    """Fail if more than `limit` bytes are held at once, beyond what was held before."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        yield
        grown = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert grown < limit, f"{grown / MIB:.1f} MiB were held at once"


NOTE = {"method": "notifications/message", "params": {"level": "info", "data": "x"}}


class Bearer(httpx.Auth):
    def auth_flow(self, request: httpx.Request) -> Any:
        request.headers["authorization"] = "Bearer t"
        yield request


def endless(head: bytes, piece: bytes, sent: list[int]) -> Callable[[Heard], Any]:
    """Send a head, then pieces until the client has enough, counting the bytes."""

    async def send(heard: Heard) -> None:
        await heard.end.send(head)
        while True:
            await heard.end.send(piece)
            sent.append(len(piece))
            await wait_all_tasks_blocked()

    return send


def flood(*messages: bytes) -> Callable[[Heard], bytes]:
    """Answer a call on a stream, after so many messages."""
    return lambda heard: STREAM + b"".join(messages) + event(result_of(heard)) + END


CLIENTS = ["plain", "with auth", "the application's", "the application's, on httpx's own transport"]


@asynccontextmanager
async def open_reached(answer: Any, how: str) -> AsyncGenerator[Any, None]:
    """A server and a client, by each of the ways that a request can go out."""
    if not how.startswith("the application's"):
        async with open_victim(answer, auth=Bearer() if how == "with auth" else None) as (_, client):
            yield client
        return
    async with open_hostile(answer) as server:
        transport: httpx.AsyncBaseTransport = TrioHTTPTransport(connect=server.connect)
        if how.endswith("own transport"):
            transport = Strange(transport)
        async with httpx.AsyncClient(transport=transport) as http_client:
            options: dict[str, Any] = {"http_client": http_client, "backoff": STEADY, "get_stream": False}
            async with open_client(URL, **options) as client:
                yield client


class Strange(httpx.AsyncBaseTransport):
    """Somebody else's transport: its responses bring none of ours along."""

    def __init__(self, inner: httpx.AsyncBaseTransport) -> None:
        self._inner = inner

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await self._inner.handle_async_request(request)
        response.extensions = {}
        return response
