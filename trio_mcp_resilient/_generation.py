"""One numbered session alive: a nursery that owns its transport, its streams and its end.

A generation is an integer, one session id and one nursery. It ends exactly once, with a typed
reason, and never raises for an expected loss. Requests run in their callers' own tasks, under
cancel scopes that the generation holds. When it is condemned it tells each of them, once, over
a memory channel, stops its own streams at once, and waits in the background until the calls in
flight have had their own verdicts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import trio

from mcp.shared.dispatcher import ProgressFnT, coerce_request_id
from trio_mcp_resilient._endpoint import Endpoint
from trio_mcp_resilient._errors import Evidence
from trio_mcp_resilient._exchange import Exchange
from trio_mcp_resilient._flight import EndReason, Flight, GenerationEnd
from trio_mcp_resilient._handshake import TryAgain, say_initialized, shake_hands
from trio_mcp_resilient._inbound import Inbound
from trio_mcp_resilient._jsonrpc import (
    Message,
    Notification,
    Request,
    RequestId,
    encode_notification,
    encode_request,
)
from trio_mcp_resilient._listening import listen
from trio_mcp_resilient._nursery import open_hidden_nursery
from trio_mcp_resilient._outcome import Fate, Outcome
from trio_mcp_resilient._policy import Timeouts
from trio_mcp_resilient._session import Session
from trio_mcp_resilient._wire import RawHeaders, Wire, WireError

logger = logging.getLogger("trio_mcp_resilient")

MAX_HANDLERS = 100
"""How many of the server's requests are handled at a time; more are dropped, so that a hostile
server cannot make the client grow."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What every generation of one client shares."""

    endpoint: Endpoint
    open_wire: Callable[[], Wire]
    timeouts: Timeouts
    inbound: Inbound
    next_id: Callable[[], int]
    report_loss: Callable[[Generation, Evidence], None]
    """Told when a stream or a notification of the generation's own finds the session gone."""
    get_stream: bool = True


class Generation:
    """One session's life. Made by the supervisor; `run` is its whole life, called once."""

    def __init__(self, number: int, initialize_params: dict[str, Any], around: Surroundings) -> None:
        self.number = number
        self.end: GenerationEnd | None = None
        self._initialize_params = initialize_params
        self._around = around
        self._flights: dict[RequestId, Flight] = {}
        self._handlers: dict[RequestId, trio.CancelScope] = {}
        self._condemned = trio.Event()
        self._idle = trio.Event()
        self._streams = trio.CancelScope()
        self._nursery: trio.Nursery
        self._exchange: Exchange

    @property
    def session(self) -> Session:
        """What the handshake agreed on; there is one once `run` has started."""
        return self._exchange.session

    @property
    def in_flight(self) -> int:
        """How many calls have a request on this session."""
        return len(self._flights)

    def __repr__(self) -> str:
        return f"<Generation {self.number} {'ended' if self.end else 'alive'}, {self.in_flight} in flight>"

    # -- its life -----------------------------------------------------------------------------

    async def run(self, task_status: trio.TaskStatus[Generation] = trio.TASK_STATUS_IGNORED) -> None:
        """Connect, serve until condemned, drain, part. `started` is called with a ready session.

        Raises:
            TryAgain: before `started`: this attempt failed, a later one may not.
            HandshakeFailed: before `started`: no later attempt would do better.
        """
        wire = self._around.open_wire()
        try:
            async with open_hidden_nursery() as self._nursery:
                try:
                    await self._connect(wire)
                    task_status.started(self)
                    if self._around.get_stream:
                        self._nursery.start_soon(self._listen)
                    await self._condemned.wait()
                    if self._flights:
                        await self._idle.wait()
                finally:
                    # Inside the nursery: once ended, nobody starts anything in it any more.
                    self.condemn(GenerationEnd(EndReason.CLOSED))
        finally:
            with trio.move_on_after(self._around.timeouts.close, shield=True):
                await self._part(wire)
            # Sockets are closed without waiting for anybody, so the shield is never felt.
            with trio.CancelScope(shield=True):
                await wire.aclose()

    async def _connect(self, wire: Wire) -> None:
        around = self._around
        with trio.move_on_after(around.timeouts.handshake):
            session = await shake_hands(wire, around.endpoint, self._initialize_params, around.next_id())
            # From here on the server keeps a session for us, to be parted from if this fails.
            self._exchange = Exchange(wire, around.endpoint, session, self.number)
            await say_initialized(wire, around.endpoint, session)
            return
        raise TryAgain(f"{around.endpoint}: no handshake within {around.timeouts.handshake:g} s")

    async def _part(self, wire: Wire) -> None:
        """DELETE a session that the server still keeps, so that it need not wait for a timeout."""
        exchange: Exchange | None = getattr(self, "_exchange", None)
        lost = self.end is not None and self.end.reason is EndReason.LOST
        if exchange is None or exchange.session.id is None or lost:
            return
        try:
            response = await wire.send("DELETE", exchange.session.get_headers)
            # Any answer will do: 405 says sessions are not for clients to end, 404 that it is gone.
            await response.aclose()
        except WireError as error:
            logger.debug("generation %d: DELETE failed: %s", self.number, error)

    def condemn(self, end: GenerationEnd) -> bool:
        """End this generation, once; return whether it was this call that did.

        Synchronous: whoever condemns waits for nobody. Each call in flight hears of it and keeps
        its connection for the drain time, unless the client is closing.
        """
        if self.end is not None:
            return False
        self.end = end
        drain = 0.0 if end.reason is EndReason.CLOSED else self._around.timeouts.drain
        for flight in self._flights.values():
            flight.tell(end, drain)
        self._streams.cancel(reason="the session ended")
        self._condemned.set()
        return True

    # -- what goes out ------------------------------------------------------------------------

    async def request(
        self,
        method: str,
        params: dict[str, Any],
        *,
        request_id: RequestId,
        headers: RawHeaders = (),
        on_progress: ProgressFnT | None = None,
        cancellable: bool = True,
    ) -> Outcome:
        """POST one request in the caller's task and return what became of it.

        Raises:
            ValueError: if `request_id` is in flight already, or the parameters are not JSON.

        Cancellation: the exchange is abandoned; the server is told in the background, if
        `cancellable`. Whether the request ran is then unknown.
        """
        body = encode_request(request_id, method, params)
        key = coerce_request_id(request_id)
        if key in self._flights:
            raise ValueError(f"request id {request_id!r} is already in flight")
        flight = Flight(request_id, on_progress)
        if self.end is not None:
            flight.scope.cancel()
        self._flights[key] = flight
        try:
            with flight.scope:
                await trio.lowlevel.checkpoint_if_cancelled()
                flight.sent = True
                return await self._exchange.request(
                    method, request_id, body, headers, partial(self._deliver, flight=flight)
                )
            return self._abandoned(method, flight)
        except trio.Cancelled:
            if cancellable and flight.sent:
                self._excuse(request_id)
            raise
        finally:
            flight.close()
            del self._flights[key]
            if self.end is not None and not self._flights:
                self._idle.set()

    async def probe(self) -> Outcome:
        """Ask by ping whether the session still stands."""
        return await self.request("ping", {}, request_id=self._around.next_id(), cancellable=False)

    def _abandoned(self, method: str, flight: Flight) -> Outcome:
        """Say what is known of a call whose own scope ended it: the session's end, not its caller."""
        if not flight.sent:
            what, fate = f"POST {method} was not sent: the session had ended", Fate.UNSENT
        else:
            what, fate = f"POST {method} had no answer when its session was done with", Fate.UNKNOWN
        return Outcome(fate, evidence=Evidence(self.number, self.session.label, what))

    def _excuse(self, request_id: RequestId) -> None:
        """Tell the server, in the background, that nobody waits for this request any more."""
        if self.end is None:
            params = {"requestId": request_id, "reason": "the caller was cancelled"}
            self._nursery.start_soon(self._excuse_bounded, params)

    async def _excuse_bounded(self, params: dict[str, Any]) -> None:
        with trio.move_on_after(self._around.timeouts.close, shield=True):
            await self.notify("notifications/cancelled", params)

    async def notify(self, method: str, params: dict[str, Any] | None) -> Outcome:
        """POST a notification; a loss it meets condemns the session, and nothing is raised."""
        return self._noted(await self._exchange.notify(method, encode_notification(method, params)))

    async def answer(self, body: bytes) -> None:
        """POST an answer to a request of the server's."""
        self._noted(await self._exchange.notify(None, body))

    def _noted(self, outcome: Outcome) -> Outcome:
        if outcome.fate is Fate.LOST and outcome.evidence is not None:
            self._around.report_loss(self, outcome.evidence)
        elif outcome.fate is not Fate.ANSWERED:
            logger.debug("generation %d: %s", self.number, outcome.evidence)
        return outcome

    # -- what comes in ------------------------------------------------------------------------

    async def _listen(self) -> None:
        with self._streams:
            evidence = await listen(self._exchange, self._deliver)
            if evidence is not None:
                self._around.report_loss(self, evidence)

    async def _deliver(self, message: Message, flight: Flight | None = None) -> None:
        """Take one message that is not the answer its stream is for."""
        if isinstance(message, Request):
            self._serve(message)
        elif isinstance(message, Notification):
            if message.method == "notifications/progress":
                await self._progress(message, flight)
            elif message.method == "notifications/cancelled":
                self._cancel_handler(message)
            self._around.inbound.notification(message)
        else:
            # A replayed or late answer: whoever asked has gone, or has it already.
            logger.debug("generation %d: dropped a stray answer", self.number)

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
        else:
            self._nursery.start_soon(report)

    def _serve(self, request: Request) -> None:
        if len(self._handlers) >= MAX_HANDLERS:
            logger.warning("generation %d: too many requests by the server, one dropped", self.number)
            return
        scope = self._handlers[coerce_request_id(request.id)] = trio.CancelScope()
        self._nursery.start_soon(self._handle, request, scope)

    async def _handle(self, request: Request, scope: trio.CancelScope) -> None:
        key = coerce_request_id(request.id)
        try:
            with scope:
                await self._around.inbound.request(request, self)
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
