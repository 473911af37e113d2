"""A connection in memory that can end in each of the ways a TCP connection can.

`trio.testing.memory_stream_pair` knows only one end, the clean one, and cannot be asked whether
something waits to be read. A client must tell a FIN from a reset, and must probe an idle
connection before it writes on it, so the pair is made anew here.
"""

from __future__ import annotations

import operator
from collections.abc import Callable

import trio


class _Pipe:
    """One direction: unbounded, with an end that is clean or not."""

    __slots__ = ("broken", "data", "ended", "reader_gone", "waiting")

    def __init__(self) -> None:
        self.data: bytearray = bytearray()
        self.ended: bool = False
        self.broken: bool = False
        self.reader_gone: bool = False
        self.waiting: trio.lowlevel.ParkingLot = trio.lowlevel.ParkingLot()

    @property
    def readable(self) -> bool:
        return bool(self.data) or self.ended or self.broken

    def put(self, data: bytes) -> None:
        self.data += data
        self.waiting.unpark_all()

    def end(self) -> None:
        self.ended = True
        self.waiting.unpark_all()

    def abort(self) -> None:
        self.broken = True
        self.waiting.unpark_all()


class MemoryStream(trio.abc.HalfCloseableStream):
    """One side of a connection in memory; `memory_connection` makes both.

    Beside what every stream has: `close` and `reset` are synchronous, and `is_readable` tells
    whether data or an end is waiting, as `trio.socket.SocketType.is_readable` does.
    """

    def __init__(self, incoming: _Pipe, outgoing: _Pipe) -> None:
        self._in = incoming
        self._out = outgoing
        self._closed = False
        self._sending = False
        self._receiving = False
        self.admits: Callable[[bytes], int | None] | None = None
        """Asked before bytes leave this side: how many may, before the connection is reset; None for all."""

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Give bytes to the other side, which has room for any number.

        Raises:
            trio.BrokenResourceError: the other side closed or reset the connection.
            trio.ClosedResourceError: this side did.
            trio.BusyResourceError: another task is sending.

        Cancellation: nothing was sent. Checkpoint: always.
        """
        if self._sending:
            raise trio.BusyResourceError("another task is sending on this stream")
        self._sending = True
        try:
            await trio.lowlevel.checkpoint()
            self._check_sendable()
            if self._out.ended:
                raise trio.ClosedResourceError("send_eof was called")
            self._put(bytes(data))
        finally:
            self._sending = False

    def _check_sendable(self) -> None:
        if self._closed:
            raise trio.ClosedResourceError("this stream was closed")
        if self._out.broken or self._out.reader_gone:
            raise trio.BrokenResourceError("the other side is gone")

    def _put(self, data: bytes) -> None:
        admitted = None if self.admits is None else self.admits(data)
        if admitted is None:
            self._out.put(data)
            return
        self._out.put(data[:admitted])
        self.reset()
        raise trio.BrokenResourceError("the other side reset the connection")

    async def wait_send_all_might_not_block(self) -> None:
        """Return at once: there is always room.

        Raises what `send_all` does. Cancellation: nothing happened. Checkpoint: always.
        """
        if self._sending:
            raise trio.BusyResourceError("another task is sending on this stream")
        self._sending = True
        try:
            await trio.lowlevel.checkpoint()
            self._check_sendable()
        finally:
            self._sending = False

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Return what has come, or `b""` if the other side closed cleanly.

        Raises:
            trio.BrokenResourceError: the connection was reset. What came before is read first.
            trio.ClosedResourceError: this side was closed, perhaps while this call waited.
            trio.BusyResourceError: another task is receiving.

        Cancellation: nothing was taken. Checkpoint: always.
        """
        if max_bytes is not None and operator.index(max_bytes) < 1:
            raise ValueError("max_bytes must be at least 1")
        if self._receiving:
            raise trio.BusyResourceError("another task is receiving on this stream")
        self._receiving = True
        try:
            await trio.lowlevel.checkpoint()
            while not self._closed and not self._in.readable:
                await self._in.waiting.park()
        finally:
            self._receiving = False
        if self._closed:
            raise trio.ClosedResourceError("this stream was closed")
        return self._take(max_bytes)

    def _take(self, max_bytes: int | None) -> bytes:
        data = self._in.data
        if not data and self._in.broken:
            raise trio.BrokenResourceError("the connection was reset")
        taken = bytes(data if max_bytes is None else data[:max_bytes])
        del data[: len(taken)]
        return taken

    async def send_eof(self) -> None:
        """End this direction cleanly, and keep receiving.

        Raises what `send_all` does. Cancellation: it is not ended. Checkpoint: always.
        """
        if self._sending:
            raise trio.BusyResourceError("another task is sending on this stream")
        await trio.lowlevel.checkpoint()
        self._check_sendable()
        self._out.end()

    def is_readable(self) -> bool:
        """Whether `receive_some` would return or raise at once."""
        return self._closed or self._in.readable

    def close(self) -> None:
        """Close both directions cleanly (FIN). Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._out.end()
        self._in.reader_gone = True
        self._in.data.clear()
        self._in.waiting.unpark_all()

    def reset(self) -> None:
        """Close both directions abruptly (RST): the other side's next read or write fails."""
        self._out.abort()
        self._in.abort()

    async def aclose(self) -> None:
        """Close both directions cleanly.

        Cancellation: they are closed all the same. Checkpoint: always.
        """
        self.close()
        await trio.lowlevel.checkpoint()


def memory_connection() -> tuple[MemoryStream, MemoryStream]:
    """Return the two sides of a new connection."""
    one, other = _Pipe(), _Pipe()
    return MemoryStream(one, other), MemoryStream(other, one)


def reset(stream: trio.abc.Stream) -> None:
    """Reset a connection in memory, or one over TCP."""
    if isinstance(stream, MemoryStream):
        stream.reset()
    elif isinstance(stream, trio.SocketStream):
        # A linger of zero seconds is how a socket is told to send RST rather than FIN.
        stream.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        stream.socket.close()


def close(stream: trio.abc.Stream) -> None:
    """Close a connection in memory, or one over TCP, without waiting."""
    if isinstance(stream, MemoryStream):
        stream.close()
    elif isinstance(stream, trio.SocketStream):
        stream.socket.close()
