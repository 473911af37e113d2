"""The far ends of connections, for tests of HTTP itself: each speaks exactly the bytes it is told to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import h11
import trio

from trio_mcp_resilient._connections import Connections
from trio_mcp_resilient._endpoint import Endpoint
from trio_mcp_resilient._scripted_stream import memory_connection
from trio_mcp_resilient._wire import Response

ENDPOINT = Endpoint.parse("http://peer.example/mcp")
JSON = b'{"jsonrpc":"2.0","id":1,"result":{}}'
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (
    len(JSON),
    JSON,
)
STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
EVENT = b"data: " + JSON + b"\n\n"
EVENT_CHUNK = b"%x\r\n%s\r\n" % (len(EVENT), EVENT)
LAST_CHUNK = b"0\r\n\r\n"


@dataclass
class FarEnd:
    """One accepted connection."""

    stream: trio.abc.Stream
    parser: h11.Connection = field(default_factory=lambda: h11.Connection(h11.SERVER))
    requests: list[tuple[h11.Request, bytes]] = field(default_factory=list)

    async def request(self) -> bytes | None:
        """Wait for a whole request and return its body; None if the connection ended before one began.

        Raises:
            h11.RemoteProtocolError: if what came is no request, or half of one.
        """
        if self.parser.our_state is not h11.IDLE:
            self._restart()
        head, parts = None, []
        while True:
            event = self.parser.next_event()
            if event is h11.NEED_DATA:
                try:
                    data = await self.stream.receive_some(65536)
                except trio.BrokenResourceError:
                    data = b""
                self.parser.receive_data(bytes(data))
            elif isinstance(event, h11.Request):
                head = event
            elif isinstance(event, h11.Data):
                parts.append(bytes(event.data))
            elif isinstance(event, h11.EndOfMessage):
                assert head is not None
                self.requests.append((head, b"".join(parts)))
                return self.requests[-1][1]
            else:
                return None

    def _restart(self) -> None:
        # What we answered, we told the stream and not the parser.
        self.parser.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
        self.parser.send(h11.EndOfMessage())
        self.parser.start_next_cycle()

    async def send(self, data: bytes, *, size: int = 65536) -> None:
        """Send bytes, `size` at a time."""
        for start in range(0, len(data), size):
            await self.stream.send_all(data[start : start + size])

    async def finish(self) -> None:
        """End the connection cleanly."""
        await self.stream.aclose()


Handler = Callable[[FarEnd], Awaitable[None]]
Pair = Callable[[], tuple[trio.abc.Stream, trio.abc.Stream]]


def socket_pair() -> tuple[trio.abc.Stream, trio.abc.Stream]:
    """A connection through the kernel, with its small buffers and its own way of failing."""
    near, far = trio.socket.socketpair()
    return trio.SocketStream(near), trio.SocketStream(far)


class Peer:
    """Accepts any number of connections and runs a handler on each, in a nursery of the test's."""

    def __init__(self, nursery: trio.Nursery, handler: Handler) -> None:
        self.nursery = nursery
        self.handler = handler
        self.ends: list[FarEnd] = []
        self.hosts: list[tuple[str, int]] = []
        self.pair: Pair = memory_connection

    async def connect(self, host: str, port: int) -> trio.abc.Stream:
        """What `Connections` takes its streams from."""
        await trio.lowlevel.checkpoint()
        self.hosts.append((host, port))
        near, far = self.pair()
        self.ends.append(FarEnd(far))
        self.nursery.start_soon(self.handler, self.ends[-1])
        return near

    @property
    def bodies(self) -> list[bytes]:
        """The bodies of all requests that arrived whole, by connection."""
        return [body for end in self.ends for _, body in end.requests]


def answering(answer: bytes, *, size: int = 65536, then_close: bool = False) -> Handler:
    """A handler that gives each request the same answer, `size` bytes at a time."""

    async def handle(end: FarEnd) -> None:
        while await end.request() is not None:
            await end.send(answer, size=size)
            if then_close:
                break
        await end.finish()

    return handle


def tolerant(handler: Handler) -> Handler:
    """The same handler, for a client that may close in the middle of an answer, or of a request."""

    async def handle(end: FarEnd) -> None:
        try:
            await handler(end)
        except (trio.BrokenResourceError, h11.RemoteProtocolError):
            await end.finish()

    return handle


async def read_all(response: Response) -> bytes:
    """Read a body to its end and give the connection back."""
    parts: list[bytes] = []
    while part := await response.receive():
        parts.append(part)
    await response.aclose()
    return b"".join(parts)


async def call(connections: Connections, endpoint: Endpoint = ENDPOINT, body: bytes = b"{}") -> bytes:
    """POST a body and read the whole answer."""
    return await read_all(await connections.request(endpoint, "POST", [], body))
