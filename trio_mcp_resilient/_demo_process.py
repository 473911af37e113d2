"""A server in a process of its own, which can be killed for real and started again on the same port."""

from __future__ import annotations

import random
import socket
import subprocess
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import final

import trio

POLL = 0.02
"""Seconds between two knocks at a port that is not open yet."""

PORTS = range(10_000, 32_000)
"""Below the ephemeral range of every common system. A port out of that range could be given to
some connection while its server is down, and a client that knocks on such a port over and over
can even be connected to itself."""


class ServerFailed(RuntimeError):
    """The server process ended by itself, or did not listen in time; the message has its last words."""


@final
class ServerProcess:
    """One server on one loopback port, through any number of processes.

    Made by `open_server_process`, which ends it.
    """

    def __init__(
        self, command: Sequence[str], *, port: int, log: Path, env: Mapping[str, str] | None
    ) -> None:
        self.port = port
        self._command = list(command)
        self._log = log
        self._env = env
        self._process: trio.Process | None = None

    @property
    def pid(self) -> int | None:
        """The process now running, if one is."""
        return None if self._process is None else self._process.pid

    async def start(self, within: float = 60.0) -> None:
        """Start a process and wait until its port is open.

        Args:
            within: seconds until that counts as a failure.

        Raises:
            ServerFailed: it exited, or was not listening in time. It is ended then.
            RuntimeError: it is running already.

        Cancellation: the process may be running; `kill` ends it. Checkpoint: always.
        """
        if self._process is not None:
            raise RuntimeError("the server is running already")
        with self._log.open("ab") as log:
            self._process = await trio.lowlevel.open_process(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._env
            )
        with trio.move_on_after(within):
            if await self._listens(self._process):
                return
        await self.kill()
        raise ServerFailed(f"no server on port {self.port}; its last words:\n{self.last_words()}")

    async def _listens(self, process: trio.Process) -> bool:
        """Wait until the port is open or the process has ended; return whether it still runs."""
        while not await _is_open(self.port):
            if process.poll() is not None:
                return False
        # A process that found its port taken ends while somebody else answers there.
        return process.poll() is None

    async def kill(self) -> None:
        """End the process with SIGKILL, which no server can soften, and wait until it is gone.

        Does nothing if none is running.

        Cancellation: it was killed, but it may not be gone yet. Checkpoint: always.
        """
        if self._process is None:
            await trio.lowlevel.checkpoint()
            return
        self._process.kill()
        await self._process.wait()
        self._process = None

    def last_words(self, lines: int = 40) -> str:
        """Return the end of what all its processes have printed."""
        text = self._log.read_text(errors="replace") if self._log.exists() else ""
        return "\n".join(text.splitlines()[-lines:])


@asynccontextmanager
async def open_server_process(
    command: Sequence[str], *, port: int, log: Path, env: Mapping[str, str] | None = None
) -> AsyncGenerator[ServerProcess, None]:
    """Yield a server that is not started yet, and end its process however the block is left.

    Args:
        command: the program and its arguments; they have to name `port`.
        port: where it will listen on 127.0.0.1.
        log: the file that receives everything it prints.
        env: its whole environment; None for this process's own.
    """
    server = ServerProcess(command, port=port, log=log, env=env)
    try:
        yield server
    finally:
        # The bound is for form: the kernel does not keep a killed process waiting.
        with trio.move_on_after(10, shield=True):
            await server.kill()


def free_port() -> int:
    """Return a loopback port on which nobody listens. Not a checkpoint."""
    for port in random.sample(PORTS, 100):
        with socket.socket() as candidate:
            try:
                candidate.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError("no free port among 100")


async def _is_open(port: int) -> bool:
    """Knock, and pause for a moment if nobody answers."""
    try:
        stream = await trio.open_tcp_stream("127.0.0.1", port)
    except OSError:
        await trio.sleep(POLL)
        return False
    await stream.aclose()
    return True
