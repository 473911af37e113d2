"""Run the tests of the SDK's own client against ours.

    python tests/sdk_suite/run.py FOLDER [PART-OF-A-NAME ...]

FOLDER is where pip has put the SDK's source distribution; `nox -s sdk_suite` makes one. What runs,
what passes, what fails and what does not fit is in `suite.toml`. Whatever is not as it says there
fails the run: also a test that passes though it is listed as failing, and a file it does not know.
"""

# ruff: noqa: T201

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
LISTED = ("tests/client", "tests/shared", "tests/interaction")
"""Where every file is listed by itself; elsewhere in the suite whole folders are."""


@dataclass(frozen=True)
class Table:
    """What is expected of the suite."""

    passes: Mapping[str, int]
    """By file, how many tests use our client and pass."""
    fails: frozenset[str]
    misfits: tuple[str, ...]
    """Files and folders, these with a slash at the end, that say nothing of a client like ours."""

    @classmethod
    def read(cls) -> Table:
        table = tomllib.loads((HERE / "suite.toml").read_text())
        return cls(
            passes=table["passes"],
            fails=frozenset(test for group in table["fails"] for test in group["tests"]),
            misfits=tuple(path for group in table["does_not_fit"] for path in group["paths"]),
        )

    @property
    def files(self) -> list[str]:
        """The files to run."""
        return sorted({*self.passes, *(test.partition("::")[0] for test in self.fails)})

    def only(self, parts: Sequence[str]) -> Table:
        """Return what there is of it about files with one of these parts in their names."""
        wanted = [file for file in self.files if any(part in file for part in parts)]
        return Table(
            {file: count for file, count in self.passes.items() if file in wanted},
            frozenset(test for test in self.fails if test.partition("::")[0] in wanted),
            self.misfits,
        )


def unpacked(folder: Path, into: Path) -> Path:
    """Unpack the source distribution, and give it a root `conftest.py` of ours; return its folder."""
    (archive,) = folder.glob("mcp-*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(into, filter="data")
    (root,) = into.iterdir()
    shutil.copy(HERE / "root_conftest.py", root / "tests" / "conftest.py")
    return root


def outcomes(root: Path, files: Sequence[str]) -> dict[str, str]:
    """Run the suite's files with our client in them, and return how each test that used it ended."""
    report = root / "report.json"
    env = {
        **os.environ,
        "SDK_SUITE_REPORT": str(report),
        # The suite's package `tests` must be found before ours.
        "PYTHONPATH": os.pathsep.join([str(HERE), str(root), *sys.path[1:]]),
    }
    ini = root / "empty.ini"
    ini.write_text("[pytest]\n")
    options = ["-c", str(ini), "--rootdir", str(root), "-p", "plugin", "-p", "anyio", "-q"]
    options += ["--tb=short", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *files],
        cwd=root,
        env=env,
        text=True,
        capture_output=True,
        check=False,
    )
    # Some tests fail, as they are expected to; anything else is a run that went wrong.
    if done.returncode not in (0, 1) or not report.exists():
        raise RuntimeError(f"the suite did not run:\n{done.stdout[-5000:]}\n{done.stderr[-5000:]}")
    (root / "output.txt").write_text(done.stdout)
    ended: dict[str, str] = json.loads(report.read_text())
    return ended


def differences(table: Table, ended: Mapping[str, str]) -> Iterator[str]:
    """Say what is not as the table has it."""
    for test, how in sorted(ended.items()):
        if how != "passed" and test not in table.fails:
            yield f"FAIL   {test}"
        elif how == "passed" and test in table.fails:
            yield f"STALE  {test} passes"
    for test in sorted(table.fails - ended.keys()):
        yield f"STALE  {test} does not use our client, or is not there"
    passed = Counter(test.partition("::")[0] for test, how in ended.items() if how == "passed")
    for file in sorted({*table.passes, *passed}):
        if passed[file] != table.passes.get(file, 0):
            yield f"COUNT  {file}: {passed[file]} pass, {table.passes.get(file, 0)} are listed"


def unlisted(table: Table, root: Path) -> Iterator[str]:
    """Say which files of the suite the table does not know, and which of its paths name nothing."""
    files = {str(path.relative_to(root)) for path in (root / "tests").rglob("test_*.py")}
    for file in sorted(files - set(table.files)):
        known = (path for path in table.misfits if file == path or _is_in(file, path))
        if next(known, None) is None:
            yield f"NEW    {file} is neither run nor said not to fit"
    for path in table.misfits:
        if not any(file == path or _is_in(file, path) for file in files):
            yield f"STALE  {path} names nothing"
        if path.endswith("/") and any(f"{path}".startswith(folder) for folder in LISTED):
            yield f"TABLE  {path}: there each file is listed by itself"


def _is_in(file: str, folder: str) -> bool:
    return folder.endswith("/") and file.startswith(folder)


def main(folder: Path, parts: Sequence[str]) -> int:
    """Print what differs and a closing line; return 1 if anything does."""
    table = Table.read()
    with tempfile.TemporaryDirectory() as temporary:
        root = unpacked(folder, Path(temporary))
        wrong = [] if parts else list(unlisted(table, root))
        table = table.only(parts) if parts else table
        ended = outcomes(root, table.files)
        wrong += differences(table, ended)
        if wrong:
            print((root / "output.txt").read_text()[-20_000:])
    for line in wrong:
        print(line)
    passed = sum(how == "passed" for how in ended.values())
    known = len(table.fails & ended.keys())
    print(f"{passed} passed, {len(wrong)} failed; {known} more failed as they are expected to")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
