"""A stateful server of the MCP SDK 1.x, set up by `PORT`, `JOURNAL`, `JSON` and `IDLE` (seconds)."""

from __future__ import annotations

import os

import anyio
import uvicorn
from mcp.server.fastmcp import FastMCP
from recording import record, recording_sessions

server = FastMCP(
    "mcp1", json_response="JSON" in os.environ, session_idle_timeout=float(os.environ.get("IDLE", "1800"))
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


app = recording_sessions(server.streamable_http_app())

if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(os.environ["PORT"]), log_level="warning")
