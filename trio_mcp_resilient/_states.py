"""The life of a client as a table.

Rules for maintainers: `TRANSITIONS` is the only place that says what may follow what, the
diagram in the docs is generated from it, and an illegal move raises before anything changes.
"""

from __future__ import annotations

import enum
from collections.abc import Callable


class State(enum.StrEnum):
    """What a client is doing about its session."""

    CONNECTING = "connecting"
    """Making the first session."""
    READY = "ready"
    """A session stands; calls go out at once."""
    RECOVERING = "recovering"
    """The session was lost or is in doubt; calls wait for the next ready one."""
    DORMANT = "dormant"
    """A recovery gave up; the next call starts another."""
    CLOSED = "closed"
    """Final."""


TRANSITIONS: dict[State, frozenset[State]] = {
    State.CONNECTING: frozenset({State.READY, State.DORMANT, State.CLOSED}),
    State.READY: frozenset({State.RECOVERING, State.CLOSED}),
    State.RECOVERING: frozenset({State.READY, State.DORMANT, State.CLOSED}),
    State.DORMANT: frozenset({State.RECOVERING, State.CLOSED}),
    State.CLOSED: frozenset(),
}


class IllegalTransition(RuntimeError):
    """A move the table does not have: a bug of this package, please report it."""


class StateMachine:
    """The current state, moved only along the table."""

    def __init__(self, on_change: Callable[[State, State], None]) -> None:
        self.state = State.CONNECTING
        self._on_change = on_change

    def move(self, to: State) -> None:
        """Move, then tell; staying where one is is no move.

        Raises:
            IllegalTransition: if the table has no such move; nothing has changed then.
        """
        before = self.state
        if to is before:
            return
        if to not in TRANSITIONS[before]:
            raise IllegalTransition(f"{before} to {to}")
        self.state = to
        self._on_change(before, to)
