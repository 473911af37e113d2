"""The public conformance suite, run one scenario at a time.

Its own way of running many at once ignores exit codes and timeouts, so that a client that crashed
or hung after its last check counts as passed. One scenario at a time tells by its exit code.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import final

import trio

ROOT = Path(__file__).parent.parent.parent
CLIENT = "python tests/conformance/client.py"
"""Relative to `ROOT`: the suite splits the command at spaces, and a checkout's path may have some."""

EXTENSION = "extension"
"""Stands where other scenarios have a protocol version, for those of no version of the protocol."""
CLIENT_LIMIT = 30
"""Seconds that a client may take."""
COMPARED = re.compile(r"Passed: (\d+)/(\d+)")
LISTED = re.compile(r"- (\S+) \[(\S+)\]")


@dataclass(frozen=True, order=True)
class Scenario:
    """One scenario at one protocol version."""

    kind: str
    """Who is tested: "client" or "server"."""
    version: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.version} {self.name}"


@dataclass(frozen=True)
class Result:
    """How one run of a scenario ended."""

    passed: bool
    checks: str
    """How many of the scenario's checks passed, such as "18/18"; empty if it did not come to that."""
    output: str
    seconds: float


@final
class Suite:
    """The suite as npm installed it into a folder, together with the node that it needs."""

    def __init__(self, folder: Path) -> None:
        modules = folder.absolute() / "node_modules"
        self._command = [
            str(modules / ".bin" / "node"),
            str(modules / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"),
        ]
        path = [Path(sys.executable).parent, os.environ.get("PATH", os.defpath)]
        # A proxy, which the machine may need for everything else, is not for loopback.
        self._env = {
            **os.environ,
            "PATH": os.pathsep.join(map(str, path)),
            "NO_PROXY": "localhost,127.0.0.1",
            "no_proxy": "localhost,127.0.0.1",
        }

    async def scenarios(self, kind: str) -> list[Scenario]:
        """Ask the suite what it has, at which versions."""
        listed = LISTED.findall((await self._run("list", f"--{kind}")).stdout.decode())
        if not listed:
            raise RuntimeError("the suite lists no scenario")
        return [Scenario(kind, version, name) for name, all_of in listed for version in all_of.split(",")]

    async def run(self, scenario: Scenario, url: str = "") -> Result:
        """Run one scenario.

        Args:
            scenario: what to run.
            url: the server to test, for a scenario that tests one.
        """
        tested = ["--url", url] if scenario.kind == "server" else ["--command", CLIENT]
        limits = [] if scenario.kind == "server" else ["--timeout", str(CLIENT_LIMIT * 1000)]
        version = [] if scenario.version == EXTENSION else ["--spec-version", scenario.version]
        began = trio.current_time()
        ended = await self._run(scenario.kind, "--scenario", scenario.name, *tested, *limits, *version)
        output = ended.stdout.decode(errors="replace") + ended.stderr.decode(errors="replace")
        compared = COMPARED.search(output)
        # A scenario that the version does not have is skipped with exit code 0.
        passed = ended.returncode == 0 and compared is not None
        checks = "/".join(compared.groups()) if compared else ""
        return Result(passed, checks, output, trio.current_time() - began)

    async def _run(self, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        return await trio.run_process(
            [*self._command, *arguments],
            cwd=ROOT,
            env=self._env,
            check=False,
            capture_stdout=True,
            capture_stderr=True,
        )
