"""The supervisor's decisions against a model of ten lines, by sequences that Hypothesis makes up.

Its one task is run to rest within a rule and cancelled after it: between rules only its decisions
are left, and those are what the model is about.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from trio.testing import MockClock

from trio_mcp_resilient import Backoff, Event, Evidence, GaveUp, HandshakeFailed, State, StateChanged
from trio_mcp_resilient._endpoint import Endpoint
from trio_mcp_resilient._eras import Era
from trio_mcp_resilient._flight import GenerationEnd
from trio_mcp_resilient._generation import Generation
from trio_mcp_resilient._handshake import TryAgain
from trio_mcp_resilient._instruments import Instruments
from trio_mcp_resilient._outcome import Fate, Notice, Outcome
from trio_mcp_resilient._policy import Timeouts
from trio_mcp_resilient._states import IllegalTransition, StateMachine
from trio_mcp_resilient._statistics import Counters
from trio_mcp_resilient._supervisor import Supervisor

EVIDENCE = Evidence(1, "#00000001", "seen")

LEGAL = {
    ("connecting", "ready"), ("connecting", "dormant"), ("connecting", "closed"),
    ("ready", "recovering"), ("ready", "closed"),
    ("recovering", "ready"), ("recovering", "dormant"), ("recovering", "closed"),
    ("dormant", "recovering"), ("dormant", "closed"),
}  # fmt: skip
"""The table once more, written down by hand: the one in the package is what is tested."""


class StatesAgainstTheTable(RuleBasedStateMachine):
    """The client's states."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[str, str]] = []
        self.machine = StateMachine(lambda before, after: self.told.append((before.value, after.value)))
        self.model = "connecting"

    @rule(to=st.sampled_from(State))
    def move(self, to: State) -> None:
        before, told = self.model, len(self.told)
        if to.value != before and (before, to.value) not in LEGAL:
            with pytest.raises(IllegalTransition):
                self.machine.move(to)
        else:
            self.machine.move(to)
            self.model = to.value
        assert self.told[told:] == ([] if self.model == before else [(before, self.model)])

    @invariant()
    def agree(self) -> None:
        assert self.machine.state.value == self.model


class Model:
    """What the supervisor should be."""

    def __init__(self) -> None:
        self.state, self.number, self.losses = State.CONNECTING, 0, 0
        self.current: int | None = None
        self.doubted: int | None = None

    def end(self, number: int, *, lost: bool) -> None:
        if self.state is not State.CLOSED and number in (self.current, self.doubted):
            self.current, self.doubted, self.state = None, None, State.RECOVERING
            self.losses += lost

    def doubt(self, number: int) -> None:
        if number == self.current:
            self.current, self.doubted, self.state = None, number, State.RECOVERING

    def recover(self, server: str, probe: str) -> None:
        if self.doubted is not None and probe == "lost":
            self.end(self.doubted, lost=True)
        if self.doubted is not None and probe == "no answer" and server == "up":
            # It is asked once more when the server has made another.
            self.end(self.doubted, lost=True)
        if self.doubted is not None:
            self.current = self.doubted if probe == "lives" else None
        elif server == "up":
            self.number += 1
            self.current = self.number
        self.doubted = self.doubted if self.current is None else None
        self.state = State.DORMANT if self.current is None else State.READY


class FakeGeneration:
    """A session that lives and answers as the rule under way says."""

    def __init__(self, number: int, rules: SupervisorAgainstModel) -> None:
        self.number = number
        self.end: GenerationEnd | None = None
        self.in_flight = 0
        self.session = SimpleNamespace(label="#00000001", protocol_version="2025-11-25", era=Era.LEGACY)
        self._rules = rules

    async def run(self, task_status: trio.TaskStatus[FakeGeneration]) -> None:
        await trio.lowlevel.checkpoint()
        if self._rules.server == "down":
            raise TryAgain("refused")
        if self._rules.server == "not MCP":
            raise HandshakeFailed("not MCP")
        self._rules.made[self.number] = self
        task_status.started(self)
        await trio.sleep_forever()

    def condemn(self, end: GenerationEnd) -> bool:
        if self.end is not None:
            return False
        self.end = end
        return True

    async def probe(self) -> Outcome:
        await trio.lowlevel.checkpoint()
        fates = {"lives": Fate.ANSWERED, "lost": Fate.LOST, "no answer": Fate.UNKNOWN}
        return Outcome(fates[self._rules.probe], evidence=EVIDENCE)


SERVERS = st.sampled_from(["up", "down", "not MCP"])
PROBES = st.sampled_from(["lives", "lost", "no answer"])


class SupervisorAgainstModel(RuleBasedStateMachine):
    """The supervisor, with generations that do as they are told."""

    def __init__(self) -> None:
        super().__init__()
        self.server, self.probe = "up", "lives"
        self.made: dict[int, FakeGeneration] = {}
        self.model, self.counters, self.events = Model(), Counters(), list[Event]()
        self.supervisor = Supervisor(
            Endpoint.parse("http://server.test/mcp"),
            lambda number: cast(Generation, FakeGeneration(number, self)),
            name="model",
            backoff=Backoff(attempts=4),
            timeouts=Timeouts(),
            counters=self.counters,
            prepare=self._prepare,
            on_started=lambda generation: None,
            instruments=Instruments([self.events.append]),
        )

    async def _prepare(self, generation: Generation) -> None:
        await trio.lowlevel.checkpoint()

    def _run(self, step: Callable[[], Awaitable[Any]]) -> None:
        trio.run(step, clock=MockClock(autojump_threshold=0))

    def _decide(self, decision: Callable[[], object]) -> None:
        async def step() -> None:
            await trio.lowlevel.checkpoint()
            decision()

        self._run(step)

    def _recover(self, server: str, probe: str) -> None:
        self.server, self.probe = server, probe

        async def step() -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.supervisor.run, nursery)
                try:
                    ready = await self.supervisor.ready()
                except (GaveUp, HandshakeFailed):
                    assert self.supervisor.state is State.DORMANT
                else:
                    assert ready.number == self.supervisor.current.number  # type: ignore[union-attr]
                nursery.cancel_scope.cancel()

        self._run(step)
        self.model.recover(server, probe)

    @initialize(server=SERVERS)
    def start(self, server: str) -> None:
        self._decide(self.supervisor.start)
        self._recover(server, "lives")

    @precondition(lambda self: self.model.state in (State.RECOVERING, State.DORMANT))
    @rule(server=SERVERS, probe=PROBES)
    def a_call_needs_a_session(self, server: str, probe: str) -> None:
        self._recover(server, probe)

    @precondition(lambda self: self.made)
    @rule(notice=st.sampled_from(Notice), data=st.data())
    def a_call_reports(self, notice: Notice, data: st.DataObject) -> None:
        generation = self.made[data.draw(st.sampled_from(sorted(self.made)))]
        self._decide(lambda: self.supervisor.report(cast(Generation, generation), notice, EVIDENCE))
        if notice is Notice.CONDEMN:
            self.model.end(generation.number, lost=True)
        elif notice is Notice.SUSPECT:
            self.model.doubt(generation.number)

    @rule()
    def the_application_invalidates(self) -> None:
        self._decide(self.supervisor.invalidate)
        for number in (self.model.current, self.model.doubted):
            if number is not None:
                self.model.end(number, lost=False)
                break

    @rule(really=st.integers(0, 9))
    def the_application_closes(self, really: int) -> None:
        if really == 0:
            self._decide(self.supervisor.close)
            self.model.state = State.CLOSED
            self.model.current = self.model.doubted = None

    @invariant()
    def agree(self) -> None:
        current = self.supervisor.current
        assert self.supervisor.state is self.model.state
        assert self.supervisor.number == self.model.number
        assert (None if current is None else current.number) == self.model.current
        assert self.counters.losses == self.model.losses

    @invariant()
    def at_most_one_lives_that_may_be_used(self) -> None:
        alive = [number for number, generation in self.made.items() if generation.end is None]
        if self.model.state is not State.CLOSED:
            assert alive == [
                number for number in (self.model.current, self.model.doubted) if number is not None
            ]

    @invariant()
    def moves_are_legal(self) -> None:
        moves = [(e.before.value, e.after.value) for e in self.events if isinstance(e, StateChanged)]
        assert LEGAL.issuperset(moves)


@pytest.mark.parametrize("machine", [StatesAgainstTheTable, SupervisorAgainstModel])
def test_against_the_model(machine: type[RuleBasedStateMachine]) -> None:
    run_state_machine_as_test(machine, settings=settings(max_examples=50, stateful_step_count=30))
