"""The demo with a live view: both columns as they grow, and what is being broken."""

from __future__ import annotations

from rich.console import Group
from rich.live import Live
from rich.text import Text

from trio_mcp_resilient import _demo
from trio_mcp_resilient._cli_view import cell, console, table
from trio_mcp_resilient._demo_scenario import OK, Column


async def run_live() -> tuple[Column, Column]:
    """Run the demo below a table that fills, and leave the full table standing."""
    columns = {name: Column(name) for name in (_demo.OURS, _demo.CONTROL)}
    doing = ""

    # Not refreshed by itself: that would take a thread.
    with Live(console=console(), auto_refresh=False) as live:

        def draw() -> None:
            live.update(render(columns[_demo.OURS], columns[_demo.CONTROL], doing), refresh=True)

        def say(line: str) -> None:
            nonlocal doing
            doing = line
            draw()

        def show(column: Column) -> None:
            columns[column.client] = column
            draw()

        both = await _demo.run(say, show)
        say("")
    return both


def render(mine: Column, control: Column, doing: str) -> Group:
    """Return the table as far as it is known, and below it what is going on."""
    made = table("", mine.client, control.client)
    for label, left, right in zip(_demo.LABELS, _demo.cells(mine), _demo.cells(control), strict=True):
        made.add_row(label, *(cell(said, _style(said)) for said in (left, right)))
    return Group(made, Text(), cell(doing, "dim")) if doing else Group(made)


def _style(said: str) -> str:
    """Errors are red; numbers speak for themselves."""
    if said == OK:
        return "green"
    return "" if not said or said[0].isdigit() else "red"
