"""What holds of a pool whatever happens: in its books step by step, and in whole pools of clients."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from trio.testing import MockClock

from tests.kit import STEADY, open_server
from trio_mcp_resilient import Client, Closing, HandshakeFailed, Pool, _pool_slots, open_pool
from trio_mcp_resilient._pool_keys import Key, Keyring
from trio_mcp_resilient._pool_slot import TRANSITIONS, Slot, SlotState
from trio_mcp_resilient._pool_slots import Limits, Slots
from trio_mcp_resilient._pool_statistics import PoolCounters

KEYRING = Keyring(None)
KEYS = [KEYRING.key("http://books.test/", {"user": name}, None, name=name, options={}) for name in "abcde"]
KEY = st.sampled_from(KEYS)


class Recorded(Slot):
    """A slot that takes note of how it ended."""

    def __init__(self, key: Key, books: Books) -> None:
        super().__init__(key)
        self.quiet = True
        self.closed: Closing | None = None
        self._books = books

    @property
    def is_quiet(self) -> bool:
        return self.quiet

    def close(self, reason: Closing) -> None:
        assert self.closed is None, "closed twice"
        assert self.quiet, "closed under a call"
        assert not self.leases, "closed under a lease"
        assert not any(each.waits_for is self for each in self._books.asked), "closed under who waits for it"
        self.closed = reason


@dataclass(eq=False)
class Asker:
    """Somebody who asks; may leave in silence, as nobody does whom the pool wakes."""

    key: Key
    books: Books
    left: bool = False
    slot: Recorded | None = None
    error: Exception | None = None
    waits_for: Recorded | None = None
    order: int = 0

    def open(self) -> Recorded:
        slot = Recorded(self.key, self.books)
        self.books.opened.append(slot)
        # Room goes to who has waited longest.
        waiting = [each.order for each in self.books.asked if each.waits and each.waits_for is None]
        assert all(self.order <= order for order in waiting)
        return slot

    def offer(self, slot: Recorded) -> bool:
        assert self.waits
        self.waits_for = None
        if self.left:
            self.books.asked.remove(self)
            return False
        self.slot = slot
        return True

    def fail(self, error: Exception) -> None:
        assert self.waits
        self.waits_for = None
        self.error = error

    @property
    def waits(self) -> bool:
        return self.slot is None and self.error is None


class Books(RuleBasedStateMachine):
    """The books against what must be true of them after every step."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.asked: list[Asker] = []
        self.opened: list[Recorded] = []
        self.draws = 0
        self.orders = 0
        self.limits = Limits(3, 2, 10.0, 50.0, "wait")
        self.counters = PoolCounters()
        self.slots: Slots[Recorded] = Slots(self.limits, self.counters, self.draw)

    def draw(self) -> float:
        self.draws += 1
        return self.draws % 10 / 10

    # -- what may happen ----------------------------------------------------------------------

    @rule(key=KEY)
    def ask(self, key: Key) -> None:
        self.orders += 1
        asker = Asker(key, self, order=self.orders)
        self.asked.append(asker)
        self.slots.ask(asker, self.now)
        self._look()

    @precondition(lambda self: any(each.waits for each in self.asked))
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        asker = data.draw(st.sampled_from([each for each in self.asked if each.waits]))
        self.asked.remove(asker)
        asker.left = True
        self.slots.leave(asker, self.now)
        self._look()

    @precondition(lambda self: any(each.waits_for is not None for each in self.asked))
    @rule(data=st.data())
    def leave_in_silence(self, data: st.DataObject) -> None:
        asker = data.draw(st.sampled_from([each for each in self.asked if each.waits_for is not None]))
        asker.left = True

    @precondition(lambda self: any(each.slot is not None for each in self.asked))
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        asker = data.draw(st.sampled_from([each for each in self.asked if each.slot is not None]))
        self.asked.remove(asker)
        assert asker.slot is not None
        self.slots.give_back(asker.slot, self.now)
        self._look()

    @precondition(lambda self: any(each.state is SlotState.CONNECTING for each in self.opened))
    @rule(data=st.data(), fails=st.booleans())
    def connect(self, data: st.DataObject, fails: bool) -> None:
        slot = self._one(data, SlotState.CONNECTING)
        waited = [each for each in self.asked if each.waits_for is slot]
        if fails:
            self.slots.failed(slot, OSError("down"), self.now)
            assert all(each.error is not None for each in waited)
        else:
            self.slots.connected(slot, self.now)
            assert all((each.slot is slot) != each.left for each in waited)
        self._look()

    @precondition(lambda self: any(each.state is SlotState.IN_USE for each in self.opened))
    @rule(data=st.data())
    def crash(self, data: st.DataObject) -> None:
        slot = self._one(data, SlotState.IN_USE)
        self.slots.failed(slot, OSError("bug"), self.now)
        self._look()

    @precondition(lambda self: any(each.state in (SlotState.IN_USE, SlotState.IDLE) for each in self.opened))
    @rule(data=st.data())
    def call(self, data: st.DataObject) -> None:
        slot = self._one(data, SlotState.IN_USE, SlotState.IDLE)
        slot.quiet = not slot.quiet
        if slot.quiet:
            self.slots.settle(slot, self.now)
        self._look()

    @rule(key=KEY)
    def invalidate(self, key: Key) -> None:
        slot = self.slots.find(key)
        if slot is not None:
            self.slots.retire(slot, Closing.INVALIDATED, self.now)
        assert self.slots.find(key) is None or self.slots.find(key) is not slot
        self._look()

    @rule(seconds=st.sampled_from([1.0, 9.0, 40.0]))
    def pass_time(self, seconds: float) -> None:
        end = self.now + seconds
        while self.slots.next_expiry() <= end:
            self.now = max(self.now, self.slots.next_expiry())
            before = self.slots.next_expiry()
            self.slots.expire(self.now)
            self._look()
            assert self.slots.next_expiry() > before, "a sweep leaves nothing that is due"
        self.now = end

    # -- what must hold -----------------------------------------------------------------------

    def _one(self, data: st.DataObject, *states: SlotState) -> Recorded:
        return data.draw(st.sampled_from([each for each in self.opened if each.state in states]))

    def _look(self) -> None:
        """Find out who waits for which connect, and forget who failed and what is gone."""
        expected = self.slots._expected
        for each in self.asked:
            each.waits_for = next((slot for slot, waiters in expected.items() if each in waiters), None)
        self.asked = [each for each in self.asked if each.error is None]
        self.opened = [each for each in self.opened if each.state is not SlotState.GONE or each.leases]

    @invariant()
    def there_are_never_too_many(self) -> None:
        assert len(self.slots) <= self.limits.max_clients
        assert len(self.slots._idle) <= self.limits.max_idle

    @invariant()
    def slots_are_conserved(self) -> None:
        held = self.slots.held
        assert held == [each for each in self.opened if each.state is not SlotState.GONE]
        for slot in self.opened:
            assert slot.leases == sum(each.slot is slot for each in self.asked)

    @invariant()
    def nobody_waits_beside_room(self) -> None:
        if self.slots.waiting:
            assert len(self.slots) == self.limits.max_clients
            for slot in self.slots.held:
                assert slot.leases or not slot.quiet or self.slots._expected.get(slot)

    @invariant()
    def everybody_is_somewhere(self) -> None:
        in_queue = [each for each in self.asked if each.waits and each.waits_for is None]
        assert in_queue == list(self.slots._queue), "in order of arrival"
        assert in_queue == sorted(in_queue, key=lambda each: each.order)
        by_key = {key: list(waiters) for key, waiters in self.slots._wanted.items()}
        assert by_key == {
            key: [each for each in in_queue if each.key == key] for key in {each.key for each in in_queue}
        }
        assert set(self.slots._joined) == {each for each in self.asked if each.waits_for is not None}

    @invariant()
    def who_is_idle_is_used_by_nobody(self) -> None:
        for slot in self.slots.held:
            used = bool(slot.leases or self.slots._expected.get(slot))
            if slot in self.slots._idle:
                assert not used
            elif slot.quiet:
                assert used
            if slot.state is SlotState.IDLE:
                assert slot in self.slots._idle
        assert list(self.slots._idle.values()) == sorted(self.slots._idle.values())

    @invariant()
    def nothing_is_remembered_for_ever(self) -> None:
        assert len(self.slots._deaths) <= 2 * self.limits.max_clients + 17

    def teardown(self) -> None:
        for slot in self.slots.held:
            slot.quiet = True
        while self.asked:
            asker = self.asked.pop()
            if asker.slot is not None:
                self.slots.give_back(asker.slot, self.now)
            else:
                self.slots.leave(asker, self.now)
            self._look()
        for slot in self.slots.held:
            if slot.state is SlotState.CONNECTING:
                self.slots.connected(slot, self.now)
            self.slots.settle(slot, self.now)
        self.slots.expire(math.inf)
        assert len(self.slots) == 0
        assert self.slots.next_expiry() == math.inf


TestBooks = Books.TestCase
TestBooks.settings = settings(max_examples=60, stateful_step_count=50)


@pytest.mark.parametrize("to", SlotState)
@pytest.mark.parametrize("state", SlotState)
def test_a_slot_moves_along_its_table_only(state: SlotState, to: SlotState) -> None:
    slot = Recorded(KEYS[0], Books())
    slot.state = state
    if to is state or to in TRANSITIONS[state]:
        slot.move(to)
        assert slot.state is to
    else:
        with pytest.raises(AssertionError, match=f"{state} to {to}"):
            slot.move(to)
        assert slot.state is state


# -- what it costs ----------------------------------------------------------------------------


def lines_run(operation: Callable[[], object]) -> int:
    """Return how many lines of the books an operation runs, loops included."""
    lines = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal lines
        if frame.f_code.co_filename != _pool_slots.__file__:
            return None
        lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        operation()
    finally:
        sys.settrace(before)
    return lines


def crowded(clients: int) -> tuple[Books, Slots[Recorded]]:
    """Books with so many idle clients, one for each second."""
    books = Books()
    limits = Limits(clients, math.inf, 1e6, 1e9, "wait")
    slots: Slots[Recorded] = Slots(limits, PoolCounters(), books.draw)
    for number in range(clients):
        lease(books, slots, number, float(number))
    return books, slots


def lease(books: Books, slots: Slots[Recorded], user: int, now: float) -> None:
    """Lease, connecting if need be, and give back."""
    key = KEYRING.key("http://books.test/", {}, None, name=str(user), options={"user": user})
    asker = Asker(key, books)
    slots.ask(asker, now)
    if asker.slot is None:
        slot = slots.find(key)
        assert slot is not None
        slots.connected(slot, now)
    assert asker.slot is not None
    slots.give_back(asker.slot, now)


@pytest.mark.parametrize("user", [5, 1_000_000], ids=["open", "new, in a full pool"])
def test_a_lease_costs_the_same_among_many(user: int) -> None:
    costs = []
    for clients in (10, 2000):
        books, slots = crowded(clients)
        costs.append(lines_run(lambda: lease(books, slots, user, float(clients))))  # noqa: B023
        assert len(slots) == clients
    assert costs[0] == costs[1]


def test_a_sweep_costs_what_it_closes() -> None:
    costs = []
    for clients in (10, 2000):
        _, slots = crowded(clients)
        costs.append(lines_run(lambda: slots.expire(1e6 + 4)))  # noqa: B023
        assert len(slots) == clients - 5
        costs.append(lines_run(lambda: slots.expire(1e6 + 4)))  # noqa: B023
    assert costs[:2] == costs[2:]
    assert costs[1] < 20, "nothing is due"


def test_what_is_gone_is_forgotten() -> None:
    books, slots = crowded(10)
    for user in range(1000):
        lease(books, slots, 1000 + user, 100.0)
    assert len(slots) == 10
    assert len(slots._deaths) < 40


# -- whole pools ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Errand:
    """One task: when it asks, for whom, how long it stays, and when it loses patience."""

    at: float
    user: str
    stays: float
    patience: float
    calls: bool


@dataclass
class Ledger:
    """What became of the errands."""

    served: int = 0
    failed: int = 0
    cancelled: int = 0
    most: int = 0
    seen: dict[int, set[str]] = field(default_factory=dict)


TICKS = st.integers(0, 12).map(float)
ERRANDS = st.lists(
    st.builds(
        Errand,
        at=TICKS,
        user=st.sampled_from("abcdef"),
        stays=TICKS,
        patience=st.sampled_from([0.0, 1.0, 3.0, math.inf]),
        calls=st.booleans(),
    ),
    min_size=1,
    max_size=20,
)


@settings(max_examples=40)
@given(
    errands=ERRANDS,
    max_clients=st.integers(1, 3),
    max_idle=st.sampled_from([0, 1, math.inf]),
    idle_timeout=st.sampled_from([2.0, math.inf]),
    max_lifetime=st.sampled_from([5.0, math.inf]),
    refusals=st.integers(0, 3),
    slow=st.sampled_from([0.0, 2.0]),
    invalidate_at=st.sampled_from([None, 4.0]),
)
def test_everybody_is_served_and_nothing_is_left(
    errands: list[Errand],
    max_clients: int,
    max_idle: float,
    idle_timeout: float,
    max_lifetime: float,
    refusals: int,
    slow: float,
    invalidate_at: float | None,
) -> None:
    async def main() -> None:
        ledger = Ledger()
        async with open_server() as server:
            server.delay = lambda seen: slow if seen.rpc_method == "initialize" or not seen.body else 0.0
            if refusals:
                server.answer(401, b"no", when="initialize", times=refusals)
            async with open_pool(
                connect=server.connect,
                get_stream=False,
                mode="legacy",
                backoff=STEADY,
                max_clients=max_clients,
                max_idle=max_idle,
                idle_timeout=idle_timeout,
                max_lifetime=max_lifetime,
            ) as pool:
                async with trio.open_nursery() as nursery:
                    for errand in errands:
                        nursery.start_soon(run_errand, server.url, pool, errand, ledger)
                    if invalidate_at is not None:
                        await trio.sleep(invalidate_at)
                        pool.invalidate_all()
                now = pool.statistics()
                assert (now.leased, now.waiting, now.in_use) == (0, 0, 0)
                assert now.requests == now.leases + now.abandoned + ledger.failed <= len(errands)
            assert server.sessions == []
        assert ledger.served + ledger.failed + ledger.cancelled == len(errands)
        assert ledger.most <= max_clients
        patient = sum(errand.patience == math.inf for errand in errands)
        assert ledger.served + ledger.failed >= patient, "somebody starved"
        assert ledger.failed == 0 or refusals
        # Two users never spoke through one client.
        assert all(len(users) == 1 for users in ledger.seen.values())

    trio.run(main, clock=MockClock(autojump_threshold=0))


async def run_errand(url: str, pool: Pool, errand: Errand, ledger: Ledger) -> None:
    """Ask, stay and give back, or lose patience."""
    await trio.sleep(errand.at)
    with trio.move_on_after(errand.patience) as patience:
        try:
            async with pool.client(url, headers={"user": errand.user}) as client:
                ledger.most = max(ledger.most, pool.statistics().clients)
                ledger.seen.setdefault(id(client), set()).add(errand.user)
                KEPT.append(client)
                if errand.calls:
                    await client.ping()
                await trio.sleep(errand.stays)
        except HandshakeFailed:
            ledger.failed += 1
            return
    if patience.cancelled_caught:
        ledger.cancelled += 1
    else:
        ledger.served += 1


KEPT: list[Client] = []
"""Alive, so that no two clients of one test have the same id."""
