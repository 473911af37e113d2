"""Our client in the place of the SDK's streamable HTTP transport, in tests that know nothing of it.

Where the suite writes `streamable_http_client(url, http_client=...)` it gets `resilient_transport`.
A `mcp.Client` of a server in the same process gets it as well, with HTTP between the two.
"""

from __future__ import annotations

import math
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anyio.to_thread
import httpx2
import mcp.client.client
import mcp.client.streamable_http
import trio
from bridge import Bridge, application_of, open_memory_server
from mcp.client._transport import TransportStreams
from mcp.server.transport_security import TransportSecuritySettings
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from trio.testing import MockClock

from trio_mcp_resilient import Backoff, resilient_transport

opened: list[str] = []
"""The URL of each transport of ours that the test under way has opened."""
over_our_own_http = False
"""Whether the test under way says nothing of HTTP, so that it may be ours down to the bytes."""

URL = "http://127.0.0.1:8000/mcp"
PATIENCE = {
    "backoff": Backoff(first=0.05, attempts=3),
    "recovery_timeout": 2,
    "handshake_timeout": 2,
    "drain_timeout": 2,
    "close_timeout": 1,
}
"""Bounds within the five seconds that the suite gives most of its tests."""


@asynccontextmanager
async def our_http_client(
    url: str,
    *,
    http_client: httpx2.AsyncClient | None = None,
    terminate_on_close: bool = True,
    max_sse_event_size: int | None = None,
) -> AsyncGenerator[TransportStreams, None]:
    """Stand in for `mcp.client.streamable_http.streamable_http_client`."""
    opened.append(url)
    async with _way_to(http_client) as way, resilient_transport(url, **way, **PATIENCE) as streams:
        yield streams


@asynccontextmanager
async def _way_to(client: httpx2.AsyncClient | None) -> AsyncGenerator[dict[str, Any], None]:
    if client is None:
        yield {}
    elif over_our_own_http:
        async with open_memory_server(application_of(client)) as connect:
            yield {"connect": connect}
    else:
        async with Bridge.client(client) as through_theirs:
            yield {"http_client": through_theirs}


_to_a_server_as_before = mcp.client.client._connect_inproc


def _to_a_server(server: Any) -> Any:
    """Stand in for what `mcp.Client` makes of a server in the same process."""

    async def connect(stack: AsyncExitStack, mode: str, raise_exceptions: bool) -> Any:
        if mode != "legacy" or raise_exceptions:
            return await _to_a_server_as_before(server)(stack, mode, raise_exceptions)
        security = TransportSecuritySettings(enable_dns_rebinding_protection=False)
        application = server.streamable_http_app(transport_security=security)
        await stack.enter_async_context(server.session_manager.run())
        way = await stack.enter_async_context(open_memory_server(application))
        opened.append(URL)
        transport = resilient_transport(URL, connect=way, mode="legacy", **PATIENCE)
        return JSONRPCDispatcher(*await stack.enter_async_context(transport))

    return connect


def substitute() -> None:
    """Put ours where the SDK's is, wherever a module of the SDK has it; before the tests are imported."""
    _replace(mcp.client.streamable_http.streamable_http_client, our_http_client)
    mcp.client.client._connect_inproc = _to_a_server
    anyio.to_thread.run_sync = _hold_the_clock


_run_in_thread = anyio.to_thread.run_sync
_threads = 0


async def _hold_the_clock(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Run a function in a thread, while virtual time waits: else it would pass every limit meanwhile."""
    global _threads
    clock = trio.lowlevel.current_clock()
    assert isinstance(clock, MockClock)
    clock.autojump_threshold = math.inf
    _threads += 1
    try:
        return await _run_in_thread(function, *args, **options)
    finally:
        _threads -= 1
        if not _threads:
            clock.autojump_threshold = 0


def _replace(theirs: Callable[..., Any], ours: Callable[..., Any]) -> None:
    for name, module in list(sys.modules.items()):
        if name == "mcp" or name.startswith("mcp."):
            for key, value in list(vars(module).items()):
                if value is theirs:
                    setattr(module, key, ours)
