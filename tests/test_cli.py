"""The command line over loopback: what each command prints, how it ends, and what it never shows.

What is shown to people needs an extra, and is tested in `test_cli_view.py`.
"""

from __future__ import annotations

import importlib.util
import json
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import mcp_types as types
import pydantic
import pytest
import trio
from cli_kit import Capture, open_url, run
from mcp import MCPError

from trio_mcp_resilient import (
    ConnectionLost,
    Evidence,
    GaveUp,
    HandshakeFailed,
    OutcomeUnknown,
    RequestRefused,
    SessionLost,
    _cli,
)
from trio_mcp_resilient.__main__ import main
from trio_mcp_resilient._cli_output import (
    LINE,
    BadAnswer,
    Exit,
    NoAnswer,
    UsageError,
    clean,
    describe,
    exit_of,
)
from trio_mcp_resilient.testing import Reply

ROOT = Path(__file__).parent.parent


async def ran(capsys: Capture, *words: str) -> tuple[int, Any]:
    """Carry a command out with `--json`; return its status and what it printed."""
    status = await run(*words, "--json")
    return status, json.loads(capsys.readouterr().out)


# What --json prints


async def test_tools(capsys: Capture) -> None:
    async with open_url() as (server, url):
        server.page_size = 1
        status, printed = await ran(capsys, "tools", url)
    assert status == 0 and printed["ok"] is True
    assert [tool["name"] for tool in printed["tools"]] == ["add", "fail", "hang", "count"]
    # In the words of the protocol.
    assert printed["tools"][0]["inputSchema"]["required"] == ["a", "b"]


async def test_resources(capsys: Capture) -> None:
    async with open_url() as (server, url):
        status, printed = await ran(capsys, "resources", url)
        assert [one["uri"] for one in printed["resources"]] == ["note://one"]
        assert [one["uriTemplate"] for one in printed["resourceTemplates"]] == ["note://{name}"]
        del server.methods["resources/templates/list"]
        status, printed = await ran(capsys, "resources", url)
    assert status == 0 and printed["resourceTemplates"] == []


async def test_read(capsys: Capture) -> None:
    async with open_url() as (_, url):
        status, printed = await ran(capsys, "read", url, "note://one")
    assert status == 0
    assert printed["result"]["contents"][0]["text"] == "first\nsecond"


async def test_prompts(capsys: Capture) -> None:
    async with open_url() as (_, url):
        status, printed = await ran(capsys, "prompts", url)
        assert status == 0 and printed["prompts"][0]["name"] == "greet"
        status, printed = await ran(capsys, "prompts", url, "greet", "--args", '{"name": 7}')
    assert status == 0
    assert printed["result"]["messages"][0]["content"]["text"] == "Hello 7!"


async def test_call(capsys: Capture) -> None:
    async with open_url() as (server, url):
        status, printed = await ran(capsys, "call", url, "add", "--args", '{"a": 1, "b": 2}')
        assert server.executed["add"] == 1 and not server.sessions
    assert status == 0
    assert printed == {
        "ok": True,
        "result": {"content": [{"type": "text", "text": "3"}], "isError": False, "resultType": "complete"},
        "generation": 1,
        "sent_again": 0,
    }


async def test_a_call_that_meets_a_loss_is_told_of_it(capsys: Capture) -> None:
    async with open_url() as (server, url):
        server.answer(
            404,
            {"jsonrpc": "2.0", "id": None, "error": {"code": -32001, "message": "Session not found"}},
            when="tools/call",
        )
        status, printed = await ran(capsys, "call", url, "add", "--args", '{"a": 1, "b": 2}')
    assert status == 0 and printed["generation"] == 2 and printed["sent_again"] == 1


async def test_arguments_from_stdin(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stdin:
        def read(self) -> str:
            return '{"a": "x", "b": "y"}'

    monkeypatch.setattr(sys, "stdin", Stdin())
    async with open_url() as (_, url):
        _, printed = await ran(capsys, "call", url, "add", "--args", "-")
    assert printed["result"]["content"][0]["text"] == "xy"


async def test_watch(capsys: Capture) -> None:
    async with open_url() as (_, url):
        status, printed = await ran(capsys, "watch", url, "--for", "0.3")
        assert status == 0 and printed["event"] == "Summary" and printed["pings"] == 1
        status = await run("watch", url, "--for", "0.3", "--jsonl")
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert status == 0
    assert [line["event"] for line in lines] == ["StateChanged", "SessionStarted", "Ping", "Summary"]


async def test_probe(capsys: Capture) -> None:
    async with open_url() as (server, url):
        status, printed = await ran(capsys, "probe", url)
        assert status == 0 and printed["ok"] and printed["standard_client_recovers"]
        assert {"step", "status", "content_type", "excerpt", "verdict"} == set(printed["rows"][0])
        assert server.executed.total() == 0
        server.dialect("400-text")
        status, printed = await ran(capsys, "probe", url)
        assert status == Exit.SAID_NO and printed["standard_client_recovers"] is False
        assert {"step", "level", "what", "fix", "section"} == set(printed["findings"][0])
        server.answer(404, times=float("inf"))
        status, printed = await ran(capsys, "probe", url)
    assert status == Exit.UNREACHABLE and printed["unfit"]


# How each command ends


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (UsageError("x"), Exit.USAGE),
        (MCPError(-32602, "x"), Exit.SAID_NO),
        (RequestRefused("x", status=500, evidence=Evidence(1, "", "x")), Exit.SAID_NO),
        (BadAnswer("x"), Exit.SAID_NO),
        (GaveUp("x"), Exit.UNREACHABLE),
        (HandshakeFailed("x"), Exit.UNREACHABLE),
        (SessionLost("x"), Exit.UNREACHABLE),
        (ConnectionLost("x"), Exit.UNREACHABLE),
        (NoAnswer("x", executed=False), Exit.UNREACHABLE),
        (NoAnswer("x", executed=None), Exit.OUTCOME_UNKNOWN),
        (OutcomeUnknown("x"), Exit.OUTCOME_UNKNOWN),
    ],
)
def test_the_status_follows_the_error(error: Exception, status: Exit) -> None:
    assert exit_of(error) is status


async def test_the_servers_error(capsys: Capture) -> None:
    async with open_url() as (_, url):
        status, printed = await ran(capsys, "call", url, "nothing")
    assert status == Exit.SAID_NO
    assert printed["error"] == {
        "kind": "MCPError",
        "message": "the server said: Unknown tool: nothing (code -32602)",
        "code": -32602,
    }


async def test_the_tools_error(capsys: Capture) -> None:
    async with open_url() as (_, url):
        status, printed = await ran(capsys, "call", url, "fail")
    assert status == Exit.SAID_NO and printed["ok"] is False
    assert printed["result"]["content"][0]["text"] == "it broke"


async def test_a_result_against_the_tools_schema(capsys: Capture) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    async with open_url() as (server, url):
        server.tool("odd", lambda: {"n": "seven"}, outputSchema=schema)
        status, printed = await ran(capsys, "call", url, "odd")
    assert status == Exit.SAID_NO and printed["error"]["kind"] == "BadAnswer"


async def test_an_answer_that_is_not_mcp_is_not_quoted(capsys: Capture) -> None:
    async with open_url() as (server, url):
        server.methods["tools/list"] = lambda ctx: {"tools": [{"name": "s3cret-name"}]}
        status = await run("tools", url, "--json")
    printed = capsys.readouterr()
    assert status == Exit.SAID_NO
    assert "not MCP's ListToolsResult" in printed.err and "s3cret" not in printed.out + printed.err


async def test_a_listing_without_end(capsys: Capture) -> None:
    async with open_url() as (server, url):
        server.methods["tools/list"] = lambda ctx: {"tools": [], "nextCursor": "again"}
        status, printed = await ran(capsys, "tools", url)
    assert status == Exit.SAID_NO and "no end" in printed["error"]["message"]


async def test_nobody_there(capsys: Capture) -> None:
    for command in (["tools"], ["call", "x"], ["probe"]):
        words = [command[0], "http://127.0.0.1:1/mcp", *command[1:]]
        more = [] if command == ["probe"] else ["--attempts", "1"]
        status, printed = await ran(capsys, *words, *more)
        assert status == Exit.UNREACHABLE, command
        assert printed["error"]["executed"] is False
        assert "127.0.0.1:1" in printed["error"]["message"]


async def test_a_wrong_url(capsys: Capture) -> None:
    async with open_url() as (_, url):
        assert await run("tools", url + "/wrong", "--json") == Exit.UNREACHABLE
        assert await run("watch", url + "/wrong", "--jsonl") == Exit.UNREACHABLE
    printed = capsys.readouterr()
    assert printed.err.count("\n") == 2 and "is the URL that of an MCP endpoint?" in printed.err
    assert json.loads(printed.out.splitlines()[-1])["error"]["kind"] == "HandshakeFailed"


async def test_a_timeout_before_there_is_a_session_says_why(capsys: Capture) -> None:
    status, printed = await ran(
        capsys, "tools", "http://127.0.0.1:1/mcp", "--attempts", "0", "--timeout", "0.3"
    )
    assert status == Exit.UNREACHABLE and "refused" in printed["error"]["message"].lower()


async def test_a_timeout_of_a_call_is_an_unknown_outcome(capsys: Capture) -> None:
    async with open_url() as (server, url):
        status, printed = await ran(capsys, "call", url, "hang", "--timeout", "0.5")
        assert server.executed["hang"] == 1 and not server.sessions
    assert status == Exit.OUTCOME_UNKNOWN
    assert printed["error"] == {
        "kind": "NoAnswer",
        "message": "no answer within 0.5 s; it may have run",
        "executed": None,
    }


async def test_a_timeout_of_a_listing_is_not(capsys: Capture) -> None:
    async with open_url() as (server, url):
        server.go_silent(when="tools/list")
        status, printed = await ran(capsys, "tools", url, "--timeout", "0.5")
    assert status == Exit.UNREACHABLE and printed["error"]["executed"] is False


async def test_a_probe_that_takes_too_long(capsys: Capture) -> None:
    async with open_url() as (server, url):
        server.go_silent(when="server/discover")
        status, printed = await ran(capsys, "probe", url, "--timeout", "0.5")
    assert status == Exit.UNREACHABLE and printed["error"]["kind"] == "NoAnswer"


async def test_a_call_whose_answer_is_cut(capsys: Capture) -> None:
    async with open_url() as (server, url):
        server.cut("before-head", when="tools/call")
        status, printed = await ran(capsys, "call", url, "add", "--args", '{"a": 1, "b": 2}')
        assert status == Exit.OUTCOME_UNKNOWN and printed["error"]["executed"] is None
        server.cut("before-head", when="tools/call")
        words = ("call", url, "add", "--args", '{"a": 1, "b": 2}', "--resend", "always")
        status, printed = await ran(capsys, *words)
    assert status == 0 and printed["sent_again"] == 1


# Words that make no sense


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("", "COMMAND"),
        ("dance", "invalid choice"),
        ("tools", "URL"),
        ("tools http://x/ --timeout 0", "seconds above 0"),
        ("tools http://x/ --timeout soon", "seconds above 0"),
        ("tools http://x/ --attempts -1", "--attempts"),
        ("tools http://x/ --header token", "'Name: value'"),
        ("tools http://x/ y", "too many arguments"),
        ("call http://x/ t --args [1]", "a JSON object"),
        ("call http://x/ t --args {", "not JSON"),
        ("call http://x/ t --resend often", "invalid choice"),
        ("watch http://x/ --json --jsonl", "not allowed with"),
        # An abbreviation is no option.
        ("tools http://x/ --time 3", "unknown options: --time"),
    ],
)
def test_usage_is_one_line(words: str, says: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words.split())
    printed = capsys.readouterr()
    assert ended.value.code == Exit.USAGE and printed.out == ""
    assert says in printed.err and printed.err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["tools", "ftp://x/"], "http:// or https://"),
        (["tools", "http://me:pass@x/"], "credentials do not belong in the URL"),
        (["tools", "http://x/", "--mode", "future"], "mode is"),
        (["tools", "http://x/", "--header", "a b: c"], "not a header name"),
        (["tools", "http://x/", "--header", "a: c\nd: e"], "line break"),
        (["tools", "http://x/", "--bearer-env", "NO_SUCH_VARIABLE"], "NO_SUCH_VARIABLE"),
    ],
)
def test_what_makes_no_sense_is_said_before_anything_is_sent(
    words: list[str], says: str, capsys: Capture
) -> None:
    assert main([*words, "--json"]) == Exit.USAGE
    printed = capsys.readouterr()
    assert says in printed.err and printed.err.count("\n") == 1
    assert json.loads(printed.out)["error"]["kind"] == "UsageError"


def test_the_extra_that_is_missing_is_named(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_cli, "has_view", lambda: False)
    assert main(["call", "http://127.0.0.1:1/", "t"]) == Exit.USAGE
    printed = capsys.readouterr()
    assert "trio-mcp-resilient[cli]" in printed.err and printed.err.count("\n") == 1


# Secrets, and what a terminal must not see

TOKEN, KEY = "tok-9f8e7d6c5b4a3210", "key-0123456789abcdef"


async def test_no_secret_is_ever_printed(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THE_TOKEN", TOKEN)
    secret = ["--bearer-env", "THE_TOKEN", "--header", f"X-Key: {KEY}"]
    ids: list[str] = []

    def quote(seen: Any) -> str:
        return f"Session not found: {seen.session_id}; you sent {dict(seen.headers)}"

    def quote_in_error(seen: Any) -> dict[str, Any]:
        message = f"no access with {seen.headers['authorization']} on {seen.session_id}"
        return {"jsonrpc": "2.0", "id": seen.rpc_id, "error": {"code": -1, "message": message}}

    async with open_url() as (server, url):
        server.on_request(lambda seen: ids.extend(session.id for session in server.sessions))
        server.dialect(Reply(404, quote, "text/plain"))
        await run("tools", url, *secret, "--json")
        assert server.posts("tools/list")[-1].headers["authorization"] == f"Bearer {TOKEN}"
        assert server.posts("tools/list")[-1].headers["x-key"] == KEY
        await run("probe", url, *secret, "--json")
        for status in (401, 404, 500):
            server.answer(status, quote, when="tools/call")
            await run("call", url, "add", *secret, "--json")
        server.answer(200, quote_in_error, when="tools/call")
        await run("call", url, "add", *secret, "--json")
        server.answer(401, quote, when="initialize", times=2)
        await run("watch", url, *secret, "--jsonl", "--for", "0.1")
        server.answer(401, quote, when="initialize", times=2)
        await run("tools", url + "?api_key=" + KEY, *secret, "--json")
    printed = capsys.readouterr()
    assert len(set(ids)) > 4
    for hidden in (TOKEN, KEY, *ids):
        assert hidden not in printed.out + printed.err


@pytest.mark.parametrize(
    "words",
    [
        ["tools", "http://x/", "--token", TOKEN],
        ["tools", "http://x/", f"--token={TOKEN}"],
        ["tools", "http://x/", "--header", TOKEN],
        ["tools", "http://x/", "--header", f"Bearer {TOKEN}"],
        ["call", "http://x/", "t", "--args", TOKEN],
    ],
)
def test_a_mistyped_secret_is_not_repeated(words: list[str], capsys: Capture) -> None:
    with pytest.raises(SystemExit):
        main(words)
    assert TOKEN not in capsys.readouterr().err


async def test_errors_cannot_steer_a_terminal(capsys: Capture) -> None:
    async with open_url() as (server, url):
        server.answer(
            200,
            lambda seen: {
                "jsonrpc": "2.0",
                "id": seen.rpc_id,
                "error": {"code": -1, "message": "\x1b]0;x\x07 one\ntwo \u202egnp.exe"},
            },
            when="tools/list",
        )
        await run("tools", url, "--json")
    printed = capsys.readouterr()
    assert printed.err == "trio-mcp: the server said: \\u001b]0;x\\u0007 one two \\u202egnp.exe (code -1)\n"
    assert printed.out.isascii() and "\x1b" not in printed.out


def test_cleaning_keeps_what_is_text() -> None:
    text = "Grüße\n\t日本語 👩\u200d🚀"
    assert clean(text) == text
    assert clean("a\rb\x9bc\ud800") == "a\\u000db\\u009bc\\ud800"


def test_an_error_has_an_end() -> None:
    assert len(describe(MCPError(-1, "long " * 10_000))) == LINE


def test_a_fault_of_validation_is_told_without_the_answer() -> None:
    with pytest.raises(pydantic.ValidationError) as caught:
        types.Tool.model_validate({"name": "s3cret", "inputSchema": "s3cret"})
    assert describe(caught.value) == "the server's answer is not MCP's Tool: 1 fault(s)"


# As a program


@asynccontextmanager
async def program(*words: str) -> AsyncGenerator[tuple[trio.Process, Callable[[str], Any]], None]:
    """Run the command line as a process, which is ended with the block.

    Yields:
        It, and a function that waits until it has printed something and returns all it has.
    """
    process = await trio.lowlevel.open_process(
        [sys.executable, "-m", "trio_mcp_resilient", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    heard = ""

    async def until(word: str) -> str:
        nonlocal heard
        assert process.stdout is not None
        while word not in heard:
            data = await process.stdout.receive_some()
            assert data, f"it ended before it said {word}: {heard}"
            heard += data.decode()
        return heard

    try:
        yield process, until
    finally:
        process.kill()
        await process.wait()


async def rest(process: trio.Process) -> tuple[str, str]:
    """Wait for the end, and return what it has still printed."""
    assert process.stdout is not None and process.stderr is not None
    out = b"".join([data async for data in process.stdout]).decode()
    err = b"".join([data async for data in process.stderr]).decode()
    await process.wait()
    return out, err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_ends_a_watch_in_good_order(number: signal.Signals) -> None:
    async with open_url() as (server, url), program("watch", url, "--jsonl") as (process, until):
        await until('"Ping"')
        process.send_signal(number)
        out, err = await rest(process)
        assert not server.sessions and len(server.deleted) == 1
    assert process.returncode == 128 + number
    assert err == "trio-mcp: interrupted\n"
    assert json.loads(out.splitlines()[-1])["event"] == "Summary"


async def test_ctrl_c_during_a_call_ends_its_session() -> None:
    async with open_url() as (server, url), program("call", url, "hang", "--json") as (process, _):
        while not server.executed["hang"]:
            await trio.testing.wait_all_tasks_blocked(0.01)
        process.send_signal(signal.SIGINT)
        out, err = await rest(process)
        assert not server.sessions and len(server.deleted) == 1
    assert process.returncode == 130 and out == ""
    assert err == "trio-mcp: interrupted; the call may have run\n"


async def test_a_second_ctrl_c_waits_for_no_goodbye() -> None:
    async with open_url() as (server, url), program("watch", url, "--jsonl") as (process, until):
        farewell = server.go_silent(when="DELETE")
        await until('"Ping"')
        process.send_signal(signal.SIGINT)
        await farewell.reached()
        process.send_signal(signal.SIGINT)
        _, err = await rest(process)
    assert process.returncode == 130 and "Traceback" not in err


async def test_a_reader_that_leaves_ends_it_quietly() -> None:
    async with open_url() as (server, url):
        async with program("watch", url, "--jsonl", "--interval", "0.05") as (process, until):
            await until('"Ping"')
            assert process.stdout is not None
            await process.stdout.aclose()
            assert process.stderr is not None
            err = b"".join([data async for data in process.stderr])
            await process.wait()
        assert not server.sessions
    assert process.returncode == Exit.NOBODY_READS and err == b""


def test_the_package_alone_imports_none_of_it() -> None:
    script = "import sys, trio_mcp_resilient; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    ours = {name.rpartition(".")[2] for name in done.stdout.split() if name.startswith("trio_mcp_resilient.")}
    assert "_client" in ours
    assert not {name for name in ours if name.startswith(("_cli_", "_probe", "_watch", "_demo"))}


def test_help_and_version(capsys: Capture) -> None:
    for words in (["--version"], ["--help"], ["call", "--help"]):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("trio-mcp ")


# The manual


def manual() -> ModuleType:
    spec = importlib.util.spec_from_file_location("cli_help", ROOT / "docs" / "cli_help.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_manual_shows_the_help_as_it_is() -> None:
    page = manual().PAGE.read_text(encoding="utf-8")
    assert manual().written(page) == page, "run: python docs/cli_help.py"


def test_every_status_is_in_the_help() -> None:
    page = manual().PAGE.read_text(encoding="utf-8")
    assert all(str(int(status)) in page for status in Exit)
