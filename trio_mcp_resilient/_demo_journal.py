"""The demo server's journal: what happened on its side, in a file that outlives a SIGKILL.

Each event is one short line, written with one call to the operating system, so the reader never
sees half of one and a killed server loses none. Session ids are bearer secrets: the file belongs
into a directory that only its owner can read, and goes when the demo ends.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import final

SESSION = "session"
"""A handshake was answered with this session id."""
CALL = "call"
"""A tool ran with this key."""


@final
class Journal:
    """Appends events as a server and reads them as whoever watches it."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)

    def append(self, event: str, value: str) -> None:
        """Write one event; it is out of this process when this returns. Blocks for microseconds."""
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, f"{event} {value}\n".encode())
        finally:
            os.close(descriptor)

    def sessions(self) -> list[str]:
        """Return the id of every session the server ever made, in order: one per handshake."""
        return self.values(SESSION)

    def executions(self, prefix: str = "") -> Counter[str]:
        """Return how often the tool ran with each key that begins with `prefix`."""
        return Counter(key for key in self.values(CALL) if key.startswith(prefix))

    def values(self, event: str) -> list[str]:
        """Return the values of every such event, in order."""
        if not self._path.exists():
            return []
        lines = (line.partition(" ") for line in self._path.read_text().splitlines())
        return [value for kind, _, value in lines if kind == event]
