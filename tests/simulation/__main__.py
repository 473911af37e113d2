"""Run many simulations: `python -m tests.simulation --runs 10000 --seed 0`."""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor

from tests.simulation.plan import Variety
from tests.simulation.runner import Tally, run_many, run_seed, show


def say(text: str) -> None:
    """Print, and at once, for whoever watches a long run."""
    print(text, flush=True)  # noqa: T201


def main() -> int:
    """Run, print one line, and return 1 if anything was wrong."""
    options = _options()
    # What the client logs is about faults that are meant to happen.
    logging.disable(logging.CRITICAL)
    began = time.monotonic()
    total = Tally()
    for tally in _tallies(options):
        total += tally
        if (total.failed and not options.all) or (options.faults and total.faults >= options.faults):
            break
    say(total.line(time.monotonic() - began))
    if not total.failed:
        return 0
    for seed, problems in sorted(total.failed.items()):
        say(f"seed {seed}: {problems[0]}")
    first = min(total.failed)
    say(show(run_seed(first, options.variety)))
    flag = "" if options.variety is Variety.SCRIPTED else f" --{options.variety}"
    say(f"replay it: python -m tests.simulation --seed {first} --runs 1{flag}")
    return 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m tests.simulation", description=__doc__)
    parser.add_argument("--runs", type=int, default=10_000, help="how many seeds, from the first on")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument(
        "--faults", type=int, default=0, help="go on until so many faults have happened instead"
    )
    parser.set_defaults(variety=Variety.SCRIPTED)
    for variety, text in (
        (Variety.REAL, "the SDK's own server instead of the scripted one"),
        (Variety.ERAS, "redeploys from one era of the protocol to the other"),
    ):
        parser.add_argument(f"--{variety}", dest="variety", action="store_const", const=variety, help=text)
    parser.add_argument("--all", action="store_true", help="do not stop at the first failure")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    if options.faults:
        options.runs = sys.maxsize - options.seed
    return options


CHUNK = 100


def _chunks(options: argparse.Namespace) -> Iterator[tuple[range, Variety]]:
    end = options.seed + options.runs
    start = options.seed
    while start < end:
        yield range(start, min(start + CHUNK, end)), options.variety
        start += CHUNK


def _tallies(options: argparse.Namespace) -> Iterator[Tally]:
    if options.processes == 1 or options.runs <= CHUNK:
        yield from map(run_many, _chunks(options))
        return
    # Forked processes would share the state of whatever runs in this one.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.processes, context) as pool:
        waiting: list[Future[Tally]] = []
        for chunk in _chunks(options):
            waiting.append(pool.submit(run_many, chunk))
            if len(waiting) > 2 * options.processes:
                yield waiting.pop(0).result()
        for done in waiting:
            yield done.result()


if __name__ == "__main__":
    sys.exit(main())
