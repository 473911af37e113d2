"""Starting the measured processes, and speaking with them by lines."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PACKAGE = "tests.benchmarks"


class Process:
    """A Python process that reads lines and answers each with one."""

    def __init__(self, module: str, *arguments: str, python: str, env: Mapping[str, str]) -> None:
        self._name = " ".join((module, *arguments))
        self._process = subprocess.Popen(
            [python, "-m", f"{PACKAGE}.{module}", *arguments],
            cwd=ROOT,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def line(self) -> str:
        """Wait for the next line it prints."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._name} ended with {self._process.wait()}")
        return line

    def say(self, line: str) -> None:
        """Say a line."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def ask(self, line: str) -> dict[str, Any]:
        """Say a line and return the answer."""
        self.say(line)
        return self.answer()

    def answer(self) -> dict[str, Any]:
        """Wait for the next answer."""
        answer: dict[str, Any] = json.loads(self.line())
        return answer

    def end(self) -> None:
        """End it."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.terminate()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()


@contextmanager
def process(
    module: str, *arguments: str, python: str = sys.executable, extra_env: Mapping[str, str] | None = None
) -> Iterator[Process]:
    """Run a module of the benchmarks in a process of its own."""
    started = Process(module, *arguments, python=python, env={**os.environ, **(extra_env or {})})
    try:
        yield started
    finally:
        started.end()


@contextmanager
def server(mode: str, certificate: str | None = None) -> Iterator[str]:
    """Run a canned server and yield its URL."""
    scheme = "http" if certificate is None else "https"
    with process("server", mode, *([] if certificate is None else [certificate])) as started:
        yield f"{scheme}://127.0.0.1:{int(started.line())}/mcp"


def counts(url: str) -> dict[str, int]:
    """Return what a server, reached by http, has counted."""
    with urllib.request.urlopen(url.replace("/mcp", "/counts")) as response:
        counted: dict[str, int] = json.load(response)
    # Asking is a connection too.
    return {**counted, "connections": counted["connections"] - 1}


def allow_open_files() -> int:
    """Let this process and those it starts have as many files open as they may; return how many."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard
