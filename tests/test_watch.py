"""Watching an endpoint: what is told of a loss, an outage and a refusal, and what it adds up to."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio

from trio_mcp_resilient import GaveUp, HandshakeFailed
from trio_mcp_resilient._cli_options import Target
from trio_mcp_resilient._watch import BARS, LOST, SHOWN_EVENTS, Picture, in_words, sparkline, watch
from trio_mcp_resilient.testing import ScriptedServer, open_scripted_server

Record = dict[str, Any]


def target(server: ScriptedServer, mode: str = "legacy") -> Target:
    return Target(server.url, {}, mode, 1, 1.0, connect=server.connect)


async def watched(server: ScriptedServer, span: float, mode: str = "legacy") -> tuple[list[Record], Picture]:
    """Watch for so long, with a ping each second."""
    records: list[Record] = []
    picture = Picture("somewhere")

    def tell(record: Record) -> None:
        # Each has to be fit for a line of JSON.
        records.append(json.loads(json.dumps(record)))
        picture.take(record)

    await watch(target(server, mode), tell, interval=1, span=span)
    return records, picture


def names(records: list[Record]) -> list[str]:
    return [record["event"] for record in records]


async def test_a_quiet_watch(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server() as server:
        records, picture = await watched(server, 3.5)
        assert len(server.posts("ping")) == 4
        assert len(server.deleted) == 1
    assert names(records) == ["StateChanged", "SessionStarted", *["Ping"] * 4]
    assert picture.pings == 4 and picture.losses == 0 and picture.state == "ready"
    assert list(picture.latencies) == [0.0] * 4


async def test_a_loss_is_told_with_its_recovery(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server() as server, trio.open_nursery() as nursery:

        async def lose() -> None:
            await trio.sleep(1.5)
            server.lose_session()

        nursery.start_soon(lose)
        records, picture = await watched(server, 3.5)
    assert picture.generation == 2 and picture.losses == 1 and picture.recoveries == [0.0]
    assert [latency is None for latency in picture.latencies] == [False, False, True, False]
    (ended,) = [record for record in records if record["event"] == "SessionEnded"]
    assert ended["evidence"]["status"] == 404 and ended["session"].startswith("#")
    pings = [record for record in records if record["event"] == "Ping"]
    assert [ping.get("recovered") for ping in pings] == [None, None, True, None]


async def test_an_outage_is_waited_out_for_ever(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server() as server, trio.open_nursery() as nursery:

        async def restart() -> None:
            await trio.sleep(0.5)
            server.restart(down_for=3600)

        nursery.start_soon(restart)
        # The target's own attempts and timeout would have ended it long ago.
        _, picture = await watched(server, 3700)
    assert picture.generation == 2 and picture.state == "ready" and picture.failed_pings == 0
    (recovery,) = picture.recoveries
    assert 3590 < recovery < 3620


async def test_a_server_that_refuses_for_a_while_does_not_end_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_scripted_server() as server, trio.open_nursery() as nursery:

        async def misroute() -> None:
            await trio.sleep(0.5)
            server.lose_session()
            # A gateway without its backend: the answer to `initialize` is final, and yet it mends.
            server.answer(404, "no such app", when="initialize", times=3)

        nursery.start_soon(misroute)
        records, picture = await watched(server, 6.5)
    assert picture.failed_pings == 3 and picture.generation == 2 and picture.state == "ready"
    assert names(records).count("RecoveryFailed") == 3


async def test_a_first_answer_that_is_final_is_raised(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server() as server:
        server.answer(404, "no such app", when="initialize")
        with pytest.raises(HandshakeFailed):
            await watched(server, 5)


async def test_a_server_that_was_never_there_is_no_success(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server() as server:
        server.restart(down_for=3600)
        with pytest.raises(GaveUp, match=r"no session at .* within 60 s"):
            await watched(server, 60)


async def test_a_server_that_knows_no_ping_is_there_all_the_same(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_scripted_server() as server:
        del server.methods["ping"]
        records, picture = await watched(server, 1.5)
    assert picture.pings == 2 and picture.failed_pings == 0
    assert "Method not found" in records[-1]["error"]


async def test_the_modern_era_is_asked_by_discovery(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server(era="modern") as server:
        _, picture = await watched(server, 2.5, mode="auto")
        assert len(server.posts("server/discover")) == 1 + 3
    assert picture.protocol_version == "2026-07-28" and picture.pings == 3


async def test_whoever_stops_listening_ends_the_session(autojump_clock: trio.testing.MockClock) -> None:
    def tell(record: Record) -> None:
        raise BrokenPipeError

    async with open_scripted_server() as server:
        with pytest.raises(BrokenPipeError):
            await watch(target(server), tell, interval=1, span=10)
        assert not server.sessions


def test_bars_are_measured_by_the_longest() -> None:
    assert sparkline([]) == ""
    assert sparkline([0.0, 0.0]) == BARS[0] * 2
    assert sparkline([8.0, None, 4.0, 0.1]) == BARS[-1] + LOST + BARS[4] + BARS[0]


def test_a_picture_keeps_the_last_events_only() -> None:
    picture = Picture("x")
    for number in range(100):
        picture.take({"event": "StreamGap", "generation": number, "seconds": number})
        picture.take({"event": "Ping", "generation": 1, "milliseconds": 1.0, "seconds": number})
    assert len(picture.events) == SHOWN_EVENTS and picture.events[-1]["generation"] == 99
    assert picture.summary()["median_milliseconds"] == 1.0
    assert json.dumps(picture.summary())


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({"event": "StateChanged", "before": "ready", "after": "recovering"}, "ready -> recovering"),
        (
            {"event": "SessionEnded", "generation": 3, "reason": "lost", "evidence": None},
            "generation 3 lost",
        ),
        (
            {
                "event": "SessionEnded",
                "generation": 3,
                "reason": "lost",
                "evidence": {"what": "POST ping answered 404", "excerpt": "gone"},
            },
            'generation 3 lost: POST ping answered 404 "gone"',
        ),
        ({"event": "Ping", "generation": 2, "milliseconds": 1.25}, "generation 2 answered in 1.2 ms"),
        ({"event": "PingFailed", "error": "no session"}, "no answer: no session"),
        ({"event": "RecoveryFailed", "error": "no session"}, "gave up: no session"),
        ({"event": "Resent", "method": "ping", "generation": 2}, "ping sent again, in generation 2"),
        (
            {"event": "ToolsChanged", "added": ["a"], "removed": [], "changed": ["b", "c"]},
            "tools new: a; changed: b, c",
        ),
        (
            {"event": "Flapping", "losses": 5, "seconds": 1.0},
            "5 losses in a short time: the endpoint may be load-balanced without stickiness",
        ),
        (
            {"event": "StreamGap", "generation": 2},
            "what the server said unasked meanwhile may have been missed",
        ),
        (
            {"event": "RestoreFailed", "generation": 2, "method": "logging/setLevel", "error": "no"},
            "RestoreFailed (generation: 2; method: logging/setLevel; error: no)",
        ),
        ({"event": "New"}, "New"),
    ],
)
def test_each_event_has_words(record: Record, words: str) -> None:
    assert in_words({"at": "then", "seconds": 1.0, **record}) == words
