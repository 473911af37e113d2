"""Between the SDK's streams and the dispatcher: ids, progress, the server's requests, and ends."""

from __future__ import annotations

import gc
import inspect
import logging
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any

import anyio
import httpx
import mcp
import mcp_types as types
import pytest
import trio
from mcp import MCPError
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCNotification, JSONRPCRequest, JSONRPCResponse
from pydantic import ValidationError
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.kit import STEADY, add, open_sdk_pair, open_server, text
from tests.test_lifetime import Leaks, cancelled_at
from trio_mcp_resilient import open_client, resilient_transport
from trio_mcp_resilient._sdk_streams import MAX_UNREAD, MAX_UNREAD_BYTES, ReadStream
from trio_mcp_resilient.testing import RpcError, ScriptedServer


def transport_to(server: ScriptedServer, **options: Any) -> Any:
    return resilient_transport(
        server.url, connect=server.connect, **{"backoff": STEADY, "mode": "legacy", **options}
    )


def test_it_takes_what_open_client_takes() -> None:
    def options(function: Callable[..., Any]) -> dict[str, Any]:
        parameters = inspect.signature(inspect.unwrap(function)).parameters.values()
        return {parameter.name: (parameter.default, parameter.annotation) for parameter in parameters}

    sdks_own = {
        "client_info",
        "log_level",
        "input_required_max_rounds",
        "sampling_callback",
        "elicitation_callback",
        "list_roots_callback",
        "logging_callback",
        "message_handler",
    }
    ours = options(open_client)
    assert set(ours) >= sdks_own
    assert options(resilient_transport) == {name: ours[name] for name in ours if name not in sdks_own}


# -- progress and notifications --------------------------------------------------------------------


async def test_progress_reaches_the_call_it_is_about(autojump_clock: MockClock) -> None:
    """Ids are given on both sides of the bridge, and are seldom the same."""
    async with open_sdk_pair() as (server, client):

        async def busy(ctx: Any, name: str) -> str:
            for step in range(3):
                ctx.progress(step + 1, 3, name)
                await trio.sleep(1)
            return name

        server.tool("busy", busy)
        await client.list_tools()
        heard: dict[str, list[tuple[float, float | None, str | None]]] = {}

        async def call(name: str) -> None:
            async def report(progress: float, total: float | None, message: str | None) -> None:
                await trio.lowlevel.checkpoint()
                heard[name].append((progress, total, message))

            heard[name] = []
            result = await client.call_tool("busy", {"name": name}, progress_callback=report)
            assert isinstance(result, types.CallToolResult)
            assert text(result) == name

        async def call_all() -> None:
            async with trio.open_nursery() as nursery:
                for name in ("a", "b", "c"):
                    nursery.start_soon(call, name)

        await call_all()
        server.lose_session()
        await client.list_tools()
        await call_all()
        assert heard == {name: [(float(step), 3.0, name) for step in (1, 2, 3)] for name in ("a", "b", "c")}


async def test_a_token_of_the_callers_own_is_kept(autojump_clock: MockClock) -> None:
    heard: list[Any] = []

    async def handle(message: Any) -> None:
        await trio.lowlevel.checkpoint()
        heard.append(message)

    async with open_sdk_pair(sdk={"message_handler": handle}) as (server, client):

        async def busy(ctx: Any) -> str:
            await trio.lowlevel.checkpoint()
            ctx.progress(1)
            return "done"

        server.tool("busy", busy)
        await client.call_tool("busy", meta={"progress_token": "mine"})
        await wait_all_tasks_blocked()
        (notification,) = heard
        assert notification.params.progress_token == "mine"


@pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")
async def test_notifications_reach_their_handlers(autojump_clock: MockClock) -> None:
    logged: list[Any] = []
    heard: list[Any] = []

    async def log(params: Any) -> None:
        await trio.lowlevel.checkpoint()
        logged.append(params.data)

    async def handle(message: Any) -> None:
        await trio.lowlevel.checkpoint()
        heard.append(message.method)

    sdk = {"logging_callback": log, "message_handler": handle}
    async with open_sdk_pair(sdk=sdk) as (server, client):
        await client.send_ping()
        for generation in (1, 2):
            await wait_all_tasks_blocked()
            server.notify("notifications/message", {"level": "info", "data": f"of {generation}"})
            server.notify("notifications/prompts/list_changed")
            # Of a request that this client never saw.
            server.notify("notifications/cancelled", {"requestId": 1})
            await wait_all_tasks_blocked()
            server.lose_session()
            await client.send_ping()
        assert logged == ["of 1", "of 2"]
        assert sorted(heard) == sorted(["notifications/message", "notifications/prompts/list_changed"] * 2)


async def test_notifications_nobody_reads_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    reader = ReadStream()
    for number in range(MAX_UNREAD + 3):
        reader.put(JSONRPCNotification(jsonrpc="2.0", method=f"notifications/{number}"))
    # An answer is never dropped: somebody waits for it.
    reader.put(JSONRPCResponse(jsonrpc="2.0", id=1, result={}))
    # A line for the first and the second: what a server can cause at will must not fill the log.
    assert len(caplog.records) == 2
    reader.end()
    read = [item.message async for item in reader]
    assert len(read) == MAX_UNREAD + 1
    assert isinstance(read[-1], JSONRPCResponse)
    with pytest.raises(anyio.EndOfStream):
        await reader.receive()
    await reader.aclose()
    with pytest.raises(anyio.ClosedResourceError):
        await reader.receive()
    caplog.set_level(logging.DEBUG)
    reader.put(JSONRPCResponse(jsonrpc="2.0", id=1, result={}))
    assert "dropped a message" in caplog.text


async def test_notifications_nobody_reads_are_bounded_in_bytes() -> None:
    reader = ReadStream()
    for number in range(40):
        params = {"number": number, "padding": "x" * 2**20}
        reader.put(JSONRPCNotification(jsonrpc="2.0", method="notifications/large", params=params))
    reader.end()
    assert len([item async for item in reader]) == MAX_UNREAD_BYTES // 2**20


async def test_a_tool_whose_name_is_none_ends_nothing(autojump_clock: MockClock) -> None:
    async with open_sdk_pair() as (server, client):
        listed = {"tools": [{"name": ["x"], "inputSchema": {}}]}
        server.answer(
            200, lambda seen: {"jsonrpc": "2.0", "id": seen.rpc_id, "result": listed}, when="tools/list"
        )
        with pytest.raises(ValidationError):
            await client.list_tools()
        assert await add(client) == "3"


# -- the server's requests -------------------------------------------------------------------------


async def ask(ctx: Any) -> str:
    result = await ctx.request("sampling/createMessage", {"messages": [], "maxTokens": 1})
    return str(result["content"]["text"])


async def test_the_servers_requests_are_answered_on_the_session_that_asked(autojump_clock: MockClock) -> None:
    """Servers number their requests from the start on each session, and two sessions may be in use."""
    gates = [trio.Event(), trio.Event()]
    asked = [trio.Event(), trio.Event()]
    count = iter(range(2))

    async def sample(context: Any, params: Any) -> types.CreateMessageResult:
        number = next(count)
        asked[number].set()
        await gates[number].wait()
        content = types.TextContent(type="text", text=f"answer {number}")
        return types.CreateMessageResult(role="assistant", content=content, model="m")

    async with open_sdk_pair(get_stream=False, sdk={"sampling_callback": sample}) as (server, client):
        server.tool("ask", ask)
        await client.list_tools()
        got: list[str] = []

        async def call(number: int) -> None:
            try:
                got.append(text(await client.call_tool("ask")))  # type: ignore[arg-type]
            except MCPError as error:
                got.append(error.message)

        async with trio.open_nursery() as nursery:
            # Keeps the first session's end of things alive once it is lost.
            nursery.start_soon(client.call_tool, "slow", {"seconds": 100})
            nursery.start_soon(call, 0)
            await asked[0].wait()
            server.lose_session()
            nursery.start_soon(call, 1)
            await asked[1].wait()
            gates[0].set()
            await wait_all_tasks_blocked()
            # The first session is gone, and what is said to it is for nobody else.
            assert got == ["the session ended before the client answered"]
            gates[1].set()
            await wait_all_tasks_blocked()
            assert got[1:] == ["answer 1"]
            nursery.cancel_scope.cancel()
        names = [seen.message["id"] for seen in server.requests if seen.message and "result" in seen.message]
        assert names == ["server-1", "server-1"]


async def test_a_refusal_by_the_clients_callback_reaches_the_server(autojump_clock: MockClock) -> None:
    async with open_sdk_pair() as (server, client):
        server.tool("ask", ask)
        with pytest.raises(MCPError, match="Sampling not supported"):
            await client.call_tool("ask")


async def test_a_request_that_the_server_takes_back_is_cancelled(autojump_clock: MockClock) -> None:
    ends: list[str] = []

    async def sample(context: Any, params: Any) -> types.CreateMessageResult:
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            ends.append("cancelled")
            raise

    async with open_sdk_pair(sdk={"sampling_callback": sample}) as (server, client):

        async def take_back(ctx: Any) -> str:
            with trio.move_on_after(1):
                await ctx.request("sampling/createMessage", {"messages": [], "maxTokens": 1})
            ctx.notify("notifications/cancelled", {"requestId": "server-1"})
            return "never mind"

        server.tool("take_back", take_back)
        await client.call_tool("take_back")
        await wait_all_tasks_blocked()
        assert ends == ["cancelled"]
        assert [seen for seen in server.requests if seen.rpc_method is None and seen.message] == []


async def test_a_request_of_a_session_that_is_gone_is_cancelled(autojump_clock: MockClock) -> None:
    begun, ended = trio.Event(), trio.Event()

    async def sample(context: Any, params: Any) -> types.CreateMessageResult:
        try:
            begun.set()
            await trio.sleep_forever()
        finally:
            ended.set()

    async with open_sdk_pair(sdk={"sampling_callback": sample}) as (server, client):
        async with trio.open_nursery() as nursery:

            async def question() -> None:
                with pytest.raises(RpcError):
                    await server.request("sampling/createMessage", {"messages": [], "maxTokens": 1})

            nursery.start_soon(question)
            await begun.wait()
            server.lose_session()
            assert await add(client) == "3"
            await ended.wait()


# -- what a caller's task brings along -------------------------------------------------------------

whose: ContextVar[str] = ContextVar("whose", default="nobody's")


async def test_a_call_runs_with_its_callers_context(autojump_clock: MockClock) -> None:
    seen: list[str] = []

    class Noting(httpx.Auth):
        def auth_flow(self, request: httpx.Request) -> Any:
            seen.append(whose.get())
            yield request

    async with open_sdk_pair(get_stream=False, auth=Noting()) as (server, client):
        await client.list_tools()
        del seen[:]

        async def call(name: str) -> None:
            whose.set(name)

            async def report(progress: float, total: float | None, message: str | None) -> None:
                await trio.lowlevel.checkpoint()
                seen.append(f"{whose.get()} progress")

            await client.call_tool("busy", progress_callback=report)

        async def busy(ctx: Any) -> str:
            await trio.lowlevel.checkpoint()
            ctx.progress(1)
            return "done"

        server.tool("busy", busy)
        await client.list_tools()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call, "Ada's")
            nursery.start_soon(call, "Bea's")
        await wait_all_tasks_blocked()
        assert sorted(seen[1:]) == ["Ada's", "Ada's progress", "Bea's", "Bea's progress"]


async def test_headers_of_a_request_go_along(autojump_clock: MockClock) -> None:
    class Marked(types.Request[Any, Any]):
        method: str = "ping"
        name_param = "who"

    async with open_sdk_pair(get_stream=False) as (server, client):
        request = Marked(method="ping", params={"who": "Ada"})
        await client.session.send_request(request, types.EmptyResult)
        (ping,) = server.posts("ping")
        assert ping.headers["mcp-name"] == "Ada"
        # But the version is that of the session that the request went out on.
        assert ping.protocol_version == "2025-11-25"


async def test_an_id_that_a_caller_insists_on_is_the_one_on_the_wire(autojump_clock: MockClock) -> None:
    async with open_sdk_pair(get_stream=False) as (server, client):
        await client.session._dispatcher.send_raw_request("ping", None, {"request_id": "listen-1"})
        assert server.posts("ping")[0].rpc_id == "listen-1"


# -- beginnings and ends ---------------------------------------------------------------------------


async def test_leaving_the_block_leaves_nothing(autojump_clock: MockClock) -> None:
    async with open_server() as server:
        leaks = Leaks(server)
        async with mcp.Client(transport_to(server)) as client:
            await add(client)
            server.lose_session()
            await add(client)
        await leaks.assert_none()
        gc.collect()


async def test_the_transport_adds_no_group(autojump_clock: MockClock) -> None:
    async with open_server() as server:
        leaks = Leaks(server)
        error = KeyError("mine")
        with pytest.raises(KeyError) as caught:
            async with transport_to(server):
                raise error
        assert caught.value is error
        # One layer, which is the SDK session's own.
        with pytest.RaisesGroup(pytest.RaisesExc(KeyError, check=lambda raised: raised is error)):
            async with mcp.Client(transport_to(server)) as client:
                await add(client)
                raise error
        await leaks.assert_none()


async def test_a_session_that_leaves_first_takes_its_calls_along(autojump_clock: MockClock) -> None:
    async with open_server() as server:
        async with transport_to(server) as streams:
            async with mcp.ClientSession(*streams) as session:
                await session.initialize()
                await session.list_tools()
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(session.call_tool, "slow", {"seconds": 1000})
                    await wait_all_tasks_blocked()
                    nursery.cancel_scope.cancel()
            await wait_all_tasks_blocked()
            assert len(server.posts("notifications/cancelled")) == 1
            _, write = streams
            with pytest.raises(anyio.ClosedResourceError):
                await write.send(SessionMessage(JSONRPCRequest(jsonrpc="2.0", id=9, method="ping")))
            # The server's own requests are refused from now on, and its notifications go nowhere.
            with pytest.raises(RpcError, match="Connection closed"):
                await server.request("ping")
            server.notify("notifications/tools/list_changed")
            await wait_all_tasks_blocked()


async def test_a_stream_that_is_closed_leaves_the_server_no_hope(autojump_clock: MockClock) -> None:
    """As one who reads the streams without a session of the SDK's may do."""
    introduction = {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "app", "version": "1"},
    }
    async with open_server() as server:
        async with transport_to(server) as (read, write):
            initialize = JSONRPCRequest(jsonrpc="2.0", id=1, method="initialize", params=introduction)
            await write.send(SessionMessage(initialize))
            assert (await read.receive()).message.id == 1
            # An answer to nothing that was asked.
            await write.send(SessionMessage(JSONRPCResponse(jsonrpc="2.0", id="asked-9", result={})))
            async with trio.open_nursery() as nursery:

                async def ask_in_vain() -> None:
                    with pytest.raises(RpcError, match="Connection closed"):
                        await server.request("ping")

                nursery.start_soon(ask_in_vain)
                assert (await read.receive()).message.method == "ping"
                await write.aclose()
            await read.aclose()


async def test_a_transport_that_ends_first_closes_the_session(autojump_clock: MockClock) -> None:
    async with open_server() as server:
        leaks = Leaks(server)
        session: mcp.ClientSession
        async with trio.open_nursery() as nursery:
            async with transport_to(server) as streams:

                async def hold(task_status: trio.TaskStatus[None]) -> None:
                    async with session:
                        task_status.started()
                        await trio.sleep_forever()

                async def call() -> None:
                    with pytest.raises(MCPError) as caught:
                        await session.call_tool("slow", {"seconds": 1000})
                    assert caught.value.code == types.CONNECTION_CLOSED

                session = mcp.ClientSession(*streams)
                await nursery.start(hold)
                await session.initialize()
                nursery.start_soon(call)
                await wait_all_tasks_blocked()
            await wait_all_tasks_blocked()
            with pytest.raises(MCPError, match="Connection closed"):
                await session.send_ping()
            nursery.cancel_scope.cancel()
        # What the server ran for the abandoned call is its own affair; let it come to its end.
        await trio.sleep(1000)
        await leaks.assert_none()


async def test_nothing_is_sent_before_the_client_is_introduced(autojump_clock: MockClock) -> None:
    async with open_server() as server:
        async with transport_to(server) as (read, write):
            await write.send(SessionMessage(JSONRPCNotification(jsonrpc="2.0", method="notifications/x")))
            await write.send(SessionMessage(JSONRPCRequest(jsonrpc="2.0", id=1, method="ping")))
            answer = (await read.receive()).message
            assert (answer.id, answer.error.message) == (1, "initialize comes first")
        assert server.requests == []
        with pytest.raises(anyio.ClosedResourceError):
            await write.send(SessionMessage(JSONRPCRequest(jsonrpc="2.0", id=2, method="ping")))
        with pytest.raises(anyio.EndOfStream):
            await read.receive()
        await read.aclose()
        await write.aclose()


@pytest.mark.parametrize("lost", [False, True], ids=["session stands", "session lost"])
async def test_a_call_cancelled_at_every_checkpoint(lost: bool, autojump_clock: MockClock) -> None:
    async with open_server() as server:
        leaks = Leaks(server)
        async with mcp.Client(transport_to(server, get_stream=False)) as client:
            for k in range(1, 200):
                if lost:
                    server.lose_session()
                call: Callable[[], Awaitable[Any]] = lambda: client.call_tool("add", {"a": 1, "b": 2})  # noqa: E731
                if not await cancelled_at(k, call):
                    break
                assert await add(client) == "3"
            else:
                pytest.fail("it never completed")
            await wait_all_tasks_blocked()
        await leaks.assert_none()


@pytest.mark.parametrize("up", [True, False], ids=["up", "down"])
async def test_opening_cancelled_at_every_checkpoint(up: bool, autojump_clock: MockClock) -> None:
    async with open_server() as server:
        if not up:
            server.down()
        leaks = Leaks(server)

        async def open_and_close() -> None:
            async with mcp.Client(transport_to(server)):
                pass

        for k in range(1, 200):
            try:
                cut = await cancelled_at(k, open_and_close)
            except* MCPError:
                # It was let wait for the whole budget.
                cut = False
            await wait_all_tasks_blocked()
            # A handshake that was cut may leave a session that only the server knows of.
            server.lose_session()
            await leaks.assert_none()
            if not cut:
                break
        else:
            pytest.fail("it never completed")


async def test_the_farewell_is_bounded(autojump_clock: MockClock) -> None:
    async with open_server() as server:
        async with mcp.Client(transport_to(server, close_timeout=2)) as client:
            await add(client)
            server.go_silent(when="DELETE")
            began = trio.current_time()
        assert trio.current_time() - began == pytest.approx(2)
