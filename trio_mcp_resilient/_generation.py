"""One numbered session alive: a nursery that owns its transport, its streams and its end.

A generation is an integer, one session id and one nursery. It ends exactly once, with a typed
reason, and never raises for an expected loss. Requests run in their callers' own tasks, under
cancel scopes that the generation holds. When it is condemned it tells each of them, once, over
a memory channel, stops its own streams at once, and waits in the background until the calls in
flight have had their own verdicts.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import trio
from mcp.shared.dispatcher import ProgressFnT, coerce_request_id

from trio_mcp_resilient._answers import Cursor
from trio_mcp_resilient._discovery import DISCOVER
from trio_mcp_resilient._endpoint import Endpoint
from trio_mcp_resilient._envelope import Introduction
from trio_mcp_resilient._eras import Era, Mode
from trio_mcp_resilient._errors import Evidence, RequestRefused
from trio_mcp_resilient._exchange import Exchange
from trio_mcp_resilient._flight import EndReason, Flight, GenerationEnd
from trio_mcp_resilient._handshake import TryAgain, say_initialized
from trio_mcp_resilient._inbound import Inbound
from trio_mcp_resilient._jsonrpc import RequestId, encode_notification, encode_request
from trio_mcp_resilient._judge import Judge
from trio_mcp_resilient._listening import listen
from trio_mcp_resilient._negotiation import Negotiation
from trio_mcp_resilient._nursery import open_hidden_nursery
from trio_mcp_resilient._outcome import Fate, Notice, Outcome
from trio_mcp_resilient._pacing import Pacing
from trio_mcp_resilient._patience import Patience
from trio_mcp_resilient._policy import Timeouts
from trio_mcp_resilient._resuming import resume
from trio_mcp_resilient._router import Router
from trio_mcp_resilient._session import Session
from trio_mcp_resilient._wire import RawHeaders, Wire, WireError

logger = logging.getLogger("trio_mcp_resilient")

AUTO, LEGACY = Mode.parse("auto"), Mode.parse("legacy")
LISTEN = "subscriptions/listen"
"""The one request whose answer lasts: its stream is the modern era's standalone stream."""


@dataclass(frozen=True)
class Surroundings:
    """What every generation of one client shares."""

    endpoint: Endpoint
    open_wire: Callable[[], Wire]
    timeouts: Timeouts
    inbound: Inbound
    next_id: Callable[[], int]
    judge: Judge
    report: Callable[[Generation, Notice, Evidence | None], None]
    """Told when a stream, a notification or a ping of the generation's own meets trouble."""
    on_gap: Callable[[int], None]
    """Told when the standalone stream of a generation begins with messages missed before it."""
    get_stream: bool = True
    mode: Mode = AUTO
    patience: Patience = field(default_factory=Patience)


class Generation:
    """One session's life. Made by the supervisor; `run` is its whole life, called once."""

    def __init__(self, number: int, introduction: Introduction, around: Surroundings) -> None:
        self.number = number
        self.end: GenerationEnd | None = None
        self._introduction = introduction
        self._around = around
        self._flights: dict[RequestId, Flight] = {}
        self._condemned = trio.Event()
        self._drained: trio.Event | None = None
        self._pacing = Pacing()
        self._standing: list[trio.CancelScope] = []
        self._last_used = 0.0
        self._over = False
        self._nursery: trio.Nursery
        self._router: Router
        self._exchange: Exchange

    @property
    def session(self) -> Session:
        """What the handshake agreed on; there is one once `run` has started."""
        return self._exchange.session

    @property
    def is_closed(self) -> bool:
        """Whether its nursery takes no more tasks: it has drained, or the client is closed."""
        return self._over

    @property
    def takes_requests(self) -> bool:
        """Whether the server may ask for something: only a session gives it an address to ask at."""
        return not self._over and self.session.era is Era.LEGACY

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
                self._router = Router(self, self._flights, self._nursery, self._around.inbound)
                try:
                    await self._connect(wire)
                    self._last_used = trio.current_time()
                    task_status.started(self)
                    # It would keep the nursery of this start for as long as the session stands.
                    del task_status
                    self._attend()
                    await wire.tend(self._condemned.wait)
                    if self._flights:
                        self._drained = trio.Event()
                        await self._drained.wait()
                finally:
                    # Inside the nursery: from here on nobody starts anything in it any more.
                    self._over = True
                    self.condemn(GenerationEnd(EndReason.CLOSED))
        finally:
            with trio.move_on_after(self._around.timeouts.close, shield=True):
                await self._part(wire)
            # Sockets are closed without waiting for anybody, so the shield is never felt.
            with trio.CancelScope(shield=True):
                await wire.aclose()

    async def _connect(self, wire: Wire) -> None:
        around = self._around
        with around.patience.move_on_after(around.timeouts.handshake):
            mode = LEGACY if self._introduction.knows_legacy_only else around.mode
            negotiation = Negotiation(
                wire,
                around.endpoint,
                self._introduction,
                mode,
                around.next_id,
                around.patience,
                around.timeouts.handshake,
            )
            session = await negotiation.run()
            # From here on the server keeps a session for us, to be parted from if this fails.
            self._exchange = Exchange(wire, around.endpoint, session, self.number, around.judge, self._pacing)
            if session.era is Era.LEGACY:
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
        for scope in self._standing:
            scope.cancel(reason="the session ended")
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
        # First of all: what is held back until the session has ended should have cost little.
        if not self._pacing.may_leave():
            await self._pacing.turn()
        if self.end is not None:
            return self._unsent(method)
        method, params, routing = self.session.dress(method, params)
        headers = (*headers, *routing) if routing else headers
        body = encode_request(request_id, method, params)
        key = coerce_request_id(request_id)
        if key in self._flights:
            raise ValueError(f"request id {request_id!r} is already in flight")
        flight = Flight(request_id, on_progress, lasting=method == LISTEN)
        self._flights[key] = flight
        try:
            with flight.scope:
                deliver, cursor = partial(self._router.deliver, flight=flight), Cursor()
                outcome = await self._exchange.request(
                    method,
                    request_id,
                    body,
                    headers,
                    deliver,
                    cursor,
                    flight.leave,
                    may_be_silent=flight.lasting,
                )
                if outcome.fate is Fate.UNKNOWN and cursor.last_event_id:
                    return await resume(self._exchange, method, flight, deliver, cursor, outcome)
                return outcome
            return self._abandoned(method, flight)
        except trio.Cancelled:
            if cancellable and flight.sent:
                self._excuse(request_id)
            raise
        finally:
            flight.close()
            del self._flights[key]
            self._last_used = trio.current_time()
            if self._drained is not None and not self._flights:
                self._drained.set()

    async def probe(self) -> Outcome:
        """Ask whether what the handshake agreed on still stands: by ping, or by discovering again."""
        ask = "ping" if self.session.era is Era.LEGACY else DISCOVER
        outcome = await self.request(ask, {}, request_id=self._around.next_id(), cancellable=False)
        if self.session.era is Era.LEGACY or outcome.fate not in (Fate.ANSWERED, Fate.REFUSED):
            return outcome
        if isinstance(outcome.error, RequestRefused):
            # By HTTP, as for want of a token: no word of the server's own.
            return outcome
        if outcome.result is not None and self.session.is_still(outcome.result):
            return outcome
        what = f"{DISCOVER} answered otherwise than before: the server was deployed anew"
        return Outcome(Fate.LOST, evidence=Evidence(self.number, self.session.label, what))

    def _abandoned(self, method: str, flight: Flight) -> Outcome:
        """Say what is known of a call whose own scope ended it: the session's end, not its caller."""
        if not flight.sent:
            return self._unsent(method)
        what = f"POST {method} had no answer when its session was done with"
        return Outcome(Fate.UNKNOWN, evidence=Evidence(self.number, self.session.label, what))

    def _unsent(self, method: str) -> Outcome:
        what = f"POST {method} was not sent: the session had ended"
        return Outcome(Fate.UNSENT, evidence=Evidence(self.number, self.session.label, what), begun=False)

    def _excuse(self, request_id: RequestId) -> None:
        """Tell the server, in the background, that nobody waits for this request any more."""
        # In the modern era the connection that was closed is the notice (transport, cancellation).
        if self.end is None and not self._over and self.session.era is Era.LEGACY:
            params = {"requestId": request_id, "reason": "the caller was cancelled"}
            self._nursery.start_soon(self._excuse_bounded, params)

    async def _excuse_bounded(self, params: dict[str, Any]) -> None:
        with trio.move_on_after(self._around.timeouts.close, shield=True):
            await self.notify("notifications/cancelled", params)

    async def notify(self, method: str, params: dict[str, Any] | None) -> Outcome:
        """POST a notification; a loss it meets condemns the session, and nothing is raised.

        The modern era knows no notifications of a client's: there it is dropped.
        """
        if self.session.era is Era.MODERN:
            await trio.lowlevel.checkpoint()
            return Outcome(Fate.ANSWERED)
        return self._noted(await self._exchange.notify(method, encode_notification(method, params)))

    async def answer(self, body: bytes) -> None:
        """POST an answer to a request of the server's."""
        self._noted(await self._exchange.notify(None, body))

    def _noted(self, outcome: Outcome) -> Outcome:
        if outcome.fate is Fate.LOST and outcome.evidence is not None:
            self._around.report(self, Notice.CONDEMN, outcome.evidence)
        elif outcome.fate is not Fate.ANSWERED:
            logger.debug("generation %d: %s", self.number, outcome.evidence)
        return outcome

    # -- while it stands ----------------------------------------------------------------------

    def _attend(self) -> None:
        """Begin what a session needs for as long as it stands, and not while it drains."""
        if self.session.era is Era.MODERN:
            return
        if self._around.get_stream:
            self._nursery.start_soon(self._while_standing, self._listen)
        if self._around.timeouts.keepalive < math.inf:
            self._nursery.start_soon(self._while_standing, self._keep_alive)

    async def _while_standing(self, chore: Callable[[], Awaitable[None]]) -> None:
        with trio.CancelScope() as scope:
            self._standing.append(scope)
            if self.end is not None:
                scope.cancel()
            await chore()

    async def _listen(self) -> None:
        on_gap = partial(self._around.on_gap, self.number)
        evidence = await listen(self._exchange, self._router.deliver, on_gap)
        if evidence is not None:
            self._around.report(self, Notice.CONDEMN, evidence)

    async def _keep_alive(self) -> None:
        """Ping an idle session: it finds a dead one before a caller does, and keeps a live one."""
        timeouts = self._around.timeouts
        while True:
            idle_since = self._last_used
            await trio.sleep_until(idle_since + timeouts.keepalive)
            if self._flights or self._last_used > idle_since:
                self._last_used = trio.current_time() if self._flights else self._last_used
                continue
            with self._around.patience.move_on_after(timeouts.handshake):
                outcome = await self.probe()
                if outcome.fate is not Fate.ANSWERED:
                    self._around.report(self, outcome.notice, outcome.evidence)
                continue
            # Half-open: the peer is gone without a word, and TCP may not notice for hours.
            what = f"no answer to ping within {timeouts.handshake:g} s"
            evidence = Evidence(self.number, self.session.label, what)
            self._around.report(self, Notice.SUSPECT, evidence)
