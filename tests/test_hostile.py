"""A hostile server can make the client neither spin nor hang.

What it may send at most is in `test_bounds.py`, and what it cannot make us send or say in
`test_smuggling.py`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from tests.hostile import (
    END,
    GONE,
    MIB,
    NOTE,
    STREAM,
    URL,
    Heard,
    Hostile,
    chunk,
    endless,
    envelope,
    event,
    http,
    open_hostile,
    open_victim,
    to,
)
from tests.kit import STEADY, add
from trio_mcp_resilient import (
    OutcomeUnknown,
    RequestRefused,
    ResilientError,
    open_client,
)
from trio_mcp_resilient._answers import (
    MAX_MESSAGE_BYTES,
)
from trio_mcp_resilient._following import MAX_REDIRECTS
from trio_mcp_resilient._listening import REOPEN
from trio_mcp_resilient._resuming import FLOOR_SECONDS, PACE
from trio_mcp_resilient._supervisor import FLAPPING_LOSSES, FLAPPING_SECONDS

# Spinning.


async def ends_where_it_began(heard: Heard) -> None:
    await heard.end.send(STREAM + END)


def unwanted(seconds: float) -> int:
    """How many sessions may be made in so many seconds that no call waits for."""
    return int((seconds / FLAPPING_SECONDS + 2) * (FLAPPING_LOSSES + 1))


async def refused_answer(heard: Heard) -> None:
    await heard.end.send(STREAM + event(envelope(id="p", method="ping")))
    await trio.sleep_forever()


SPINS: dict[str, Any] = {
    "the stream of every session is refused": {"GET": GONE},
    "the stream of every session asks, and the answer is refused": {"GET": refused_answer, "POST": GONE},
    "every listing is refused": {"tools_list": GONE},
}


@pytest.mark.parametrize("name", SPINS)
async def test_sessions_that_nobody_waits_for_are_not_made_for_ever(
    name: str, autojump_clock: MockClock
) -> None:
    listed = {"once": False}

    def answer(heard: Heard) -> Any:
        if heard.rpc == "tools/list" and not listed["once"]:
            listed["once"] = True
            return None
        if heard.rpc == "GET" and name == "every listing is refused":
            # One loss to begin with.
            return GONE if len([one for one in server.heard if one.rpc == "GET"]) == 1 else None
        return to(**SPINS[name])(heard)

    async with trio.open_nursery() as nursery:
        server = Hostile(nursery, answer)
        async with open_client(URL, connect=server.connect, backoff=STEADY) as client:
            await client.list_tools()
            await trio.sleep(1000)
            assert server.count("initialize") <= unwanted(1000)
            # A call does not wait for the pace.
            began = trio.current_time()
            assert await add(client) == "3"
            assert trio.current_time() - began <= 2 * STEADY.cap
        nursery.cancel_scope.cancel()


async def test_a_server_that_forgets_every_session_gets_two_for_each_call(autojump_clock: MockClock) -> None:
    async with open_victim(to(tools_call=GONE)) as (server, client):
        await client.list_tools()
        for _ in range(20):
            with pytest.raises(ResilientError):
                await add(client)
        assert server.count("tools/call") == 40
        assert server.count("initialize") <= 41


async def test_a_redirect_that_goes_round_ends(autojump_clock: MockClock) -> None:
    answer = to(tools_call=lambda heard: http(b"", "location: /mcp", status=307))
    async with open_victim(answer) as (server, client):
        await client.list_tools()
        with pytest.raises(RequestRefused):
            await add(client)
        assert server.count("tools/call") == 1 + MAX_REDIRECTS


async def test_interim_answers_without_end_are_given_up(autojump_clock: MockClock) -> None:
    sent: list[int] = []
    interim = b"HTTP/1.1 102 Processing\r\n\r\n"
    async with open_victim(to(tools_call=endless(interim, interim, sent))) as (_, client):
        await client.list_tools()
        with pytest.raises(OutcomeUnknown):
            await add(client)
        assert len(sent) < 110


STREAMS = {
    "ends at once": STREAM + END,
    "a comment, and ends": STREAM + chunk(b":\n\n") + END,
    "an event, asks to come back at once, and ends": STREAM + event(None, "retry: 0", "id: 7") + END,
    "an event too large": STREAM + chunk(b"data: " + b"x" * (MAX_MESSAGE_BYTES + MIB) + b"\n\n") + END,
}


@pytest.mark.parametrize("answer", STREAMS.values(), ids=STREAMS.keys())
async def test_a_standalone_stream_is_not_opened_all_the_time(
    answer: bytes, autojump_clock: MockClock
) -> None:
    async with open_victim(to(GET=answer), get_stream=True) as (server, _):
        await trio.sleep(100)
        assert server.count("GET") <= 100 / (REOPEN.first * (1 - REOPEN.jitter)) + 1


@pytest.mark.parametrize("answer", STREAMS.values(), ids=STREAMS.keys())
async def test_a_cut_answer_is_not_asked_for_all_the_time(answer: bytes, autojump_clock: MockClock) -> None:
    cut = STREAM + event(None, "id: 1", "retry: 0")
    gets_on = b"id: 7" in answer
    async with open_victim(to(GET=answer, tools_call=cut + END)) as (server, client):
        await client.list_tools()
        with trio.move_on_after(1000) as scope, pytest.raises(OutcomeUnknown):
            await add(client)
        # What gets on is waited for until the caller has enough.
        assert scope.cancelled_caught is gets_on
        assert server.count("GET") <= (1000 / FLOOR_SECONDS + 2 if gets_on else PACE.attempts)


async def test_a_storm_of_changed_lists_causes_no_request(autojump_clock: MockClock) -> None:
    storm = event(envelope(method="notifications/tools/list_changed")) * 5000

    async def stream(heard: Heard) -> None:
        await heard.end.send(STREAM + storm)
        await trio.sleep_forever()

    async with open_victim(to(GET=stream), get_stream=True) as (server, client):
        await client.list_tools()
        before = len(server.heard)
        await trio.sleep(10)
        assert len(server.heard) - before <= 1


# Hanging.


async def test_a_flood_keeps_nobody_from_being_cancelled(autojump_clock: MockClock) -> None:
    async def flooding(heard: Heard) -> None:
        await heard.end.send(STREAM)
        while True:
            await heard.end.send(event(envelope(**NOTE)) * 100)

    async with open_victim(to(tools_call=flooding)) as (_, client):
        await client.list_tools()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.call_tool, "add", {})
            for _ in range(200):
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
        assert await client.ping()


async def test_a_flood_of_compressed_comments_keeps_nobody_from_being_cancelled(
    autojump_clock: MockClock,
) -> None:
    packer = zlib.compressobj(9, wbits=16 + zlib.MAX_WBITS)
    head = STREAM.replace(b"transfer", b"content-encoding: gzip\r\ntransfer")
    comments = packer.compress(b":\n" * (8 * MIB)) + packer.flush(zlib.Z_SYNC_FLUSH)

    async def flooding(heard: Heard) -> None:
        await heard.end.send(head + chunk(comments))
        await trio.sleep_forever()

    async with open_victim(to(tools_call=flooding)) as (_, client):
        await client.list_tools()
        steps = 0
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.call_tool, "add", {})
            for _ in range(100):
                await trio.lowlevel.checkpoint()
                steps += 1
            nursery.cancel_scope.cancel()
        assert steps == 100


def dripping(data: bytes, seconds: float) -> Callable[[Heard], Any]:
    """Send one byte every so many seconds, for ever."""

    async def drip(heard: Heard) -> None:
        for byte in data:
            await heard.end.send(bytes([byte]))
            await trio.sleep(seconds)
        while True:
            await heard.end.send(b"x")
            await trio.sleep(seconds)

    return drip


async def test_a_handshake_that_drips_is_given_up_in_time(autojump_clock: MockClock) -> None:
    async with open_hostile(to(initialize=dripping(b"HTTP/1.1 200 OK\r\nx: ", 10))) as server:
        began = trio.current_time()
        with pytest.raises(ResilientError):
            async with open_client(URL, connect=server.connect, backoff=STEADY, recovery_timeout=200):
                pytest.fail("nothing was to be opened")
        assert trio.current_time() - began <= 200


async def test_a_call_that_drips_ends_by_its_callers_deadline(autojump_clock: MockClock) -> None:
    # Bytes keep coming, so it is no cut, and there is no other bound: docs/limits.md says so.
    async with open_victim(to(tools_call=dripping(b"HTTP/1.1 200 OK\r\nx: ", 200))) as (_, client):
        await client.list_tools()
        began = trio.current_time()
        with trio.move_on_after(5000) as scope:
            await add(client)
        assert scope.cancelled_caught
        assert trio.current_time() - began == 5000
        assert await client.ping()


async def test_a_farewell_that_drips_is_cut_short(autojump_clock: MockClock) -> None:
    async with open_victim(to(DELETE=dripping(b"HTTP/1.1 200 OK\r\n", 1)), close_timeout=3):
        began = trio.current_time()
    assert trio.current_time() - began == pytest.approx(3)
