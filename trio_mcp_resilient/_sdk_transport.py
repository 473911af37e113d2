"""`resilient_transport`: for programs that have the SDK's own client, and keep it."""

from __future__ import annotations

import math
import ssl
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager

import httpx
import httpx2
from mcp.client._transport import TransportStreams

from trio_mcp_resilient._assembly import assemble
from trio_mcp_resilient._bridge import Bridge
from trio_mcp_resilient._dial import Connect
from trio_mcp_resilient._eras import Mode
from trio_mcp_resilient._events import StreamGap, Watcher
from trio_mcp_resilient._generation import Generation
from trio_mcp_resilient._instruments import Instrument, Instruments
from trio_mcp_resilient._judge import Detect
from trio_mcp_resilient._nursery import open_hidden_nursery
from trio_mcp_resilient._policy import Backoff, Resend, Timeouts


@asynccontextmanager
async def resilient_transport(
    url: str,
    *,
    headers: Mapping[str, str] | None = None,
    auth: httpx.Auth | httpx2.Auth | None = None,
    http_client: httpx.AsyncClient | None = None,
    name: str | None = None,
    recovery_timeout: float = 30.0,
    handshake_timeout: float = 30.0,
    drain_timeout: float = 300.0,
    read_timeout: float = 300.0,
    close_timeout: float = 2.0,
    keepalive: float = math.inf,
    mode: str = "auto",
    backoff: Backoff = Backoff(),
    get_stream: bool = True,
    resend: Resend | str = Resend.REFUSED,
    call_keys: bool = False,
    detect: Detect | None = None,
    on_event: Watcher | None = None,
    instruments: Sequence[Instrument] = (),
    ssl_context: ssl.SSLContext | None = None,
    connect: Connect | None = None,
) -> AsyncGenerator[TransportStreams, None]:
    """Make a transport for the SDK's own client, with the recovery of `open_client` underneath.

    `mcp.Client(resilient_transport(url))` is the SDK's client with all of its features, as is
    `mcp.ClientSession(*streams)` on the streams that the transport's block yields. Nothing is
    sent until that client introduces itself; then it waits for the first session.

    What `open_client` raises comes through the SDK as an `mcp.MCPError`, whose code is -31900
    and whose data names the kind, whether the request was executed, and the evidence.
    `ResilientError.from_mcp` turns it back into what it was.

    Args:
        url: the server's streamable HTTP endpoint, http or https.
        headers: this and all others are as of `open_client`. What is missing of them, the SDK's
            client takes itself: its callbacks, and the name to introduce the application by.

    Yields:
        The stream to read from and the stream to write to, for one session of the SDK's.

    Raises:
        ValueError: an argument makes no sense.
        RuntimeError: the program does not run on Trio.

    Whatever the block raises comes out as itself. The SDK's session has a task group of its own,
    so what is raised inside of it comes out in the group that this makes.

    Cancellation: the exit still says goodbye to the server, for at most `close_timeout` seconds.
    Checkpoints: entering and leaving are both.
    """
    parts = assemble(
        url,
        headers=headers,
        auth=auth,
        http_client=http_client,
        name=name,
        timeouts=Timeouts(
            recovery=recovery_timeout,
            handshake=handshake_timeout,
            drain=drain_timeout,
            read=read_timeout,
            close=close_timeout,
            keepalive=keepalive,
        ),
        backoff=backoff,
        get_stream=get_stream,
        mode=Mode.parse(mode),
        # The SDK's client says it with each request.
        log_level=None,
        resend=Resend(resend),
        call_keys=call_keys,
        detect=detect,
        instruments=Instruments.of(on_event, instruments),
        ssl_context=ssl_context,
        connect=connect,
        on_started=lambda generation: started(generation),
    )

    def on_gap() -> None:
        parts.instruments.tell(StreamGap(parts.supervisor.number))

    def started(generation: Generation) -> None:
        if generation.number > 1:
            nursery.start_soon(bridge.announce)

    async with open_hidden_nursery() as nursery:
        bridge = Bridge(parts.dispatcher, nursery, on_gap)
        nursery.start_soon(bridge.run)
        try:
            yield bridge.reader, bridge.writer
        finally:
            parts.supervisor.close()
            bridge.close()
