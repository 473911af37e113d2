"""A pair of dispatchers for the suite's contract tests: ours, and the SDK's behind streamable HTTP."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import trio
from bridge import open_memory_server
from mcp.server.streamable_http import StreamableHTTPServerTransport
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp.shared.transport_context import TransportContext
from mcp_types.version import LATEST_HANDSHAKE_VERSION
from substitute import URL, opened

from trio_mcp_resilient import open_client
from trio_mcp_resilient._dispatcher import ResilientDispatcher

WHO = {"name": "pair", "version": "1"}
INITIALIZED = {"protocolVersion": LATEST_HANDSHAKE_VERSION, "capabilities": {}, "serverInfo": WHO}


class _Server:
    """The far side: its handlers come when the test runs it, its session begins before."""

    def __init__(self, *, can_send_request: bool) -> None:
        self._may_ask = can_send_request
        self._transport = StreamableHTTPServerTransport("pair")
        self._dispatcher: JSONRPCDispatcher[TransportContext]
        self._on_request: Any
        self._on_notify: Any
        self.heard_from = trio.Event()
        """Set once there is a stream for what nobody asked for."""

    async def application(self, scope: Any, receive: Any, send: Any) -> None:
        if scope.get("method") == "GET":
            send = self._noting_the_head(send)
        await self._transport.handle_request(scope, receive, send)

    def _noting_the_head(self, send: Any) -> Any:
        async def noting(message: Any) -> None:
            self.heard_from.set()
            await send(message)

        return noting

    async def serve(self, task_status: trio.TaskStatus[None]) -> None:
        async with self._transport.connect() as (read, write):
            self._dispatcher = JSONRPCDispatcher(read, write, transport_builder=self._context)
            await self._dispatcher.run(self._answer, self._hear, task_status=task_status)  # type: ignore[arg-type]

    def _context(self, _meta: object) -> TransportContext:
        return TransportContext(kind="jsonrpc", can_send_request=self._may_ask)

    async def _answer(self, ctx: Any, method: str, params: Mapping[str, Any] | None) -> dict[str, Any]:
        if method == "initialize":
            return INITIALIZED
        return await self._on_request(ctx, method, params)

    async def _hear(self, ctx: Any, method: str, params: Mapping[str, Any] | None) -> None:
        if method != "notifications/initialized":
            await self._on_notify(ctx, method, params)

    async def run(self, on_request: Any, on_notify: Any, intercept: Any = None, *, task_status: Any) -> None:
        self._on_request, self._on_notify = on_request, on_notify
        task_status.started()
        await trio.sleep_forever()

    async def send_raw_request(self, *args: Any) -> dict[str, Any]:
        return await self._dispatcher.send_raw_request(*args)

    async def notify(self, *args: Any) -> None:
        await self._dispatcher.notify(*args)


class _Client:
    """The near side: our dispatcher, whose first session stands once it runs."""

    def __init__(self, server: _Server) -> None:
        self._server = server
        self._dispatcher: ResilientDispatcher

    async def run(self, on_request: Any, on_notify: Any, intercept: Any = None, *, task_status: Any) -> None:
        opened.append(URL)
        async with open_memory_server(self._server.application) as connect, trio.open_nursery() as nursery:
            await nursery.start(self._server.serve)
            async with open_client(URL, connect=connect, mode="legacy") as client:
                # It has no public name, and is what the test is about.
                self._dispatcher = client.session._dispatcher  # type: ignore[assignment]
                self._dispatcher.inbound.attach(on_request, on_notify, intercept, nursery)
                await self._server.heard_from.wait()
                task_status.started()
                await trio.sleep_forever()

    async def send_raw_request(self, *args: Any) -> dict[str, Any]:
        return await self._dispatcher.send_raw_request(*args)

    async def notify(self, *args: Any) -> None:
        await self._dispatcher.notify(*args)


def our_pair(*, can_send_request: bool = True) -> tuple[_Client, _Server, Callable[[], None]]:
    """Return both sides, and what closes them once they have run: nothing is left to close."""
    server = _Server(can_send_request=can_send_request)
    return _Client(server), server, lambda: None
