"""Real servers for the tests: how each kind is started, and what a test may do to a running one."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

import httpx
import trio

from trio_mcp_resilient._demo_journal import Journal
from trio_mcp_resilient._demo_process import ServerProcess, free_port, open_server_process

HERE = Path(__file__).parent
POLL = 0.02
PATIENCE = 30.0
"""Seconds for a state of the server's to come about; a bound, never a wait."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of server: enough to start any program that speaks streamable HTTP."""

    name: str
    command: Sequence[str]
    """It finds its port in `PORT` and the file to record into in `JOURNAL`."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Added to this process's own environment."""
    path: str = "/mcp"

    def __str__(self) -> str:
        return self.name

    def with_env(self, **env: str) -> Kind:
        """Return the same kind with more in its environment."""
        return Kind(self.name, self.command, {**self.env, **env}, self.path)


def _kinds(name: str, python: str) -> list[Kind]:
    command = [python, str(HERE / f"{name}_server.py")]
    return [Kind(f"{name}-sse", command), Kind(f"{name}-json", command, {"JSON": "1"})]


MCP1_PYTHON = os.environ.get("MCP1_PYTHON", "")
MCP1_IS_WANTED = bool(MCP1_PYTHON or os.environ.get("CI"))
"""A checkout without a second Python tests what it can. In CI nothing may be left out: there the
tests of 1.x servers fail if no Python for them is named."""

KINDS = _kinds("mcp2", sys.executable) + (_kinds("mcp1", MCP1_PYTHON) if MCP1_IS_WANTED else [])
SSE_KINDS = [kind for kind in KINDS if kind.name.endswith("sse")]


@final
class RealServer:
    """A server that can be killed and started again, with what it recorded."""

    def __init__(self, kind: Kind, process: ServerProcess, journal: Path) -> None:
        self.url = f"http://127.0.0.1:{process.port}{kind.path}"
        self.process = process
        self._journal = Journal(journal)

    async def restart(self) -> None:
        """Kill it and start it again on the same port, as an unkind deploy does."""
        await self.process.kill()
        await self.process.start()

    @property
    def handshakes(self) -> int:
        """How many sessions it has made, through all its processes."""
        return len(self._journal.sessions())

    @property
    def newest_session(self) -> str:
        """The id of the last session it made."""
        return self._journal.sessions()[-1]

    def executions(self, prefix: str = "") -> Counter[str]:
        """How often its tools ran with each key that begins with `prefix`."""
        return self._journal.executions(prefix)

    def stopped(self) -> list[str]:
        """The keys of the calls of `act_slowly` that were told to stop."""
        return self._journal.values("stopped")

    async def wait_until(self, holds: Callable[[], bool]) -> None:
        """Look at what it recorded until `holds`; the limit is a failure."""
        with trio.fail_after(PATIENCE):
            while not holds():  # noqa: ASYNC110  # it happens in another process
                await trio.sleep(POLL)

    async def delete_session(self, session_id: str) -> None:
        """End a session as somebody who is not its client."""
        assert await self._status("DELETE", session_id) in (200, 204)

    async def wait_until_refused(self, session_id: str, *, pause: float = 0.1) -> None:
        """Wait until the server knows a session no more.

        Asking counts as use, so each pause (the first is given, in seconds) is twice as long as
        the last: one of them is long enough for a session to expire.
        """
        with trio.fail_after(PATIENCE):
            while await self._status("POST", session_id) != 404:
                await trio.sleep(pause)
                pause *= 2

    async def _status(self, method: str, session_id: str) -> int:
        headers = {
            "mcp-session-id": session_id,
            "accept": "application/json, text/event-stream",
            "content-type": "application/json",
        }
        body = b'{"jsonrpc":"2.0","id":"outsider","method":"ping"}' if method == "POST" else None
        async with httpx.AsyncClient(trust_env=False) as client:
            response = await client.request(method, self.url, headers=headers, content=body)
            return response.status_code


@asynccontextmanager
async def open_server(
    kind: Kind, directory: Path, *, started: bool = True, port: int | None = None
) -> AsyncGenerator[RealServer, None]:
    """Run one server for as long as the block lasts; what it printed is shown if the block fails."""
    if not kind.command[0]:
        raise RuntimeError(f"{kind} needs a Python with mcp 1.x: name it in MCP1_PYTHON")
    port = port or free_port()
    journal = directory / "journal"
    env = {**os.environ, **kind.env, "PORT": str(port), "JOURNAL": str(journal)}
    async with open_server_process(kind.command, port=port, log=directory / "log", env=env) as process:
        try:
            if started:
                await process.start()
            yield RealServer(kind, process, journal)
        except BaseException:
            sys.stderr.write(f"--- the last words of {kind} ---\n{process.last_words()}\n")
            raise
