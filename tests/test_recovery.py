"""The main job: a session is lost, and the application does not notice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import mcp_types as types
import pytest
import trio
from mcp import MCPError
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.kit import STEADY, add, open_pair, open_server, text, told
from trio_mcp_resilient import (
    Client,
    ConnectionLost,
    Event,
    GaveUp,
    HandshakeFailed,
    OutcomeUnknown,
    RequestRefused,
    Resent,
    SessionEnded,
    SessionLost,
    State,
    open_client,
)
from trio_mcp_resilient._plain_wire import PlainWire
from trio_mcp_resilient.testing import DIALECTS, ScriptedServer


def sent(server: ScriptedServer, method: str) -> list[Any]:
    return [seen for seen in server.requests if seen.rpc_method == method]


# -- the call that meets the loss ------------------------------------------------------------------


@pytest.mark.parametrize("dialect", sorted(DIALECTS))
async def test_a_lost_session_in_every_dialect(dialect: str, autojump_clock: MockClock) -> None:
    async with open_pair(get_stream=False) as (server, client):
        assert await add(client) == "3"
        server.dialect(dialect)
        server.lose_session()
        assert await add(client, 2, 3) == "5"
        assert client.generation == 2
        assert server.handshakes == 2
        assert server.executed["add"] == 2
        assert len(sent(server, "tools/call")) == 3
        assert [seen.session_id for seen in sent(server, "initialize")] == [None, None]


METHODS: dict[str, Callable[[Client], Awaitable[Any]]] = {
    "tools/list": lambda client: client.list_tools(),
    "tools/call": lambda client: client.call_tool("add", {"a": 1, "b": 2}),
    "resources/list": lambda client: client.list_resources(),
    "resources/templates/list": lambda client: client.list_resource_templates(),
    "resources/read": lambda client: client.read_resource("memo://one"),
    "prompts/list": lambda client: client.list_prompts(),
    "prompts/get": lambda client: client.get_prompt("greet", {"name": "Ada"}),
    "completion/complete": lambda client: client.complete(
        types.PromptReference(type="ref/prompt", name="greet"), {"name": "name", "value": "A"}
    ),
    "ping": lambda client: client.ping(),
    "session.list_tools": lambda client: client.session.list_tools(),
    "session.send_ping": lambda client: client.session.send_ping(),
}


@pytest.mark.parametrize("method", METHODS)
async def test_every_request_recovers_when_it_is_the_first_to_meet_the_loss(
    method: str, autojump_clock: MockClock
) -> None:
    async with open_pair(get_stream=False) as (server, client):
        server.resource("memo://one", "text of one")
        server.prompt("greet", "hello {name}")
        server.lose_session()
        await METHODS[method](client)
        assert (client.generation, server.handshakes) == (2, 2)
        assert client.statistics().resends == 1


async def test_the_hidden_listing_after_a_first_call_recovers_by_itself(autojump_clock: MockClock) -> None:
    """The SDK's session lists the tools after the first call of each, to validate the result.

    A wrapper that replays the whole call on an error would run the tool twice here.
    """
    async with open_pair(get_stream=False) as (server, client):

        def lose_between(seen: Any) -> None:
            if seen.rpc_method == "tools/list" and server.handshakes == 1:
                server.lose_session()

        server.on_request(lose_between)
        assert await add(client) == "3"
        assert server.executed["add"] == 1
        assert [seen.status for seen in sent(server, "tools/list")] == [404, 200]
        assert server.handshakes == 2


async def test_idle_eviction_goes_unnoticed(autojump_clock: MockClock) -> None:
    async with open_pair(get_stream=False) as (server, client):
        server.idle_timeout = 1800.0
        await add(client)
        await trio.sleep(1801)
        assert await add(client) == "3"
        assert server.handshakes == 2
        assert server.executed["add"] == 2


# -- many at once ----------------------------------------------------------------------------------


async def test_20_calls_on_a_dead_id_are_all_rescued_by_one_handshake(autojump_clock: MockClock) -> None:
    async with open_pair(get_stream=False) as (server, client):
        await add(client)
        server.lose_session()
        results: list[str] = []

        async def call(number: int) -> None:
            results.append(await add(client, number, 0))

        async with trio.open_nursery() as nursery:
            for number in range(100, 120):
                nursery.start_soon(call, number)
        assert sorted(results) == [str(number) for number in range(100, 120)]
        runs = Counter(run.arguments["a"] for run in server.executions)
        assert all(runs[number] == 1 for number in range(100, 120))
        assert server.handshakes == 2
        assert client.statistics().losses == 1


async def test_slow_calls_in_flight_keep_their_answers_when_another_meets_the_loss(
    autojump_clock: MockClock,
) -> None:
    async with open_pair(get_stream=False) as (server, client):
        await client.list_tools()
        held = server.hold("tools/call", point="before-head", times=20)
        results: list[str] = []

        async def call(number: int) -> None:
            results.append(await add(client, number, 0))

        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(call, number)
            await held.reached(20)
            server.lose_session()
            # The 21st meets the loss, is rescued, and closes nothing under the others.
            assert await add(client, 20, 0) == "20"
            assert client.generation == 2
            assert results == []
            held.release()
        assert sorted(map(int, results)) == list(range(20))
        assert Counter(run.arguments["a"] for run in server.executions) == dict.fromkeys(range(21), 1)
        assert server.handshakes == 2
        # Those that drained were never told to try again.
        assert client.statistics().resends == 1


@pytest.mark.parametrize("how_long", [0.2, float("inf")])
async def test_nobody_waits_while_a_lost_session_is_closed(
    how_long: float, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[float] = []

    async def slow_close(self: PlainWire) -> None:
        closed.append(trio.current_time())
        # Not for ever in truth, or the client could not end; longer than the test, in virtual time.
        await trio.sleep(min(how_long, 1000))

    async with open_pair(get_stream=False) as (server, client):
        await add(client)
        monkeypatch.setattr(PlainWire, "aclose", slow_close)
        server.lose_session()
        began = trio.current_time()
        await add(client)
        await wait_all_tasks_blocked()
        assert closed == [began]
        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(add, client)
        assert trio.current_time() == began
        monkeypatch.undo()


# -- what is not a loss ----------------------------------------------------------------------------


async def assert_kept(server: ScriptedServer, client: Client, *, posts: int) -> None:
    """The session was kept and nothing was sent again."""
    assert (client.generation, client.state, server.handshakes) == (1, State.READY, 1)
    assert len(sent(server, "tools/call")) == posts
    assert client.statistics().resends == 0
    assert client.statistics().losses == 0


async def test_a_second_loss_surfaces_instead_of_looping(autojump_clock: MockClock) -> None:
    async with open_pair(get_stream=False) as (server, client):
        server.answer(404, when="tools/call", times=2)
        with pytest.raises(SessionLost) as caught:
            await add(client)
        assert len(sent(server, "tools/call")) == 2
        assert server.executed["add"] == 0
        assert "sent twice" in str(caught.value)
        # The client itself is none the worse.
        assert await add(client) == "3"


async def test_the_error_names_session_evidence_and_reconnect_and_no_secret(
    autojump_clock: MockClock,
) -> None:
    async with open_pair(get_stream=False) as (server, client):
        session_id = server.sessions[0].id
        server.lose_session()
        server.answer(404, {"detail": "Not Found"}, when="initialize")
        with pytest.raises(SessionLost) as caught:
            await add(client)
        said = str(caught.value)
        assert "answered 404" in said
        assert "Session not found" in said
        assert "generation 1" in said
        assert "session #" in said
        assert "reconnect: 1 attempt in 0.00 s" in said
        assert f"{server.url} answered initialize with 404" in said
        assert session_id not in said
        assert session_id not in repr(caught.value)
        assert isinstance(caught.value.__cause__, HandshakeFailed)
        # Not dead: the next call tries again.
        assert client.state is State.DORMANT
        assert await add(client) == "3"


async def test_an_ordinary_mcp_error_is_unchanged(autojump_clock: MockClock) -> None:
    async with open_pair(get_stream=False) as (server, client):
        server.answer(
            200,
            lambda seen: {
                "jsonrpc": "2.0",
                "id": seen.rpc_id,
                "error": {"code": -32602, "message": "bad", "data": 7},
            },
            when="tools/call",
        )
        with pytest.raises(MCPError) as caught:
            await add(client)
        assert (caught.value.code, caught.value.message, caught.value.data) == (-32602, "bad", 7)
        assert type(caught.value) is MCPError
        await assert_kept(server, client, posts=1)


async def test_a_tool_error_that_speaks_of_sessions_is_a_result(autojump_clock: MockClock) -> None:
    async with open_pair(get_stream=False) as (server, client):

        def fail() -> str:
            raise RuntimeError("session not found")

        server.tool("fail", fail)
        result = await client.call_tool("fail")
        assert result.is_error
        assert "session not found" in text(result)
        await assert_kept(server, client, posts=1)


async def test_a_400_for_a_bad_argument_is_unchanged(autojump_clock: MockClock) -> None:
    async with open_pair(get_stream=False) as (server, client):
        server.answer(
            400,
            lambda seen: {
                "jsonrpc": "2.0",
                "id": seen.rpc_id,
                "error": {"code": -32602, "message": "no such argument"},
            },
            when="tools/call",
        )
        with pytest.raises(MCPError, match="no such argument"):
            await add(client)
        await assert_kept(server, client, posts=1)


async def test_a_404_that_says_method_not_found_is_unchanged(autojump_clock: MockClock) -> None:
    async with open_pair(get_stream=False) as (server, client):
        server.answer(
            404,
            lambda seen: {
                "jsonrpc": "2.0",
                "id": seen.rpc_id,
                "error": {"code": -32601, "message": "Method not found"},
            },
            when="tools/call",
        )
        with pytest.raises(MCPError, match="Method not found") as caught:
            await add(client)
        assert caught.value.code == -32601
        await assert_kept(server, client, posts=1)


@pytest.mark.parametrize("status", [401, 403])
async def test_failed_authentication_is_unchanged(status: int, autojump_clock: MockClock) -> None:
    async with open_pair(get_stream=False) as (server, client):
        server.answer(status, {"error": "invalid_token"}, when="tools/call")
        with pytest.raises(RequestRefused) as caught:
            await add(client)
        assert caught.value.status == status
        await assert_kept(server, client, posts=1)


async def test_a_500_may_have_run_and_is_not_sent_again(autojump_clock: MockClock) -> None:
    async with open_pair(get_stream=False) as (server, client):
        error = {"code": -32603, "message": "Session terminated before the request completed"}
        server.answer(
            500,
            lambda seen: {"jsonrpc": "2.0", "id": seen.rpc_id, "error": error},
            when="tools/call",
            ran=True,
        )
        with pytest.raises(OutcomeUnknown) as caught:
            await add(client)
        assert caught.value.executed is None
        assert "before the request completed" in str(caught.value)
        assert server.executed["add"] == 1
        assert client.statistics().outcome_unknown == 1
        assert await add(client) == "3"


# -- cancellation ----------------------------------------------------------------------------------


async def test_a_cancelled_call_is_never_sent_again_and_the_server_is_told(autojump_clock: MockClock) -> None:
    async with open_pair(get_stream=False) as (server, client):
        await client.list_tools()
        with trio.move_on_after(1):
            await client.call_tool("slow", {"seconds": 10})
        await wait_all_tasks_blocked()
        (call,) = sent(server, "tools/call")
        (notice,) = sent(server, "notifications/cancelled")
        assert notice.params["requestId"] == call.rpc_id
        assert notice.session_id == call.session_id
        server.lose_session()
        assert await add(client) == "3"
        assert server.executed["slow"] == 1
        assert client.generation == 2


async def test_a_call_cancelled_while_it_waits_for_a_session_is_not_sent(autojump_clock: MockClock) -> None:
    async with open_pair(get_stream=False) as (server, client):
        server.lose_session()
        held = server.hold("initialize")
        with trio.move_on_after(1) as scope:
            await add(client)
        assert scope.cancelled_caught
        held.release()
        await client.wait_ready()
        await wait_all_tasks_blocked()
        assert server.executed["add"] == 0
        assert len(sent(server, "tools/call")) == 1
        assert sent(server, "notifications/cancelled") == []


async def test_a_read_timeout_is_the_sdks_error(autojump_clock: MockClock) -> None:
    async with open_pair(get_stream=False) as (server, client):
        with pytest.raises(MCPError) as caught:
            await client.call_tool("slow", {"seconds": 10}, read_timeout_seconds=1)
        assert caught.value.code == types.REQUEST_TIMEOUT
        await wait_all_tasks_blocked()
        assert len(sent(server, "notifications/cancelled")) == 1


# -- the first connect -----------------------------------------------------------------------------


async def test_a_404_to_the_first_handshake_is_a_wrong_url_said_at_once(autojump_clock: MockClock) -> None:
    async with open_server() as server:
        server.answer(404, "<h1>Not Found</h1>", content_type="text/html", when="initialize")
        began = trio.current_time()
        with pytest.raises(HandshakeFailed) as caught:
            async with open_client(server.url, connect=server.connect, mode="legacy"):
                pytest.fail("there is no session to work with")
        assert trio.current_time() == began
        assert server.url in str(caught.value)
        assert "404" in str(caught.value)
        assert len(server.requests) == 1


async def test_a_server_that_is_down_at_start_is_retried(autojump_clock: MockClock) -> None:
    async with open_server() as server:
        server.down()
        began = trio.current_time()
        async with trio.open_nursery() as nursery:

            async def come_up() -> None:
                await trio.sleep(5)
                server.up()

            nursery.start_soon(come_up)
            async with open_client(server.url, connect=server.connect, backoff=STEADY) as client:
                # Tried at 0, 1, 3 and 7 s.
                assert trio.current_time() - began == pytest.approx(7)
                assert client.statistics().handshakes == 4
                assert await add(client) == "3"


async def test_the_budgets_end_at_start_names_attempts_seconds_and_cause(autojump_clock: MockClock) -> None:
    async with open_server() as server:
        server.down()
        with pytest.raises(GaveUp) as caught:
            async with open_client(server.url, connect=server.connect, backoff=STEADY):
                pytest.fail("there is no session to work with")
        assert "5 attempts in 15.00 s" in str(caught.value)
        assert "refused" in str(caught.value)


async def test_a_server_that_goes_down_later_is_retried_alike(autojump_clock: MockClock) -> None:
    async with open_pair(get_stream=False) as (server, client):
        await add(client)
        server.restart(keep_sessions=False, down_for=5)
        began = trio.current_time()
        assert await add(client) == "3"
        assert trio.current_time() - began == pytest.approx(7)
        assert server.handshakes == 2
        assert server.executed["add"] == 2


async def test_a_restart_that_keeps_its_sessions_costs_no_handshake(autojump_clock: MockClock) -> None:
    async with open_pair(get_stream=False) as (server, client):
        await add(client)
        server.restart(keep_sessions=True, down_for=5)
        assert await add(client) == "3"
        assert (client.generation, server.handshakes) == (1, 1)


async def test_a_refused_connection_reaches_its_caller_as_our_error(autojump_clock: MockClock) -> None:
    async with open_pair(get_stream=False) as (server, client):
        await add(client)
        server.restart(keep_sessions=False, down_for=1000)
        with pytest.raises(ConnectionLost) as caught:
            await add(client)
        assert caught.value.executed is False
        assert "5 attempts in 15.00 s" in str(caught.value)
        assert isinstance(caught.value.__cause__, GaveUp)


# -- events and numbers ----------------------------------------------------------------------------


async def test_what_is_told_of_a_loss(autojump_clock: MockClock) -> None:
    events: list[Event] = []
    async with open_pair(get_stream=False, on_event=events.append) as (server, client):
        await add(client)
        server.lose_session()
        await add(client)
        (ended,) = told(events, SessionEnded)
        assert (ended.generation, ended.reason, ended.evidence.status) == (1, "lost", 404)
        (resent,) = told(events, Resent)
        assert (resent.method, resent.generation) == ("tools/call", 2)
        numbers = client.statistics()
        assert (numbers.generations, numbers.losses, numbers.resends, numbers.handshakes) == (2, 1, 1, 2)
        # Two calls of `add`, the hidden listing after the first, and the one in the new session.
        assert (numbers.calls, numbers.outcome_unknown, numbers.last_recovery_seconds) == (4, 0, 0.0)
