"""What a pool of many clients costs: memory and CPU for each client, and CPU for each lease.

    python -m tests.benchmarks.pool memory|URL COUNT,COUNT,...

`memory` is the scripted server, in the same process, on memory streams and under virtual time: what
a client holds is then both ends of it, and every request that the server remembers. It prints a
JSON object. Clients have no standalone stream here: 10,000 of them are then 10,000 connections, which
is as many as a process may have.
"""

from __future__ import annotations

import gc
import json
import logging
import sys
import time
from contextlib import AsyncExitStack
from typing import Any

import trio
from trio.testing import MockClock

from tests.benchmarks.footprint import resident_kib
from tests.benchmarks.peers import ARGUMENTS, NAME
from tests.benchmarks.processes import allow_open_files
from trio_mcp_resilient import Pool, open_pool
from trio_mcp_resilient.testing import open_scripted_server

AT_ONCE = 50
"""How many clients are being connected at the same time."""
LEASES = 20_000


async def call(pool: Pool, url: str, user: int) -> None:
    """Lease the client of a user and make one call."""
    async with pool.client(url, headers={"user": str(user)}) as client:
        await client.call_tool(NAME, ARGUMENTS)


async def fill(pool: Pool, url: str, first: int, last: int) -> None:
    """Have the clients of some more users opened."""
    users = iter(range(first, last))

    async def worker() -> None:
        for user in users:
            await call(pool, url, user)

    async with trio.open_nursery() as nursery:
        for _ in range(AT_ONCE):
            nursery.start_soon(worker)


async def lease(pool: Pool, url: str, users: int) -> None:
    """Lease and give back, each user's client in turn."""
    for number in range(LEASES):
        async with pool.client(url, headers={"user": str(number % users)}):
            pass


async def measure(pool: Pool, url: str, counts: list[int]) -> dict[str, Any]:
    """Grow a pool, close it, and return what that took."""
    # What the first client brings along is not the next one's.
    await fill(pool, url, 0, 1)
    gc.collect()
    found: dict[int, dict[str, float]] = {}
    there, resident = 1, resident_kib()
    for count in counts:
        began = time.process_time()
        await fill(pool, url, there, count)
        opened = time.process_time()
        await lease(pool, url, count)
        leased = time.process_time()
        gc.collect()
        found[count] = {
            "open_us": 1e6 * (opened - began) / (count - there),
            "lease_us": 1e6 * (leased - opened) / LEASES,
            "kib": (resident_kib() - resident) / (count - 1),
        }
        there = count
    assert pool.statistics().idle == there
    began = time.process_time()
    await pool.aclose()
    return {"sizes": found, "close_us": 1e6 * (time.process_time() - began) / there}


async def run(where: str, counts: list[int]) -> dict[str, Any]:
    """Open a server, if it is to be in this process, and a pool; measure."""
    async with AsyncExitStack() as stack:
        options: dict[str, Any] = {}
        url = where
        if where == "memory":
            server = await stack.enter_async_context(open_scripted_server())
            server.tool(NAME, lambda a, b: str(a + b))
            url, options = server.url, {"connect": server.connect}
        pool = await stack.enter_async_context(
            open_pool(max_clients=counts[-1], get_stream=False, mode="legacy", **options)
        )
        return await measure(pool, url, counts)


def main() -> None:
    """Measure as the command line says."""
    allow_open_files()
    logging.getLogger("trio_mcp_resilient").addHandler(logging.NullHandler())
    where, counts = sys.argv[1], [int(count) for count in sys.argv[2].split(",")]
    clock = MockClock(autojump_threshold=0) if where == "memory" else None
    print(json.dumps(trio.run(run, where, counts, clock=clock)), flush=True)


if __name__ == "__main__":
    main()
