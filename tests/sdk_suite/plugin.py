"""The pytest plugin: puts our client in, takes what it is not for out, and writes down what it met.

It runs inside the suite's own pytest, in the suite's own folder, as `-p plugin`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import substitute
from pair import our_pair

REPORT = Path(os.environ["SDK_SUITE_REPORT"])
"""Where to write, by test, whether it used our client and how it ended."""

substitute.substitute()
ended: dict[str, str] = {}
used: set[str] = set()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the cells of the suite's matrix that are about other transports."""
    kept = [item for item in items if _is_over_http(item)]
    config.hook.pytest_deselected(items=[item for item in items if not _is_over_http(item)])
    items[:] = kept
    for item in items:
        if _dispatchers(item) is not None:
            item.callspec.params["pair_factory"] = our_pair  # type: ignore[attr-defined]


def _is_over_http(item: pytest.Item) -> bool:
    if _dispatchers(item) is not None:
        # One of the two pairs is enough to be ours.
        return _dispatchers(item).__name__ == "jsonrpc_pair"
    cell = _cell(item)
    return cell is None or cell[0].startswith("streamable-http")


def _dispatchers(item: pytest.Item) -> Any:
    """What makes the pair of dispatchers of a test that any pair has to pass."""
    return getattr(getattr(item, "callspec", None), "params", {}).get("pair_factory")


def _cell(item: pytest.Item) -> tuple[str, str] | None:
    """The transport and the version of a test that is the same over each of them."""
    return getattr(getattr(item, "callspec", None), "params", {}).get("connect")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    substitute.opened.clear()
    substitute.over_our_own_http = _cell(item) is not None
    try:
        return (yield)
    finally:
        if substitute.opened:
            used.add(item.nodeid)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed or report.when == "call":
        ended[report.nodeid] = "failed" if report.failed else ended.get(report.nodeid, report.outcome)


def pytest_sessionfinish() -> None:
    REPORT.write_text(json.dumps({test: how for test, how in ended.items() if test in used}))
