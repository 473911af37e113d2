"""What the server sends of its own accord: who is told, in which order, and what it is answered."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

import mcp_types as types
import pytest
import trio
from mcp.client.session import ClientRequestContext
from mcp_types import INTERNAL_ERROR
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.kit import open_pair, text
from trio_mcp_resilient import State
from trio_mcp_resilient._inbound import Inbound
from trio_mcp_resilient._jsonrpc import Notification
from trio_mcp_resilient.testing import RpcError, ToolContext

CHANGED = "notifications/tools/list_changed"
ROOTS = types.ListRootsResult(roots=[])


async def test_a_request_that_the_server_takes_back_is_not_handled_to_its_end(
    autojump_clock: MockClock,
) -> None:
    begun, cancelled = trio.Event(), trio.Event()

    async def roots(context: ClientRequestContext) -> types.ListRootsResult:
        begun.set()
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            cancelled.set()
            raise
        return ROOTS

    async with open_pair(list_roots_callback=roots) as (server, _):
        session = await server.listening()
        session.standalone.send({"jsonrpc": "2.0", "id": "r1", "method": "roots/list"})
        await begun.wait()
        taken_back = {"requestId": "r1"}
        session.standalone.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": taken_back})
        await cancelled.wait()


async def test_a_handler_that_fails_is_answered_by_an_error(autojump_clock: MockClock) -> None:
    async def roots(context: ClientRequestContext) -> types.ListRootsResult:
        await trio.lowlevel.checkpoint()
        raise KeyError("a secret of the application")

    async with open_pair(list_roots_callback=roots) as (server, client):
        with trio.fail_after(60), pytest.raises(RpcError) as caught:
            await server.request("roots/list")
        assert caught.value.code == INTERNAL_ERROR
        assert "secret" not in str(caught.value)
        assert client.generation == 1


async def test_progress_of_a_call_is_told_before_its_result(autojump_clock: MockClock) -> None:
    """However long the application takes over it."""

    async def work(ctx: ToolContext) -> str:
        for step in range(3):
            ctx.progress(step, 3)
        await trio.lowlevel.checkpoint()
        return "done"

    said: list[float] = []

    async def report(progress: float, total: float | None, message: str | None) -> None:
        await trio.sleep(3 - progress)
        said.append(progress)

    async with open_pair(get_stream=False) as (server, client):
        server.tool("work", work)
        assert text(await client.call_tool("work", {}, progress_callback=report)) == "done"
        assert said == [0, 1, 2]


whose: ContextVar[str] = ContextVar("whose", default="nobody's")


class Told:
    """A session of the SDK's, as far as it is told of notifications."""

    def __init__(self, *, consumes: str = "", raises: str = "") -> None:
        self.inbound = Inbound(back=None)  # type: ignore[arg-type]
        self.methods: list[str] = []
        self.heard_as: list[str] = []
        self._consumes = consumes
        self._raises = raises

    async def _unasked(self, context: Any, method: str, params: Any) -> dict[str, Any]:
        raise NotImplementedError

    async def _notified(self, context: Any, method: str, params: Any) -> None:
        await trio.lowlevel.checkpoint()
        self.heard_as.append(whose.get())
        if method == self._raises:
            raise KeyError("no")
        self.methods.append(method)

    def _intercept(self, method: str, params: Any) -> bool:
        return method == self._consumes

    async def hear(self, *methods: str) -> list[str]:
        async with self.attached():
            for method in methods:
                self.inbound.notification(Notification(method))
            await wait_all_tasks_blocked()
        return self.methods

    @asynccontextmanager
    async def attached(self) -> AsyncGenerator[None, None]:
        async with trio.open_nursery() as nursery:
            self.inbound.attach(self._unasked, self._notified, self._intercept, nursery)
            try:
                yield
            finally:
                self.inbound.detach()
                nursery.cancel_scope.cancel()


async def test_notifications_are_told_in_their_order() -> None:
    assert await Told().hear("a", "b", CHANGED) == ["a", "b", CHANGED]


async def test_what_is_intercepted_is_told_to_nobody_else() -> None:
    assert await Told(consumes="b").hear("a", "b", CHANGED) == ["a", CHANGED]


async def test_a_handler_that_raises_costs_only_its_own() -> None:
    assert await Told(raises="b").hear("a", "b", CHANGED) == ["a", CHANGED]


async def test_handlers_run_as_work_of_whoever_opened_the_client() -> None:
    told = Told()

    async def call() -> None:
        whose.set("the call's")
        told.inbound.notification(Notification("a"))
        await trio.lowlevel.checkpoint()

    token = whose.set("the opener's")
    async with told.attached(), trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(call)
            await wait_all_tasks_blocked()
    whose.reset(token)
    assert told.heard_as == ["the opener's", "the opener's"]


async def test_what_comes_when_the_client_is_closed_is_dropped() -> None:
    told = Told()
    told.inbound.notification(Notification("before"))
    assert await told.hear("a") == ["a"]
    told.inbound.notification(Notification("after"))
    assert await told.hear() == ["a"]


async def test_a_request_does_not_overtake_the_notification_before_it(autojump_clock: MockClock) -> None:
    order: list[str] = []

    async def log(params: types.LoggingMessageNotificationParams) -> None:
        order.append("notification")
        await trio.lowlevel.checkpoint()

    async def roots(context: ClientRequestContext) -> types.ListRootsResult:
        order.append("request")
        await trio.lowlevel.checkpoint()
        return ROOTS

    for _ in range(10):
        # Of clients, since the first notification of each begins the task that hands them over.
        async with open_pair(logging_callback=log, list_roots_callback=roots) as (server, client):
            session = await server.listening()
            await wait_all_tasks_blocked()
            for number in range(3):
                server.notify("notifications/message", {"level": "info", "data": number}, session=session)
                assert session.standalone is not None
                session.standalone.send({"jsonrpc": "2.0", "id": f"r{number}", "method": "roots/list"})
                await wait_all_tasks_blocked()
            assert client.state is State.READY
    assert order == ["notification", "request"] * 30
