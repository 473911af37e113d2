"""Two ways from our client to a server that the suite has made: HTTP of our own, and a client of its."""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import httpx2
import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext

from trio_mcp_resilient.testing import MemoryStream, memory_connection

Connect = Callable[[str, int], Awaitable[MemoryStream]]


def application_of(client: httpx2.AsyncClient) -> Any:
    """The application that a client of the suite's drives; its transport has no public name for it."""
    return client._transport._app  # type: ignore[attr-defined]


# -- HTTP of our own ---------------------------------------------------------------------------------


@asynccontextmanager
async def open_memory_server(application: Any) -> AsyncGenerator[Connect, None]:
    """Serve an application by Hypercorn, over streams in memory; yield what connects to it."""
    config, app = Config(), ASGIWrapper(application)

    async def serve(stream: MemoryStream) -> None:
        try:
            await TCPServer(app, config, WorkerContext(None), {}, stream).run()  # type: ignore[arg-type]
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            # The client has gone.
            pass

    async def connect(host: str, port: int) -> MemoryStream:
        await trio.lowlevel.checkpoint()
        ours, theirs = memory_connection()
        theirs.socket = _Address()  # type: ignore[attr-defined]
        nursery.start_soon(serve, theirs)
        return ours

    async with trio.open_nursery() as nursery:
        yield connect
        nursery.cancel_scope.cancel()


class _Address:
    """All that Hypercorn asks of a stream's socket."""

    family = socket.AF_INET

    def getpeername(self) -> tuple[str, int]:
        return ("127.0.0.1", 1)

    getsockname = getpeername


# -- a client of the suite's -------------------------------------------------------------------------


class Bridge(httpx.AsyncBaseTransport):
    """A transport for httpx that sends by a client of httpx2, with its headers, hooks and credentials."""

    def __init__(self, theirs: httpx2.AsyncClient) -> None:
        self._theirs = theirs

    @classmethod
    def client(cls, theirs: httpx2.AsyncClient) -> httpx.AsyncClient:
        """Return a client that sends by another."""
        client = httpx.AsyncClient(transport=cls(theirs), timeout=None)
        # What it says by itself must not hide what the other one says.
        client.headers.clear()
        return client

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        body = await request.aread()
        headers = [(name, value) for name, value in request.headers.raw if name.lower() != b"host"]
        theirs = self._theirs.build_request(
            request.method, str(request.url), headers=headers, content=body or None
        )
        try:
            response = await self._theirs.send(theirs, stream=True, follow_redirects=False)
        except httpx2.RequestError as error:
            # Both families have the same names.
            raise getattr(httpx, type(error).__name__)(str(error)) from error
        return httpx.Response(response.status_code, headers=response.headers.raw, stream=_Body(response))


class _Body(httpx.AsyncByteStream):
    def __init__(self, response: httpx2.Response) -> None:
        self._response = response

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._response.aiter_raw():
                yield chunk
        except httpx2.RequestError as error:
            raise getattr(httpx, type(error).__name__)(str(error)) from error

    async def aclose(self) -> None:
        await self._response.aclose()
