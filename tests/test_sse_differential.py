"""The SSE decoder beside `httpx-sse`, where that reads as the specification does, and where it does not."""

from __future__ import annotations

import httpx
import pytest
from httpx_sse import EventSource
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from trio_mcp_resilient._sse import MAX_RETRY_MS, SSEDecoder

Told = tuple[str, str, str, int | None]
"""An event as `httpx-sse` tells it: its type, data, the last id so far, and its own `retry`."""

LINES = st.lists(
    st.one_of(
        st.sampled_from(
            ["data", "data:", "data: a", "data:  b: c", ":", ": hi", "event: e", "id", "id: 1", "id: 2\0"]
        ),
        st.sampled_from(
            ["retry: 5", "retry: 1s", "retry:", "foo: 1", "DATA: x", "data : y", "\ufeffdata: z"]
        ),
        st.sampled_from(["data: a\u2028b\u2029c\u0085d", "data: \x0b\x0c\x1c\x1e"]),
        st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=12),
    ),
    max_size=6,
)
BLOCKS = st.lists(LINES, max_size=6)
ENDS = st.sampled_from(["\n", "\r\n", "\r"])


def theirs(*chunks: bytes) -> list[Told]:
    headers = {"content-type": "text/event-stream; charset=utf-8"}
    source = EventSource(httpx.Response(200, headers=headers, content=iter(chunks)))
    return [(event.event, event.data, event.id, event.retry) for event in source.iter_sse()]


def ours(*chunks: bytes) -> list[Told]:
    decoder, last_id = SSEDecoder(), ""
    told: list[Told] = []
    for chunk in chunks:
        for event in decoder.feed(chunk):
            last_id = last_id if event.id is None else event.id
            told.append((event.event, event.data.decode(errors="replace"), last_id, event.retry))
    return told


def is_read_alike(stream: str) -> bool:
    """Whether `httpx-sse` reads a line as the specification does; the tests below have what it misreads."""
    for line in stream.replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "retry" and not (value == "" or (value.isascii() and value.isdigit() and len(value) < 8)):
            return False
    return not stream.startswith("\ufeff")


@settings(max_examples=300)
@given(BLOCKS, ENDS, st.lists(st.integers(0, 400), max_size=6))
@example([["data: a", "data: b"], ["id: 1", "data: c"], ["event: e", "data"]], "\r\n", [3, 9, 20, 21])
def test_both_decode_alike(blocks: list[list[str]], end: str, cuts: list[int]) -> None:
    stream = "".join(line + end for block in blocks for line in (*block, ""))
    assume(is_read_alike(stream))
    data = stream.encode()
    marks = sorted(min(cut, len(data)) for cut in cuts)
    chunks = [data[a:b] for a, b in zip([0, *marks], [*marks, len(data)], strict=True) if b > a]
    assert [told for told in ours(*chunks) if says_something(told)] == [
        told for told in theirs(*chunks) if says_something(told)
    ]


def says_something(told: Told) -> bool:
    """Whether there is more in an event than an id, which the next one tells as well.

    Where there is not, the two dispatch differently, and neither does as a browser: it tells each
    blank line as an event once there was an id, and we each block with a field in it.
    """
    event, data, _, retry = told
    return (event, data, retry) != ("message", "", None)


@pytest.mark.parametrize(
    ("stream", "told", "right"),
    [
        # Section 9.2.5: one leading BOM is to be stripped.
        (b"\xef\xbb\xbfdata: a\n\n", [], [("message", "a", "", None)]),
        # Section 9.2.6: `retry` counts if it consists of ASCII digits only.
        (b"retry: -1\n\n", [("message", "", "", -1)], []),
        (b"retry: 1_0\n\n", [("message", "", "", 10)], []),
        ("retry: \u0661\n\n".encode(), [("message", "", "", 1)], []),
        (b"retry:  7 \n\n", [("message", "", "", 7)], []),
    ],
)
def test_where_httpx_sse_is_not_right(stream: bytes, told: list[Told], right: list[Told]) -> None:
    """If one of these fails, it has been mended there: then `is_read_alike` may be wider."""
    assert theirs(stream) == told
    assert ours(stream) == right


def test_httpx_sse_holds_an_event_back_that_ends_in_cr() -> None:
    """It waits for the LF that may follow, so an answer comes with the next event, or at the end."""
    chunks = [b"data: a\r\r", b"data: b\r\r"]

    def come() -> object:
        for chunk in chunks:
            arrived.append(chunk)
            yield chunk

    arrived: list[bytes] = []
    headers = {"content-type": "text/event-stream"}
    events = EventSource(httpx.Response(200, headers=headers, content=come())).iter_sse()  # type: ignore[arg-type]
    assert next(events).data == "a"
    assert arrived == chunks
    decoder = SSEDecoder()
    assert [event.data for event in decoder.feed(chunks[0])] == [b"a"]


def test_a_retry_beyond_all_bounds_is_dropped_by_httpx_sse_and_cut_down_by_us() -> None:
    assert theirs(b"retry: " + b"9" * 5000 + b"\n\n") == []
    assert ours(b"retry: " + b"9" * 5000 + b"\n\n") == [("message", "", "", MAX_RETRY_MS)]
