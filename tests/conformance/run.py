"""Run the public conformance suite against the client and against the scripted server.

    python tests/conformance/run.py FOLDER [PART-OF-A-NAME ...]

FOLDER is where npm has installed the suite; `nox -s conformance` makes one. What is known to fail
is listed in `expected_failures.toml`. An entry there that passes, or that names nothing, fails the
run like a scenario that should have passed.
"""

# ruff: noqa: T201

from __future__ import annotations

import sys
import tomllib
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import trio
from offered import SCENARIOS, offer_everything
from suite import Result, Scenario, Suite

from trio_mcp_resilient.testing import open_scripted_server

EXPECTED = Path(__file__).parent / "expected_failures.toml"

UNTOLD = "sep-2640-"
"""Scenarios about an extension that skip every client that is without it: they tell nothing."""


def expected_failures() -> set[Scenario]:
    """Read the list; it names client scenarios only, since the scripted server passes all of its own."""
    groups = tomllib.loads(EXPECTED.read_text())["expected"]
    return {Scenario("client", group["version"], name) for group in groups for name in group["scenarios"]}


async def all_scenarios(suite: Suite) -> list[Scenario]:
    clients = [one for one in await suite.scenarios("client") if not one.name.startswith(UNTOLD)]
    servers = await suite.scenarios("server")
    wanted = [Scenario("server", version, name) for version, names in SCENARIOS.items() for name in names]
    if unknown := set(wanted) - set(servers):
        raise RuntimeError(f"the suite does not have {sorted(map(str, unknown))}")
    return sorted(clients) + wanted


@asynccontextmanager
async def served() -> AsyncGenerator[str, None]:
    """Serve the scripted server on loopback and yield its URL."""
    async with open_scripted_server("conformance", era="both") as server:
        offer_everything(server)
        yield f"http://127.0.0.1:{await server.serve_tcp()}/mcp"


async def run_all(suite: Suite, scenarios: Sequence[Scenario], expected: set[Scenario]) -> int:
    """Run the scenarios one after another, say how each ended, and return how many ended wrong."""
    passed, known, wrong = 0, 0, 0
    async with served() as url:
        for scenario in scenarios:
            result = await suite.run(scenario, url)
            word = verdict(result, scenario in expected)
            show(word, scenario, result)
            passed += word == "pass"
            known += word == "expected"
            wrong += word in ("FAIL", "STALE")
    for stale in sorted(expected - set(scenarios)):
        print(f"{'STALE':8}  {stale}: there is no such scenario")
        wrong += 1
    print(f"{passed} passed, {wrong} failed; {known} more failed as they are expected to")
    return wrong


def verdict(result: Result, expected_to_fail: bool) -> str:
    if expected_to_fail:
        return "STALE" if result.passed else "expected"
    return "pass" if result.passed else "FAIL"


def show(word: str, scenario: Scenario, result: Result) -> None:
    print(f"{word:8}  {scenario}  {result.checks}  {result.seconds:.1f} s", flush=True)
    if word == "FAIL":
        print("\n".join(result.output.splitlines()[-60:]), flush=True)


async def main(folder: Path, parts: Sequence[str]) -> int:
    suite = Suite(folder)
    scenarios = await all_scenarios(suite)
    expected = expected_failures()
    if parts:
        scenarios = [one for one in scenarios if any(part in str(one) for part in parts)]
        expected &= set(scenarios)
    return await run_all(suite, scenarios, expected)


if __name__ == "__main__":
    sys.exit(1 if trio.run(main, Path(sys.argv[1]), sys.argv[2:]) else 0)
