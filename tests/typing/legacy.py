"""An application that still checks with trio-typing's plugin, on mypy 1.8; never run.

It must check cleanly against this package, and its checker must still see a wrong argument
to `start_soon`, the one thing that plugin exists for.
"""

from __future__ import annotations

from typing import assert_type

import mcp_types
import trio

from trio_mcp_resilient import Client, open_client


async def add_up(client: Client, name: str) -> None:
    result = await client.call_tool(name, {"a": 1, "b": 2})
    assert_type(result, mcp_types.CallToolResult)


async def main() -> None:
    async with open_client("http://localhost:8000/mcp", name="adder") as client:
        assert_type(client, Client)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(add_up, client, "add")
            # An unused ignore is an error: this line proves that the mistake is seen.
            nursery.start_soon(add_up, client, 7)  # type: ignore[arg-type]


trio.run(main)
