"""One logical call, carried out: at most two POSTs, and what is known if they bring no answer.

What follows when a POST brings anything but an answer is `_outcome.TREATMENTS`; the code below only
carries that table out.
"""

from __future__ import annotations

import itertools
import logging
import random
from typing import Any

import trio
from mcp.shared.dispatcher import coerce_request_id
from mcp.shared.exceptions import MCPError
from mcp_types import CONNECTION_CLOSED, RequestId

from trio_mcp_resilient._call import Call, is_mismatch, says_nothing_of_the_first
from trio_mcp_resilient._envelope import fill_in
from trio_mcp_resilient._eras import Era
from trio_mcp_resilient._errors import GaveUp, HandshakeFailed, OutcomeUnknown, Recovery, ResilientError
from trio_mcp_resilient._events import OutcomeLost, Resent
from trio_mcp_resilient._generation import Generation
from trio_mcp_resilient._instruments import Instruments
from trio_mcp_resilient._outcome import TREATMENTS, Fate, Outcome
from trio_mcp_resilient._policy import HARMLESS, Backoff, Resend, Timeouts
from trio_mcp_resilient._restoring import SessionState
from trio_mcp_resilient._statistics import Counters
from trio_mcp_resilient._succession import SETTINGS, Succession
from trio_mcp_resilient._supervisor import FLAPPING_HINT, Supervisor
from trio_mcp_resilient._wire import RawHeaders

logger = logging.getLogger("trio_mcp_resilient")

MAX_PAGES = 1000
"""How far a listing is followed; a hostile server may have a next page for ever."""
STATEFUL = {*SETTINGS, "tools/list"}
"""Requests whose success tells what a new session has to be given again."""
SUMMARIES = {
    Fate.LOST: "{} was not executed: the session was lost",
    Fate.UNSENT: "{} was not executed: it never left whole",
    Fate.UNKNOWN: "{} may or may not have been executed",
}


class Sending:
    """Sends the calls of one client, on whatever session stands."""

    def __init__(
        self,
        *,
        resend: Resend,
        backoff: Backoff,
        timeouts: Timeouts,
        counters: Counters,
        instruments: Instruments,
    ) -> None:
        self.supervisor: Supervisor
        """Set before the first call."""
        self._resend = resend
        self._backoff = backoff
        self._timeouts = timeouts
        self._counters = counters
        self._instruments = instruments
        self.state = SessionState()
        """What a new session has to be told again."""
        self._ids = itertools.count(1)
        self._insisted: set[RequestId] = set()
        """The ids in flight that callers have chosen: no minted one may be the same."""
        self._succession = Succession(
            self.state,
            self.next_id,
            lambda generation, notice, evidence: self.supervisor.report(generation, notice, evidence),
            instruments,
        )

    def next_id(self) -> int:
        """Mint a request id, unique for the life of the client and so in each of its sessions."""
        minted = next(self._ids)
        # A generator would be a frame more for each call.
        while minted in self._insisted:
            minted = next(self._ids)
        return minted

    async def send(self, call: Call) -> dict[str, Any]:
        """Send a call, once more if that is safe, and return its result.

        Raises, cancellation, checkpoints: as `ResilientDispatcher.send_raw_request`.
        """
        generation = await self.supervisor.ready()
        outcome = await self._post(generation, call)
        if not outcome.begun:
            # Its session ended before it was written: the next sending is still its first.
            generation = await self.supervisor.ready()
            outcome = await self._post(generation, call)
        if outcome.result is None and self._may_resend(call, outcome):
            generation = await self._next_chance(call, outcome)
            self._counters.resends += 1
            if self._instruments and outcome.evidence is not None:
                self._instruments.tell(Resent(call.method, generation.number, outcome.evidence))
            first, outcome = outcome, await self._post(generation, call)
            if not outcome.begun:
                # As above: this session ended before the second was written.
                generation = await self._ready_again(call, first)
                outcome = await self._post(generation, call)
            if first.fate is Fate.UNKNOWN and says_nothing_of_the_first(call, outcome):
                raise self._error(call, first, resent=True) from self._error(call, outcome)
            if outcome.result is None:
                raise self._error(call, outcome, resent=True)
        if outcome.result is None:
            raise self._error(call, outcome)
        if call.method in STATEFUL:
            await self._follow(call, generation, outcome.result)
        return outcome.result

    async def listen(self, call: Call) -> dict[str, Any]:
        """Send the request whose answer is a stream of notifications, and wait for its end.

        Raises:
            MCPError: as the SDK's own dispatcher, also for a stream that broke off: the SDK's
                driver of subscriptions, which runs beside its session, understands nothing else.
        """
        try:
            outcome = await self._post(await self.supervisor.ready(), call)
        except (ResilientError, trio.ClosedResourceError) as error:
            raise MCPError(CONNECTION_CLOSED, f"no session to listen on: {error}") from error
        if outcome.result is not None:
            return outcome.result
        if isinstance(outcome.error, MCPError):
            raise outcome.error
        raise MCPError(CONNECTION_CLOSED, f"the subscription broke off: {outcome.error or outcome.evidence}")

    async def _post(self, generation: Generation, call: Call) -> Outcome:
        """Send once, and tell the supervisor what it means for the session."""
        request_id = self.next_id() if call.request_id is None else self._insist(call.request_id)
        try:
            params = call.next_params(request_id)
            is_modern = generation.session.era is Era.MODERN
            call.mirrored = self._parameter_headers(call) if is_modern else None
            outcome = await generation.request(
                call.method,
                params,
                request_id=request_id,
                headers=(*call.headers, *(call.mirrored or ())),
                on_progress=call.on_progress,
                cancellable=call.cancellable,
            )
        finally:
            if call.request_id is not None:
                self._insisted.discard(coerce_request_id(call.request_id))
        call.posts += outcome.begun
        if outcome.fate is not Fate.ANSWERED:
            self.supervisor.report(generation, outcome.notice, outcome.evidence)
        if outcome.result is not None and Era.MODERN in (generation.session.era, self.supervisor.era):
            outcome.result = fill_in(call.method, outcome.result)
        return outcome

    def _insist(self, request_id: RequestId) -> RequestId:
        """Keep an id that a caller has chosen from being minted for somebody else meanwhile."""
        key = coerce_request_id(request_id)
        if key in self._insisted:
            raise ValueError(f"request id {request_id!r} is already in flight")
        self._insisted.add(key)
        return request_id

    def _parameter_headers(self, call: Call) -> RawHeaders:
        """Mirror in headers the arguments that the tool's schema says so of (specification, x-mcp-header)."""
        tool = call.tool
        return () if tool is None else self.state.parameter_headers(tool, call.params.get("arguments"))

    def _may_resend(self, call: Call, outcome: Outcome) -> bool:
        policy = call.resend or self._resend
        if policy is Resend.NEVER:
            return False
        if outcome.fate in (Fate.LOST, Fate.UNSENT, Fate.BUSY) or is_mismatch(call, outcome):
            return True
        if outcome.fate is not Fate.UNKNOWN:
            return False
        if call.method in HARMLESS or policy is Resend.ALWAYS:
            return True
        return policy is Resend.IDEMPOTENT and self.state.may_repeat(call.tool)

    async def _next_chance(self, call: Call, outcome: Outcome) -> Generation:
        """Await the session to send on again; if none comes, raise what the first POST met."""
        if outcome.fate is Fate.BUSY:
            pause = self._backoff.delay(1, random.random) if outcome.pause is None else outcome.pause
            if pause > self._timeouts.recovery:
                raise self._error(call, outcome)
            await trio.sleep(pause)
        elif is_mismatch(call, outcome):
            await self._list_tools(outcome)
            if self._parameter_headers(call) == call.mirrored:
                # Nothing was missing: the code is the tool's own, or another sending is as wrong.
                raise self._error(call, outcome)
        return await self._ready_again(call, outcome)

    async def _ready_again(self, call: Call, outcome: Outcome) -> Generation:
        try:
            return await self.supervisor.ready()
        except (GaveUp, HandshakeFailed) as failure:
            raise self._error(call, outcome, failure.recovery) from failure

    async def _list_tools(self, mismatch: Outcome) -> None:
        """Learn the tools' schemas afresh, which say what arguments belong in headers."""
        cursor: dict[str, Any] = {}
        try:
            for _ in range(MAX_PAGES):
                page = await self.send(Call.make("tools/list", cursor, {}, key=None))
                if page.get("nextCursor") is None:
                    return
                cursor = {"cursor": page["nextCursor"]}
        except (MCPError, ResilientError) as error:
            assert mismatch.error is not None
            raise mismatch.error from error

    def _error(
        self, call: Call, outcome: Outcome, recovery: Recovery | None = None, *, resent: bool = False
    ) -> Exception:
        if outcome.error is not None:
            return outcome.error
        kind = TREATMENTS[outcome.fate].error
        assert kind is not None
        if recovery is None:
            recovery = self.supervisor.recovery_so_far()
        summary = SUMMARIES[outcome.fate].format(call.method)
        if resent and call.posts > 1:
            summary += " (sent twice)"
        if outcome.fate is Fate.LOST and self.supervisor.is_flapping:
            summary += f" ({FLAPPING_HINT})"
        error = kind(summary, evidence=outcome.evidence, recovery=recovery)
        if isinstance(error, OutcomeUnknown):
            self._counters.outcome_unknown += 1
            if self._instruments and outcome.evidence is not None:
                self._instruments.tell(OutcomeLost(call.method, outcome.evidence))
        return error

    # -- state that follows -------------------------------------------------------------------

    async def prepare(self, generation: Generation, *, has_roots: bool) -> None:
        """Give a new session what its predecessor had, before calls may use it."""
        await self._succession.prepare(generation, has_roots=has_roots)

    async def _follow(self, call: Call, generation: Generation, result: dict[str, Any]) -> None:
        """Learn what a call has changed, and see that the session that stands now has it too."""
        difference = self.state.observe(call.method, call.params, result)
        if difference is not None and self._instruments:
            self._instruments.tell(difference)
        if call.method not in SETTINGS or generation.end is None:
            return
        # It was answered by a session that ended meanwhile, and its successor may have been given
        # the state of before.
        try:
            await self._succession.catch_up(await self.supervisor.ready(), call.method, call.params)
        except (GaveUp, HandshakeFailed, trio.ClosedResourceError) as error:
            logger.debug("%s is left to the next session: %s", call.method, error)
