"""The place of one client in a pool: what it is there for, as a table."""

from __future__ import annotations

import enum
import math
from abc import ABC, abstractmethod

from trio_mcp_resilient._pool_events import Closing
from trio_mcp_resilient._pool_keys import Key


class SlotState(enum.StrEnum):
    """What a client of a pool is there for."""

    CONNECTING = "connecting"
    IN_USE = "in use"
    """It has a lease, or a call that outlasts its lease."""
    IDLE = "idle"
    GONE = "gone"
    """It takes up no room any more."""


TRANSITIONS: dict[SlotState, frozenset[SlotState]] = {
    SlotState.CONNECTING: frozenset({SlotState.IN_USE, SlotState.GONE}),
    SlotState.IN_USE: frozenset({SlotState.IDLE, SlotState.GONE}),
    SlotState.IDLE: frozenset({SlotState.IN_USE, SlotState.GONE}),
    SlotState.GONE: frozenset(),
}


class Slot(ABC):
    """The place of one client in a pool; what it is a client of, and its task, are its subclass's."""

    def __init__(self, key: Key) -> None:
        self.key = key
        self.state: SlotState = SlotState.CONNECTING
        self.leases = 0
        self.dies_at: float = math.inf
        self.retired: Closing | None = None
        """Why it closes as soon as nobody uses it any more; nobody new gets it."""

    @property
    @abstractmethod
    def is_quiet(self) -> bool:
        """Whether no call is in progress on the client."""

    @abstractmethod
    def close(self, reason: Closing) -> None:
        """Begin to close the client, or to give up connecting it. Synchronous."""

    def move(self, to: SlotState) -> None:
        """Move along the table; staying where one is is no move."""
        if to is self.state:
            return
        if to not in TRANSITIONS[self.state]:
            raise AssertionError(f"{self.state} to {to}")
        self.state = to
