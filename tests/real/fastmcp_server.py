"""A stateful server of PyPI's fastmcp, set up by `PORT`, `JOURNAL` and `IDLE` (seconds).

It has no event store that works over HTTP: what is cut is lost.
"""

from __future__ import annotations

import os

import anyio
import fastmcp
from fastmcp import Context, FastMCP
from recording import record

fastmcp.settings.http_session_idle_timeout = float(os.environ.get("IDLE", "1800"))
server = FastMCP("fastmcp")


@server.tool
async def act(key: str) -> str:
    """Do something that must not be done twice."""
    record("call", key)
    return f"did {key}"


@server.tool
async def act_in_steps(key: str, seconds: float, ctx: Context) -> str:
    """Do it, and say in between how far it has come."""
    record("call", key)
    await ctx.report_progress(1, 2)
    await anyio.sleep(seconds)
    await ctx.report_progress(2, 2)
    return f"did {key}"


if __name__ == "__main__":
    server.run(
        transport="http",
        host="127.0.0.1",
        port=int(os.environ["PORT"]),
        log_level="warning",
        show_banner=False,
    )
