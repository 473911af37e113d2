"""What a client tells those who watch it: frozen records, made only when somebody does."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from trio_mcp_resilient._errors import Evidence, Recovery
from trio_mcp_resilient._states import State

logger = logging.getLogger("trio_mcp_resilient")


@dataclass(frozen=True)
class StateChanged:
    """The client moved along its table of states."""

    before: State
    after: State


@dataclass(frozen=True)
class SessionStarted:
    """A generation's handshake was completed and calls may use it."""

    generation: int
    session: str
    """The session's fingerprint; empty if the server gave no id."""
    protocol_version: str
    recovery: Recovery


@dataclass(frozen=True)
class SessionEnded:
    """A generation was condemned; its calls in flight keep their answers' connections."""

    generation: int
    session: str
    reason: str
    evidence: Evidence | None
    in_flight: int


@dataclass(frozen=True)
class RecoveryFailed:
    """A recovery gave up; the next call starts another."""

    error: str
    recovery: Recovery


@dataclass(frozen=True)
class Resent:
    """A request that certainly did not run, or is harmless to repeat, was sent again."""

    method: str
    generation: int
    """The generation it was sent on the second time."""
    evidence: Evidence


@dataclass(frozen=True)
class OutcomeLost:
    """A request of unknown outcome was reported to its caller."""

    method: str
    evidence: Evidence


@dataclass(frozen=True)
class StreamGap:
    """The server's unasked messages may have been missed: the stream began anew, not where it broke."""

    generation: int
    """The generation whose stream begins after the gap."""


@dataclass(frozen=True)
class RestoreFailed:
    """What was set on the lost session could not be set on the new one, which is used all the same."""

    generation: int
    method: str
    error: str


@dataclass(frozen=True)
class ToolsChanged:
    """A new listing of the tools differs from the one before; names, sorted."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]


@dataclass(frozen=True)
class Flapping:
    """Sessions do not survive: the endpoint may be load-balanced without stickiness."""

    losses: int
    seconds: float
    """Within how many seconds those losses were."""


Event: TypeAlias = (
    StateChanged
    | SessionStarted
    | SessionEnded
    | RecoveryFailed
    | Resent
    | OutcomeLost
    | StreamGap
    | RestoreFailed
    | ToolsChanged
    | Flapping
)

Watcher: TypeAlias = Callable[[Event], None]
"""Receives each event, synchronously, in the order things happened."""


T = TypeVar("T")


def contained(watcher: Callable[[T], None]) -> Callable[[T], None]:
    """Wrap a user's watcher so that its failure costs one event and never a session."""

    def watch(event: T) -> None:
        try:
            watcher(event)
        except Exception:
            logger.exception("on_event raised for %s", type(event).__name__)

    return watch
