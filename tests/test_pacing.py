"""Bursts: in what order they leave, that nobody is forgotten, and what a lost session costs them."""

from __future__ import annotations

from collections import Counter

import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, assert_checkpoints

from tests.kit import add, open_pair, open_server
from trio_mcp_resilient import ConnectionLost, Resend, SessionLost, open_client
from trio_mcp_resilient._call import CALL_META_KEY
from trio_mcp_resilient._pacing import BATCH, Pacing
from trio_mcp_resilient.testing import SeenRequest

BURST = 1000


class Looks(trio.abc.Instrument):
    """Counts how often the loop looked at the network."""

    def __init__(self) -> None:
        self.number = 0

    def before_io_wait(self, timeout: float) -> None:
        self.number += 1


async def leave(pacing: Pacing) -> None:
    if not pacing.may_leave():
        await pacing.turn()


# -- turns -----------------------------------------------------------------------------------------


def test_a_batch_leaves_without_waiting_each_time_something_was_heard() -> None:
    pacing = Pacing()
    for _ in range(3):
        assert all(pacing.may_leave() for _ in range(BATCH))
        assert not pacing.may_leave()
        pacing.heard()


async def test_the_network_is_looked_at_between_two_batches() -> None:
    pacing, looks, left = Pacing(), Looks(), list[tuple[int, int]]()

    async def caller(number: int) -> None:
        await leave(pacing)
        left.append((looks.number, number))

    trio.lowlevel.add_instrument(looks)
    async with trio.open_nursery() as nursery:
        for number in range(5 * BATCH):
            nursery.start_soon(caller, number)
    trio.lowlevel.remove_instrument(looks)
    # The first of a batch leaves a pass before the others.
    assert max(Counter(look for look, _ in left).values()) <= BATCH
    assert left[-1][0] - left[0][0] <= 2 * 4, "it took more passes than it had to"


async def test_who_comes_first_leaves_first() -> None:
    pacing, came, left = Pacing(), list[int](), list[int]()

    async def caller(number: int) -> None:
        came.append(number)
        await leave(pacing)
        left.append(number)

    async with trio.open_nursery() as nursery:
        for number in range(5 * BATCH):
            nursery.start_soon(caller, number)
    # Those that leave together do so in any order.
    batches = [came.index(number) // BATCH for number in left]
    assert batches == sorted(batches)


async def test_a_sign_of_life_lets_nobody_overtake() -> None:
    pacing, began = Pacing(), trio.Event()

    async def caller() -> None:
        began.set()
        await leave(pacing)

    async with trio.open_nursery() as nursery:
        for _ in range(3 * BATCH):
            nursery.start_soon(caller)
        await began.wait()
        pacing.heard()
        assert not pacing.may_leave()


async def test_a_turn_that_is_waited_for_is_a_checkpoint() -> None:
    pacing = Pacing()
    while pacing.may_leave():
        pass
    with assert_checkpoints():
        await pacing.turn()


@given(
    st.lists(st.integers(0, 12), min_size=1, max_size=3 * BATCH),
    st.lists(st.integers(0, 8), min_size=1, max_size=8),
)
def test_nobody_is_forgotten_however_others_are_cancelled(patience: list[int], arrivals: list[int]) -> None:
    left, given_up = set[int](), set[int]()

    async def caller(pacing: Pacing, number: int, scope: trio.CancelScope) -> None:
        for _ in range(arrivals[number % len(arrivals)]):
            await trio.lowlevel.checkpoint()
        with scope:
            await leave(pacing)
            left.add(number)
        if scope.cancelled_caught:
            given_up.add(number)

    async def main() -> None:
        pacing = Pacing()
        while pacing.may_leave():
            pass
        scopes = [trio.CancelScope() for _ in patience]
        with trio.fail_after(1):
            async with trio.open_nursery() as nursery:
                for number, scope in enumerate(scopes):
                    nursery.start_soon(caller, pacing, number, scope)
                for passed in range(1, 12):
                    await trio.lowlevel.checkpoint()
                    for scope, seen in zip(scopes, patience, strict=True):
                        if seen == passed:
                            scope.cancel()
        pacing.heard()
        assert pacing.may_leave()

    trio.run(main, clock=MockClock(autojump_threshold=0))
    everybody = set(range(len(patience)))
    assert left | given_up == everybody
    # Zero and twelve are those that are never cancelled.
    assert {number for number in everybody if patience[number] in (0, 12)} <= left


# -- calls -----------------------------------------------------------------------------------------


async def test_of_a_thousand_calls_on_a_lost_session_few_are_sent_twice(autojump_clock: MockClock) -> None:
    async with open_pair(get_stream=False) as (server, client):
        await add(client)
        before = len(server.posts("tools/call"))
        server.lose_session()
        async with trio.open_nursery() as nursery:
            for number in range(BURST):
                nursery.start_soon(add, client, number)
        assert server.executed["add"] == 1 + BURST
        assert server.handshakes == 2
        assert len(server.posts("tools/call")) - before < BURST + 200
        # What was held back when the session ended has been sent once, and is not counted.
        assert client.statistics().resends == len(server.posts("tools/call")) - before - BURST


async def test_a_call_that_was_held_back_has_not_been_sent(autojump_clock: MockClock) -> None:
    results = Counter[str]()
    async with open_pair(get_stream=False, resend=Resend.NEVER, call_keys=True) as (server, client):
        await add(client)
        server.lose_session()

        async def caller() -> None:
            try:
                results[await add(client)] += 1
            except SessionLost:
                results["lost"] += 1

        async with trio.open_nursery() as nursery:
            for _ in range(BURST):
                nursery.start_soon(caller)
        assert results["lost"] < 200
        assert results["3"] == BURST - results["lost"] == server.executed["add"] - 1
        calls = server.posts("tools/call")[1:]
        assert len(calls) == BURST
        assert {seen.params["_meta"][CALL_META_KEY]["attempt"] for seen in calls} == {1}
        assert client.statistics().resends == 0


async def test_a_call_that_waits_for_its_connection_goes_to_the_next_session(
    autojump_clock: MockClock,
) -> None:
    hanging = [trio.sleep_forever]
    async with open_server() as server:

        async def connect(host: str, port: int) -> trio.abc.Stream:
            if server.connections_made and hanging:
                await hanging.pop()()
            return await server.connect(host, port)

        async with open_client(server.url, connect=connect, get_stream=False) as client:
            await add(client)
            server.lose_session()
            began = trio.current_time()
            async with trio.open_nursery() as nursery:
                # One has the idle connection and meets the loss, the other would connect for ever.
                nursery.start_soon(add, client)
                nursery.start_soon(add, client)
            assert trio.current_time() == began
            assert not hanging
            assert len(server.posts("tools/call")) == 1 + 3
            assert client.statistics().resends == 1


async def test_no_call_is_sent_a_third_time_when_sessions_are_lost_in_a_row(
    autojump_clock: MockClock,
) -> None:
    results = Counter[str]()
    async with open_pair(get_stream=False) as (server, client):
        await add(client)

        def lose_the_first_three(seen: SeenRequest) -> None:
            if seen.tool and server.handshakes <= 3:
                server.lose_session()

        async def caller(number: int) -> None:
            try:
                await add(client, number)
                results["answered"] += 1
            except (SessionLost, ConnectionLost):
                results["lost"] += 1

        server.on_request(lose_the_first_three)
        async with trio.open_nursery() as nursery:
            for number in range(BURST):
                nursery.start_soon(caller, number)
        assert results.total() == BURST
        assert server.handshakes >= 3
        posts = Counter(seen.params["arguments"]["a"] for seen in server.posts("tools/call")[1:])
        assert max(posts.values()) == 2
        assert server.executed["add"] == 1 + results["answered"]
