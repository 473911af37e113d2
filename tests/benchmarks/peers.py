"""The peers: each opens a connection to the server and yields an async function that makes one call.

Each imports what it needs only when it is used, because not all of it is in every environment.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

Call = Callable[[], Awaitable[str]]
"""Make one call of the tool `add` and return the text of its answer."""

NAME = "add"
ARGUMENTS = {"a": 1, "b": 2}
ANSWER = "3"
HEADERS = {
    "accept": "application/json, text/event-stream",
    "content-type": "application/json",
    "mcp-protocol-version": "2025-11-25",
}
BODY = json.dumps(
    {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": NAME, "arguments": ARGUMENTS}}
).encode()
INITIALIZE = json.dumps(
    {
        "jsonrpc": "2.0",
        "id": 0,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "loop", "version": "1"},
        },
    }
).encode()
READ_BYTES = 65536


@asynccontextmanager
async def ours(url: str) -> AsyncIterator[Call]:
    """This package."""
    from trio_mcp_resilient import open_client

    async with open_client(url, mode="legacy") as client:

        async def call() -> str:
            result: Any = await client.call_tool(NAME, ARGUMENTS)
            return str(result.content[0].text)

        yield call


@asynccontextmanager
async def mcp2(url: str) -> AsyncIterator[Call]:
    """The client of the SDK's 2.x line."""
    from mcp import Client

    async with Client(url, mode="legacy") as client:

        async def call() -> str:
            result: Any = await client.call_tool(NAME, ARGUMENTS)
            return str(result.content[0].text)

        yield call


@asynccontextmanager
async def mcp1(url: str) -> AsyncIterator[Call]:
    """The client of the SDK's 1.x line."""
    from mcp import ClientSession
    from mcp.client.streamable_http import streamablehttp_client  # type: ignore[attr-defined, unused-ignore]

    async with streamablehttp_client(url) as (receive, send, _), ClientSession(receive, send) as session:
        await session.initialize()

        async def call() -> str:
            result: Any = await session.call_tool(NAME, ARGUMENTS)
            return str(result.content[0].text)

        yield call


@asynccontextmanager
async def fastmcp(url: str) -> AsyncIterator[Call]:
    """FastMCP's client, which runs on the SDK's."""
    import fastmcp  # type: ignore[import-not-found, unused-ignore]

    async with fastmcp.Client(url) as client:

        async def call() -> str:
            result: Any = await client.call_tool(NAME, ARGUMENTS)
            return str(result.content[0].text)

        yield call


@asynccontextmanager
async def httpx_loop(url: str) -> AsyncIterator[Call]:
    """A POST by httpx on its own transport, as many connections as there are calls, and json.loads."""
    import httpx

    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(limits=limits, timeout=None) as client:
        opened = await client.post(url, content=INITIALIZE, headers=HEADERS)
        headers = {**HEADERS, "mcp-session-id": opened.headers["mcp-session-id"]}

        async def call() -> str:
            response = await client.post(url, content=BODY, headers=headers)
            return text_in(response.content)

        yield call


@asynccontextmanager
async def h11_loop(url: str) -> AsyncIterator[Call]:
    """h11 over Trio streams, a plain list of idle connections, and json.loads: the least HTTP can cost."""
    import h11
    import trio

    host, port = address(url)
    idle: list[tuple[trio.SocketStream, h11.Connection]] = []

    async def post(body: bytes, headers: dict[str, str]) -> tuple[h11.Response, bytes]:
        if idle:
            stream, connection = idle.pop()
        else:
            stream, connection = await trio.open_tcp_stream(host, port), h11.Connection(h11.CLIENT)
        fields = [("host", host), *headers.items(), ("content-length", str(len(body)))]
        data = connection.send(h11.Request(method="POST", target="/mcp", headers=fields)) or b""
        data += connection.send(h11.Data(data=body)) or b""
        data += connection.send(h11.EndOfMessage()) or b""
        await stream.send_all(data)
        response, content = None, b""
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                connection.receive_data(await stream.receive_some(READ_BYTES))
            elif isinstance(event, h11.Response):
                response = event
            elif isinstance(event, h11.Data):
                content += event.data
            elif isinstance(event, h11.EndOfMessage):
                break
        connection.start_next_cycle()
        idle.append((stream, connection))
        assert response is not None
        return response, content

    opened, _ = await post(INITIALIZE, HEADERS)
    session = dict(opened.headers.raw_items())[b"mcp-session-id"]
    headers = {**HEADERS, "mcp-session-id": session.decode()}

    async def call() -> str:
        _, content = await post(BODY, headers)
        return text_in(content)

    yield call
    for stream, _ in idle:
        await stream.aclose()


@asynccontextmanager
async def socket_loop(url: str) -> AsyncIterator[Call]:
    """Prepared bytes over Trio's sockets, the answer's end found and nothing parsed: the floor."""
    import trio

    host, port = address(url)
    idle: list[trio.socket.SocketType] = []

    async def post(request: bytes) -> bytes:
        if idle:
            connection = idle.pop()
        else:
            connection = trio.socket.socket()
            await connection.connect((host, port))
        await connection.send(request)
        answer = await connection.recv(READ_BYTES)
        if b"chunked" in answer:
            while not answer.endswith(b"0\r\n\r\n"):
                answer += await connection.recv(READ_BYTES)
        idle.append(connection)
        return answer

    opened = await post(prepared(INITIALIZE, HEADERS))
    session = opened.partition(b"mcp-session-id: ")[2].partition(b"\r\n")[0]
    request = prepared(BODY, {**HEADERS, "mcp-session-id": session.decode()})
    expected = json.dumps(ANSWER).encode()

    async def call() -> str:
        answer = await post(request)
        return ANSWER if expected in answer else ""

    yield call
    for connection in idle:
        connection.close()


def address(url: str) -> tuple[str, int]:
    """Return host and port of a URL."""
    parts = urlsplit(url)
    assert parts.hostname is not None and parts.port is not None
    return parts.hostname, parts.port


def prepared(body: bytes, headers: dict[str, str]) -> bytes:
    """Return the bytes of a POST."""
    fields = {"host": "localhost", **headers, "content-length": str(len(body))}
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"POST /mcp HTTP/1.1\r\n{head}\r\n".encode() + body


def text_in(content: bytes) -> str:
    """Return the text of a tool's result in the body of an answer, JSON or one event."""
    message = json.loads(content[content.index(b"{") :])
    return str(message["result"]["content"][0]["text"])


@dataclass(frozen=True)
class Peer:
    """Who is measured, and where it runs."""

    title: str
    open: Callable[[str], AbstractAsyncContextManager[Call]]
    backend: str = "trio"
    environment: str = "main"
    """`main`, or the name of an environment of its own: the SDK's lines exclude each other."""
    calls_factor: int = 1
    """How many times as many calls are measured: of a fast client a few are too short to be timed well."""


PEERS = {
    "ours": Peer("trio_mcp_resilient", ours, calls_factor=5),
    "mcp2-trio": Peer("mcp 2.x client, Trio", mcp2),
    "mcp2-asyncio": Peer("mcp 2.x client, asyncio", mcp2, "asyncio"),
    "mcp1-asyncio": Peer("mcp 1.x client, asyncio", mcp1, "asyncio", "mcp1"),
    "fastmcp": Peer("fastmcp client, asyncio", fastmcp, "asyncio", "fastmcp"),
    "httpx": Peer("httpx loop, Trio", httpx_loop),
    "h11": Peer("h11 loop, Trio", h11_loop, calls_factor=10),
    "socket": Peer("socket loop, Trio", socket_loop, calls_factor=10),
}
"""By the name that the command line knows."""
