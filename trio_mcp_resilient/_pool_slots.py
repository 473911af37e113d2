"""Who has which client of a pool, who waits, and which client goes: bookkeeping without any I/O.

Rules for maintainers:

- Everything here is synchronous, so that no invariant is ever broken across a checkpoint. The
  time is an argument.
- A client leaves at once, and its room is free at once. Closing it is somebody else's work.
- There is never both room and somebody who waits for it: whatever makes room calls `_serve`.
- Only `ask` and `connected` hand a client over, and only what accepts it holds a lease: one who
  has left cannot be given anything.
- Each operation costs the same however many clients there are, and a sweep as much as it closes
  (but for a logarithm, once for each client's lifetime).
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Generic, Literal, Protocol, TypeVar

from trio_mcp_resilient._errors import PoolFull
from trio_mcp_resilient._pool_events import Closing
from trio_mcp_resilient._pool_keys import Key
from trio_mcp_resilient._pool_slot import Slot, SlotState
from trio_mcp_resilient._pool_statistics import PoolCounters

JITTER = 0.1
"""The share of a lifetime that is drawn at random: clients opened together do not all end together."""


@dataclass(frozen=True)
class Limits:
    """What the user may choose of a pool's size, validated once."""

    max_clients: float
    max_idle: float
    idle_timeout: float
    max_lifetime: float
    when_full: Literal["wait", "fail"]

    def __post_init__(self) -> None:
        if not self.max_clients >= 1:
            raise ValueError("max_clients is a count of 1 or more, or math.inf")
        if not self.max_idle >= 0:
            raise ValueError("max_idle is a count, or math.inf")
        if not (self.idle_timeout > 0 and self.max_lifetime > 0):
            raise ValueError("idle_timeout and max_lifetime are seconds above 0, or math.inf")
        if self.when_full not in ("wait", "fail"):
            raise ValueError('when_full is "wait" or "fail"')


S = TypeVar("S", bound=Slot)


class Waiter(Protocol[S]):
    """Somebody who asks for a client."""

    @property
    def key(self) -> Key:
        """Whose client."""
        ...

    def open(self) -> S:
        """Begin to connect such a client. Synchronous."""
        ...

    def offer(self, slot: S) -> bool:
        """Take a lease; return whether it was accepted, which it is not by one who has left."""
        ...

    def fail(self, error: Exception) -> None:
        """Hear that there will be no lease."""
        ...


class Slots(Generic[S]):
    """All clients of a pool and all who wait."""

    def __init__(self, limits: Limits, counters: PoolCounters, draw: Callable[[], float]) -> None:
        self.limits = limits
        self._counters = counters
        self._draw = draw
        self._held: dict[S, None] = {}
        self._by_key: dict[Key, S] = {}
        self._idle: OrderedDict[S, float] = OrderedDict()
        """Whom nobody uses, longest first, and since when: idle ones, and connects whose waiters left."""
        self._queue: OrderedDict[Waiter[S], None] = OrderedDict()
        """Who waits for room, longest first."""
        self._wanted: dict[Key, dict[Waiter[S], None]] = {}
        """The same by key: one client does for all of a key's."""
        self._joined: dict[Waiter[S], S] = {}
        """Who waits for a connect under way."""
        self._expected: dict[S, dict[Waiter[S], None]] = {}
        """The same by slot."""
        self._deaths: list[tuple[float, int, S]] = []
        """A heap; a slot that went before its time stays in it until there are too many such."""
        self._opened = 0

    # -- what there is ------------------------------------------------------------------------

    @property
    def held(self) -> list[S]:
        """Every client that takes up room, oldest first."""
        return list(self._held)

    def __len__(self) -> int:
        return len(self._held)

    @property
    def waiting(self) -> int:
        """How many wait for room."""
        return len(self._queue)

    def find(self, key: Key) -> S | None:
        """Return the client that is given to whoever asks for this key, if there is one."""
        return self._by_key.get(key)

    def next_expiry(self) -> float:
        """Return when there is something for `expire` to do; `math.inf` for never."""
        while self._deaths and self._deaths[0][2].state is SlotState.GONE:
            heappop(self._deaths)
        death = self._deaths[0][0] if self._deaths else math.inf
        since = next(iter(self._idle.values()), math.inf)
        return min(death, since + self.limits.idle_timeout)

    # -- coming and going ---------------------------------------------------------------------

    def ask(self, waiter: Waiter[S], now: float) -> None:
        """Give a client at once, or let the waiter wait for a connect or for room.

        Raises:
            PoolFull: there is no room, and the policy is to fail.
        """
        slot = self._by_key.get(waiter.key)
        if slot is not None and slot.dies_at <= now and self._make_room():
            # Past its time, and can be replaced without anybody's waiting for that. Else it is
            # shared on: who holds a lease of it and asks for another must not wait for itself.
            if slot.state is not SlotState.GONE:
                self.retire(slot, Closing.AGE, now)
            slot = None
        if slot is None:
            if not self._make_room():
                self._enqueue(waiter)
                return
            slot = self._open(waiter, now)
        if slot.state is SlotState.CONNECTING:
            self._expect(waiter, slot)
        else:
            self._give(waiter, slot)

    def leave(self, waiter: Waiter[S], now: float) -> None:
        """Forget one who waits no more. A connect under way goes on, for whoever comes next."""
        if waiter in self._queue:
            del self._queue[waiter]
            same = self._wanted[waiter.key]
            del same[waiter]
            if not same:
                del self._wanted[waiter.key]
        else:
            slot = self._joined.pop(waiter)
            del self._expected[slot][waiter]
            self.settle(slot, now)

    def give_back(self, slot: S, now: float) -> None:
        """End one lease."""
        slot.leases -= 1
        self.settle(slot, now)

    def connected(self, slot: S, now: float) -> None:
        """Hand a client, now that it is connected, to all who still wait for it."""
        if slot.state is SlotState.GONE:
            return
        self._idle.pop(slot, None)
        slot.move(SlotState.IN_USE)
        for waiter in self._expected.pop(slot):
            del self._joined[waiter]
            self._give(waiter, slot)
        self.settle(slot, now)

    def failed(self, slot: S, error: Exception, now: float) -> None:
        """Forget a client that could not be connected, or that broke, and tell who waits for it."""
        if slot.state is SlotState.GONE:
            return
        waiters = self._drop(slot, Closing.FAILED)
        for waiter in waiters:
            waiter.fail(error)
        self._serve(now)

    def settle(self, slot: S, now: float) -> None:
        """Let a client rest or go, if nobody uses it any more."""
        if slot.state is SlotState.GONE or slot.leases or self._expected.get(slot) or not slot.is_quiet:
            return
        if slot.retired is not None:
            self._close(slot, slot.retired)
        elif slot.dies_at <= now:
            self._close(slot, Closing.AGE)
        else:
            self._rest(slot, now)
        self._serve(now)

    def retire(self, slot: S, reason: Closing, now: float) -> None:
        """Give a client to nobody new, and close it when it is used no more: at once, if it is not."""
        if self._by_key.get(slot.key) is slot:
            del self._by_key[slot.key]
        slot.retired = slot.retired or reason
        self.settle(slot, now)

    def expire(self, now: float) -> None:
        """Close the clients that have been idle for too long, or alive for too long."""
        while self._idle:
            slot, since = next(iter(self._idle.items()))
            if since + self.limits.idle_timeout > now:
                break
            if self._is_unused(slot):
                self._close(slot, Closing.IDLE)
        while self._deaths and self._deaths[0][0] <= now:
            slot = heappop(self._deaths)[2]
            # One in use is closed when it comes back: `settle` looks at its age.
            if slot in self._idle and self._is_unused(slot):
                self._close(slot, Closing.AGE)
        self._serve(now)

    def shut(self, error: Exception, now: float) -> None:
        """Turn away all who wait, and retire every client."""
        waiters = [*self._queue, *self._joined]
        self._queue.clear()
        self._wanted.clear()
        self._joined.clear()
        for expected in self._expected.values():
            expected.clear()
        for waiter in waiters:
            waiter.fail(error)
        for slot in self.held:
            self.retire(slot, Closing.POOL_CLOSED, now)

    def evict(self, slot: S) -> None:
        """Close a client that is held, whoever uses it."""
        self._close(slot, Closing.POOL_CLOSED)

    # -- the moves ----------------------------------------------------------------------------

    def _enqueue(self, waiter: Waiter[S]) -> None:
        if self.limits.when_full == "fail":
            raise PoolFull(f"all {len(self._held)} clients of the pool are in use")
        self._queue[waiter] = None
        self._wanted.setdefault(waiter.key, {})[waiter] = None

    def _open(self, waiter: Waiter[S], now: float) -> S:
        slot = waiter.open()
        self._held[slot] = None
        self._by_key[slot.key] = slot
        self._expected[slot] = {}
        if self.limits.max_lifetime < math.inf:
            slot.dies_at = now + self.limits.max_lifetime * (1 - JITTER * self._draw())
            self._opened += 1
            heappush(self._deaths, (slot.dies_at, self._opened, slot))
            if len(self._deaths) > 2 * len(self._held) + 16:
                self._deaths = [death for death in self._deaths if death[2].state is not SlotState.GONE]
                heapify(self._deaths)
        return slot

    def _expect(self, waiter: Waiter[S], slot: S) -> None:
        self._idle.pop(slot, None)
        self._joined[waiter] = slot
        self._expected[slot][waiter] = None

    def _give(self, waiter: Waiter[S], slot: S) -> None:
        if waiter.offer(slot):
            self._idle.pop(slot, None)
            slot.leases += 1
            slot.move(SlotState.IN_USE)

    def _rest(self, slot: S, now: float) -> None:
        if slot.state is SlotState.IN_USE:
            slot.move(SlotState.IDLE)
        self._idle[slot] = now
        self._idle.move_to_end(slot)
        while len(self._idle) > self.limits.max_idle:
            longest = next(iter(self._idle))
            if self._is_unused(longest):
                self._close(longest, Closing.SURPLUS)

    def _is_unused(self, slot: S) -> bool:
        """Whether an idle client is really idle: somebody may call it without a lease."""
        if slot.is_quiet:
            return True
        del self._idle[slot]
        slot.move(SlotState.IN_USE)
        return False

    def _make_room(self) -> bool:
        """Return whether there is room for one more, parting with whom nobody uses if need be."""
        if len(self._held) < self.limits.max_clients:
            return True
        while self._idle:
            longest = next(iter(self._idle))
            if self._is_unused(longest):
                self._close(longest, Closing.ROOM)
                return True
        return False

    def _serve(self, now: float) -> None:
        """Give room to who has waited longest for it, and with them to all who want the same client."""
        while self._queue and self._make_room():
            first = next(iter(self._queue))
            waiters = self._wanted.pop(first.key)
            slot = self._open(first, now)
            for waiter in waiters:
                del self._queue[waiter]
                self._expect(waiter, slot)

    def _close(self, slot: S, reason: Closing) -> None:
        self._drop(slot, reason)
        slot.close(reason)

    def _drop(self, slot: S, reason: Closing) -> list[Waiter[S]]:
        slot.move(SlotState.GONE)
        del self._held[slot]
        self._idle.pop(slot, None)
        if self._by_key.get(slot.key) is slot:
            del self._by_key[slot.key]
        self._counters.closed[reason] += 1
        waiters = list(self._expected.pop(slot, {}))
        for waiter in waiters:
            del self._joined[waiter]
        return waiters
