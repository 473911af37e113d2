"""Running seeds, adding up what happened, and making a failing plan smaller."""

from __future__ import annotations

import gc
import logging
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial

from tests.simulation.determinism import run
from tests.simulation.ledger import Ledger
from tests.simulation.oracle import judge
from tests.simulation.plan import Plan, Variety, draw
from tests.simulation.world import play


@dataclass
class Run:
    """One run and what was wrong with it."""

    plan: Plan
    problems: list[str]
    ledger: Ledger
    resends: int = 0


@dataclass
class Tally:
    """Many runs, added up."""

    runs: int = 0
    sessions: int = 0
    faults: int = 0
    calls: int = 0
    resends: int = 0
    unknown: int = 0
    duplicates: int = 0
    hangs: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    failed: dict[int, list[str]] = field(default_factory=dict)

    def __iadd__(self, other: Tally) -> Tally:
        for name in ("runs", "sessions", "faults", "calls", "resends", "unknown", "duplicates", "hangs"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.ends += other.ends
        self.kinds += other.kinds
        self.failed |= other.failed
        return self

    def add(self, done: Run) -> None:
        """Add one run."""
        self.runs += 1
        self.sessions += len(done.ledger.swaps)
        self.faults += done.ledger.faults
        self.calls += len(done.ledger.ended)
        self.resends += done.resends
        self.ends.update(ended.how for ended in done.ledger.ended.values())
        self.kinds.update(fault.kind for fault in done.plan.faults)
        self.unknown = self.ends["OutcomeUnknown"]
        self.duplicates += sum(" ran " in problem and "times" in problem for problem in done.problems)
        self.hangs += sum(
            "never ended" in problem or "waits for ever" in problem for problem in done.problems
        )
        if done.problems:
            self.failed[done.plan.seed] = done.problems

    def line(self, seconds: float) -> str:
        """The summary, on one line."""
        return (
            f"{self.runs} runs, {self.sessions} sessions, {self.faults} faults, {self.calls} calls, "
            f"{self.resends} resends, {self.unknown} unknown, {self.duplicates} duplicates, "
            f"{self.hangs} hangs, {len(self.failed)} failed, {seconds:.0f} seconds"
        )


def run_plan(plan: Plan) -> Run:
    """Carry one plan out and judge it."""
    with warnings.catch_warnings():
        # The SDK's: of methods that a later version of the protocol has no longer.
        warnings.filterwarnings("ignore", message=".*removed as of 2026-07-28")
        try:
            world = run(plan.seed, partial(play, plan))
        except Exception:
            return Run(plan, [f"the run itself failed:\n{traceback.format_exc()}"], Ledger())
    resends = 0 if world.statistics is None else world.statistics.resends
    return Run(plan, judge(world), world.ledger, resends)


def run_seed(seed: int, variety: Variety = Variety.SCRIPTED) -> Run:
    """Draw a plan, carry it out, and judge it."""
    return run_plan(draw(seed, variety))


def run_many(chunk: tuple[range, Variety]) -> Tally:
    """Run a range of seeds."""
    # What the client logs is about faults that are meant to happen.
    logging.disable(logging.CRITICAL)
    seeds, variety = chunk
    tally = Tally()
    for seed in seeds:
        tally.add(run_seed(seed, variety))
        if seed % 20 == 0:
            # Between runs, since it is off while one runs.
            gc.collect()
    return tally


def smaller(plan: Plan) -> Iterator[Plan]:
    """Plans with one thing less."""
    for name in ("faults", "calls"):
        parts = getattr(plan, name)
        for number in range(len(parts)):
            if len(parts) > 1:
                yield replace(plan, **{name: parts[:number] + parts[number + 1 :]})


def shrunk(failing: Run) -> Run:
    """Leave out of a failing plan whatever it fails without."""
    found = True
    while found:
        found = False
        for plan in smaller(failing.plan):
            again = run_plan(plan)
            if again.problems:
                failing, found = again, True
                break
    return failing


def show(failing: Run) -> str:
    """Everything about a failing run: that it fails alike again, and the smallest plan that does."""
    again = run_plan(failing.plan)
    alike = again.ledger.fingerprint() == failing.ledger.fingerprint()
    small = shrunk(failing)
    lines = [
        f"seed {failing.plan.seed} fails:",
        *(f"  {problem}" for problem in failing.problems),
        f"the same trace twice: {'yes' if alike else 'NO'} ({failing.ledger.fingerprint()})",
        "",
        "the smallest plan that fails:",
        str(small.plan),
        *(f"  {problem}" for problem in small.problems),
        *small.ledger.trace,
    ]
    return "\n".join(lines)
