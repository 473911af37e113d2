"""One exchange on one connection: framing, limits, and how far a failed one got."""

from __future__ import annotations

import math
import traceback
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from tests.http_peer import (
    ANSWER,
    ENDPOINT,
    EVENT_CHUNK,
    JSON,
    LAST_CHUNK,
    STREAM_HEAD,
    FarEnd,
    Handler,
    Pair,
    Peer,
    answering,
    read_all,
    socket_pair,
    tolerant,
)
from trio_mcp_resilient._connections import Connections
from trio_mcp_resilient._dial import Connect
from trio_mcp_resilient._endpoint import Endpoint
from trio_mcp_resilient._http11 import SLICE_BYTES
from trio_mcp_resilient._http_errors import Malformed, TimedOut
from trio_mcp_resilient._http_messages import MAX_HEADS, RequestHeads, new_request
from trio_mcp_resilient._scripted_stream import memory_connection
from trio_mcp_resilient._wire import Stage, WireError


@dataclass(frozen=True)
class Case:
    """An answer, and what it must be read as."""

    answer: bytes
    body: bytes
    method: str = "POST"
    status: int = 200
    reusable: bool = True
    then_close: bool = False


CASES = {
    "a length": Case(ANSWER, JSON),
    "no body": Case(b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n", b"", status=202),
    "no content": Case(b"HTTP/1.1 204 No Content\r\n\r\n", b"", status=204),
    "not modified": Case(b"HTTP/1.1 304 Not Modified\r\ncontent-length: 9\r\n\r\n", b"", status=304),
    "to HEAD": Case(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n", b"", method="HEAD"),
    "chunks": Case(STREAM_HEAD + b"3\r\nabc\r\n2\r\nde\r\n" + LAST_CHUNK, b"abcde"),
    "chunks with extensions": Case(STREAM_HEAD + b"3;a=b\r\nabc\r\n0;c\r\n\r\n", b"abc"),
    "trailers": Case(STREAM_HEAD + b"3\r\nabc\r\n0\r\nx-sum: 1\r\nx-more: 2\r\n\r\n", b"abc"),
    "interim answers": Case(
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + ANSWER, JSON
    ),
    "bare line feeds": Case(b"HTTP/1.1 200 OK\ncontent-length: 2\n\nhi", b"hi"),
    "told to close": Case(
        b"HTTP/1.1 200 OK\r\nConnection: Close\r\ncontent-length: 2\r\n\r\nhi", b"hi", reusable=False
    ),
    "until the end": Case(b"HTTP/1.1 200 OK\r\n\r\nhi", b"hi", reusable=False, then_close=True),
    "HTTP/1.0": Case(b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nhi", b"hi", reusable=False),
}


@pytest.mark.parametrize("size", [65536, 1], ids=["whole", "byte by byte"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
async def test_reads_each_framing(case: Case, size: int, autojump_clock: trio.testing.MockClock) -> None:
    async with trio.open_nursery() as nursery:
        peer = Peer(nursery, answering(case.answer, size=size, then_close=case.then_close))
        connections = Connections(connect=peer.connect)
        for _ in range(2):
            response = await connections.request(ENDPOINT, case.method, [])
            assert response.status == case.status
            assert await read_all(response) == case.body
        assert connections.statistics().opened == (1 if case.reusable else 2)
        connections.close()


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
async def test_trusts_no_connection_that_says_more_than_it_was_asked(
    case: Case, autojump_clock: trio.testing.MockClock
) -> None:
    # The junk could be the beginning of an answer to a request we never made.
    async with trio.open_nursery() as nursery:
        peer = Peer(nursery, answering(case.answer + b"HTTP/1.1 200 OK\r\n", then_close=case.then_close))
        connections = Connections(connect=peer.connect)
        for _ in range(2):
            response = await connections.request(ENDPOINT, case.method, [])
            body = await read_all(response)
            assert body == case.body + (b"HTTP/1.1 200 OK\r\n" if case.then_close else b"")
        assert connections.statistics().opened == 2
        connections.close()


def cut_after(length: int, answer: bytes) -> Stage | None:
    """The stage at which a request fails whose answer is cut after `length` bytes."""

    async def main() -> Stage | None:
        async with trio.open_nursery() as nursery:
            peer = Peer(nursery, answering(answer[:length], then_close=True))
            connections = Connections(connect=peer.connect)
            try:
                await read_all(await connections.request(ENDPOINT, "POST", [], b"{}"))
            except WireError as error:
                return error.stage
            finally:
                assert connections.statistics().busy == 0
                connections.close()
        return None

    return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.mark.parametrize("answer", [ANSWER, STREAM_HEAD + EVENT_CHUNK + LAST_CHUNK], ids=["length", "chunks"])
def test_an_answer_cut_anywhere_had_begun(answer: bytes) -> None:
    assert cut_after(0, answer) is Stage.WRITTEN
    assert {cut_after(length, answer) for length in range(1, len(answer))} == {Stage.ANSWERING}
    assert cut_after(len(answer), answer) is None


async def resetting(end: FarEnd) -> None:
    await end.request()
    end.stream.reset()  # type: ignore[attr-defined]


async def test_a_reset_after_the_request_leaves_it_unknown() -> None:
    async with trio.open_nursery() as nursery:
        connections = Connections(connect=Peer(nursery, resetting).connect)
        with pytest.raises(WireError) as caught:
            await connections.request(ENDPOINT, "POST", [], b"{}")
        assert caught.value.stage is Stage.WRITTEN
        assert isinstance(caught.value.__cause__, trio.BrokenResourceError)


SECRET = b"0123456789abcdef"
MALFORMED = {
    "another protocol": b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
    "TLS": b"\x15\x03\x01\x00\x02\x02\x16",
    "a header line that is none": b"HTTP/1.1 200 OK\r\nmcp-session-id " + SECRET + b"\r\n\r\n",
    "two lengths": b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
    "an unknown coding": b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\n",
    "switching unasked": b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
    "a head without end": b"HTTP/1.1 200 OK\r\n" + b"x-padding: 12345678\r\n" * 10_000,
    "a line without end": b"HTTP/1.1 200 OK\r\nx: " + b"y" * 200_000,
    "interim answers without end": b"HTTP/1.1 102 Processing\r\n\r\n" * 101 + ANSWER,
    "a chunk size that is none": STREAM_HEAD + b"xyz\r\n",
    "a chunk longer than it says": STREAM_HEAD + b"1\r\nab\r\n",
    "a chunk extension without end": STREAM_HEAD + b"1;" + b"x" * 200_000,
    "trailers without end": STREAM_HEAD + b"0\r\n" + b"x-padding: 12345678\r\n" * 10_000,
}


@pytest.mark.parametrize("answer", MALFORMED.values(), ids=MALFORMED.keys())
async def test_refuses_what_is_not_http(answer: bytes, autojump_clock: trio.testing.MockClock) -> None:
    async with trio.open_nursery() as nursery:
        # The connection stays open: what is wrong must show before its end does.
        peer = Peer(nursery, tolerant(answering(answer)))
        connections = Connections(connect=peer.connect)
        with pytest.raises(Malformed) as caught:
            await read_all(await connections.request(ENDPOINT, "POST", [], b"{}"))
        assert caught.value.stage is Stage.ANSWERING
        # The parser quotes the line it cannot read; a session id may be in it.
        assert SECRET.decode() not in "".join(traceback.format_exception(caught.value))
        assert caught.value.__context__ is None
        assert connections.statistics().idle == connections.statistics().busy == 0


async def test_gives_what_came_before_the_malformed_part() -> None:
    async with trio.open_nursery() as nursery:
        peer = Peer(nursery, answering(STREAM_HEAD + EVENT_CHUNK + b"xyz\r\n", then_close=True))
        response = await Connections(connect=peer.connect).request(ENDPOINT, "POST", [], b"{}")
        assert JSON in await response.receive()
        for _ in range(2):
            with pytest.raises(Malformed):
                await response.receive()


async def test_giving_back_what_is_malformed_closes() -> None:
    async with trio.open_nursery() as nursery:
        connections = Connections(connect=Peer(nursery, answering(STREAM_HEAD + b"xyz\r\n")).connect)
        response = await connections.request(ENDPOINT, "POST", [], b"{}")
        await response.aclose()
        held = connections.statistics()
        assert (held.busy, held.idle, held.ending) == (0, 0, 0)


# Requests.


@pytest.mark.parametrize(
    "field",
    [
        (b"mcp-session-id", SECRET + b"\r\nx: y"),
        (b"mcp-session-id", SECRET + b"\n"),
        (b"mcp-session-id", SECRET + b"\0"),
        (b"bad name", SECRET),
        (b"bad:name", SECRET),
        (b"", SECRET),
        (b"content-length", b"7"),
        (b"transfer-encoding", SECRET),
    ],
)
async def test_refuses_a_header_that_could_smuggle_before_anything_is_sent(
    field: tuple[bytes, bytes],
) -> None:
    async with trio.open_nursery() as nursery:
        peer = Peer(nursery, answering(ANSWER))
        with pytest.raises(ValueError) as caught:  # noqa: PT011 - the message is checked below
            await Connections(connect=peer.connect).request(ENDPOINT, "POST", [(b"a", b"b"), field], b"{}")
        assert SECRET.decode() not in "".join(traceback.format_exception(caught.value))
        assert peer.hosts == []


@pytest.mark.parametrize("method", ["CONNECT", "PO ST", "", "POST\r\n"])
def test_refuses_a_method_that_is_none(method: str) -> None:
    with pytest.raises(ValueError, match=r"CONNECT|method"):
        new_request(method, ENDPOINT, [], b"")


def test_adds_the_fields_that_http_needs_and_no_others() -> None:
    def fields(method: str, given: list[tuple[bytes, bytes]], body: object) -> list[tuple[bytes, bytes]]:
        return list(new_request(method, ENDPOINT, given, body).headers)  # type: ignore[arg-type]

    host = (b"host", b"peer.example")
    assert fields("POST", [(b"a", b"b")], b"{}") == [host, (b"a", b"b"), (b"content-length", b"2")]
    assert fields("POST", [], b"") == [host, (b"content-length", b"0")]
    assert fields("GET", [], b"") == [host]
    assert fields("DELETE", [], b"") == [host]
    assert fields("POST", [], iter_parts(b"")) == [host, (b"transfer-encoding", b"chunked")]
    own = [(b"host", b"other.example"), (b"content-length", b"2")]
    assert fields("POST", own, b"{}") == own


async def iter_parts(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        await trio.lowlevel.checkpoint()
        yield part


async def test_head_and_body_leave_in_one_piece() -> None:
    # A peer with delayed acknowledgements would make two small writes cost its 40 ms.
    sent: list[bytes] = []

    class Recorded(trio.abc.HalfCloseableStream):
        def __init__(self, stream: trio.abc.Stream) -> None:
            self.receive_some = stream.receive_some  # type: ignore[method-assign]
            self.stream = stream
            self.close = stream.close  # type: ignore[attr-defined]

        async def send_all(self, data: bytes | bytearray | memoryview) -> None:
            sent.append(bytes(data))
            await self.stream.send_all(data)

        async def wait_send_all_might_not_block(self) -> None: ...
        async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray: ...  # type: ignore[empty-body]
        async def send_eof(self) -> None: ...
        async def aclose(self) -> None: ...

    async with trio.open_nursery() as nursery:
        peer = Peer(nursery, answering(ANSWER))

        async def connect(host: str, port: int) -> trio.abc.Stream:
            return Recorded(await peer.connect(host, port))

        connections = Connections(connect=connect)
        await read_all(await connections.request(ENDPOINT, "POST", [], b"{}"))
        assert sent == [b"POST /mcp HTTP/1.1\r\nhost: peer.example\r\ncontent-length: 2\r\n\r\n{}"]
        connections.close()


@pytest.mark.parametrize("headers", [[], [(b"content-length", b"200000")]], ids=["chunked", "length"])
async def test_writes_a_body_as_its_parts_come(headers: list[tuple[bytes, bytes]]) -> None:
    body = bytes(range(256)) * 781 + b"x" * 64
    async with trio.open_nursery() as nursery:
        peer = Peer(nursery, answering(ANSWER))
        connections = Connections(connect=peer.connect)
        parts = iter_parts(body[:1], b"", body[1:7], body[7:])
        assert await read_all(await connections.request(ENDPOINT, "POST", headers, parts)) == JSON
        assert await read_all(await connections.request(ENDPOINT, "POST", [], body)) == JSON
        assert peer.bodies == [body, body]
        assert len(peer.ends) == 1
        connections.close()


@pytest.mark.parametrize("parts", [(b"a",), (b"abcd",)], ids=["too short", "too long"])
async def test_a_body_that_belies_its_length_ends_the_connection(parts: tuple[bytes, ...]) -> None:
    async with trio.open_nursery() as nursery:
        peer = Peer(nursery, tolerant(answering(ANSWER)))
        connections = Connections(connect=peer.connect)
        with pytest.raises(ValueError, match="content-length"):
            await connections.request(ENDPOINT, "POST", [(b"content-length", b"3")], iter_parts(*parts))
        assert connections.statistics().busy == connections.statistics().idle == 0
    assert peer.bodies == []


# Answers that come early.

REFUSAL = b"HTTP/1.1 413 Content Too Large\r\nconnection: close\r\ncontent-length: 4\r\n\r\nbig!"


async def refusing(end: FarEnd) -> None:
    await end.stream.receive_some(1)
    await end.send(REFUSAL)
    await end.finish()


@pytest.mark.parametrize("sockets", [False, True])
@pytest.mark.parametrize("parts", [False, True])
async def test_returns_an_answer_that_came_before_the_request_was_whole(sockets: bool, parts: bool) -> None:
    body = b"x" * 4_000_000
    async with trio.open_nursery() as nursery:
        peer = Peer(nursery, refusing)
        if sockets:
            peer.pair = socket_pair
        connections = Connections(connect=peer.connect)
        response = await connections.request(ENDPOINT, "POST", [], iter_parts(body) if parts else body)
        assert response.status == 413
        assert await read_all(response) == b"big!"
        assert connections.statistics().idle == 0
        connections.close()


async def test_a_cut_answer_to_half_a_request_is_a_cut_answer() -> None:
    """Whoever begins to answer is at it; that half of a request cannot run is then no longer certain."""

    async def begin_to_answer(end: FarEnd) -> None:
        await end.send(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf")
        await end.finish()

    async with trio.open_nursery() as nursery:
        connections = Connections(connect=settling(Peer(nursery, begin_to_answer)))
        response = await connections.request(ENDPOINT, "POST", [], b"x" * 4_000_000)
        with pytest.raises(WireError) as caught:
            await read_all(response)
        assert caught.value.stage is Stage.ANSWERING


def settling(peer: Peer) -> Connect:
    """Connect, and let the peer do all it does without being asked."""

    async def connect(host: str, port: int) -> trio.abc.Stream:
        stream = await peer.connect(host, port)
        await trio.testing.wait_all_tasks_blocked()
        return stream

    return connect


async def test_stops_writing_when_the_answer_is_here() -> None:
    got = 0

    async def refuse_and_listen(end: FarEnd) -> None:
        nonlocal got
        await end.send(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
        while data := await end.stream.receive_some(65536):
            got += len(data)

    async with trio.open_nursery() as nursery:
        connections = Connections(connect=settling(Peer(nursery, refuse_and_listen)))
        response = await connections.request(ENDPOINT, "POST", [], b"x" * 4_000_000)
        assert response.status == 404
        await response.aclose()
        # Half a request was left on it.
        assert connections.statistics().idle == 0
    assert got == SLICE_BYTES


async def test_finds_the_answer_of_a_peer_that_no_longer_reads(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def refuse_and_wait(end: FarEnd) -> None:
        await end.send(REFUSAL)
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        peer = Peer(nursery, refuse_and_wait)
        # A body that fits into one slice, and a pipe that takes none of it.
        peer.pair = stuck_pair
        connections = Connections(connect=peer.connect)
        response = await connections.request(ENDPOINT, "POST", [], b"{}", write_timeout=3)
        assert response.status == 413
        assert trio.current_time() == pytest.approx(3)
        connections.close()
        nursery.cancel_scope.cancel()


def stuck_pair() -> tuple[trio.abc.Stream, trio.abc.Stream]:
    """A connection that takes nothing from its near end."""
    near, far = trio.testing.memory_stream_pair()
    near.send_stream.send_all_hook = trio.sleep_forever
    return near, far


# Stages of what fails otherwise.


async def test_a_request_whose_write_fails_was_not_accepted_whole() -> None:
    async def closing(end: FarEnd) -> None:
        await end.finish()

    async with trio.open_nursery() as nursery:
        peer = Peer(nursery, closing)
        with pytest.raises(WireError) as caught:
            await Connections(connect=settling(peer)).request(ENDPOINT, "POST", [], b"{}")
        assert caught.value.stage is Stage.PARTLY_WRITTEN
        assert peer.bodies == []


async def silent(end: FarEnd) -> None:
    await trio.sleep_forever()


async def stopping_in_the_body(end: FarEnd) -> None:
    await end.request()
    await end.send(STREAM_HEAD + EVENT_CHUNK)
    await trio.sleep_forever()


@pytest.mark.parametrize(
    ("handler", "stuck", "stage"),
    [
        (silent, True, Stage.PARTLY_WRITTEN),
        (silent, False, Stage.WRITTEN),
        (stopping_in_the_body, False, Stage.ANSWERING),
    ],
    ids=["writing", "waiting", "reading"],
)
async def test_a_timeout_tells_the_stage(
    handler: Handler, stuck: bool, stage: Stage, autojump_clock: trio.testing.MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        peer = Peer(nursery, handler)
        if stuck:
            peer.pair = stuck_pair
        connections = Connections(connect=peer.connect)
        with pytest.raises(TimedOut) as caught:
            await read_all(
                await connections.request(ENDPOINT, "POST", [], b"{}", read_timeout=7, write_timeout=5)
            )
        assert caught.value.stage is stage
        assert trio.current_time() == pytest.approx(5 if stuck else 7, abs=0.01)
        assert connections.statistics().busy == 0
        nursery.cancel_scope.cancel()


async def test_a_timeout_counts_from_the_last_byte(autojump_clock: trio.testing.MockClock) -> None:
    async def slow(end: FarEnd) -> None:
        await end.request()
        for byte in ANSWER:
            await trio.sleep(6)
            await end.send(bytes([byte]))
        await end.request()

    async with trio.open_nursery() as nursery:
        connections = Connections(connect=Peer(nursery, slow).connect)
        response = await connections.request(ENDPOINT, "POST", [], b"{}", read_timeout=7)
        assert await read_all(response) == JSON
        connections.close()


class CancelAtStep(trio.abc.Instrument):
    """Cancels a scope just before a task takes its step number `step`."""

    def __init__(self, step: float, scope: trio.CancelScope) -> None:
        self.task = trio.lowlevel.current_task()
        self.left = step
        self.scope = scope

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if task is self.task:
            self.left -= 1
            if self.left == 0:
                self.scope.cancel()


async def cancelled_at(step: float, answer: bytes, pair: Pair) -> bool:
    """Cancel a request at a step, and check what it leaves behind. Return whether it still succeeded."""
    async with trio.open_nursery() as nursery:
        peer = Peer(nursery, tolerant(answering(answer, size=20)))
        peer.pair = pair
        connections = Connections(connect=peer.connect, max_connections=1)
        await read_all(await connections.request(ENDPOINT, "POST", [], b"first"))
        with trio.CancelScope() as scope:
            instrument = CancelAtStep(step, scope)
            trio.lowlevel.add_instrument(instrument)
            try:
                for _ in range(2):
                    response = await connections.request(ENDPOINT, "POST", [], iter_parts(b"sec", b"ond"))
                    try:
                        while await response.receive():
                            await trio.lowlevel.checkpoint()
                    finally:
                        await response.aclose()
            finally:
                trio.lowlevel.remove_instrument(instrument)
        held = connections.statistics()
        assert (held.busy, held.connecting, held.waiting) == (0, 0, 0)
        with trio.fail_after(60):
            assert JSON in await read_all(await connections.request(ENDPOINT, "POST", [], b"third"))
        # No connection carried anything but whole requests, half a one at most at its end.
        assert {body for end in peer.ends for _, body in end.requests} <= {b"first", b"second", b"third"}
        assert peer.bodies.count(b"third") == 1
        connections.close()
    return not scope.cancelled_caught


@pytest.mark.parametrize("answer", [ANSWER, STREAM_HEAD + EVENT_CHUNK + LAST_CHUNK], ids=["length", "chunks"])
@pytest.mark.parametrize("pair", [memory_connection, trio.testing.memory_stream_pair, socket_pair])
async def test_cancelled_at_any_step_it_leaves_nothing_half_used(
    pair: Pair, answer: bytes, autojump_clock: trio.testing.MockClock
) -> None:
    step = 1
    while not await cancelled_at(step, answer, pair):
        step += 1
    assert step > 20


@given(
    splits=st.lists(st.integers(1, 40), min_size=1, max_size=30),
    case=st.sampled_from(sorted(CASES)),
)
def test_reads_each_framing_however_it_is_split(splits: list[int], case: str) -> None:
    wanted = CASES[case]

    async def handle(end: FarEnd) -> None:
        await end.request()
        rest = wanted.answer
        for length in splits:
            await end.send(rest[:length])
            rest = rest[length:]
            await trio.sleep(0.001)
        await end.send(rest)
        if wanted.then_close:
            await end.finish()

    async def main() -> bytes:
        async with trio.open_nursery() as nursery:
            connections = Connections(connect=Peer(nursery, handle).connect)
            body = await read_all(
                await connections.request(ENDPOINT, wanted.method, [], read_timeout=math.inf)
            )
            connections.close()
        return body

    assert trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0)) == wanted.body


def test_request_heads_are_kept_from_the_second_on_and_not_without_end() -> None:
    heads, endpoint = RequestHeads(), Endpoint.parse("http://h/mcp")
    heads.checked("POST", endpoint, [(b"a", b"1")], b"12")
    assert not heads._known
    first = heads.checked("POST", endpoint, [(b"a", b"1")], b"12")
    assert heads.checked("POST", endpoint, ((b"a", b"1"),), b"34") is first
    others = [
        heads.checked("GET", endpoint, [(b"a", b"1")], b"12"),
        heads.checked("POST", Endpoint.parse("http://h/other"), [(b"a", b"1")], b"12"),
        heads.checked("POST", endpoint, [(b"a", b"2")], b"12"),
        heads.checked("POST", endpoint, [(b"a", b"1")], b"123"),
    ]
    assert all(other is not first for other in others)
    assert dict(others[3].headers)[b"content-length"] == b"3"
    for length in range(2 * MAX_HEADS):
        for _ in range(2):
            heads.checked("POST", endpoint, (), bytes(length))
    assert len(heads._known) <= MAX_HEADS
