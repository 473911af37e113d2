"""Which of the server's messages goes where, within one generation.

Progress goes to the call it is about, a request of the server's to a handler in the
generation's nursery, every notification to the client's one queue. Answers are not routed:
each is read by the task that asked.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial

import trio
from mcp.shared.dispatcher import ProgressFnT, coerce_request_id

from trio_mcp_resilient._flight import Flight
from trio_mcp_resilient._inbound import Asker, Inbound, is_milestone
from trio_mcp_resilient._jsonrpc import Message, Notification, Request, RequestId
from trio_mcp_resilient._secrets import one_line

logger = logging.getLogger("trio_mcp_resilient")

MAX_HANDLERS = 100
"""How many of the server's requests are handled at a time, and how many progress callbacks run that
no call's own stream brought; more are dropped, so that a hostile server cannot make the client grow."""
MAX_HANDLED_BYTES = 16 * 1024 * 1024
"""How large the requests being handled may be together; one may be as large alone."""


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
        self._handled_bytes = 0
        self._reports = 0
        self._dropped = 0

    async def deliver(self, message: Message, flight: Flight | None = None) -> None:
        """Take one message that is not the answer its stream is for."""
        if isinstance(message, Request):
            if self._asker.takes_requests:
                self._serve(message)
            else:
                logger.debug("dropped a request of the server's: %s", one_line(message.method))
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
        value = _number(progress)
        if target is None or target.on_progress is None or value is None:
            return
        total, text = _number(params.get("total")), params.get("message")
        report = partial(_report, target.on_progress, value, total, text if isinstance(text, str) else None)
        if target is flight:
            await report()
        elif self._reports >= MAX_HANDLERS:
            self._drop()
        elif not self._asker.is_closed:
            self._reports += 1
            self._nursery.start_soon(self._report_apart, report)

    async def _report_apart(self, report: Callable[[], Awaitable[None]]) -> None:
        try:
            await report()
        finally:
            self._reports -= 1

    def _serve(self, request: Request) -> None:
        key = coerce_request_id(request.id)
        if key in self._handlers:
            # Replayed, or a mistake: an id names one request of a session.
            logger.debug("dropped a request whose id is being handled")
        elif len(self._handlers) >= MAX_HANDLERS or (
            self._handlers and self._handled_bytes + request.size > MAX_HANDLED_BYTES
        ):
            self._drop()
        else:
            scope = self._handlers[key] = trio.CancelScope()
            self._handled_bytes += request.size
            self._nursery.start_soon(self._handle, request, scope)

    async def _handle(self, request: Request, scope: trio.CancelScope) -> None:
        try:
            with scope:
                await self._inbound.request(request, self._asker)
        finally:
            self._handled_bytes -= request.size
            del self._handlers[coerce_request_id(request.id)]

    def _drop(self) -> None:
        self._dropped += 1
        if is_milestone(self._dropped):
            logger.warning("%d messages of the server dropped: it sends more than is handled", self._dropped)

    def _cancel_handler(self, message: Notification) -> None:
        request_id = (message.params or {}).get("requestId")
        if isinstance(request_id, str | int) and not isinstance(request_id, bool):
            scope = self._handlers.get(coerce_request_id(request_id))
            if scope is not None:
                scope.cancel(reason="the server took its request back")


def _number(value: object) -> float | None:
    """Return a JSON number as a float; None if it is no number, or larger than any float."""
    try:
        return float(value) if isinstance(value, int | float) else None
    except OverflowError:
        return None


async def _report(callback: ProgressFnT, progress: float, total: float | None, text: str | None) -> None:
    try:
        await callback(progress, total, text)
    except Exception:
        logger.exception("a progress callback raised")
