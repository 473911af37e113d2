"""What clients hold: the resident memory of a process with ever more of them.

    python -m tests.benchmarks.footprint PEER URL COUNT,COUNT,...
    python -m tests.benchmarks.footprint --in-flight PEER URL CALLS

Each prints a JSON object of KiB. Linux only: it reads `/proc`.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import urllib.request
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import anyio.abc

from tests.benchmarks.peers import PEERS

IDLE_SECONDS = 6.0
"""How long the clients do nothing before they are measured: by then they are idle."""
CLIENTS_A_TASK = 50
"""How many share a task of ours, which must not count as theirs. Trio nests their cancel scopes, and
follows them by recursion, so that they cannot share one."""


def resident_kib() -> int:
    """Return the memory that this process really has, in KiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") // 1024


async def idle(peer: str, url: str, counts: list[int]) -> dict[int, int]:
    """Open clients, and make one call by each; return the memory at each count."""
    found: dict[int, int] = {}
    opened = 0

    async def hold_open(number: int, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        async with AsyncExitStack() as stack:
            for _ in range(number):
                call = await stack.enter_async_context(PEERS[peer].open(url))
                await call()
            task_status.started()
            await anyio.sleep_forever()

    async with anyio.create_task_group() as group:
        for count in counts:
            while opened < count:
                number = min(CLIENTS_A_TASK, count - opened)
                await group.start(hold_open, number)
                opened += number
            await anyio.sleep(IDLE_SECONDS)
            gc.collect()
            found[count] = resident_kib()
        group.cancel_scope.cancel()
    return found


async def in_flight(peer: str, url: str, calls: int) -> dict[str, int]:
    """Have calls wait for their answers; return the memory before and during."""
    from mcp import Client

    from trio_mcp_resilient import open_client

    opened: Any = open_client(url, mode="legacy") if peer == "ours" else Client(url, mode="legacy")
    async with opened as client:
        # What the first call brings along is not the next one's: the listed tools, and code loaded late.
        await client.call_tool("add", {})
        await hold(client, url, 1)
        gc.collect()
        before = resident_kib()
        return {"before": before, "during": await hold(client, url, calls)}


async def hold(client: Any, url: str, calls: int) -> int:
    """Make calls that the server holds until all are there; return the memory at that moment."""
    async with anyio.create_task_group() as group:
        for _ in range(calls):
            group.start_soon(client.call_tool, "hold", {})
        # Polled, since the one to know is another process.
        while await anyio.to_thread.run_sync(held, url) < calls:  # noqa: ASYNC110
            await anyio.sleep(0.05)
        gc.collect()
        during = resident_kib()
        await anyio.to_thread.run_sync(visit, url.replace("/mcp", "/release"))
    return during


def held(url: str) -> int:
    """Ask the server how many calls it holds."""
    return visit(url.replace("/mcp", "/counts"))["held"]


def visit(url: str) -> dict[str, int]:
    """Ask the server's side door, in a thread: no client may be in the way."""
    with urllib.request.urlopen(url) as response:
        counted: dict[str, int] = json.load(response)
    return counted


def main() -> None:
    """Measure as the command line says."""
    found: dict[Any, int]
    if sys.argv[1] == "--in-flight":
        peer, url, calls = sys.argv[2:]
        found = anyio.run(in_flight, peer, url, int(calls), backend=PEERS[peer].backend)
    else:
        peer, url, counts = sys.argv[1:]
        sizes = [int(count) for count in counts.split(",")]
        found = anyio.run(idle, peer, url, sizes, backend=PEERS[peer].backend)
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
