"""The demo: a real server killed and restarted, this package beside the plain SDK client."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import Any, TypeAlias, cast

from trio_mcp_resilient._demo_clients import ours, plain_sdk
from trio_mcp_resilient._demo_process import ServerFailed
from trio_mcp_resilient._demo_scenario import CALLS, OK, Column, DemoFailed, Say, Show, run_column

OURS = "trio_mcp_resilient"
CONTROL = f"mcp.Client {version('mcp')}"
WIDTH = 34
"""Characters of one column; the SDK's longest usual error fits."""


Perform: TypeAlias = Callable[[], Awaitable[tuple[Column, Column]]]


async def main(*, as_json: bool, live: Perform | None = None) -> int:
    """Run the demo, print its table or its JSON, and return the exit status.

    0: the sessions were recovered here, and the plain client stayed stuck. 1: they were not, or it
    did not, so that the comparison proves nothing. 3: the demo could not be carried out.

    Args:
        as_json: whether to print JSON.
        live: runs it and shows the columns as they grow, so that no table is printed.
    """
    # Both clients log the losses; the table says it all.
    logging.getLogger().addHandler(logging.NullHandler())
    failures: list[str] = []
    columns: tuple[Column, Column] | None = None
    try:
        columns = await (run() if live is None else live())
    # With a star, because the SDK's client wraps what is raised inside its block.
    except* (ServerFailed, DemoFailed) as failed:
        failures.append(_words(failed))
    if columns is None:
        print(f"the demo could not be carried out: {'; '.join(failures)}", file=sys.stderr)
        return 3
    mine, control = columns
    wrong = complaints(mine, control)
    if as_json:
        print(json.dumps(report(mine, control, wrong), indent=2))
    elif live is None:
        print(table(mine, control))
    for complaint in wrong:
        print(f"not as it should be: {complaint}", file=sys.stderr)
    return 1 if wrong else 0


def say(line: str) -> None:
    """Tell of progress where it does not mix with the result."""
    print(line, file=sys.stderr, flush=True)


def _nothing(column: Column) -> None:
    """Show nothing before the end."""


async def run(say: Say = say, show: Show = _nothing) -> tuple[Column, Column]:
    """Do everything to both clients, one after the other, so that neither disturbs the other."""
    mine = await run_column(OURS, ours, say, show)
    control = await run_column(CONTROL, plain_sdk, say, show)
    return mine, control


def complaints(mine: Column, control: Column) -> list[str]:
    """Return what is not as the demo claims; empty if it all is. Pure."""
    checks = {
        "the first call after the restart was not answered": mine.before == mine.first == OK,
        "the second call after the restart was not answered": mine.again == OK,
        "not every concurrent call was answered": mine.concurrent == (OK,) * CALLS,
        "not exactly one handshake after the restart": mine.restart_handshakes == 1,
        "not exactly one handshake after the deletion": mine.delete_handshakes == 1,
        "a ticket was booked twice": mine.twice == 0,
        "the control could not even call before the kill": control.before == OK,
        "the control recovered after the restart": OK not in (control.first, control.again),
        "the control recovered after the deletion": control.concurrent_ok == 0,
    }
    return [complaint for complaint, holds in checks.items() if not holds]


def table(mine: Column, control: Column) -> str:
    """Return both columns as plain text. Pure."""
    rows = [("", mine.client, control.client), ("", "-" * len(mine.client), "-" * len(control.client))]
    for label, left, right in zip(LABELS, cells(mine), cells(control), strict=True):
        rows.append((label, left, right))
    label_width = max(map(len, LABELS))
    return "\n".join(f"{a:<{label_width}}  {b:<{WIDTH}}  {c}".rstrip() for a, b, c in rows)


LABELS = (
    "call before the kill",
    "first call after the restart",
    "the call after that",
    "handshakes after the restart",
    f"{CALLS} calls at once, session deleted",
    "handshakes after the deletion",
    "tickets booked twice",
)


def cells(column: Column) -> list[str]:
    """Return what stands beside the labels; nothing for what is not known yet. Pure."""
    row = [
        column.before,
        column.first,
        column.again,
        str(column.restart_handshakes) if column.again else "",
        f"{column.concurrent_ok} of {CALLS}" if column.concurrent else "",
        str(column.delete_handshakes) if column.concurrent else "",
        str(column.twice) if column.before else "",
    ]
    return [cell if len(cell) <= WIDTH else cell[: WIDTH - 3] + "..." for cell in row]


def report(mine: Column, control: Column, wrong: list[str]) -> dict[str, Any]:
    """Return what `--json` prints. Pure."""
    return {"as_claimed": not wrong, "complaints": wrong, "columns": [_record(mine), _record(control)]}


def _record(column: Column) -> dict[str, Any]:
    return {
        "client": column.client,
        "before": column.before,
        "first_after_restart": column.first,
        "again_after_restart": column.again,
        "handshakes_after_restart": column.restart_handshakes,
        "concurrent_calls": len(column.concurrent),
        "concurrent_answered": column.concurrent_ok,
        "handshakes_after_deletion": column.delete_handshakes,
        "executed_twice": column.twice,
    }


def _words(error: BaseException) -> str:
    """Return what a group's members say, however deep they are."""
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        return "; ".join(_words(member) for member in group.exceptions)
    return str(error)
