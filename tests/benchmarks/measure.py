"""The runs: who is measured, how often, and in which order."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import certifi
import trustme

from tests.benchmarks.peers import PEERS
from tests.benchmarks.processes import Process, allow_open_files, counts, process, server

MODES = ("json", "sse")
SDK = "mcp2-trio"
SEQUENTIAL_CALLS = 250
SPARE_FILES = 100
PATIENCE_SECONDS = 12.0
"""Who takes longer for one round is not asked for another: what there is to see, one shows."""
VERSIONS = ("mcp", "fastmcp", "httpx", "httpx2", "h11", "trio", "anyio", "pydantic")


@dataclass(frozen=True)
class Plan:
    """How much of everything."""

    rounds: int
    calls: Mapping[int, int]
    """Calls of one round, by how many tasks make them."""
    rescued: tuple[int, ...]
    widths: tuple[int, ...]
    losses: int
    clients: tuple[int, ...]
    sdk_clients: tuple[int, ...]
    in_flight: int
    pooled: tuple[int, ...]
    imports: int


FULL = Plan(
    rounds=7,
    calls={1: 200, 20: 200, 100: 300, 500: 500},
    rescued=(1, 100, 1000, 5000),
    widths=(1, 20, 100, 1000),
    losses=10_000,
    clients=(1, 100, 1000),
    sdk_clients=(1, 100),
    in_flight=1000,
    pooled=(100, 1000, 10_000),
    imports=5,
)
QUICK = Plan(
    rounds=1,
    calls={1: 100, 20: 100, 100: 200, 500: 500},
    rescued=(1, 100),
    widths=(20,),
    losses=200,
    clients=(1, 50),
    sdk_clients=(1, 10),
    in_flight=100,
    pooled=(10, 100),
    imports=2,
)
SDK_IN_FLIGHT = 90
"""The SDK's HTTP client opens 100 connections at most, and further calls fail."""

Say = Callable[[str], None]


class Bench:
    """One run of everything, or of a part."""

    def __init__(self, plan: Plan, pythons: Mapping[str, str], say: Say) -> None:
        self.plan = plan
        self.pythons = {"main": sys.executable, **pythons}
        """The Python of each environment that is there."""
        self.peers = [name for name, peer in PEERS.items() if peer.environment in self.pythons]
        self._say = say
        self._files = 0

    def run(self, parts: list[str]) -> dict[str, Any]:
        """Measure and return all that was found, as plain data."""
        self._files = allow_open_files()
        found: dict[str, Any] = {"made": self._made()}
        for part in parts:
            began = time.monotonic()
            found[part] = PARTS[part](self)
            self._say(f"{part}: {time.monotonic() - began:.0f} s")
        return found

    def _made(self) -> dict[str, Any]:
        return {
            "date": time.strftime("%Y-%m-%d"),
            "python": platform.python_version(),
            "system": platform.system(),
            "cores": len(os.sched_getaffinity(0)),
            "rounds": self.plan.rounds,
            "calls": dict(self.plan.calls),
            "versions": {name: versions(python) for name, python in self.pythons.items()},
        }

    def cost(self) -> dict[str, Any]:
        """Every peer at every concurrency, in turns within each round."""
        return {mode: self._cost(mode) for mode in MODES}

    def _cost(self, mode: str) -> dict[int, Any]:
        with ExitStack() as stack:
            url = stack.enter_context(server(mode))
            workers = {
                name: stack.enter_context(
                    process("worker", name, url, python=self.pythons[PEERS[name].environment])
                )
                for name in self.peers
            }
            rounds: dict[int, dict[str, list[dict[str, Any]]]] = {
                concurrency: {name: [] for name in workers} for concurrency in self.plan.calls
            }
            for number in range(self.plan.rounds):
                self._say(f"  {mode}, round {number + 1} of {self.plan.rounds}")
                for concurrency, found in rounds.items():
                    self._round(workers, concurrency, found)
        return {
            concurrency: {name: medians(each) for name, each in found.items()}
            for concurrency, found in rounds.items()
        }

    def _round(
        self, workers: Mapping[str, Process], concurrency: int, found: dict[str, list[dict[str, Any]]]
    ) -> None:
        for name, worker in workers.items():
            if found[name] and found[name][-1]["took"] > PATIENCE_SECONDS:
                continue
            began = time.monotonic()
            calls = self.plan.calls[concurrency] * PEERS[name].calls_factor
            answer = worker.ask(f"{calls} {concurrency}")
            found[name].append({**answer, "took": time.monotonic() - began})

    def rescue(self) -> dict[str, Any]:
        """From the loss until everybody has an answer."""
        # Each call has a connection of the lost session's, and one of the next's.
        sizes = tuple(size for size in self.plan.rescued if 2 * size < self._files - SPARE_FILES)
        with server("json") as url:
            return once("rescue", "rescue", url, str(self.plan.rounds), joined(sizes))

    def thousand(self) -> dict[str, Any]:
        """1000 calls of which some meet a loss."""
        with server("json") as url:
            return once("rescue", "thousand", url, str(self.plan.rounds), joined(self.plan.widths))

    def losses(self) -> dict[str, Any]:
        """Many losses, one after another."""
        with server("json") as url:
            return once("rescue", "losses", url, str(self.plan.losses))

    def connections(self) -> dict[str, int]:
        """How many connections some calls in sequence open, answered by streams."""
        found = {}
        for name in ("ours", SDK):
            with server("sse") as url, process("worker", name, url) as worker:
                # One call is made before the others.
                worker.ask(f"{SEQUENTIAL_CALLS - 1} 1")
                found[name] = counts(url)["connections"]
        return found

    def memory(self) -> dict[str, Any]:
        """Idle clients over http and https, and calls in flight."""
        many = {"ours": self.plan.clients, SDK: self.plan.sdk_clients}
        found: dict[str, Any] = {}
        with trusted_certificate() as (certificate, env):
            for scheme, paper, trust in (("http", None, {}), ("https", certificate, env)):
                for name, clients in many.items():
                    with server("json", paper) as url:
                        held = once("footprint", name, url, joined(clients), extra_env=trust)
                    found[f"{scheme} {name}"] = held
        for name, calls in (("ours", self.plan.in_flight), ("ours", SDK_IN_FLIGHT), (SDK, SDK_IN_FLIGHT)):
            with server("json") as url:
                found[f"in flight {name} {calls}"] = once("footprint", "--in-flight", name, url, str(calls))
        return found

    def pool(self) -> dict[str, Any]:
        """Pools of ever more clients, whose server is in the same process or on loopback."""
        found = {"memory": once("pool", "memory", joined(self.plan.pooled))}
        # Each client has one connection.
        sizes = tuple(size for size in self.plan.pooled if size < self._files - SPARE_FILES)
        with server("json") as url:
            found["loopback"] = once("pool", url, joined(sizes))
        return found

    def imports(self) -> dict[str, float]:
        """What importing the package adds, with compiled modules at hand."""
        cases = {
            "mcp, httpx": ("", "mcp,httpx"),
            "trio, after mcp, httpx": ("mcp,httpx", "trio"),
            "trio_mcp_resilient, after mcp, httpx": ("mcp,httpx", "trio_mcp_resilient"),
            "trio_mcp_resilient, after mcp, httpx, trio": ("mcp,httpx,trio", "trio_mcp_resilient"),
        }
        with tempfile.TemporaryDirectory() as cache:
            env = {"PYTHONPYCACHEPREFIX": cache, "PYTHONDONTWRITEBYTECODE": ""}
            once("imports", "", "trio_mcp_resilient", extra_env=env)
            seconds: dict[str, list[float]] = {name: [] for name in cases}
            for _ in range(self.plan.imports):
                for name, (first, second) in cases.items():
                    seconds[name].append(once("imports", first, second, extra_env=env)["seconds"])
        return {name: statistics.median(each) for name, each in seconds.items()}


PARTS: dict[str, Callable[[Bench], dict[str, Any]]] = {
    "cost": Bench.cost,
    "connections": Bench.connections,
    "thousand": Bench.thousand,
    "rescue": Bench.rescue,
    "losses": Bench.losses,
    "memory": Bench.memory,
    "pool": Bench.pool,
    "imports": Bench.imports,
}
"""In the order in which they run."""


def once(module: str, *arguments: str, extra_env: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Run a module that measures one thing, and return what it says."""
    with process(module, *arguments, extra_env=extra_env) as started:
        return started.answer()


def medians(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the median of each figure over the rounds, and CPU by round; or the first failure."""
    failed = next((each for each in rounds if "failed" in each), None)
    if failed is not None:
        return failed
    middle = {figure: statistics.median(each[figure] for each in rounds) for figure in rounds[0]}
    return {**middle, "cpu_us_by_round": [each["cpu_us"] for each in rounds]}


def joined(numbers: tuple[int, ...]) -> str:
    """Return numbers as a process takes them."""
    return ",".join(map(str, numbers))


@contextmanager
def trusted_certificate() -> Iterator[tuple[str, dict[str, str]]]:
    """Yield a certificate file for the server, and the environment that makes clients trust it."""
    authority = trustme.CA()
    with tempfile.TemporaryDirectory() as folder:
        trusted, own = Path(folder, "authority.pem"), Path(folder, "server.pem")
        # One more authority among the usual ones: a list of one would make contexts too small.
        trusted.write_bytes(Path(certifi.where()).read_bytes() + authority.cert_pem.bytes())
        authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(own))
        yield str(own), {"SSL_CERT_FILE": str(trusted)}


def versions(python: str) -> dict[str, str]:
    """Return the versions of what matters in an environment."""
    answer = subprocess.run(
        [python, "-c", VERSIONS_SCRIPT, *VERSIONS], check=True, capture_output=True, text=True
    )
    found: dict[str, str] = json.loads(answer.stdout)
    return found


VERSIONS_SCRIPT = """
import importlib.metadata as m, json, sys
found = {d.name: d.version for d in m.distributions()}
print(json.dumps({name: found[name] for name in sys.argv[1:] if name in found}))
"""
