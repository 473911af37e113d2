"""What people hold: `open_client` and the `Client` it yields."""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any, final

import httpx
import mcp_types as types
import trio
from mcp_types import RequestParamsMeta

from mcp.client.session import (
    ClientSession,
    ElicitationFnT,
    ListRootsFnT,
    LoggingFnT,
    MessageHandlerFnT,
    SamplingFnT,
)
from mcp.shared.dispatcher import ProgressFnT
from trio_mcp_resilient._dial import Connect
from trio_mcp_resilient._dispatcher import ResilientDispatcher, resend_override
from trio_mcp_resilient._endpoint import Endpoint
from trio_mcp_resilient._events import Watcher, contained
from trio_mcp_resilient._generation import Generation, Surroundings
from trio_mcp_resilient._http import wire_opener
from trio_mcp_resilient._nursery import open_hidden_nursery
from trio_mcp_resilient._outcome import Notice
from trio_mcp_resilient._policy import Backoff, Resend, Timeouts
from trio_mcp_resilient._states import State
from trio_mcp_resilient._statistics import Counters, Statistics
from trio_mcp_resilient._supervisor import Supervisor


@asynccontextmanager
async def open_client(
    url: str,
    *,
    headers: Mapping[str, str] | None = None,
    auth: httpx.Auth | None = None,
    http_client: httpx.AsyncClient | None = None,
    name: str | None = None,
    recovery_timeout: float = 30.0,
    handshake_timeout: float = 30.0,
    drain_timeout: float = 300.0,
    read_timeout: float = 300.0,
    close_timeout: float = 2.0,
    backoff: Backoff = Backoff(),
    get_stream: bool = True,
    resend: Resend | str = Resend.REFUSED,
    on_event: Watcher | None = None,
    client_info: types.Implementation | None = None,
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
        auth: an `httpx.Auth`, asked again for every request.
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
        backoff: how attempts are spaced, and how many there are.
        get_stream: whether to keep the standalone stream open, by which the server speaks
            unasked, and which shows a lost session before a call has to meet it.
        resend: which requests may be sent a second time: `Resend`.
        on_event: called with each life-cycle event, synchronously; it must not block.
        client_info: name and version to introduce the application by.
        sampling_callback, elicitation_callback, list_roots_callback, logging_callback,
            message_handler: as of `mcp.ClientSession`. Requests are answered on the session
            that asked; notifications are handled one after another, in order.
        ssl_context: for https instead of the system's trust; shared by all sessions.
        connect: makes the connections, `await connect(host, port)` giving a `trio.abc.Stream`.

    Yields:
        The client, with a session that stands.

    Raises:
        HandshakeFailed: the server's answer to `initialize` was final: a wrong URL, failed
            authentication, no common protocol version.
        GaveUp: the server was down for the whole budget of attempts, or `recovery_timeout`.
        ValueError: an argument makes no sense.

    Whatever the block raises comes out as itself, never in a group of ours.

    Cancellation: the exit still says goodbye to the server, for at most `close_timeout` seconds.
    Checkpoints: entering and leaving are both.
    """
    endpoint = Endpoint.parse(url)
    timeouts = Timeouts(
        recovery=recovery_timeout,
        handshake=handshake_timeout,
        drain=drain_timeout,
        read=read_timeout,
        close=close_timeout,
    )
    watcher = None if on_event is None else contained(on_event)
    counters = Counters()
    dispatcher = ResilientDispatcher(
        resend=Resend(resend), backoff=backoff, timeouts=timeouts, counters=counters, watcher=watcher
    )
    session = ClientSession(
        dispatcher=dispatcher,
        client_info=client_info,
        sampling_callback=sampling_callback,
        elicitation_callback=elicitation_callback,
        list_roots_callback=list_roots_callback,
        logging_callback=logging_callback,
        message_handler=message_handler,
    )
    around = Surroundings(
        endpoint=endpoint,
        open_wire=wire_opener(
            endpoint,
            headers=headers,
            auth=auth,
            http_client=http_client,
            ssl_context=ssl_context,
            connect=connect,
            read_timeout=read_timeout,
        ),
        timeouts=timeouts,
        inbound=dispatcher.inbound,
        next_id=dispatcher.next_id,
        report_loss=lambda generation, evidence: supervisor.report(generation, Notice.CONDEMN, evidence),
        get_stream=get_stream,
    )
    supervisor = dispatcher.supervisor = Supervisor(
        endpoint,
        lambda number: Generation(number, dispatcher.initialize_params or {}, around),
        name=name or str(endpoint),
        backoff=backoff,
        timeouts=timeouts,
        counters=counters,
        on_started=lambda generation: session.adopt(generation.session.negotiated),
        watcher=watcher,
    )
    async with open_hidden_nursery() as nursery:
        await nursery.start(_host, session)
        nursery.start_soon(supervisor.run)
        try:
            await session.initialize()
            yield Client(session, supervisor, counters, name or str(endpoint))
        finally:
            supervisor.close()


async def _host(session: ClientSession, task_status: trio.TaskStatus[None]) -> None:
    """Keep the SDK's session entered, in a task of its own.

    Its task group would wrap what the user's block raises in a group of its own, if the block
    ran inside it.
    """
    async with session:
        task_status.started()
        await trio.sleep_forever()


@final
class Client:
    """A client of one MCP server whose sessions come and go unseen.

    Returned by `open_client`; do not make one yourself. Every request method waits for a ready
    session if there is none, sends, and sends once more if the session was lost under it and
    repeating is safe. Arguments and results are those of `mcp.ClientSession`. Each may raise:

    - `mcp.MCPError`: the server answered with a JSON-RPC error; `RequestRefused` is one as well.
    - `SessionLost`, `ConnectionLost`, `GaveUp`, `HandshakeFailed`: it was not executed.
    - `OutcomeUnknown`: it may have been.
    - `trio.ClosedResourceError`: the client's block has ended.

    Cancelling a request abandons it: it is never sent again, the server is told in the
    background, and whether it ran is not known. Every request method is a checkpoint.
    """

    def __init__(
        self, session: ClientSession, supervisor: Supervisor, counters: Counters, name: str
    ) -> None:
        self._session = session
        self._supervisor = supervisor
        self._counters = counters
        self._name = name

    def __repr__(self) -> str:
        return f"<Client {self._name} {self.state} generation {self.generation}>"

    @property
    def session(self) -> ClientSession:
        """The SDK's session, resilient too: every request it makes passes through this client."""
        return self._session

    @property
    def generation(self) -> int:
        """The number of the newest session that has stood; the first is 1."""
        return self._supervisor.number

    @property
    def state(self) -> State:
        """What the client is doing about its session."""
        return self._supervisor.state

    @property
    def server_info(self) -> types.Implementation | None:
        """The server's name and version, as of the newest session."""
        return self._session.server_info

    @property
    def server_capabilities(self) -> types.ServerCapabilities | None:
        """What the server offers, as of the newest session: a redeploy may change it."""
        return self._session.server_capabilities

    @property
    def protocol_version(self) -> str | None:
        """The protocol version agreed on for the newest session."""
        return self._session.protocol_version

    async def wait_ready(self) -> None:
        """Wait until a session stands, starting a recovery if the last one gave up.

        Raises:
            GaveUp: none could be made within the budget or the recovery timeout.
            HandshakeFailed: the server's answer to `initialize` was final.
            trio.ClosedResourceError: the client is closed.

        Cancellation: nothing happened. Checkpoint: always.
        """
        await trio.lowlevel.checkpoint()
        await self._supervisor.ready()

    def invalidate(self) -> None:
        """Throw the current session away and make another.

        Calls in flight finish on the old session, which is then DELETEd; later ones wait for the
        new one. Does nothing while a recovery is under way. Not a checkpoint.
        """
        self._supervisor.invalidate()

    def statistics(self) -> Statistics:
        """Return the counts since the client was opened. Not a checkpoint."""
        counters, current = self._counters, self._supervisor.current
        return Statistics(
            generations=counters.generations,
            losses=counters.losses,
            resends=counters.resends,
            handshakes=counters.handshakes,
            calls=counters.calls,
            outcome_unknown=counters.outcome_unknown,
            last_recovery_seconds=counters.last_recovery_seconds,
            in_flight=0 if current is None else current.in_flight,
        )

    async def call_tool(
        self,
        name: str,
        arguments: dict[str, Any] | None = None,
        read_timeout_seconds: float | None = None,
        progress_callback: ProgressFnT | None = None,
        *,
        meta: RequestParamsMeta | None = None,
        resend: Resend | str | None = None,
    ) -> types.CallToolResult:
        """Call a tool.

        Args:
            name: the tool's name.
            arguments: its arguments.
            read_timeout_seconds: seconds until `mcp.MCPError` with code -32001, waiting for a
                session included; None leaves it to the cancel scopes around the call.
            progress_callback: awaited in this task for each progress notification, in order,
                before the result is returned.
            meta: the request's `_meta`.
            resend: this call's policy, instead of the client's.
        """
        if resend is None:
            return await self._session.call_tool(
                name, arguments, read_timeout_seconds, progress_callback, meta=meta
            )
        token = resend_override.set(Resend(resend))
        try:
            return await self._session.call_tool(
                name, arguments, read_timeout_seconds, progress_callback, meta=meta
            )
        finally:
            resend_override.reset(token)

    async def list_tools(self, *, params: types.PaginatedRequestParams | None = None) -> types.ListToolsResult:
        """List the server's tools, one page."""
        return await self._session.list_tools(params=params)

    async def list_resources(
        self, *, params: types.PaginatedRequestParams | None = None
    ) -> types.ListResourcesResult:
        """List the server's resources, one page."""
        return await self._session.list_resources(params=params)

    async def list_resource_templates(
        self, *, params: types.PaginatedRequestParams | None = None
    ) -> types.ListResourceTemplatesResult:
        """List the server's resource templates, one page."""
        return await self._session.list_resource_templates(params=params)

    async def read_resource(
        self, uri: str, *, meta: RequestParamsMeta | None = None
    ) -> types.ReadResourceResult:
        """Read a resource."""
        return await self._session.read_resource(uri, meta=meta)

    async def list_prompts(
        self, *, params: types.PaginatedRequestParams | None = None
    ) -> types.ListPromptsResult:
        """List the server's prompts, one page."""
        return await self._session.list_prompts(params=params)

    async def get_prompt(
        self,
        name: str,
        arguments: dict[str, str] | None = None,
        *,
        meta: RequestParamsMeta | None = None,
    ) -> types.GetPromptResult:
        """Get a prompt."""
        return await self._session.get_prompt(name, arguments, meta=meta)

    async def complete(
        self,
        ref: types.ResourceTemplateReference | types.PromptReference,
        argument: dict[str, str],
        context_arguments: dict[str, str] | None = None,
    ) -> types.CompleteResult:
        """Ask for completions of an argument."""
        return await self._session.complete(ref, argument, context_arguments)

    async def ping(self, *, meta: RequestParamsMeta | None = None) -> types.EmptyResult:
        """Ask the server whether it is there; a lost session is repaired on the way."""
        return await self._session.send_ping(meta=meta)
