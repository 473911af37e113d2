"""The scripted server without sessions (2026-07-28), spoken to in raw HTTP/1.1."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import h11
import pytest
import trio
import trio.testing
from scripted_peer import ADD, ADDED, MODERN, Answer, Peer

from trio_mcp_resilient.testing import (
    DISCOVER_DIALECTS,
    InputRequired,
    ScriptedServer,
    ToolContext,
    open_scripted_server,
)

SERVER_INFO = {"io.modelcontextprotocol/serverInfo": {"name": "scripted", "version": "1"}}


async def come(server: ScriptedServer) -> Peer:
    """Return a peer, with one tool to call."""
    server.tool("add", lambda a, b: a + b)
    return await Peer(server).open()


async def add(peer: Peer) -> Answer:
    return await peer.post_modern("tools/call", {"name": "add", "arguments": ADD})


async def test_is_discovered_and_called(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server(era="modern") as server:
        server.instructions = "add things"
        peer = await come(server)
        discovered = (await peer.post_modern("server/discover")).json["result"]
        assert discovered["supportedVersions"] == [MODERN]
        assert discovered["capabilities"] == server.capabilities
        assert discovered["instructions"] == "add things"
        assert discovered["resultType"] == "complete" and discovered["_meta"] == SERVER_INFO
        answer = await add(peer)
        assert answer.status == 200 and "mcp-session-id" not in answer.headers
        assert answer.json["result"] == {"resultType": "complete", "content": ADDED, "_meta": SERVER_INFO}
        assert server.executed == {"add": 1} and not server.sessions and not server.client_faults


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("mcp_protocol_version", "2025-11-25"),
        ("mcp_method", "tools/list"),
        ("mcp_name", "sub"),
        ("mcp_name", "=?base64?c3Vi?="),
        ("mcp_name", "=?base64?no?="),
    ],
)
async def test_header_fields_must_repeat_the_body(
    autojump_clock: trio.testing.MockClock, field: str, value: str
) -> None:
    async with open_scripted_server(era="modern") as server:
        peer = await come(server)
        message, fields = peer.modern("tools/call", {"name": "add", "arguments": ADD})
        answer = await peer.ask("POST", message, **{**fields, field: value})
        assert answer.status == 400 and answer.json["error"]["code"] == -32020
        assert answer.json["id"] == message["id"]
        assert server.client_faults == {"header": 1} and not server.executed


@pytest.mark.parametrize("fields", [{}, {"mcp_protocol_version": MODERN}])
async def test_the_envelope_must_be_there(
    autojump_clock: trio.testing.MockClock, fields: dict[str, str]
) -> None:
    async with open_scripted_server(era="modern") as server:
        peer = await come(server)
        answer = await peer.ask("POST", peer.tool_call("add", ADD), **fields)
        assert answer.status == 400 and answer.json["error"]["code"] == -32602
        assert server.client_faults == {"envelope": 1} and not server.executed


async def test_clients_with_sessions_are_told_the_version(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server(era="modern") as server:
        peer = await come(server)
        greeted = await peer.initialize()
        old = {"mcp_protocol_version": "2025-11-25", "mcp_session_id": "old"}
        called = await peer.ask("POST", peer.tool_call("add", ADD), **old)
        for refused in (greeted, called):
            assert refused.status == 400 and refused.json["error"]["code"] == -32022
            assert refused.json["error"]["data"] == {"supported": [MODERN], "requested": "2025-11-25"}
        # Nothing has told it so before.
        assert server.client_faults == {"notification": 1}


@pytest.mark.parametrize("dialect", DISCOVER_DIALECTS)
async def test_a_server_of_sessions_knows_no_discovery(
    autojump_clock: trio.testing.MockClock, dialect: str
) -> None:
    async with open_scripted_server(discover_dialect=dialect) as server:
        peer = await come(server)
        message, fields = peer.modern("server/discover")
        answer = await peer.ask("POST", message, **fields)
        assert answer.status == int(dialect[:3])
        assert (await peer.initialize()).status == 200


async def test_both_eras_on_one_url(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server(era="both") as server:
        peer = await come(server)
        await peer.initialize()
        assert (await peer.tool("add", ADD)).messages[0]["result"]["content"] == ADDED
        newer = await Peer(server).open()
        assert (await add(newer)).json["result"]["content"] == ADDED
        assert not server.client_faults


async def test_comes_back_in_another_era(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server(era="modern") as server:
        peer = await come(server)
        await add(peer)
        server.restart(era="legacy")
        peer = await Peer(server).open()
        assert (await add(peer)).status == 400
        assert (await peer.initialize()).status == 200
        server.restart(era="modern")
        peer = await Peer(server).open()
        assert (await peer.initialize()).status == 400
        assert (await add(peer)).status == 200


@pytest.mark.parametrize(("method", "status"), [("GET", 405), ("DELETE", 405)])
async def test_there_is_nothing_but_post(
    autojump_clock: trio.testing.MockClock, method: str, status: int
) -> None:
    for era in ("modern", "both"):
        async with open_scripted_server(era=era) as server:
            peer = await come(server)
            answer = await peer.ask(method, mcp_protocol_version=MODERN)
            assert answer.status == status and answer.headers["allow"] == "POST"


@pytest.mark.parametrize(
    "method", ["ping", "initialize", "logging/setLevel", "resources/subscribe", "no/such"]
)
async def test_methods_that_are_gone(autojump_clock: trio.testing.MockClock, method: str) -> None:
    async with open_scripted_server(era="modern") as server:
        answer = await (await come(server)).post_modern(method)
        assert answer.status == 404 and answer.json["error"]["code"] == -32601
        assert not server.client_faults


async def test_errors_have_their_status(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server(era="modern") as server:
        peer = await come(server)
        unknown = await peer.post_modern("tools/call", {"name": "unknown"})
        assert unknown.status == 400 and unknown.json["error"]["code"] == -32602
        missing = await peer.post_modern("resources/read", {"uri": "no://where"})
        assert missing.status == 400 and missing.json["error"]["code"] == -32602
        # The error of a tool is a result.
        assert (await peer.post_modern("tools/call", {"name": "add"})).json["result"]["isError"]


async def test_another_version_is_told_which_are_spoken(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server(era="both") as server:
        server.modern_versions = ("2027-01-01", "2028-01-01")
        refused = await (await come(server)).post_modern("server/discover")
        assert refused.status == 400 and refused.json["error"]["code"] == -32022
        supported = ["2027-01-01", "2028-01-01"]
        assert refused.json["error"]["data"] == {"supported": supported, "requested": MODERN}
        assert not server.client_faults


async def test_counts_what_clients_must_not_post(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server(era="modern") as server:
        peer = await come(server)
        cancelled = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
        assert (await peer.ask("POST", cancelled, mcp_protocol_version=MODERN)).status == 202
        assert (await peer.ask("POST", cancelled, mcp_protocol_version="2099-01-01")).status == 400
        response = {"jsonrpc": "2.0", "id": 1, "result": {}}
        assert (await peer.ask("POST", response, mcp_protocol_version=MODERN)).status == 400
        assert server.client_faults == {"notification": 2, "response": 1} and not server.cancelled
        # A session from before is ignored, but it should not be there.
        message, fields = peer.modern("tools/list")
        assert (await peer.ask("POST", message, mcp_session_id="old", **fields)).status == 200
        assert server.client_faults["session id"] == 1


MIRRORED = {
    "type": "object",
    "properties": {
        "region": {"type": "string", "x-mcp-header": "Region"},
        "limits": {
            "type": "object",
            "properties": {
                "rows": {"type": "integer", "x-mcp-header": "Rows"},
                "exact": {"type": "boolean", "x-mcp-header": "Exact"},
            },
        },
    },
}
WIDE = {"region": "öst", "limits": {"rows": 42, "exact": True}}
MIRRORS = {"mcp-param-region": "=?base64?w7ZzdA==?=", "mcp-param-rows": "42", "mcp-param-exact": "true"}


@pytest.mark.parametrize(
    ("arguments", "mirrors", "right"),
    [
        (WIDE, MIRRORS, True),
        (WIDE, {**MIRRORS, "mcp-param-rows": "42.0"}, True),
        (WIDE, {**MIRRORS, "mcp-param-rows": "42.5"}, False),
        (WIDE, {**MIRRORS, "mcp-param-exact": "True"}, False),
        (WIDE, {**MIRRORS, "mcp-param-region": "west"}, False),
        (WIDE, {key: MIRRORS[key] for key in ("mcp-param-region", "mcp-param-exact")}, False),
        ({"region": None}, {}, True),
        ({}, {"mcp-param-region": "west"}, False),
    ],
)
async def test_arguments_in_header_fields(
    autojump_clock: trio.testing.MockClock,
    arguments: Mapping[str, Any],
    mirrors: Mapping[str, str],
    right: bool,
) -> None:
    async with open_scripted_server(era="modern") as server:
        server.tool("find", lambda region="", limits=None: "found", inputSchema=MIRRORED)
        peer = await Peer(server).open()
        message, fields = peer.modern("tools/call", {"name": "find", "arguments": arguments})
        answer = await peer.ask("POST", message, **fields, **mirrors)
        assert answer.status == (200 if right else 400)
        assert server.executed["find"] == right and server.client_faults["header"] == (not right)


async def test_results_may_lack_their_type(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server(era="modern") as server:
        server.says_result_type = False
        peer = await come(server)
        for method in ("server/discover", "tools/list"):
            assert "resultType" not in (await peer.post_modern(method)).json["result"]
        assert "resultType" not in (await add(peer)).json["result"]


async def test_lists_say_how_long_they_keep(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server(era="modern") as server:
        server.cache_hints = {"ttlMs": 60_000, "cacheScope": "public"}
        peer = await come(server)
        listed = (await peer.post_modern("tools/list")).json["result"]
        assert listed["ttlMs"] == 60_000 and listed["cacheScope"] == "public"
        assert "ttlMs" not in (await add(peer)).json["result"]


async def talk(ctx: ToolContext) -> str:
    ctx.progress(1, 2)
    ctx.log("half way", "debug")
    await trio.sleep(3600)
    return "there"


TOKEN = {"progressToken": "p"}


async def test_what_is_said_before_the_answer_makes_it_a_stream(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_scripted_server(era="modern") as server:
        server.tool("talk", talk)
        server.ping_interval = math.inf
        peer = await Peer(server).open()
        answer = await peer.post_modern("tools/call", {"name": "talk", "_meta": TOKEN})
        assert answer.headers["content-type"] == "text/event-stream"
        progress, result = answer.messages
        assert progress["method"] == "notifications/progress" and result["result"]["content"]
        assert all("id" not in event for event in answer.events)


async def test_logs_what_each_request_asks_for(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server(era="modern") as server:
        server.tool("talk", talk)
        server.ping_interval = math.inf
        peer = await Peer(server).open()
        for level, logged in (("debug", True), ("info", False), ("unknown", False)):
            meta = {**TOKEN, "io.modelcontextprotocol/logLevel": level}
            answer = await peer.post_modern("tools/call", {"name": "talk", "_meta": meta})
            methods = [message.get("method") for message in answer.messages]
            assert ("notifications/message" in methods) is logged


async def test_a_long_silence_makes_it_a_stream_of_comments(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server(era="modern") as server:

        async def slow() -> str:
            await trio.sleep(50)
            return "done"

        server.tool("slow", slow)
        peer = await Peer(server).open()
        answer = await peer.post_modern("tools/call", {"name": "slow"})
        assert answer.headers["content-type"] == "text/event-stream"
        assert answer.body.count(b": ping\n\n") == 2 and answer.body.count(b"data: ") == 1
        server.sse_after = math.inf
        assert (await peer.post_modern("tools/call", {"name": "slow"})).json["result"]["content"]


async def test_json_mode_drops_what_is_said(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server(era="modern") as server:
        server.tool("talk", talk)
        server.json_mode = True
        peer = await Peer(server).open()
        answer = await peer.post_modern("tools/call", {"name": "talk", "_meta": TOKEN})
        assert answer.json["result"]["content"] == [{"type": "text", "text": "there"}]


async def test_a_stream_at_once_if_asked(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server(era="modern") as server:
        server.sse_after = 0
        (result,) = (await add(await come(server))).messages
        assert result["result"]["content"] == ADDED


class Slow:
    """A tool that never answers, and what became of it."""

    def __init__(self, server: ScriptedServer) -> None:
        self.ended = False
        self.goes_on = trio.Event()
        server.tool("slow", self.run)

    async def run(self) -> str:
        try:
            await self.goes_on.wait()
        finally:
            self.ended = True
        return "done"


@pytest.mark.parametrize("sse_after", [0, math.inf])
async def test_a_disconnect_is_the_cancel(autojump_clock: trio.testing.MockClock, sse_after: float) -> None:
    async with open_scripted_server(era="modern") as server:
        slow = Slow(server)
        server.sse_after = sse_after
        peer = await Peer(server).open()
        message, fields = peer.modern("tools/call", {"name": "slow"})
        await peer.send("POST", message, **fields)
        await trio.testing.wait_all_tasks_blocked()
        assert server.running == 1 and peer.stream is not None and not slow.ended
        peer.stream.close()
        await trio.testing.wait_all_tasks_blocked()
        assert slow.ended and server.running == 0
        assert server.disconnects == [message["id"]]


async def test_some_servers_do_not_learn_of_a_disconnect(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server(era="modern") as server:
        server.cancels_on_disconnect = False
        slow = Slow(server)
        peer = await Peer(server).open()
        message, fields = peer.modern("tools/call", {"name": "slow"})
        await peer.send("POST", message, **fields)
        await trio.testing.wait_all_tasks_blocked()
        server.cut_connections()
        await trio.testing.wait_all_tasks_blocked()
        assert not slow.ended and server.disconnects == []
        slow.goes_on.set()
        await trio.testing.wait_all_tasks_blocked()
        assert slow.ended and server.running == 0


async def test_a_disconnect_after_the_answer_is_none(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server(era="modern") as server:
        peer = await come(server)
        await add(peer)
        held = server.hold("tools/call")
        message, fields = peer.modern("tools/call", {"name": "add", "arguments": ADD})
        await peer.send("POST", message, **fields)
        await held.reached()
        assert peer.stream is not None
        peer.stream.close()
        await trio.testing.wait_all_tasks_blocked()
        # It left before anything ran.
        assert server.disconnects == [message["id"]] and server.executed["add"] == 1


def name_asked(key: str) -> Mapping[str, Any]:
    return {"message": f"what {key}?", "requestedSchema": {"type": "object", "properties": {}}}


async def ask_twice(ctx: ToolContext) -> str:
    first = await ctx.request("elicitation/create", name_asked("name"), key="name")
    second = await ctx.request("elicitation/create", name_asked("place"))
    return f"{first['content']} of {second['content']}"


def accepted(content: str) -> Mapping[str, Any]:
    return {"action": "accept", "content": content}


async def test_a_tool_asks_by_its_result(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server(era="modern") as server:
        server.tool("ask", ask_twice)
        peer = await Peer(server).open()
        first = (await peer.post_modern("tools/call", {"name": "ask"})).json["result"]
        assert first["resultType"] == "input_required" and first["_meta"] == SERVER_INFO
        assert first["inputRequests"] == {
            "name": {"method": "elicitation/create", "params": name_asked("name")}
        }
        again = {"inputResponses": {"name": accepted("Ada")}, "requestState": first["requestState"]}
        # What was answered is in the state, so a restart loses nothing.
        server.restart()
        peer = await Peer(server).open()
        second = (await peer.post_modern("tools/call", {"name": "ask", **again})).json["result"]
        (key,) = second["inputRequests"]
        again = {"inputResponses": {key: accepted("London")}, "requestState": second["requestState"]}
        last = (await peer.post_modern("tools/call", {"name": "ask", **again})).json["result"]
        assert last["content"] == [{"type": "text", "text": "Ada of London"}]
        assert last["resultType"] == "complete" and server.executed["ask"] == 3


async def test_what_is_not_answered_is_asked_again(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server(era="modern") as server:
        server.tool("ask", ask_twice)
        peer = await Peer(server).open()
        for wrong in ({"other": accepted("x")}, {"name": "no mapping"}, "nothing"):
            params = {"name": "ask", "inputResponses": wrong}
            result = (await peer.post_modern("tools/call", params)).json["result"]
            assert list(result["inputRequests"]) == ["name"]
        params = {"name": "ask", "requestState": f"{result['requestState']}x"}
        refused = await peer.post_modern("tools/call", params)
        assert refused.status == 400 and refused.json["error"]["code"] == -32602


async def test_nothing_is_asked_of_a_client_that_cannot(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server(era="modern") as server:
        server.tool("roots", lambda ctx: ctx.request("roots/list"))
        refused = await (await Peer(server).open()).post_modern("tools/call", {"name": "roots"})
        assert refused.status == 400 and refused.json["error"]["code"] == -32021
        assert refused.json["error"]["data"] == {"requiredCapabilities": {"roots": {}}}


async def test_a_tool_may_ask_in_its_own_words(autojump_clock: trio.testing.MockClock) -> None:
    def wait(ctx: ToolContext) -> str:
        if ctx.params.get("requestState") != "later":
            raise InputRequired(state="later")
        return "now"

    async with open_scripted_server(era="modern") as server:
        server.tool("wait", wait)
        peer = await Peer(server).open()
        asked = (await peer.post_modern("tools/call", {"name": "wait"})).json["result"]
        assert asked == {"resultType": "input_required", "requestState": "later", "_meta": SERVER_INFO}
        done = await peer.post_modern("tools/call", {"name": "wait", "requestState": "later"})
        assert done.json["result"]["content"] == [{"type": "text", "text": "now"}]


@pytest.mark.parametrize("sse_after", [0, math.inf])
@pytest.mark.parametrize("point", ["before-run", "before-head", "after-head", "mid-body", "before-end"])
async def test_cuts_strike_as_with_sessions(
    autojump_clock: trio.testing.MockClock, point: Any, sse_after: float
) -> None:
    async with open_scripted_server(era="modern") as server:
        server.sse_after = sse_after
        peer = await come(server)
        cut = server.cut(point, when="tools/call")
        answer = Answer()
        message, fields = peer.modern("tools/call", {"name": "add", "arguments": ADD})
        await peer.send("POST", message, **fields)
        with pytest.raises((trio.BrokenResourceError, h11.RemoteProtocolError)):
            await peer.receive(answer)
        assert cut.hits == 1 and server.executed["add"] == (point != "before-run")
        assert (answer.status is None) == (point in ("before-run", "before-head"))
        kind = "application/json" if sse_after else "text/event-stream"
        assert answer.headers.get("content-type", kind) == kind
        assert (ADDED[0]["text"] in answer.body.decode()) == (point == "before-end")
        assert server.disconnects == [] and server.running == 0


async def test_every_other_fault_strikes_as_well(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server(era="modern") as server:
        peer = await come(server)
        server.answer(
            200, lambda seen: {"jsonrpc": "2.0", "id": 999, "result": {}}, when="tools/call", ran=True
        )
        assert (await add(peer)).json["id"] == 999 and server.executed["add"] == 1
        silent = server.go_silent("before-head", when="tools/call")
        with trio.move_on_after(3600):
            await add(peer)
        assert silent.hits == 1 and server.executed["add"] == 2
        server.cut("mid-request", when="tools/call")
        peer = await Peer(server).open()
        with pytest.raises(trio.BrokenResourceError):
            await add(peer)
        assert server.executed["add"] == 2
        server.down()
        with pytest.raises(ConnectionRefusedError):
            await Peer(server).open()


async def test_a_restart_stops_what_runs(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server(era="modern") as server:
        slow = Slow(server)
        peer = await Peer(server).open()
        message, fields = peer.modern("tools/call", {"name": "slow"})
        await peer.send("POST", message, **fields)
        await trio.testing.wait_all_tasks_blocked()
        server.restart()
        await trio.testing.wait_all_tasks_blocked()
        assert slow.ended and server.running == 0 and server.disconnects == []
