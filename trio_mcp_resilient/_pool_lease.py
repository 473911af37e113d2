"""One who asks for a client of a pool: a task that waits, and then the scope of its lease.

A hand-off is exact. A task that is cancelled while it waits takes itself out of the books at that
moment, in its abort function, and not when it is next scheduled: so what is offered to somebody
who waits is accepted, and what was accepted is given back.
"""

from __future__ import annotations

import enum
from typing import Protocol

import trio

from trio_mcp_resilient._client import Client
from trio_mcp_resilient._errors import twin
from trio_mcp_resilient._pool_client import Asked, PooledClient
from trio_mcp_resilient._pool_keys import Key


class LeaseState(enum.StrEnum):
    """How far one who asked has come."""

    ASKING = "asking"
    GIVEN = "given"
    FAILED = "failed"
    LEFT = "left"


class Books(Protocol):
    """The pool, as those who ask see it. All synchronous."""

    def open(self, asked: Asked) -> PooledClient:
        """Begin to connect a client."""
        ...

    def given(self, lease: Lease, slot: PooledClient) -> None:
        """Write down a lease that was accepted."""
        ...

    def left(self, lease: Lease) -> None:
        """Strike out one who waits no more."""
        ...


class Lease:
    """A task's claim to a client."""

    def __init__(self, asked: Asked, books: Books) -> None:
        self.asked = asked
        self.state: LeaseState = LeaseState.ASKING
        self.scope: trio.CancelScope = trio.CancelScope()
        """Around what the task does with the client: cancelled if the client or the pool ends first."""
        self.slot: PooledClient | None = None
        self.error: Exception | None = None
        self.asked_at: float = trio.current_time()
        self._books = books
        self._parked: trio.lowlevel.Task | None = None

    @property
    def key(self) -> Key:
        """Whose client."""
        return self.asked.key

    def open(self) -> PooledClient:
        """Begin to connect the client that was asked for."""
        return self._books.open(self.asked)

    def offer(self, slot: PooledClient) -> bool:
        """Take a lease of a client, unless the task has left."""
        if self.state is not LeaseState.ASKING:
            return False
        self.slot = slot
        self._books.given(self, slot)
        self._settle(LeaseState.GIVEN)
        return True

    def fail(self, error: Exception) -> None:
        """Hear that there will be no lease."""
        if self.state is LeaseState.ASKING:
            self.error = twin(error)
            self._settle(LeaseState.FAILED)

    def end(self, error: Exception) -> None:
        """Cancel what the task does with its lease, because of this."""
        self.error = twin(error)
        self.scope.cancel()

    async def wait(self) -> Client:
        """Return the client once there is a lease. No checkpoint if there is one already.

        Raises:
            Exception: of this task's own, if there will be none.

        Cancellation: the task has left, and nothing is leased.
        """
        if self.state is LeaseState.ASKING:
            self._parked = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._abort)
        if self.error is not None and self.slot is None:
            raise self.error
        assert self.slot is not None and self.slot.client is not None
        return self.slot.client

    def _abort(self, _: object) -> trio.lowlevel.Abort:
        self._parked = None
        self.state = LeaseState.LEFT
        self._books.left(self)
        return trio.lowlevel.Abort.SUCCEEDED

    def _settle(self, state: LeaseState) -> None:
        self.state = state
        if self._parked is not None:
            trio.lowlevel.reschedule(self._parked)
            self._parked = None
