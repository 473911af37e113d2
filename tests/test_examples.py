"""The programs of docs/examples, run as they stand there, with their sessions lost under them."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest
import trio
from trio.testing import MockClock

from tests.kit import load_script, open_pair, open_server
from trio_mcp_resilient import Backoff, Client, TrioHTTPTransport
from trio_mcp_resilient.testing import ScriptedServer, ToolContext

FOLDER = Path(__file__).parent.parent / "docs" / "examples"
PAGE = FOLDER.parent / "examples.md"


def example(name: str) -> ModuleType:
    return load_script(FOLDER / f"{name}.py")


def of(server: ScriptedServer) -> dict[str, Any]:
    """What an example is given instead of a network."""
    return {"connect": server.connect, "mode": "legacy"}


def test_the_manual_shows_every_example() -> None:
    page = PAGE.read_text()
    for path in FOLDER.glob("*.py"):
        pages = [
            other for other in FOLDER.parent.glob("*.md") if f"examples/{path.name}" in other.read_text()
        ]
        assert pages, f"{path.name} is shown on no page"
    assert page.count("literalinclude") >= 4


async def test_the_readme_works_for_a_night(
    autojump_clock: MockClock, capsys: pytest.CaptureFixture[str]
) -> None:
    readme = (FOLDER.parent.parent / "README.md").read_text()
    program = readme.partition("```python\n")[2].partition("```")[0]
    assert len([line for line in program.splitlines() if line]) <= 10
    async with open_server() as server:
        shown = 'open_client("http://127.0.0.1:8000/mcp")'
        assert program.count(shown) == program.count("trio.run(main)") == 1
        # Its server is ours, and it is run in this program; the rest is as it stands there.
        program = program.replace(shown, "open_client(server.url, connect=server.connect)")
        names: dict[str, Any] = {"server": server}
        exec(program.replace("trio.run(main)", ""), names)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(names["main"])
            for _ in range(12):
                await trio.sleep(1800)
                server.lose_session()
                await trio.sleep(1800)
            nursery.cancel_scope.cancel()
        assert server.executed["add"] == 12
    assert capsys.readouterr().out.count("text='3'") == 12


async def test_the_agent_answers_though_its_session_is_lost(autojump_clock: MockClock) -> None:
    agent = example("agent")
    async with open_server() as server:

        async def forgetful(history: list[str], tools: list[Any]) -> Any:
            # An agent that thinks for longer than its session is remembered.
            server.lose_session()
            assert "add" in [tool.name for tool in tools]
            return await agent.adder(history, tools)

        answer = await agent.run_agent(server.url, forgetful, "What are 19 and 23?", **of(server))
        assert answer == "The answer is 42."
        assert server.executed["add"] == 1
        assert server.handshakes == 2


async def test_the_agent_calls_tools_at_the_same_time(autojump_clock: MockClock) -> None:
    agent = example("agent")
    async with open_server() as server:

        async def model(history: list[str], tools: list[Any]) -> Any:
            return str(history[1:]) if len(history) > 1 else [agent.Wish("slow", {"seconds": 9})] * 3

        began = trio.current_time()
        answer = await agent.run_agent(server.url, model, "wait", **of(server))
        assert answer == str(["slow: rested"] * 3)
        assert trio.current_time() - began < 2 * 9


@pytest.mark.parametrize(
    ("wish", "told"),
    [
        pytest.param(("add", {"a": 1, "b": 2}), "may have been done; find out", id="outcome unknown"),
        pytest.param(("none", {}), "this was not done", id="no such tool"),
        pytest.param(("slow", {"seconds": 1000}), "no answer for 120 s", id="too slow"),
    ],
)
async def test_the_agent_tells_its_model_what_went_wrong(
    autojump_clock: MockClock, wish: tuple[str, dict[str, int]], told: str
) -> None:
    agent = example("agent")
    async with open_server() as server:
        server.cut("before-head", when=lambda seen: seen.rpc_method == "tools/call" and wish[0] == "add")

        async def model(history: list[str], tools: list[Any]) -> Any:
            return history[-1] if len(history) > 1 else [agent.Wish(*wish)]

        assert told in await agent.run_agent(server.url, model, "do it", **of(server))


def asking(client: Client) -> httpx.AsyncClient:
    """Someone who asks the web service, without a network between."""
    app = example("web_service").make_app(client)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service")


async def test_the_web_service_answers_a_burst_that_meets_a_loss(autojump_clock: MockClock) -> None:
    async with open_pair() as (server, client), asking(client) as browser:
        server.lose_session()
        sums: list[str] = []

        async def ask(n: int) -> None:
            sums.append((await browser.get("/add", params={"a": n, "b": 0})).json()["sum"])

        async with trio.open_nursery() as nursery:
            for n in range(20):
                nursery.start_soon(ask, n)
        assert sorted(sums, key=int) == [str(n) for n in range(20)]
        assert (server.executed["add"], server.handshakes) == (20, 2)


async def test_the_web_service_says_what_went_wrong(autojump_clock: MockClock) -> None:
    async with open_pair() as (server, client), asking(client) as browser:
        assert (await browser.get("/health")).json() == {"state": "ready", "sessions": 1}
        assert (await browser.get("/add?a=1")).status_code == 400
        assert (await browser.get("/add?a=1&b=x")).status_code == 400

        server.cut("before-head", when="tools/call")
        unknown = await browser.get("/add?a=1&b=2")
        assert unknown.status_code == 502
        assert "may have been done" in unknown.text

        server.remove_tool("add")
        assert (await browser.get("/add?a=1&b=2")).status_code == 502

        server.restart(down_for=3600)
        away = await browser.get("/add?a=1&b=2")
        assert (away.status_code, away.headers["retry-after"]) == (503, "5")
        assert (await browser.get("/health")).status_code == 503


async def test_the_web_service_serves() -> None:
    async with open_server() as server, trio.open_nursery() as nursery:
        serving = partial(example("web_service").main, server.url, "127.0.0.1:0", **of(server))
        (address,) = await nursery.start(serving)
        async with httpx.AsyncClient(transport=TrioHTTPTransport(), base_url=address) as browser:
            server.lose_session()
            assert (await browser.get("/add?a=19&b=23")).json() == {"sum": "42"}
        nursery.cancel_scope.cancel()
    assert server.executed["add"] == 1


async def test_users_share_a_pool_and_no_session(autojump_clock: MockClock) -> None:
    async with open_server() as server, example("many_users").open_tools(server.url, **of(server)) as tools:
        users = ["ada", "grace", "hedy"]
        for user in users:
            tools.log_in(user, f"token of {user}")

        async def call(user: str) -> None:
            assert await tools.call(user, "add", {"a": 1, "b": 2}) == "3"

        async def all_of_them() -> None:
            async with trio.open_nursery() as nursery:
                for user in users * 5:
                    nursery.start_soon(call, user)

        await all_of_them()
        assert server.handshakes == len(users)
        server.lose_session()
        await all_of_them()
        assert (server.executed["add"], server.handshakes) == (30, 2 * len(users))


async def test_a_new_token_is_used_from_the_next_call_on(autojump_clock: MockClock) -> None:
    async with open_server() as server, example("many_users").open_tools(server.url, **of(server)) as tools:
        for token in ("first", "second"):
            tools.log_in("ada", token)
            await tools.call("ada", "add", {"a": 1, "b": 2})
            assert server.posts("tools/call")[-1].headers["authorization"] == f"Bearer {token}"
        tools.log_out("ada")
        with pytest.raises(KeyError):
            await tools.call("ada", "add", {"a": 1, "b": 2})


async def test_the_command_shows_progress_and_the_result(
    autojump_clock: MockClock, capsys: pytest.CaptureFixture[str]
) -> None:
    command = example("command_line")

    async def copy(ctx: ToolContext) -> str:
        ctx.progress(1, 2, "half of it")
        server.lose_session()
        return "copied"

    async with open_server() as server:
        server.tool("copy", copy)
        assert await command.call(server.url, "copy", {}, **of(server)) == command.DONE
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("copied\n", "1/2 half of it\n")


async def test_the_command_says_by_its_status_whether_it_was_done(
    autojump_clock: MockClock, capsys: pytest.CaptureFixture[str]
) -> None:
    command = example("command_line")
    async with open_server() as server:
        asked = partial(command.call, server.url, "add", {"a": 1, "b": 2}, recovery_timeout=5, **of(server))
        server.cut("before-head", when="tools/call")
        assert await asked() == command.UNKNOWN
        assert "may have been done" in capsys.readouterr().err
        server.restart(down_for=60)
        assert await asked() == command.NOT_DONE
        assert "was not done" in capsys.readouterr().err


def test_the_command_runs_alone(capsys: pytest.CaptureFixture[str]) -> None:
    async def refuse(host: str, port: int) -> trio.SocketStream:
        raise OSError("nothing is there")

    status = example("command_line").main(
        ["http://127.0.0.1:1/mcp", "add", "{}"], connect=refuse, backoff=Backoff(attempts=1)
    )
    assert (status, capsys.readouterr().out) == (1, "")
