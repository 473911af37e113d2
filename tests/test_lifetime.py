"""Beginnings and ends: nothing leaks, exceptions are the user's own, every coroutine is a checkpoint."""

from __future__ import annotations

import gc
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
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


REFERENCE = types.PromptReference(type="ref/prompt", name="greet")
ARGUMENTS: dict[str, Any] = {
    "uri": "memo://one",
    "ref": REFERENCE,
    "argument": {"name": "name", "value": "A"},
}
"""What to pass for a parameter that has no default."""
SPECIAL: dict[str, dict[str, Any]] = {
    "call_tool": {"name": "add", "arguments": {"a": 1, "b": 2}},
    "get_prompt": {"name": "greet", "arguments": {"name": "Ada"}},
    "listen": {"tools_list_changed": True},
}
"""What to pass to one method."""


def call_of(name: str) -> Callable[[Client], Awaitable[Any]]:
    """Make up a call of a public method, so that one that is added is swept as well."""
    method = getattr(Client, name)
    required = [
        parameter
        for parameter, of in inspect.signature(method).parameters.items()
        if of.default is of.empty and parameter != "self"
    ]
    passed = SPECIAL.get(name) or {parameter: ARGUMENTS[parameter] for parameter in required}

    async def enter_and_leave(client: Client) -> None:
        async with method(client, **passed):
            pass

    return enter_and_leave if name in CONTEXT_MANAGERS else lambda client: method(client, **passed)


PUBLIC = {
    name: method
    for name, method in vars(Client).items()
    if not name.startswith("_") and inspect.isfunction(method)
}
CONTEXT_MANAGERS = {
    name
    for name, method in PUBLIC.items()
    if "AsyncContextManager" in str(inspect.signature(method).return_annotation)
}
COROUTINES = {
    name: call_of(name)
    for name, method in PUBLIC.items()
    if inspect.iscoroutinefunction(method) or name in CONTEXT_MANAGERS
}


WAIT_FOR_NOTHING = {"events"}
"""Those that only begin to take down what happens."""


def test_every_public_coroutine_is_found() -> None:
    assert {"call_tool", "list_tools", "get_prompt", "complete", "ping", "wait_ready"} < set(COROUTINES)
    assert sorted(CONTEXT_MANAGERS) == ["events", "listen"]


@asynccontextmanager
async def furnished(name: str) -> AsyncGenerator[ScriptedServer, None]:
    """A server that can do all that the client can ask for; one of sessions, if it may be either."""
    async with open_server() as server:
        server.era = "modern" if name == "listen" else "legacy"
        server.resource("memo://one", "text of one")
        server.prompt("greet", "hello {name}")
        yield server


@pytest.mark.parametrize("name", [name for name in COROUTINES if name not in WAIT_FOR_NOTHING])
async def test_every_public_coroutine_is_a_checkpoint(name: str, autojump_clock: MockClock) -> None:
    async with furnished(name) as server, open_client(server.url, connect=server.connect) as client:
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


def lost(server: ScriptedServer, client: Client) -> None:
    """The session is gone, and the call will be who finds it."""
    server.lose_session()


def recovering(server: ScriptedServer, client: Client) -> None:
    """There is no session, and the next one is on its way."""
    client.invalidate()


def resuming(server: ScriptedServer, client: Client) -> None:
    """The answer's stream breaks, and the rest has to be asked for."""
    server.cut(
        "mid-body", how="fin", when=lambda seen: seen.http_method == "POST" and seen.rpc_id is not None
    )


SITUATIONS = {
    "ready": lambda server, client: None,
    "lost": lost,
    "recovering": recovering,
    "resuming": resuming,
}
SWEPT = [
    (name, situation)
    for name in COROUTINES
    for situation in SITUATIONS
    # Without sessions there is none to lose, and nothing is resumed.
    if name not in CONTEXT_MANAGERS or situation in ("ready", "recovering")
]


@pytest.mark.parametrize(("name", "situation"), SWEPT)
async def test_cancelled_at_every_checkpoint(name: str, situation: str, autojump_clock: MockClock) -> None:
    async with furnished(name) as server:
        server.resumable, server.retry = situation == "resuming", 100
        leaks = Leaks(server)
        async with open_client(
            server.url, connect=server.connect, get_stream=False, backoff=STEADY
        ) as client:
            for k in range(1, 300):
                SITUATIONS[situation](server, client)
                was_cut = await cancelled_at(k, lambda: COROUTINES[name](client))
                server.forget_script()
                if not was_cut:
                    break
                # Whatever was cut off, the client works on.
                assert await add(client) == "3"
            else:
                pytest.fail("it never completed")
            resumed = server.seen("GET")
            assert bool(resumed) is (situation == "resuming" and name != "wait_ready")
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
