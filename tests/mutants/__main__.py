"""Apply each fault and see what notices it: `python -m tests.mutants [part of a name ...]`."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import trio_mcp_resilient
from tests.mutants.faults import MUTANTS, Mutant

TESTS = Path(__file__).parent.parent
PACKAGE = Path(trio_mcp_resilient.__file__).parent
SIMULATED = 400
"""How many seeds of the simulation a fault has to survive."""
LIMIT = 120.0
"""Seconds, on the real clock, after which something that does not end counts as noticed."""
WHOLE_LIMIT = 1800.0
"""The same for all tests together, which do end: a busy machine is not to look like a fault."""


@dataclass(frozen=True)
class Killed:
    """What noticed a fault; nothing did if `by` is empty."""

    mutant: Mutant
    by: str
    seconds: float


def mutated(mutant: Mutant, source: str) -> str:
    """Return a module's source with the fault in it.

    Raises:
        ValueError: if what it replaces is not there exactly once.
    """
    found = source.count(mutant.old)
    if found != 1:
        raise ValueError(f"{mutant.name!r}: its old text is in _{mutant.module}.py {found} times")
    return source.replace(mutant.old, mutant.new)


def kill(mutant: Mutant, *, only_simulate: bool = False) -> Killed:
    """Apply a fault to a copy and run what is nearest to it, until something notices."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        module = _copy(root) / f"_{mutant.module}.py"
        module.write_text(mutated(mutant, module.read_text()))
        by = ("" if only_simulate else _test(root, mutant.tests)) or _simulate(root)
    return Killed(mutant, by, time.monotonic() - began)


def _copy(root: Path) -> Path:
    ignore = shutil.ignore_patterns("__pycache__", "_build")
    shutil.copytree(PACKAGE, root / PACKAGE.name, ignore=ignore)
    for folder in ("tests", "docs"):
        shutil.copytree(TESTS.parent / folder, root / folder, ignore=ignore)
    for file in ("pyproject.toml", "pytest_trio_mcp_resilient.py", "SECURITY.md"):
        shutil.copy(TESTS.parent / file, root)
    return root / PACKAGE.name


def _test(root: Path, names: str, limit: float = LIMIT) -> str:
    modules = [f"tests/test_{name}.py" for name in names.split()]
    code, told = _run(root, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *modules, limit=limit)
    if code == 0:
        return ""
    failed = re.search(r"^(?:FAILED|ERROR) tests/(.+?)(?: - .*)?$", told, re.MULTILINE)
    return failed[1] if failed else f"tests that did not end ({names})"


def _simulate(root: Path) -> str:
    code, told = _run(root, "-m", "tests.simulation", "--runs", str(SIMULATED), "--processes", "1")
    if code == 0:
        return ""
    failed = re.search(r"^seed (\d+: .*)$", told, re.MULTILINE)
    return f"simulation, seed {failed[1]}" if failed else "a simulation that did not end"


def _run(root: Path, *arguments: str, limit: float = LIMIT) -> tuple[int, str]:
    # The copy must win over the package that is installed.
    env = {**os.environ, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, *arguments]
    try:
        done = subprocess.run(
            command, cwd=root, env=env, capture_output=True, text=True, timeout=limit, check=False
        )
    except subprocess.TimeoutExpired:
        return 1, ""
    return done.returncode, done.stdout + done.stderr


def main() -> int:
    """Print the table; return 1 if a fault survived."""
    parser = argparse.ArgumentParser("python -m tests.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="only those whose name has one of these in it")
    parser.add_argument(
        "--only-simulate", action="store_true", help="see what the simulation notices by itself"
    )
    options = parser.parse_args()
    chosen = [m for m in MUTANTS if not options.names or any(name in m.name for name in options.names)]
    _check_all_apply(chosen)
    _check_nothing_else_is_noticed(chosen)
    survivors = 0
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for done in pool.map(lambda mutant: kill(mutant, only_simulate=options.only_simulate), chosen):
            survivors += not done.by
            print(f"{done.mutant.name:52} {done.by or 'SURVIVED'} ({done.seconds:.0f} s)", flush=True)  # noqa: T201
    print(f"{len(chosen)} mutants, {survivors} survived")  # noqa: T201
    return 1 if survivors else 0


def _check_nothing_else_is_noticed(mutants: Sequence[Mutant]) -> None:
    """Run all that may be run on a copy without a fault, or everything would be noticed by anything."""
    names = sorted({name for mutant in mutants for name in mutant.tests.split()})
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        _copy(root)
        by = _test(root, " ".join(names), WHOLE_LIMIT) or _simulate(root)
    if by:
        raise RuntimeError(f"without any fault: {by}")


def _check_all_apply(mutants: Sequence[Mutant]) -> None:
    for mutant in mutants:
        mutated(mutant, (PACKAGE / f"_{mutant.module}.py").read_text())


if __name__ == "__main__":
    sys.exit(main())
