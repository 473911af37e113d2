"""A command that calls one tool: progress on standard error, the result on standard output.

    python command_line.py http://127.0.0.1:8000/mcp add '{"a": 1, "b": 2}'

Its exit status says what scripts have to know: 0, it was done; 1, it was not; 3, nobody can tell,
so look before you repeat it. Ctrl-C ends it at once, and the server is told.
"""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from typing import Unpack

import mcp
import mcp_types
import trio

from trio_mcp_resilient import ClientOptions, OutcomeUnknown, ResilientError, open_client

DONE, NOT_DONE, UNKNOWN, INTERRUPTED = 0, 1, 3, 130


async def report(progress: float, total: float | None, message: str | None) -> None:
    """Show how far the tool is."""
    print(f"{progress:g}/{'?' if total is None else f'{total:g}'} {message or ''}", file=sys.stderr)


async def call(url: str, tool: str, arguments: dict[str, object], **options: Unpack[ClientOptions]) -> int:
    """Call the tool, print its result, and return the exit status."""
    try:
        async with open_client(url, **options) as client:
            result = await client.call_tool(tool, arguments, progress_callback=report)
    except OutcomeUnknown as error:
        print(f"It may have been done: {error}", file=sys.stderr)
        return UNKNOWN
    except (ResilientError, mcp.MCPError) as error:
        print(f"It was not done: {error}", file=sys.stderr)
        return NOT_DONE
    for block in result.content:
        if isinstance(block, mcp_types.TextContent):
            print(block.text)
    # A tool that failed has run, but a script wants to hear of it.
    return NOT_DONE if result.is_error else DONE


def main(words: list[str] | None = None, **options: Unpack[ClientOptions]) -> int:
    """Carry out the command of these words, or of the process's own; return the exit status."""
    parser = argparse.ArgumentParser(description="Call a tool of an MCP server.")
    parser.add_argument("url")
    parser.add_argument("tool")
    parser.add_argument("arguments", type=json.loads, nargs="?", default={}, help="a JSON object")
    asked = parser.parse_args(words)
    # A person waits: better to hear after five seconds that the server is down than after thirty.
    options = {"recovery_timeout": 5, **options}
    try:
        return trio.run(partial(call, asked.url, asked.tool, asked.arguments, **options))
    except KeyboardInterrupt:
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
