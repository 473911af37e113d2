"""What a call costs, held by counts that are the same on every machine.

Seconds are measured by `python -m tests.benchmarks`. Here a regression shows as what it is: an
additional task, turn of the scheduler, write, read or JSON pass for each call; more of our functions
on its way; memory kept after it. A call that costs much less than its budget fails as well: the
budget has become a loose one and is to be lowered, or the next regression would hide in it.
"""

from __future__ import annotations

import gc
import json
import logging
import math
import sys
import tracemalloc
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

import trio_mcp_resilient
from trio_mcp_resilient import Client, open_client
from trio_mcp_resilient._connections import KEEPALIVE_EXPIRY
from trio_mcp_resilient._pacing import BATCH

PACKAGE = str(Path(trio_mcp_resilient.__file__).parent)
CALLS = 20
REPEATS = 200
KEPT_BLOCKS = 100
"""Caches may still settle; if each repetition kept one block, there would be `REPEATS`."""
C_JSON = {"to_json", "from_json", "validate_json"}
"""Of pydantic-core, which is what the client and the SDK use."""
INLINED = {"<listcomp>", "<dictcomp>", "<setcomp>"}
"""Frames of their own up to Python 3.11 only (PEP 709)."""

RESULTS: dict[str, Any] = {
    "initialize": {
        "protocolVersion": "2025-11-25",
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "canned", "version": "1"},
    },
    "tools/list": {"tools": [{"name": "add", "inputSchema": {"type": "object"}}]},
    "tools/call": {"content": [{"type": "text", "text": "3"}], "isError": False},
}


class CannedServer:
    """Answers within the client's own write, so that nothing but the client takes turns or memory."""

    def __init__(self, *, sse: bool = False) -> None:
        self.sse = sse
        self.session = 0
        self.lost = False
        self.held: list[tuple[CannedStream, int]] | None = None
        """Calls kept unanswered, if they are to be."""
        self.connections = 0
        self.open: set[CannedStream] = set()
        self.counts: Counter[str] = Counter()
        """Writes and reads of all connections, and messages by method."""

    async def connect(self, host: str, port: int) -> CannedStream:
        await trio.lowlevel.checkpoint()
        self.connections += 1
        stream = CannedStream(self)
        self.open.add(stream)
        return stream

    def answer(self, request: bytes) -> tuple[bytes, int | None]:
        """Return the answer's bytes; or the id of a request that is held."""
        head, _, body = request.partition(b"\r\n\r\n")
        message: dict[str, Any] = json.loads(body) if body else {"method": head.split()[0].decode()}
        method, request_id = message["method"], message.get("id")
        self.counts[method] += 1
        extra = b""
        if method == "initialize":
            self.session, self.lost = self.session + 1, False
            extra = b"mcp-session-id: s%d\r\n" % self.session
        elif self.lost or b"mcp-session-id: s%d\r\n" % self.session not in head + b"\r\n":
            return whole(404, b""), None
        elif request_id is None:
            return whole(200 if method == "DELETE" else 202, b""), None
        elif method == "tools/call" and self.held is not None:
            return b"", request_id
        return self.result(method, request_id, extra), None

    def result(self, method: str, request_id: int | None, extra: bytes = b"") -> bytes:
        result = json.dumps({"jsonrpc": "2.0", "id": request_id, "result": RESULTS[method]}).encode()
        if not self.sse:
            return whole(200, result, extra)
        event = b"event: message\r\ndata: %b\r\n\r\n" % result
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n"
        return b"%b%b\r\n%x\r\n%b\r\n0\r\n\r\n" % (head, extra, len(event), event)

    def release(self) -> None:
        """Answer the held calls, and hold no more."""
        held, self.held = self.held or [], None
        for stream, request_id in held:
            stream.arrive(self.result("tools/call", request_id))


def whole(status: int, body: bytes, extra: bytes = b"") -> bytes:
    head = b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n" % (status, len(body))
    return b"%b%b\r\n%b" % (head, extra, body)


class CannedStream(trio.abc.Stream):
    """A connection to it. A request comes in one write, which is one of the things held here."""

    def __init__(self, server: CannedServer) -> None:
        self._server = server
        self._arrived = b""
        self._wake: trio.Event | None = None

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await trio.lowlevel.checkpoint()
        self._server.counts["writes"] += 1
        answer, held = self._server.answer(bytes(data))
        if held is not None and self._server.held is not None:
            self._server.held.append((self, held))
        self.arrive(answer)

    def arrive(self, data: bytes) -> None:
        self._arrived += data
        if self._wake is not None:
            self._wake.set()

    def is_readable(self) -> bool:
        return bool(self._arrived)

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        await trio.lowlevel.checkpoint()
        self._server.counts["reads"] += 1
        while not self._arrived:
            self._wake = trio.Event()
            await self._wake.wait()
        data, self._arrived = self._arrived, b""
        return data

    def close(self) -> None:
        self._server.open.discard(self)

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


@asynccontextmanager
async def open_warm(*, sse: bool = False) -> AsyncGenerator[tuple[CannedServer, Client], None]:
    """A client that has made its first calls: tools are listed, and what is made once is made."""
    server = CannedServer(sse=sse)
    async with open_client(
        "http://canned/mcp",
        connect=server.connect,
        get_stream=False,
        # Trio forgets the deadlines that did not come only when a thousand have gathered: without
        # any, what is kept is ours.
        read_timeout=math.inf,
        handshake_timeout=math.inf,
        drain_timeout=math.inf,
        recovery_timeout=math.inf,
    ) as client:
        await calls(client, CALLS)
        server.counts.clear()
        yield server, client


async def calls(client: Client, number: int = CALLS) -> None:
    for _ in range(number):
        await client.call_tool("add", {"a": 1, "b": 2})


async def at_once(client: Client, number: int) -> None:
    async with trio.open_nursery() as nursery:
        for _ in range(number):
            nursery.start_soon(calls, client, 1)


def per_call(total: int, number: int = CALLS) -> int:
    """Return the cost of one call, which is the same for each."""
    each, rest = divmod(total, number)
    assert rest == 0, f"{total} for {number} calls"
    return each


class Steps(trio.abc.Instrument):
    """Counts turns of the scheduler and new tasks."""

    def __init__(self) -> None:
        self.steps = 0
        self.spawned = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.steps += 1

    def task_spawned(self, task: trio.lowlevel.Task) -> None:
        self.spawned += 1


@contextmanager
def counted_steps() -> Iterator[Steps]:
    steps = Steps()
    trio.lowlevel.add_instrument(steps)
    try:
        yield steps
    finally:
        trio.lowlevel.remove_instrument(steps)


class Profile:
    """Counts the functions of ours that begin to run, and who else's turn JSON."""

    def __init__(self) -> None:
        self.ours: Counter[CodeType] = Counter()
        self.json: Counter[str] = Counter()
        # Held, so that a coroutine that goes on is known again, and none takes its place.
        self._seen: set[FrameType] = set()

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event == "c_call" and argument.__name__ in C_JSON:
            self.json[argument.__name__] += 1
        elif event == "call" and code in (json.loads.__code__, json.dumps.__code__):
            self.json[code.co_name] += 1
        elif event == "call" and code.co_filename.startswith(PACKAGE) and frame not in self._seen:
            self._seen.add(frame)
            self.ours[code] += code.co_name not in INLINED


async def profiled(work: Callable[[], Awaitable[None]]) -> Profile:
    """Run `work`, during which nothing else runs, and return what it called."""
    profile = Profile()
    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        await work()
    finally:
        sys.setprofile(before)
    return profile


@contextmanager
def allocations() -> Iterator[Callable[[], int]]:
    """Yield a function that tells how many bytes were allocated here and are kept."""

    def kept() -> int:
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    # Who measures coverage makes each frame larger.
    traced = sys.gettrace()
    sys.settrace(None)
    gc.collect()
    tracemalloc.start(1)
    try:
        yield kept
    finally:
        tracemalloc.stop()
        sys.settrace(traced)


@pytest.mark.parametrize("sse", [False, True], ids=["json", "sse"])
async def test_a_call_is_one_write_and_one_read_on_the_one_connection(sse: bool) -> None:
    async with open_warm(sse=sse) as (server, client):
        await calls(client)
        assert server.counts == {"writes": CALLS, "reads": CALLS, "tools/call": CALLS}
        assert server.connections == 1


@pytest.mark.parametrize("sse", [False, True], ids=["json", "sse"])
async def test_a_call_takes_no_task_of_its_own_and_two_turns_of_the_scheduler(sse: bool) -> None:
    async with open_warm(sse=sse) as (_, client):
        with counted_steps() as steps:
            await calls(client)
        assert steps.spawned == 0
        # One for the write and one for the read: those of the streams themselves.
        assert per_call(steps.steps) == 2


@pytest.mark.parametrize("sse", [False, True], ids=["json", "sse"])
async def test_a_message_is_encoded_once_and_decoded_once(sse: bool) -> None:
    async with open_warm(sse=sse) as (_, client):
        profile = await profiled(lambda: calls(client))
        passes = {name: per_call(count) for name, count in profile.json.items()}
        # The last two are the server's.
        assert passes == {"to_json": 1, "from_json": 1, "loads": 1, "dumps": 1}


@pytest.mark.parametrize(("sse", "budget"), [(False, 73), (True, 83)], ids=["json", "sse"])
async def test_a_call_runs_few_functions_of_ours(sse: bool, budget: int) -> None:
    async with open_warm(sse=sse) as (_, client):
        profile = await profiled(lambda: calls(client))
        functions = per_call(profile.ours.total())
        assert 0.75 * budget <= functions <= budget, [
            (count / CALLS, code.co_qualname) for code, count in profile.ours.most_common()
        ]


async def test_a_finished_call_leaves_nothing_behind() -> None:
    async with open_warm() as (_, client):
        await calls(client, REPEATS)
        gc.collect()
        before = sys.getallocatedblocks()
        await calls(client, REPEATS)
        gc.collect()
        assert sys.getallocatedblocks() - before < KEPT_BLOCKS


async def test_a_lost_session_leaves_nothing_behind(
    caplog: pytest.LogCaptureFixture, mock_clock: MockClock
) -> None:
    # Each loss is a warning, and pytest keeps what is logged.
    caplog.set_level(logging.CRITICAL, "trio_mcp_resilient")
    async with open_warm() as (server, client):

        async def lose(number: int) -> None:
            for _ in range(number):
                server.lost = True
                await calls(client, 1)
                await wait_all_tasks_blocked()
            # Trio keeps a deadline, also one that nobody has any more, until it comes: these are those
            # of idle connections.
            mock_clock.jump(KEEPALIVE_EXPIRY)
            await wait_all_tasks_blocked()

        await lose(50)
        gc.collect()
        before = sys.getallocatedblocks()
        await lose(REPEATS)
        gc.collect()
        assert server.session == 1 + 50 + REPEATS
        assert sys.getallocatedblocks() - before < KEPT_BLOCKS


async def test_an_idle_client_holds_little_and_no_connection(mock_clock: MockClock) -> None:
    number = 20
    async with AsyncExitStack() as stack:
        # What the first brings along is not the next one's.
        server, _ = await stack.enter_async_context(open_warm())
        with allocations() as bytes_kept:
            servers = [(await stack.enter_async_context(open_warm()))[0] for _ in range(number)]
            mock_clock.jump(KEEPALIVE_EXPIRY)
            await wait_all_tasks_blocked()
            held = bytes_kept()
        assert not any(each.open for each in (server, *servers))
    # Its tasks and nurseries, the SDK's session and its models, and what the test holds of each.
    assert held / number < 48 * 1024


async def test_a_call_in_flight_holds_little() -> None:
    number = 100
    async with open_warm() as (server, client):
        server.held = []
        async with trio.open_nursery() as nursery:
            with allocations() as bytes_kept:
                for _ in range(number):
                    nursery.start_soon(calls, client, 1)
                await wait_all_tasks_blocked()
                held = bytes_kept()
            assert len(server.held) == number
            server.release()
        # Its task, its frames, its scopes and its connection with h11's state. Python's versions
        # differ in the size of frames and objects.
        assert held / number < 15 * 1024


@pytest.mark.parametrize(("number", "refused"), [(1, 1), (10, 10), (100, BATCH)])
async def test_a_loss_costs_one_handshake_and_few_posts(number: int, refused: int) -> None:
    async with open_warm() as (server, client):
        server.lost = True
        with counted_steps() as steps:
            await at_once(client, number)
            await wait_all_tasks_blocked()
        counts = server.counts
        assert (counts["initialize"], counts["notifications/initialized"]) == (1, 1)
        # The others were held back until the first refusal was there, but perhaps for the next in turn.
        assert refused <= counts["tools/call"] - number <= min(refused + 1, number)
        # The tools are listed anew, since another server may have come up.
        assert counts["tools/list"] == 1
        assert counts["writes"] == counts["tools/call"] + 3
        # What begins is the session's, however many calls are rescued.
        assert steps.spawned - number <= 3
