"""`python -m tests.fuzz --seconds 60 [--seed N] [TARGET ...]`: fuzz until the time is over."""

from __future__ import annotations

import argparse
import faulthandler
import logging
import random
import sys
import time
import traceback
import warnings

from tests.fuzz.targets import TARGETS, run

HANG_SECONDS = 120
"""A round that takes longer has a loop without a checkpoint in it: its traceback is the find."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=None, help="of the first round; by default by chance")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(t.name for t in TARGETS))
    options = parser.parse_args()
    chosen = [target for target in TARGETS if target.name in options.targets or not options.targets]
    if not chosen:
        parser.error("no such target")
    warnings.simplefilter("error")
    logging.disable()
    number = random.randrange(2**32) if options.seed is None else options.seed
    until = time.monotonic() + options.seconds
    rounds = 0
    while rounds == 0 or time.monotonic() < until:
        for target in chosen:
            faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
            try:
                run(target, number, target.weight)
            except BaseException:
                traceback.print_exc()
                print(f"{target.name} fails: python -m tests.fuzz --seconds 0 --seed {number} {target.name}")
                return 1
            finally:
                faulthandler.cancel_dump_traceback_later()
        print(f"seed {number}: passed", flush=True)
        number, rounds = number + 1, rounds + 1
    examples = rounds * sum(target.weight for target in chosen)
    print(f"{examples} examples in {rounds} rounds, nothing found")
    return 0


if __name__ == "__main__":
    sys.exit(main())
