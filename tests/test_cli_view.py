"""What people see of the command line: tables, texts, live pictures. It needs the extra `cli`."""

from __future__ import annotations

import base64
import io
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from cli_kit import Capture, open_url, run
from rich.console import Console, RenderableType

from trio_mcp_resilient import _cli_demo, _cli_view, _cli_watch, _demo
from trio_mcp_resilient._cli_options import Target
from trio_mcp_resilient._demo_scenario import CALLS, OK, Column, Say, Show
from trio_mcp_resilient._watch import Picture, Tell, watch
from trio_mcp_resilient.testing import open_scripted_server

EVIL = "[red]red[/red] \x1b]0;title\x07:smile:"
SEEN = "[red]red[/red] \\u001b]0;title\\u0007:smile:"


class Terminal(io.StringIO):
    """A stdout that is a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def text_of(shown: RenderableType, width: int = 100) -> str:
    """Return what is shown, without colours."""
    out = Console(file=io.StringIO(), width=width, markup=False, emoji=False, highlight=False)
    out.print(shown)
    assert isinstance(out.file, io.StringIO)
    return out.file.getvalue()


@pytest.fixture
def as_terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Terminal]:
    """Make a stream of the process a terminal with colours, from when the test calls it."""
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)

    def replace(name: str) -> Terminal:
        stream = Terminal()
        monkeypatch.setattr(sys, name, stream)
        return stream

    return replace


# Listings


async def test_tools(capsys: Capture) -> None:
    async with open_url() as (server, url):
        server.tool("evil", lambda: "", description=EVIL, annotations={"readOnlyHint": True})
        assert await run("tools", url) == 0
        for name in ("add", "fail", "hang", "count", "evil"):
            server.remove_tool(name)
        assert await run("tools", url) == 0
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert lines[0].split() == ["tool", "arguments", "hints", "description"]
    assert lines[1].split() == ["add", "a", "b", "adds"]
    assert SEEN in printed.out and "read-only" in printed.out and "\x1b" not in printed.out
    assert lines[-1] == "no tools" and printed.err == ""


async def test_resources_and_prompts(capsys: Capture) -> None:
    async with open_url() as (_, url):
        assert await run("resources", url) == 0
        assert await run("prompts", url) == 0
    printed = capsys.readouterr().out
    assert "note://one" in printed and "note://{name}" in printed and "text/plain" in printed
    assert "greet   name" in printed


def test_what_may_be_left_out_is_in_brackets(capsys: Capture) -> None:
    schema = {"properties": {"a": {}, "b": {}}, "required": ["b"]}
    _cli_view.show("tools", {"tools": [{"name": "t", "inputSchema": schema}]})
    _cli_view.show("prompts", {"prompts": [{"name": "p", "arguments": [{"name": "c"}]}]})
    printed = capsys.readouterr().out
    assert "[a] b" in printed and "[c]" in printed


def test_long_lines_stay_whole_where_there_is_no_terminal(capsys: Capture) -> None:
    _cli_view.show("tools", {"tools": [{"name": "t", "description": "word " * 30}]})
    assert len(capsys.readouterr().out.splitlines()) == 2


# Texts


async def test_a_text_goes_out_as_it_is(capsys: Capture) -> None:
    async with open_url() as (server, url):
        server.tool("evil", lambda: EVIL)
        assert await run("call", url, "evil") == 0
        assert await run("read", url, "note://one") == 0
        assert await run("prompts", url, "greet", "--args", '{"name": "you"}') == 0
    assert capsys.readouterr().out == f"{EVIL}\nfirst\nsecond\nuser:\nHello you!\n"


async def test_on_a_terminal_it_is_cleaned(as_terminal: Callable[[str], Terminal]) -> None:
    terminal = as_terminal("stdout")
    async with open_url() as (server, url):
        server.tool("evil", lambda: EVIL + "x" * 300)
        assert await run("call", url, "evil") == 0
    # Not folded either: what is copied from a terminal is to be what was said.
    assert terminal.getvalue() == f"{SEEN}{'x' * 300}\n"


async def test_a_tools_error_is_printed_and_told(capsys: Capture) -> None:
    async with open_url() as (_, url):
        assert await run("call", url, "fail") == 1
    printed = capsys.readouterr()
    assert printed.out == "it broke\n" and printed.err == "trio-mcp: the tool reported an error\n"


def show(kind: str, result: dict[str, Any]) -> None:
    _cli_view.show(kind, {"result": result})


def test_other_contents_are_named(capsys: Capture) -> None:
    encoded = base64.b64encode(b"123456").decode()
    blocks = [
        {"type": "image", "mimeType": "image/png", "data": encoded},
        {"type": "resource_link", "uri": "note://one", "name": "one"},
        {"type": "resource", "resource": {"uri": "note://one", "text": "inside"}},
    ]
    show("call", {"content": blocks, "structuredContent": {"n": 1}})
    expected = '[image, image/png, 6 bytes]\nnote://one\ninside\n{\n  "n": 1\n}\n'
    assert capsys.readouterr().out == expected


def test_bytes_go_out_as_they_are(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    data = bytes(range(256))
    show("read", {"contents": [{"uri": "x", "blob": base64.b64encode(data).decode()}]})
    sys.stdout.flush()
    assert capfdbinary.readouterr().out == data


def test_but_not_to_a_terminal(as_terminal: Callable[[str], Terminal]) -> None:
    terminal = as_terminal("stdout")
    blob = base64.b64encode(b"123").decode()
    show("read", {"contents": [{"uri": "x", "blob": blob, "mimeType": "a/b"}]})
    assert "[blob, a/b, 3 bytes]" in terminal.getvalue()


# Colours and progress


def test_no_color_is_honoured(
    as_terminal: Callable[[str], Terminal], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = as_terminal("stdout")
    monkeypatch.setenv("NO_COLOR", "1")
    picture = Picture("http://x/", state="ready")
    _cli_view.console().print(_cli_watch.render(picture, 1.0))
    plain = terminal.getvalue()
    monkeypatch.delenv("NO_COLOR")
    _cli_view.console().print(_cli_watch.render(picture, 1.0))
    coloured = terminal.getvalue()[len(plain) :]
    green = "\x1b[1;32m"
    assert green in coloured and green not in plain


async def test_progress_is_shown_on_a_terminal(
    as_terminal: Callable[[str], Terminal], capsys: Capture
) -> None:
    stderr = as_terminal("stderr")
    async with open_url() as (_, url):
        assert await run("call", url, "count") == 0
    assert "half" in stderr.getvalue() and "1 of 2" in stderr.getvalue()
    assert capsys.readouterr().out == "counted\n"


async def test_and_nowhere_else(capsys: Capture) -> None:
    async with open_url() as (server, url):
        assert await run("call", url, "count") == 0
        (seen,) = server.posts("tools/call")
    assert capsys.readouterr().err == ""
    assert "progressToken" not in seen.params.get("_meta", {})


# Watch


async def watched(picture: Picture, *, interval: float = 1) -> None:
    """Watch a server that loses its session once, in 3.5 seconds of virtual time."""
    async with open_scripted_server() as server, trio.open_nursery() as nursery:
        target = Target(server.url, {}, "legacy", 1, 1.0, connect=server.connect)

        async def lose() -> None:
            await trio.sleep(1.5)
            server.lose_session()

        def observe(tell: Tell) -> Awaitable[None]:
            return watch(target, tell, interval=interval, span=3.5)

        nursery.start_soon(lose)
        await _cli_watch.show(picture, observe)


async def test_a_watch_in_lines(capsys: Capture, autojump_clock: trio.testing.MockClock) -> None:
    await watched(Picture("http://x/"))
    lines = capsys.readouterr().out.splitlines()
    assert any('generation 1 lost: POST ping answered 404 "Session not found' in line for line in lines)
    assert any("generation 2 stands (2025-11-25), after 1 attempt in 0.00 s" in line for line in lines)
    assert lines[-1] == "generation 2   2025-11-25   1 lost (recovered in 0.00 s)   4 pings"
    assert not any("answered in" in line for line in lines), "a line for each ping is too much"


async def test_a_watch_on_a_terminal(
    as_terminal: Callable[[str], Terminal], autojump_clock: trio.testing.MockClock
) -> None:
    terminal = as_terminal("stdout")
    picture = Picture("http://x/")
    await watched(picture)
    assert "×" in terminal.getvalue() and picture.generation == 2


def test_the_picture_of_a_watch() -> None:
    picture = Picture("http://x/", protocol_version="2025-11-25", generation=3, losses=2)
    picture.take(
        {
            "event": "StateChanged",
            "before": "ready",
            "after": "recovering",
            "seconds": 10.0,
            "at": "2026-11-29T12:00:00+00:00",
        }
    )
    picture.take({"event": "PingFailed", "error": EVIL, "seconds": 11.0, "at": "2026-11-29T12:00:01+00:00"})
    picture.recoveries.extend([9.0, 0.1, 0.2, 0.3, 0.4, 0.5])
    picture.take({"event": "Ping", "generation": 3, "milliseconds": 1.5})
    shown = text_of(_cli_watch.render(picture, 14.2), width=200)
    assert "http://x/   recovering for 4 s" in shown
    assert "2 lost (recovered in 0.10 s, 0.20 s, 0.30 s, 0.40 s, 0.50 s)   2 pings, 1 of them failed" in shown
    assert "latency ×█   median 1.5 ms" in shown and SEEN in shown


# Probe


async def test_a_report(capsys: Capture) -> None:
    async with open_url() as (server, url):
        server.dialect("400-text")
        assert await run("probe", url) == 1
    printed = capsys.readouterr().out
    assert "a client that follows the specification recovers: no" in printed
    assert "this package recovers: yes" in printed
    assert "must  tools/list with a made-up id: answers 400" in printed
    assert "Session Management 3 and 4" in printed


async def test_a_report_without_anything_to_mend(capsys: Capture) -> None:
    async with open_url() as (server, url):
        server.resumable = True
        server.stateless = False
        assert await run("probe", url) == 0
        server.stateless = True
        server.json_mode = True
        assert await run("probe", url) == 0
    printed = capsys.readouterr().out
    assert "nothing to mend" in printed and "recovers: nothing to lose" in printed


async def test_a_report_of_what_is_no_mcp(capsys: Capture) -> None:
    async with open_url() as (server, url):
        server.answer(404, EVIL, times=float("inf"))
        assert await run("probe", url) == 3
    printed = capsys.readouterr().out
    assert "not examined: it answers neither" in printed and "\x1b" not in printed


# The demo


async def test_the_demo_fills_its_table(
    as_terminal: Callable[[str], Terminal], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = as_terminal("stdout")
    mine = Column(_demo.OURS, OK, OK, OK, 1, (OK,) * CALLS, 1, 0)
    control = Column(_demo.CONTROL, OK, "MCPError: gone", "MCPError: gone", 0, ("x",) * CALLS, 0, 0)

    async def perform(say: Say, show: Show) -> tuple[Column, Column]:
        await trio.lowlevel.checkpoint()
        say("killing process 7 with SIGKILL")
        show(Column(_demo.OURS, before=OK))
        show(mine)
        show(control)
        return mine, control

    monkeypatch.setattr(_demo, "run", perform)
    assert await _cli_demo.run_live() == (mine, control)
    assert "killing process 7" in terminal.getvalue()
    assert await run("demo") == 0


def test_the_table_of_the_demo_shows_what_is_known() -> None:
    known = Column("mine", before=OK, concurrent=(OK, OK), delete_handshakes=1)
    shown = text_of(_cli_demo.render(known, Column("control"), "deleting"))
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    assert lines == [
        "mine control",
        "call before the kill ok",
        "first call after the restart",
        "the call after that",
        "handshakes after the restart",
        "20 calls at once, session deleted 2 of 20",
        "handshakes after the deletion 1",
        "tickets booked twice 0",
        "",
        "deleting",
    ]
