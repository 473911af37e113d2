"""Other people's servers: how each is started and called, and what may be expected of it."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .servers import HERE, MCP1_IS_WANTED, MCP1_PYTHON, Kind

SECONDS = 1.5
"""How long a call in steps takes that is waited for, on servers that let it be chosen."""
LONG = 10.0
"""How long one takes that is to be running still when something happens to it."""

NPM_FOLDER = os.environ.get("NPM_FOLDER", "")
"""Where npm has installed its servers."""
FASTMCP_PYTHON = os.environ.get("FASTMCP_PYTHON", "")
# As with MCP1_PYTHON: a checkout without them tests what it can, and CI leaves nothing out.
NPM_IS_WANTED = bool(NPM_FOLDER or os.environ.get("CI"))
FASTMCP_IS_WANTED = bool(FASTMCP_PYTHON or os.environ.get("CI"))


@dataclass(frozen=True, slots=True)
class Call:
    """One call of one server's tool. Its arguments have a key, which the wire is searched for."""

    tool: str
    arguments: dict[str, Any]
    text: str
    """What the answer says; it is this call's own."""


@dataclass(frozen=True, slots=True)
class Other:
    """One of these servers, with tools of our own that record what they run."""

    kind: Kind
    resumable: bool
    """It keeps what a cut stream still had to say, and gives it to whoever asks."""
    records: bool = True
    """It writes a journal of what it runs."""
    expires: bool = False
    """It can be told to end idle sessions."""

    def __str__(self) -> str:
        return self.kind.name

    def quick(self, key: str) -> Call:
        """A call that is answered at once."""
        return Call("act", {"key": key}, f"did {key}")

    def in_steps(self, key: str, number: int, seconds: float = SECONDS) -> Call:
        """A call that takes its time; no two numbers have the same answer."""
        return Call("act_in_steps", {"key": key, "seconds": seconds}, f"did {key}")


class Everything(Other):
    """The reference server. It does not say which call an answer is of, so no two take equally long."""

    def quick(self, key: str) -> Call:
        return Call("echo", {"message": key, "key": key}, f"Echo: {key}")

    def in_steps(self, key: str, number: int, seconds: float = SECONDS) -> Call:
        seconds += number / 100
        text = f"Long running operation completed. Duration: {seconds} seconds, Steps: 4."
        arguments = {"duration": seconds, "steps": 4, "key": key}
        return Call("trigger-long-running-operation", arguments, text)


class SdkExample(Other):
    """The example server that comes with npm's SDK. Its call in steps always takes 2 seconds."""

    def quick(self, key: str) -> Call:
        return Call("greet", {"name": key, "key": key}, f"Hello, {key}!")

    def in_steps(self, key: str, number: int, seconds: float = SECONDS) -> Call:
        return Call("multi-greet", {"name": key, "key": key}, f"Good morning, {key}!")


NODE = ["node", "--require", str(HERE / "loopback.cjs")]
"""The examples take no host and would listen on every interface."""


def _npm(*path: str) -> str:
    return str(Path(NPM_FOLDER, "node_modules", *path))


def _mcp(name: str, python: str) -> Other:
    command = [python, str(HERE / f"{name}_server.py")]
    return Other(Kind(f"{name}-stored", command, {"RETRY": "100"}), resumable=True, expires=True)


EVERYTHING = Everything(
    Kind(
        "npm-everything",
        [*NODE, _npm("@modelcontextprotocol", "server-everything", "dist", "index.js"), "streamableHttp"],
    ),
    resumable=True,
    records=False,
)
SDK_EXAMPLE = SdkExample(
    Kind(
        "npm-sdk",
        [
            "sh",
            "-c",
            'MCP_PORT="$PORT" exec "$@"',
            "sh",
            *NODE,
            _npm(
                "@modelcontextprotocol", "sdk", "dist", "esm", "examples", "server", "simpleStreamableHttp.js"
            ),
        ],
    ),
    resumable=True,
    records=False,
)
NPM_FASTMCP = Other(Kind("npm-fastmcp", [*NODE, str(HERE / "fastmcp_server.mjs")]), resumable=True)
PYPI_FASTMCP = Other(
    Kind("pypi-fastmcp", [FASTMCP_PYTHON, str(HERE / "fastmcp_server.py")]), resumable=False, expires=True
)

OTHERS = [
    _mcp("mcp2", sys.executable),
    *([_mcp("mcp1", MCP1_PYTHON)] if MCP1_IS_WANTED else []),
    *([EVERYTHING, SDK_EXAMPLE, NPM_FASTMCP] if NPM_IS_WANTED else []),
    *([PYPI_FASTMCP] if FASTMCP_IS_WANTED else []),
]
EXPIRING = [other for other in OTHERS if other.expires]
