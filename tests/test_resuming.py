"""When a resumed stream counts as silent: what comes on it has to be of an event."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import trio
from trio.testing import MockClock

from trio_mcp_resilient._answers import Cursor
from trio_mcp_resilient._jsonrpc import Failure, Notification, Request, Result
from trio_mcp_resilient._resuming import SILENCE_SECONDS, _Watch
from trio_mcp_resilient._wire import RawHeaders

COMMENT = b": keepalive\n\n"
PROGRESS = b'data: {"jsonrpc":"2.0","method":"notifications/progress","params":{}}\n\n'
ANSWER = b'data: {"jsonrpc":"2.0","id":1,"result":{"said":"late"}}\n\n'
PACE = SILENCE_SECONDS / 2


class Dripping:
    """A response that gives one chunk after each pause, and then nothing, but stays open."""

    status = 200
    headers: RawHeaders = ((b"content-type", b"text/event-stream"),)

    def __init__(self, chunks: Sequence[bytes]) -> None:
        self._chunks = list(chunks)

    async def receive(self) -> bytes:
        if not self._chunks:
            await trio.sleep_forever()
        await trio.sleep(PACE)
        return self._chunks.pop(0)

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


async def ignore(message: Request | Notification | Result | Failure) -> None:
    await trio.lowlevel.checkpoint()


async def read(chunks: Sequence[bytes]) -> tuple[object, _Watch, float]:
    """Read a resumed stream; return the answer's message, the watch, and how long it took."""
    watch, began = _Watch(), trio.current_time()
    answer = await watch.read(Dripping(chunks), 1, ignore, Cursor())
    return answer and answer.message, watch, trio.current_time() - began


@pytest.mark.parametrize(
    "chunks",
    [[], [COMMENT] * 100, [COMMENT[:3], COMMENT[3:]] * 100, [b":" * 9] * 100],
    ids=["nothing", "comments", "comments in pieces", "one endless comment"],
)
async def test_comments_do_not_keep_a_stream_from_being_asked_again(
    chunks: list[bytes], autojump_clock: MockClock
) -> None:
    message, watch, took = await read(chunks)
    assert message is None
    assert took == SILENCE_SECONDS
    # That somebody is there says that asking again is no waste.
    assert watch.heard is bool(chunks)


async def test_each_event_starts_the_silence_over(autojump_clock: MockClock) -> None:
    message, _, took = await read([PROGRESS] * 10 + [ANSWER])
    assert message == Result(1, {"said": "late"})
    assert took == 11 * PACE


@pytest.mark.parametrize("size", [1, 20])
async def test_an_event_that_comes_slowly_is_no_silence(size: int, autojump_clock: MockClock) -> None:
    pieces = [ANSWER[start : start + size] for start in range(0, len(ANSWER), size)]
    message, _, took = await read(pieces)
    assert message == Result(1, {"said": "late"})
    assert took > SILENCE_SECONDS


async def test_the_silence_after_an_event_is_as_long(autojump_clock: MockClock) -> None:
    message, _, took = await read([PROGRESS, *[COMMENT] * 100])
    assert message is None
    assert took == PACE + SILENCE_SECONDS
