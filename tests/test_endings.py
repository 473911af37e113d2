"""Every way a call's session, stream or connection can end, as one table.

What broke, what the caller got, whether it ran (counted by the server), POSTs, handshakes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trio
from mcp import MCPError
from trio.testing import MockClock

from tests.kit import STEADY, add, load_script, open_pair, open_server
from trio_mcp_resilient import (
    ConnectionLost,
    OutcomeUnknown,
    RequestRefused,
    Resend,
    SessionLost,
    open_client,
)
from trio_mcp_resilient._call import CALL_META_KEY
from trio_mcp_resilient.testing import ScriptedServer

CALL = "tools/call"


@dataclass(frozen=True)
class Ending:
    """One row."""

    breaks: Callable[[ScriptedServer], object]
    gets: str | type[Exception]
    """The result's text, or the error."""
    ran: int
    posts: int
    handshakes: int = 1
    resend: Resend = Resend.REFUSED
    listed: dict[str, Any] | None = None
    """What the server says of the tool."""


def refusal(status: int, code: int, message: str) -> Callable[[ScriptedServer], object]:
    def breaks(server: ScriptedServer) -> object:
        return server.answer(
            status,
            lambda seen: {"jsonrpc": "2.0", "id": seen.rpc_id, "error": {"code": code, "message": message}},
            when=CALL,
        )

    return breaks


READ_ONLY = {"annotations": {"readOnlyHint": True}}
IDEMPOTENT = {"annotations": {"idempotentHint": True}}
DESTRUCTIVE = {"annotations": {"readOnlyHint": False, "destructiveHint": True}}

ENDINGS = {
    "nothing": Ending(lambda server: None, "3", ran=1, posts=1),
    # The session.
    "session lost": Ending(lambda server: server.lose_session(), "3", ran=1, posts=2, handshakes=2),
    "session lost twice": Ending(lambda server: server.answer(404, when=CALL, times=2), SessionLost, 0, 2, 3),
    "session lost, never resend": Ending(
        lambda server: server.lose_session(), SessionLost, ran=0, posts=1, handshakes=2, resend=Resend.NEVER
    ),
    "session ended under the call": Ending(
        lambda server: server.cut("after-head", how="end", when=CALL), OutcomeUnknown, ran=1, posts=1
    ),
    "terminated before it completed": Ending(
        lambda server: server.answer(
            500,
            {
                "jsonrpc": "2.0",
                "id": None,
                "error": {"code": -32603, "message": "Session terminated before the request completed"},
            },
            when=CALL,
            ran=True,
        ),
        OutcomeUnknown,
        ran=1,
        posts=1,
    ),
    # The connection.
    "refused for a while": Ending(lambda server: server.restart(keep_sessions=True, down_for=5), "3", 1, 1),
    "refused, sessions forgotten": Ending(
        lambda server: server.restart(keep_sessions=False, down_for=5), "3", ran=1, posts=1, handshakes=2
    ),
    "refused for good": Ending(
        lambda server: server.restart(keep_sessions=False, down_for=10_000), ConnectionLost, ran=0, posts=0
    ),
    "cut within the request": Ending(
        lambda server: server.cut("mid-request", when=CALL), "3", ran=1, posts=1
    ),
    "cut before it ran": Ending(lambda server: server.cut("before-run", when=CALL), OutcomeUnknown, 0, 1),
    "cut after it ran": Ending(lambda server: server.cut("before-head", when=CALL), OutcomeUnknown, 1, 1),
    "cut within the head": Ending(lambda server: server.cut(after_bytes=20, when=CALL), OutcomeUnknown, 1, 1),
    "cut within the body": Ending(lambda server: server.cut("mid-body", when=CALL), OutcomeUnknown, 1, 1),
    "ended cleanly within the body": Ending(
        lambda server: server.cut("mid-body", how="end", when=CALL), OutcomeUnknown, ran=1, posts=1
    ),
    "cut after the answer": Ending(lambda server: server.cut("before-end", when=CALL), "3", ran=1, posts=1),
    "silent": Ending(
        lambda server: server.go_silent("before-head", when=CALL), OutcomeUnknown, ran=1, posts=1
    ),
    # The policy.
    "cut, always": Ending(
        lambda server: server.cut("before-head", when=CALL), "3", ran=2, posts=2, resend=Resend.ALWAYS
    ),
    "cut twice, always": Ending(
        lambda server: server.cut("before-head", when=CALL, times=2),
        OutcomeUnknown,
        2,
        2,
        resend=Resend.ALWAYS,
    ),
    "cut, read-only tool": Ending(
        lambda server: server.cut("before-head", when=CALL),
        "3",
        2,
        2,
        resend=Resend.IDEMPOTENT,
        listed=READ_ONLY,
    ),
    "cut, idempotent tool": Ending(
        lambda server: server.cut("before-head", when=CALL),
        "3",
        2,
        2,
        resend=Resend.IDEMPOTENT,
        listed=IDEMPOTENT,
    ),
    "cut, read-only tool, not trusted": Ending(
        lambda server: server.cut("before-head", when=CALL), OutcomeUnknown, ran=1, posts=1, listed=READ_ONLY
    ),
    "cut, destructive tool, trusted": Ending(
        lambda server: server.cut("before-head", when=CALL),
        OutcomeUnknown,
        ran=1,
        posts=1,
        resend=Resend.IDEMPOTENT,
        listed=DESTRUCTIVE,
    ),
    "refused connection, never resend": Ending(
        lambda server: server.restart(keep_sessions=True, down_for=5),
        ConnectionLost,
        ran=0,
        posts=0,
        resend=Resend.NEVER,
    ),
    # A gateway or a busy server.
    "no backend": Ending(
        lambda server: server.answer(
            503, "<h1>503</h1>\nNo server is available to handle this request.", when=CALL
        ),
        "3",
        ran=1,
        posts=2,
    ),
    "no backend twice": Ending(
        lambda server: server.answer(
            503, "No server is available to handle this request.", when=CALL, times=2
        ),
        RequestRefused,
        ran=0,
        posts=2,
    ),
    "bad gateway": Ending(
        lambda server: server.answer(502, "Bad Gateway", when=CALL, ran=True), OutcomeUnknown, 1, 1
    ),
    "gateway timeout": Ending(
        lambda server: server.answer(504, "", when=CALL, ran=True), OutcomeUnknown, 1, 1
    ),
    # What is no ending.
    "JSON-RPC error": Ending(refusal(200, -32602, "no such tool"), MCPError, ran=0, posts=1),
    "400": Ending(refusal(400, -32602, "bad argument"), MCPError, ran=0, posts=1),
    "404, method not found": Ending(refusal(404, -32601, "Method not found"), MCPError, ran=0, posts=1),
    "401": Ending(lambda server: server.answer(401, "", when=CALL), RequestRefused, ran=0, posts=1),
    "403": Ending(lambda server: server.answer(403, "", when=CALL), RequestRefused, ran=0, posts=1),
    "413": Ending(lambda server: server.answer(413, "", when=CALL), RequestRefused, ran=0, posts=1),
    "accepted, and no answer": Ending(lambda server: server.answer(202, "", when=CALL), OutcomeUnknown, 0, 1),
    # Odd bodies.
    "an answer that is no JSON": Ending(
        lambda server: server.answer(200, "oops", content_type="application/json", when=CALL, ran=True),
        OutcomeUnknown,
        ran=1,
        posts=1,
    ),
    "somebody else's answer": Ending(
        lambda server: server.answer(200, {"jsonrpc": "2.0", "id": 9999, "result": {}}, when=CALL, ran=True),
        OutcomeUnknown,
        ran=1,
        posts=1,
    ),
}


@pytest.mark.parametrize("json_mode", [False, True], ids=["SSE", "JSON"])
@pytest.mark.parametrize("name", ENDINGS)
async def test_ending(name: str, json_mode: bool, autojump_clock: MockClock) -> None:
    ending = ENDINGS[name]
    async with open_server() as server:
        server.json_mode = json_mode
        if ending.listed:
            server.tool("add", lambda a, b: str(a + b), **ending.listed)
        async with open_client(
            server.url,
            connect=server.connect,
            get_stream=False,
            backoff=STEADY,
            read_timeout=60,
            resend=ending.resend,
        ) as client:
            await client.list_tools()
            ending.breaks(server)
            got: str | Exception
            try:
                got = await add(client)
            except Exception as error:
                got = error
            if isinstance(ending.gets, str):
                assert got == ending.gets
            else:
                assert type(got) is ending.gets, got
            assert server.executed["add"] == ending.ran
            posts = len(server.posts(CALL))
            assert posts == ending.posts
            assert posts <= 2
            if name != "refused for good":
                # Whatever happened: the next call works, and it alone.
                server.forget_script()
                before = server.executed["add"]
                assert await add(client) == "3"
                assert server.executed["add"] == before + 1
            assert server.handshakes == ending.handshakes


def test_the_manuals_table_is_this_one() -> None:
    maker = load_script(Path(__file__).parent.parent / "docs" / "failure_table.py")
    page = maker.PAGE.read_text(encoding="utf-8")
    assert maker.written(page) == page, "run: python docs/failure_table.py"


async def test_a_policy_for_one_call(autojump_clock: MockClock) -> None:
    async with open_pair(get_stream=False) as (server, client):
        await client.list_tools()
        server.cut("before-head", when=CALL)
        await client.call_tool("add", {"a": 1, "b": 2}, resend="always")
        assert server.executed["add"] == 2
        server.cut("before-head", when=CALL)
        with pytest.raises(OutcomeUnknown):
            await add(client)


CUT = [
    name
    for name, ending in ENDINGS.items()
    if ending.gets is OutcomeUnknown and ending.resend is Resend.REFUSED and ending.ran and not ending.listed
]


@pytest.mark.parametrize("name", CUT)
async def test_a_server_that_knows_the_key_runs_each_call_once(name: str, autojump_clock: MockClock) -> None:
    """Exactly once, with `resend="always"`, whatever row of the table cuts the answer."""
    done: dict[str, str] = {}
    ran: list[str] = []

    def once(ctx: Any, a: int, b: int) -> str:
        key = ctx.params["_meta"][CALL_META_KEY]["id"]
        if key not in done:
            ran.append(key)
            done[key] = str(a + b)
        return done[key]

    async with open_server() as server:
        server.tool("add", once)
        async with open_client(
            server.url,
            connect=server.connect,
            get_stream=False,
            backoff=STEADY,
            read_timeout=60,
            resend="always",
            call_keys=True,
        ) as client:
            await client.list_tools()
            ENDINGS[name].breaks(server)
            assert await add(client) == "3"
            assert len(ran) == 1
            marks = [seen.params["_meta"][CALL_META_KEY] for seen in server.posts(CALL)]
            assert [mark["attempt"] for mark in marks] == [1, 2]
            assert marks[0]["id"] == marks[1]["id"]


async def test_the_servers_pause_is_kept_for_a_busy_call(autojump_clock: MockClock) -> None:
    async with open_pair(get_stream=False) as (server, client):
        await client.list_tools()
        server.answer(429, "slow down", headers={"retry-after": "7"}, when=CALL)
        began = trio.current_time()
        assert await add(client) == "3"
        assert trio.current_time() - began == pytest.approx(7)
        server.answer(429, "come back tomorrow", headers={"retry-after": "86400"}, when=CALL)
        with pytest.raises(RequestRefused):
            await add(client)


async def test_initialize_answered_503_is_retried_after_its_pause(autojump_clock: MockClock) -> None:
    async with open_server() as server:
        server.answer(503, "", headers={"retry-after": "5"}, when="initialize")
        began = trio.current_time()
        async with open_client(server.url, connect=server.connect, backoff=STEADY) as client:
            assert trio.current_time() - began == pytest.approx(5)
            assert await add(client) == "3"


async def test_a_balancer_without_stickiness_has_a_name(autojump_clock: MockClock) -> None:
    """Every other call loses the session: calls make progress, and the error says what is wrong."""
    async with open_pair(get_stream=False) as (server, client):
        for number in range(10):
            server.lose_session()
            assert await add(client, number, 0) == str(number)
        assert server.executed["add"] == 10
        server.answer(404, when=CALL, times=2)
        with pytest.raises(SessionLost, match="load-balanced without stickiness"):
            await add(client)


async def test_an_error_reaches_only_its_own_caller(autojump_clock: MockClock) -> None:
    async with open_pair(get_stream=False) as (server, client):
        await client.list_tools()
        server.cut(
            "before-head",
            when=lambda seen: seen.tool == "add" and bool(seen.params["arguments"]["a"] % 2),
            times=float("inf"),
        )
        results: dict[int, str | None] = {}

        async def call(number: int) -> None:
            try:
                results[number] = await add(client, number, 0)
            except OutcomeUnknown:
                results[number] = None

        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(call, number)
        assert results == {number: None if number % 2 else str(number) for number in range(20)}
        assert client.generation == 1
