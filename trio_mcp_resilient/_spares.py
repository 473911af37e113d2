"""The connections of a pool that nobody uses, and how long they are kept.

A spare connection is *idle*, ready for a request, or *ending*: its answer was used before the
end of its body came, as with a server that sends the event and, a moment later, the end of the
stream. Nobody waits for that moment; the next request looks whether it has passed.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable

import trio

from trio_mcp_resilient._http11 import HTTP11Connection

Origin = tuple[str, str, int]
SWEEP_SECONDS = 1.0
"""How often requests close what has expired, for a pool that nobody tends: it looks at everything."""

MAX_ENDING = 64
"""How many ending connections are kept for one origin: a server that ends none of its streams must
not take all of our sockets."""


class Lot:
    """The spare connections to one origin; the longest there first."""

    __slots__ = ("ending", "idle", "patient")

    def __init__(self) -> None:
        # Lists, since a deque takes half a KiB before there is anything in it.
        self.idle: list[HTTP11Connection] = []
        self.ending: list[HTTP11Connection] = []
        self.patient = True
        """Whether waiting for an end has been worth it here."""


class Spares:
    """The spare connections of a pool.

    Args:
        drop: closes a connection and forgets it.
    """

    def __init__(self, drop: Callable[[HTTP11Connection], None]) -> None:
        self._drop = drop
        self._lots: dict[Origin, Lot] = {}
        self._next_sweep = -math.inf
        self._alarm = trio.CancelScope()

    def lot(self, origin: Origin) -> Lot | None:
        """Return what there is for an origin, and close what has expired anywhere, now and then."""
        now = trio.current_time()
        if now >= self._next_sweep:
            self._next_sweep = now + SWEEP_SECONDS
            self._drop_expired(now)
        return self._lots.get(origin)

    def keep(self, connection: HTTP11Connection, seconds: float, *, is_idle: bool) -> None:
        """Keep a connection for so many seconds at most."""
        lot = self._lots.get(connection.origin)
        if lot is None:
            lot = self._lots[connection.origin] = Lot()
        connection.expires_at = trio.current_time() + seconds
        (lot.idle if is_idle else lot.ending).append(connection)
        if len(lot.ending) > MAX_ENDING:
            self._drop(lot.ending.pop(0))
        # Nearly always one has been there before, that expires sooner.
        if connection.expires_at < self._alarm.deadline:
            self._alarm.deadline = connection.expires_at

    def make_room(self, must_go: Callable[[], bool]) -> None:
        """Close spare connections, of any origin, as long as one must go."""
        for there in [there for lot in self._lots.values() for there in (lot.ending, lot.idle)]:
            while there and must_go():
                self._drop(there.pop(0))

    def clear(self) -> None:
        """Forget all of them."""
        self._lots.clear()

    def count(self) -> tuple[int, int]:
        """Return how many are idle, and how many ending."""
        lots = self._lots.values()
        return sum(len(lot.idle) for lot in lots), sum(len(lot.ending) for lot in lots)

    async def tend(self, wait: Callable[[], Awaitable[object]]) -> None:
        """Close connections as they expire, for as long as something is waited for.

        Whoever has nothing but to wait lends its task: one of the pool's own would hold more
        than what it closes. Cancellation and checkpoints: those of `wait`.
        """
        while True:
            expiries = [spare.expires_at for lot in self._lots.values() for spare in (*lot.idle, *lot.ending)]
            self._alarm = trio.CancelScope(deadline=min(expiries, default=math.inf))
            with self._alarm:
                await wait()
                return
            self._drop_expired(trio.current_time())

    def _drop_expired(self, now: float) -> None:
        for origin, lot in list(self._lots.items()):
            for there in (lot.idle, lot.ending):
                expired = [spare for spare in there if spare.expires_at <= now]
                if expired:
                    there[:] = [spare for spare in there if spare.expires_at > now]
                for spare in expired:
                    self._drop(spare)
            if not lot.idle and not lot.ending and lot.patient:
                del self._lots[origin]
