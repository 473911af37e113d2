"""A client is an ordinary Trio object: in any nursery, under any host, with the caller's context.

Programs on anyio are in `test_anyio.py`, and an event loop that is not Trio's as well.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import httpx
import mcp_types as types
import outcome
import pytest
import trio
from trio.testing import (
    MockClock,
    Sequencer,
    assert_checkpoints,
    assert_no_checkpoints,
    wait_all_tasks_blocked,
)

from tests.kit import STEADY, add, open_pair, open_server, told
from trio_mcp_resilient import Client, Event, OutcomeLost, OutcomeUnknown, Resent, open_client
from trio_mcp_resilient.testing import ScriptedServer, ToolContext

CALL = "tools/call"


# -- nurseries ---------------------------------------------------------------------------------------


async def keep_open(server: ScriptedServer, task_status: trio.TaskStatus[Client]) -> None:
    """A service of an application: it holds the client for as long as its nursery runs."""
    async with open_client(server.url, connect=server.connect, backoff=STEADY) as client:
        task_status.started(client)
        await trio.sleep_forever()


async def test_a_client_may_be_opened_by_one_task_and_used_by_all(autojump_clock: MockClock) -> None:
    async with open_server() as server, trio.open_nursery() as nursery:
        client: Client = await nursery.start(keep_open, server)
        server.lose_session()
        async with trio.open_nursery() as callers:
            for number in range(20):
                callers.start_soon(add, client, number)
        assert server.executed["add"] == 20
        assert server.handshakes == 2
        nursery.cancel_scope.cancel()


async def test_the_nursery_around_it_takes_it_down(autojump_clock: MockClock) -> None:
    async with open_server() as server:
        with pytest.RaisesGroup(pytest.RaisesExc(KeyError, match="the application's")):
            async with trio.open_nursery() as nursery:
                client: Client = await nursery.start(keep_open, server)
                await add(client)
                raise KeyError("the application's")
        with pytest.raises(trio.ClosedResourceError):
            await add(client)
        assert server.sessions == []
        await wait_all_tasks_blocked()
        assert server.open_connections == 0


async def test_a_nursery_inside_it_is_the_applications_own(autojump_clock: MockClock) -> None:
    async def fail() -> None:
        await trio.sleep(1)
        raise KeyError("the application's")

    with pytest.RaisesGroup(pytest.RaisesExc(KeyError, match="the application's")):
        async with open_pair() as (_, client), trio.open_nursery() as nursery:
            nursery.start_soon(client.call_tool, "slow", {"seconds": 1000})
            nursery.start_soon(fail)


async def test_a_call_obeys_the_scope_it_is_made_in(autojump_clock: MockClock) -> None:
    async with open_pair() as (server, client):
        with trio.move_on_after(1) as impatient:
            await client.call_tool("slow", {"seconds": 1000})
        assert impatient.cancelled_caught
        # The opener's scope bounds the client, not what others call on it.
        assert await add(client) == "3"
        assert server.handshakes == 1


async def test_threads_of_the_application_call_through_trio() -> None:
    async with open_pair(get_stream=False) as (server, client):
        server.lose_session()
        assert await trio.to_thread.run_sync(lambda: trio.from_thread.run(add, client)) == "3"
        assert client.generation == 2


def test_one_program_may_run_trio_more_than_once() -> None:
    async def main() -> str:
        async with open_pair("both") as (server, client):
            server.restart()
            return await add(client)

    for _ in range(2):
        assert trio.run(main, clock=MockClock(autojump_threshold=0)) == "3"


# -- guest mode --------------------------------------------------------------------------------------


def run_as_guest(main: Callable[[], Any]) -> Any:
    """Run as a guest of the smallest of host loops: a queue of functions to call."""
    calls: queue.Queue[Callable[[], object]] = queue.Queue()
    done: list[outcome.Outcome[Any]] = []
    trio.lowlevel.start_guest_run(main, run_sync_soon_threadsafe=calls.put, done_callback=done.append)
    while not done:
        calls.get(timeout=30)()
    return done[0].unwrap()


@pytest.mark.parametrize("tcp", [False, True])
def test_in_guest_mode(tcp: bool) -> None:
    async def main() -> list[str]:
        async with open_server() as server:
            url = f"http://127.0.0.1:{await server.serve_tcp()}/mcp" if tcp else server.url
            connect = None if tcp else server.connect
            async with open_client(url, connect=connect, mode="legacy", get_stream=False) as client:
                answers = [await add(client)]
                server.lose_session()
                answers.append(await add(client, 2, 3))
                server.cut("before-head", when=CALL)
                with pytest.raises(OutcomeUnknown):
                    await add(client)
                answers.append(await add(client, 3, 4))
            assert server.executed["add"] == 4
            assert server.handshakes == 2
            return answers

    assert run_as_guest(main) == ["3", "5", "7"]


def test_what_fails_in_guest_mode_fails_the_host() -> None:
    async def main() -> None:
        async with open_pair():
            raise KeyError("the application's")

    with pytest.raises(KeyError, match="the application's"):
        run_as_guest(main)


# -- trio.testing ------------------------------------------------------------------------------------


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_what_is_async_is_a_checkpoint_and_nothing_else_is(era: Any, autojump_clock: MockClock) -> None:
    async with open_pair(era) as (server, client):
        server.resource("memo://one", "text of one")
        server.prompt("greet", "hello {name}")
        for make in (
            client.wait_ready,
            client.ping,
            client.list_tools,
            client.list_resources,
            client.list_resource_templates,
            client.list_prompts,
            lambda: client.read_resource("memo://one"),
            lambda: client.get_prompt("greet", {"name": "Ada"}),
            lambda: client.complete(
                types.PromptReference(type="ref/prompt", name="greet"), {"name": "", "value": ""}
            ),
            lambda: client.call_tool("add", {"a": 1, "b": 2}),
        ):
            with assert_checkpoints():
                await make()
        with assert_no_checkpoints():
            client.statistics()
            client.invalidate()
            assert client.generation >= 1
            assert client.state is not None


async def test_tests_may_set_the_order_of_things(autojump_clock: MockClock) -> None:
    turns = Sequencer()
    async with open_pair(get_stream=False) as (server, client):

        async def rest() -> str:
            async with turns(0):
                return "rested"

        server.tool("rest", rest)

        async def call() -> None:
            await client.call_tool("rest")
            async with turns(2):
                assert client.generation == 2

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)
            async with turns(1):
                server.lose_session()
                await add(client)


# -- context variables -------------------------------------------------------------------------------

user: ContextVar[str] = ContextVar("user", default="nobody")


class Watching:
    """An instrument, a callback and an authentication that note whose context they are called in."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str]] = []
        self.events: list[tuple[Event, str]] = []
        self.progress: list[str] = []

    def event(self, event: Event, /) -> None:
        self.events.append((event, user.get()))

    @contextmanager
    def request(self, method: str, target: str | None, /) -> Generator[dict[str, object]]:
        self.requests.append((method, user.get()))
        yield {}

    async def on_progress(self, progress: float, total: float | None, message: str | None) -> None:
        await trio.lowlevel.checkpoint()
        self.progress.append(user.get())


class AsTheUser(httpx.Auth):
    """Authenticates each request as the user whose task makes it."""

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response]:
        request.headers["authorization"] = f"Bearer {user.get()}"
        yield request


async def test_what_is_called_for_a_call_sees_its_callers_context(autojump_clock: MockClock) -> None:
    watching = Watching()

    async def report(ctx: ToolContext) -> str:
        await trio.lowlevel.checkpoint()
        ctx.progress(1)
        return "reported"

    async with open_pair(get_stream=False, instruments=[watching], auth=AsTheUser()) as (server, client):
        server.tool("report", report)
        await client.list_tools()

        async def call_as(name: str) -> None:
            user.set(name)
            await client.call_tool("report", {}, progress_callback=watching.on_progress)

        server.lose_session()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call_as, "ada")
            nursery.start_soon(call_as, "grace")
        server.cut("before-head", when=CALL)
        with pytest.raises(OutcomeUnknown):
            await call_as("edsger")
    assert sorted(watching.progress) == ["ada", "grace"]
    assert sorted(name for method, name in watching.requests if method == CALL) == ["ada", "edsger", "grace"]
    # Both POSTs of a call that was sent again are its caller's, and so is what is told of it.
    sent = sorted(seen.headers["authorization"] for seen in server.posts(CALL))
    assert sent == ["Bearer ada"] * 2 + ["Bearer edsger"] + ["Bearer grace"] * 2
    named = [(type(event), name) for event, name in watching.events]
    assert sorted(name for kind, name in named if kind is Resent) == ["ada", "grace"]
    assert [name for kind, name in named if kind is OutcomeLost] == ["edsger"]
    assert len(told([event for event, _ in watching.events], Resent)) == 2


async def test_what_is_called_for_nobody_sees_the_openers_context(autojump_clock: MockClock) -> None:
    seen: list[str] = []

    async def on_log(params: types.LoggingMessageNotificationParams) -> None:
        await trio.lowlevel.checkpoint()
        seen.append(user.get())

    user.set("the opener")
    async with open_pair(logging_callback=on_log) as (server, client):
        await server.listening()
        user.set("somebody else")
        assert await add(client) == "3"
        server.notify("notifications/message", {"level": "info", "data": "hello"})
        await wait_all_tasks_blocked()
        # Nor does a recovery that somebody's call has started run as that somebody for ever.
        server.lose_session()
        await add(client)
        await server.listening()
        server.notify("notifications/message", {"level": "info", "data": "hello"})
        await wait_all_tasks_blocked()
    assert seen == ["the opener"] * 2
