"""Probe every real server there is here and record what came back: `python -m tests.real.probing`.

The record is `tests/data/probes.json`. `docs/probe_table.py` makes the table of `docs/probe.md` from it,
and `test_real_probe.py` asks the servers again.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import trio

from trio_mcp_resilient._cli_options import Target, wire_of
from trio_mcp_resilient._envelope import Introduction
from trio_mcp_resilient._probe import probe
from trio_mcp_resilient._probe_report import as_json

from .others import FASTMCP_PYTHON, NPM_FOLDER, OTHERS
from .servers import KINDS, MCP1_PYTHON, Kind, open_server

RECORD = Path(__file__).parent.parent / "data" / "probes.json"
ALL = [*KINDS, *(other.kind for other in OTHERS)]
FORMS = {"sse": "", "json": ", answering in JSON", "stored": ", with an event store"}


async def examined(kind: Kind, directory: Path) -> dict[str, Any]:
    """Start a server, and return what a probe says of it, without where it listened."""
    introduction = Introduction({"name": "probe", "version": "1"}, {})
    async with open_server(kind, directory) as server:
        target = Target(server.url, {}, "auto", 1, 60)
        report = as_json(await probe(target.endpoint, wire_of(target), introduction))
        assert not server.executions(), "a tool was called"
    del report["endpoint"]
    return report


def label(kind: Kind) -> str:
    """Return what the table calls a server: the software and its version."""
    name, _, form = kind.name.partition("-")
    if name == "mcp2":
        return f"mcp {version('mcp')}{FORMS[form]}"
    if name == "mcp1":
        return f"mcp {_version_in(MCP1_PYTHON, 'mcp')}{FORMS[form]}"
    if name == "pypi":
        return f"fastmcp {_version_in(FASTMCP_PYTHON, 'fastmcp')} (PyPI)"
    package, what = {
        "everything": ("@modelcontextprotocol/server-everything", "server-everything"),
        "sdk": ("@modelcontextprotocol/sdk", "the example of @modelcontextprotocol/sdk"),
        "fastmcp": ("fastmcp", "fastmcp"),
    }[form]
    described = json.loads(Path(NPM_FOLDER, "node_modules", package, "package.json").read_text())
    return f"{what} {described['version']} (npm)"


def _version_in(python: str, distribution: str) -> str:
    script = f"from importlib.metadata import version; print(version('{distribution}'))"
    return subprocess.run([python, "-c", script], capture_output=True, text=True, check=True).stdout.strip()


async def main() -> None:
    """Probe them one after the other.

    Raises:
        RuntimeError: some of them are not here; half a table is none.
    """
    if not (MCP1_PYTHON and FASTMCP_PYTHON and NPM_FOLDER):
        raise RuntimeError("name MCP1_PYTHON, FASTMCP_PYTHON and NPM_FOLDER, as `nox -s tests` does")
    reports: dict[str, Any] = {}
    for kind in ALL:
        with tempfile.TemporaryDirectory(prefix="trio-mcp-probe-") as directory:
            reports[kind.name] = {"label": label(kind), **await examined(kind, Path(directory))}
    record = {"date": datetime.now(UTC).date().isoformat(), "reports": reports}
    RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    trio.run(main)
