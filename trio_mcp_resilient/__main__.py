"""The command line: `python -m trio_mcp_resilient`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from trio_mcp_resilient import _demo


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry one command out and return its exit status.

    Args:
        arguments: the words after the program's name; None for those of this process.
    """
    options = _parser().parse_args(arguments)
    if options.command == "demo":
        return _demo.main(as_json=options.json)
    raise AssertionError(f"a command without a branch: {options.command}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m trio_mcp_resilient",
        description="A Trio-native MCP client that outlives its sessions.",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    demo = commands.add_parser(
        "demo",
        help="kill a real server under this client and under the plain SDK client, and compare",
        description=_demo.main.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    demo.add_argument("--json", action="store_true", help="print the result as JSON")
    return parser


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        # The servers are gone by now. 130 is what a shell expects of an interrupted program.
        sys.exit(130)
