"""What a client counts, and the frozen picture of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """The live counts, each written in one place."""

    generations: int = 0
    losses: int = 0
    resends: int = 0
    handshakes: int = 0
    calls: int = 0
    outcome_unknown: int = 0
    last_recovery_seconds: float | None = None
    in_progress: int = 0
    """Calls that have begun and not ended, on whatever session, or waiting for one."""
    on_quiet: Callable[[], None] | None = None
    """Called when the last call in progress has ended: a pool parts with a client only then."""


@dataclass(frozen=True)
class Statistics:
    """A client's counts since it was opened."""

    generations: int
    """Sessions that stood."""
    losses: int
    """Sessions the server was found to have forgotten."""
    resends: int
    """Requests that were sent a second time."""
    handshakes: int
    """Handshakes begun, those that failed included."""
    calls: int
    """Requests, whatever became of them: those of the SDK's session and the listing of a new
    session's tools included, handshakes, probes and what restores a session not."""
    outcome_unknown: int
    """Requests that ended in `OutcomeUnknown`."""
    last_recovery_seconds: float | None
    """How long the last recovery took, on Trio's clock; None before the first connect."""
    in_flight: int
    """Requests on the current session right now."""
