"""The demo's server, run in a process of its own: `python -m trio_mcp_resilient._demo_server PORT JOURNAL`.

An ordinary stateful server of the MCP SDK. It is not made to fail: whoever runs the demo kills it.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

from mcp.server.mcpserver import MCPServer

from trio_mcp_resilient._demo_journal import CALL, SESSION, Journal

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Message, Receive, Send], Awaitable[None]]

SESSION_HEADER = b"mcp-session-id"


class SessionRecorder:
    """ASGI middleware that writes down each session id that is handed out.

    Outside the SDK's own layers, because inside it the ids are kept in private places.
    """

    def __init__(self, app: App, journal: Journal) -> None:
        self._app = app
        self._journal = journal

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        async def recorded(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] == 200:
                given = _session_id(message)
                if given and not _session_id(scope):
                    self._journal.append(SESSION, given)
            await send(message)

        await self._app(scope, receive, recorded)


class DemoServer(MCPServer):
    """The SDK's server, with the recorder around its app."""

    def __init__(self, journal: Journal) -> None:
        super().__init__("demo", log_level="WARNING")
        self._journal = journal

        def book(ticket: str) -> str:
            journal.append(CALL, ticket)
            return f"booked {ticket}"

        self.add_tool(book, description="Book a ticket. Booking it again books a second one.")

    def streamable_http_app(self, **options: Any) -> Any:
        """Return the app that `run` serves."""
        app = super().streamable_http_app(**options)
        app.add_middleware(SessionRecorder, journal=self._journal)
        return app


def _session_id(headed: Message) -> str:
    headers = headed.get("headers") or ()
    return next((value.decode("latin-1") for name, value in headers if name.lower() == SESSION_HEADER), "")


if __name__ == "__main__":
    DemoServer(Journal(sys.argv[2])).run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
