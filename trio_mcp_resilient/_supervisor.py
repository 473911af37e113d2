"""Who keeps a session standing: start generation n, await its end, back off, start n+1.

Callers never make a session themselves and never wait for each other: they report what they
saw of a generation, and await the next ready one. News about a generation that is no longer
the current one changes nothing, a recovery asked for while one is under way is the same
recovery, and nothing here holds a lock: every decision is made between two checkpoints.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable
from contextvars import ContextVar

import trio

from trio_mcp_resilient._endpoint import Endpoint
from trio_mcp_resilient._eras import Era
from trio_mcp_resilient._errors import Evidence, GaveUp, HandshakeFailed, Recovery, ResilientError, twin
from trio_mcp_resilient._events import (
    Flapping,
    RecoveryFailed,
    SessionEnded,
    SessionStarted,
    StateChanged,
)
from trio_mcp_resilient._flight import EndReason, GenerationEnd
from trio_mcp_resilient._generation import Generation
from trio_mcp_resilient._handshake import TryAgain
from trio_mcp_resilient._instruments import Instruments
from trio_mcp_resilient._outcome import Fate, Notice
from trio_mcp_resilient._patience import Patience
from trio_mcp_resilient._policy import Backoff, Timeouts
from trio_mcp_resilient._series import Series
from trio_mcp_resilient._states import State, StateMachine
from trio_mcp_resilient._statistics import Counters

FLAPPING_LOSSES = 5
FLAPPING_SECONDS = 60.0
"""So many losses within so many seconds are no accident: something loses every session."""
FLAPPING_HINT = (
    "sessions do not survive between requests; the endpoint may be load-balanced without stickiness"
)

UNANSWERED = 3
"""After so many pings without an answer, which are no proof of a loss, another session is tried."""

in_background: ContextVar[bool] = ContextVar("in_background", default=False)
"""Whether the caller is work that each new session causes, so that it must not cause another one."""

logger = logging.getLogger("trio_mcp_resilient")


class Supervisor:
    """The one task that makes sessions for a client."""

    def __init__(
        self,
        endpoint: Endpoint,
        make: Callable[[int], Generation],
        *,
        name: str,
        backoff: Backoff,
        timeouts: Timeouts,
        counters: Counters,
        prepare: Callable[[Generation], Awaitable[None]],
        on_started: Callable[[Generation], None],
        patience: Patience | None = None,
        instruments: Instruments,
    ) -> None:
        self._endpoint = endpoint
        self._make = make
        self._name = name
        self._backoff = backoff
        self._timeouts = timeouts
        self._counters = counters
        self._prepare = prepare
        self._on_started = on_started
        self._patience = patience or Patience()
        self._instruments = instruments
        self._machine = StateMachine(self._changed)
        self.era: Era = Era.LEGACY
        """The era of the newest generation that has stood: what the SDK's session takes results for."""
        self._number = 0
        self._current: Generation | None = None
        self._doubted: Generation | None = None
        self._series: Series | None = None
        self._wanted = trio.Event()
        self._losses: list[float] = []

    def start(self) -> None:
        """Begin making the first session, now that it is known how the client introduces itself."""
        self._series = Series()
        self._wanted.set()

    # -- what callers see ---------------------------------------------------------------------

    @property
    def state(self) -> State:
        """Where the client is in its table of states."""
        return self._machine.state

    @property
    def number(self) -> int:
        """The newest generation that has stood; 0 before the first."""
        return self._number

    @property
    def current(self) -> Generation | None:
        """The ready generation, if there is one now."""
        return self._current

    async def ready(self) -> Generation:
        """Return the current generation, awaiting the next one's ready event if there is none.

        No checkpoint if one is ready: the request that follows is one.

        Raises:
            GaveUp: after the budget of attempts, or after the recovery timeout.
            HandshakeFailed: if the server's answer to `initialize` was final.
            trio.ClosedResourceError: if the client is closed, or closes meanwhile.
        """
        if self._current is not None:
            return self._current
        with self._patience.move_on_after(self._timeouts.recovery):
            while True:
                if self.state is State.CLOSED:
                    raise trio.ClosedResourceError("this client is closed")
                if self._current is not None:
                    return self._current
                series = self._series or self._begin()
                if not in_background.get():
                    series.urgent.set()
                await series.done.wait()
                if series.failure is not None:
                    raise twin(series.failure)
        series = self._series or Series()
        raise GaveUp(
            f"no session at {self._endpoint} within {self._timeouts.recovery:g} s",
            recovery=series.so_far(),
        ) from series.met()

    def recovery_so_far(self) -> Recovery | None:
        """Return how the recovery under way is going; None if none is, or it has only begun."""
        return self._series.so_far() if self._series is not None and self._series.attempts else None

    def report(self, generation: Generation, notice: Notice, evidence: Evidence | None) -> None:
        """Take what a call saw of the generation it ran on. Synchronous."""
        if generation is self._current:
            if notice is Notice.CONDEMN:
                self._end(generation, GenerationEnd(EndReason.LOST, evidence))
            elif notice is Notice.SUSPECT:
                logger.info("%s: generation %d is in doubt: %s", self._name, generation.number, evidence)
                self._current, self._doubted = None, generation
                self._begin()
        elif notice is not Notice.CONDEMN:
            return
        elif generation is self._doubted:
            # Somebody has the proof that the probe under way is still asking for.
            self._end(generation, GenerationEnd(EndReason.LOST, evidence))
        elif generation.number > self._number:
            # Its own stream found it lost before it was published: `_attempt` will see the end.
            generation.condemn(GenerationEnd(EndReason.LOST, evidence))

    def invalidate(self) -> None:
        """Throw the current session away; its calls in flight finish on it, the next get a new one."""
        generation = self._current or self._doubted
        if generation is not None:
            self._end(generation, GenerationEnd(EndReason.INVALIDATED))

    def close(self) -> None:
        """Refuse new calls and wake those that wait. The generations part when their nursery is cancelled."""
        if self.state is State.CLOSED:
            return
        self._machine.move(State.CLOSED)
        self._current = self._doubted = None
        if self._series is not None:
            self._series.done.set()

    # -- the task -----------------------------------------------------------------------------

    async def run(self, nursery: trio.Nursery) -> None:
        """Make sessions until cancelled: whenever one is wanted, try until one stands or the budget ends.

        Args:
            nursery: where the generations live. Each ends by itself; all end when it is cancelled.
        """
        while True:
            await self._wanted.wait()
            self._wanted = trio.Event()
            if self._series is not None:
                await self._recover(nursery, self._series)

    async def _recover(self, nursery: trio.Nursery, series: Series) -> None:
        await self._pace(series)
        while True:
            series.attempts += 1
            pause = 0.0
            try:
                self._stands(await self._attempt(nursery, series), series)
                return
            except HandshakeFailed as error:
                series.errors.append(error)
                self._fails(series, error)
                return
            except TryAgain as error:
                series.errors.append(error)
                pause = error.pause or 0.0
                logger.info("%s: attempt %d failed: %s", self._name, series.attempts, error)
            if self._backoff.spent(series.attempts):
                self._fails(series, None)
                return
            await trio.sleep(max(pause, self._backoff.delay(series.attempts, random.random)))

    async def _pace(self, series: Series) -> None:
        """Wait, if sessions are lost faster than accidents happen, until a call wants the next one.

        A server that refuses the GET stream of every session, as one behind a balancer without
        stickiness does, would otherwise be given new ones as fast as the network allows. Calls
        do not wait: each makes two sessions at most.
        """
        if self.is_flapping and self._doubted is None and not series.urgent.is_set():
            with trio.move_on_at(self._losses[0] + FLAPPING_SECONDS):
                await series.urgent.wait()

    async def _attempt(self, nursery: trio.Nursery, series: Series) -> Generation:
        """Make one attempt: ask the session that is in doubt, or make another."""
        if self._doubted is not None and await self._lives(self._doubted, series):
            return self._doubted
        generation = self._make(self._number + 1)
        self._counters.handshakes += 1
        await nursery.start(generation.run)
        with self._patience.move_on_after(self._timeouts.handshake):
            # Before anybody may call: a call must find the session as it left the last one.
            await self._prepare(generation)
        if self._doubted is not None and (proven := await self._choose(self._doubted, generation, series)):
            return proven
        if generation.end is not None:
            raise TryAgain(f"the new session was lost at once: {generation.end.evidence}")
        return generation

    async def _choose(self, old: Generation, new: Generation, series: Series) -> Generation | None:
        """Give a session in doubt, which answered no ping, its last chance; return it if it takes it.

        While the server made no other session, it was the server that did not answer.
        """
        try:
            lives = await self._lives(old, series)
        except TryAgain:
            new.condemn(GenerationEnd(EndReason.INVALIDATED))
            raise
        if lives:
            new.condemn(GenerationEnd(EndReason.INVALIDATED))
            return old
        if old is self._doubted:
            self._end(old, GenerationEnd(EndReason.LOST, series.silence))
        return None

    async def _lives(self, generation: Generation, series: Series) -> bool:
        """Ask a session in doubt, by ping, whether it still stands; False as well if it does not say.

        Raises:
            TryAgain: if the server cannot be reached, or has not been asked often enough.
        """
        with self._patience.move_on_after(self._timeouts.handshake) as scope:
            outcome = await generation.probe()
            if generation.end is not None:
                return False
            if outcome.fate is Fate.LOST:
                self._end(generation, GenerationEnd(EndReason.LOST, outcome.evidence))
                return False
            if outcome.fate in (Fate.ANSWERED, Fate.REFUSED):
                return True
            if outcome.fate is not Fate.UNKNOWN:
                raise TryAgain(str(outcome.evidence), outcome.pause)
            series.silence = outcome.evidence
        if scope.cancelled_caught:
            what = f"no answer to ping within {self._timeouts.handshake:g} s"
            series.silence = Evidence(generation.number, generation.session.label, what)
        series.unanswered += 1
        if series.unanswered < UNANSWERED:
            raise TryAgain(str(series.silence))
        return False

    # -- the moves ----------------------------------------------------------------------------

    def _begin(self) -> Series:
        """Start a recovery, or join the one under way."""
        self._machine.move(State.RECOVERING)
        if self._series is None:
            self._series = Series()
        self._wanted.set()
        return self._series

    def _end(self, generation: Generation, end: GenerationEnd) -> None:
        in_flight = generation.in_flight
        # A closed client's generations part by themselves; one may be found lost meanwhile.
        if self.state is State.CLOSED or not generation.condemn(end):
            return
        self._current = self._doubted = None
        if end.reason is EndReason.LOST:
            self._count_loss()
        log = logger.warning if end.reason is EndReason.LOST else logger.info
        log("%s: generation %d %s: %s", self._name, generation.number, end.reason, end.evidence)
        if self._instruments:
            label = generation.session.label
            self._instruments.tell(
                SessionEnded(generation.number, label, end.reason, end.evidence, in_flight)
            )
        self._begin()

    @property
    def is_flapping(self) -> bool:
        """Whether sessions are being lost faster than restarts and timeouts would explain."""
        losses = self._losses
        return len(losses) == FLAPPING_LOSSES and trio.current_time() - losses[0] <= FLAPPING_SECONDS

    def _count_loss(self) -> None:
        self._counters.losses += 1
        self._losses = [*self._losses, trio.current_time()][-FLAPPING_LOSSES:]
        if self.is_flapping:
            seconds = self._losses[-1] - self._losses[0]
            logger.warning("%s: %d losses in %.1f s: %s", self._name, FLAPPING_LOSSES, seconds, FLAPPING_HINT)
            if self._instruments:
                self._instruments.tell(Flapping(FLAPPING_LOSSES, seconds))

    def _stands(self, generation: Generation, series: Series) -> None:
        if self.state is State.CLOSED:
            return
        is_new = generation.number != self._number
        self._number = generation.number
        self._current, self._doubted, self._series = generation, None, None
        if is_new:
            self._counters.generations += 1
            self.era = generation.session.era
            self._on_started(generation)
        series.errors.clear()
        series.done.set()
        recovery = series.so_far()
        self._counters.last_recovery_seconds = recovery.seconds
        self._machine.move(State.READY)
        logger.info("%s: generation %d is ready (%s)", self._name, generation.number, recovery)
        if is_new and self._instruments:
            session = generation.session
            self._instruments.tell(
                SessionStarted(generation.number, session.label, session.protocol_version, recovery)
            )

    def _fails(self, series: Series, final: HandshakeFailed | None) -> None:
        if self.state is State.CLOSED:
            # The last attempt failed in the moment in which the client was closed.
            return
        recovery = series.so_far()
        if final is None:
            failure: ResilientError = GaveUp(f"no session at {self._endpoint}", recovery=recovery)
            failure.__cause__ = series.met()
        else:
            failure = HandshakeFailed(*final.args, recovery=recovery)
            failure.__cause__ = final.__cause__
        series.failure = failure
        self._series = None
        self._machine.move(State.DORMANT)
        logger.error("%s: %s", self._name, failure)
        if self._instruments:
            self._instruments.tell(RecoveryFailed(str(failure), recovery))
        series.done.set()

    def _changed(self, before: State, after: State) -> None:
        if self._instruments:
            self._instruments.tell(StateChanged(before, after))
