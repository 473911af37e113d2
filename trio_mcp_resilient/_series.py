"""One recovery: the attempts of a series, and what came of them."""

from __future__ import annotations

from collections import deque

import trio

from trio_mcp_resilient._errors import Evidence, Recovery, ResilientError

MAX_ERRORS = 16


class Series:
    """A recovery under way, with the event that everybody who needs a session awaits."""

    def __init__(self) -> None:
        self.done = trio.Event()
        self.urgent = trio.Event()
        """Set once a call waits for it."""
        self.attempts = 0
        self.errors: deque[Exception] = deque(maxlen=MAX_ERRORS)
        """What the last attempts met: a recovery without a budget may go on for weeks."""
        self.unanswered = 0
        """How many pings of a session in doubt had no answer."""
        self.silence: Evidence | None = None
        """What the last of them met."""
        self.failure: ResilientError | None = None
        self._began = trio.current_time()

    def so_far(self) -> Recovery:
        """Return how it went until now."""
        last = str(self.errors[-1]) if (self.errors and not self.done.is_set()) or self.failure else ""
        return Recovery(self.attempts, trio.current_time() - self._began, last)

    def met(self) -> ExceptionGroup[Exception] | None:
        """Return what the attempts met, to be the cause of what a caller gets; None for nothing.

        Of attempts that met the same there is the last: a server that is down says it ten times.
        """
        met = {str(error): error for error in self.errors}
        return ExceptionGroup("what the attempts met", list(met.values())) if met else None
