"""Backoff, resend policy and bounds."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_mcp_resilient._policy import HARMLESS, Backoff, Timeouts

backoffs = st.builds(
    Backoff,
    first=st.floats(0, 100),
    factor=st.floats(1, 10),
    cap=st.floats(0.001, 1000),
    jitter=st.floats(0, 1),
    attempts=st.integers(0, 1000),
)


@given(backoffs, st.integers(1, 10_000), st.floats(0, 1, exclude_max=True))
def test_a_delay_is_never_negative_nor_above_the_cap(backoff: Backoff, attempt: int, dice: float) -> None:
    assert 0 <= backoff.delay(attempt, lambda: dice) <= backoff.cap


@given(backoffs, st.integers(1, 10_000))
def test_delays_grow_until_the_cap(backoff: Backoff, attempt: int) -> None:
    assert backoff.delay(attempt, lambda: 0.0) <= backoff.delay(attempt + 1, lambda: 0.0)


@given(backoffs, st.integers(1, 100), st.floats(0, 1, exclude_max=True))
def test_jitter_takes_at_most_its_share(backoff: Backoff, attempt: int, dice: float) -> None:
    whole = backoff.delay(attempt, lambda: 0.0)
    assert whole * (1 - backoff.jitter) <= backoff.delay(attempt, lambda: dice) <= whole


def test_the_default_series() -> None:
    delays = [Backoff().delay(attempt, lambda: 0.0) for attempt in range(1, 10)]
    assert delays == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5, 5, 5])
    assert Backoff().attempts == 10
    assert sum(delays) < Timeouts().recovery


def test_equal_waits_are_possible_and_attempt_10_000_is_no_matter() -> None:
    assert Backoff(first=2, factor=1).delay(10_000, lambda: 0.0) == 2
    assert Backoff().delay(10_000, lambda: 0.0) == 5


def test_the_budget() -> None:
    assert not Backoff(attempts=3).spent(2)
    assert Backoff(attempts=3).spent(3)
    assert not Backoff(attempts=0).spent(10**9)


@pytest.mark.parametrize(
    "wrong",
    [
        {"first": -1},
        {"first": math.inf},
        {"cap": 0},
        {"cap": math.nan},
        {"factor": 0.5},
        {"factor": math.inf},
        {"jitter": 1.1},
        {"jitter": -0.1},
        {"attempts": -1},
    ],
)
def test_nonsense_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Backoff(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [0, -1, math.nan])
def test_bounds_are_positive(wrong: float) -> None:
    with pytest.raises(ValueError, match="recovery"):
        Timeouts(recovery=wrong)
    assert Timeouts(recovery=math.inf).recovery == math.inf


def test_calling_a_tool_is_never_harmless() -> None:
    assert "tools/call" not in HARMLESS
