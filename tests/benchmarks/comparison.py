"""What becomes of calls when a session is lost, by the client that makes them.

    python -m tests.benchmarks.comparison [--python NAME=PATH] [--docs]

Six ways to lose a session are done to each client, each on a server and a client of its own.
Prints the table; `--docs` puts it into `docs/comparison.md`.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.benchmarks.callers import CALLERS
from tests.benchmarks.losing import HUNG, OK
from tests.benchmarks.measure import versions
from tests.benchmarks.processes import ROOT, Process, process
from tests.benchmarks.report import table

BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
PAGE = ROOT / "docs" / "comparison.md"
LIMIT = 15
"""Seconds after which a call counts as hung, beyond those that its tool takes."""
RUNNING = 2
"""Seconds that a call takes that is to be running when something happens."""
DOWN_FOR = 1.0
"""Seconds that an outage lasts."""
POLL = 0.02


class Server:
    """A server that can be killed and started again on its port."""

    def __init__(self) -> None:
        self.port = 0
        self._starts = 0
        self._handshakes = 0
        self._runs: Counter[str] = Counter()
        self._spare = self._prepared()
        self.start()

    def _prepared(self) -> Process:
        """Make the next process beforehand: how long Python takes to begin is no part of an outage."""
        self._starts += 1
        return Process("scripted", f"number{self._starts}", python=sys.executable, env=os.environ)

    def start(self) -> None:
        """Start it; like any other after a restart, it knows no session."""
        self._process = self._spare
        self.port = self._process.ask(f"serve {self.port}")["port"]
        self._spare = self._prepared()
        self._spare.ask("counts")

    def kill(self) -> None:
        """End it where it is; its counts are kept."""
        self._handshakes, self._runs = self.counts()
        self._process.end()

    def end(self) -> None:
        """Be done with it."""
        self._process.end()
        self._spare.end()

    def evict(self) -> None:
        """Have it forget its sessions."""
        self._process.ask("evict")

    def counts(self) -> tuple[int, Counter[str]]:
        """Return its handshakes and how often it ran what, over all its lives."""
        now = self._process.ask("counts")
        return self._handshakes + now["handshakes"], self._runs + Counter(now["runs"])


@dataclass
class Trial:
    """One client, ready, and the server that it has called once."""

    server: Server
    client: Process
    ended: dict[str, dict[str, int]] = field(default_factory=dict)
    """How each batch of calls ended."""

    def call(self, name: str, calls: int, *, at_once: int = 1, seconds: float = 0) -> None:
        """Begin to make calls."""
        self.client.say(f"{name} {calls} {at_once} {seconds} {LIMIT}")

    def wait(self, *names: str) -> None:
        """Wait until these batches have ended."""
        while not self.ended.keys() >= set(names):
            answer = self.client.answer()
            self.ended[answer["batch"]] = answer["ends"]

    def made(self, name: str, calls: int, *, at_once: int = 1) -> None:
        """Make calls and wait for their end."""
        self.call(name, calls, at_once=at_once)
        self.wait(name)

    def wait_until_running(self, calls: int) -> None:
        """Wait until so many calls have begun to run at the server, the first included."""
        deadline = time.monotonic() + LIMIT
        while len(self.server.counts()[1]) < calls and time.monotonic() < deadline:
            time.sleep(POLL)


def idle(trial: Trial) -> None:
    """Evicted while idle; five calls, one after another."""
    trial.server.evict()
    trial.made("after", 5)


def burst(trial: Trial) -> None:
    """Evicted while idle; twenty calls at once."""
    trial.server.evict()
    trial.made("after", 20, at_once=20)


def under_calls(trial: Trial) -> None:
    """Evicted under twenty running calls; another call meets the loss meanwhile."""
    trial.call("running", 20, at_once=20, seconds=RUNNING)
    trial.wait_until_running(21)
    trial.server.evict()
    trial.call("after", 1)
    trial.wait("running", "after")


def restart(trial: Trial) -> None:
    """Restarted between two calls; five calls, one after another."""
    trial.server.kill()
    trial.server.start()
    trial.made("after", 5)


def outage(trial: Trial) -> None:
    """Down; twenty calls at once, a second before it comes back."""
    trial.server.kill()
    trial.call("after", 20, at_once=20)
    time.sleep(DOWN_FOR)
    trial.server.start()
    trial.wait("after")


def killed(trial: Trial) -> None:
    """Killed under twenty running calls; then five calls, one after another."""
    trial.call("running", 20, at_once=20, seconds=RUNNING)
    trial.wait_until_running(21)
    trial.server.kill()
    trial.server.start()
    trial.wait("running")
    trial.made("after", 5)


WAYS: dict[str, Callable[[Trial], None]] = {
    "evicted, 5 calls": idle,
    "evicted, 20 at once": burst,
    "evicted under 20 running calls, and 1 more": under_calls,
    "restarted, 5 calls": restart,
    "down, 20 at once, back a second later": outage,
    "killed under 20 running calls, then 5 calls": killed,
}


@contextmanager
def open_trial(caller: str, python: str) -> Iterator[Trial]:
    """Start a server and a client, and make one call."""
    server = Server()
    try:
        with process("losing", caller, f"http://127.0.0.1:{server.port}/mcp", python=python) as client:
            trial = Trial(server, client)
            trial.wait("ready")
            trial.made("before", 1)
            yield trial
    finally:
        server.end()


def cell(caller: str, python: str, way: Callable[[Trial], None]) -> str:
    """Do one thing to one client; return what became of its calls."""
    with open_trial(caller, python) as trial:
        first, _ = trial.server.counts()
        way(trial)
        handshakes, runs = trial.server.counts()
    batches = [said(trial.ended[name]) for name in ("running", "after") if name in trial.ended]
    notes = [f"{handshakes - first} new"]
    if twice := sum(times > 1 for times in runs.values()):
        notes.append(f"**{twice} ran twice**")
    return f"{' and '.join(batches)} ({', '.join(notes)})"


def said(ends: dict[str, int]) -> str:
    """Return how the calls of a batch ended, in a few characters."""
    if "program ended" in ends:
        return "program ended"
    hung = f", {ends[HUNG]} hung" if HUNG in ends else ""
    return f"{ends.get(OK, 0)}/{sum(ends.values())}{hung}"


def compare(pythons: dict[str, str]) -> str:
    """Return the table, with its date and versions above it."""
    present = {name: caller for name, caller in CALLERS.items() if caller.environment in pythons}
    rows = []
    for name, caller in present.items():
        print(caller.title, file=sys.stderr)
        python = pythons[caller.environment]
        rows.append([caller.title, *(cell(name, python, way) for way in WAYS.values())])
    # A client is a column: there are few of them, and their words are short.
    turned = zip(WAYS, *(row[1:] for row in rows), strict=True)
    told = "; ".join(
        f"{environment}: " + ", ".join(f"{name} {version}" for name, version in versions(python).items())
        for environment, python in pythons.items()
    )
    head = ["", *(caller.title for caller in present.values())]
    return f"{time.strftime('%Y-%m-%d')}; {told}\n\n{table(head, turned)}\n"


def publish(text: str, page: Path) -> None:
    """Replace what the page shows of the last run."""
    before, _, rest = page.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{after}")


def main() -> None:
    """Do as the command line says."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.comparison", description=__doc__)
    parser.add_argument(
        "--python",
        action="append",
        default=[],
        metavar="NAME=PATH",
        help="the Python of an environment of its own: mcp1, fastmcp; without it, that client is left out",
    )
    parser.add_argument("--docs", action="store_true", help="put the table into docs/ as well")
    options = parser.parse_args()
    text = compare({"main": sys.executable, **dict(given.split("=", 1) for given in options.python)})
    if options.docs:
        publish(text, PAGE)
    print(text)


if __name__ == "__main__":
    main()
