"""One client that lives through a loss, in a process of its own.

    python -m tests.benchmarks.losing CLIENT URL

It is opened once, as an application opens it, and says `ready`. Each line of its standard input,
`BATCH CALLS AT_ONCE SECONDS LIMIT`, has it make so many calls, whose tool takes so many seconds and that
count as hung after so many more. When they have ended it prints a JSON object with the batch's name
and how they ended. Batches run at the same time.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from typing import Any

import anyio

from tests.benchmarks.callers import CALLERS, Act, Caller
from tests.benchmarks.worker import reasons

OK, HUNG = "ok", "hung"
LINES = open(0, "rb", buffering=0)  # noqa: SIM115  # for as long as the process
"""Standard input. A reader with a buffer or in a thread would take lines that are for whoever comes next."""


async def batch(
    act: Act, name: str, calls: int, at_once: int, seconds: float, limit: float
) -> dict[str, int]:
    """Make calls, each known to the server by a key of its own."""
    ends: Counter[str] = Counter()

    async def caller(first: int) -> None:
        for number in range(first, calls, at_once):
            key, end = f"{name}-{number}", HUNG
            with anyio.move_on_after(seconds + limit):
                try:
                    end = OK if await act(key, seconds) == f"did {key}" else "a wrong answer"
                except Exception as error:
                    end = ", ".join(sorted(reasons(error)))
            ends[end] += 1

    async with anyio.create_task_group() as group:
        for first in range(at_once):
            group.start_soon(caller, first)
    return ends


def say(name: str, ends: dict[str, int]) -> None:
    """Print how a batch ended."""
    print(json.dumps({"batch": name, "ends": ends}), flush=True)


async def live(client: Caller, url: str, begun: set[str]) -> None:
    """Open the client and make the calls that standard input asks for."""

    async def one(name: str, calls: str, at_once: str, seconds: str, limit: str) -> None:
        ends = await batch(act, name, int(calls), int(at_once), float(seconds), float(limit))
        begun.remove(name)
        say(name, ends)

    async with client.open(url) as act, anyio.create_task_group() as group:
        say("ready", {})
        while True:
            await anyio.wait_readable(LINES)
            if not (words := LINES.readline().decode().split()):
                return
            begun.add(words[0])
            group.start_soon(one, *words)


def main() -> None:
    """Live until standard input ends, and answer for the client if it takes its program down."""
    client, url = CALLERS[sys.argv[1]], sys.argv[2]
    options: dict[str, Any] = {"backend": client.backend}
    begun: set[str] = set()
    try:
        anyio.run(live, client, url, begun, **options)
    except Exception as error:
        print(f"{client.title} ended: {error!r}", file=sys.stderr)
        for name in sorted(begun):
            say(name, {"program ended": 1})
        for line in LINES:
            say(line.split()[0].decode(), {"program ended": 1})


if __name__ == "__main__":
    main()
