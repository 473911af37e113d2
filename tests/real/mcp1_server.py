"""A stateful server of the MCP SDK 1.x, set up by `PORT`, `JOURNAL`, `JSON` and `IDLE` (seconds).

With `RETRY` (milliseconds) it has an event store, so that cut answers can be taken up.
"""

from __future__ import annotations

import os

import anyio
import uvicorn
from mcp.server.fastmcp import Context, FastMCP
from recording import record, recording_sessions
from store import MemoryStore

retry = os.environ.get("RETRY")
server = FastMCP(
    "mcp1",
    json_response="JSON" in os.environ,
    session_idle_timeout=float(os.environ.get("IDLE", "1800")),
    event_store=MemoryStore() if retry else None,
    retry_interval=int(retry) if retry else None,
)


@server.tool()
async def act(key: str) -> str:
    """Do something that must not be done twice."""
    record("call", key)
    return f"did {key}"


@server.tool()
async def act_slowly(key: str) -> str:
    """Begin it, and go on until told to stop."""
    record("call", key)
    try:
        await anyio.sleep_forever()
    finally:
        record("stopped", key)
    return f"did {key}"


@server.tool()
async def act_in_steps(key: str, seconds: float, ctx: Context) -> str:
    """Do it, and say in between how far it has come."""
    record("call", key)
    await ctx.report_progress(1, 2)
    await anyio.sleep(seconds)
    await ctx.report_progress(2, 2)
    return f"did {key}"


app = recording_sessions(server.streamable_http_app())

if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(os.environ["PORT"]), log_level="warning")
