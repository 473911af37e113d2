"""`trio-mcp watch` for people: a picture that is kept up to date, or a line for each event."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime

import trio
from rich.console import Group
from rich.live import Live
from rich.text import Text

from trio_mcp_resilient._cli_output import Data
from trio_mcp_resilient._cli_view import cell, console
from trio_mcp_resilient._nursery import open_hidden_nursery
from trio_mcp_resilient._watch import Picture, Tell, in_words, sparkline

TICK = 0.5
"""Seconds between two looks at the clock while nothing happens."""
STYLES = {"ready": "bold green", "recovering": "bold yellow", "dormant": "bold red"}
SHOWN_RECOVERIES = 5


async def show(picture: Picture, run: Callable[[Tell], Awaitable[None]]) -> None:
    """Run a watch, and show what it tells for as long as it runs.

    Args:
        picture: takes every record.
        run: the watch; it is given the function to tell of records by.
    """
    out = console()
    if not out.is_terminal:

        def print_line(record: Data) -> None:
            picture.take(record)
            if record["event"] != "Ping":
                out.print(_line(record))

        await run(print_line)
        out.print(_facts(picture))
        return

    began = trio.current_time()
    # Not refreshed by itself: that would take a thread.
    with Live(console=out, auto_refresh=False) as live:

        def draw() -> None:
            live.update(render(picture, trio.current_time() - began), refresh=True)

        def take(record: Data) -> None:
            picture.take(record)
            draw()

        async def tick() -> None:
            while True:
                draw()
                await trio.sleep(TICK)

        async with open_hidden_nursery() as nursery:
            nursery.start_soon(tick)
            await run(take)


def render(picture: Picture, elapsed: float) -> Group:
    """Return the picture as it stands, `elapsed` seconds from the beginning."""
    head = Text.assemble(
        cell(picture.endpoint, "bold"),
        "   ",
        (picture.state, STYLES.get(picture.state, "bold")),
        f" for {max(0.0, elapsed - picture.since):.0f} s",
    )
    return Group(head, _facts(picture), _latency(picture), Text(), *map(_line, picture.events))


def _facts(picture: Picture) -> Text:
    last = picture.recoveries[-SHOWN_RECOVERIES:]
    recovered = f" (recovered in {', '.join(f'{seconds:.2f} s' for seconds in last)})" if last else ""
    failed = f", {picture.failed_pings} of them failed" if picture.failed_pings else ""
    return Text(
        f"generation {picture.generation}   {picture.protocol_version}   {picture.losses} lost{recovered}"
        f"   {picture.pings} pings{failed}"
    )


def _latency(picture: Picture) -> Text:
    bars = sparkline(picture.latencies)
    median = "" if picture.median is None else f"   median {picture.median:.1f} ms"
    return Text.assemble("latency ", (bars, "cyan"), median)


def _line(record: Data) -> Text:
    clock = datetime.fromisoformat(record["at"]).astimezone().strftime("%H:%M:%S")
    return Text.assemble((clock, "dim"), "  ", cell(in_words(record)))
