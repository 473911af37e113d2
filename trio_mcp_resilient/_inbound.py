"""What the server sends of its own accord: notifications, requests, and their order.

Notifications are handed over one after another in the order of the wire, by one task of the
client's, so that a handler is not cut off because a session ended. It begins with the first of
them: most clients are never told of anything. Requests are answered concurrently, each in the
nursery of the generation that asked.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextvars import Context, copy_context
from typing import Any, Protocol

import anyio
import trio
from mcp.shared.dispatcher import (
    CallOptions,
    OnNotify,
    OnNotifyIntercept,
    OnRequest,
    Outbound,
    run_notify_intercept,
)
from mcp.shared.jsonrpc_dispatcher import handler_exception_to_error_data
from mcp.shared.transport_context import TransportContext
from mcp_types import INTERNAL_ERROR, ErrorData

from trio_mcp_resilient._jsonrpc import Notification, Request, RequestId, encode_error, encode_result
from trio_mcp_resilient._secrets import one_line

logger = logging.getLogger("trio_mcp_resilient")

MAX_UNDELIVERED = 1024
"""Notifications that wait for a slow handler; beyond it the oldest is dropped, since holding
the stream back could make a handler wait for an answer that waits behind it."""
MAX_UNDELIVERED_BYTES = 16 * 1024 * 1024
"""How large those that wait may be together, as they were on the wire; one may be as large alone."""


class Asker(Protocol):
    """The generation a request came from, as far as answering it goes."""

    @property
    def is_closed(self) -> bool:
        """Whether its nursery takes no more tasks."""
        ...

    @property
    def takes_requests(self) -> bool:
        """Whether a request of the server's is answered at all."""
        ...

    async def answer(self, body: bytes) -> None:
        """POST an answer on the session that asked."""
        ...


class InboundContext:
    """The SDK's `DispatchContext` for one inbound message."""

    def __init__(
        self, back: Outbound, request_id: RequestId | None, progress_token: RequestId | None
    ) -> None:
        self._back = back
        self._progress_token = progress_token
        self.request_id = request_id
        self.transport = TransportContext(kind="streamable-http", can_send_request=True)
        self.can_send_request = True
        self.message_metadata = None
        self.cancel_requested = anyio.Event()

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> dict[str, Any]:
        """Send a request of the client's own while handling the server's."""
        return await self._back.send_raw_request(method, params, opts)

    async def notify(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> None:
        """Send a notification while handling a request."""
        await self._back.notify(method, params, opts)

    async def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """Report progress of the request being handled, if the server asked for it."""
        if self._progress_token is None:
            await trio.lowlevel.checkpoint()
            return
        params = {
            "progressToken": self._progress_token,
            "progress": progress,
            "total": total,
            "message": message,
        }
        known = {name: value for name, value in params.items() if value is not None}
        await self._back.notify("notifications/progress", known)


class Inbound:
    """The way from the wire to the SDK session's handlers."""

    def __init__(self, back: Outbound) -> None:
        self._back = back
        self._on_request: OnRequest | None = None
        self._on_notify: OnNotify | None = None
        self._intercept: OnNotifyIntercept | None = None
        self._nursery: trio.Nursery | None = None
        self._context: Context
        self._queue: trio.MemorySendChannel[Notification] | None = None
        self._waiting: trio.MemoryReceiveChannel[Notification]
        self._bytes = 0
        self.dropped: int = 0

    def attach(
        self,
        on_request: OnRequest,
        on_notify: OnNotify,
        on_notify_intercept: OnNotifyIntercept | None,
        nursery: trio.Nursery,
    ) -> None:
        """Take the handlers that `Dispatcher.run` was given, and the nursery to run them in."""
        self._on_request = on_request
        self._on_notify = on_notify
        self._intercept = on_notify_intercept
        self._nursery = nursery
        # Handlers run as work of whoever opened the client, and not of the call whose answer
        # happened to bring the notification.
        self._context = copy_context()

    def detach(self) -> None:
        """Take nothing more: the nursery is about to close."""
        self._nursery = None

    def notification(self, notification: Notification) -> None:
        """Take a notification, in wire order, without blocking."""
        if run_notify_intercept(self._intercept, notification.method, notification.params):
            return
        if self._nursery is None:
            logger.debug("dropped a notification: the client is closed")
            return
        if self._queue is None:
            self._queue, waiting = trio.open_memory_channel[Notification](MAX_UNDELIVERED)
            self._waiting = waiting
            self._context.run(self._nursery.start_soon, self._hand_over)
        self._make_room(notification.size)
        self._queue.send_nowait(notification)
        self._bytes += notification.size

    def _make_room(self, size: int) -> None:
        """Drop the oldest that wait, until one more fits."""
        waiting = self._waiting.statistics().current_buffer_used
        while waiting and (waiting >= MAX_UNDELIVERED or self._bytes + size > MAX_UNDELIVERED_BYTES):
            self._bytes -= self._waiting.receive_nowait().size
            waiting -= 1
            self.dropped += 1
            if is_milestone(self.dropped):
                logger.warning("%d notifications dropped, for a handler is too slow", self.dropped)

    async def _hand_over(self) -> None:
        """Hand over what comes until cancelled; a handler that raises costs only its own."""
        # Without a checkpoint before the first: a request that came after it must not overtake it.
        notification = self._waiting.receive_nowait()
        while True:
            self._bytes -= notification.size
            assert self._on_notify is not None
            context = InboundContext(self._back, None, None)
            try:
                await self._on_notify(context, notification.method, notification.params)
            except Exception:
                logger.exception("the handler of %s raised", one_line(notification.method))
            notification = await self._waiting.receive()

    async def request(self, request: Request, asker: Asker) -> None:
        """Run the handler of a server's request and POST what it gave on the session that asked."""
        assert self._on_request is not None
        context = InboundContext(self._back, request.id, _progress_token(request.params))
        try:
            body = encode_result(request.id, await self._on_request(context, request.method, request.params))
        except Exception as error:
            known = handler_exception_to_error_data(error)
            if known is None:
                logger.exception("the handler of %s raised", one_line(request.method))
                known = ErrorData(code=INTERNAL_ERROR, message="the client's handler failed")
            body = encode_error(request.id, known.code, known.message, known.data)
        await asker.answer(body)


def _progress_token(params: Mapping[str, Any] | None) -> RequestId | None:
    match params:
        case {"_meta": {"progressToken": str() | int() as token}} if not isinstance(token, bool):
            return token
        case _:
            return None


def is_milestone(count: int) -> bool:
    """Whether a count is a power of two: what a server can cause at will must not fill the log."""
    return count & (count - 1) == 0
