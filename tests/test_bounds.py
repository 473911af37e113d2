"""A server cannot make the client grow, whatever it sends, nor end a call in any other way than it may end.

The bounds are those of the table in `docs/limits.md`.
"""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from typing import Any

import httpx
import mcp_types as types
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

import trio_mcp_resilient
from tests.hostile import (
    END,
    GONE,
    MIB,
    NOTE,
    STREAM,
    Bearer,
    Heard,
    chunk,
    endless,
    envelope,
    event,
    flood,
    open_victim,
    peak,
    result_of,
    said,
    to,
)
from tests.http_peer import ENDPOINT, Peer, answering
from tests.kit import add
from trio_mcp_resilient import (
    OutcomeUnknown,
    RequestRefused,
)
from trio_mcp_resilient._answers import (
    EXCERPT_BYTES,
    MAX_MESSAGE_BYTES,
    Cursor,
    read_answer,
)
from trio_mcp_resilient._connections import Connections
from trio_mcp_resilient._cookies import MAX_COOKIE_BYTES, MAX_COOKIES
from trio_mcp_resilient._inbound import MAX_UNDELIVERED, MAX_UNDELIVERED_BYTES
from trio_mcp_resilient._jsonrpc import MAX_BATCH, MAX_ID_CHARS, InvalidMessage, Message, decode
from trio_mcp_resilient._restoring import MAX_TOOL_NAME, MAX_TOOLS, SessionState
from trio_mcp_resilient._router import MAX_HANDLERS
from trio_mcp_resilient._sending import MAX_PAGES
from trio_mcp_resilient._spares import MAX_ENDING

# Growing: one answer.


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
        self._body = body
        self._place = 0

    async def receive(self) -> bytes:
        await trio.lowlevel.checkpoint()
        self._place += 2
        return self._body[self._place - 2 : self._place]

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


async def ignore(message: Message) -> None:
    await trio.lowlevel.checkpoint()


async def test_an_answer_in_tiny_pieces_costs_no_more_than_its_size() -> None:
    body = json.dumps(envelope(id=1, result={"x": "y" * 100_000})).encode()
    # What is made once is made before.
    await read_answer(Pieces(body), 1, ignore, Cursor())
    with peak(8 * len(body)):
        answer = await read_answer(Pieces(body), 1, ignore, Cursor())
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
