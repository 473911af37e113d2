"""What a lost session costs: how soon everybody is rescued, and whether many losses leave anything.

    python -m tests.benchmarks.rescue rescue URL ROUNDS N,N,...
    python -m tests.benchmarks.rescue thousand URL ROUNDS CONCURRENCY,CONCURRENCY,...
    python -m tests.benchmarks.rescue losses URL LOSSES

Each prints a JSON object. The server is told to forget over a connection of its own.
"""

from __future__ import annotations

import gc
import json
import logging
import statistics
import sys
import time
from typing import Any

import trio

from tests.benchmarks.footprint import resident_kib
from tests.benchmarks.peers import ARGUMENTS, NAME, address, prepared
from trio_mcp_resilient import Client, open_client

CALLS = 1000
"""How many calls meet one loss in the comparison with as many that meet none."""
CALLS_PER_SIZE = 5000
"""Rounds with ever so many calls at once are fewer, so that the whole stays short."""
READ_BYTES = 65536


class Control:
    """The server's side door."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream

    async def say(self, path: str) -> dict[str, int]:
        """Have something done and return the server's counts."""
        await self._stream.send_all(prepared(b"", {}).replace(b"/mcp", path.encode()))
        answer = await self._stream.receive_some(READ_BYTES)
        counted: dict[str, int] = json.loads(answer.partition(b"\r\n\r\n")[2])
        return counted


async def at_once(client: Client, calls: int, concurrency: int) -> float:
    """Make `calls` calls by `concurrency` tasks; return the seconds that takes."""

    async def caller() -> None:
        for _ in range(calls // concurrency):
            await client.call_tool(NAME, ARGUMENTS)

    began = time.perf_counter()
    async with trio.open_nursery() as nursery:
        for _ in range(concurrency):
            nursery.start_soon(caller)
    return time.perf_counter() - began


async def new_session(client: Client) -> float:
    """Make a new session, as a recovery does; return the seconds that takes."""
    began = time.perf_counter()
    client.invalidate()
    await client.wait_ready()
    return time.perf_counter() - began


async def unit(client: Client) -> tuple[float, float]:
    """Return the seconds of one handshake and of one round trip."""
    handshake = statistics.median([await new_session(client) for _ in range(20)])
    trip = statistics.median([await at_once(client, 1, 1) for _ in range(200)])
    return handshake, trip


def ratio(lost: list[float], calm: list[float], handshake: float) -> float:
    """Return what a loss took, over a handshake and as many calls without: round by round, the median."""
    pairs = zip(lost, calm, strict=True)
    return statistics.median(with_loss / (handshake + without) for with_loss, without in pairs)


async def rescue(client: Client, control: Control, rounds: int, sizes: list[int]) -> dict[str, Any]:
    """Lose the session, then make N calls at once: how long until the last is answered?"""
    handshake, trip = await unit(client)
    found: dict[str, Any] = {"handshake_s": handshake, "trip_s": trip, "sizes": {}}
    for size in sizes:
        lost, calm, handshakes = [], [], 0
        turns = max(1, min(rounds, CALLS_PER_SIZE // size))
        for _ in range(turns):
            # Fresh sessions and so fresh connections, like those that the rescued calls go out on.
            await new_session(client)
            calm.append(await at_once(client, size, size))
            before = await control.say("/forget")
            lost.append(await at_once(client, size, size))
            handshakes += (await control.say("/counts"))["handshakes"] - before["handshakes"]
        found["sizes"][size] = {
            "rescued_s": statistics.median(lost),
            "calm_s": statistics.median(calm),
            "ratio": ratio(lost, calm, handshake),
            "handshakes_per_loss": handshakes / turns,
        }
    return found


async def thousand(client: Client, control: Control, rounds: int, widths: list[int]) -> dict[str, Any]:
    """Lose the session in the middle of 1000 calls, against a handshake and 1000 calls without."""
    handshake, _ = await unit(client)
    found: dict[str, Any] = {"handshake_s": handshake, "widths": {}}
    for width in widths:
        lost, calm, counted = [], [], []
        for _ in range(rounds):
            await at_once(client, width, width)
            calm.append(await at_once(client, CALLS, width))
            # As the first of its batch arrives: the session is lost to all that are in flight.
            before = await control.say(f"/forget/{CALLS // width // 2 * width + 1}")
            lost.append(await at_once(client, CALLS, width))
            after = await control.say("/counts")
            counted.append({name: after[name] - before[name] for name in ("handshakes", "refused")})
        found["widths"][width] = {
            "lost_s": statistics.median(lost),
            "calm_s": statistics.median(calm),
            "ratio": ratio(lost, calm, handshake),
            "handshakes": max(each["handshakes"] for each in counted),
            "refused": statistics.median(each["refused"] for each in counted),
        }
    return found


async def losses(client: Client, control: Control, number: int) -> dict[str, Any]:
    """Lose sessions one after another: the first tenth against the last."""
    tenth = number // 10
    seconds, resident = [], []
    for _ in range(10):
        began = time.perf_counter()
        for _ in range(tenth):
            await control.say("/forget")
            await at_once(client, 1, 1)
        seconds.append((time.perf_counter() - began) / tenth)
        gc.collect()
        resident.append(resident_kib())
    return {"losses": number, "seconds_per_loss": seconds, "resident_kib": resident}


async def run(what: str, url: str, number: int, sizes: list[int]) -> dict[str, Any]:
    """Open a client and measure."""
    host, port = address(url)
    control = Control(await trio.open_tcp_stream(host, port))
    async with open_client(url, mode="legacy") as client:
        if what == "losses":
            return await losses(client, control, number)
        measure = rescue if what == "rescue" else thousand
        return await measure(client, control, number, sizes)


def main() -> None:
    """Measure as the command line says."""
    # Each loss is a warning, and writing those is not what is measured.
    logging.getLogger("trio_mcp_resilient").addHandler(logging.NullHandler())
    what, url, number, *rest = sys.argv[1:]
    sizes = [int(size) for size in rest[0].split(",")] if rest else []
    print(json.dumps(trio.run(run, what, url, int(number), sizes)), flush=True)


if __name__ == "__main__":
    main()
