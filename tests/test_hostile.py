"""A hostile server can make the client neither spin, nor grow, nor hang, nor say what it should not.

`docs/limits.md` has the table of the bounds; `SECURITY.md` names these tests.
"""

from __future__ import annotations

import gzip
import importlib
import json
import re
import time
import zlib
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import mcp_types as types
import pytest
import trio
from mcp import MCPError
from pydantic import ValidationError
from trio.testing import MockClock, wait_all_tasks_blocked

import trio_mcp_resilient
from tests.hostile import (
    END,
    GONE,
    MIB,
    SESSION,
    STREAM,
    URL,
    Heard,
    Hostile,
    chunk,
    envelope,
    event,
    http,
    introduction,
    open_hostile,
    open_victim,
    peak,
    result_of,
    said,
    to,
)
from tests.http_peer import ENDPOINT, Peer, answering
from tests.kit import STEADY, add
from trio_mcp_resilient import (
    HandshakeFailed,
    OutcomeUnknown,
    RequestRefused,
    ResilientError,
    TrioHTTPTransport,
    open_client,
)
from trio_mcp_resilient._answers import (
    EXCERPT_BYTES,
    MAX_EVENT_ID_BYTES,
    MAX_MESSAGE_BYTES,
    Cursor,
    read_answer,
)
from trio_mcp_resilient._connections import Connections
from trio_mcp_resilient._cookies import MAX_COOKIE_BYTES, MAX_COOKIES
from trio_mcp_resilient._dispatcher import MAX_PAGES
from trio_mcp_resilient._handshake import MAX_RETRY_AFTER
from trio_mcp_resilient._http import MAX_REDIRECTS
from trio_mcp_resilient._inbound import MAX_UNDELIVERED, MAX_UNDELIVERED_BYTES
from trio_mcp_resilient._jsonrpc import MAX_BATCH, MAX_ID_CHARS, InvalidMessage, Message, decode
from trio_mcp_resilient._listening import REOPEN
from trio_mcp_resilient._restoring import MAX_TOOL_NAME, MAX_TOOLS, SessionState
from trio_mcp_resilient._resuming import FLOOR_SECONDS, PACE
from trio_mcp_resilient._router import MAX_HANDLERS
from trio_mcp_resilient._schemas import is_affordable
from trio_mcp_resilient._secrets import one_line
from trio_mcp_resilient._session import MAX_SESSION_ID_BYTES
from trio_mcp_resilient._spares import MAX_ENDING
from trio_mcp_resilient._supervisor import FLAPPING_LOSSES, FLAPPING_SECONDS

NOTE = {"method": "notifications/message", "params": {"level": "info", "data": "x"}}


class Bearer(httpx.Auth):
    def auth_flow(self, request: httpx.Request) -> Any:
        request.headers["authorization"] = "Bearer t"
        yield request


# Growing: one answer.


def endless(head: bytes, piece: bytes, sent: list[int]) -> Callable[[Heard], Any]:
    """Send a head, then pieces until the client has enough, counting the bytes."""

    async def send(heard: Heard) -> None:
        await heard.end.send(head)
        while True:
            await heard.end.send(piece)
            sent.append(len(piece))
            await trio.testing.wait_all_tasks_blocked()

    return send


BIG = chunk(b"x" * MIB)
JSON_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
HUGE = {
    "a JSON answer": (JSON_HEAD, BIG),
    "a line without end": (STREAM, BIG),
    "an event without end": (STREAM, chunk(b"data: " + b"x" * MIB + b"\n")),
    "a comment without end": (STREAM + chunk(b":"), BIG),
}


@pytest.mark.parametrize(("head", "piece"), HUGE.values(), ids=HUGE.keys())
async def test_an_answer_without_end_is_given_up_at_its_limit(
    head: bytes, piece: bytes, autojump_clock: MockClock
) -> None:
    sent: list[int] = []
    async with open_victim(to(tools_call=endless(head, piece, sent))) as (_, client):
        await client.list_tools()
        with peak(4 * MAX_MESSAGE_BYTES), pytest.raises(OutcomeUnknown, match="larger than"):
            await add(client)
        assert sum(sent) < MAX_MESSAGE_BYTES + 3 * MIB
        assert await client.ping()


class Pieces:
    """A response whose body comes in pieces of two bytes."""

    status = 200
    headers = ((b"content-type", b"application/json"),)

    def __init__(self, body: bytes) -> None:
        self._pieces = iter([body[start : start + 2] for start in range(0, len(body), 2)])

    async def receive(self) -> bytes:
        await trio.lowlevel.checkpoint()
        return next(self._pieces, b"")

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


async def ignore(message: Message) -> None:
    await trio.lowlevel.checkpoint()


async def test_an_answer_in_tiny_pieces_costs_no_more_than_its_size() -> None:
    body = json.dumps(envelope(id=1, result={"x": "y" * 100_000})).encode()
    pieces = Pieces(body)
    with peak(8 * len(body)):
        answer = await read_answer(pieces, 1, ignore, Cursor())
    assert answer.message is not None


async def test_of_a_refusal_only_the_beginning_is_read(autojump_clock: MockClock) -> None:
    sent: list[int] = []
    head = b"HTTP/1.1 400 Bad Request\r\ntransfer-encoding: chunked\r\n\r\n"
    piece = chunk(b"x" * 8192)
    async with open_victim(to(tools_call=endless(head, piece, sent))) as (_, client):
        await client.list_tools()
        with pytest.raises(RequestRefused):
            await add(client)
        assert sum(sent) < EXCERPT_BYTES + 4 * len(piece)


# Growing: what the server sends unasked.


def flood(*messages: bytes) -> Callable[[Heard], bytes]:
    """Answer a call on a stream, after so many messages."""
    return lambda heard: STREAM + b"".join(messages) + event(result_of(heard)) + END


async def test_a_handler_that_does_not_take_them_holds_up_no_answer_and_keeps_few_notifications(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    many = [event(envelope(**NOTE))] * (4 * MAX_UNDELIVERED)
    taken: list[object] = []

    async def never_done(message: object) -> None:
        taken.append(message)
        await trio.sleep_forever()

    async with open_victim(to(tools_call=flood(*many)), message_handler=never_done) as (_, client):
        await client.list_tools()
        assert await add(client) == "3"
        inbound = client.session._dispatcher.inbound  # type: ignore[attr-defined]
        assert inbound.dropped >= 3 * MAX_UNDELIVERED - 2
    assert len(taken) == 1
    # Not a line for each: a log is something that grows, too.
    assert sum("notifications dropped" in record.message for record in caplog.records) < 20


async def test_what_waits_for_a_handler_is_bounded_in_bytes(autojump_clock: MockClock) -> None:
    large = event(envelope(method="notifications/message", params={"level": "info", "data": "x" * MIB}))
    number = 4 * MAX_UNDELIVERED_BYTES // MIB

    async def answer(heard: Heard) -> None:
        await heard.end.send(STREAM)
        for _ in range(number):
            await heard.end.send(large)
            await wait_all_tasks_blocked()
        await heard.end.send(event(result_of(heard)) + END)

    async def never_done(message: object) -> None:
        await trio.sleep_forever()

    async with open_victim(to(tools_call=answer), message_handler=never_done) as (_, client):
        await client.list_tools()
        with peak(2 * MAX_UNDELIVERED_BYTES):
            assert await add(client) == "3"
        dropped = client.session._dispatcher.inbound.dropped  # type: ignore[attr-defined]
        assert number - 18 <= dropped <= number - 15


@pytest.mark.parametrize("same", [True, False], ids=["of one id", "of many ids"])
async def test_few_of_the_servers_requests_are_handled_at_a_time(
    same: bool, autojump_clock: MockClock
) -> None:
    running = 0

    async def roots(context: object) -> types.ListRootsResult:
        nonlocal running
        running += 1
        await trio.sleep_forever()
        raise AssertionError

    asked = [event(envelope(id="a" if same else f"r{n}", method="roots/list")) for n in range(1000)]
    async with open_victim(to(tools_call=flood(*asked)), list_roots_callback=roots) as (_, client):
        await client.list_tools()
        assert await add(client) == "3"
        await wait_all_tasks_blocked()
        assert running == (1 if same else MAX_HANDLERS)


async def test_requests_being_handled_are_bounded_in_bytes(autojump_clock: MockClock) -> None:
    running = 0

    async def roots(context: object) -> types.ListRootsResult:
        nonlocal running
        running += 1
        await trio.sleep_forever()
        raise AssertionError

    padding = {"_meta": {"x": "y" * (4 * MIB)}}
    asked = [event(envelope(id=n, method="roots/list", params=padding)) for n in range(10)]
    async with open_victim(to(tools_call=flood(*asked)), list_roots_callback=roots) as (_, client):
        await client.list_tools()
        assert await add(client) == "3"
        await wait_all_tasks_blocked()
        assert running == 3


async def test_a_request_whose_id_is_absurd_is_not_answered(autojump_clock: MockClock) -> None:
    asked = [event(envelope(id="x" * length, method="ping")) for length in (MAX_ID_CHARS, MAX_ID_CHARS + 1)]
    async with open_victim(to(tools_call=flood(*asked))) as (server, client):
        await client.list_tools()
        assert await add(client) == "3"
        await wait_all_tasks_blocked()
        answers = [heard for heard in server.heard if heard.rpc == "POST"]
        assert [len(heard.id) for heard in answers] == [MAX_ID_CHARS]


async def test_progress_on_another_stream_is_bounded(autojump_clock: MockClock) -> None:
    running = 0

    async def progress(progress: float, total: float | None, message: str | None) -> None:
        nonlocal running
        running += 1
        await trio.sleep_forever()

    token = trio.Event()
    tokens: list[Any] = []

    async def stream(heard: Heard) -> None:
        await heard.end.send(STREAM)
        await token.wait()
        about = envelope(method="notifications/progress", params={"progressToken": tokens[0], "progress": 1})
        await heard.end.send(event(about) * 1000)

    async def held(heard: Heard) -> None:
        tokens.append(heard.message["params"]["_meta"]["progressToken"])
        token.set()
        await trio.sleep(1)
        await heard.end.send(said(result_of(heard)))

    async with open_victim(to(GET=stream, tools_call=held), get_stream=True) as (_, client):
        await client.list_tools()
        await client.call_tool("add", {}, progress_callback=progress)
        assert running == MAX_HANDLERS


async def test_a_batch_is_bounded() -> None:
    note = envelope(**NOTE)
    assert len(decode(json.dumps([note] * MAX_BATCH))) == MAX_BATCH
    with pytest.raises(InvalidMessage, match="batch"):
        decode(json.dumps([note] * (MAX_BATCH + 1)))


# Growing: what is remembered.


def test_the_tools_that_are_remembered_are_few_and_small() -> None:
    state = SessionState()
    listed = [{"name": f"t{number}", "inputSchema": {}} for number in range(MAX_TOOLS + 10)]
    state.observe("tools/list", {}, {"tools": listed})
    assert state.tools is not None and len(state.tools) == MAX_TOOLS
    state.observe("tools/list", {}, {"tools": [{"name": "x" * (MAX_TOOL_NAME + 1)}]})
    assert state.tools == {}
    with peak(16 * MIB):
        for page in range(64):
            large = {"name": f"t{page}", "description": str(page) * MIB}
            state.observe(
                "tools/list", {"cursor": "c"} if page else {}, {"tools": [large], "nextCursor": "c"}
            )
            del large


@pytest.mark.parametrize("tools", [5, "abc", {"name": "x"}, [5], [{"name": 5}], [{}], None])
def test_tools_that_are_none_are_not_remembered(tools: object) -> None:
    state = SessionState()
    assert state.observe("tools/list", {}, {"tools": tools}) is None
    assert state.tools == {}


async def test_a_listing_without_end_is_not_followed_for_ever(autojump_clock: MockClock) -> None:
    def pages(heard: Heard) -> bytes:
        return said(envelope(id=heard.id, result={"tools": [], "nextCursor": "more"}))

    once = {"lost": False}

    def answer(heard: Heard) -> Any:
        if heard.rpc == "tools/list":
            return pages(heard) if once["lost"] else None
        if heard.rpc == "tools/call" and not once["lost"]:
            once["lost"] = True
            return GONE
        return None

    async with open_victim(answer) as (server, client):
        await client.list_tools()
        assert await add(client) == "3"
        await trio.sleep(1)
        assert server.count("tools/list") == 1 + MAX_PAGES


COOKIES = {
    "many": ([f"set-cookie: c{n}=v; Path=/" for n in range(MAX_COOKIES + 1)], None),
    "large": (["set-cookie: c=" + "v" * (MAX_COOKIE_BYTES + 1)], None),
    "not ASCII": (["set-cookie: c=\u00e9", "set-cookie: d=e"], "d=e"),
    "fine": ([f"set-cookie: c{n}=v; Path=/" for n in range(MAX_COOKIES)], "c0=v"),
}


@pytest.mark.parametrize("auth", [None, Bearer()], ids=["plain", "through httpx"])
@pytest.mark.parametrize("name", COOKIES)
async def test_cookies_are_bounded(name: str, auth: httpx.Auth | None, autojump_clock: MockClock) -> None:
    fields, sent = COOKIES[name]
    answer = to(tools_list=lambda heard: said(envelope(id=heard.id, result={"tools": []}), *fields))
    async with open_victim(answer, auth=auth) as (server, client):
        await client.list_tools()
        assert await add(client) == "3"
        cookie = server.heard[-2].headers.get("cookie")
        if sent is None:
            assert cookie is None
        else:
            assert cookie is not None and cookie.encode("latin-1").decode().startswith(sent)


async def test_streams_that_are_never_ended_do_not_pile_up() -> None:
    body = b'{"jsonrpc":"2.0","id":1,"result":{}}'
    async with trio.open_nursery() as nursery:
        connections = Connections(connect=Peer(nursery, answering(STREAM + chunk(body))).connect)

        async def call() -> None:
            response = await connections.request(ENDPOINT, "POST", [], b"{}")
            assert await response.receive() == body
            await wait_all_tasks_blocked()
            await response.aclose()

        async with trio.open_nursery() as calls:
            for _ in range(3 * MAX_ENDING):
                calls.start_soon(call)
        held = connections.statistics()
        assert (held.ending, held.idle, held.busy) == (MAX_ENDING, 0, 0)
        connections.close()
        nursery.cancel_scope.cancel()


# Bombs.


def bomb(size: int, before: bytes) -> bytes:
    """So many bytes of one letter after a beginning, compressed."""
    packer = zlib.compressobj(9, wbits=16 + zlib.MAX_WBITS)
    parts = [packer.compress(before)]
    parts += [packer.compress(b"x" * MIB) for _ in range(size // MIB)]
    return b"".join([*parts, packer.flush()])


CLIENTS = ["plain", "with auth", "the application's", "the application's, on httpx's own transport"]


@asynccontextmanager
async def open_reached(answer: Any, how: str) -> AsyncGenerator[Any, None]:
    """A server and a client, by each of the ways that a request can go out."""
    if not how.startswith("the application's"):
        async with open_victim(answer, auth=Bearer() if how == "with auth" else None) as (_, client):
            yield client
        return
    async with open_hostile(answer) as server:
        transport: httpx.AsyncBaseTransport = TrioHTTPTransport(connect=server.connect)
        if how.endswith("own transport"):
            transport = Strange(transport)
        async with httpx.AsyncClient(transport=transport) as http_client:
            options: dict[str, Any] = {"http_client": http_client, "backoff": STEADY, "get_stream": False}
            async with open_client(URL, **options) as client:
                yield client


class Strange(httpx.AsyncBaseTransport):
    """Somebody else's transport: its responses bring none of ours along."""

    def __init__(self, inner: httpx.AsyncBaseTransport) -> None:
        self._inner = inner

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await self._inner.handle_async_request(request)
        response.extensions = {}
        return response


@pytest.mark.parametrize("how", CLIENTS)
async def test_a_compressed_answer_is_read_though_nobody_asked_for_it(
    how: str, autojump_clock: MockClock
) -> None:
    asked: list[str] = []

    def packed(heard: Heard) -> bytes:
        asked.append(heard.headers["accept-encoding"])
        body = gzip.compress(json.dumps(result_of(heard, "y" * 200_000)).encode())
        return http(body, "content-type: application/json", "content-encoding: gzip")

    async with open_reached(to(tools_call=packed), how) as client:
        await client.list_tools()
        assert await add(client) == "y" * 200_000
    assert asked == ["identity"]


@pytest.mark.parametrize("how", CLIENTS)
@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
async def test_a_decompression_bomb_does_not_go_off(kind: str, how: str, autojump_clock: MockClock) -> None:
    packed = http(bomb(256 * MIB, b'data: {"x": "'), f"content-type: {kind}", "content-encoding: gzip")
    async with open_reached(to(tools_call=packed), how) as client:
        await client.list_tools()
        with peak(4 * MAX_MESSAGE_BYTES), pytest.raises(OutcomeUnknown, match="larger than"):
            await add(client)
        assert await client.ping()


@pytest.mark.parametrize("how", CLIENTS)
@pytest.mark.parametrize("coding", ["gzip, gzip", "br", "zstd", "deflate", "x-unheard-of"])
async def test_another_coding_is_refused(coding: str, how: str, autojump_clock: MockClock) -> None:
    packed = http(bomb(MIB, b""), "content-type: application/json", f"content-encoding: {coding}")
    async with open_reached(to(tools_call=packed), how) as client:
        await client.list_tools()
        with pytest.raises(OutcomeUnknown, match="not asked for"):
            await add(client)


@pytest.mark.parametrize("spoiled", ["cut", "no gzip"])
async def test_a_compressed_answer_that_is_broken_is_of_unknown_outcome(
    spoiled: str, autojump_clock: MockClock
) -> None:
    def packed(heard: Heard) -> bytes:
        body = gzip.compress(json.dumps(result_of(heard, "y" * 200_000)).encode())
        body = body[: len(body) // 2] if spoiled == "cut" else b"plain"
        return http(body, "content-type: application/json", "content-encoding: gzip")

    async with open_victim(to(tools_call=packed)) as (_, client):
        await client.list_tools()
        with pytest.raises(OutcomeUnknown, match=r"compressed answer was cut|not the gzip"):
            await add(client)


# Texts and numbers.

DEEP = b'{"jsonrpc":"2.0","id":%d,"result":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_001
ODD = {
    "deep": DEEP,
    "an integer that is no float": b'{"jsonrpc":"2.0","id":%d,"result":{"content":[],"x":1'
    + b"0" * 400
    + b"}}",
    "an integer that is no integer": b'{"jsonrpc":"2.0","id":%d,"result":{"x":1' + b"0" * 9000 + b"}}",
    "no UTF-8": b'{"jsonrpc":"2.0","id":%d,"result":{"content":[{"type":"text","text":"\xff\xfe"}]}}',
    "lone surrogates": b'{"jsonrpc":"2.0","id":%d,"result":{"content":[{"type":"text","text":"\\ud800"}]}}',
    "an absurd error code": b'{"jsonrpc":"2.0","id":%d,"error":{"code":1' + b"0" * 4000 + b',"message":""}}',
    "an absurd id": b'{"jsonrpc":"2.0","id":%d1' + b"0" * 4000 + b',"result":{}}',
    "a result of another shape": b'{"jsonrpc":"2.0","id":%d,"result":{"content":{"a":[1,2]}}}',
}


@pytest.mark.parametrize("body", ODD.values(), ids=ODD.keys())
async def test_odd_json_ends_in_a_result_or_an_error_of_the_documented_kinds(
    body: bytes, autojump_clock: MockClock
) -> None:
    answer = to(tools_call=lambda heard: said(body.replace(b"%d", b"%d" % heard.id)))
    async with open_victim(answer) as (_, client):
        await client.list_tools()
        # The last is the SDK's: the result is not what MCP says it is.
        with suppress(MCPError, ResilientError, ValidationError):
            assert isinstance(await client.call_tool("add", {}), types.CallToolResult)
        assert await client.ping()


async def test_progress_beyond_all_floats_is_ignored(autojump_clock: MockClock) -> None:
    told: list[float] = []

    async def progress(progress: float, total: float | None, message: str | None) -> None:
        told.append(progress)

    def answer(heard: Heard) -> bytes:
        params = {"progressToken": heard.message["params"]["_meta"]["progressToken"]}
        values = [{"progress": 10**400}, {"progress": 1, "total": 10**400}, {"progress": "2"}]
        return flood(
            *(
                event(envelope(method="notifications/progress", params={**params, **value}))
                for value in values
            )
        )(heard)

    async with open_victim(to(tools_call=answer)) as (_, client):
        await client.list_tools()
        await client.call_tool("add", {}, progress_callback=progress)
        assert told == [1.0]


def doubling(depth: int) -> dict[str, Any]:
    """A schema whose references double at each step."""
    defs: dict[str, Any] = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(depth)}
    return {"type": "object", "$ref": "#/$defs/d0", "$defs": {**defs, f"d{depth}": {"type": "object"}}}


TEXT = {"a": "a" * 60 + "!"}
COSTLY: dict[str, tuple[dict[str, Any], Any]] = {
    "refers to itself": ({"type": "object", "allOf": [{"$ref": "#"}]}, {}),
    "refers to itself, further down": (
        {"type": "object", "properties": {"a": {"$ref": "#/properties/a"}}},
        TEXT,
    ),
    "doubles": (doubling(60), {}),
    "a regular expression": ({"type": "object", "properties": {"a": {"pattern": "^(a+)+$"}}}, TEXT),
    "names by regular expressions": (
        {"type": "object", "patternProperties": {"^(a+)+$": {}}},
        {"a" * 60 + "!": 1},
    ),
    "unique items": (
        {"type": "object", "properties": {"a": {"uniqueItems": True}}},
        {"a": [{"x": n} for n in range(100_000)]},
    ),
    "much of both": (
        {"type": "object", "properties": {"a": {"items": {"anyOf": [{"minimum": n} for n in range(1000)]}}}},
        {"a": [-1] * 100_000},
    ),
    "large": ({"type": "object", "properties": {f"p{n}": {"type": "object"} for n in range(100_000)}}, {}),
    "refers by a name": ({"type": "object", "$ref": "#a", "$defs": {"a": {"$anchor": "a"}}}, {}),
}


@pytest.mark.parametrize(("schema", "value"), COSTLY.values(), ids=COSTLY.keys())
async def test_a_schema_that_could_keep_us_busy_is_not_run(
    schema: dict[str, Any], value: Any, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    tool = {"name": "add", "inputSchema": {"type": "object"}, "outputSchema": schema}
    answer = to(
        tools_list=lambda heard: said(envelope(id=heard.id, result={"tools": [tool]})),
        tools_call=lambda heard: said(
            envelope(id=heard.id, result={"content": [], "structuredContent": value})
        ),
    )
    async with open_victim(answer) as (server, client):
        began = time.process_time()
        assert (await client.call_tool("add", {})).structured_content == value
        assert time.process_time() - began < 10
        assert server.count("tools/list") == 1
    assert "a result of add was not validated" in caplog.text


FAIR: list[tuple[dict[str, Any], Any]] = [
    ({"type": "object", "properties": {"pattern": {"type": "string"}}}, {"pattern": "x"}),
    (
        {"type": "object", "properties": {"a": {"$ref": "#/$defs/n"}}, "$defs": {"n": {"type": "integer"}}},
        {"a": 1},
    ),
    (doubling(5), {}),
    ({"type": "object", "properties": {"a": {"items": {"type": "integer"}}}}, {"a": list(range(10_000))}),
    ({"type": "object", "allOf": [{"$ref": "#/oneOf/0"}], "oneOf": [{"type": "object"}]}, {}),
]


@pytest.mark.parametrize(("schema", "value"), FAIR)
def test_an_ordinary_schema_is_run(schema: dict[str, Any], value: Any) -> None:
    assert is_affordable(schema, value)


def test_a_text_to_be_shown_takes_no_time_to_be_searched() -> None:
    began = time.process_time()
    assert one_line("session" + " " * 8000 + ":") == "session :"
    assert time.process_time() - began < 0.3


@pytest.mark.parametrize(("asked", "kept"), [("999999", MAX_RETRY_AFTER), ("9" * 5000, MAX_RETRY_AFTER)])
async def test_a_server_cannot_put_a_client_away_for_weeks(
    asked: str, kept: float, autojump_clock: MockClock
) -> None:
    first = [True]

    def busy(heard: Heard) -> bytes | None:
        return http(b"", f"retry-after: {asked}", status=503) if first and first.pop() else None

    began = trio.current_time()
    async with open_victim(to(initialize=busy), recovery_timeout=float("inf")):
        assert trio.current_time() - began == pytest.approx(kept)


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
    async with open_victim(to(GET=answer, tools_call=cut + END)) as (server, client):
        await client.list_tools()
        with trio.move_on_after(100) as scope, pytest.raises(OutcomeUnknown):
            await add(client)
        if scope.cancelled_caught:
            # It gets on, so it is waited for until the caller has enough.
            assert server.count("GET") <= 100 / FLOOR_SECONDS + 2
        else:
            assert server.count("GET") <= PACE.attempts


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


# What is sent is what was meant.


@pytest.mark.parametrize(
    "odd", ["a b", "a\tb", "\u00e9", "a\x01b", "", "x" * (MAX_SESSION_ID_BYTES + 1)], ids=ascii
)
async def test_a_session_id_that_is_no_token_makes_no_session(odd: str, autojump_clock: MockClock) -> None:
    answer = to(initialize=lambda heard: said(introduction(heard), f"mcp-session-id: {odd}"))
    async with open_hostile(answer) as server:
        with pytest.raises(HandshakeFailed) as caught:
            async with open_client(URL, connect=server.connect):
                pytest.fail("nothing was to be opened")
        assert not odd or odd not in str(caught.value)
        assert server.count("notifications/initialized") == 0


@pytest.mark.parametrize("version", ["2025-11-25\r\nx: y", "2025-11-25 ", "1999-01-01", "x" * MIB])
async def test_a_protocol_version_is_one_that_is_known(version: str, autojump_clock: MockClock) -> None:
    answer = to(initialize=lambda heard: said(introduction(heard, version)))
    async with open_hostile(answer) as server:
        with pytest.raises(HandshakeFailed) as caught:
            async with open_client(URL, connect=server.connect):
                pytest.fail("nothing was to be opened")
        assert len(str(caught.value)) < 500 and "\n" not in str(caught.value)


@pytest.mark.parametrize("length", [MAX_EVENT_ID_BYTES, MAX_EVENT_ID_BYTES + 1])
async def test_an_event_id_that_is_too_long_is_not_sent_back(length: int, autojump_clock: MockClock) -> None:
    cut = STREAM + event(None, "id: " + "7" * length, "retry: 0") + END

    def stream(heard: Heard) -> bytes:
        call = next(one for one in server.heard if one.rpc == "tools/call")
        return STREAM + event(result_of(call)) + END

    async with open_victim(to(tools_call=cut, GET=stream)) as (server, client):
        await client.list_tools()
        if length <= MAX_EVENT_ID_BYTES:
            assert await add(client) == "3"
        else:
            with pytest.raises(OutcomeUnknown):
                await add(client)
        assert server.count("GET") == (length <= MAX_EVENT_ID_BYTES)


HEADERS = {
    "a line break": {"x": "a\r\nmcp-session-id: b"},
    "a bare line feed": {"x": "a\nb"},
    "a NUL": {"x": "a\0b"},
    "a colon in the name": {"x: y": "z"},
    "a line break in the name": {"x\r\ny": "z"},
    "a name of another script": {"\u00e9": "z"},
    "no name": {"": "z"},
    "a length": {"Content-Length": "7"},
    "a framing": {"Transfer-Encoding": "chunked"},
    "a session": {"Mcp-Session-Id": "z"},
    "a coding": {"Accept-Encoding": "gzip"},
    "half a character": {"x": "\ud800"},
}


@pytest.mark.parametrize("mine", [True, False], ids=["ours", "the application's client"])
@pytest.mark.parametrize("headers", HEADERS.values(), ids=HEADERS.keys())
async def test_headers_that_could_smuggle_are_refused_at_once(headers: dict[str, str], mine: bool) -> None:
    async with httpx.AsyncClient() as http_client:
        options: dict[str, Any] = {} if mine else {"http_client": http_client}
        with pytest.raises(ValueError, match=r"header|surrogates"):
            async with open_client(URL, headers=headers, **options):
                pytest.fail("nothing was to be opened")


@pytest.mark.parametrize("how", CLIENTS)
@pytest.mark.parametrize("odd", ["a\r\nx-evil: 1", "a\nb", "a\0b"], ids=ascii)
async def test_a_header_for_one_request_is_checked_before_anything_is_sent(
    odd: str, how: str, autojump_clock: MockClock
) -> None:
    heard: list[Heard] = []

    def note(one: Heard) -> None:
        heard.append(one)

    async with open_reached(note, how) as client:
        await client.list_tools()
        dispatcher = client.session._dispatcher
        for headers in ({"X-Custom": odd}, {odd: "x"}):
            before = len(heard)
            with pytest.raises(ValueError, match="header"):
                await dispatcher.send_raw_request("tools/call", {"name": "add"}, {"headers": headers})
            assert len(heard) == before
        assert await add(client) == "3"


def modern(heard: Heard) -> bytes | None:
    """A server of 2026-07-28, whose tool wants its argument in a header."""
    properties = {"a": {"type": "string", "x-mcp-header": "A"}}
    tool = {"name": NAME, "inputSchema": {"type": "object", "properties": properties}}
    if heard.rpc == "server/discover":
        info = {"name": "hostile", "version": "1"}
        told = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}, "serverInfo": info}
        return said(envelope(id=heard.id, result=told))
    return said(envelope(id=heard.id, result={"tools": [tool]})) if heard.rpc == "tools/list" else None


NAME = "add\r\nx-evil: 1"


async def test_names_and_arguments_that_become_headers_are_encoded(autojump_clock: MockClock) -> None:
    async with open_victim(modern) as (server, client):
        await client.list_tools()
        await client.call_tool(NAME, {"a": "1\r\nx-evil: 2"})
        sent = server.heard[-1].headers
        assert sent["mcp-name"].startswith("=?base64?") and sent["mcp-param-a"].startswith("=?base64?")
        assert "x-evil" not in sent


async def test_a_server_that_quotes_the_session_id_does_not_have_it_repeated(
    autojump_clock: MockClock,
) -> None:
    def error(heard: Heard) -> dict[str, Any]:
        text = f"bad argument (in {SESSION})"
        return envelope(
            id=heard.id, error={"code": -32602, "message": text, "data": {"ids": [SESSION, {SESSION: 1}]}}
        )

    for status in (200, 400):
        answer = to(tools_call=lambda heard, status=status: said(error(heard), status=status))
        async with open_victim(answer) as (_, client):
            await client.list_tools()
            with pytest.raises(MCPError) as caught:
                await add(client)
            shown = (
                str(caught.value) + repr(caught.value) + repr(caught.value.data) + repr(caught.value.error)
            )
            assert SESSION not in shown
            assert caught.value.message.startswith("bad argument (in #")


async def test_a_servers_words_are_one_line_in_errors_and_logs(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "trio_mcp_resilient")
    evil = "no\n2026-01-01 CRITICAL root: forged\x1b[2J"

    def refuse(heard: Heard) -> bytes:
        return said(envelope(id=heard.id, error={"code": -32000, "message": evil}))

    async with open_hostile(to(initialize=refuse)) as server:
        with pytest.raises(HandshakeFailed) as caught:
            async with open_client(URL, connect=server.connect):
                pytest.fail("nothing was to be opened")
        assert str(caught.value).isprintable()

    def strange(heard: Heard) -> bytes:
        return flood(event(envelope(method="notifications/" + evil)))(heard)

    async def fail(message: object) -> None:
        raise RuntimeError("handler")

    async with open_victim(to(tools_call=strange), message_handler=fail) as (_, client):
        await client.list_tools()
        await add(client)
        await wait_all_tasks_blocked()
    assert all(record.getMessage().isprintable() for record in caplog.records)


# The manual.

MANUAL = Path(__file__).parent.parent
UNITS = {"KiB": 1024, "MiB": MIB, "s": 1, "": 1}


def test_the_table_of_bounds_is_the_code_s() -> None:
    table = (MANUAL / "docs" / "limits.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| [^|]+ \| ([\d.,]+) ?(\w*) \| `(_\w+)\.(\w+)` \| [^|]+ \|$", table, re.MULTILINE)
    assert len(rows) > 30
    for number, unit, module, name in rows:
        value = getattr(importlib.import_module(f"trio_mcp_resilient.{module}"), name)
        assert value == float(number.replace(",", "")) * UNITS[unit], f"{module}.{name}"


def test_every_test_that_the_policy_names_exists() -> None:
    policy = (MANUAL / "SECURITY.md").read_text(encoding="utf-8")
    sources = "".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py"))
    named = set(re.findall(r"`(test_\w+)`", policy))
    assert len(named) > 20
    assert not [name for name in named if f"def {name}(" not in sources]


def test_no_bound_is_missing_from_the_table() -> None:
    table = (MANUAL / "docs" / "limits.md").read_text(encoding="utf-8")
    package = Path(trio_mcp_resilient.__file__).parent
    for path in package.glob("_[!_]*.py"):
        if not path.name.startswith(("_scripted", "_demo")):
            for name in re.findall(r"^(MAX_\w+)\b", path.read_text(encoding="utf-8"), re.MULTILINE):
                assert f"`{path.stem}.{name}`" in table or name in OURS_ALONE, f"{path.stem}.{name}"


OURS_ALONE = {
    # How much is remembered of our own requests and errors, and of origins.
    "MAX_ERRORS",
    "MAX_HEADS",
    "MAX_ORIGINS",
    # A wait, not a size.
    "MAX_PAUSE",
}
