"""The supervisor alone, over generations that end on command, under virtual time."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp_resilient import (
    Backoff,
    Evidence,
    Flapping,
    GaveUp,
    HandshakeFailed,
    RecoveryFailed,
    SessionEnded,
    SessionStarted,
    State,
    StateChanged,
)
from trio_mcp_resilient._endpoint import Endpoint
from trio_mcp_resilient._eras import Era
from trio_mcp_resilient._events import Event
from trio_mcp_resilient._flight import EndReason, GenerationEnd
from trio_mcp_resilient._generation import Generation
from trio_mcp_resilient._handshake import TryAgain
from trio_mcp_resilient._instruments import Instruments
from trio_mcp_resilient._outcome import Fate, Notice, Outcome
from trio_mcp_resilient._policy import Timeouts
from trio_mcp_resilient._states import TRANSITIONS
from trio_mcp_resilient._statistics import Counters
from trio_mcp_resilient._supervisor import FLAPPING_LOSSES, Supervisor

LOSS = Evidence(1, "#00000001", "POST tools/call answered 404", 404)
DOUBT = Evidence(1, "#00000001", "POST tools/call was not sent: refused")
STEADY = Backoff(first=1, factor=2, cap=8, jitter=0, attempts=4)


class FakeGeneration:
    """A generation whose handshake and probe end as told."""

    def __init__(self, number: int, world: World) -> None:
        self.number = number
        self.end: GenerationEnd | None = None
        self.in_flight = 0
        self.session = SimpleNamespace(label=f"#{number:08x}", protocol_version="2025-11-25", era=Era.LEGACY)
        self._world = world
        self._ended = trio.Event()

    async def run(self, task_status: trio.TaskStatus[FakeGeneration]) -> None:
        await self._world.handshake(self)
        task_status.started(self)
        await self._ended.wait()

    def condemn(self, end: GenerationEnd) -> bool:
        if self.end is not None:
            return False
        self.end = end
        self._ended.set()
        return True

    async def probe(self) -> Outcome:
        self._world.probes.append(trio.current_time())
        await trio.sleep(self._world.pings_take)
        return self._world.probe()


class World:
    """The server's side: what handshakes and probes meet, and when they came."""

    def __init__(self) -> None:
        self.handshakes: list[float] = []
        self.made: list[FakeGeneration] = []
        self.probes: list[float] = []
        self.meets: Callable[[], Exception | None] = lambda: None
        self.probe: Callable[[], Outcome] = lambda: Outcome(Fate.ANSWERED, result={})
        self.takes = 0.0
        self.pings_take = 0.0

    async def handshake(self, generation: FakeGeneration) -> None:
        self.handshakes.append(trio.current_time())
        self.made.append(generation)
        await trio.sleep(self.takes)
        error = self.meets()
        if error is not None:
            raise error


class Rig:
    """A supervisor with everything it told."""

    def __init__(self, world: World, supervisor: Supervisor, events: list[Event], counters: Counters) -> None:
        self.world = world
        self.supervisor = supervisor
        self.events = events
        self.counters = counters

    async def ready(self) -> FakeGeneration:
        return cast(FakeGeneration, await self.supervisor.ready())

    def lose(self, generation: FakeGeneration, notice: Notice = Notice.CONDEMN) -> None:
        evidence = LOSS if notice is Notice.CONDEMN else DOUBT
        self.supervisor.report(cast(Generation, generation), notice, evidence)

    def told(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


@asynccontextmanager
async def open_rig(
    world: World | None = None, *, backoff: Backoff = STEADY, recovery: float = 30.0
) -> AsyncGenerator[Rig, None]:
    world = world or World()
    events: list[Event] = []
    counters = Counters()

    async def prepare(generation: Generation) -> None:
        await trio.lowlevel.checkpoint()

    supervisor = Supervisor(
        Endpoint.parse("http://server.test/mcp?key=secret"),
        lambda number: cast(Generation, FakeGeneration(number, world)),
        name="rig",
        backoff=backoff,
        timeouts=Timeouts(recovery=recovery, handshake=10.0),
        counters=counters,
        prepare=prepare,
        on_started=lambda generation: None,
        instruments=Instruments([events.append]),
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.run, nursery)
        supervisor.start()
        try:
            yield Rig(world, supervisor, events, counters)
        finally:
            supervisor.close()
            nursery.cancel_scope.cancel()
    moves = [(event.before, event.after) for event in events if isinstance(event, StateChanged)]
    assert all(after in TRANSITIONS[before] for before, after in moves)
    assert moves[-1][1] is State.CLOSED


async def test_the_first_generation_is_number_1(autojump_clock: MockClock) -> None:
    async with open_rig() as rig:
        assert rig.supervisor.state is State.CONNECTING
        assert rig.supervisor.number == 0
        generation = await rig.ready()
        assert (generation.number, rig.supervisor.number, rig.supervisor.state) == (1, 1, State.READY)
        (started,) = rig.told(SessionStarted)
        assert (started.generation, started.recovery.attempts) == (1, 1)


async def test_one_handshake_for_a_thousand_losers(autojump_clock: MockClock) -> None:
    async with open_rig() as rig:
        first = await rig.ready()
        got: list[int] = []

        async def lose() -> None:
            rig.lose(first)
            got.append((await rig.ready()).number)

        rig.world.takes = 0.5
        async with trio.open_nursery() as nursery:
            for _ in range(1000):
                nursery.start_soon(lose)
        assert got == [2] * 1000
        assert len(rig.world.handshakes) == 2
        assert rig.counters.losses == 1


async def test_late_news_of_an_old_generation_changes_nothing(autojump_clock: MockClock) -> None:
    async with open_rig() as rig:
        first = await rig.ready()
        rig.lose(first)
        second = await rig.ready()
        rig.lose(first)
        rig.lose(first, Notice.SUSPECT)
        assert await rig.ready() is second
        assert rig.supervisor.state is State.READY
        assert len(rig.world.handshakes) == 2


async def test_a_report_is_synchronous_so_nobody_sees_the_dead_session_again(
    autojump_clock: MockClock,
) -> None:
    async with open_rig() as rig:
        first = await rig.ready()
        rig.lose(first)
        assert rig.supervisor.current is None
        assert rig.supervisor.state is State.RECOVERING
        assert first.end is not None and first.end.reason is EndReason.LOST


async def test_a_server_that_is_down_is_retried_under_the_backoff(autojump_clock: MockClock) -> None:
    world = World()
    began = trio.current_time()
    world.meets = lambda: TryAgain("refused") if trio.current_time() - began < 6.5 else None
    async with open_rig(world) as rig:
        await rig.ready()
        assert [at - began for at in world.handshakes] == pytest.approx([0, 1, 3, 7])
        assert rig.told(SessionStarted)[0].recovery.attempts == 4


async def test_a_lost_session_is_retried_under_the_same_backoff(autojump_clock: MockClock) -> None:
    async with open_rig() as rig:
        first = await rig.ready()
        began = trio.current_time()
        rig.world.meets = lambda: TryAgain("refused") if trio.current_time() - began < 6.5 else None
        rig.lose(first)
        await rig.ready()
        assert [at - began for at in rig.world.handshakes[1:]] == pytest.approx([0, 1, 3, 7])


async def test_the_budgets_end_names_attempts_seconds_and_cause(autojump_clock: MockClock) -> None:
    world = World()
    world.meets = lambda: TryAgain("connection refused")
    async with open_rig(world) as rig:
        with pytest.raises(GaveUp) as caught:
            await rig.ready()
        text = str(caught.value)
        assert "4 attempts in 7.00 s, last error: connection refused" in text
        assert "http://server.test/mcp" in text
        assert "secret" not in text
        assert isinstance(caught.value.__cause__, ExceptionGroup)
        assert len(caught.value.__cause__.exceptions) == 1
        assert rig.supervisor.state is State.DORMANT
        assert rig.told(RecoveryFailed)[0].recovery.attempts == 4


async def test_the_cause_names_each_thing_that_was_met_once(autojump_clock: MockClock) -> None:
    world, met = World(), iter(["refused", "no TLS", "refused", "refused"])
    world.meets = lambda: TryAgain(next(met))
    async with open_rig(world) as rig:
        with pytest.raises(GaveUp) as caught:
            await rig.ready()
    assert isinstance(caught.value.__cause__, ExceptionGroup)
    assert sorted(str(error) for error in caught.value.__cause__.exceptions) == ["no TLS", "refused"]


async def test_each_waiter_gets_an_error_of_its_own(autojump_clock: MockClock) -> None:
    world = World()
    world.meets = lambda: TryAgain("refused")
    errors: list[GaveUp] = []

    async def wait(rig: Rig) -> None:
        with pytest.raises(GaveUp) as caught:
            await rig.ready()
        errors.append(caught.value)

    async with open_rig(world) as rig:
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(wait, rig)
    assert len({id(error) for error in errors}) == 5
    assert len({id(error.__traceback__) for error in errors}) == 5


async def test_a_dormant_client_wakes_with_the_next_call(autojump_clock: MockClock) -> None:
    world = World()
    world.meets = lambda: TryAgain("refused")
    async with open_rig(world) as rig:
        with pytest.raises(GaveUp):
            await rig.ready()
        await trio.sleep(1000)
        assert len(world.handshakes) == 4
        world.meets = lambda: None
        assert (await rig.ready()).number == 1
        assert rig.supervisor.state is State.READY


async def test_a_final_answer_ends_the_recovery_at_once(autojump_clock: MockClock) -> None:
    world = World()
    world.meets = lambda: HandshakeFailed("http://server.test/mcp answered initialize with 404")
    began = trio.current_time()
    async with open_rig(world) as rig:
        with pytest.raises(HandshakeFailed, match="answered initialize with 404"):
            await rig.ready()
        assert trio.current_time() == began
        assert len(world.handshakes) == 1


async def test_a_caller_waits_no_longer_than_the_recovery_timeout(autojump_clock: MockClock) -> None:
    world = World()
    world.takes = 100
    began = trio.current_time()
    async with open_rig(world, recovery=5) as rig:
        with pytest.raises(GaveUp, match="within 5 s"):
            await rig.ready()
        assert trio.current_time() - began == pytest.approx(5)


async def test_the_servers_own_pause_is_kept(autojump_clock: MockClock) -> None:
    world = World()
    began = trio.current_time()
    world.meets = lambda: TryAgain("503", 5.0) if len(world.handshakes) == 1 else None
    async with open_rig(world) as rig:
        await rig.ready()
        assert [at - began for at in world.handshakes] == pytest.approx([0, 5])


async def test_a_doubted_session_that_answers_stays(autojump_clock: MockClock) -> None:
    async with open_rig() as rig:
        first = await rig.ready()
        rig.lose(first, Notice.SUSPECT)
        assert rig.supervisor.state is State.RECOVERING
        assert await rig.ready() is first
        assert (len(rig.world.handshakes), len(rig.world.probes)) == (1, 1)
        assert rig.counters.losses == 0
        assert len(rig.told(SessionStarted)) == 1


async def test_a_doubted_session_is_asked_until_the_server_is_back(autojump_clock: MockClock) -> None:
    async with open_rig() as rig:
        first = await rig.ready()
        began = trio.current_time()
        answers = [Outcome(Fate.UNSENT, evidence=DOUBT), Outcome(Fate.UNSENT, evidence=DOUBT)]
        rig.world.probe = lambda: answers.pop() if answers else Outcome(Fate.ANSWERED, result={})
        rig.lose(first, Notice.SUSPECT)
        assert await rig.ready() is first
        assert [at - began for at in rig.world.probes] == pytest.approx([0, 1, 3])


async def test_a_doubted_session_that_is_gone_is_replaced_in_the_same_attempt(
    autojump_clock: MockClock,
) -> None:
    async with open_rig() as rig:
        first = await rig.ready()
        began = trio.current_time()
        rig.world.probe = lambda: Outcome(Fate.LOST, evidence=LOSS)
        rig.lose(first, Notice.SUSPECT)
        assert (await rig.ready()).number == 2
        assert trio.current_time() == began
        assert first.end == GenerationEnd(EndReason.LOST, LOSS)


async def test_a_loss_that_is_found_in_the_moment_of_closing_is_nobodys_business(
    autojump_clock: MockClock,
) -> None:
    """It would have moved the client from its final state, which came out of the user's block."""
    async with open_rig() as rig:
        first = await rig.ready()

        def closes_meanwhile() -> Outcome:
            rig.supervisor.close()
            return Outcome(Fate.LOST, evidence=LOSS)

        rig.world.probe = closes_meanwhile
        rig.lose(first, Notice.SUSPECT)
        await wait_all_tasks_blocked()
        assert rig.supervisor.state is State.CLOSED
        assert rig.told(SessionEnded) == []


UNANSWERED = Evidence(1, "#00000001", "POST ping answered 500", 500)


async def test_a_session_that_answers_no_ping_is_replaced_by_one_that_can_be_made(
    autojump_clock: MockClock,
) -> None:
    """Or a server that answers 500 for a session it has forgotten would never be spoken to again."""
    async with open_rig() as rig:
        first = await rig.ready()
        rig.world.probe = lambda: Outcome(Fate.UNKNOWN, evidence=UNANSWERED)
        rig.lose(first, Notice.SUSPECT)
        assert (await rig.ready()).number == 2
        assert first.end == GenerationEnd(EndReason.LOST, UNANSWERED)
        # The last one after the other was made: until then it may have been the server.
        assert (len(rig.world.probes), len(rig.world.handshakes)) == (4, 2)


async def test_a_session_that_answers_as_soon_as_the_server_makes_others_is_kept(
    autojump_clock: MockClock,
) -> None:
    async with open_rig() as rig:
        first = await rig.ready()
        answers = [Outcome(Fate.UNKNOWN, evidence=UNANSWERED)] * 3
        rig.world.probe = lambda: answers.pop() if answers else Outcome(Fate.ANSWERED, result={})
        rig.lose(first, Notice.SUSPECT)
        assert await rig.ready() is first
        assert first.end is None
        assert (len(rig.world.probes), len(rig.world.handshakes)) == (4, 2)
        assert [other.end and other.end.reason for other in rig.world.made[1:]] == [EndReason.INVALIDATED]


async def test_a_session_that_was_made_while_the_server_went_away_again_is_let_go(
    autojump_clock: MockClock,
) -> None:
    async with open_rig() as rig:
        first = await rig.ready()
        answers = [Outcome(Fate.UNSENT, evidence=DOUBT), *[Outcome(Fate.UNKNOWN, evidence=UNANSWERED)] * 3]
        rig.world.probe = lambda: answers.pop() if answers else Outcome(Fate.ANSWERED, result={})
        rig.lose(first, Notice.SUSPECT)
        assert await rig.ready() is first
        assert [other.end and other.end.reason for other in rig.world.made[1:]] == [EndReason.INVALIDATED]


async def test_a_session_that_answers_no_ping_is_kept_while_no_other_can_be_made(
    autojump_clock: MockClock,
) -> None:
    async with open_rig() as rig:
        first = await rig.ready()
        answers = [Outcome(Fate.UNKNOWN, evidence=UNANSWERED)] * 3
        rig.world.probe = lambda: answers.pop() if answers else Outcome(Fate.ANSWERED, result={})
        rig.world.meets = lambda: TryAgain("502")
        rig.lose(first, Notice.SUSPECT)
        assert await rig.ready() is first
        assert first.end is None
        assert (len(rig.world.probes), len(rig.world.handshakes)) == (4, 2)


async def test_a_session_that_keeps_silent_answers_no_ping(autojump_clock: MockClock) -> None:
    async with open_rig(recovery=math.inf) as rig:
        first = await rig.ready()
        began = trio.current_time()
        rig.world.pings_take = math.inf
        rig.lose(first, Notice.SUSPECT)
        assert (await rig.ready()).number == 2
        assert trio.current_time() - began == 43
        assert first.end is not None and first.end.evidence is not None
        assert first.end.evidence.what == "no answer to ping within 10 s"


async def test_proof_of_the_loss_ends_the_doubt(autojump_clock: MockClock) -> None:
    async with open_rig() as rig:
        first = await rig.ready()
        rig.world.probe = lambda: Outcome(Fate.UNSENT, evidence=DOUBT)
        rig.lose(first, Notice.SUSPECT)
        await wait_all_tasks_blocked()
        rig.lose(first)
        assert (await rig.ready()).number == 2
        assert len(rig.world.probes) == 1


async def test_invalidate_replaces_a_live_session(autojump_clock: MockClock) -> None:
    async with open_rig() as rig:
        first = await rig.ready()
        rig.supervisor.invalidate()
        rig.supervisor.invalidate()
        assert (await rig.ready()).number == 2
        assert first.end == GenerationEnd(EndReason.INVALIDATED)
        assert rig.counters.losses == 0
        assert [event.reason for event in rig.told(SessionEnded)] == [EndReason.INVALIDATED]


async def test_a_session_lost_before_it_was_published_is_an_attempt_that_failed(
    autojump_clock: MockClock,
) -> None:
    world = World()
    async with open_rig(world) as rig:
        lost_once: list[bool] = []

        async def stillborn(generation: FakeGeneration) -> None:
            world.handshakes.append(trio.current_time())
            if not lost_once:
                lost_once.append(True)
                rig.lose(generation)

        world.handshake = stillborn  # type: ignore[method-assign]
        assert (await rig.ready()).end is None
        assert len(world.handshakes) == 2


async def test_closing_wakes_those_who_wait(autojump_clock: MockClock) -> None:
    world = World()
    world.takes = 100
    async with open_rig(world) as rig:

        async def wait() -> None:
            with pytest.raises(trio.ClosedResourceError):
                await rig.ready()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await wait_all_tasks_blocked()
            rig.supervisor.close()
        with pytest.raises(trio.ClosedResourceError):
            await rig.ready()


async def test_flapping_has_a_name(autojump_clock: MockClock) -> None:
    async with open_rig() as rig:
        for _ in range(FLAPPING_LOSSES - 1):
            rig.lose(await rig.ready())
            await trio.sleep(1)
        assert not rig.supervisor.is_flapping
        rig.lose(await rig.ready())
        assert rig.supervisor.is_flapping
        assert rig.told(Flapping)[-1].losses == FLAPPING_LOSSES
        await trio.sleep(100)
        assert not rig.supervisor.is_flapping


async def test_losses_that_are_far_apart_are_not_flapping(autojump_clock: MockClock) -> None:
    async with open_rig() as rig:
        for _ in range(2 * FLAPPING_LOSSES):
            rig.lose(await rig.ready())
            await trio.sleep(60)
        assert rig.told(Flapping) == []


@pytest.mark.parametrize("error", [TryAgain("down"), HandshakeFailed("no")], ids=["last", "final"])
async def test_an_attempt_that_fails_as_the_client_closes(
    error: Exception, autojump_clock: MockClock
) -> None:
    world = World()

    def close_and_fail() -> Exception:
        rig.supervisor.close()
        return error

    world.meets = close_and_fail
    async with open_rig(world, backoff=Backoff(attempts=1)) as rig:
        with pytest.raises(trio.ClosedResourceError):
            await rig.ready()
        await wait_all_tasks_blocked()
        assert rig.supervisor.state is State.CLOSED
        assert rig.told(RecoveryFailed) == []


async def test_500_clients_of_one_server_spread_out(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trio_mcp_resilient._supervisor.random", random.Random(7))
    world = World()
    began = trio.current_time()
    world.meets = lambda: TryAgain("refused") if trio.current_time() - began < 10 else None

    async def client() -> None:
        async with open_rig(world, backoff=Backoff()) as rig:
            await rig.ready()

    async with trio.open_nursery() as nursery:
        for _ in range(500):
            nursery.start_soon(client)
    after_the_start = [at - began for at in world.handshakes if at > began]
    per_tenth = Counter(int(at * 10) for at in after_the_start)
    # All failed in the same moment; from 3 s on no tenth of a second sees even a tenth of them,
    # and they come back over more than four seconds.
    assert max(count for tenth, count in per_tenth.items() if tenth >= 30) < 50, sorted(per_tenth.items())
    assert after_the_start[-1] - 10 > 4
