"""One seed decides everything that chance decides in a run: jitter, and whose turn it is."""

from __future__ import annotations

import gc
import random
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import TypeVar

# Importing Hypothesis is Trio's own way to make its scheduler deterministic: it then sorts the
# tasks that are ready before it shuffles them.
import hypothesis  # noqa: F401
import trio

# The generator it shuffles by. It has no public name; Hypothesis seeds this same object.
from trio._core._run import _r as scheduler
from trio.testing import MockClock

T = TypeVar("T")


def run(seed: int, main: Callable[[], Awaitable[T]]) -> T:
    """Run an async function under virtual time, so that it does the same thing each time."""
    with _decided_by(seed):
        return trio.run(main, clock=MockClock(autojump_threshold=0))


@contextmanager
def _decided_by(seed: int) -> Generator[None, None, None]:
    before, collecting = random.getstate(), gc.isenabled()
    random.seed(seed)
    scheduler.seed(seed)
    # A collection finalizes what it finds, at a moment that depends on what ran before.
    gc.disable()
    try:
        yield
    finally:
        random.setstate(before)
        if collecting:
            gc.enable()
