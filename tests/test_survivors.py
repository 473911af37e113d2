"""What deliberate faults in the package (`tests.mutants`) had survived, before these tests."""

from __future__ import annotations

import pytest
import trio
from mcp import MCPError
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.kit import STEADY, add, open_pair, open_server, text
from trio_mcp_resilient import open_client
from trio_mcp_resilient._resuming import PACE
from trio_mcp_resilient.testing import ToolContext

CALL = "tools/call"


async def test_a_lost_session_is_not_parted_from(autojump_clock: MockClock) -> None:
    async with open_pair(get_stream=False) as (server, client):
        lost = server.the_session.id
        server.lose_session()
        await add(client)
    assert [seen.session_id for seen in server.seen("DELETE")] != []
    assert lost not in [seen.session_id for seen in server.seen("DELETE")]


async def test_a_silent_handshake_is_given_up_in_time(autojump_clock: MockClock) -> None:
    async with open_server() as server:
        server.go_silent(when="initialize")
        began = trio.current_time()
        async with open_client(server.url, connect=server.connect, backoff=STEADY, handshake_timeout=5):
            assert trio.current_time() - began == pytest.approx(5 + STEADY.first)


async def test_the_stream_of_a_lost_session_ends_while_its_calls_go_on(autojump_clock: MockClock) -> None:
    async with open_pair() as (server, client):
        await client.list_tools()
        old = await server.listening()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.call_tool, "slow", {"seconds": 100})
            await wait_all_tasks_blocked()
            server.lose_session()
            assert await add(client) == "3"
            await wait_all_tasks_blocked()
            assert old.standalone.carriers == 0
            assert old.running, "the slow call was to be running still"


# The SDK's: both methods are gone from a later version of the protocol.
@pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")
async def test_a_session_lost_while_it_is_prepared_is_asked_no_more(autojump_clock: MockClock) -> None:
    """Its own stream has found the loss, so what is left to restore goes to the next one."""
    async with open_pair() as (server, client):
        server.resource("memo://one", "text of one")
        await client.session.set_logging_level("warning")
        await client.session.subscribe_resource("memo://one")
        held = server.hold("logging/setLevel", point="before-head")
        client.invalidate()
        await held.reached()
        second = server.sessions[-1]
        await second.listening.wait()
        server.lose_session(second)
        second.standalone.detach()
        await trio.sleep(5)
        held.release()
        await client.wait_ready()
        asked = [seen.session_id for seen in server.posts("resources/subscribe")]
        assert second.id not in asked
        assert server.the_session.subscriptions == {"memo://one"}


async def test_an_error_of_another_request_is_not_this_ones(autojump_clock: MockClock) -> None:
    async with open_pair(get_stream=False) as (server, client):
        await client.list_tools()
        error = {"jsonrpc": "2.0", "id": 99999, "error": {"code": -32000, "message": "somebody else's"}}
        server.answer(200, error, when=CALL, ran=True)
        with pytest.raises(Exception, match="may or may not") as caught:
            await add(client)
        assert not isinstance(caught.value, MCPError)


async def test_an_idle_session_that_answers_no_ping_is_replaced(autojump_clock: MockClock) -> None:
    """The peer went away without a word: nobody calls, and the keep-alive finds it."""
    async with open_pair(get_stream=False, keepalive=10, handshake_timeout=5) as (server, client):
        server.lose_session()
        silence = server.go_silent(when="ping")
        await trio.sleep(10 + 5 + 1)
        assert silence.hits == 1
        assert client.generation == 2


async def test_an_answer_is_taken_up_as_long_as_each_time_brings_something(autojump_clock: MockClock) -> None:
    """A network that cuts each stream after an event, more often than one that brings nothing is asked."""
    async with open_server() as server:
        server.resumable, server.retry = True, 1000

        async def job(ctx: ToolContext) -> str:
            ctx.close_stream()
            for step in range(30):
                ctx.progress(step, 30)
                await trio.sleep(2)
            return "done"

        server.tool("job", job)
        said: list[float] = []

        async def report(progress: float, total: float | None, message: str | None) -> None:
            said.append(progress)

        async with open_client(server.url, connect=server.connect, get_stream=False) as client:
            cut = server.cut(after_bytes=400, how="fin", when="GET", times=PACE.attempts + 4)
            assert text(await client.call_tool("job", {}, progress_callback=report)) == "done"
        assert cut.hits == PACE.attempts + 4
        assert said == list(range(30))


async def test_a_stream_that_the_server_still_holds_is_asked_for_later(autojump_clock: MockClock) -> None:
    async with open_server() as server:
        server.resumable, server.retry = True, 1000

        async def job(ctx: ToolContext) -> str:
            ctx.close_stream()
            await trio.sleep(0.5)
            return "done"

        server.tool("job", job)
        async with open_client(server.url, connect=server.connect, get_stream=False) as client:
            server.answer(409, "the last one is still open", when="GET", times=2)
            assert text(await client.call_tool("job", {})) == "done"
        assert [seen.status for seen in server.seen("GET")] == [409, 409, 200]
        assert server.executed["job"] == 1


async def test_an_event_id_that_is_refused_is_not_insisted_on(autojump_clock: MockClock) -> None:
    """A server may forget events sooner than the session; the stream is then opened without one."""
    async with open_server() as server:
        server.resumable = True
        async with open_client(server.url, connect=server.connect) as client:
            session = await server.listening()
            server.notify("notifications/tools/list_changed")
            await wait_all_tasks_blocked()
            server.answer(400, "no such event", when=lambda seen: "last-event-id" in seen.headers)
            session.standalone.detach()
            await trio.sleep(60)
            asked = ["last-event-id" in seen.headers for seen in server.seen("GET")]
            assert asked == [False, True, False]
            assert session.standalone.carriers == 1
            assert client.generation == 1
