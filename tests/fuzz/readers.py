"""The parts that read bytes and do no I/O: they may say no, in one way each, and nothing else."""

from __future__ import annotations

import json

from tests.fuzz.pieces import cut
from trio_mcp_resilient import Verdict, classify
from trio_mcp_resilient._body import excerpt
from trio_mcp_resilient._eras import speaks_otherwise
from trio_mcp_resilient._jsonrpc import (
    Failure,
    InvalidMessage,
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
from trio_mcp_resilient._sse import Event, EventTooLarge, SSEDecoder

LIMIT = 4096


def sse(example: tuple[bytes, list[int]]) -> None:
    """A stream, however it is cut, gives the same events, or is too large."""
    data, places = example
    whole, too_large = _decoded([data])
    parts, too_large_in_parts = _decoded(cut(data, places))
    # Events finished before the one that is too large are given, and by the piece there may be more.
    assert too_large is too_large_in_parts
    assert whole == parts[: len(whole)] if too_large else whole == parts


def _decoded(parts: list[bytes]) -> tuple[list[Event], bool]:
    decoder = SSEDecoder(LIMIT)
    events: list[Event] = []
    try:
        for part in parts:
            events += decoder.feed(part)
            assert decoder.unfinished <= LIMIT + max(map(len, parts))
        decoder.feed(b"")
    except EventTooLarge:
        return events, True
    return events, False


def jsonrpc(data: bytes) -> None:
    """A text is messages, each of which can be written again, or is none."""
    try:
        messages = decode(data)
    except InvalidMessage as error:
        assert len(str(error)) < 200
        return
    assert messages
    for message in messages:
        assert not isinstance(getattr(message, "id", None), bool)
        match message:
            case Request():
                again = encode_request(message.id, message.method, message.params)
            case Notification():
                again = encode_notification(message.method, message.params)
            case Result():
                again = encode_result(message.id, message.result)
            case Failure():
                again = encode_error(message.id, message.code, message.message, message.data)
        assert decode(again) == [message]


def ids(example: tuple[str | int | None, str | int | None]) -> None:
    """Matching is symmetric, and total."""
    a, b = example
    assert matches(a, b) is matches(b, a)
    assert matches(a, a) is (a is not None)


def detector(example: tuple[str, str | None, bool, int, bytes]) -> None:
    """Every answer has a verdict, and what is shown of it is one short line."""
    http_method, rpc_method, with_id, status, body = example
    verdict = classify(
        http_method=http_method, rpc_method=rpc_method, session_id_sent=with_id, status=status, body=body
    )
    assert verdict in Verdict
    assert with_id or verdict is not Verdict.SESSION_LOST
    assert isinstance(speaks_otherwise("2026-07-28", status, body), bool)
    for content_type in ("", "text/html"):
        line = excerpt(body, content_type)
        assert len(line) <= 200 and line.isprintable()
        json.dumps(line)
