"""`python -m tests.benchmarks`: measure, print the tables, and save them with the figures and a picture."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path

from tests.benchmarks.measure import FULL, PARTS, QUICK, Bench
from tests.benchmarks.processes import ROOT
from tests.benchmarks.report import report

BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
"""What is between these in `docs/benchmarks.md` is written by `--docs`."""


def main() -> None:
    """Do as the command line says."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a short run that shows that everything works")
    parser.add_argument("--only", default=",".join(PARTS), help=f"some of {','.join(PARTS)}")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "_build" / "benchmarks")
    parser.add_argument(
        "--python",
        action="append",
        default=[],
        metavar="NAME=PATH",
        help="the Python of an environment of its own: mcp1, fastmcp; without it, that peer is left out",
    )
    parser.add_argument("--docs", action="store_true", help="put tables and picture into docs/ as well")
    options = parser.parse_args()
    if options.docs and (options.quick or options.only != parser.get_default("only")):
        parser.error("only a whole run goes into the docs")
    pythons = dict(given.split("=", 1) for given in options.python)
    bench = Bench(QUICK if options.quick else FULL, pythons, lambda line: print(line, file=sys.stderr))
    # Through JSON once, so that what is shown is what is saved.
    figures = json.dumps(bench.run(options.only.split(",")), indent=1)
    found = json.loads(figures)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "benchmarks.json").write_text(figures + "\n")
    tables = report(found)
    (options.out / "benchmarks.md").write_text(tables)
    if "cost" in found:
        # It takes a second to import, and is not needed for the other parts.
        from tests.benchmarks.plot import plot

        plot(found["cost"], options.out / "cost.svg")
    if options.docs:
        publish(tables, options.out / "cost.svg")
    print(tables)


def publish(tables: str, picture: Path) -> None:
    """Replace what the manual shows of the last run."""
    page = ROOT / "docs" / "benchmarks.md"
    before, _, rest = page.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n\n{tables}\n{END}{after}")
    images = ROOT / "docs" / "images"
    images.mkdir(exist_ok=True)
    shutil.copy(picture, images)


if __name__ == "__main__":
    main()
