"""The testing policy.

- **Deterministic.** No test depends on a race, on the order of a set, or on chance: Hypothesis
  runs from a fixed seed here. To hunt for new examples, run with `HYPOTHESIS_PROFILE=explore`
  and turn what it finds into an `@example`.
- **No sleeps in real time.** What takes time takes virtual time: an async test asks for the
  `autojump_clock` fixture, and a test with Hypothesis is a sync function that calls `trio.run(...,
  clock=trio.testing.MockClock(autojump_threshold=0))`, for function-scoped fixtures and
  Hypothesis do not mix. What depends on order waits for an event, not for a while.
- **Every test has a limit**, kept here: seconds on the real clock, a day on a virtual one. A
  test that would hang under virtual time thus fails at once. `@pytest.mark.limit(seconds)`
  changes it. A sync test has the limit that `faulthandler_timeout` sets.
- **Fakes before mocks.** The scripted server of `trio_mcp_resilient.testing` speaks real bytes
  over memory streams; nothing inside the package is patched. Tests marked `real` talk to real
  servers on loopback. There is one fake MCP server, that one. What else answers here does what it
  must not be able to: `http_peer` and `hostile` send bytes that are no HTTP or no MCP, and the
  canned server of `test_cost_guard` takes no turn of the scheduler and keeps no memory.
- **Every test can fail.** Whoever writes one breaks the code once to see it.
- **Warnings are errors**, and so are skips by habit: a test that cannot run here is a failure
  of the set-up.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
import os
import signal
from collections.abc import Awaitable, Callable

import hypothesis
import pytest
import trio

# The extra `cli`. A checkout without it tests what it can; in CI nothing may be left out.
RICH_IS_WANTED = importlib.util.find_spec("rich") is not None or bool(os.environ.get("CI"))
collect_ignore = [] if RICH_IS_WANTED else ["test_cli_view.py"]

REAL_LIMIT = 30.0
VIRTUAL_LIMIT = 24 * 60 * 60.0

hypothesis.settings.register_profile("fixed", derandomize=True, deadline=None, database=None)
hypothesis.settings.register_profile("explore", deadline=None, max_examples=1000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))


def pytest_configure() -> None:
    # A shell starts its background jobs deaf to Ctrl-C, children inherit that, and then a test of
    # what Ctrl-C does to a child would depend on how the tests were started.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not RICH_IS_WANTED:
        terminalreporter.write_line("what people see of the command line was left out: rich is not installed")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.obj):
            item.obj = _limited(item.obj, _limit_of(item))


def _limit_of(item: pytest.Function) -> float:
    marker = item.get_closest_marker("limit")
    if marker is not None:
        return float(marker.args[0])
    return VIRTUAL_LIMIT if "autojump_clock" in item.fixturenames else REAL_LIMIT


def _limited(test: Callable[..., Awaitable[None]], seconds: float) -> Callable[..., Awaitable[None]]:
    @functools.wraps(test)
    async def within_its_limit(*args: object, **kwargs: object) -> None:
        with trio.fail_after(seconds):
            await test(*args, **kwargs)

    return within_its_limit
