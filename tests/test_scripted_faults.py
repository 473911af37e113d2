"""Every way in which the scripted server can be made to fail."""

from __future__ import annotations

import json
import math
from typing import Any

import h11
import pytest
import trio
import trio.testing
from scripted_peer import ADD, Answer, Peer, meet

from trio_mcp_resilient.testing import (
    DIALECTS,
    Reply,
    open_scripted_server,
)


@pytest.mark.parametrize("name", sorted(DIALECTS))
async def test_a_lost_session_is_refused_in_the_dialect(
    name: str, autojump_clock: trio.testing.MockClock
) -> None:
    async with open_scripted_server() as server:
        peer = await meet(server)
        server.dialect(name)
        assert server.lose_session() == 1 and server.sessions == []
        answer = await peer.tool("add", ADD)
        assert answer.status == DIALECTS[name].status
        assert (await peer.notify("notifications/initialized")).status == answer.status
        assert (await peer.ask("GET")).status == answer.status
        assert (await peer.ask("DELETE")).status == answer.status
        assert (await peer.post("initialize")).status == answer.status
        assert server.executed == {}


async def test_dialects_are_exact_where_it_matters(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server() as server:
        peer = await meet(server)
        server.lose_session()
        assert (await peer.post("ping")).json == {
            "jsonrpc": "2.0",
            "id": None,
            "error": {"code": -32600, "message": "Session not found"},
        }
        server.dialect("404-echo")
        call = peer.call("ping")
        assert (await peer.ask("POST", call)).json["id"] == call["id"]
        server.dialect("404-empty")
        assert (await peer.post("ping")).body == b""
        server.dialect("400-text")
        assert "content-type" not in (await peer.post("ping")).headers
        server.dialect("401-bearer")
        assert "www-authenticate" in (await peer.post("ping")).headers
        server.dialect("200-sse-error")
        answer = await peer.post("ping")
        assert answer.messages[0]["error"]["message"] == "Server not initialized"
        server.dialect(Reply(418, "short and stout"))
        assert (await peer.post("ping")).body == b"short and stout"


async def test_one_session_is_lost_and_not_the_other(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server() as server:
        first, second = await meet(server), await meet(server)
        assert first.session is not None and first.session != second.session
        server.lose_session(first.session)
        assert (await first.post("ping")).status == 404
        assert (await second.post("ping")).status == 200
        server.lose_session(server.the_session)
        assert (await second.post("ping")).status == 404


async def test_what_becomes_of_calls_when_the_session_is_lost(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def slow() -> str:
        await trio.sleep(10)
        return "done"

    async with open_scripted_server() as server:
        server.tool("slow", slow)
        for streams, whole, answers in [("keep", True, 1), ("end", True, 0), ("cut", False, 0)]:
            peer = await meet(server)
            await peer.send("POST", peer.tool_call("slow"))
            await trio.sleep(1)
            server.lose_session(streams=streams)
            answer = Answer()
            try:
                await peer.receive(answer)
            except trio.BrokenResourceError:
                pass
            assert (answer.whole, len(answer.messages)) == (whole, answers)
            assert (await (await peer.another()).post("ping")).status == 404
        assert server.executed["slow"] == 3


async def test_delete_ends_streams_cleanly_without_an_answer(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server() as server:
        peer = await meet(server)
        server.tool("forever", trio.sleep_forever)
        listener, caller = await peer.another(), await peer.another()
        await listener.send("GET")
        await caller.send("POST", caller.tool_call("forever"))
        await trio.testing.wait_all_tasks_blocked()
        assert (await peer.ask("DELETE")).status == 200
        for each in (listener, caller):
            answer = await each.receive(Answer())
            assert answer.whole and answer.body == b""
        assert (await peer.ask("DELETE")).status == 404
        assert server.deleted == [peer.session]
        server.offer_delete = False
        assert (await peer.ask("DELETE")).status == 405


async def test_delete_under_a_call_in_json_mode(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server() as server:
        server.json_mode = True
        peer = await meet(server)
        server.tool("forever", trio.sleep_forever)
        caller = await peer.another()
        await caller.send("POST", caller.tool_call("forever"))
        await trio.testing.wait_all_tasks_blocked()
        await peer.ask("DELETE")
        answer = await caller.receive(Answer())
        assert answer.status == 500 and "before the request completed" in answer.json["error"]["message"]


async def test_an_idle_session_is_forgotten(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server() as server:
        server.idle_timeout = 1800.0
        peer = await meet(server)
        await trio.sleep(1799)
        assert (await peer.post("ping")).status == 200
        listener = await peer.another()
        await listener.send("GET")
        await trio.sleep(5000)
        assert len(server.sessions) == 1
        server.cut_connections()
        await trio.sleep(1799)
        assert len(server.sessions) == 1
        await trio.sleep(2)
        assert server.sessions == []
        assert (await (await peer.another()).post("ping")).status == 404


async def test_a_cancelled_call_stops_and_is_not_answered(autojump_clock: trio.testing.MockClock) -> None:
    stopped: list[bool] = []

    async def forever() -> None:
        try:
            await trio.sleep_forever()
        finally:
            stopped.append(True)

    async with open_scripted_server() as server:
        peer = await meet(server)
        server.tool("forever", forever)
        caller = await peer.another()
        call = caller.tool_call("forever")
        await caller.send("POST", call)
        await trio.testing.wait_all_tasks_blocked()
        await peer.notify("notifications/cancelled", {"requestId": call["id"]})
        answer = await caller.receive(Answer())
        assert answer.whole and answer.body == b"" and stopped
        assert server.cancelled == [call["id"]] and server.the_session.running == {}


# How connections end.


async def test_refuses_while_down(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server() as server:
        peer = await meet(server)
        server.down()
        with pytest.raises(ConnectionRefusedError):
            await server.connect("scripted.test", 80)
        assert peer.stream is not None
        with pytest.raises(trio.BrokenResourceError):
            await peer.stream.receive_some()
        server.up()
        assert (await (await peer.another()).post("ping")).status == 200
        assert server.connects_refused == 1


async def test_hangs_while_down_if_asked(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server() as server, trio.open_nursery() as nursery:
        server.down("hang", cut=False)
        with trio.move_on_after(60) as scope:
            await server.connect("scripted.test", 80)
        assert scope.cancelled_caught
        nursery.start_soon(server.connect, "scripted.test", 80)
        await trio.testing.wait_all_tasks_blocked()
        server.up()
        await trio.testing.wait_all_tasks_blocked()
        assert server.connections_made == 1


async def test_cut_connections_are_gone(autojump_clock: trio.testing.MockClock) -> None:
    """Whichever of a connection's two tasks hears of it first, and there are enough for both orders."""
    async with open_scripted_server() as server:
        for _ in range(50):
            await server.connect("scripted.test", 80)
        await trio.testing.wait_all_tasks_blocked()
        server.cut_connections()
        await trio.testing.wait_all_tasks_blocked()
        assert server.open_connections == 0


@pytest.mark.parametrize("keep_sessions", [False, True])
async def test_a_restart_stops_all_that_ran(
    keep_sessions: bool, autojump_clock: trio.testing.MockClock
) -> None:
    finished: list[bool] = []

    async def slow() -> None:
        await trio.sleep(10)
        finished.append(True)

    async with open_scripted_server() as server:
        peer = await meet(server)
        server.tool("slow", slow)
        await peer.send("POST", peer.tool_call("slow"))
        await trio.sleep(1)
        server.restart(keep_sessions=keep_sessions, down_for=5)
        with pytest.raises(trio.BrokenResourceError):
            await peer.receive(Answer())
        with pytest.raises(ConnectionRefusedError):
            await peer.another()
        await trio.sleep(5)
        after = await (await peer.another()).post("ping")
        assert after.status == (200 if keep_sessions else 404)
        await trio.sleep(20)
        assert server.executed["slow"] == 1 and not finished


async def test_a_client_that_leaves_does_not_stop_its_call(autojump_clock: trio.testing.MockClock) -> None:
    finished = trio.Event()

    async def slow() -> None:
        await trio.sleep(10)
        finished.set()

    async with open_scripted_server() as server:
        peer = await meet(server)
        server.tool("slow", slow)
        await peer.send("POST", peer.tool_call("slow"))
        assert peer.stream is not None
        # It arrived whole, so it runs, even though nobody waits any more.
        peer.stream.close()
        await finished.wait()
        assert server.open_connections == 0


async def test_idle_connections_are_closed_if_asked(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server() as server:
        server.keep_alive_timeout = 5.0
        peer = await meet(server)
        await trio.sleep(4)
        assert peer.stream is not None and not peer.stream.is_readable()
        await trio.sleep(2)
        assert peer.stream.is_readable() and await peer.stream.receive_some() == b""


# What can be scripted.


async def outcome(peer: Peer, call: dict[str, Any]) -> tuple[Answer, type[Exception] | None]:
    answer = Answer()
    try:
        with trio.fail_after(60):
            await peer.send("POST", call)
            await peer.receive(answer)
    except (trio.BrokenResourceError, h11.RemoteProtocolError, trio.TooSlowError) as error:
        return answer, type(error)
    return answer, None


ENDS: dict[str, type[Exception] | None] = {
    "reset": trio.BrokenResourceError,
    "fin": h11.RemoteProtocolError,
    "silence": trio.TooSlowError,
    "end": None,
}


@pytest.mark.parametrize("json_mode", [False, True])
@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize(
    ("point", "ran", "head", "body"),
    [
        ("before-run", 0, None, ""),
        ("before-head", 1, None, ""),
        ("after-head", 1, 200, ""),
        ("mid-body", 1, 200, "half"),
        ("before-end", 1, 200, "whole"),
    ],
)
async def test_cuts(
    point: Any,
    ran: int,
    head: int | None,
    body: str,
    how: Any,
    json_mode: bool,
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_scripted_server() as server:
        peer = await meet(server)
        server.json_mode = json_mode
        fault = server.cut(point, how=how, when="tools/call")
        assert (await peer.post("ping")).status == 200
        answer, error = await outcome(peer, peer.tool_call("add", ADD))
        message = answer.body if json_mode else answer.body.removesuffix(b"\n\n")
        assert answer.status == head and server.executed["add"] == ran
        assert fault.hits == 1
        if body == "":
            assert answer.body == b""
        elif body == "half":
            assert message and not message.endswith(b"}")
        else:
            assert b'"text": "3"' in message and message.endswith(b"}")
        # What has no head yet cannot end properly.
        assert error is (h11.RemoteProtocolError if how == "end" and head is None else ENDS[how])
        after = await (await peer.another()).tool("add", ADD)
        assert after.whole and server.executed["add"] == ran + 1


async def test_cut_after_any_number_of_bytes(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server() as server:
        peer = await meet(server)
        sizes: list[int] = []
        for after_bytes in (0, 1, 20, 200):
            fault = server.cut(after_bytes=after_bytes, when="tools/call")
            caller = await peer.another()
            await caller.send("POST", caller.tool_call("add", ADD))
            received = b""
            assert caller.stream is not None
            with pytest.raises(trio.BrokenResourceError):
                while True:
                    received += await caller.stream.receive_some()
            sizes.append(len(received))
            assert fault.hits == 1
        assert sizes == [0, 1, 20, 200] and server.executed["add"] == 4


async def test_cut_after_the_very_last_byte(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server() as server:
        peer = await meet(server)
        size = 0
        # First it is measured, then cut right there: all arrives, and the connection is gone.
        for _ in range(2):
            caller = await peer.another()
            await caller.send("POST", {**caller.tool_call("add", ADD), "id": 7})
            received = b""
            assert caller.stream is not None
            while not received.endswith(b"\r\n0\r\n\r\n"):
                received += await caller.stream.receive_some()
            assert size in (0, len(received))
            size = len(received)
            await trio.testing.wait_all_tasks_blocked()
            assert caller.stream.is_readable() == (server.seen("tools/call")[1:] != [])
            server.cut(after_bytes=size, when="tools/call")


async def test_a_request_cut_short_never_runs(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server() as server:
        peer = await meet(server)
        fault = server.cut("mid-request", after_bytes=100, when="tools/call")
        assert (await peer.post("ping")).status == 200
        with pytest.raises(trio.BrokenResourceError):
            await peer.send("POST", peer.tool_call("add", ADD))
        await trio.testing.wait_all_tasks_blocked()
        assert fault.hits == 1 and server.executed["add"] == 0 and len(server.posts("tools/call")) == 0
        # Never the last byte, however many are admitted.
        server.cut("mid-request", after_bytes=10_000, when=lambda seen: seen.tool == "add")
        other = await peer.another()
        with pytest.raises(trio.BrokenResourceError):
            await other.send("POST", other.tool_call("add", ADD))
        await trio.testing.wait_all_tasks_blocked()
        assert server.executed["add"] == 0


async def test_scripted_answers(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server() as server:
        peer = await meet(server)
        server.answer(503, "busy", headers={"retry-after": "7"}, when="tools/call", times=2)
        server.answer(502, lambda seen: {"said": seen.tool}, when=lambda seen: seen.tool == "add", ran=True)
        for _ in range(2):
            answer = await peer.tool("add", ADD)
            assert (answer.status, answer.body, answer.headers["retry-after"]) == (503, b"busy", "7")
        assert server.executed["add"] == 0
        answer = await peer.tool("add", ADD)
        assert (answer.status, answer.json) == (502, {"said": "add"})
        assert server.executed["add"] == 1
        assert (await peer.tool("add", ADD)).status == 200
        assert [seen.status for seen in server.posts("tools/call")] == [503, 503, 502, 200]
        server.answer(500, times=math.inf)
        server.forget_script()
        assert (await peer.post("ping")).status == 200


async def test_holds_and_lets_go(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server() as server:
        peer = await meet(server)
        for point, ran in (("before-run", 0), ("before-head", 4)):
            held = server.hold("tools/call", point=point, times=2)
            callers = [await peer.another() for _ in range(2)]
            for caller in callers:
                await caller.send("POST", caller.tool_call("add", ADD))
            await held.reached(2)
            assert server.executed["add"] == ran
            held.release()
            for caller in callers:
                assert (await caller.receive(Answer())).whole
            await held.reached(2)
            assert held.hits == 2
            assert (await peer.post("ping")).status == 200
        assert server.executed["add"] == 4


async def test_holds_no_more_than_asked(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server() as server:
        peer = await meet(server)
        held = server.hold("ping")
        await peer.send("POST", peer.call("ping"))
        await held.reached()
        assert (await (await peer.another()).post("ping")).status == 200
        held.release()
        many = server.hold("ping", times=math.inf)
        many.release()
        assert (await (await peer.another()).post("ping")).status == 200
        assert (held.hits, many.hits) == (1, 0)


async def test_a_client_that_leaves_with_its_last_byte_is_not_kept_waiting(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_scripted_server() as server:
        server.cut("before-run", how="silence", when="tools/call")
        stream = await server.connect("server.test", 80)
        body = json.dumps(
            {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "add"}}
        ).encode()
        head = f"POST /mcp HTTP/1.1\r\nhost: server.test\r\ncontent-length: {len(body)}\r\n"
        await stream.send_all(head.encode() + b"content-type: application/json\r\n\r\n" + body)
        await stream.aclose()
        await trio.testing.wait_all_tasks_blocked()
        assert server.open_connections == 0


async def test_silence_lasts_until_the_client_leaves(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server() as server:
        peer = await meet(server)
        silent = server.go_silent(when="ping")
        await peer.send("POST", peer.call("ping"))
        await silent.reached()
        assert server.requests[-1].status is None
        assert peer.stream is not None
        with trio.move_on_after(3600):
            await peer.stream.receive_some()
            pytest.fail("it spoke")
        peer.stream.close()
        await trio.testing.wait_all_tasks_blocked()
        assert server.open_connections == 0


async def test_a_fault_needs_a_place(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server() as server:
        with pytest.raises(ValueError, match="say where"):
            server.cut()
        with pytest.raises(ValueError, match="say where"):
            server.cut("mid-body", after_bytes=3)
        with pytest.raises(ValueError, match="reset or a fin"):
            server.cut(after_bytes=3, how="silence")


async def test_delays(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server() as server:
        peer = await meet(server)
        server.delay = lambda seen: 3.0 if seen.tool == "add" else 0.0
        start = trio.current_time()
        await peer.post("ping")
        await peer.tool("add", ADD)
        assert trio.current_time() == start + 3


@pytest.mark.parametrize(
    "slip",
    [
        lambda server: server.cut("befor-head"),
        lambda server: server.cut("mid-body", how="zip"),
        lambda server: server.cut(after_bytes=3, how="zip"),
        lambda server: server.go_silent("mid-bdy"),
        lambda server: server.hold("ping", point="after-head"),
        lambda server: server.restart(era="old"),
        lambda server: server.restart(how="zip"),
        lambda server: server.cut_connections("zip"),
        lambda server: server.lose_session(streams="x"),
        lambda server: server.dialect("bogus"),
        lambda server: server.discover_dialect("bogus"),
    ],
)
async def test_a_slip_of_the_pen_breaks_nothing_silently(slip: Any) -> None:
    async with open_scripted_server() as server:
        with pytest.raises(ValueError, match=" is none of "):
            slip(server)
