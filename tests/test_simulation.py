"""A slice of the simulation, and what makes the whole of it believable."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from tests.simulation.determinism import run
from tests.simulation.faults import KINDS, Fault
from tests.simulation.oracle import judge
from tests.simulation.plan import Call, Plan, Settings, Variety, draw
from tests.simulation.runner import Tally, run_plan, run_seed, show, shrunk
from tests.simulation.world import play
from trio_mcp_resilient import Resend

SLICE = range(300)
ROOT = Path(__file__).parent.parent


def test_a_slice_of_seeds() -> None:
    tally = Tally()
    for seed in SLICE:
        tally.add(run_seed(seed))
    assert tally.failed == {}
    assert tally.duplicates == tally.hangs == 0
    # It is worth something: each kind of fault and each kind of ending is in it.
    assert set(tally.kinds) == set(KINDS) - {"flip"}
    assert tally.faults > 500
    assert set(tally.ends) >= {
        "result",
        "cancelled",
        "OutcomeUnknown",
        "SessionLost",
        "ConnectionLost",
        "GaveUp",
    }


def test_a_slice_of_seeds_in_which_the_era_changes() -> None:
    tally = Tally()
    for seed in range(60):
        tally.add(run_seed(seed, Variety.ERAS))
    assert tally.failed == {}
    assert tally.kinds["flip"] >= 60
    assert tally.ends["result"] > 200


@pytest.mark.parametrize("seed", range(0, 60, 3))
def test_the_same_seed_gives_the_same_trace(seed: int) -> None:
    assert run_seed(seed).ledger.trace == run_seed(seed).ledger.trace


def test_the_same_seed_gives_the_same_trace_in_another_process() -> None:
    """Also where strings hash otherwise."""
    ask = """
from tests.simulation.runner import run_seed
for seed in range(9):
    print(run_seed(seed).ledger.fingerprint())
"""
    told: list[list[str]] = []
    for number in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", ask],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": number},
            capture_output=True,
            text=True,
            check=True,
        )
        told.append(done.stdout.split())
    assert told[0] == told[1] == [run_seed(seed).ledger.fingerprint() for seed in range(9)]


def test_different_seeds_give_different_schedules() -> None:
    """One plan, many ways through it: whose turn it is is drawn as well."""
    plan = max((draw(seed) for seed in range(20)), key=lambda plan: len(plan.calls))
    traces = {run_plan(replace(plan, seed=seed)).ledger.fingerprint() for seed in range(20)}
    assert len(traces) > 10


def test_plans_differ_and_have_everything() -> None:
    plans = [draw(seed) for seed in range(500)]
    assert len({str(plan) for plan in plans}) == 500
    assert Counter(len(plan.faults) == 1 for plan in plans)[True] > 100
    assert {plan.settings.leaves for plan in plans} == {"at the end", "early", "cancelled"}
    assert {plan.settings.resend for plan in plans} == set(Resend)
    assert draw(3) == draw(3)


def test_a_failure_is_shown_with_the_smallest_plan_that_fails_alike() -> None:
    """A plan that must fail: its call is promised a result that a lost answer cannot give."""
    charge = Call(2, 0.2, "charge")
    faults = (Fault(0.1, "cut", "tools/call", "before-head reset", 1, 5.0), Fault(0.3, "invalidate"))
    plan = Plan(1, Settings(), (Call(1, 0.1, "ping"), charge, Call(3, 0.2, "ping")), faults, 6.0)
    failing = run_plan(plan)
    # Allowed, of course; so the oracle is told that a cut may not end any call.
    assert failing.problems == []
    try:
        KINDS["cut"] = replace(was := KINDS["cut"], alone=frozenset(), more=frozenset())
        failing = run_plan(plan)
        assert failing.problems
        small = shrunk(failing)
        assert (small.plan.calls, small.plan.faults) == ((charge,), faults[:1])
        text = show(failing)
        assert "the same trace twice: yes" in text and "call 2 ended by OutcomeUnknown" in text
    finally:
        KINDS["cut"] = was


def test_judging_changes_nothing() -> None:
    world = run(7, partial(play, draw(7)))
    assert judge(world) == judge(world) == []
