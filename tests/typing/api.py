"""Every public spelling, for type checkers only: nothing here is ever run.

mypy and pyright must both agree with each `assert_type`, and must both object wherever a line
says that they do.
"""

from __future__ import annotations

import logging
import math
import ssl
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import assert_never, assert_type

import httpx
import httpx2
import mcp
import mcp_types
import trio
from mcp.client.auth import OAuthClientProvider
from mcp.client.session import SamplingFnT
from mcp.client.subscriptions import ServerEvent
from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import TracerProvider

import trio_mcp_resilient
from trio_mcp_resilient import (
    Backoff,
    Client,
    ClientClosed,
    ClientEvent,
    ClientOpened,
    ClientOptions,
    Closing,
    ConnectionLost,
    Event,
    Evidence,
    Facts,
    Flapping,
    GaveUp,
    HandshakeFailed,
    Instrument,
    LoggingInstrument,
    OutcomeLost,
    OutcomeUnknown,
    Pool,
    PoolEvent,
    PoolFull,
    PoolStatistics,
    Recovery,
    RecoveryFailed,
    RequestInstrument,
    RequestRefused,
    Resend,
    Resent,
    ResilientError,
    RestoreFailed,
    SessionEnded,
    SessionLost,
    SessionStarted,
    State,
    StateChanged,
    Statistics,
    StreamGap,
    Subscription,
    ToolsChanged,
    TrioHTTPTransport,
    Verdict,
    classify,
    is_session_terminated,
    open_client,
    open_pool,
    resilient_transport,
)
from trio_mcp_resilient.otel import OpenTelemetryInstrument
from trio_mcp_resilient.testing import (
    BREAKS,
    DIALECTS,
    DISCOVER_DIALECTS,
    Break,
    CallsTools,
    Execution,
    Held,
    InputRequired,
    MemoryStream,
    Reply,
    RpcError,
    Rule,
    ScriptedServer,
    ScriptedSession,
    SeenRequest,
    ToolContext,
    assert_recovers,
    memory_connection,
    open_scripted_server,
)
from trio_mcp_resilient.testing import Subscription as ServedSubscription


async def opens_with_a_url() -> None:
    async with open_client("http://localhost/mcp") as client:
        assert_type(client, Client)


async def connect(host: str, port: int) -> trio.SocketStream:
    return await trio.open_tcp_stream(host, port)


def detect(facts: Facts) -> Verdict | None:
    assert_type(facts.status, int)
    assert_type(facts.body, bytes)
    return Verdict.SESSION_LOST if facts.session_id_sent and facts.status == 440 else None


async def progress(progress: float, total: float | None, message: str | None) -> None: ...


async def opens_with_everything(sampling: SamplingFnT) -> None:
    async with open_client(
        "https://mcp.example/mcp",
        headers={"x-tenant": "blue"},
        auth=httpx.BasicAuth("user", "password"),
        http_client=None,
        name="tools",
        recovery_timeout=60,
        handshake_timeout=10.0,
        drain_timeout=120.0,
        read_timeout=60.0,
        close_timeout=1.0,
        backoff=Backoff(first=0.2, factor=1.5, cap=10.0, jitter=0.0, attempts=0),
        get_stream=False,
        resend=Resend.IDEMPOTENT,
        keepalive=300.0,
        call_keys=True,
        detect=detect,
        on_event=watch,
        client_info=mcp_types.Implementation(name="app", version="1"),
        sampling_callback=sampling,
        elicitation_callback=None,
        list_roots_callback=None,
        logging_callback=None,
        message_handler=None,
        connect=connect,
        ssl_context=ssl.create_default_context(),
    ) as client:
        assert_type(client, Client)


async def opens_with_a_client_of_ones_own(http_client: httpx.AsyncClient) -> None:
    async with open_client("http://localhost/mcp", http_client=http_client, resend="never"):
        pass


async def opens_the_sdks_own_client() -> None:
    transport = resilient_transport("http://localhost/mcp", resend="idempotent", on_event=watch)
    async with mcp.Client(transport) as client:
        assert_type(client, mcp.Client)
    async with resilient_transport("http://localhost/mcp") as streams, mcp.ClientSession(*streams) as session:
        assert_type(session, mcp.ClientSession)


async def calls(client: Client) -> None:
    assert_type(await client.call_tool("add"), mcp_types.CallToolResult)
    assert_type(
        await client.call_tool(
            "add",
            {"a": 1, "b": 2},
            read_timeout_seconds=5.0,
            progress_callback=progress,
            meta=mcp_types.RequestParamsMeta(),
            resend=Resend.ALWAYS,
        ),
        mcp_types.CallToolResult,
    )
    assert_type(await client.list_tools(), mcp_types.ListToolsResult)
    assert_type(
        await client.list_tools(params=mcp_types.PaginatedRequestParams(cursor="2")),
        mcp_types.ListToolsResult,
    )
    assert_type(await client.list_resources(), mcp_types.ListResourcesResult)
    assert_type(await client.list_resource_templates(), mcp_types.ListResourceTemplatesResult)
    assert_type(await client.read_resource("file:///a"), mcp_types.ReadResourceResult)
    assert_type(await client.list_prompts(), mcp_types.ListPromptsResult)
    assert_type(await client.get_prompt("greet", {"name": "Ada"}), mcp_types.GetPromptResult)
    reference = mcp_types.PromptReference(name="greet")
    assert_type(await client.complete(reference, {"name": "name", "value": "A"}), mcp_types.CompleteResult)
    assert_type(await client.ping(), mcp_types.EmptyResult)


async def looks_and_steers(client: Client) -> None:
    assert_type(client.session, mcp.ClientSession)
    assert_type(client.generation, int)
    assert_type(client.state, State)
    assert_type(client.server_info, mcp_types.Implementation | None)
    assert_type(client.server_capabilities, mcp_types.ServerCapabilities | None)
    assert_type(client.protocol_version, str | None)
    await client.wait_ready()
    client.invalidate()
    statistics = client.statistics()
    assert_type(statistics, Statistics)
    assert_type(statistics.generations, int)
    assert_type(statistics.last_recovery_seconds, float | None)


def watch(event: Event) -> None:
    match event:
        case StateChanged(before, after):
            assert_type(before, State)
            assert_type(after, State)
        case SessionStarted():
            assert_type(event.recovery, Recovery)
        case SessionEnded():
            assert_type(event.evidence, Evidence | None)
        case RecoveryFailed():
            assert_type(event.recovery, Recovery)
        case Resent():
            assert_type(event.method, str)
        case OutcomeLost():
            assert_type(event.evidence, Evidence)
        case StreamGap():
            assert_type(event.generation, int)
        case RestoreFailed():
            assert_type(event.error, str)
        case ToolsChanged(added, removed, changed):
            assert_type((added, removed, changed), tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]])
        case Flapping():
            assert_type(event.losses, int)
        case _:
            assert_never(event)


async def catches(client: Client) -> None:
    try:
        await client.call_tool("add")
    except RequestRefused as refused:
        assert_type(refused.status, int)
        assert_type(refused.error, mcp_types.ErrorData)
    except OutcomeUnknown as unknown:
        assert_type(unknown.evidence, Evidence | None)
    except (SessionLost, ConnectionLost, HandshakeFailed, GaveUp) as lost:
        assert_type(lost.recovery, Recovery | None)
    except ResilientError as error:
        assert_type(error.executed, bool | None)
    except mcp.MCPError as error:
        assert_type(is_session_terminated(error), bool)
        assert_type(ResilientError.from_mcp(error), ResilientError | None)
        assert_type(OutcomeUnknown.from_mcp(error), OutcomeUnknown | None)


async def opens_a_pool_with_nothing() -> None:
    async with open_pool() as pool:
        assert_type(pool, Pool)
        async with pool.client("http://localhost/mcp") as client:
            assert_type(client, Client)


def identity(url: str, headers: Mapping[str, str], auth: httpx.Auth | None) -> str:
    return headers["x-user"]


async def opens_a_pool_with_everything(sampling: SamplingFnT) -> None:
    async with open_pool(
        max_clients=1000,
        max_idle=math.inf,
        idle_timeout=60,
        max_lifetime=600.0,
        when_full="fail",
        grace=5,
        key=identity,
        on_event=watch_pool,
        name="agents",
        headers={"x-app": "mine"},
        auth=None,
        resend="never",
        sampling_callback=sampling,
        close_timeout=1.0,
    ) as pool:
        options: ClientOptions = {"get_stream": False, "connect": connect}
        try:
            async with pool.client(
                "https://mcp.example/mcp",
                headers={"x-user": "ada"},
                auth=httpx.BasicAuth("user", "password"),
                name="ada",
                **options,
            ) as client:
                assert_type(client, Client)
        except PoolFull as full:
            assert_type(full.executed, bool | None)
        assert_type(pool.invalidate("https://mcp.example/mcp", headers={}, auth=None, **options), bool)
        assert_type(pool.invalidate_all("https://mcp.example/mcp"), int)
        statistics = pool.statistics()
        assert_type(statistics, PoolStatistics)
        assert_type(statistics.waiting, int)
        assert_type(statistics.closed[Closing.IDLE], int)
        await pool.aclose()


def watch_pool(event: PoolEvent) -> None:
    match event:
        case ClientOpened(client, seconds):
            assert_type((client, seconds), tuple[str, float])
        case ClientClosed():
            assert_type(event.reason, Closing)
        case ClientEvent():
            assert_type(event.event, Event)
        case _:
            assert_never(event)


def judges_answers_of_ones_own_client() -> None:
    verdict = classify(
        http_method="POST",
        rpc_method="tools/call",
        session_id_sent=True,
        status=404,
        content_type="application/json",
        body=b"",
    )
    assert_type(verdict, Verdict)


async def uses_the_transport_alone() -> None:
    async with httpx.AsyncClient(transport=TrioHTTPTransport()) as client:
        assert_type(await client.get("http://localhost/"), httpx.Response)


class Counting:
    """An instrument is whatever has its methods."""

    def event(self, event: Event, /) -> None:
        watch(event)

    @contextmanager
    def request(self, method: str, target: str | None, /) -> Generator[dict[str, object]]:
        yield {"method": method}


async def is_watched(tracers: TracerProvider, meters: MeterProvider) -> None:
    counting: RequestInstrument = Counting()
    instruments: list[Instrument] = [
        counting,
        LoggingInstrument("app.mcp"),
        LoggingInstrument(logging.getLogger()),
        OpenTelemetryInstrument(),
        OpenTelemetryInstrument(tracers, meters),
    ]
    async with open_client("http://localhost/mcp", instruments=instruments) as client:
        async with client.events(max_buffered=10) as events:
            assert_type(events, trio.MemoryReceiveChannel[Event])
            async for event in events:
                assert_type(event, Event)


async def listens(client: Client) -> None:
    async with client.listen(tools_list_changed=True, resource_subscriptions=["file:///a"]) as subscription:
        assert_type(subscription, Subscription)
        assert_type(subscription.honored, mcp_types.SubscriptionFilter)
        async for change in subscription:
            assert_type(change, ServerEvent)


async def ask(ctx: ToolContext, name: str) -> str:
    ctx.progress(1, 2, "half of it")
    ctx.log({"name": name}, level="debug")
    assert_type(ctx.session, ScriptedSession)
    if name not in ctx.responses:
        raise InputRequired({"name": {"method": "roots/list", "params": {}}})
    raise RpcError(-32602, "no such name")


async def breaks_a_server(server: ScriptedServer) -> None:
    server.tool("ask", ask)
    assert_type(server.url, str)
    assert_type(server.lose_session(streams="cut"), int)
    server.restart(era="modern", down_for=3.0)
    server.dialect("404-rpc")
    server.dialect(Reply(410))
    server.discover_dialect(None)
    assert_type(server.cut("before-head", when="tools/call"), Rule)
    held = server.hold(lambda seen: seen.tool == "ask")
    assert_type(held, Held)
    await held.reached(2)
    held.release()
    assert_type(server.requests, list[SeenRequest])
    assert_type(server.requests[0].rpc_method, str | None)
    assert_type(server.executions, list[Execution])
    assert_type(await server.subscribed(), ServedSubscription)
    assert_type(await server.listening(), ScriptedSession)
    assert_type(DIALECTS["404-rpc"], Reply)
    assert_type(DISCOVER_DIALECTS["400-session"], Reply)


async def tests_an_application() -> None:
    async with open_scripted_server("mine", era="both") as server:
        assert_type(server, ScriptedServer)
        async with open_client(server.url, connect=server.connect) as client:
            assert_type(client, Client)
    assert_type(memory_connection(), tuple[MemoryStream, MemoryStream])


async def logs_in_as_the_sdk_does(provider: OAuthClientProvider, other: httpx2.BasicAuth) -> None:
    async with open_client("http://localhost/mcp", auth=provider) as client:
        assert_type(client, Client)
    async with open_client("http://localhost/mcp", auth=other) as client:
        assert_type(client, Client)


async def is_told_when_wrong(client: Client) -> None:
    open_client()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    open_client("http://localhost/mcp", {"x-tenant": "blue"})  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    open_client("http://localhost/mcp", retries=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    open_client("http://localhost/mcp", auth="token")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    open_client("http://localhost/mcp", on_event=connect)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    open_pool(max_client=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    open_pool(when_full="panic")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await client.call_tool(7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    client.generation = 2  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    client.statistics().losses = 0  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    Backoff().cap = 1.0  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    trio_mcp_resilient.no_such_name  # type: ignore[attr-defined]  # pyright: ignore  # noqa: B018


class Wrapper:
    """An application's own client, as far as the kit looks at it."""

    async def call_tool(self, name: str, arguments: dict[str, object]) -> str:
        return name


async def tests_itself(client: Client, sdk: mcp.Client, session: mcp.ClientSession, wrapper: Wrapper) -> None:
    async with open_scripted_server() as server:
        assert_type(server, ScriptedServer)
        assert_type(BREAKS["restart"], Break)
        tried: CallsTools = wrapper
        await assert_recovers(tried, server, "idle")
        await assert_recovers(client, server)
        await assert_recovers(sdk, server, "restart", resends=False, within=60)
        await assert_recovers(session, server)
        await assert_recovers(wrapper, server)
        await assert_recovers(server, server)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
