"""Going on with an answer whose stream broke after the server gave it an event id.

Until protocol version 2025-11-25 a broken stream is not a cancelled call: the server may keep
the rest, and gives it to whoever asks with GET and `Last-Event-ID` (specification, resumability
and redelivery). Servers differ in how well they do it: some replay other calls' messages, some
answer with silence although the result is stored, some hold the old stream for a while.
"""

from __future__ import annotations

import math
import random

import trio

from trio_mcp_resilient._answers import Answer, Cursor, Deliver, Unreadable, media_type, read_answer
from trio_mcp_resilient._detector import Verdict
from trio_mcp_resilient._exchange import Exchange
from trio_mcp_resilient._flight import EndReason, Flight
from trio_mcp_resilient._jsonrpc import RequestId
from trio_mcp_resilient._outcome import Fate, Outcome
from trio_mcp_resilient._policy import Backoff
from trio_mcp_resilient._session import LAST_EVENT_HEADER
from trio_mcp_resilient._wire import Response, WireError

PACE = Backoff(first=1.0, factor=2.0, cap=30.0, jitter=0.0, attempts=8)
"""Waits where the server names none, and how many openings in a row may bring nothing."""
FLOOR_SECONDS = 0.5
"""From one opening to the next at least, whatever the server's `retry`: one that answers each with
an event and ends it at once must not be asked as fast as the network allows, for ever."""
SETTLED_SECONDS = 5.0
"""Without an event, an opening that lasted less has brought nothing, whatever came on it."""
SILENCE_SECONDS = 30.0
"""Without an event on a resumed stream for so long, it is asked for again: what is stored may
have been put aside for the next who asks."""


async def resume(
    exchange: Exchange, method: str, flight: Flight, deliver: Deliver, cursor: Cursor, cut: Outcome
) -> Outcome:
    """Take the answer up where it broke, until it comes, is refused, or nothing more helps.

    Args:
        cut: the outcome to fall back on: sent, and its answer cut.
    """
    fruitless = 0
    opened = -math.inf
    while not PACE.spent(fruitless):
        # Never before the server's own time (specification: MUST), and at it, not long after.
        wait = PACE.first if cursor.retry is None else cursor.retry
        wait = max(wait, opened + FLOOR_SECONDS - trio.current_time())
        if fruitless:
            wait = max(wait, PACE.delay(fruitless, random.random))
        resume_at = trio.current_time() + wait
        end = await flight.end_within(wait)
        if end is not None:
            if end.reason is not EndReason.INVALIDATED:
                return cut
            # The application wants another session; the server still has this one, and the answer.
            await trio.sleep_until(resume_at)
        watch, opened, before = _Watch(), trio.current_time(), cursor.events
        outcome = await _once(exchange, method, flight, deliver, cursor, watch)
        if outcome is not None:
            return outcome if outcome.fate is not Fate.UNKNOWN or outcome.session_gone else cut
        lasted = watch.heard and trio.current_time() - opened >= SETTLED_SECONDS
        fruitless = 0 if lasted or cursor.events > before else fruitless + 1
    return cut


class _Watch:
    """Ends the reading of a stream on which no event gets on.

    Comments show that somebody is there, which makes asking again worth while. They do not show
    that the answer will come this way: SDK servers send one every 15 s on a stream that they have
    nothing to say on, also when the answer has long been stored for whoever asks anew.
    """

    def __init__(self) -> None:
        self.heard = False
        self._silence = trio.CancelScope()
        self._response: Response
        self._cursor: Cursor
        self._place = (0, 0)

    async def read(
        self, response: Response, request_id: RequestId, deliver: Deliver, cursor: Cursor
    ) -> Answer | None:
        """Read up to the answer; None once the stream has been silent for too long."""
        self._response = response
        self._cursor = cursor
        self._place = (cursor.events, cursor.unfinished)
        self.status, self.headers = response.status, response.headers
        self._silence.deadline = trio.current_time() + SILENCE_SECONDS
        with self._silence:
            return await read_answer(self, request_id, deliver, cursor)
        return None

    async def receive(self) -> bytes:
        """Receive as the response does, starting the silence over if the last chunk was of an event."""
        place = (self._cursor.events, self._cursor.unfinished)
        if place != self._place:
            self._place = place
            self._silence.deadline = trio.current_time() + SILENCE_SECONDS
        chunk = await self._response.receive()
        self.heard = self.heard or bool(chunk)
        return chunk

    async def aclose(self) -> None:
        """Close the response."""
        await self._response.aclose()


async def _once(
    exchange: Exchange, method: str, flight: Flight, deliver: Deliver, cursor: Cursor, watch: _Watch
) -> Outcome | None:
    """Ask once; None if it is worth asking again."""
    headers = (*exchange.session.get_headers, (LAST_EVENT_HEADER, cursor.last_event_id.encode()))
    response: Response | None = None
    try:
        # A GET's own wait for its head is endless, for it may be the standalone stream's.
        with trio.move_on_after(SILENCE_SECONDS):
            response = await exchange.wire.send("GET", headers, may_be_silent=True)
    except WireError:
        return None
    if response is None:
        return None
    try:
        if response.status == 200 and media_type(response) == "text/event-stream":
            answer = await watch.read(response, flight.request_id, deliver, cursor)
            if answer is None:
                return None
            outcome = exchange.answered(method, response, answer)
            if outcome.fate is Fate.LOST:
                # It is this GET that was refused; the request was taken on long before.
                return Outcome(Fate.UNKNOWN, evidence=outcome.evidence, session_gone=True)
            return None if answer.message is None else outcome
        verdict, evidence = await exchange.read_refusal("GET", response)
        if verdict is Verdict.SESSION_LOST:
            # The stream went with the session; that the call was running before is no secret.
            return Outcome(Fate.UNKNOWN, evidence=evidence, session_gone=True)
        if response.status in (408, 409, 425, 429) or response.status >= 500:
            return None
        return Outcome(Fate.UNKNOWN, evidence=evidence)
    except Unreadable:
        return Outcome(Fate.UNKNOWN)
    except WireError:
        return None
    finally:
        await response.aclose()
