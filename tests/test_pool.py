"""A pool: who shares a client, who waits for what, which client goes, and how it all ends."""

from __future__ import annotations

import contextvars
import inspect
import logging
import math
import queue
import traceback
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any, ClassVar, cast

import httpx
import mcp_types as types
import outcome
import pytest
import trio
from trio.testing import MockClock, assert_checkpoints, wait_all_tasks_blocked

from tests.kit import STEADY, Fragile, add, open_server
from tests.test_lifetime import Leaks, cancelled_at
from trio_mcp_resilient import (
    Client,
    ClientClosed,
    ClientEvent,
    ClientOpened,
    ClientOptions,
    Closing,
    GaveUp,
    HandshakeFailed,
    Pool,
    PoolEvent,
    PoolFull,
    SessionStarted,
    State,
    open_client,
    open_pool,
)
from trio_mcp_resilient._pool_client import Asked, PooledClient
from trio_mcp_resilient._pool_keys import Keyring
from trio_mcp_resilient._pool_lease import Lease, LeaseState
from trio_mcp_resilient.testing import ScriptedServer


@asynccontextmanager
async def open_pair(**options: Any) -> AsyncGenerator[tuple[ScriptedServer, Pool], None]:
    """A server, and a pool for it."""
    options.setdefault("backoff", STEADY)
    async with open_server() as server:
        async with open_pool(connect=server.connect, **options) as pool:
            yield server, pool


def user(name: str) -> dict[str, str]:
    """The headers of one user."""
    return {"authorization": f"Bearer token-of-{name}-0123456789"}


class Tasks:
    """Tasks that hold leases until they are told to end."""

    def __init__(self, nursery: trio.Nursery, server: ScriptedServer, pool: Pool) -> None:
        self._nursery, self._server, self._pool = nursery, server, pool
        self.got: list[str] = []
        """Who has been given a lease, in order."""
        self.errors: dict[str, Exception] = {}
        self.scopes: dict[str, trio.CancelScope] = {}
        self._ends: dict[str, trio.Event] = {}

    async def start(self, *names: str, **options: Any) -> None:
        """Let tasks ask, one after another."""
        for name in names:
            self.scopes[name], self._ends[name] = trio.CancelScope(), trio.Event()
            self._nursery.start_soon(self._hold, name, options)
            await wait_all_tasks_blocked()

    async def end(self, *names: str) -> None:
        """Let tasks give back."""
        for name in names:
            self._ends[name].set()
        await wait_all_tasks_blocked()

    async def _hold(self, name: str, options: dict[str, Any]) -> None:
        try:
            with self.scopes[name]:
                async with self._pool.client(self._server.url, headers=user(name[0]), **options):
                    self.got.append(name)
                    await self._ends[name].wait()
        except Exception as error:
            self.errors[name] = error


@asynccontextmanager
async def open_tasks(**options: Any) -> AsyncGenerator[tuple[ScriptedServer, Pool, Tasks], None]:
    """A server, a pool, and tasks whose user is the first letter of their name."""
    async with open_pair(**options) as (server, pool), trio.open_nursery() as nursery:
        yield server, pool, Tasks(nursery, server, pool)
        nursery.cancel_scope.cancel()


# -- whose client it is -----------------------------------------------------------------------


async def test_the_same_endpoint_and_identity_share_a_client(autojump_clock: MockClock) -> None:
    async with open_pair(headers={"x-tenant": "blue"}) as (server, pool):
        async with pool.client(server.url, headers={"A": "1", "b": "2"}) as first:
            async with pool.client("HTTP://scripted.TEST:80/mcp", headers={"B": "2 ", "a": "1"}) as second:
                assert first is second
                assert await add(second) == "3"
        async with pool.client(server.url, headers={"a": "1", "X-Tenant": "blue", "b": "2"}) as third:
            assert third is first
        assert server.handshakes == 1
        assert server.posts("initialize")[0].headers["x-tenant"] == "blue"


async def test_identities_never_share_a_session(autojump_clock: MockClock) -> None:
    async with open_pair() as (server, pool):
        first, second = httpx.BasicAuth("a", "1"), httpx.BasicAuth("a", "1")
        ways: list[dict[str, Any]] = [
            {},
            {"headers": user("a")},
            {"headers": user("b")},
            {"headers": {"ab": "c"}},
            {"headers": {"a": "bc"}},
            {"auth": first},
            {"auth": second},
            {"resend": "never"},
            {"get_stream": False},
        ]
        for _ in range(2):
            for way in ways:
                async with pool.client(server.url, **way) as client:
                    await add(client)
        async with pool.client(f"{server.url}?tenant=2") as client:
            await add(client)
        assert server.handshakes == len(ways) + 1
        used: dict[str | None, set[str | None]] = {}
        for seen in server.posts("tools/call"):
            used.setdefault(seen.session_id, set()).add(seen.headers.get("authorization"))
        assert all(len(identities) == 1 for identities in used.values())


async def test_equal_options_share_and_callbacks_count_by_what_they_are(autojump_clock: MockClock) -> None:
    class App:
        async def log(self, params: types.LoggingMessageNotificationParams) -> None: ...

    app = App()
    async with open_pair() as (server, pool):
        for _ in range(2):
            # A bound method is a new object each time, and so are the others.
            info = types.Implementation(name="app", version="1")
            async with pool.client(
                server.url, logging_callback=app.log, client_info=info, close_timeout=float("1.5")
            ):
                pass
        assert server.handshakes == 1
        async with pool.client(server.url, logging_callback=App().log, client_info=info, close_timeout=1.5):
            pass
        assert server.handshakes == 2


async def test_a_hook_names_the_identity(autojump_clock: MockClock) -> None:
    asked: list[tuple[str, dict[str, str], Any]] = []

    def tenant(url: str, headers: Any, auth: Any) -> str:
        asked.append((url, dict(headers), auth))
        return str(headers["x-tenant"])

    async with open_pair(key=tenant) as (server, pool):
        async with pool.client(server.url, headers={"X-Tenant": "blue", "authorization": "1"}) as first:
            async with pool.client(server.url, headers={"X-Tenant": "blue", "authorization": "2"}) as second:
                assert second is first
            async with pool.client(server.url, headers={"X-Tenant": "red"}) as third:
                assert third is not first
            async with pool.client(f"{server.url}?2", headers={"X-Tenant": "blue"}) as fourth:
                assert fourth is not first, "another endpoint is never the same client"
        assert asked[0] == (server.url, {"x-tenant": "blue", "authorization": "1"}, None)
        with pytest.raises(KeyError):
            async with pool.client(server.url):
                pass
        assert pool.statistics().leased == 0


async def test_no_secret_is_shown(autojump_clock: MockClock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    shown: list[str] = []

    async with open_pair(on_event=lambda event: shown.append(repr(event))) as (server, pool):
        secret = {"x-key": "hunter2", "authorization": "Bearer s3cr3t"}
        async with pool.client(f"{server.url}?token=qu3ry", headers=secret) as client:
            await add(client)
            shown += [repr(pool), repr(pool.statistics()), repr(client)]
            (slot,) = pool._keeper.slots.held
            shown += [repr(slot.key), repr(vars(slot.key)), str(slot.key.label), repr(slot._asked)]
        server.answer(401, b"no", when="initialize")
        # Tracebacks show source lines, so it is not written there.
        url, secret = f"{server.url}?token=qu3ry", {"x-key": "hunter3"}
        with pytest.raises(HandshakeFailed) as caught:
            async with pool.client(url, headers=secret):
                pass
        shown.append("".join(traceback.format_exception(caught.value)))
    text = "\n".join([*shown, caplog.text])
    for word in ("hunter2", "hunter3", "s3cr3t", "qu3ry"):
        assert word not in text
    assert "http://scripted.test/mcp #" in text


async def test_the_fingerprint_cannot_be_guessed_from_outside(autojump_clock: MockClock) -> None:
    labels: set[str] = set()
    for _ in range(2):
        async with open_pair(
            on_event=lambda event: labels.add(event.client)  # a label for each pool
        ) as (server, pool):
            async with pool.client(server.url, headers={"pin": "1234"}):
                pass
    assert len(labels) == 2


async def test_a_name_is_shown_instead(autojump_clock: MockClock) -> None:
    events: list[PoolEvent] = []
    async with open_pair(on_event=events.append) as (server, pool):
        async with pool.client(server.url, name="ada") as client:
            assert "ada" in repr(client)
        async with pool.client(server.url) as same:
            assert same is client
    assert {event.client for event in events} == {"ada"}


async def test_what_is_no_endpoint_is_refused_at_once(autojump_clock: MockClock) -> None:
    async with open_pair() as (_, pool):
        with pytest.raises(ValueError, match="absolute"):
            async with pool.client("ftp://scripted.test"):
                pass
        with pytest.raises(ValueError, match="absolute"):
            pool.invalidate_all("ftp://scripted.test")
        assert pool.statistics().requests == 0


# -- one connect for all ----------------------------------------------------------------------


async def test_concurrent_first_leases_share_one_connect(autojump_clock: MockClock) -> None:
    async with open_tasks() as (server, pool, tasks):
        held = server.hold("initialize")
        await tasks.start(*(f"a{number}" for number in range(20)))
        assert pool.statistics().connecting == 1
        assert pool.statistics().waiting == 0, "they wait for a connect, not for room"
        held.release()
        await wait_all_tasks_blocked()
        assert len(tasks.got) == 20
        assert server.handshakes == 1
        assert pool.statistics().leased == 20


async def test_a_failed_connect_reaches_all_and_the_next_lease_tries_afresh(
    autojump_clock: MockClock,
) -> None:
    async with open_tasks() as (server, pool, tasks):
        held = server.hold("initialize")
        server.answer(401, b"no", when="initialize")
        await tasks.start("a1", "a2", "a3")
        held.release()
        await wait_all_tasks_blocked()
        errors = list(tasks.errors.values())
        assert [type(error) for error in errors] == [HandshakeFailed] * 3
        assert len({id(error) for error in errors}) == 3
        assert len({id(error.__traceback__) for error in errors}) == 3
        assert len({len(traceback.extract_tb(error.__traceback__)) for error in errors}) == 1
        assert len({str(error) for error in errors}) == 1
        assert all(error.recovery is not None for error in errors)  # type: ignore[attr-defined]
        assert len(server.posts("initialize")) == 1
        assert pool.statistics().clients == 0
        await tasks.start("a4")
        assert tasks.got == ["a4"]


async def test_a_server_that_is_down_costs_all_of_them_one_budget(autojump_clock: MockClock) -> None:
    async with open_tasks() as (server, _, tasks):
        server.down()
        await tasks.start("a1", "a2")
        await trio.sleep(16)
        for error in tasks.errors.values():
            assert isinstance(error, GaveUp)
            assert isinstance(error.__cause__, ExceptionGroup), "what the attempts met"
        assert len(tasks.errors) == 2
        assert server.connects_refused == STEADY.attempts


async def test_an_argument_that_makes_no_sense_reaches_who_gave_it(autojump_clock: MockClock) -> None:
    async with open_pair() as (server, pool):
        with pytest.raises(ValueError, match="keepalive") as caught:
            async with pool.client(server.url, keepalive=-1):
                pass
        assert isinstance(caught.value.__cause__, ValueError), "where it was raised"
        async with pool.client(server.url) as client:
            await add(client)


async def test_a_waiter_that_leaves_does_not_cancel_the_connect(autojump_clock: MockClock) -> None:
    async with open_tasks() as (server, pool, tasks):
        held = server.hold("initialize")
        await tasks.start("a1", "a2")
        tasks.scopes["a1"].cancel()
        await wait_all_tasks_blocked()
        held.release()
        await wait_all_tasks_blocked()
        assert tasks.got == ["a2"]
        assert server.handshakes == 1
        assert pool.statistics().abandoned == 1


async def test_a_connect_that_all_have_left_goes_on_for_the_next(autojump_clock: MockClock) -> None:
    async with open_tasks() as (server, pool, tasks):
        held = server.hold("initialize")
        await tasks.start("a1")
        tasks.scopes["a1"].cancel()
        await wait_all_tasks_blocked()
        held.release()
        await wait_all_tasks_blocked()
        assert pool.statistics().idle == 1
        await tasks.start("a2")
        assert tasks.got == ["a2"]
        assert server.handshakes == 1


async def test_a_connect_that_all_have_left_makes_room(autojump_clock: MockClock) -> None:
    async with open_tasks(max_clients=1) as (server, pool, tasks):
        held = server.hold("initialize")
        await tasks.start("a1")
        tasks.scopes["a1"].cancel()
        await tasks.start("b1")
        assert tasks.got == ["b1"]
        assert pool.statistics().closing == 1
        # It has as long as a farewell for its handshake, and then ends the session it got.
        held.release()
        await wait_all_tasks_blocked()
        assert pool.statistics().closing == 0
        assert len(server.sessions) == 1
        assert len(server.deleted) == 1


async def test_a_connect_given_up_may_fail_as_well(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_tasks(max_clients=1) as (server, pool, tasks):
        held = server.hold("initialize")
        server.answer(401, b"no", when="initialize")
        await tasks.start("a1")
        tasks.scopes["a1"].cancel()
        await tasks.start("b1")
        with caplog.at_level(logging.INFO):
            held.release()
            await wait_all_tasks_blocked()
        assert "failed while it closed" in caplog.text
        assert pool.statistics().connect_failures == 0, "nobody wanted it"
        assert pool.statistics().closed[Closing.FAILED] == 0
        assert pool.statistics().closing == 0
        assert tasks.got == ["b1"]


async def test_a_connect_that_nobody_wants_does_not_last(autojump_clock: MockClock) -> None:
    async with open_tasks(max_idle=0) as (server, pool, tasks):
        server.go_silent(when="initialize")
        await tasks.start("a1")
        tasks.scopes["a1"].cancel()
        await wait_all_tasks_blocked()
        assert pool.statistics().closing == 1
        await trio.sleep(2)
        await wait_all_tasks_blocked()
        assert pool.statistics().closing == 0
        assert pool.statistics().connect_failures == 0


# -- room -------------------------------------------------------------------------------------


async def test_a_client_in_use_is_never_closed_for_another(autojump_clock: MockClock) -> None:
    async with open_tasks(max_clients=2) as (server, pool, tasks):
        await tasks.start("a1", "b1", "c1", "d1")
        assert tasks.got == ["a1", "b1"]
        assert pool.statistics().waiting == 2
        assert server.deleted == []
        await tasks.end("b1")
        assert tasks.got == ["a1", "b1", "c1"], "first come first served"
        await tasks.end("a1")
        assert tasks.got == ["a1", "b1", "c1", "d1"]
        assert len(server.sessions) == 2
        assert pool.statistics().closed[Closing.ROOM] == 2


async def test_the_client_that_was_idle_for_longest_goes_first(autojump_clock: MockClock) -> None:
    async with open_tasks(max_clients=3) as (server, _, tasks):
        await tasks.start("a1", "b1", "c1")
        await tasks.end("c1", "a1", "b1")
        await tasks.start("c2")
        await tasks.end("c2")
        await tasks.start("d1", "e1")
        handshakes = server.handshakes
        await tasks.start("c3")
        assert server.handshakes == handshakes, "c was used last"


async def test_who_waits_leaves_the_queue_when_cancelled(autojump_clock: MockClock) -> None:
    async with open_tasks(max_clients=1) as (_, pool, tasks):
        await tasks.start("a1", "b1", "c1")
        tasks.scopes["b1"].cancel()
        await tasks.end("a1")
        assert tasks.got == ["a1", "c1"]
        assert pool.statistics().waiting == 0


async def test_one_who_has_left_accepts_nothing(autojump_clock: MockClock) -> None:
    class Books:
        left_by: ClassVar[list[Lease]] = []

        def open(self, asked: Asked) -> PooledClient:
            raise NotImplementedError

        def given(self, lease: Lease, slot: PooledClient) -> None:
            raise NotImplementedError

        def left(self, lease: Lease) -> None:
            self.left_by.append(lease)

    key = Keyring(None).key("http://books.test", {}, None, name=None, options={})
    lease = Lease(Asked(key, "http://books.test", {}, None, {}), Books())
    with trio.CancelScope() as scope:
        scope.cancel()
        await lease.wait()
    assert Books.left_by == [lease]
    assert lease.state is LeaseState.LEFT
    assert not lease.offer(cast(PooledClient, None))
    lease.fail(OSError("too late"))
    assert (lease.state, lease.error) == (LeaseState.LEFT, None)


async def test_the_callers_own_deadline_ends_the_wait(autojump_clock: MockClock) -> None:
    async with open_tasks(max_clients=1) as (server, _, tasks):
        await tasks.start("a1")
        began = trio.current_time()
        with pytest.raises(trio.TooSlowError):
            with trio.fail_after(3):
                async with tasks._pool.client(server.url):
                    pytest.fail("there was no room")
        assert trio.current_time() == began + 3


async def test_a_task_cancelled_as_it_is_given_its_client_gives_it_back(autojump_clock: MockClock) -> None:
    async with open_tasks(max_clients=1) as (_, pool, tasks):
        await tasks.start("a1", "b1", "c1")
        # In one step, before b runs: room, a connect, and b is gone.
        tasks._ends["a1"].set()
        await wait_all_tasks_blocked()
        tasks.scopes["b1"].cancel()
        await wait_all_tasks_blocked()
        assert tasks.got == ["a1", "b1", "c1"]
        assert pool.statistics().leased == 1


async def test_all_who_wait_for_the_same_client_get_it_together(autojump_clock: MockClock) -> None:
    async with open_tasks(max_clients=1) as (server, _, tasks):
        await tasks.start("a1", "b1", "c1", "b2")
        await tasks.end("a1")
        assert sorted(tasks.got) == ["a1", "b1", "b2"]
        await tasks.end("b1")
        assert len(tasks.got) == 3
        await tasks.end("b2")
        assert tasks.got[3:] == ["c1"]
        assert server.handshakes == 3


async def test_sharing_needs_no_room(autojump_clock: MockClock) -> None:
    async with open_tasks(max_clients=1) as (_, pool, tasks):
        await tasks.start("a1", "b1", "a2")
        assert tasks.got == ["a1", "a2"]
        with pytest.raises(PoolFull, match="all 1 clients"):
            async with open_pool(max_clients=1, when_full="fail", connect=tasks._server.connect) as other:
                async with other.client(tasks._server.url):
                    async with other.client(tasks._server.url):
                        try:
                            async with other.client(tasks._server.url, headers=user("b")):
                                pytest.fail("there was no room")
                        finally:
                            assert other.statistics().refused == 1
                            assert other.statistics().waiting == 0
        assert pool.statistics().refused == 0


async def test_a_failed_connect_makes_room(autojump_clock: MockClock) -> None:
    async with open_tasks(max_clients=1) as (server, _, tasks):
        server.answer(401, b"no", when="initialize")
        await tasks.start("a1")
        await tasks.start("b1")
        assert isinstance(tasks.errors["a1"], HandshakeFailed)
        assert tasks.got == ["b1"]


@pytest.mark.parametrize("seconds", [0.2, math.inf])
async def test_nobody_waits_for_another_clients_goodbye(seconds: float, autojump_clock: MockClock) -> None:
    # What fails here closes under a lock, or gives the room away only when the close is over.
    async with open_tasks(max_clients=1, close_timeout=2.0) as (server, pool, tasks):
        if seconds == math.inf:
            server.go_silent(when="DELETE", times=math.inf)
        else:
            server.delay = lambda seen: seconds if seen.http_method == "DELETE" else 0.0
        await tasks.start("a1", "b1", "c1")
        began = trio.current_time()
        await tasks.end("a1")
        await tasks.end("b1")
        pool.invalidate(server.url, headers=user("c"))
        await tasks.start("d1")
        await tasks.end("c1")
        assert tasks.got == ["a1", "b1", "c1", "d1"]
        assert trio.current_time() == began, "somebody waited for a goodbye"
        assert pool.statistics().closing == 3
        assert pool.statistics().clients == 1
        await trio.sleep(min(seconds, 2.0))
        await wait_all_tasks_blocked()
        assert pool.statistics().closing == 0, "and each goodbye is bounded"


async def test_all_goodbyes_at_the_end_take_as_long_as_one(autojump_clock: MockClock) -> None:
    async with open_server() as server:
        server.go_silent(when="DELETE", times=math.inf)
        async with open_pool(connect=server.connect, close_timeout=2.0) as pool:
            for name in "abcdefgh":
                async with pool.client(server.url, headers=user(name)):
                    pass
            began = trio.current_time()
        assert trio.current_time() == pytest.approx(began + 2.0)


# -- calls without a lease --------------------------------------------------------------------


@pytest.mark.parametrize("wanted", ["room", "age", "idle", "surplus", "invalidated"])
async def test_a_call_in_flight_keeps_its_client(wanted: str, autojump_clock: MockClock) -> None:
    options: dict[str, dict[str, Any]] = {
        "room": {"max_clients": 1},
        "age": {"max_lifetime": 10.0},
        "idle": {"idle_timeout": 10.0},
        "surplus": {"max_idle": 0},
        "invalidated": {},
    }
    async with open_tasks(**options[wanted]) as (server, pool, tasks):
        results: list[Any] = []

        async def outlast(client: Client) -> None:
            results.append(await client.call_tool("slow", {"seconds": 100}))

        async with pool.client(server.url, headers=user("a")) as client:
            tasks._nursery.start_soon(outlast, client)
            await wait_all_tasks_blocked()
        if wanted == "room":
            await tasks.start("b1")
            assert tasks.got == []
        if wanted == "invalidated":
            pool.invalidate_all()
        await trio.sleep(99)
        assert server.deleted == []
        assert pool.statistics().in_use == 1
        await trio.sleep(2)
        assert len(results) == 1, "the call has had its answer"
        await trio.sleep(10)
        assert len(server.deleted) == 1
        assert pool.statistics().closed[Closing(wanted)] == 1
        assert tasks.got == (["b1"] if wanted == "room" else [])


async def test_an_idle_client_that_somebody_calls_is_not_idle(autojump_clock: MockClock) -> None:
    async with open_tasks(max_clients=1, idle_timeout=10.0) as (server, pool, tasks):
        async with pool.client(server.url, headers=user("a")) as client:
            pass
        await trio.sleep(5)
        tasks._nursery.start_soon(client.call_tool, "slow", {"seconds": 20})
        await wait_all_tasks_blocked()
        await tasks.start("b1")
        assert tasks.got == []
        await trio.sleep(19)
        assert client.state is State.READY
        await trio.sleep(2)
        assert tasks.got == ["b1"]
        assert client.state is State.CLOSED


# -- time -------------------------------------------------------------------------------------


async def test_an_idle_client_is_closed_after_its_time(autojump_clock: MockClock) -> None:
    events: list[tuple[float, Any]] = []

    def watch(event: PoolEvent) -> None:
        if isinstance(event, ClientClosed):
            events.append((trio.current_time(), event.reason))

    async with open_tasks(idle_timeout=60.0, on_event=watch) as (_, pool, tasks):
        began = trio.current_time()
        await tasks.start("a1", "b1")
        await trio.sleep(100)
        await tasks.end("a1")
        await trio.sleep(30)
        await tasks.end("b1")
        await trio.sleep(20)
        await tasks.start("a2")
        await tasks.end("a2")
        await trio.sleep(1000)
        assert events == [(began + 190, Closing.IDLE), (began + 210, Closing.IDLE)]
        assert pool.statistics().clients == 0


async def test_more_idle_clients_than_allowed_are_closed(autojump_clock: MockClock) -> None:
    async with open_tasks(max_idle=2) as (server, pool, tasks):
        await tasks.start("a1", "b1", "c1", "d1")
        assert pool.statistics().clients == 4
        await tasks.end("a1", "b1", "c1")
        assert pool.statistics().idle == 2
        assert pool.statistics().closed[Closing.SURPLUS] == 1
        assert len(server.deleted) == 1


async def test_an_idle_client_is_closed_at_the_end_of_its_life(autojump_clock: MockClock) -> None:
    closed: list[float] = []

    def watch(event: PoolEvent) -> None:
        if isinstance(event, ClientClosed):
            assert event.reason is Closing.AGE
            closed.append(trio.current_time())

    async with open_tasks(max_lifetime=1000.0, idle_timeout=math.inf, on_event=watch) as (_, _, tasks):
        began = trio.current_time()
        names = [f"{letter}1" for letter in "abcdefgh"]
        await tasks.start(*names)
        await tasks.end(*names)
        await trio.sleep(2000)
    assert all(began + 900 <= when <= began + 1000 for when in closed)
    assert len(set(closed)) == len(names), "not all at the same time"


async def test_an_old_client_in_use_is_replaced_and_closed_when_it_comes_back(
    autojump_clock: MockClock,
) -> None:
    async with open_tasks(max_lifetime=100.0, max_clients=2) as (server, pool, tasks):
        await tasks.start("a1")
        await trio.sleep(150)
        assert server.deleted == []
        await tasks.start("a2")
        assert tasks.got == ["a1", "a2"]
        assert server.handshakes == 2
        await tasks.end("a1")
        assert len(server.deleted) == 1
        assert pool.statistics().closed[Closing.AGE] == 1
        await tasks.start("a3")
        assert server.handshakes == 2


async def test_an_old_client_is_shared_on_if_it_cannot_be_replaced(autojump_clock: MockClock) -> None:
    # A task that holds a lease and asks for a second one would otherwise wait for itself.
    async with open_pair(max_lifetime=100.0, max_clients=1) as (server, pool):
        async with pool.client(server.url) as first:
            await trio.sleep(150)
            async with pool.client(server.url) as second:
                assert second is first
        async with pool.client(server.url) as third:
            assert third is not first


# -- throwing away ----------------------------------------------------------------------------


async def test_invalidate(autojump_clock: MockClock) -> None:
    async with open_tasks() as (server, pool, tasks):
        await tasks.start("a1", "b1")
        await tasks.end("b1")
        assert not pool.invalidate(server.url)
        assert not pool.invalidate(server.url, headers=user("b"), auth=httpx.BasicAuth("a", "b"))
        assert pool.invalidate(server.url, headers=user("b"))
        await wait_all_tasks_blocked()
        assert len(server.deleted) == 1
        assert pool.invalidate(server.url, headers=user("a"))
        assert not pool.invalidate(server.url, headers=user("a")), "there is no such client any more"
        await tasks.start("a2", "b2")
        assert server.handshakes == 4
        assert len(server.deleted) == 1, "the lease goes on"
        await tasks.end("a1")
        assert len(server.deleted) == 2
        assert pool.statistics().closed[Closing.INVALIDATED] == 2


async def test_invalidate_while_it_connects(autojump_clock: MockClock) -> None:
    async with open_tasks() as (server, pool, tasks):
        held = server.hold("initialize")
        await tasks.start("a1")
        assert pool.invalidate(server.url, headers=user("a"))
        await tasks.start("a2")
        held.release()
        await wait_all_tasks_blocked()
        assert sorted(tasks.got) == ["a1", "a2"]
        assert server.handshakes == 2
        await tasks.end("a1", "a2")
        assert pool.statistics().idle == 1


async def test_invalidate_all(autojump_clock: MockClock) -> None:
    async with open_tasks() as (server, pool, tasks):
        await tasks.start("a1", "b1")
        async with pool.client(f"{server.url}?2"):
            pass
        assert pool.invalidate_all(f"{server.url}?3") == 0
        assert pool.invalidate_all("http://SCRIPTED.test/mcp") == 2
        assert pool.invalidate_all() == 1
        assert pool.invalidate_all() == 0


# -- what it tells ----------------------------------------------------------------------------


async def test_statistics_are_one_table(autojump_clock: MockClock) -> None:
    async with open_tasks(max_clients=2) as (server, pool, tasks):
        server.delay = lambda seen: 1.0 if seen.rpc_method == "initialize" else 0.0
        await tasks.start("a1", "a2", "b1", "c1", "d1")
        connecting = pool.statistics()
        assert (connecting.clients, connecting.connecting, connecting.waiting) == (2, 2, 2)
        await trio.sleep(10)
        tasks.scopes["d1"].cancel()
        await tasks.end("b1")
        await trio.sleep(10)
        await tasks.end("a1", "a2")
        statistics = pool.statistics()
    assert statistics.max_clients == 2
    assert (statistics.clients, statistics.connecting, statistics.in_use, statistics.idle) == (2, 0, 1, 1)
    assert (statistics.closing, statistics.leased, statistics.waiting) == (0, 1, 0)
    assert (statistics.requests, statistics.leases, statistics.waited) == (5, 4, 5)
    assert (statistics.abandoned, statistics.refused) == (1, 0)
    # One second each for a1, a2 and b1; ten more for c1, which waited for room.
    assert statistics.wait_seconds == pytest.approx(3 + 11)
    assert statistics.lease_seconds == pytest.approx(9 + 19 + 19)
    assert (statistics.connects, statistics.connect_failures) == (3, 0)
    assert statistics.connect_seconds == pytest.approx(3)
    assert statistics.closed == {reason: (1 if reason is Closing.ROOM else 0) for reason in Closing}


async def test_events_carry_the_label(autojump_clock: MockClock) -> None:
    events: list[PoolEvent] = []

    def watch(event: PoolEvent) -> None:
        events.append(event)
        raise RuntimeError("the watcher's own")

    async with open_pair(on_event=watch) as (server, pool):
        server.delay = lambda seen: 0.5 if seen.rpc_method == "initialize" else 0.0
        async with pool.client(server.url, name="ada") as client:
            server.lose_session()
            await add(client)
        server.answer(401, b"no", when="initialize")
        with pytest.raises(HandshakeFailed):
            async with pool.client(server.url, name="bob", headers=user("b")):
                pass
    assert ClientOpened("ada", 0.5) in events
    started = [event.event for event in events if isinstance(event, ClientEvent)]
    assert [event.generation for event in started if isinstance(event, SessionStarted)] == [1, 2]
    failed, closed = (event for event in events if isinstance(event, ClientClosed))
    assert (failed.client, failed.reason) == ("bob", Closing.FAILED)
    assert "401" in failed.error
    assert closed == ClientClosed("ada", Closing.POOL_CLOSED)


async def test_repr_tells_how_it_is(autojump_clock: MockClock) -> None:
    async with open_pair(name="mine", max_clients=3) as (server, pool):
        async with pool.client(server.url):
            assert repr(pool) == "<Pool mine: 1 of 3 clients, 1 leased, 0 waiting>"
    assert repr(pool) == "<Pool mine: closed, 0 leased, 0 waiting>"


# -- the end ----------------------------------------------------------------------------------


async def test_no_session_is_left_at_the_server(autojump_clock: MockClock) -> None:
    async with open_server() as server:
        leaks = Leaks(server)
        async with open_pool(connect=server.connect) as pool:
            for name in "abcdefgh":
                async with pool.client(server.url, headers=user(name)) as client:
                    await add(client)
            assert len(server.sessions) == 8
        assert len(server.deleted) == 8
        await leaks.assert_none()
        with pytest.raises(trio.ClosedResourceError):
            await add(client)


async def test_leases_may_finish_and_are_then_cancelled(autojump_clock: MockClock) -> None:
    async with open_server() as server:
        leaks = Leaks(server)
        ended: dict[float, tuple[float, BaseException | None]] = {}

        async def work(pool: Pool, seconds: float) -> None:
            error: BaseException | None = None
            try:
                async with pool.client(server.url) as client:
                    await client.call_tool("slow", {"seconds": seconds})
            except trio.ClosedResourceError as caught:
                error = caught
            ended[seconds] = (trio.current_time() - began, error)

        async with trio.open_nursery() as nursery:
            async with open_pool(connect=server.connect, grace=10.0) as pool:
                for seconds in (5.0, 15.0):
                    nursery.start_soon(work, pool, seconds)
                await wait_all_tasks_blocked()
                began = trio.current_time()
        assert ended[5.0] == (pytest.approx(5), None)
        when, error = ended[15.0]
        assert when == pytest.approx(10)
        assert "the pool was closed" in str(error)
        assert len(server.cancelled) == 1, "the server was told"
        await leaks.assert_none()


async def test_who_waits_is_told_at_once(autojump_clock: MockClock) -> None:
    async with open_tasks(max_clients=2, grace=math.inf) as (server, pool, tasks):
        await tasks.start("a1")
        held = server.hold("initialize")
        await tasks.start("b1", "c1")
        tasks._nursery.start_soon(pool.aclose)
        await wait_all_tasks_blocked()
        for name in ("b1", "c1"):
            assert isinstance(tasks.errors[name], trio.ClosedResourceError)
        await tasks.start("d1")
        assert isinstance(tasks.errors["d1"], trio.ClosedResourceError)
        held.release()
        await tasks.end("a1")
        assert server.sessions == [], "also not that of the connect that was under way"
        await pool.aclose()


async def test_a_lease_that_will_not_end_is_not_waited_for(autojump_clock: MockClock) -> None:
    async with open_server() as server, trio.open_nursery() as nursery:

        async def cling(pool: Pool) -> None:
            with pytest.raises(trio.ClosedResourceError):
                async with pool.client(server.url) as client:
                    with trio.CancelScope(shield=True):
                        await trio.sleep(100)
                    await add(client)

        async with open_pool(connect=server.connect, grace=10.0) as pool:
            nursery.start_soon(cling, pool)
            await wait_all_tasks_blocked()
            began = trio.current_time()
        assert trio.current_time() == pytest.approx(began + 11)
        assert server.sessions == []
        assert pool.statistics().leased == 1
    assert pool.statistics().leased == 0


async def test_a_cancelled_aclose_closes_all_the_same(autojump_clock: MockClock) -> None:
    async with open_tasks(grace=100.0) as (server, pool, tasks):
        await tasks.start("a1", "b1")
        await tasks.end("b1")
        with trio.move_on_after(3) as scope:
            await pool.aclose()
        assert scope.cancelled_caught
        await wait_all_tasks_blocked()
        assert isinstance(tasks.errors["a1"], trio.ClosedResourceError)
        assert server.sessions == []
        # The block that holds the pool goes on.
        await trio.sleep(1)


async def test_what_the_block_raises_comes_out_and_nothing_is_waited_for(autojump_clock: MockClock) -> None:
    async with open_server() as server:
        leaks = Leaks(server)
        error = KeyError("mine")
        async with trio.open_nursery() as nursery:
            with pytest.raises(KeyError) as caught:
                async with open_pool(connect=server.connect) as pool:
                    tasks = Tasks(nursery, server, pool)
                    await tasks.start("a1", "b1")
                    await tasks.end("b1")
                    began = trio.current_time()
                    raise error
            assert caught.value is error
            assert trio.current_time() == began
            await wait_all_tasks_blocked()
            assert isinstance(tasks.errors["a1"], trio.ClosedResourceError)
        await leaks.assert_none()


async def test_what_a_lease_raises_comes_out_as_itself(autojump_clock: MockClock) -> None:
    async with open_pair() as (server, pool):
        error = KeyError("mine")
        with pytest.raises(KeyError) as caught:
            async with pool.client(server.url):
                raise error
        assert caught.value is error
        with pytest.RaisesGroup(ValueError):
            async with pool.client(server.url):
                async with trio.open_nursery():
                    raise ValueError("user")
        assert pool.statistics().leased == 0
        assert pool.statistics().idle == 1


async def test_a_cancelled_pool_leaves_nothing(autojump_clock: MockClock) -> None:
    async with open_server() as server:
        leaks = Leaks(server)
        with trio.move_on_after(5) as scope:
            async with open_pool(connect=server.connect) as pool:
                async with pool.client(server.url) as client:
                    await client.call_tool("slow", {"seconds": 10})
        assert scope.cancelled_caught
        # Until the tool has ended at the server.
        await trio.sleep(5)
        await leaks.assert_none()


def test_limits_that_make_no_sense() -> None:
    async def opened(**options: Any) -> None:
        async with open_pool(**options):
            pass

    for options in (
        {"max_clients": 0},
        {"max_clients": math.nan},
        {"max_idle": -1},
        {"idle_timeout": 0},
        {"max_lifetime": 0},
        {"when_full": "panic"},
        {"grace": -1},
    ):
        with pytest.raises(ValueError, match=next(iter(options))):
            trio.run(lambda options=options: opened(**options))


# -- a client that fails ----------------------------------------------------------------------


async def test_one_clients_failure_is_that_of_its_leases_only(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    streams: list[Fragile] = []
    events: list[PoolEvent] = []

    async with open_server() as server:

        async def connect(host: str, port: int) -> Fragile:
            streams.append(Fragile(await server.connect(host, port)))
            return streams[-1]

        async with open_pool(connect=connect, on_event=events.append) as pool, trio.open_nursery() as nursery:
            tasks = Tasks(nursery, server, pool)
            await tasks.start("a1")
            fragile = list(streams)
            await tasks.start("a2", "b1")
            for stream in fragile:
                stream.bug = KeyError("a bug")
            server.notify("notifications/tools/list_changed", session=server.sessions[0])
            await wait_all_tasks_blocked()
            first, second = tasks.errors["a1"], tasks.errors["a2"]
            assert first is not second
            for error in (first, second):
                assert repr(error) == "KeyError('a bug')"
                assert "receive_some" in str(traceback.extract_tb(error.__cause__.__traceback__))  # type: ignore[union-attr]
            assert pool.statistics().closed[Closing.FAILED] == 1
            assert pool.statistics().in_use == 1
            assert "KeyError: 'a bug'" in caplog.text
            assert "KeyError: 'a bug'" in [e.error for e in events if isinstance(e, ClientClosed)]
            await tasks.end("b1")
            assert "b1" not in tasks.errors
            await tasks.start("a3")
            assert tasks.got[-1] == "a3"
            assert pool.statistics().leased == 1
            nursery.cancel_scope.cancel()
        assert server.sessions == []


async def test_a_callback_that_raises_takes_nothing_down(autojump_clock: MockClock) -> None:
    async def handle(message: Any) -> None:
        raise RuntimeError("the application's own")

    async with open_pair(message_handler=handle) as (server, pool):
        async with pool.client(server.url) as client:
            await server.listening()
            server.notify("notifications/tools/list_changed")
            await wait_all_tasks_blocked()
            assert await add(client) == "3"
        assert pool.statistics().idle == 1


# -- what surrounds it ------------------------------------------------------------------------


async def test_a_client_does_not_run_in_the_context_of_who_asked_first(autojump_clock: MockClock) -> None:
    current_user: contextvars.ContextVar[str] = contextvars.ContextVar("current_user", default="nobody")
    seen: list[str] = []

    async def handle(message: Any) -> None:
        seen.append(current_user.get())

    async with open_pair(message_handler=handle) as (server, pool):
        current_user.set("ada")
        async with pool.client(server.url):
            await server.listening()
            server.notify("notifications/tools/list_changed")
            await wait_all_tasks_blocked()
    assert seen == ["nobody"]


async def test_entering_is_a_checkpoint_each_time(autojump_clock: MockClock) -> None:
    async with open_pair() as (server, pool), AsyncExitStack() as stack:
        for _ in range(2):
            with assert_checkpoints():
                await stack.enter_async_context(pool.client(server.url))
        with trio.CancelScope() as scope:
            scope.cancel()
            async with pool.client(server.url):
                pytest.fail("a pending cancellation was not felt")
        assert scope.cancelled_caught
        await stack.aclose()
        for _ in range(2):
            with assert_checkpoints():
                await pool.aclose()


@pytest.mark.parametrize("full", [False, True], ids=["room", "full"])
async def test_a_lease_cancelled_at_every_checkpoint(full: bool, autojump_clock: MockClock) -> None:
    async with open_server() as server:
        leaks = Leaks(server)
        async with open_pool(connect=server.connect, max_clients=1 if full else 10) as pool:

            async def lease_and_call(k: int) -> None:
                async with pool.client(server.url, headers=user(f"{k}")) as client:
                    await add(client)
                async with pool.client(server.url, headers=user(f"{k} again")) as client:
                    await client.ping()

            for k in range(1, 200):
                cut = await cancelled_at(k, partial(lease_and_call, k))
                assert pool.statistics().leased == 0
                async with pool.client(server.url) as client:
                    assert await add(client) == "3"
                assert pool.statistics().clients <= (1 if full else 10)
                if not cut:
                    break
            else:
                pytest.fail("it never completed")
        await leaks.assert_none()


def test_options_are_those_of_open_client() -> None:
    own = {"headers", "auth", "name", "on_event"}
    offered = set(inspect.signature(open_client).parameters) - {"url"} - own
    assert set(ClientOptions.__annotations__) == offered


def test_in_guest_mode() -> None:
    # The host is a loop of another kind; whatever it runs on, the pool is Trio's.
    calls: queue.Queue[Callable[[], Any]] = queue.Queue()
    done: list[outcome.Outcome[str]] = []

    async def main() -> str:
        async with open_pair() as (server, pool):
            async with pool.client(server.url) as client:
                return await add(client)

    trio.lowlevel.start_guest_run(main, run_sync_soon_threadsafe=calls.put, done_callback=done.append)
    while not done:
        calls.get(timeout=30)()
    assert done[0].unwrap() == "3"


async def test_a_thousand_clients(autojump_clock: MockClock) -> None:
    async with open_server() as server:
        leaks = Leaks(server)
        async with open_pool(
            connect=server.connect, mode="legacy", get_stream=False, max_clients=1000, idle_timeout=60.0
        ) as pool:

            async def work(number: int) -> None:
                async with pool.client(server.url, headers={"user": str(number)}) as client:
                    await client.ping()

            for _ in range(2):
                async with trio.open_nursery() as nursery:
                    for number in range(1000):
                        nursery.start_soon(work, number)
            assert server.handshakes == 1000
            assert len(server.sessions) == 1000
            by_user: dict[str, set[str | None]] = {}
            for seen in server.posts("ping"):
                by_user.setdefault(seen.headers["user"], set()).add(seen.session_id)
            assert len(by_user) == 1000
            assert all(len(sessions) == 1 for sessions in by_user.values())
            await trio.sleep(60)
            await wait_all_tasks_blocked()
            assert pool.statistics().closed[Closing.IDLE] == 1000
            assert server.sessions == []
        await leaks.assert_none()
