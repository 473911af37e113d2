"""The server side of HTTP/1.1 over a Trio stream: h11, one connection, one exchange after another.

A connection is read all the time, also while an answer is sent, because that is how a server
learns that its client has left. It says nothing about MCP.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

import h11
import trio

from trio_mcp_resilient._scripted_stream import close, reset


class Over(Exception):
    """Unwinds the handler of an exchange that is over: its connection is gone, or its answer complete."""


class Exchange:
    """One request that was read whole, and the way to answer it."""

    def __init__(self, connection: Connection, request: h11.Request, body: bytes) -> None:
        self.connection = connection
        self.http_method = request.method.decode("ascii")
        self.target = request.target.decode("latin-1")
        self.body = body
        self.headers: dict[str, str] = {}
        for raw_name, raw_value in request.headers:
            name, value = raw_name.decode("ascii"), raw_value.decode("latin-1")
            self.headers[name] = f"{self.headers[name]}, {value}" if name in self.headers else value
        self.bytes_left: int | None = None
        """How many more bytes of the answer may leave before the connection is cut; None for all."""
        self.cut_how = "reset"

    async def respond(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """Send a whole answer."""
        await self.begin(status, {**headers, "content-length": str(len(body))})
        await self.write(body)
        await self.end()

    async def begin(self, status: int, headers: Mapping[str, str]) -> None:
        """Send the head. Without a content length, h11 chunks the body."""
        await self._send(h11.Response(status_code=status, headers=list(headers.items())))

    async def write(self, data: bytes) -> None:
        """Send a part of the body."""
        if data:
            await self._send(h11.Data(data=data))

    async def end(self) -> None:
        """Send what ends the body."""
        await self._send(h11.EndOfMessage())

    def cut(self, how: str) -> None:
        """End the connection, by a `reset` or cleanly below HTTP (`fin`), and unwind."""
        self.connection.cut(how)
        raise Over

    async def _send(self, event: h11.Response | h11.Data | h11.EndOfMessage) -> None:
        data = self.connection.encode(event)
        if self.bytes_left is not None:
            whole = len(data) < self.bytes_left
            data = data[: self.bytes_left]
            self.bytes_left -= len(data)
            await self.connection.send(data)
            if not whole:
                self.cut(self.cut_how)
            return
        await self.connection.send(data)


Handler: TypeAlias = Callable[[Exchange], Awaitable[None]]


class Connection:
    """One connection, for as long as it is open."""

    def __init__(self, number: int, stream: trio.abc.Stream, keep_alive: float) -> None:
        self.number = number
        self._stream = stream
        self._keep_alive = keep_alive
        self._h11 = h11.Connection(h11.SERVER)
        self._arrived = trio.Event()
        self._gone = False
        self.client_left: bool = False
        """Whether the client was the one that ended it."""
        self._exchange_scope: trio.CancelScope | None = None

    def cut(self, how: str) -> None:
        """End it at once, without waiting: `reset` or `fin`."""
        if how == "reset":
            reset(self._stream)
        else:
            close(self._stream)
        self._leave()

    def encode(self, event: h11.Response | h11.Data | h11.EndOfMessage) -> bytes:
        """Return the bytes of an event."""
        return self._h11.send(event) or b""

    async def send(self, data: bytes) -> None:
        """Send bytes, or unwind if nobody is there."""
        try:
            await self._stream.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise Over from error

    async def serve(self, handle: Handler) -> None:
        """Answer requests until either side closes."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._read)
                while not self._gone:
                    exchange = await self._next_request()
                    if exchange is None or not await self._answer(exchange, handle):
                        break
                nursery.cancel_scope.cancel()
        finally:
            close(self._stream)

    async def _answer(self, exchange: Exchange, handle: Handler) -> bool:
        """Run the handler, and return whether the connection can carry another request."""
        with trio.CancelScope() as self._exchange_scope:  # noqa: ASYNC912  # a handler may wait for nothing
            if self._gone:
                # With the last byte of its request, before there was a scope to cancel.
                self._exchange_scope.cancel()
            try:
                await handle(exchange)
            except Over:
                pass
        self._exchange_scope = None
        if self._gone or self._h11.our_state is not h11.DONE or self._h11.their_state is not h11.DONE:
            return False
        self._h11.start_next_cycle()
        return True

    async def _next_request(self) -> Exchange | None:
        request: h11.Request | None = None
        body = bytearray()
        while True:  # noqa: ASYNC913  # without a wait it ends with the bytes at hand
            try:
                event = self._h11.next_event()
            except h11.RemoteProtocolError:
                return None
            if event is h11.NEED_DATA:
                # Only a connection between two requests is idle.
                limit = self._keep_alive if self._h11.their_state is h11.IDLE else math.inf
                # One that was cut has no reader left to wake this task once more.
                if self._gone or not await self._wait_for_data(limit):
                    return None
            elif isinstance(event, h11.Request):
                request = event
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage) and request is not None:
                return Exchange(self, request, bytes(body))
            else:
                return None

    async def _wait_for_data(self, seconds: float) -> bool:
        with trio.move_on_after(seconds):
            await self._arrived.wait()
            self._arrived = trio.Event()
            return True
        return False

    async def _read(self) -> None:
        while not self._gone:
            try:
                data = await self._stream.receive_some(65536)
                self._h11.receive_data(bytes(data))
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                data = b""
            self._arrived.set()
            if not data:
                self.client_left = not self._gone
                self._leave()

    def _leave(self) -> None:
        self._gone = True
        self._arrived.set()
        if self._exchange_scope is not None:
            self._exchange_scope.cancel()
