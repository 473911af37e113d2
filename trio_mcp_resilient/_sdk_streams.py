"""The two streams that the SDK's session reads from and writes to, our side of them.

No anyio memory streams: a message that is written is taken in the writer's own task, so what it
starts inherits the caller's context variables, and no task stands between only to carry it.
"""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextvars import Context, copy_context
from types import TracebackType
from typing import Self

import anyio
import trio
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCMessage, JSONRPCNotification
from pydantic_core import to_json

from trio_mcp_resilient._inbound import is_milestone

logger = logging.getLogger("trio_mcp_resilient")

MAX_UNREAD = 1024
MAX_UNREAD_BYTES = 16 * 1024 * 1024
"""Notifications that wait to be read, and how large they may be together; more are dropped, so that
a server cannot make the client grow. Whatever else is put is one message for each call or handler,
and those are bounded."""


class _Stream(ABC):
    """What both streams are: context managers that close themselves."""

    async def aclose(self) -> None:
        """Close the stream. A checkpoint."""
        self.close()
        await trio.lowlevel.checkpoint()

    @abstractmethod
    def close(self) -> None:
        """Close the stream, without waiting."""

    async def __aenter__(self) -> Self:
        await trio.lowlevel.checkpoint()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        # Not `aclose`: a checkpoint here could put a cancellation in the place of what was raised.
        self.close()


class ReadStream(_Stream):
    """What the SDK's session reads: messages in the order they were put."""

    def __init__(self) -> None:
        self._send, self._receive = trio.open_memory_channel[tuple[Context, JSONRPCMessage, int]](math.inf)
        self._bytes = 0
        self._dropped = 0
        self.last_context: Context | None = None
        """The context in which the message read last was put: the session handles it in that one."""

    def put(self, message: JSONRPCMessage) -> None:
        """Hand over a message, without waiting; it is dropped if nobody reads any more."""
        unread, size = self._send.statistics().current_buffer_used, 0
        if isinstance(message, JSONRPCNotification) and unread:
            size = len(to_json(message.params))
            if unread >= MAX_UNREAD or self._bytes + size > MAX_UNREAD_BYTES:
                self._dropped += 1
                if is_milestone(self._dropped):
                    logger.warning("%d notifications dropped, for nobody reads them", self._dropped)
                return
        try:
            self._send.send_nowait((copy_context(), message, size))
            self._bytes += size
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            logger.debug("dropped a message: the session that read it is closed")

    def end(self) -> None:
        """Let the reader come to an end once it has read everything."""
        self._send.close()

    def close(self) -> None:
        """Stop reading."""
        self._send.close()
        self._receive.close()

    async def receive(self) -> SessionMessage:
        """Wait for the next message. Raises `anyio.EndOfStream` after the last."""
        try:
            self.last_context, message, size = await self._receive.receive()
        except trio.EndOfChannel:
            raise anyio.EndOfStream from None
        except trio.ClosedResourceError:
            raise anyio.ClosedResourceError from None
        self._bytes -= size
        return SessionMessage(message)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None


class WriteStream(_Stream):
    """What the SDK's session writes to: each message is taken at once, in the writer's task."""

    def __init__(self, take: Callable[[SessionMessage], Awaitable[None]], closed: Callable[[], None]) -> None:
        self._take = take
        self._closed = closed
        self._is_closed = False

    async def send(self, item: SessionMessage, /) -> None:
        """Have a message taken. Raises `anyio.ClosedResourceError` after `close`."""
        if self._is_closed:
            await trio.lowlevel.checkpoint()
            raise anyio.ClosedResourceError
        await self._take(item)

    def close(self) -> None:
        """Take nothing any more, and say so to whoever took it."""
        if not self._is_closed:
            self._is_closed = True
            self._closed()
