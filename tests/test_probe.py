"""The doctor for servers: what it asks, that it leaves nothing behind, and each thing it finds."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from trio_mcp_resilient import ConnectionLost
from trio_mcp_resilient._cli_options import Target, wire_of
from trio_mcp_resilient._envelope import Introduction
from trio_mcp_resilient._probe import PATIENCE, probe
from trio_mcp_resilient._probe_report import ADVICE, Level, Report, Step, as_json
from trio_mcp_resilient.testing import DIALECTS, Reply, ScriptedServer, SeenRequest, open_scripted_server

ME = Introduction({"name": "doctor", "version": "1"}, {})


async def examine(server: ScriptedServer) -> Report:
    """Probe a scripted server; whatever it is like, it must be left as it was found."""
    server.tool("add", lambda a, b: str(a + b))
    target = Target(server.url, {}, "auto", 1, 60, connect=server.connect)
    report = await probe(target.endpoint, wire_of(target), ME)
    assert server.executed.total() == 0, "a tool was called"
    assert not server.sessions or not server.offer_delete, "a session was left behind"
    return report


async def test_a_good_server_of_sessions(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server() as server:
        report = await examine(server)
    assert [(row.step, row.status) for row in report.rows] == [
        (Step.DISCOVER, 400),
        (Step.INITIALIZE, 200),
        (Step.INITIALIZED, 202),
        (Step.CALL, 200),
        (Step.STREAM, 200),
        (Step.NO_ID, 400),
        (Step.MADE_UP, 404),
        (Step.MADE_UP_STREAM, 404),
        (Step.DELETE, 200),
        (Step.OLD, 404),
    ]
    assert report.eras == ("legacy",) and report.keeps_sessions and not report.resumable
    assert report.standard_client_recovers and report.this_client_recovers and report.sound
    assert [finding.level for finding in report.findings] == [Level.MAY]
    assert report.server == "scripted 1" and report.protocol_version == "2025-11-25"


async def test_a_resumable_server_is_told_by_its_event_ids(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server() as server:
        server.resumable = True
        report = await examine(server)
    assert report.resumable and not report.findings


async def test_a_server_without_sessions_has_nothing_to_lose(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server() as server:
        server.stateless = True
        report = await examine(server)
    assert not report.keeps_sessions and report.sound
    assert report.standard_client_recovers is None and report.this_client_recovers is None
    steps = set(report.by_step)
    assert Step.MADE_UP in steps and not steps & {Step.NO_ID, Step.DELETE, Step.OLD}


async def test_a_server_of_the_modern_era(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server(era="modern") as server:
        report = await examine(server)
    assert report.eras == ("modern",) and report.sound and not report.findings
    assert [row.step for row in report.rows] == [
        Step.DISCOVER,
        Step.MODERN_CALL,
        Step.MODERN_ID,
        Step.INITIALIZE,
    ]


async def test_a_server_of_both_eras(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server(era="both") as server:
        report = await examine(server)
    assert report.eras == ("modern", "legacy") and report.sound
    # All but one of them: it had no reason to be refused.
    assert set(Step) == set(report.by_step)


@pytest.mark.parametrize("dialect", sorted(DIALECTS))
async def test_each_way_to_refuse_a_lost_session(
    dialect: str, autojump_clock: trio.testing.MockClock
) -> None:
    async with open_scripted_server() as server:
        server.dialect(dialect)
        report = await examine(server)
    assert report.standard_client_recovers is (DIALECTS[dialect].status == 404)
    # The table reads every one of them.
    assert report.this_client_recovers is True
    assert report.sound is report.standard_client_recovers


# What it finds

Arrange = Callable[[ScriptedServer], Any]


def unknown(server: ScriptedServer, http_method: str = "POST") -> Callable[[SeenRequest], bool]:
    """Those that come with an id that was never given out."""
    given = server.deleted

    def tells(seen: SeenRequest) -> bool:
        known = [*given, *(session.id for session in server.sessions)]
        return (
            seen.http_method == http_method and seen.session_id is not None and seen.session_id not in known
        )

    return tells


def deleted(server: ScriptedServer) -> Callable[[SeenRequest], bool]:
    """Those that come with the id of a session that was ended."""
    return lambda seen: seen.session_id in server.deleted


RESULT = {"jsonrpc": "2.0", "id": 1, "result": {"tools": []}}


def _taken(seen: SeenRequest) -> dict[str, Any]:
    return {**RESULT, "id": seen.rpc_id}


def modern(rpc_method: str, *, with_id: bool) -> Callable[[SeenRequest], bool]:
    return lambda seen: (
        seen.protocol_version == "2026-07-28"
        and seen.rpc_method == rpc_method
        and (seen.session_id is not None) is with_id
    )


SICK: dict[str, tuple[str, Arrange, set[tuple[Step, Level]]]] = {
    "never answers what it does not know": (
        "legacy",
        lambda server: server.go_silent(when="server/discover"),
        {(Step.DISCOVER, Level.SHOULD)},
    ),
    "names a session where it made none": (
        "legacy",
        lambda server: server.discover_dialect("400-session"),
        {(Step.DISCOVER, Level.SHOULD)},
    ),
    "refuses what it offers": (
        "both",
        lambda server: server.answer(500, "oops", when=modern("tools/list", with_id=False)),
        # The same with an id is answered, and so differs.
        {(Step.MODERN_CALL, Level.MUST), (Step.MODERN_ID, Level.MUST)},
    ),
    "looks at ids in an era without": (
        "both",
        lambda server: server.answer(404, when=modern("tools/list", with_id=True)),
        {(Step.MODERN_ID, Level.MUST)},
    ),
    "answers a notification": (
        "legacy",
        lambda server: server.answer(200, "{}", when="notifications/initialized"),
        {(Step.INITIALIZED, Level.MUST)},
    ),
    "does not know its own session": (
        "legacy",
        lambda server: server.answer(404, when="tools/list"),
        {(Step.CALL, Level.MUST)},
    ),
    "answers GET by a page": (
        "legacy",
        lambda server: server.answer(200, "<html>hi</html>", content_type="text/html", when="GET"),
        {(Step.STREAM, Level.MUST)},
    ),
    "takes requests without an id": (
        "legacy",
        lambda server: server.answer(
            200, _taken, when=lambda seen: seen.rpc_method == "tools/list" and seen.session_id is None
        ),
        {(Step.NO_ID, Level.SHOULD)},
    ),
    "takes an id that it never gave out": (
        "legacy",
        lambda server: server.answer(200, _taken, when=unknown(server)),
        {(Step.MADE_UP, Level.MUST)},
    ),
    "says 404 of the method": (
        "legacy",
        lambda server: server.answer(
            404,
            {"jsonrpc": "2.0", "id": 7, "error": {"code": -32601, "message": "Method not found"}},
            when=unknown(server),
        ),
        {(Step.MADE_UP, Level.SHOULD)},
    ),
    "opens a stream to strangers": (
        "legacy",
        lambda server: server.answer(200, content_type="text/event-stream", when=unknown(server, "GET")),
        {(Step.MADE_UP_STREAM, Level.MUST)},
    ),
    "fails to end a session": (
        "legacy",
        lambda server: server.answer(500, when="DELETE"),
        {(Step.DELETE, Level.SHOULD)},
    ),
    "remembers what was deleted": (
        "legacy",
        lambda server: server.answer(200, _taken, when=deleted(server)),
        {(Step.OLD, Level.MUST)},
    ),
    "refuses what was deleted by another status": (
        "legacy",
        lambda server: server.answer(400, "Bad Request: No valid session ID provided", when=deleted(server)),
        {(Step.OLD, Level.MUST)},
    ),
    "refuses the unknown by another status": (
        "legacy",
        lambda server: server.answer(400, "Bad Request: No valid session ID provided", when=unknown(server)),
        {(Step.MADE_UP, Level.MUST)},
    ),
}


async def sick(name: str) -> Report:
    era, arrange, _ = SICK[name]
    async with open_scripted_server(era=era) as server:  # type: ignore[arg-type]
        server.resumable = True
        arrange(server)
        return await examine(server)


@pytest.mark.parametrize("name", SICK)
async def test_each_thing_to_mend_is_found_alone(name: str, autojump_clock: trio.testing.MockClock) -> None:
    report = await sick(name)
    assert {(finding.step, finding.level) for finding in report.findings} == SICK[name][2]
    weighs = any(level is Level.MUST for _, level in SICK[name][2])
    assert report.sound is not weighs


async def test_every_entry_of_the_table_is_found_in_some_server(
    autojump_clock: trio.testing.MockClock,
) -> None:
    found: set[str] = set()
    for name in SICK:
        found.update(finding.what for finding in (await sick(name)).findings)
    async with open_scripted_server() as server:
        found.update(finding.what for finding in (await examine(server)).findings)
    beginnings = {advice.what.partition("{")[0] for advice in ADVICE}
    missed = {words for words in beginnings if not any(what.startswith(words) for what in found)}
    assert not missed


def test_the_manual_shows_the_recorded_probes() -> None:
    spec = importlib.util.spec_from_file_location(
        "probe_table", Path(__file__).parent.parent / "docs" / "probe_table.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    page = module.PAGE.read_text(encoding="utf-8")
    assert module.written(page) == page, "run: python docs/probe_table.py"


# What cannot be examined


async def test_nobody_there_is_an_error(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server() as server:
        server.down()
        with pytest.raises(ConnectionLost, match=r"scripted\.test"):
            await examine(server)


@pytest.mark.parametrize(
    ("status", "why"),
    [(404, "neither initialize nor server/discover"), (401, "credentials"), (500, "neither")],
)
async def test_what_is_no_mcp_server_is_unfit(
    status: int, why: str, autojump_clock: trio.testing.MockClock
) -> None:
    async with open_scripted_server() as server:
        server.answer(status, "<html>no</html>", times=float("inf"))
        report = await examine(server)
    assert why in report.unfit and not report.sound and not report.eras
    assert len(report.rows) == 2


async def test_a_session_id_that_is_no_header_is_told(autojump_clock: trio.testing.MockClock) -> None:
    result = {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "serverInfo": {"name": "x", "version": "1"},
    }
    async with open_scripted_server() as server:
        server.answer(
            200,
            lambda seen: {"jsonrpc": "2.0", "id": seen.rpc_id, "result": result},
            headers={"mcp-session-id": "with space"},
            when="initialize",
        )
        report = await examine(server)
    assert "not visible ASCII" in report.unfit


async def test_a_discovery_of_older_versions_only_is_no_modern_server(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_scripted_server() as server:
        server.discover_dialect("200-older")
        report = await examine(server)
    assert report.eras == ("legacy",) and Step.MODERN_CALL not in report.by_step
    assert report.by_step[Step.DISCOVER].excerpt == "versions 2025-06-18, 2025-11-25"


async def test_an_answer_that_never_comes_is_a_row(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server() as server:
        server.go_silent(when=unknown(server))
        began = trio.current_time()
        report = await examine(server)
    row = report.by_step[Step.MADE_UP]
    assert row.status is None and "no answer within" in row.excerpt
    assert trio.current_time() - began == pytest.approx(PATIENCE)
    assert not report.standard_client_recovers and not report.this_client_recovers


async def test_a_cancelled_probe_ends_its_session(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server() as server:
        held = server.hold(when=unknown(server))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(examine, server)
            await held.reached()
            nursery.cancel_scope.cancel()
        assert len(server.deleted) == 1 and not server.sessions


async def test_the_report_never_shows_the_session_id(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server() as server:
        server.dialect(Reply(404, lambda seen: f"Session {seen.session_id} not found", "text/plain"))
        report = await examine(server)
        (session_id,) = server.deleted
    assert session_id not in str(as_json(report)) and session_id not in str(report)
    assert "not found" in report.by_step[Step.OLD].excerpt
