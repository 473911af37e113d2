"""Beginnings and ends: nothing leaks, exceptions are the user's own, every coroutine is a checkpoint."""

from __future__ import annotations

import gc
from collections.abc import Awaitable, Callable
from typing import Any

import mcp_types as types
import pytest
import trio
from trio.testing import MockClock, assert_checkpoints, wait_all_tasks_blocked

from tests.kit import STEADY, Fragile, add, open_pair, open_server
from trio_mcp_resilient import Client, GaveUp, OutcomeUnknown, State, open_client
from trio_mcp_resilient._connections import KEEPALIVE_EXPIRY
from trio_mcp_resilient.testing import ScriptedServer


def tasks_alive() -> int:
    gc.collect()
    return trio.lowlevel.current_statistics().tasks_living


class Leaks:
    """What there was before, to be there again after."""

    def __init__(self, server: ScriptedServer) -> None:
        self._server = server
        self._tasks = tasks_alive()

    async def assert_none(self) -> None:
        await wait_all_tasks_blocked()
        assert self._server.sessions == [], "a session was left at the server"
        assert self._server.open_connections == 0, "a connection was left open"
        assert tasks_alive() == self._tasks, "a task was left running"


async def test_leaving_the_block_leaves_nothing(autojump_clock: MockClock) -> None:
    async with open_server() as server:
        leaks = Leaks(server)
        async with open_client(server.url, connect=server.connect) as client:
            await add(client)
            server.lose_session()
            await add(client)
        await leaks.assert_none()
        assert client.state is State.CLOSED


async def test_what_the_body_raises_comes_out_as_itself(autojump_clock: MockClock) -> None:
    async with open_server() as server:
        leaks = Leaks(server)
        error = KeyError("mine")
        with pytest.raises(KeyError) as caught:
            async with open_client(server.url, connect=server.connect) as client:
                await add(client)
                raise error
        assert caught.value is error
        await leaks.assert_none()


async def test_a_group_of_the_users_own_comes_out_as_it_is(autojump_clock: MockClock) -> None:
    async with open_server() as server:
        with pytest.RaisesGroup(pytest.RaisesExc(ValueError, match="user")):
            async with open_client(server.url, connect=server.connect) as client:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(add, client)
                    raise ValueError("user")


async def test_what_a_stream_of_the_users_own_raises_comes_out_as_itself(autojump_clock: MockClock) -> None:
    streams: list[Fragile] = []

    async with open_server() as server:

        async def connect(host: str, port: int) -> Fragile:
            streams.append(Fragile(await server.connect(host, port)))
            return streams[-1]

        bug = KeyError("a bug")
        with pytest.raises(KeyError) as caught:
            async with open_client(server.url, connect=connect) as client:
                await add(client)
                session = await server.listening()
                for stream in streams:
                    stream.bug = bug
                server.notify("notifications/tools/list_changed", session=session)
                await trio.sleep_forever()
        assert caught.value is bug


async def test_cancelled_in_the_middle_of_a_recovery(autojump_clock: MockClock) -> None:
    async with open_server() as server:
        leaks = Leaks(server)
        with trio.move_on_after(100) as scope:
            async with open_client(server.url, connect=server.connect, get_stream=False) as client:
                server.lose_session()
                held = server.hold("initialize")
                async with trio.open_nursery() as nursery:
                    for _ in range(5):
                        nursery.start_soon(add, client)
                    await held.reached()
                    scope.cancel()
        assert scope.cancelled_caught
        held.release()
        await wait_all_tasks_blocked()
        # The handshake was cut before its answer: the server made a session that nobody learned of.
        server.lose_session()
        await leaks.assert_none()
        assert server.executed["add"] == 0


async def test_the_farewell_is_bounded(autojump_clock: MockClock) -> None:
    async with open_server() as server:
        async with open_client(server.url, connect=server.connect, close_timeout=2) as client:
            await add(client)
            server.go_silent(when="DELETE")
            began = trio.current_time()
        assert trio.current_time() - began == pytest.approx(2)


async def test_a_session_that_is_lost_is_not_deleted(autojump_clock: MockClock) -> None:
    async with open_pair(get_stream=False) as (server, client):
        lost = {session.id for session in server.sessions}
        server.lose_session()
        await add(client)
        await wait_all_tasks_blocked()
    assert lost.isdisjoint(server.deleted)
    assert len(server.deleted) == 1


async def test_an_invalidated_session_is_deleted_once_its_calls_are_done(autojump_clock: MockClock) -> None:
    async with open_pair(get_stream=False) as (server, client):
        await client.list_tools()
        old = server.sessions[0].id
        held = server.hold("tools/call", point="before-head")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(add, client)
            await held.reached()
            client.invalidate()
            await client.wait_ready()
            assert client.generation == 2
            await wait_all_tasks_blocked()
            assert old not in server.deleted
            held.release()
        await wait_all_tasks_blocked()
        assert old in server.deleted
        assert server.executed["add"] == 1


async def test_calls_in_flight_when_the_client_closes_are_told(autojump_clock: MockClock) -> None:
    async with open_server() as server:
        async with trio.open_nursery() as nursery:

            async def call(client: Client) -> None:
                with pytest.raises(OutcomeUnknown):
                    await client.call_tool("slow", {"seconds": 100})

            async with open_client(server.url, connect=server.connect) as client:
                nursery.start_soon(call, client)
                await wait_all_tasks_blocked()


async def test_a_closed_client_says_so(autojump_clock: MockClock) -> None:
    async with open_pair() as (_, client):
        pass
    with pytest.raises(trio.ClosedResourceError):
        await add(client)
    with pytest.raises(trio.ClosedResourceError):
        await client.wait_ready()
    client.invalidate()
    assert client.statistics().in_flight == 0


COROUTINES: dict[str, Callable[[Client], Awaitable[Any]]] = {
    "call_tool": lambda client: client.call_tool("add", {"a": 1, "b": 2}),
    "list_tools": lambda client: client.list_tools(),
    "list_resources": lambda client: client.list_resources(),
    "list_resource_templates": lambda client: client.list_resource_templates(),
    "read_resource": lambda client: client.read_resource("memo://one"),
    "list_prompts": lambda client: client.list_prompts(),
    "get_prompt": lambda client: client.get_prompt("greet", {"name": "Ada"}),
    "complete": lambda client: client.complete(
        types.PromptReference(type="ref/prompt", name="greet"), {"name": "name", "value": "A"}
    ),
    "ping": lambda client: client.ping(),
    "wait_ready": lambda client: client.wait_ready(),
}


def test_no_public_coroutine_is_forgotten_here() -> None:
    import inspect

    public = {name for name, value in vars(Client).items() if inspect.iscoroutinefunction(value)}
    assert public == set(COROUTINES)


@pytest.mark.parametrize("name", COROUTINES)
async def test_every_public_coroutine_is_a_checkpoint(name: str, autojump_clock: MockClock) -> None:
    async with open_pair() as (server, client):
        server.resource("memo://one", "text of one")
        server.prompt("greet", "hello {name}")
        await client.list_tools()
        with assert_checkpoints():
            await COROUTINES[name](client)
        # And a place where a pending cancellation is felt.
        with trio.CancelScope() as scope:
            scope.cancel()
            await COROUTINES[name](client)
        assert scope.cancelled_caught


class CancelAtCheckpoint:
    """Cancels a scope at the k-th checkpoint of the task it instruments."""

    def __init__(self, k: int) -> None:
        self.left = k
        self.scope = trio.CancelScope()
        self.task = trio.lowlevel.current_task()

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if task is self.task and self.left > 0:
            self.left -= 1
            if self.left == 0:
                self.scope.cancel()


async def cancelled_at(k: int, operation: Callable[[], Awaitable[Any]]) -> bool:
    """Run an operation and cancel it at checkpoint k; return whether it was long enough to be."""
    instrument = CancelAtCheckpoint(k)
    trio.lowlevel.add_instrument(instrument)  # type: ignore[arg-type]
    try:
        with instrument.scope:
            await operation()
    finally:
        trio.lowlevel.remove_instrument(instrument)  # type: ignore[arg-type]
    return instrument.left == 0


@pytest.mark.parametrize("lost", [False, True], ids=["session stands", "session lost"])
@pytest.mark.parametrize("name", COROUTINES)
async def test_cancelled_at_every_checkpoint(name: str, lost: bool, autojump_clock: MockClock) -> None:
    async with open_server() as server:
        server.resource("memo://one", "text of one")
        server.prompt("greet", "hello {name}")
        leaks = Leaks(server)
        async with open_client(
            server.url, connect=server.connect, get_stream=False, backoff=STEADY
        ) as client:
            for k in range(1, 200):
                if lost:
                    server.lose_session()
                if not await cancelled_at(k, lambda: COROUTINES[name](client)):
                    break
                # Whatever was cut off, the client works on.
                assert await add(client) == "3"
            else:
                pytest.fail("it never completed")
            # The tools of the last session are listed again in the background.
            await wait_all_tasks_blocked()
            assert client.statistics().in_flight == 0
        await leaks.assert_none()


@pytest.mark.parametrize("up", [True, False], ids=["up", "down"])
async def test_opening_cancelled_at_every_checkpoint(up: bool, autojump_clock: MockClock) -> None:
    async with open_server() as server:
        if not up:
            server.down()
        leaks = Leaks(server)

        async def open_and_close() -> None:
            async with open_client(server.url, connect=server.connect, backoff=STEADY):
                pass

        for k in range(1, 200):
            try:
                cut = await cancelled_at(k, open_and_close)
            except GaveUp:
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


async def test_an_idle_client_holds_no_connection_but_its_stream(autojump_clock: MockClock) -> None:
    async with open_pair() as (server, client):
        for _ in range(2):
            assert await add(client) == "3"
            await trio.sleep(KEEPALIVE_EXPIRY + 1)
            assert server.open_connections == 1
        assert client.generation == 1
