"""What the servers of these tests write down. Standard library only: every server imports it.

The format is that of the demo's journal, which the tests read it with; it is written anew here
because a server of another MCP version runs on a Python that does not have the package.
"""

from __future__ import annotations

import os
from typing import Any


def record(event: str, value: str) -> None:
    """Append one event, with one call to the operating system, so that a SIGKILL loses none."""
    descriptor = os.open(os.environ["JOURNAL"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, f"{event} {value}\n".encode())
    finally:
        os.close(descriptor)


def recording_sessions(app: Any) -> Any:
    """Wrap an ASGI app so that each session id it hands out is written down."""

    async def recorded(scope: Any, receive: Any, send: Any) -> None:
        async def watched(message: Any) -> None:
            if message["type"] == "http.response.start" and not session_id(scope):
                given = session_id(message)
                if given and message["status"] == 200:
                    record("session", given)
            await send(message)

        await app(scope, receive, watched)

    return recorded


def session_id(headed: Any) -> str:
    headers = headed.get("headers") or ()
    return next((value.decode("latin-1") for name, value in headers if name.lower() == b"mcp-session-id"), "")
