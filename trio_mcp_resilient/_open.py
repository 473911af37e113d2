"""`open_client`: the SDK's session on the assembled parts, begun and ended in the right order."""

from __future__ import annotations

import logging
import math
import ssl
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial

import httpx
import httpx2
import mcp_types as types
import trio
from mcp.client.session import (
    ClientSession,
    ElicitationFnT,
    ListRootsFnT,
    LoggingFnT,
    MessageHandlerFnT,
    SamplingFnT,
)
from mcp.shared.exceptions import MCPError
from mcp_types.version import LATEST_MODERN_VERSION

from trio_mcp_resilient._assembly import assemble
from trio_mcp_resilient._client import Client
from trio_mcp_resilient._dial import Connect
from trio_mcp_resilient._eras import Mode
from trio_mcp_resilient._errors import ResilientError
from trio_mcp_resilient._events import StreamGap, Watcher
from trio_mcp_resilient._generation import Generation
from trio_mcp_resilient._instruments import Instrument, Instruments
from trio_mcp_resilient._judge import Detect
from trio_mcp_resilient._nursery import Hidden
from trio_mcp_resilient._policy import Backoff, Resend, Timeouts
from trio_mcp_resilient._schemas import is_affordable
from trio_mcp_resilient._secrets import one_line
from trio_mcp_resilient._sending import MAX_PAGES
from trio_mcp_resilient._supervisor import in_background

logger = logging.getLogger("trio_mcp_resilient")


@asynccontextmanager
async def open_client(
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
    client_info: types.Implementation | None = None,
    log_level: types.LoggingLevel | None = None,
    input_required_max_rounds: int = 10,
    sampling_callback: SamplingFnT | None = None,
    elicitation_callback: ElicitationFnT | None = None,
    list_roots_callback: ListRootsFnT | None = None,
    logging_callback: LoggingFnT | None = None,
    message_handler: MessageHandlerFnT | None = None,
    ssl_context: ssl.SSLContext | None = None,
    connect: Connect | None = None,
) -> AsyncGenerator[Client, None]:
    """Open one logical connection to an MCP server, for as long as the block runs.

    Waits for the first session. A server that is down is tried again under the same backoff,
    budget and timeout as one that loses a session later.

    Args:
        url: the server's streamable HTTP endpoint, http or https.
        headers: sent with every request. They may hold secrets: they are never shown.
        auth: an `httpx.Auth`, asked again for every request; or a provider of the SDK's (from
            `mcp.client.auth`, or any `httpx2.Auth`), whose tokens all sessions share. Either
            outlives every session. :doc:`howto-auth` tells more.
        http_client: your own `httpx.AsyncClient`, used as it is and not closed. Its connections
            are then not the generation's own, and what a failed request tells of how far it got
            is only what httpx lets through.
        name: what log lines call this client; by default the endpoint, without its query.
        recovery_timeout: seconds a call waits for a session before it raises; `math.inf` for
            ever. This and the four below bound work that you cannot wrap yourself. There is no
            timeout for a call: put `trio.fail_after` around it.
        handshake_timeout: seconds for one attempt.
        drain_timeout: seconds that calls in flight keep waiting for their own answers once
            their session is lost.
        read_timeout: seconds of silence on an answer's connection that count as a cut.
        close_timeout: seconds for saying goodbye: DELETE, and the notice of a cancelled call.
        keepalive: seconds of idleness after which the session is pinged, which holds it open and
            finds a dead one before a call has to; `math.inf` (the default) never. Without effect
            in the modern era, which has neither session nor ping.
        mode: which era of the protocol to speak. "auto" (the default) asks by `server/discover`,
            falls back to `initialize`, remembers the answer for the origin, and asks again when a
            redeploy has changed it. "legacy" speaks of sessions only (2024-11-05 to 2025-11-25),
            "2026-07-28" not at all.
        backoff: how attempts are spaced, and how many there are.
        get_stream: whether to keep the standalone stream open, by which the server speaks
            unasked, and which shows a lost session before a call has to meet it.
        resend: which requests may be sent a second time: `Resend`.
        call_keys: whether each request carries, in its `_meta` under
            `trio-mcp-resilient.org/call`, an id that is the same when it is sent again, and the
            number of the attempt. A server that remembers the ids makes `resend="always"` safe.
        detect: judges answers before the table does: a function of `Facts` that returns a `Verdict`,
            or None to leave it to the table. Where it raises, the table decides.
        on_event: called with each life-cycle event, synchronously; it must not block.
        instruments: watch the client; see `Instrument`.
        client_info: name and version to introduce the application by.
        log_level: from which level on a modern server may send log messages with its answers; None
            for not at all. Legacy servers are told by `logging/setLevel`, which then holds for both.
        input_required_max_rounds: how often one call may come back asking for something more.
        sampling_callback: as of `mcp.ClientSession`, like the four below. Requests are answered on
            the session that asked.
        elicitation_callback: likewise.
        list_roots_callback: likewise; the roots are announced again to each new session.
        logging_callback: likewise. Notifications are handled one after another, in order.
        message_handler: likewise.
        ssl_context: for https instead of the system's trust; shared by all sessions.
        connect: makes the connections, `await connect(host, port)` giving a `trio.abc.Stream`.

    Yields:
        The client, with a session that stands.

    Raises:
        HandshakeFailed: the server's answer to the handshake was final: a wrong URL, failed
            authentication, no common protocol version.
        GaveUp: the server was down for the whole budget of attempts, or `recovery_timeout`.
        ValueError: an argument makes no sense.
        TypeError: `auth` is nothing that authenticates.
        RuntimeError: the program does not run on Trio.

    Whatever the block raises comes out as itself, never in a group of ours.

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
        log_level=log_level,
        resend=Resend(resend),
        call_keys=call_keys,
        detect=detect,
        instruments=Instruments.of(on_event, instruments),
        ssl_context=ssl_context,
        connect=connect,
        on_started=lambda generation: adopt(generation),
    )
    session = _Session(
        dispatcher=parts.dispatcher,
        client_info=client_info,
        sampling_callback=sampling_callback,
        elicitation_callback=elicitation_callback,
        list_roots_callback=list_roots_callback,
        logging_callback=logging_callback,
        message_handler=message_handler,
    )

    def adopt(generation: Generation) -> None:
        session.adopt(generation.session.negotiated)
        if generation.number > 1 and parts.dispatcher.state.tools is not None:
            parts.dispatcher.start_soon(partial(_list_again, session))

    async def on_gap() -> None:  # noqa: ASYNC910  # what it follows, an opening, is one
        parts.instruments.tell(StreamGap(parts.supervisor.number))
        if parts.dispatcher.state.tools is not None:
            await _list_again(session)

    # What runs behind the client is in the task group that the SDK's session has anyway.
    async with Hidden(session):
        try:
            # How the SDK's session says who it is; what it agreed on it learns by `adopt`.
            await session.send_discover(LATEST_MODERN_VERSION)
            yield Client(
                session,
                parts.supervisor,
                parts.counters,
                parts.name,
                max_rounds=input_required_max_rounds,
                on_gap=on_gap,
                instruments=parts.instruments,
            )
        finally:
            parts.supervisor.close()


class _Session(ClientSession):
    """The SDK's session, which keeps a tool's result also if it cannot be validated."""

    async def validate_tool_result(  # noqa: ASYNC910  # the call was one, and this may have nothing to do
        self, name: str, result: types.CallToolResult
    ) -> None:
        """Validate a result, listing the tools first if this one was never listed.

        An error of that listing would reach the caller as the tool's: "not executed", or with an
        invitation to try again, after the tool has run.
        """
        try:
            if name not in self._tool_output_schemas:
                await self.list_tools()
            schema = self._tool_output_schemas.get(name)
            if schema is not None and not is_affordable(schema, result.structured_content):
                raise MCPError(types.INTERNAL_ERROR, "by its schema it could take very long")
            if schema is not None:
                await super().validate_tool_result(name, result)
        except (MCPError, ResilientError, trio.ClosedResourceError, RecursionError) as error:
            logger.warning("a result of %s was not validated: %s", name, one_line(str(error)))


async def _list_again(session: ClientSession) -> None:  # noqa: ASYNC910  # a request is one, also when it fails
    """List the tools of a new session, since another server may have come up in its place.

    The listing renews what the SDK's session knows of output schemas, and its difference from
    the last one is published on its way through the dispatcher.
    """
    token = in_background.set(True)
    params: types.PaginatedRequestParams | None = None
    try:
        for _ in range(MAX_PAGES):
            page = await session.list_tools(params=params)
            if page.next_cursor is None:
                return
            params = types.PaginatedRequestParams(cursor=page.next_cursor)
    except (MCPError, ResilientError, trio.ClosedResourceError, ValueError, RuntimeError) as error:
        logger.warning("the tools of the new session could not be listed: %s", one_line(str(error)))
    finally:
        in_background.reset(token)
