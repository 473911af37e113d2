"""Which of the server's messages goes where, within one generation.

Progress goes to the call it is about, a request of the server's to a handler in the
generation's nursery, every notification to the client's one queue. Answers are not routed:
each is read by the task that asked.
"""

from __future__ import annotations

import logging
from functools import partial

import trio
from mcp.shared.dispatcher import ProgressFnT, coerce_request_id

from trio_mcp_resilient._flight import Flight
from trio_mcp_resilient._inbound import Asker, Inbound
from trio_mcp_resilient._jsonrpc import Message, Notification, Request, RequestId

logger = logging.getLogger("trio_mcp_resilient")

MAX_HANDLERS = 100
"""How many of the server's requests are handled at a time; more are dropped, so that a hostile
server cannot make the client grow."""


class Router:
    """Where one generation's inbound messages go."""

    def __init__(
        self, asker: Asker, flights: dict[RequestId, Flight], nursery: trio.Nursery, inbound: Inbound
    ) -> None:
        self._asker = asker
        self._flights = flights
        self._nursery = nursery
        self._inbound = inbound
        self._handlers: dict[RequestId, trio.CancelScope] = {}

    async def deliver(self, message: Message, flight: Flight | None = None) -> None:
        """Take one message that is not the answer its stream is for."""
        if isinstance(message, Request):
            if self._asker.takes_requests:
                self._serve(message)
            else:
                logger.debug("dropped a request of the server's: %s", message.method)
        elif isinstance(message, Notification):
            if message.method == "notifications/progress":
                await self._progress(message, flight)
            elif message.method == "notifications/cancelled":
                self._cancel_handler(message)
            self._inbound.notification(message)
        else:
            # A replayed or late answer: whoever asked has gone, or has it already.
            logger.debug("dropped a stray answer")

    async def _progress(self, message: Notification, flight: Flight | None) -> None:
        """Run the caller's progress callback: in its own task if its own stream brought it.

        So progress arrives in order, and none of it after the result.
        """
        params = message.params or {}
        token, progress = params.get("progressToken"), params.get("progress")
        if not isinstance(token, str | int) or isinstance(token, bool):
            return
        target = self._flights.get(coerce_request_id(token))
        if target is None or target.on_progress is None or not isinstance(progress, int | float):
            return
        total, text = params.get("total"), params.get("message")
        report = partial(
            _report,
            target.on_progress,
            float(progress),
            float(total) if isinstance(total, int | float) else None,
            text if isinstance(text, str) else None,
        )
        if target is flight:
            await report()
        elif not self._asker.is_closed:
            self._nursery.start_soon(report)

    def _serve(self, request: Request) -> None:
        if len(self._handlers) >= MAX_HANDLERS:
            logger.warning("too many requests by the server, one dropped")
            return
        scope = self._handlers[coerce_request_id(request.id)] = trio.CancelScope()
        self._nursery.start_soon(self._handle, request, scope)

    async def _handle(self, request: Request, scope: trio.CancelScope) -> None:
        key = coerce_request_id(request.id)
        try:
            with scope:
                await self._inbound.request(request, self._asker)
        finally:
            if self._handlers.get(key) is scope:
                del self._handlers[key]

    def _cancel_handler(self, message: Notification) -> None:
        request_id = (message.params or {}).get("requestId")
        if isinstance(request_id, str | int) and not isinstance(request_id, bool):
            scope = self._handlers.get(coerce_request_id(request_id))
            if scope is not None:
                scope.cancel(reason="the server took its request back")


async def _report(callback: ProgressFnT, progress: float, total: float | None, text: str | None) -> None:
    try:
        await callback(progress, total, text)
    except Exception:
        logger.exception("a progress callback raised")
