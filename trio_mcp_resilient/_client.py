"""What people hold: one logical connection, whatever sessions it takes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, final

import mcp_types as types
import trio
from mcp.client.session import ClientSession
from mcp.shared.dispatcher import ProgressFnT
from mcp_types import RequestParamsMeta

from trio_mcp_resilient._call import resend_override
from trio_mcp_resilient._events import Event
from trio_mcp_resilient._instruments import Instruments
from trio_mcp_resilient._policy import Resend
from trio_mcp_resilient._rounds import in_rounds
from trio_mcp_resilient._states import State
from trio_mcp_resilient._statistics import Counters, Statistics
from trio_mcp_resilient._subscription import Subscription, Wanted, subscribe
from trio_mcp_resilient._supervisor import Supervisor


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
        self,
        session: ClientSession,
        supervisor: Supervisor,
        counters: Counters,
        name: str,
        *,
        max_rounds: int,
        on_gap: Callable[[], Awaitable[None]],
        instruments: Instruments,
    ) -> None:
        self._session = session
        self._supervisor = supervisor
        self._counters = counters
        self._name = name
        self._max_rounds = max_rounds
        self._on_gap = on_gap
        self._instruments = instruments

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
        new one. Does nothing while another is being made already. Not a checkpoint.
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

    def events(
        self, max_buffered: float = 1000
    ) -> AbstractAsyncContextManager[trio.MemoryReceiveChannel[Event]]:
        """Receive the client's events from now on, for as long as the block runs.

            async with client.events() as events:
                async for event in events:
                    print(event)

        The channel is never closed by the client: its last event is the change to `State.CLOSED`.

        Args:
            max_buffered: how many events wait to be received, 1 or more; beyond it the oldest is
                dropped, with a warning in the log. `math.inf` for any number.

        Raises:
            ValueError: on entering, for a `max_buffered` below 1.
        """
        return self._instruments.channel(max_buffered)

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
                session included, and for each round if the server asks for several; None leaves
                it to the cancel scopes around the call.
            progress_callback: awaited in this task for each progress notification, in order,
                before the result is returned.
            meta: the request's `_meta`.
            resend: this call's policy, instead of the client's; None for that.

        Returns:
            The result. One with `is_error` is the tool's own failure: it ran.

        Beside what the class lists, it may raise these.

        Raises:
            mcp.client.InputRequiredRoundsExceededError: the tool asked for something more oftener than
                `input_required_max_rounds` allows.
            RuntimeError: the tool ran, and its result does not fit its output schema.
            ValueError: `resend` is no policy.

        Cancellation: abandons the call, as the class says. Checkpoint: always.
        """

        async def make(
            answers: types.InputResponses | None, state: str | None
        ) -> types.CallToolResult | types.InputRequiredResult:
            token = resend_override.set(policy)
            try:
                return await self._session.call_tool(
                    name,
                    arguments,
                    read_timeout_seconds,
                    progress_callback,
                    input_responses=answers,
                    request_state=state,
                    meta=meta,
                    allow_input_required=True,
                )
            finally:
                resend_override.reset(token)

        policy = None if resend is None else Resend(resend)
        return await in_rounds(self._session, make, self._max_rounds)

    async def list_tools(
        self, *, params: types.PaginatedRequestParams | None = None
    ) -> types.ListToolsResult:
        """List the server's tools, one page.

        Args:
            params: where to go on, as the page before says by its `next_cursor`; None to begin.

        Cancellation: abandons it, as the class says. Checkpoint: always.
        """
        return await self._session.list_tools(params=params)

    async def list_resources(
        self, *, params: types.PaginatedRequestParams | None = None
    ) -> types.ListResourcesResult:
        """List the server's resources, one page.

        Args:
            params: where to go on, as the page before says by its `next_cursor`; None to begin.

        Cancellation: abandons it, as the class says. Checkpoint: always.
        """
        return await self._session.list_resources(params=params)

    async def list_resource_templates(
        self, *, params: types.PaginatedRequestParams | None = None
    ) -> types.ListResourceTemplatesResult:
        """List the server's resource templates, one page.

        Args:
            params: where to go on, as the page before says by its `next_cursor`; None to begin.

        Cancellation: abandons it, as the class says. Checkpoint: always.
        """
        return await self._session.list_resource_templates(params=params)

    async def read_resource(
        self, uri: str, *, meta: RequestParamsMeta | None = None
    ) -> types.ReadResourceResult:
        """Read a resource.

        Args:
            uri: which.
            meta: the request's `_meta`.

        Cancellation: abandons it, as the class says. Checkpoint: always.
        """

        def make(
            answers: types.InputResponses | None, state: str | None
        ) -> Awaitable[types.ReadResourceResult | types.InputRequiredResult]:
            return self._session.read_resource(
                uri, input_responses=answers, request_state=state, meta=meta, allow_input_required=True
            )

        return await in_rounds(self._session, make, self._max_rounds)

    async def list_prompts(
        self, *, params: types.PaginatedRequestParams | None = None
    ) -> types.ListPromptsResult:
        """List the server's prompts, one page.

        Args:
            params: where to go on, as the page before says by its `next_cursor`; None to begin.

        Cancellation: abandons it, as the class says. Checkpoint: always.
        """
        return await self._session.list_prompts(params=params)

    async def get_prompt(
        self,
        name: str,
        arguments: dict[str, str] | None = None,
        *,
        meta: RequestParamsMeta | None = None,
    ) -> types.GetPromptResult:
        """Get a prompt.

        Args:
            name: which.
            arguments: what fills its places.
            meta: the request's `_meta`.

        Cancellation: abandons it, as the class says. Checkpoint: always.
        """

        def make(
            answers: types.InputResponses | None, state: str | None
        ) -> Awaitable[types.GetPromptResult | types.InputRequiredResult]:
            return self._session.get_prompt(
                name,
                arguments,
                input_responses=answers,
                request_state=state,
                meta=meta,
                allow_input_required=True,
            )

        return await in_rounds(self._session, make, self._max_rounds)

    async def complete(
        self,
        ref: types.ResourceTemplateReference | types.PromptReference,
        argument: dict[str, str],
        context_arguments: dict[str, str] | None = None,
    ) -> types.CompleteResult:
        """Ask for completions of an argument.

        Args:
            ref: the prompt or the resource template that takes the argument.
            argument: its `name`, and as its `value` what is typed so far.
            context_arguments: values of the others that are known already.

        Cancellation: abandons it, as the class says. Checkpoint: always.
        """
        return await self._session.complete(ref, argument, context_arguments)

    async def ping(self, *, meta: RequestParamsMeta | None = None) -> types.EmptyResult:
        """Ask the server whether it is there; a lost session is repaired on the way.

        In the modern era, which has no ping, `server/discover` is asked instead.

        Args:
            meta: the request's `_meta`.

        Cancellation: as of every request. Checkpoint: always.
        """
        return await self._session.send_ping(meta=meta)

    def listen(
        self,
        *,
        tools_list_changed: bool = False,
        prompts_list_changed: bool = False,
        resources_list_changed: bool = False,
        resource_subscriptions: Sequence[str] = (),
    ) -> AbstractAsyncContextManager[Subscription]:
        """Listen for changes at a server of the modern era, through restarts and redeploys.

            async with client.listen(tools_list_changed=True) as subscription:
                async for event in subscription:
                    tools = await client.list_tools()

        Entering waits for the server's acknowledgment; leaving tells the server. A stream that
        breaks is opened again, and then every change it covers is told once, since none is
        replayed; a `StreamGap` event says so as well.

        Args:
            tools_list_changed: whether to be told that the list of tools has changed.
            prompts_list_changed: likewise of prompts.
            resources_list_changed: likewise of resources.
            resource_subscriptions: the URIs of resources to be told of.

        Raises:
            mcp.client.subscriptions.ListenNotSupportedError: the server is of the legacy era.
            mcp.client.subscriptions.SubscriptionLost: the stream broke before it was acknowledged.
            mcp.MCPError: the server refused.
            TypeError: one URI was passed where a sequence of them belongs.

        Cancellation: while entering, nothing is left open; the exit tells the server all the same.
        Checkpoints: entering and leaving are both. Source: specification 2026-07-28, subscriptions.
        """
        if isinstance(resource_subscriptions, str):
            raise TypeError("resource_subscriptions is a sequence of URIs")
        wanted = Wanted(
            tools_list_changed=tools_list_changed,
            prompts_list_changed=prompts_list_changed,
            resources_list_changed=resources_list_changed,
            resource_subscriptions=tuple(resource_subscriptions),
        )
        return subscribe(self._session, wanted, self._on_gap, lambda: self.state is State.CLOSED)


def counters_of(client: Client) -> Counters:
    """Return a client's live counts, for the pool that it belongs to."""
    # Not an attribute of the class: those are what users see.
    return client._counters  # pyright: ignore[reportPrivateUsage]
