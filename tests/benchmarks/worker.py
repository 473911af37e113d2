"""One peer, in a process of its own: it makes calls as told and says what they cost.

    python -m tests.benchmarks.worker PEER URL

Each line of its standard input, `CALLS CONCURRENCY`, is one measurement with a fresh event loop
and a fresh client; each line that it prints is a JSON object.
"""

from __future__ import annotations

import gc
import json
import statistics
import sys
import time
from typing import Any

import anyio

from tests.benchmarks.peers import ANSWER, PEERS, Call, Peer


async def measure(peer: Peer, url: str, calls: int, concurrency: int) -> dict[str, Any]:
    """Make `calls` calls by `concurrency` tasks that have all made one before."""
    latencies: list[float] = []
    async with peer.open(url) as call:
        # Connections are opened and tools are listed before the clock runs.
        await in_tasks(call, 1, concurrency, [])
        gc.collect()
        cpu, wall = time.process_time(), time.perf_counter()
        await in_tasks(call, calls // concurrency, concurrency, latencies)
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    made = len(latencies)
    hundredths = statistics.quantiles(latencies, n=100)
    return {
        "calls": made,
        "cpu_us": 1e6 * cpu / made,
        "calls_per_s": made / wall,
        "p50_us": 1e6 * hundredths[49],
        "p99_us": 1e6 * hundredths[98],
    }


async def in_tasks(call: Call, each: int, tasks: int, latencies: list[float]) -> None:
    """Run `tasks` tasks that make `each` calls one after another."""

    async def caller() -> None:
        # The real clock, since what is measured is real; no timeout depends on it.
        now = time.perf_counter
        for _ in range(each):
            began = now()
            answer = await call()
            latencies.append(now() - began)
            assert answer == ANSWER

    async with anyio.create_task_group() as group:
        for _ in range(tasks):
            group.start_soon(caller)


def reasons(error: BaseException) -> set[str]:
    """Return the names of the exceptions at the leaves of a group."""
    if isinstance(error, BaseExceptionGroup):
        return set().union(*(reasons(inner) for inner in error.exceptions))
    return {type(error).__name__}


def main() -> None:
    """Measure as the lines of standard input say."""
    peer, url = PEERS[sys.argv[1]], sys.argv[2]
    options: dict[str, Any] = {"backend": peer.backend}
    for line in sys.stdin:
        calls, concurrency = map(int, line.split())
        try:
            result = anyio.run(measure, peer, url, calls, concurrency, **options)
        except Exception as error:
            # A peer that cannot do it is a result, and the run goes on.
            result = {"failed": ", ".join(sorted(reasons(error)))}
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
