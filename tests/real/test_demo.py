"""The demo from the outside: its exit status, its words, and that it leaves no process behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import trio
from mcp import Client as SdkClient

from trio_mcp_resilient import _demo, _demo_process
from trio_mcp_resilient.__main__ import main
from trio_mcp_resilient._demo_journal import Journal
from trio_mcp_resilient._demo_process import ServerFailed, free_port, open_server_process
from trio_mcp_resilient._demo_scenario import CALLS, HUNG, OK, Column
from trio_mcp_resilient._demo_server import DemoServer, Message, Receive, Send, SessionRecorder

from .calling import plain_sdk_leaks

DEMO = [sys.executable, "-m", "trio_mcp_resilient", "demo"]

MINE = Column("mine", OK, OK, OK, 1, (OK,) * CALLS, 1, 0)
STUCK = "MCPError: Session not found"
CONTROL = Column("control", OK, STUCK, STUCK, 0, (STUCK,) * CALLS, 0, 0)


@pytest.mark.real
@plain_sdk_leaks
def test_the_demo_shows_what_it_claims(capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["demo", "--json"])
    printed = capsys.readouterr()
    assert status == 0, printed.err
    report = json.loads(printed.out)
    assert report["as_claimed"] is True
    mine, control = report["columns"]
    assert mine == {
        "client": "trio_mcp_resilient",
        "before": OK,
        "first_after_restart": OK,
        "again_after_restart": OK,
        "handshakes_after_restart": 1,
        "concurrent_calls": CALLS,
        "concurrent_answered": CALLS,
        "handshakes_after_deletion": 1,
        "executed_twice": 0,
    }
    assert control["before"] == OK
    assert "Session not found" in control["first_after_restart"]
    assert control["concurrent_answered"] == control["handshakes_after_deletion"] == 0
    pids = server_pids(printed.err.encode())
    assert len(set(pids)) == 4
    for pid in pids:
        assert_gone(pid)


@pytest.mark.real
@pytest.mark.limit(60)
async def test_an_interrupted_demo_ends_its_server() -> None:
    process = await trio.lowlevel.open_process(DEMO, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert process.stderr is not None
        heard = b""
        while not server_pids(heard):
            heard += await process.stderr.receive_some()
        process.send_signal(signal.SIGINT)
        # A shell sees 130 in both. Python prefers to die of the signal itself if that struck in code
        # made from a string, such as the methods of a dataclass.
        assert await process.wait() in (130, -signal.SIGINT)
    finally:
        process.kill()
    (pid,) = server_pids(heard)
    assert_gone(pid)


def server_pids(said: bytes) -> list[int]:
    return [int(pid) for pid in re.findall(rb"server is (?:back as )?process (\d+)", said)]


def assert_gone(pid: int) -> None:
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.parametrize(
    ("mine", "control"),
    [
        (replace(MINE, first=STUCK), CONTROL),
        (replace(MINE, again=HUNG), CONTROL),
        (replace(MINE, concurrent=(OK,) * (CALLS - 1) + (STUCK,)), CONTROL),
        (replace(MINE, concurrent=(OK,) * (CALLS - 1)), CONTROL),
        (replace(MINE, restart_handshakes=2), CONTROL),
        (replace(MINE, delete_handshakes=CALLS), CONTROL),
        (replace(MINE, twice=1), CONTROL),
        (MINE, replace(CONTROL, before=STUCK)),
        (MINE, replace(CONTROL, again=OK)),
        (MINE, replace(CONTROL, concurrent=(OK,) + (STUCK,) * (CALLS - 1))),
    ],
)
def test_each_way_in_which_the_claim_can_fail_is_told(mine: Column, control: Column) -> None:
    assert len(_demo.complaints(mine, control)) == 1


def test_the_claim_as_a_table() -> None:
    assert _demo.complaints(MINE, CONTROL) == []
    assert _demo.table(MINE, CONTROL).splitlines() == [
        "                                   mine                                control",
        "                                   ----                                -------",
        "call before the kill               ok                                  ok",
        "first call after the restart       ok                                  MCPError: Session not found",
        "the call after that                ok                                  MCPError: Session not found",
        "handshakes after the restart       1                                   0",
        "20 calls at once, session deleted  20 of 20                            0 of 20",
        "handshakes after the deletion      1                                   0",
        "tickets booked twice               0                                   0",
    ]


def test_a_long_error_does_not_break_the_table() -> None:
    lines = _demo.table(replace(MINE, first="x" * 500), CONTROL).splitlines()
    assert max(map(len, lines)) < 110


@pytest.mark.parametrize(("control", "status"), [(CONTROL, 0), (replace(CONTROL, first=OK), 1)])
def test_the_exit_status_follows_the_claim(
    control: Column, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def run() -> tuple[Column, Column]:
        return MINE, control

    monkeypatch.setattr(_demo, "run", run)
    assert main(["demo"]) == status
    printed = capsys.readouterr()
    assert printed.out == _demo.table(MINE, control) + "\n"
    assert ("not as it should be" in printed.err) is bool(status)


def test_a_server_that_does_not_start_is_told_and_is_no_verdict(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def run() -> tuple[Column, Column]:
        # The SDK's client puts what is raised inside its block into groups.
        raise ExceptionGroup("", [ExceptionGroup("", [ServerFailed("no server on port 1")])])

    monkeypatch.setattr(_demo, "run", run)
    assert main(["demo"]) == 3
    assert "no server on port 1" in capsys.readouterr().err


async def test_a_server_that_exits_at_once_is_told_with_its_last_words(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "raise SystemExit('no such thing')"]
    async with open_server_process(command, port=free_port(), log=tmp_path / "log") as server:
        with pytest.raises(ServerFailed, match="no such thing"):
            await server.start()
        assert server.pid is None


async def test_a_server_that_never_listens_is_given_up_on_and_ended(tmp_path: Path) -> None:
    async with open_server_process(SLEEPER, port=free_port(), log=tmp_path / "log") as server:
        with pytest.raises(ServerFailed):
            await server.start(within=0.1)
        assert server.pid is None


SLEEPER = [sys.executable, "-c", "import signal; signal.pause()"]
LISTENER = [
    sys.executable,
    "-c",
    "import signal, socket, sys; s = socket.create_server(('127.0.0.1', int(sys.argv[1]))); signal.pause()",
]


async def test_a_server_ends_with_its_block_however_that_is_left(tmp_path: Path) -> None:
    port = free_port()
    pids: list[int] = []

    async def hold(raised: Exception | None) -> None:
        async with open_server_process([*LISTENER, str(port)], port=port, log=tmp_path / "log") as server:
            await server.start()
            assert server.pid is not None
            pids.append(server.pid)
            if raised is not None:
                raise raised
            scope.cancel()
            await trio.sleep_forever()

    with trio.CancelScope() as scope:
        await hold(None)
    assert scope.cancelled_caught
    with pytest.raises(ValueError, match="the block's own"):
        await hold(ValueError("the block's own"))
    assert len(set(pids)) == 2
    for pid in pids:
        assert_gone(pid)


async def test_a_server_restarts_on_its_port_and_is_not_started_twice(tmp_path: Path) -> None:
    port = free_port()
    async with open_server_process([*LISTENER, str(port)], port=port, log=tmp_path / "log") as server:
        await server.start()
        first = server.pid
        with pytest.raises(RuntimeError, match="running already"):
            await server.start()
        await server.kill()
        await server.kill()
        await server.start()
        assert server.pid not in (None, first)


def test_ports_stay_out_of_the_range_that_the_system_hands_out() -> None:
    assert all(free_port() in _demo_process.PORTS for _ in range(10))


async def test_the_demo_server_writes_down_each_booking(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    async with SdkClient(DemoServer(journal)) as client:
        for ticket in ("one", "two", "two"):
            await client.call_tool("book", {"ticket": ticket})
    assert journal.executions() == {"one": 1, "two": 2}
    assert journal.executions("t") == {"two": 2}
    assert journal.sessions() == []


@pytest.mark.parametrize(
    ("asked_with", "status", "answered_with", "noted"),
    [("", 200, "new", ["new"]), ("old", 200, "old", []), ("", 200, "", []), ("", 400, "new", [])],
)
async def test_the_demo_server_writes_down_each_session_it_makes(
    asked_with: str, status: int, answered_with: str, noted: list[str], tmp_path: Path
) -> None:
    def headers(session_id: str) -> list[tuple[bytes, bytes]]:
        return [(b"mcp-session-id", session_id.encode())] if session_id else []

    async def app(scope: Message, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": status, "headers": headers(answered_with)})
        await send({"type": "http.response.body", "body": b""})

    async def receive() -> Message:
        raise AssertionError("nothing to receive")

    async def send(message: Message) -> None:
        sent.append(message["type"])

    sent: list[str] = []
    journal = Journal(tmp_path / "journal")
    await SessionRecorder(app, journal)({"type": "http", "headers": headers(asked_with)}, receive, send)
    assert journal.sessions() == noted
    assert sent == ["http.response.start", "http.response.body"]
