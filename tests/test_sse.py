"""The SSE decoder, fed whole, byte by byte, and cut anywhere."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from trio_mcp_resilient._sse import MAX_RETRY_MS, Event, EventTooLarge, SSEDecoder, SSEError


def message(data: bytes, *, event: str = "message", id: str | None = None, retry: int | None = None) -> Event:
    return Event(event, data, id, retry)


TABLE: dict[str, tuple[bytes, list[Event]]] = {
    "LF": (b"data: a\n\n", [message(b"a")]),
    "CRLF": (b"data: a\r\n\r\n", [message(b"a")]),
    "CR": (b"data: a\r\r", [message(b"a")]),
    "mixed line ends": (b"data: a\r\ndata: b\rdata: c\n\r\n", [message(b"a\nb\nc")]),
    "LF then CR is two ends": (b"data: a\n\rdata: b\n\n", [message(b"a"), message(b"b")]),
    "all fields": (
        b"event: ping\nid: 7\nretry: 500\ndata: x\n\n",
        [message(b"x", event="ping", id="7", retry=500)],
    ),
    "BOM at the start": (b"\xef\xbb\xbfdata: a\n\n", [message(b"a")]),
    "only one BOM": (b"\xef\xbb\xbf\xef\xbb\xbfdata: a\n\n", []),
    "BOM later is data": (b"data: \xef\xbb\xbfa\n\n", [message(b"\xef\xbb\xbfa")]),
    "BOM on a later line spoils the field": (b"\n\xef\xbb\xbfdata: a\n\n", []),
    "Unicode's line ends are data": (
        "data: a\u2028b\u2029c\u0085d\x0b\x0c\x1c\x1d\x1e\n\n".encode(),
        [message("a\u2028b\u2029c\u0085d\x0b\x0c\x1c\x1d\x1e".encode())],
    ),
    "comments": (b": hi\n:\ndata: a\n: there\n\n: bye\n\n", [message(b"a")]),
    "one leading space": (
        b"data:  a\n\ndata:b\n\ndata:\tc\n\n",
        [message(b" a"), message(b"b"), message(b"\tc")],
    ),
    "colons in the value": (b"data: a: b:c\n\n", [message(b"a: b:c")]),
    "without a colon": (b"data\ndata\n\nid\n\n", [message(b"\n"), message(b"", id="")]),
    "unknown fields": (b"foo: 1\nDATA: 2\n data: 3\ndata : 4\n\n", []),
    "blank lines": (b"\n\n\r\n\rdata: a\n\n\n\n", [message(b"a")]),
    "id with empty data": (b"id: 0\ndata: \n\n", [message(b"", id="0")]),
    "id alone": (b"id: 0\n\n", [message(b"", id="0")]),
    "event alone": (b"event: ping\n\n", [message(b"", event="ping")]),
    "empty event type": (b"event:\ndata: a\n\n", [message(b"a")]),
    "the last event and id count": (
        b"event: a\nevent: b\nid: 1\nid: 2\ndata: x\n\n",
        [message(b"x", event="b", id="2")],
    ),
    "id with NUL": (b"id: a\0b\ndata: x\n\n", [message(b"x")]),
    "id with NUL keeps the one before": (b"id: a\nid: b\0\ndata: x\n\n", [message(b"x", id="a")]),
    "id in UTF-8": ("id: \u00e9\n\n".encode(), [message(b"", id="\u00e9")]),
    "id in broken UTF-8": (b"id: \xff\n\n", [message(b"", id="\ufffd")]),
    "retry of digits only": (
        b"retry: 1s\nretry: -1\nretry: 1.5\nretry:\nretry: \xd9\xa1\ndata: a\n\n",
        [message(b"a")],
    ),
    "retry zero": (b"retry: 000\n\n", [message(b"", retry=0)]),
    "retry is bounded": (b"retry: " + b"9" * 5000 + b"\n\n", [message(b"", retry=MAX_RETRY_MS)]),
    "retry with zeros before it": (b"retry: " + b"0" * 5000 + b"7\n\n", [message(b"", retry=7)]),
    "unfinished": (b"data: a\n\nid: 9\ndata: b\n", [message(b"a")]),
    "unfinished line": (b"data: a\n\ndata: b", [message(b"a")]),
    "python-sdk's priming event": (
        b"id: 21\r\ndata: \r\nretry: 500\r\n\r\n",
        [message(b"", id="21", retry=500)],
    ),
}


def decode(chunks: list[bytes]) -> tuple[list[Event], str, int | None]:
    decoder = SSEDecoder()
    events = [event for chunk in chunks for event in decoder.feed(chunk)]
    return events, decoder.last_event_id, decoder.retry


@pytest.mark.parametrize(("stream", "events"), TABLE.values(), ids=TABLE.keys())
def test_table(stream: bytes, events: list[Event]) -> None:
    assert decode([stream])[0] == events


@pytest.mark.parametrize("stream", [stream for stream, _ in TABLE.values()], ids=TABLE.keys())
def test_byte_by_byte(stream: bytes) -> None:
    assert decode([bytes([byte]) for byte in stream]) == decode([stream])


def reference(stream: bytes) -> tuple[list[Event], str, int | None]:
    """The specification's algorithm, read aloud, without any care for speed or size."""
    events: list[Event] = []
    last_id, last_retry = "", None
    *lines, _unfinished = re.split(rb"\r\n|\r|\n", stream.removeprefix(b"\xef\xbb\xbf"))
    block: list[tuple[bytes, bytes]] = []
    for line in lines:
        if line:
            name, _, value = line.partition(b":")
            block.append((name, value[1:] if value[:1] == b" " else value))
            continue
        ids = [
            value.decode("utf-8", "replace") for name, value in block if name == b"id" and b"\0" not in value
        ]
        types = [value.decode("utf-8", "replace") for name, value in block if name == b"event"]
        retries = [
            int(value) for name, value in block if name == b"retry" and re.fullmatch(rb"[0-9]+", value)
        ]
        data = [value for name, value in block if name == b"data"]
        if ids or types or retries or data:
            last_id = ids[-1] if ids else last_id
            last_retry = min(retries[-1], MAX_RETRY_MS) if retries else last_retry
            events.append(
                Event(
                    (types or [""])[-1] or "message",
                    b"\n".join(data),
                    ids[-1] if ids else None,
                    min(retries[-1], MAX_RETRY_MS) if retries else None,
                )
            )
        block = []
    return events, last_id, last_retry


PIECES = st.sampled_from(
    [
        *(b"data", b"id", b"event", b"retry", b":", b" ", b"\n", b"\r", b"\r\n", b"\n\n", b"\0", b"12", b"x"),
        *(b"\xef\xbb\xbf", b"\xe2\x80\xa8", b"\xc2\x85", b"\xff"),
        *(b"data: a", b"id: 1", b"retry: 5", b": c"),
    ]
)
STREAMS = st.one_of(st.lists(PIECES, max_size=40).map(b"".join), st.binary(max_size=60))


@given(STREAMS)
@example(b"data: a\r")
@example(b"\xef\xbb\xbf\n\ndata\n\n")
def test_decodes_as_the_specification_reads(stream: bytes) -> None:
    # A `retry` counts from its own line on, so the reference is given no unfinished event.
    finished = stream + b"\n\n"
    assert decode([finished]) == reference(finished)
    assert decode([stream])[:2] == reference(stream)[:2]


@given(STREAMS, st.data())
def test_any_split_decodes_the_same(stream: bytes, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    chunks = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert decode(chunks) == decode([stream])


def test_a_cr_ends_the_event_at_once() -> None:
    # Waiting for the LF that may follow would hold an answer back until the next event.
    decoder = SSEDecoder()
    assert decoder.feed(b"data: a\r\r") == [message(b"a")]
    assert decoder.feed(b"\ndata: b\n\n") == [message(b"b")]


def test_the_id_outlives_its_event_and_can_be_taken_back() -> None:
    decoder = SSEDecoder()
    decoder.feed(b"id: 1\n\ndata: x\n\n")
    assert decoder.last_event_id == "1"
    decoder.feed(b"id: 2\ndata: unfinished\n")
    assert decoder.last_event_id == "1"
    decoder.feed(b"\nid\n\n")
    assert decoder.last_event_id == ""


@pytest.mark.parametrize(
    "stream",
    [
        b"data: " + b"x" * 94,
        b"data: x" * 20,
        b"data: 123456789\n" * 7,
        b"id: " + b"x" * 120 + b"\n",
        b"event: " + b"x" * 120 + b"\n",
        b": " + b"x" * 120,
        b"data\n" * 21,
    ],
)
def test_an_event_above_the_limit_is_refused(stream: bytes) -> None:
    whole, bytewise = SSEDecoder(max_event_bytes=99), SSEDecoder(max_event_bytes=99)
    with pytest.raises(EventTooLarge, match=r"^an event is larger than 99 bytes$"):
        whole.feed(stream)
    with pytest.raises(SSEError):
        for byte in stream:
            bytewise.feed(bytes([byte]))
    with pytest.raises(EventTooLarge):
        whole.feed(b"\n\ndata: a\n\n")


def test_an_event_at_the_limit_and_many_below_it_pass() -> None:
    decoder = SSEDecoder(max_event_bytes=99)
    line = b"data: " + b"x" * 92
    for _ in range(50):
        assert decoder.feed(b": " + b"c" * 90 + b"\n" + line + b"\n\n") == [message(b"x" * 92)]


def test_events_finished_before_the_too_large_one_are_not_lost() -> None:
    decoder = SSEDecoder(max_event_bytes=20)
    assert decoder.feed(b"data: a\n\ndata: " + b"x" * 30) == [message(b"a")]
    with pytest.raises(EventTooLarge):
        decoder.feed(b"")


def test_a_large_event_byte_by_byte_is_linear() -> None:
    # One line of 1 MiB: a decoder that joins or rescans per chunk copies 512 GiB here.
    decoder = SSEDecoder()
    decoder.feed(b"data: ")
    for _ in range(1024 * 1024):
        decoder.feed(b"x")
    (event,) = decoder.feed(b"\n\n")
    assert event.data == b"x" * 1024 * 1024


def test_the_defaults() -> None:
    decoder = SSEDecoder()
    assert (decoder.last_event_id, decoder.retry, decoder.feed(b"")) == ("", None, [])
    assert SSEDecoder().feed(b"data: " + b"x" * (16 * 1024 * 1024 - 6) + b"\n\n")
    with pytest.raises(EventTooLarge):
        SSEDecoder().feed(b"data: " + b"x" * (16 * 1024 * 1024 - 5) + b"\n\n")
