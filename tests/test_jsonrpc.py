"""The JSON-RPC codec: what passes, what is refused, and that what goes out comes back."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_mcp_resilient._jsonrpc import (
    Failure,
    InvalidMessage,
    Message,
    Notification,
    Request,
    Result,
    decode,
    encode_error,
    encode_notification,
    encode_request,
    encode_result,
    matches,
)


def envelope(**members: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **members}).encode()


GOOD: dict[str, tuple[bytes, list[Message]]] = {
    "request": (envelope(id=1, method="ping"), [Request(1, "ping")]),
    "request with params": (envelope(id="a", method="m", params={"x": 1}), [Request("a", "m", {"x": 1})]),
    "notification": (envelope(method="n", params={}), [Notification("n", {})]),
    "result": (envelope(id=1, result={"a": None}), [Result(1, {"a": None})]),
    "error": (envelope(id=1, error={"code": -1, "message": "m", "data": [1]}), [Failure(1, -1, "m", [1])]),
    "error of no request": (envelope(id=None, error={"code": 1, "message": "m"}), [Failure(None, 1, "m")]),
    "error without an id": (envelope(error={"code": 1, "message": "m"}), [Failure(None, 1, "m")]),
    "error without a message": (envelope(id=1, error={"code": 1}), [Failure(1, 1, "")]),
    # Serializers that write null for what is not there (Jackson, System.Text.Json).
    "null for what is not there": (
        envelope(id=1, result={}, error=None, method=None),
        [Result(1, {})],
    ),
    "null result beside an error": (
        envelope(id=1, result=None, error={"code": 1, "message": "m", "data": None}),
        [Failure(1, 1, "m")],
    ),
    "null id of a notification": (envelope(id=None, method="n", params=None), [Notification("n")]),
    "batch": (
        b"[" + envelope(id=1, result={}) + b"," + envelope(method="n") + b"]",
        [Result(1, {}), Notification("n")],
    ),
    "batch with a stranger in it": (b'[7, {"a": 1}, ' + envelope(id=1, result={}) + b"]", [Result(1, {})]),
    "white space around": (b" \r\n" + envelope(id=1, result={}) + b"\n", [Result(1, {})]),
    "BOM": (b"\xef\xbb\xbf" + envelope(id=1, result={}), [Result(1, {})]),
    "the last duplicate counts": (b'{"jsonrpc":"2.0","id":1,"id":2,"result":{}}', [Result(2, {})]),
    "large integers": (
        b'{"jsonrpc":"2.0","id":1,"result":{"n":' + b"9" * 4000 + b"}}",
        [Result(1, {"n": 10**4000 - 1})],
    ),
    # A string cut in the middle of an emoji, as JavaScript writes it; the answer must not be lost.
    "lone surrogate": (rb'{"jsonrpc":"2.0","id":1,"result":{"t":"a\ud83d"}}', [Result(1, {"t": "a\ufffd"})]),
    "lone low surrogate": (
        rb'{"jsonrpc":"2.0","id":1,"result":{"t":"\uDE00b"}}',
        [Result(1, {"t": "\ufffdb"})],
    ),
    "lone among pairs": (
        rb'{"jsonrpc":"2.0","id":1,"result":{"t":"\ud83d\ude00\ud83d \\ud83d"}}',
        [Result(1, {"t": "\U0001f600\ufffd \\ud83d"})],
    ),
    "broken UTF-8": (b'{"jsonrpc":"2.0","id":1,"result":{"t":"a\xf0\x9f"}}', [Result(1, {"t": "a\ufffd"})]),
}


@pytest.mark.parametrize(("data", "messages"), GOOD.values(), ids=GOOD.keys())
def test_decodes(data: bytes, messages: list[Message]) -> None:
    assert decode(data) == messages


def test_decodes_text_as_well() -> None:
    assert decode('{"jsonrpc":"2.0","id":1,"result":{"t":"\u00e9"}}') == [Result(1, {"t": "\u00e9"})]


BAD: dict[str, bytes] = {
    "empty": b"",
    "cut": envelope(id=1, result={})[:-1],
    "more than one": envelope(id=1, result={}) * 2,
    "not JSON": b"<html>secret</html>",
    "broken UTF-8 outside of strings": b"\xff" + envelope(id=1, result={}),
    "NaN": b'{"jsonrpc":"2.0","id":1,"result":{"n":NaN}}',
    "Infinity": b'{"jsonrpc":"2.0","id":1,"result":{"n":-Infinity}}',
    "too deep": b'{"jsonrpc":"2.0","id":1,"result":{"n":' + b"[" * 100_000 + b"]" * 100_000 + b"}}",
    "an integer too long to be one": b'{"jsonrpc":"2.0","id":1,"result":{"n":' + b"9" * 5000 + b"}}",
    "another version": b'{"jsonrpc":"1.0","id":1,"result":{}}',
    "no version": b'{"id":1,"error":{"code":404,"message":"secret"}}',
    "a number": b"7",
    "null": b"null",
    "an empty batch": b"[]",
    "a batch in a batch": b"[[" + envelope(id=1, result={}) + b"]]",
    "nothing in it": envelope(id=1),
    "result and error": envelope(id=1, result={}, error={"code": 1, "message": "m"}),
    "a result that is no object": envelope(id=1, result="secret"),
    "a result of no request": envelope(result={}),
    "true as an id": envelope(id=True, result={}),
    "a fraction as an id": envelope(id=1.5, method="m"),
    "an object as an id": envelope(id={"secret": 1}, error={"code": 1, "message": "m"}),
    "a method that is no string": envelope(id=1, method=7),
    "params by position": envelope(id=1, method="m", params=["secret"]),
    "an error that is no object": envelope(id=1, error="secret"),
    "an error without a code": envelope(id=1, error={"message": "secret"}),
    "true as a code": envelope(id=1, error={"code": True, "message": "secret"}),
}


@pytest.mark.parametrize("data", BAD.values(), ids=BAD.keys())
def test_refuses(data: bytes) -> None:
    with pytest.raises(InvalidMessage) as caught:
        decode(data)
    assert isinstance(caught.value, ValueError)
    assert "secret" not in str(caught.value) and len(str(caught.value)) < 200


@given(st.binary(max_size=200) | st.text(max_size=200))
def test_refuses_with_one_kind_of_error(data: bytes | str) -> None:
    try:
        assert decode(data)
    except InvalidMessage:
        pass


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)
OBJECTS = st.dictionaries(TEXTS, VALUES, max_size=4)
IDS = st.integers(-(10**30), 10**30) | TEXTS


@given(IDS, TEXTS, st.none() | OBJECTS)
def test_requests_and_notifications_come_back(
    id: int | str, method: str, params: dict[str, Any] | None
) -> None:
    assert decode(encode_request(id, method, params)) == [Request(id, method, params)]
    assert decode(encode_notification(method, params)) == [Notification(method, params)]


@given(IDS, OBJECTS, st.integers(-(2**31), 2**31), TEXTS, VALUES)
def test_answers_come_back(id: int | str, result: dict[str, Any], code: int, text: str, data: Any) -> None:
    assert decode(encode_result(id, result)) == [Result(id, result)]
    assert decode(encode_error(id, code, text, data)) == [Failure(id, code, text, data)]
    assert decode(encode_error(None, code, text)) == [Failure(None, code, text)]


@given(OBJECTS)
def test_others_read_it_alike(params: dict[str, Any]) -> None:
    members = json.loads(encode_request(1, "m", params))
    assert members == {"jsonrpc": "2.0", "id": 1, "method": "m", "params": params}


def test_leaves_out_what_is_not_there() -> None:
    assert encode_request(7, "ping") == b'{"jsonrpc":"2.0","id":7,"method":"ping"}'
    assert encode_notification("n") == b'{"jsonrpc":"2.0","method":"n"}'
    assert encode_notification("n", {}) == b'{"jsonrpc":"2.0","method":"n","params":{}}'
    assert encode_error(None, 1, "m") == b'{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":"m"}}'


def test_writes_utf8_on_one_line() -> None:
    assert (
        encode_result(1, {"t": "\u00e9\n\u2028"})
        == '{"jsonrpc":"2.0","id":1,"result":{"t":"\u00e9\\n\u2028"}}'.encode()
    )


def circular() -> dict[str, Any]:
    value: dict[str, Any] = {}
    value["itself"] = value
    return value


def deep(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels):
        value = {"a": value}
    return value


@pytest.mark.parametrize(
    "params",
    [
        {"n": math.nan},
        {"n": [math.inf]},
        {"n": -math.inf},
        {"t": "cut \ud83d"},
        {"\udc00": 1},
        {"o": object()},
        circular(),
        deep(10_000),
    ],
    ids=["NaN", "inf", "-inf", "lone surrogate", "lone surrogate in a key", "object", "circular", "deep"],
)
def test_refuses_to_write(params: dict[str, Any]) -> None:
    for encode in (lambda: encode_request(1, "m", params), lambda: encode_result(1, params)):
        with pytest.raises(ValueError, match=r"."):
            encode()


def test_text_that_merely_says_nan_is_written() -> None:
    params = {"NaN": "Infinity", "t": 'a "NaN", and \\"Infinity\\"'}
    assert decode(encode_request(1, "m", params)) == [Request(1, "m", params)]


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        (7, 7, True),
        ("7", 7, True),
        (7, "7", True),
        ("a", "a", True),
        ("7", "7", True),
        ("07", 7, True),
        (7, 8, False),
        ("a", 7, False),
        ("a", "b", False),
        (None, 7, False),
        (7, None, False),
        (None, None, False),
        ("9" * 5000, 7, False),
        ("", 0, False),
    ],
)
def test_matches(a: int | str | None, b: int | str | None, same: bool) -> None:
    assert matches(a, b) is same


def test_messages_are_values() -> None:
    request = Request(1, "m")
    with pytest.raises(AttributeError):
        request.id = 2  # type: ignore[misc]
    assert not hasattr(request, "__dict__")
