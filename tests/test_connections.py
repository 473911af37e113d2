"""The pool: what is used again and what is not, who waits for whom, and what is left after cancels."""

from __future__ import annotations

import gc
import random
from functools import partial

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
    call,
    read_all,
    socket_pair,
    tolerant,
)
from trio_mcp_resilient._connections import (
    ENDING_GRACE,
    KEEPALIVE_EXPIRY,
    Connections,
    ConnectionStatistics,
)
from trio_mcp_resilient._dial import PROBE_SECONDS
from trio_mcp_resilient._endpoint import Endpoint
from trio_mcp_resilient._http_errors import NoSlot
from trio_mcp_resilient._scripted_stream import memory_connection
from trio_mcp_resilient._wire import Stage, WireError

Clock = trio.testing.MockClock
PAIRS = [memory_connection, socket_pair, trio.testing.memory_stream_pair]


# Using a connection again.


async def test_one_after_the_other_share_a_connection() -> None:
    async with trio.open_nursery() as nursery:
        peer = Peer(nursery, answering(ANSWER))
        connections = Connections(connect=peer.connect)
        for _ in range(20):
            assert await call(connections) == JSON
        assert len(peer.ends) == 1
        connections.close()


async def test_at_the_same_time_none_waits_for_another() -> None:
    async with trio.open_nursery() as nursery:
        peer = Peer(nursery, answering(ANSWER))
        connections = Connections(connect=peer.connect)
        async with trio.open_nursery() as callers:
            for _ in range(50):
                callers.start_soon(call, connections)
        assert connections.statistics() == ConnectionStatistics(
            busy=0, idle=50, ending=0, connecting=0, opened=50, waiting=0
        )
        connections.close()


async def test_of_many_the_last_used_is_used_and_the_others_expire(autojump_clock: Clock) -> None:
    async with trio.open_nursery() as nursery:
        peer = Peer(nursery, answering(ANSWER))
        connections = Connections(connect=peer.connect)
        async with trio.open_nursery() as callers:
            for _ in range(5):
                callers.start_soon(call, connections)
        for _ in range(6):
            await trio.sleep(1)
            await call(connections)
        assert connections.statistics().idle == 1
        assert len(peer.ends) == 5
        connections.close()


@pytest.mark.parametrize(
    ("header", "kept"),
    [
        (b"", KEEPALIVE_EXPIRY),
        (b"keep-alive: timeout=3\r\n", 2),
        (b"Keep-Alive: max=5, Timeout=3\r\n", 2),
        (b"keep-alive: timeout=600\r\n", KEEPALIVE_EXPIRY),
        (b"keep-alive: timeout=1\r\n", 0),
        (b"keep-alive: timeout=soon, max\r\n", KEEPALIVE_EXPIRY),
    ],
)
async def test_leaves_an_idle_connection_before_the_server_does(
    header: bytes, kept: float, autojump_clock: Clock
) -> None:
    assert KEEPALIVE_EXPIRY == 4
    answer = ANSWER.replace(b"content-type", header + b"content-type")
    async with trio.open_nursery() as nursery:
        peer = Peer(nursery, answering(answer))
        connections = Connections(connect=peer.connect)
        await call(connections)
        if kept:
            await trio.sleep(kept - 0.01)
            await call(connections)
            assert len(peer.ends) == 1
        await trio.sleep(kept)
        await call(connections)
        assert len(peer.ends) == 2
        connections.close()


async def test_an_expired_connection_is_not_used_though_nobody_has_closed_it_yet(
    autojump_clock: Clock,
) -> None:
    async with trio.open_nursery() as nursery:
        peer = Peer(nursery, answering(ANSWER))
        connections = Connections(connect=peer.connect)
        await call(connections)
        await trio.sleep(KEEPALIVE_EXPIRY - 0.1)
        # This looks over all connections, and will not do so again for a second.
        await call(connections, Endpoint.parse("http://other.example/"))
        await trio.sleep(0.2)
        await call(connections)
        assert len(peer.ends) == 3
        connections.close()


async def test_keeps_none_if_told_so() -> None:
    async with trio.open_nursery() as nursery:
        connections = Connections(connect=Peer(nursery, answering(ANSWER)).connect, keepalive_expiry=0)
        await call(connections)
        assert connections.statistics() == ConnectionStatistics(0, 0, 0, 0, 1, 0)


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("says", [b"", b"HTTP/1.1 408 Request Timeout\r\n\r\n"], ids=["closed", "junk"])
async def test_notices_before_writing_that_an_idle_connection_is_stale(
    pair: Pair, says: bytes, autojump_clock: Clock
) -> None:
    async def closing(end: FarEnd) -> None:
        assert await end.request() is not None
        await end.send(ANSWER)
        await trio.sleep(1)
        await end.send(says)
        if says:
            assert await end.request() is None
        await end.finish()

    async with trio.open_nursery() as nursery:
        peer = Peer(nursery, tolerant(closing))
        peer.pair = pair
        connections = Connections(connect=peer.connect)
        for _ in range(5):
            assert await call(connections) == JSON
            await trio.sleep(2)
        assert len(peer.ends) == 5
        connections.close()


async def test_notices_a_reset_before_writing() -> None:
    async def resetting(end: FarEnd) -> None:
        await end.request()
        await end.send(ANSWER)
        end.stream.reset()  # type: ignore[attr-defined]

    async with trio.open_nursery() as nursery:
        connections = Connections(connect=Peer(nursery, resetting).connect)
        for _ in range(3):
            assert await call(connections) == JSON
            await trio.testing.wait_all_tasks_blocked()
        assert connections.statistics().opened == 3
        connections.close()


async def test_a_stream_that_cannot_tell_is_listened_to_for_a_moment(autojump_clock: Clock) -> None:
    async with trio.open_nursery() as nursery:
        peer = Peer(nursery, answering(ANSWER))
        peer.pair = trio.testing.memory_stream_pair
        connections = Connections(connect=peer.connect)
        await call(connections)
        before = trio.current_time()
        await call(connections)
        assert trio.current_time() - before == pytest.approx(PROBE_SECONDS)
        assert len(peer.ends) == 1
        connections.close()


async def test_origins_do_not_mix(autojump_clock: Clock) -> None:
    async with trio.open_nursery() as nursery:
        peer = Peer(nursery, answering(ANSWER))
        connections = Connections(connect=peer.connect)
        urls = ["http://a.example/", "http://a.example:81/", "http://b.example/", "http://[::1]/x?y"]
        for _ in range(2):
            for url in urls:
                await call(connections, Endpoint.parse(url))
        assert peer.hosts == [("a.example", 80), ("a.example", 81), ("b.example", 80), ("::1", 80)]
        heads = [end.requests[1][0] for end in peer.ends]
        assert [dict(head.headers)[b"host"] for head in heads] == [
            b"a.example",
            b"a.example:81",
            b"b.example",
            b"[::1]",
        ]
        assert heads[3].target == b"/x?y"
        connections.close()


# Answers whose end is not read.


def streaming(pause: float, end_with: bytes = LAST_CHUNK) -> Handler:
    """Send the event in one write, and the end in another a moment later."""

    async def handle(end: FarEnd) -> None:
        while await end.request() is not None:
            await end.send(STREAM_HEAD + EVENT_CHUNK)
            await trio.sleep(pause)
            await end.send(end_with)

    return tolerant(handle)


async def call_stream(connections: Connections, method: str = "POST") -> None:
    """Take the event and give the response back, as a caller does who has what it wanted."""
    response = await connections.request(ENDPOINT, method, [], b"{}" if method == "POST" else b"")
    assert JSON in await response.receive()
    await response.aclose()


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("pause", [0, 0.001, 0.015])
async def test_streams_that_end_a_moment_after_the_answer_need_one_connection(
    pause: float, pair: Pair, autojump_clock: Clock
) -> None:
    async with trio.open_nursery() as nursery:
        peer = Peer(nursery, streaming(pause))
        peer.pair = pair
        connections = Connections(connect=peer.connect)
        for _ in range(250):
            await call_stream(connections)
        assert connections.statistics().opened == 1
        connections.close()


async def test_a_stream_that_stays_open_is_waited_for_once(autojump_clock: Clock) -> None:
    assert ENDING_GRACE == 0.02
    async with trio.open_nursery() as nursery:
        connections = Connections(connect=Peer(nursery, streaming(3600)).connect)
        for _ in range(10):
            await call_stream(connections)
        assert trio.current_time() == pytest.approx(ENDING_GRACE)
        assert connections.statistics() == ConnectionStatistics(0, 0, 10, 0, 10, 0)
        connections.close()


async def test_patience_comes_back_when_an_end_has_come(autojump_clock: Clock) -> None:
    pause = 0.5

    async def handle(end: FarEnd) -> None:
        while await end.request() is not None:
            await end.send(STREAM_HEAD + EVENT_CHUNK)
            await trio.sleep(pause)
            await end.send(LAST_CHUNK)

    async with trio.open_nursery() as nursery:
        connections = Connections(connect=Peer(nursery, tolerant(handle)).connect)
        for _ in range(2):
            await call_stream(connections)
        assert connections.statistics().opened == 2
        await trio.sleep(1)
        pause = 0.015
        for _ in range(10):
            await call_stream(connections)
        assert connections.statistics().opened == 2
        connections.close()


async def test_two_that_look_for_an_end_do_not_look_at_the_same_connection(autojump_clock: Clock) -> None:
    async def handle(end: FarEnd) -> None:
        while await end.request() is not None:
            await end.send(STREAM_HEAD + EVENT_CHUNK)
            if peer.ends.index(end) == 1:
                await end.finish()
                return

    async with trio.open_nursery() as nursery:
        peer = Peer(nursery, tolerant(handle))
        # Looking at one of these takes a moment.
        peer.pair = trio.testing.memory_stream_pair
        connections = Connections(connect=peer.connect)
        responses = [await connections.request(ENDPOINT, "POST", [], b"{}") for _ in range(2)]
        for response in responses:
            await response.aclose()
        assert connections.statistics().ending == 2
        async with trio.open_nursery() as callers:
            for _ in range(2):
                callers.start_soon(call_stream, connections)
        assert connections.statistics() == ConnectionStatistics(0, 0, 3, 0, 4, 0)
        connections.close()


async def test_a_stream_that_ends_together_with_its_connection_is_not_written_on(
    autojump_clock: Clock,
) -> None:
    async def handle(end: FarEnd) -> None:
        await end.request()
        await end.send(STREAM_HEAD + EVENT_CHUNK)
        await trio.sleep(0.1)
        await end.send(LAST_CHUNK)
        await end.finish()

    async with trio.open_nursery() as nursery:
        connections = Connections(connect=Peer(nursery, handle).connect)
        for _ in range(5):
            await call_stream(connections)
            await trio.sleep(0.2)
        assert connections.statistics() == ConnectionStatistics(0, 0, 1, 0, 5, 0)
        connections.close()


async def test_cancelled_while_it_waits_for_an_end_it_closes_that_connection(autojump_clock: Clock) -> None:
    async with trio.open_nursery() as nursery:
        peer = Peer(nursery, streaming(3600))
        connections = Connections(connect=peer.connect)
        await call_stream(connections)
        with trio.move_on_after(ENDING_GRACE / 2) as scope:
            await call_stream(connections)
        assert scope.cancelled_caught
        assert connections.statistics() == ConnectionStatistics(0, 0, 0, 0, 1, 0)
        assert peer.ends[0].stream.is_readable()  # type: ignore[attr-defined]
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("length", [1000, 1_000_000])
async def test_a_rest_that_is_long_is_not_read_to_save_a_connection(
    length: int, autojump_clock: Clock
) -> None:
    rest = b"%x\r\n%s\r\n" % (length, b"x" * length) + LAST_CHUNK
    async with trio.open_nursery() as nursery:
        connections = Connections(connect=Peer(nursery, streaming(0.001, rest)).connect)
        await call_stream(connections)
        await call_stream(connections)
        assert connections.statistics().opened == (1 if length == 1000 else 2)
        connections.close()


@pytest.mark.parametrize("length", [1000, 1_000_000])
async def test_a_rest_that_is_known_to_be_long_is_not_even_waited_for(
    length: int, autojump_clock: Clock
) -> None:
    async def handle(end: FarEnd) -> None:
        await end.request()
        await end.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % length + b"data")
        await end.stream.receive_some()

    async with trio.open_nursery() as nursery:
        connections = Connections(connect=Peer(nursery, handle).connect)
        response = await connections.request(ENDPOINT, "POST", [], b"{}")
        assert await response.receive() == b"data"
        await response.aclose()
        await response.aclose()
        assert await response.receive() == b""
        assert connections.statistics().ending == (1 if length == 1000 else 0)
        connections.close()


async def test_an_ending_connection_is_closed_when_it_is_old(autojump_clock: Clock) -> None:
    async with trio.open_nursery() as nursery:
        connections = Connections(connect=Peer(nursery, streaming(3600)).connect)
        await call_stream(connections)
        await trio.sleep(KEEPALIVE_EXPIRY + 0.1)
        await call_stream(connections)
        assert connections.statistics() == ConnectionStatistics(0, 0, 1, 0, 2, 0)
        connections.close()


@pytest.mark.parametrize("why", ["cancelled", "GET", "no grace", "half an event", "told to close"])
async def test_an_answer_given_up_is_closed_at_once(why: str, autojump_clock: Clock) -> None:
    seen = trio.Event()

    async def handle(end: FarEnd) -> None:
        await end.request()
        extra = b"\r\nconnection: close" if why == "told to close" else b""
        await end.send(STREAM_HEAD[:-4] + extra + b"\r\n\r\n" + EVENT_CHUNK)
        with trio.fail_after(1):
            assert not await end.stream.receive_some()
        seen.set()

    async with trio.open_nursery() as nursery:
        peer = Peer(nursery, handle)
        connections = Connections(connect=peer.connect, ending_grace=0 if why == "no grace" else 5)
        with trio.CancelScope() as scope:
            response = await connections.request(ENDPOINT, "GET" if why == "GET" else "POST", [], b"")
            await response.receive()
            if why == "cancelled":
                scope.cancel()
            if why == "half an event":
                with trio.move_on_after(0.1):
                    await response.receive()
            await response.aclose()
        assert connections.statistics() == ConnectionStatistics(0, 0, 0, 0, 1, 0)
        await seen.wait()


async def test_an_answer_that_is_here_whole_is_never_given_up(autojump_clock: Clock) -> None:
    async with trio.open_nursery() as nursery:
        connections = Connections(connect=Peer(nursery, answering(ANSWER)).connect)
        with trio.CancelScope() as scope:
            response = await connections.request(ENDPOINT, "GET", [])
            scope.cancel()
            await response.aclose()
        assert connections.statistics().idle == 1
        connections.close()


# Closing.


async def test_closing_ends_everything_without_awaiting(autojump_clock: Clock) -> None:
    ended = 0

    async def handle(end: FarEnd) -> None:
        nonlocal ended
        body = await end.request()
        await end.send(ANSWER if body == b"idle" else STREAM_HEAD + EVENT_CHUNK if body != b"silent" else b"")
        assert not await end.stream.receive_some()
        ended += 1

    async def dial(host: str, port: int) -> trio.abc.Stream:
        if host == "slow.example":
            await trio.sleep_forever()
        return await peer.connect(host, port)

    stages: list[Stage] = []

    async def fail(url: str, body: bytes) -> None:
        with pytest.raises(WireError) as caught:
            await call(connections, Endpoint.parse(url), body)
        stages.append(caught.value.stage)

    async with trio.open_nursery() as nursery:
        peer = Peer(nursery, handle)
        connections = Connections(connect=dial)
        await call(connections, body=b"idle")
        ending = await connections.request(Endpoint.parse("http://ending.example/"), "POST", [], b"ending")
        await ending.aclose()
        nursery.start_soon(fail, "http://reading.example/", b"reading")
        nursery.start_soon(fail, "http://silent.example/", b"silent")
        nursery.start_soon(fail, "http://slow.example/", b"")
        await trio.testing.wait_all_tasks_blocked()
        assert connections.statistics() == ConnectionStatistics(2, 1, 1, 1, 4, 0)
        connections.close()
        connections.close()
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(stages) == [Stage.NOT_CONNECTED, Stage.WRITTEN, Stage.ANSWERING]
        assert ended == 4
        assert connections.statistics() == ConnectionStatistics(0, 0, 0, 0, 4, 0)
        await fail("http://later.example/", b"")
        assert stages[-1] is Stage.NOT_CONNECTED
        assert trio.current_time() == 0


async def test_a_connection_that_comes_when_the_pool_is_closed_is_closed_too() -> None:
    async def connect(host: str, port: int) -> trio.abc.Stream:
        stream = await peer.connect(host, port)
        connections.close()
        return stream

    async with trio.open_nursery() as nursery:
        peer = Peer(nursery, answering(ANSWER))
        connections = Connections(connect=connect)
        with pytest.raises(WireError) as caught:
            await call(connections)
        assert caught.value.stage is Stage.NOT_CONNECTED


async def test_closing_works_in_a_cancelled_scope() -> None:
    async with trio.open_nursery() as nursery:
        connections = Connections(connect=Peer(nursery, answering(ANSWER)).connect)
        await call(connections)
        with trio.CancelScope() as scope:
            scope.cancel()
            await connections.aclose()
        assert not scope.cancelled_caught
        assert connections.statistics().idle == 0


async def test_an_answer_already_here_outlives_the_pool() -> None:
    async with trio.open_nursery() as nursery:
        connections = Connections(connect=Peer(nursery, answering(ANSWER)).connect)
        response = await connections.request(ENDPOINT, "POST", [], b"{}")
        connections.close()
        assert await read_all(response) == JSON
        assert connections.statistics() == ConnectionStatistics(0, 0, 0, 0, 1, 0)


async def test_an_answer_given_back_to_a_closed_pool_is_not_kept() -> None:
    async with trio.open_nursery() as nursery:
        connections = Connections(connect=Peer(nursery, tolerant(streaming(0))).connect)
        response = await connections.request(ENDPOINT, "POST", [], b"{}")
        connections.close()
        await response.aclose()
        assert connections.statistics() == ConnectionStatistics(0, 0, 0, 0, 1, 0)


async def test_closing_under_a_write_tells_that_it_was_not_accepted_whole() -> None:
    async def deaf(end: FarEnd) -> None:
        await closed.wait()
        await end.finish()

    closed = trio.Event()
    async with trio.open_nursery() as nursery:
        peer = Peer(nursery, deaf)
        # The kernel's buffers are smaller than the body.
        peer.pair = socket_pair
        connections = Connections(connect=peer.connect)

        async def fail() -> None:
            with pytest.raises(WireError) as caught:
                await call(connections, body=b"x" * 10_000_000)
            assert caught.value.stage is Stage.PARTLY_WRITTEN

        nursery.start_soon(fail)
        await trio.testing.wait_all_tasks_blocked()
        connections.close()
        closed.set()


# A limit.


async def test_requests_beyond_the_limit_wait_in_order(autojump_clock: Clock) -> None:
    async def slow(end: FarEnd) -> None:
        while await end.request() is not None:
            await trio.sleep(1)
            await end.send(ANSWER)

    order: list[int] = []

    async def caller(number: int) -> None:
        await call(connections)
        order.append(number)

    async with trio.open_nursery() as nursery:
        peer = Peer(nursery, slow)
        connections = Connections(connect=peer.connect, max_connections=2)
        async with trio.open_nursery() as callers:
            for number in range(10):
                callers.start_soon(caller, number)
                await trio.testing.wait_all_tasks_blocked()
            assert connections.statistics() == ConnectionStatistics(2, 0, 0, 0, 2, 8)
        assert trio.current_time() == pytest.approx(5)
        assert [sorted(order[i : i + 2]) for i in range(0, 10, 2)] == [[i, i + 1] for i in range(0, 10, 2)]
        assert len(peer.ends) == 2
        connections.close()


async def test_waiting_for_the_limit_is_bounded(autojump_clock: Clock) -> None:
    async with trio.open_nursery() as nursery:
        connections = Connections(connect=Peer(nursery, answering(ANSWER)).connect, max_connections=1)
        response = await connections.request(ENDPOINT, "POST", [], b"{}")
        with pytest.raises(NoSlot) as caught:
            await connections.request(ENDPOINT, "POST", [], b"{}", pool_timeout=3)
        assert caught.value.stage is Stage.NOT_CONNECTED
        assert trio.current_time() == pytest.approx(3)
        await response.aclose()
        assert await call(connections) == JSON
        connections.close()


async def test_spare_connections_make_room_for_another_origin(autojump_clock: Clock) -> None:
    async with trio.open_nursery() as nursery:
        peer = Peer(nursery, answering(ANSWER))
        connections = Connections(connect=peer.connect, max_connections=2)
        for host in "abcab":
            await call(connections, Endpoint.parse(f"http://{host}.example/"))
            held = connections.statistics()
            assert held.idle + held.busy <= 2
        assert [host[0] for host, _ in peer.hosts] == ["a", "b", "c", "a", "b"]
        connections.close()


def test_a_limit_is_at_least_one() -> None:
    with pytest.raises(ValueError, match="max_connections"):
        Connections(max_connections=0)


@given(
    limit=st.integers(1, 4),
    patience=st.lists(st.integers(0, 60), min_size=1, max_size=40),
    seed=st.integers(0, 2**32),
)
def test_no_slot_is_lost_however_requests_are_cancelled(limit: int, patience: list[int], seed: int) -> None:
    chance = random.Random(seed)

    async def moody(end: FarEnd) -> None:
        while await end.request() is not None:
            await trio.sleep(chance.choice([0, 0, 0.005, 0.03]))
            kind = chance.randrange(4)
            if kind == 0:
                end.stream.reset()  # type: ignore[attr-defined]
                return
            await end.send(ANSWER if kind > 1 else STREAM_HEAD + EVENT_CHUNK)
            if kind == 1:
                await trio.sleep(chance.choice([0, 0.01, 5]))
                await end.send(LAST_CHUNK)

    async def connect(host: str, port: int) -> trio.abc.Stream:
        await trio.sleep(chance.choice([0, 0.01]))
        return await peer.connect(host, port)

    async def caller(connections: Connections, milliseconds: int) -> None:
        with trio.move_on_after(milliseconds / 1000):
            try:
                await call_stream(connections)
            except WireError:
                pass
        held = connections.statistics()
        assert held.busy + held.idle + held.ending + held.connecting <= limit

    async def main() -> None:
        nonlocal peer
        async with trio.open_nursery() as nursery:
            peer = Peer(nursery, tolerant(moody))
            connections = Connections(connect=connect, max_connections=limit)
            async with trio.open_nursery() as callers:
                for milliseconds in patience:
                    callers.start_soon(caller, connections, milliseconds)
            held = connections.statistics()
            assert (held.busy, held.connecting, held.waiting) == (0, 0, 0)
            assert held.idle + held.ending <= limit
            peer.handler = answering(ANSWER)
            await trio.sleep(KEEPALIVE_EXPIRY)
            # As many at once as are allowed: every slot is there.
            responses = []
            for _ in range(limit):
                with trio.fail_after(1):
                    responses.append(await connections.request(ENDPOINT, "POST", [], b"{}"))
            for response in responses:
                assert await read_all(response) == JSON
            connections.close()

    peer: Peer
    trio.run(main, clock=Clock(autojump_threshold=0))


async def test_leaves_no_socket_behind() -> None:
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    endpoint = Endpoint.parse(f"http://127.0.0.1:{listener.socket.getsockname()[1]}/")

    async def serve(stream: trio.SocketStream) -> None:
        await tolerant(streaming(0))(FarEnd(stream))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, serve, [listener])
        connections = Connections()
        async with trio.open_nursery() as callers:
            for _ in range(20):
                callers.start_soon(call, connections, endpoint)
            await trio.lowlevel.checkpoint()
            callers.cancel_scope.cancel()
        await call(connections, endpoint)
        connections.close()
        del connections
        nursery.cancel_scope.cancel()
    # A socket that was forgotten warns when it is collected, and warnings are errors.
    gc.collect()


# Tending.


async def test_a_tended_pool_closes_connections_as_they_expire(autojump_clock: Clock) -> None:
    async with trio.open_nursery() as nursery:
        peer = Peer(nursery, answering(ANSWER))
        connections, done = Connections(connect=peer.connect), trio.Event()
        nursery.start_soon(connections.tend, done.wait)
        for _ in range(2):
            # The second time, the alarm of the first has gone off and there was nothing to wait for.
            await call(connections)
            await trio.sleep(KEEPALIVE_EXPIRY - 0.1)
            assert connections.statistics().idle == 1
            await trio.sleep(0.2)
            assert connections.statistics().idle == 0
            await trio.sleep(100)
        assert len(peer.ends) == 2
        done.set()


async def test_each_connection_of_a_tended_pool_has_its_own_time(autojump_clock: Clock) -> None:
    short = ANSWER.replace(b"content-type", b"keep-alive: timeout=3\r\ncontent-type")
    async with trio.open_nursery() as nursery:
        peers = {"long": Peer(nursery, answering(ANSWER)), "short": Peer(nursery, answering(short))}
        connections, done = (
            Connections(connect=lambda host, port: peers[host].connect(host, port)),
            trio.Event(),
        )
        nursery.start_soon(connections.tend, done.wait)
        await call(connections, Endpoint.parse("http://long/"))
        await trio.sleep(0.5)
        await call(connections, Endpoint.parse("http://short/"))
        idle = []
        for _ in range(5):
            await trio.sleep(0.9)
            idle.append(connections.statistics().idle)
        assert idle == [2, 2, 1, 0, 0]
        done.set()


async def test_a_pool_may_be_tended_from_the_middle_on(autojump_clock: Clock) -> None:
    async with trio.open_nursery() as nursery:
        connections = Connections(connect=Peer(nursery, answering(ANSWER)).connect)
        await call(connections)
        with trio.move_on_after(1) as scope:
            await connections.tend(trio.sleep_forever)
        assert scope.cancelled_caught
        assert connections.statistics().idle == 1
        await connections.tend(partial(trio.sleep, KEEPALIVE_EXPIRY))
        assert connections.statistics().idle == 0


async def test_an_ending_connection_of_a_tended_pool_expires_too(autojump_clock: Clock) -> None:
    async with trio.open_nursery() as nursery:
        peer = Peer(nursery, answering(STREAM_HEAD + EVENT_CHUNK))
        connections = Connections(connect=peer.connect)
        response = await connections.request(ENDPOINT, "POST", [], b"{}")
        await response.receive()
        await response.aclose()
        assert connections.statistics().ending == 1
        await connections.tend(partial(trio.sleep, KEEPALIVE_EXPIRY + 1))
        assert connections.statistics() == ConnectionStatistics(0, 0, 0, 0, 1, 0)
