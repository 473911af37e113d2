"""The SDK's own server in the same Trio loop: MCP 2.x behind Hypercorn, over streams in memory.

It knows nothing of being simulated. It restarts, expires sessions, and has them ended by somebody
else; everything below HTTP is broken by the simulated network in front of it.
"""

from __future__ import annotations

import math
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import mcp_types as types
import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.streamable_http import EventMessage, EventStore
from mcp.shared.exceptions import MCPError

from tests.simulation.calls import RPC_ERROR, URI
from tests.simulation.ledger import MARK, Ledger
from tests.simulation.plan import TOOLS, Settings
from tests.simulation.tokens import CHALLENGE, Tokens
from trio_mcp_resilient.testing import MemoryStream, memory_connection

HOST, PORT = "127.0.0.1", 8000
KEEP_ALIVE = 30.0


class _Address:
    """All that Hypercorn asks of a stream's socket."""

    family = socket.AF_INET

    def getpeername(self) -> tuple[str, int]:
        return (HOST, 1)

    getsockname = getpeername


class _Store(EventStore):
    """Remembers every event, for those who resume."""

    def __init__(self) -> None:
        self._events: list[tuple[str, Any]] = []

    async def store_event(self, stream_id: str, message: Any) -> str:
        await trio.lowlevel.checkpoint()
        self._events.append((stream_id, message))
        return str(len(self._events))

    async def replay_events_after(self, last_event_id: str, send_callback: Any) -> str | None:
        await trio.lowlevel.checkpoint()
        if not last_event_id.isdigit() or not 0 < int(last_event_id) <= len(self._events):
            return None
        stream = self._events[int(last_event_id) - 1][0]
        for number, (stream_id, message) in enumerate(self._events, 1):
            if number > int(last_event_id) and stream_id == stream and message is not None:
                await send_callback(EventMessage(message, str(number)))
        return stream


class _Deployment:
    """One process of the server, as it were."""

    def __init__(self, settings: Settings, ledger: Ledger, tokens: Tokens | None) -> None:
        self.mcp = MCPServer("real")
        for name, hints in TOOLS.items():
            annotations = None if hints is None else types.ToolAnnotations(**hints)
            self.mcp.add_tool(_worker(ledger), name, annotations=annotations, structured_output=False)
        # Async ones, for the SDK runs others in threads, which no seed decides.
        self.mcp.resource(URI)(_memo)
        self.mcp.prompt("greet")(_greet)
        app = self.mcp.streamable_http_app(
            host=HOST,
            json_response=settings.json_mode,
            event_store=_Store() if settings.resumable else None,
            retry_interval=settings.retry,
            session_idle_timeout=settings.idle_timeout,
        )
        self.app = ASGIWrapper(app if tokens is None else _guarded(app, tokens))  # type: ignore[arg-type]
        self.scope = trio.CancelScope()
        self.streams: list[MemoryStream] = []

    async def run(self, task_status: trio.TaskStatus[trio.Nursery]) -> None:
        with self.scope:
            async with self.mcp.session_manager.run(), trio.open_nursery() as nursery:
                task_status.started(nursery)
                await trio.sleep_forever()

    @property
    def sessions(self) -> list[str]:
        """The sessions that it knows. There is no public way to ask."""
        known = self.mcp.session_manager._server_instances
        return [session for session, transport in known.items() if not transport.is_terminated]


class RealPeer:
    """The SDK's server, as a world sees it."""

    url = f"http://{HOST}:{PORT}/mcp"

    def __init__(
        self, settings: Settings, ledger: Ledger, tokens: Tokens | None, nursery: trio.Nursery
    ) -> None:
        self._tokens = tokens
        self._settings = settings
        self._ledger = ledger
        self._nursery = nursery
        self._deployment: _Deployment
        self._serving: trio.Nursery | None = None
        self._restarting = trio.Lock()
        self._down_until = -math.inf
        self._made: set[str] = set()
        self._open = 0
        self._config = Config()
        # Hypercorn also keeps a connection that its client has closed, for as long.
        self._config.keep_alive_timeout = KEEP_ALIVE

    async def deploy(self) -> None:
        """Start a process that knows no sessions."""
        self._deployment = _Deployment(self._settings, self._ledger, self._tokens)
        self._serving = await self._nursery.start(self._deployment.run)

    async def connect(self, host: str, port: int) -> MemoryStream:
        """Connect, whatever the host."""
        await trio.lowlevel.checkpoint()
        if self._serving is None or trio.current_time() < self._down_until:
            raise ConnectionRefusedError
        return self._accept()

    def _accept(self) -> MemoryStream:
        assert self._serving is not None
        ours, theirs = memory_connection()
        theirs.socket = _Address()  # type: ignore[attr-defined]
        self._deployment.streams.append(theirs)
        self._serving.start_soon(self._serve, theirs)
        return ours

    async def _serve(self, stream: MemoryStream) -> None:
        self._open += 1
        try:
            app, context = self._deployment.app, WorkerContext(None)
            await TCPServer(app, self._config, context, {}, stream).run()  # type: ignore[arg-type]
        except Exception as error:
            # As its own worker would, which logs it: broken connections are more than it expects.
            self._ledger.note(f"hypercorn: {type(error).__name__}")
        finally:
            self._open -= 1

    def live(self) -> list[str]:
        """The sessions that the server knows."""
        sessions = self._deployment.sessions
        self._made.update(sessions)
        return sessions

    def lose_session(self, streams: str) -> None:
        """Let somebody else end every session."""
        for session in self.live():
            self._nursery.start_soon(self._delete, session)

    async def _delete(self, session: str) -> None:
        if self._serving is None:
            return
        stream = self._accept()
        head = f"DELETE /mcp HTTP/1.1\r\nhost: {HOST}:{PORT}\r\nmcp-session-id: {session}\r\n"
        if self._tokens is not None:
            head += f"authorization: {self._tokens.authorization}\r\n"
        head += "\r\n"
        try:
            await stream.send_all(head.encode())
            with trio.move_on_after(5):
                await stream.receive_some()
        except trio.BrokenResourceError:
            # It died under the request.
            pass
        stream.close()

    async def restart(self, *, keep_sessions: bool, down_for: float) -> None:
        """Die and come back. It has no store for its sessions; keeping them means that it only hung up."""
        self._down_until = trio.current_time() + down_for
        self._cut()
        if not keep_sessions:
            async with self._restarting:
                self._serving = None
                self._deployment.scope.cancel()
                await self.deploy()

    def _cut(self) -> None:
        for stream in self._deployment.streams:
            stream.reset()
        self._deployment.streams.clear()

    async def forget(self) -> None:
        """Part from the sessions that were left, for each has tasks at the server."""
        for session in self.live():
            await self._delete(session)
        # It keeps idle connections for a while.
        await trio.sleep(2 * KEEP_ALIVE)

    def calm(self, *, cut: bool) -> None:
        """Break nothing more."""
        self._down_until = -math.inf
        if cut:
            self._cut()

    @property
    def handshakes(self) -> int:
        """How many sessions were seen."""
        self.live()
        return len(self._made)

    @property
    def open_connections(self) -> int:
        """How many connections are open."""
        return self._open


@asynccontextmanager
async def open_real_peer(
    settings: Settings, ledger: Ledger, tokens: Tokens | None
) -> AsyncGenerator[RealPeer, None]:
    """Open the SDK's server for a world."""
    async with trio.open_nursery() as nursery:
        peer = RealPeer(settings, ledger, tokens, nursery)
        await peer.deploy()
        yield peer
        nursery.cancel_scope.cancel()


def _guarded(app: Any, tokens: Tokens) -> Any:
    """An application that refuses whoever has no valid token."""

    async def guarded(scope: Any, receive: Any, send: Any) -> None:
        shown = dict(scope.get("headers") or ()).get(b"authorization", b"").decode()
        if scope["type"] != "http" or tokens.accepts(shown):
            await app(scope, receive, send)
            return
        headers = [(name.encode(), value.encode()) for name, value in CHALLENGE.items()]
        await send({"type": "http.response.start", "status": 401, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    return guarded


def _worker(ledger: Ledger) -> Callable[..., Awaitable[types.CallToolResult]]:
    async def work(
        number: int, seconds: float, steps: int, ends: str, ctx: Context[Any, Any]
    ) -> types.CallToolResult:
        ledger.started(number, "tools/call")
        for step in range(steps):
            await ctx.report_progress(step + 1, steps, f"{number}")
            await trio.sleep(seconds / steps / 2)
        if ends == "detach":
            await ctx.close_sse_stream()
        await trio.sleep(seconds / 2 if steps else seconds)
        if ends == "tool error":
            raise ToolError(f"no {number}")
        if ends == "rpc error":
            raise MCPError(RPC_ERROR, f"no {number}")
        text = types.TextContent(type="text", text=f"done {number}")
        return types.CallToolResult(content=[text], _meta={MARK: number})

    return work


async def _memo() -> str:
    await trio.lowlevel.checkpoint()
    return "text of one"


async def _greet(name: str) -> str:
    await trio.lowlevel.checkpoint()
    return f"hello {name}"
