"""Answers that are more than they look: compressed, nested, endless to validate, or no text at all."""

from __future__ import annotations

import gzip
import json
import time
import zlib
from contextlib import suppress
from typing import Any

import mcp_types as types
import pytest
import trio
from mcp import MCPError
from pydantic import ValidationError
from trio.testing import MockClock

from tests.hostile import (
    CLIENTS,
    MIB,
    Heard,
    envelope,
    event,
    flood,
    http,
    open_reached,
    open_victim,
    peak,
    result_of,
    said,
    to,
)
from tests.kit import add
from trio_mcp_resilient import (
    OutcomeUnknown,
    ResilientError,
)
from trio_mcp_resilient._answers import (
    MAX_MESSAGE_BYTES,
)
from trio_mcp_resilient._handshake import MAX_RETRY_AFTER
from trio_mcp_resilient._schemas import is_affordable
from trio_mcp_resilient._secrets import one_line

# Bombs.


def bomb(size: int, before: bytes) -> bytes:
    """So many bytes of one letter after a beginning, compressed."""
    packer = zlib.compressobj(9, wbits=16 + zlib.MAX_WBITS)
    parts = [packer.compress(before)]
    parts += [packer.compress(b"x" * MIB) for _ in range(size // MIB)]
    return b"".join([*parts, packer.flush()])


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
