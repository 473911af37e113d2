"""Where the bytes come from: pieces of what servers send, put together wrongly."""

from __future__ import annotations

import json
import operator
from typing import Any

from hypothesis import strategies as st

SSE_PIECES = [
    *(b"data:", b"data: ", b"id:", b"id: 7", b"event: message", b"retry: 5", b"retry: " + b"9" * 5000),
    *(b":", b"\r", b"\n", b"\r\n", b"\n\n", b"\xef\xbb\xbf", b"\0", b"\xff", b"\xe2\x80\xa8", b"{}"),
]
JSON_PIECES = [
    *(b"{", b"}", b"[", b"]", b",", b":", b'"', b"null", b"true", b"1", b"-0", b"1e999", b"NaN"),
    *(b'"jsonrpc":"2.0"', b'"id":1', b'"id":"1"', b'"id":null', b'"method":"ping"', b'"params":{}'),
    *(b'"result":{}', b'"error":{"code":1,"message":"m"}', b"\\ud800", b"\\u0000", b"\\", b"\xff"),
    *(b"1" * 5000, b"[" * 300, b"\xef\xbb\xbf", b"\xed\xa0\x80"),
    *(b'{"jsonrpc":"2.0","id":1,"result":{"a":', b'{"jsonrpc":"2.0","method":"m","params":{"a":', b"}}"),
]
WORDS = [
    *(b"session", b"not found", b"Mcp-Session-Id", b"expired", b"SessionNotFound", b"initialize"),
    *(b"before the request completed", b"token=", b"Bearer ", b"a" * 40, b"1" * 5000, b" " * 3000),
    *(
        b"<html>",
        b"<script>",
        b"</p>",
        b"<!--",
        b"&#",
        b"&#" + b"1" * 5000 + b";",
        b";",
        b"&amp;",
        b"'",
        b"_",
        b"-",
        b" ",
        b"\n",
    ),
    *(b"\xff\xfe", b"\0"),
]
HTTP_PIECES = [
    *(b"HTTP/1.1 200 OK\r\n", b"HTTP/1.0 200 OK\r\n", b"HTTP/1.1 204 No\r\n", b"HTTP/1.1 999 \r\n"),
    *(b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 101 Switching Protocols\r\n\r\n", b"\r\n", b"\n"),
    *(b"content-length: 5\r\n", b"content-length: 5, 5\r\n", b"content-length: " + b"9" * 30 + b"\r\n"),
    *(b"transfer-encoding: chunked\r\n", b"connection: close\r\n", b"keep-alive: timeout="),
    *(b"5\r\nhello\r\n", b"5;x=y\r\n", b"0\r\n\r\n", b"0\r\nx: y\r\n\r\n", b"f" * 20 + b"\r\n"),
    *(b"hello", b" ", b":", b"\0", b"\xff", b"x" * 70_000),
    b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello",
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n",
]


def of(pieces: list[bytes]) -> st.SearchStrategy[bytes]:
    """Bytes made of pieces, and of anything."""
    piece = st.sampled_from(pieces) | st.binary(max_size=8)
    return st.lists(piece, max_size=24).map(b"".join)


def cut(data: bytes, at: list[int]) -> list[bytes]:
    """Cut bytes into parts; the places are taken modulo the length."""
    places = sorted({place % (len(data) + 1) for place in at})
    bounds = zip([0, *places], [*places, len(data)], strict=True)
    return [data[start:end] for start, end in bounds if end > start]


EVERYWHERE = list(range(256))
PLACES = st.lists(st.integers(0, 2**16), max_size=5) | st.just(EVERYWHERE)

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
OBJECTS = st.dictionaries(st.sampled_from(["a", "code", "message", "data", "session"]), VALUES, max_size=3)
MEMBERS = {
    "jsonrpc": st.sampled_from(["2.0", "2.0", "2.0", "1.0", 2.0, None]),
    "id": st.integers(0, 9) | st.booleans() | VALUES,
    "method": st.just("ping") | VALUES,
    "params": OBJECTS | VALUES,
    "result": OBJECTS | VALUES,
    "error": st.fixed_dictionaries({"code": st.integers() | VALUES}, optional={"message": VALUES}) | OBJECTS,
}
MESSAGES = st.fixed_dictionaries({"jsonrpc": MEMBERS.pop("jsonrpc")}, optional=MEMBERS)
"""Messages in which any member may be missing, or be anything."""


def written(value: Any) -> bytes:
    """Write a value as JSON, lone surrogates and all."""
    return json.dumps(value).encode()


SSE, HTTP = of(SSE_PIECES), of(HTTP_PIECES)
JSON = of(JSON_PIECES) | MESSAGES.map(written) | st.lists(MESSAGES, max_size=3).map(written)
BEGINNINGS = st.sampled_from([b"", b"<html>", b"data: ", b"{", b'{"error":"', b"\xff\xfe"])
TEXT = st.builds(operator.add, BEGINNINGS, of(WORDS))
