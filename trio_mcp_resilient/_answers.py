"""Reading an HTTP answer until it gives its verdict, bounded in bytes and time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import trio

from trio_mcp_resilient._jsonrpc import (
    Failure,
    InvalidMessage,
    Message,
    Notification,
    Request,
    RequestId,
    Result,
    decode,
    matches,
)
from trio_mcp_resilient._sse import SSEDecoder, SSEError
from trio_mcp_resilient._wire import Response, Stage, WireError

MAX_MESSAGE_BYTES = 16 * 1024 * 1024
"""The largest JSON answer or event that is read; rmcp's limit, and far above the SDK's 1 MiB."""
MAX_EVENT_ID_BYTES = 4096
"""The longest event id that is sent back, in a header; common servers take 8 KiB of headers in all."""
EXCERPT_BYTES = 64 * 1024
"""How much of a refusal's body is read: what the detector looks at."""
EXCERPT_SECONDS = 5.0
"""How long a refusal's body may take; a server that said no in its head has said enough."""

Deliver = Callable[[Request | Notification | Result | Failure], Awaitable[None]]
"""Takes what arrives beside the answer: notifications, the server's requests, stray answers."""


class Unreadable(WireError):
    """An answer that asking for it again would not make any better."""


@dataclass(slots=True)
class Answer:
    """What the body of a 2xx answer held for one request."""

    message: Result | Failure | None
    """The request's own answer; None if the body ended without one."""
    raw: bytes
    """The text the detector should judge when there is no result: the error, or the odd body."""
    chatter: bool = False
    """Whether other messages came before it: then something had begun to run."""


@dataclass(slots=True)
class Cursor:
    """Where a stream of events can be taken up again, and not before when."""

    last_event_id: str = ""
    """The last id the server gave on this stream; empty if it gave none."""
    retry: float | None = None
    """The seconds the server asked to wait before coming back."""
    events: int = 0
    """How many events have come, those without data included: a sign of life."""
    unfinished: int = 0
    """How many bytes have come of the next one."""

    def advance(self, decoder: SSEDecoder, events: int) -> None:
        """Note how far a decoder has come."""
        if decoder.last_event_id and _fits_a_header(decoder.last_event_id):
            self.last_event_id = decoder.last_event_id
        if decoder.retry is not None:
            self.retry = decoder.retry / 1000
        self.events += events
        self.unfinished = decoder.unfinished


def _fits_a_header(event_id: str) -> bool:
    """Whether an event id can be sent back; an event's line may hold what a header's may not."""
    return (
        len(event_id) <= MAX_EVENT_ID_BYTES >= len(event_id.encode())
        and event_id == event_id.strip()
        and all(" " <= character != "\x7f" for character in event_id)
    )


def header(response: Response, name: bytes) -> str:
    """Return a header's first value, or an empty string."""
    for field, value in response.headers:
        if field == name:
            return value.decode("latin-1")
    return ""


def media_type(response: Response) -> str:
    """Return the content type without its parameters, in lower case."""
    return header(response, b"content-type").partition(";")[0].strip().lower()


async def read_answer(response: Response, request_id: RequestId, deliver: Deliver, cursor: Cursor) -> Answer:
    """Read a 2xx answer up to the one message that answers `request_id`.

    Args:
        deliver: awaited for each message that is not the answer, in the order of the wire.
        cursor: moved along, for whoever has to resume the stream.

    Raises:
        WireError: if the body was cut, or is larger or stranger than can be read.
    """
    if media_type(response) == "text/event-stream":
        return await _from_stream(response, request_id, deliver, cursor)
    return await _from_body(response, request_id, deliver)


async def _from_body(response: Response, request_id: RequestId, deliver: Deliver) -> Answer:
    body = b""
    # Not a list of chunks: of chunks of two bytes it would be forty times as large as the answer.
    more = bytearray()
    cut: WireError | None = None
    try:
        while chunk := await response.receive():
            if len(body) + len(more) + len(chunk) > MAX_MESSAGE_BYTES:
                raise Unreadable(Stage.ANSWERING, f"the answer is larger than {MAX_MESSAGE_BYTES} bytes")
            if body:
                more += chunk
            else:
                body = chunk
    except Unreadable:
        raise
    except WireError as error:
        # A JSON text that is whole is the answer, even if the end of its body never came.
        cut = error
    if more:
        body += more
    answer = await _pick(body, request_id, deliver) or Answer(None, body)
    if cut is not None and answer.message is None:
        raise cut
    return answer


async def _from_stream(response: Response, request_id: RequestId, deliver: Deliver, cursor: Cursor) -> Answer:
    odd = b""
    chatter = False
    decoder = SSEDecoder(MAX_MESSAGE_BYTES)
    while chunk := await response.receive():
        try:
            events = decoder.feed(chunk)
        except SSEError as error:
            raise Unreadable(Stage.ANSWERING, f"unreadable event stream: {error}") from error
        cursor.advance(decoder, len(events))
        for event in events:
            if not event.data:
                continue
            answer = await _pick(event.data, request_id, deliver)
            if answer is None:
                chatter = True
                continue
            if answer.message is not None:
                answer.chatter = chatter
                return answer
            odd = answer.raw
    return Answer(None, odd, chatter)


async def _pick(data: bytes, request_id: RequestId, deliver: Deliver) -> Answer | None:
    """Find the answer in one JSON text; None if the text held other messages only."""
    try:
        messages: list[Message] = decode(data)
    except InvalidMessage:
        return Answer(None, data)
    answer: Answer | None = None
    for message in messages:
        if isinstance(message, Result) and matches(message.id, request_id):
            answer = answer or Answer(message, data)
        elif isinstance(message, Failure) and (message.id is None or matches(message.id, request_id)):
            # An error without an id on this request's own answer is about this request: the
            # server could not, or would not, read the id.
            answer = answer or Answer(message, data)
        else:
            await deliver(message)
    return answer


async def read_excerpt(response: Response) -> bytes:
    """Read the beginning of a refusal's body: as much as comes in bounded bytes and time.

    Never raises for a body that is slow, endless or cut: the refusal stands without it.
    """
    body = b""
    with trio.move_on_after(EXCERPT_SECONDS):  # noqa: ASYNC912  # the first receive is its cancel point
        try:
            while len(body) < EXCERPT_BYTES and (chunk := await response.receive()):
                body += chunk
        except WireError:
            pass
    return body[:EXCERPT_BYTES]
