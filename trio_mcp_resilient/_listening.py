"""The standalone GET stream: what the server says when nobody asked."""

from __future__ import annotations

import random
from collections.abc import Callable

import trio

from trio_mcp_resilient._answers import Cursor, Deliver, media_type
from trio_mcp_resilient._detector import Verdict
from trio_mcp_resilient._errors import Evidence
from trio_mcp_resilient._exchange import Exchange
from trio_mcp_resilient._jsonrpc import InvalidMessage, decode
from trio_mcp_resilient._policy import Backoff
from trio_mcp_resilient._session import LAST_EVENT_HEADER
from trio_mcp_resilient._sse import SSEDecoder, SSEError
from trio_mcp_resilient._wire import RawHeaders, Response, WireError

REOPEN = Backoff(first=0.5, factor=2.0, cap=30.0, jitter=0.5, attempts=0)
"""Waits between openings. A stream that is offered may be down for long, and costs little."""
SETTLED_SECONDS = 5.0
"""Open for this long, or one event, before the waits start over: a server that answers 200 and
closes at once, in a loop, must not be asked once a moment for ever."""


async def listen(exchange: Exchange, deliver: Deliver, on_gap: Callable[[], None]) -> Evidence | None:
    """Keep the GET stream open until the session is found lost, or the server offers none.

    Args:
        on_gap: called when a stream was opened again without an event id to go on from.

    Returns:
        The evidence of the loss; None if the server does not offer the stream.
    """
    cursor = Cursor()
    failures = 0
    # The messages between two sessions are as lost as those between two streams of one.
    was_open = exchange.generation > 1
    while True:
        try:
            response = await exchange.wire.send("GET", _headers(exchange, cursor), may_be_silent=True)
        except WireError:
            pass
        else:
            try:
                if response.status == 200 and media_type(response) == "text/event-stream":
                    if was_open and not cursor.last_event_id:
                        on_gap()
                    was_open = True
                    if await _consume(response, cursor, deliver):
                        failures = 0
                else:
                    verdict, evidence = await exchange.read_refusal("GET", response)
                    if verdict is Verdict.SESSION_LOST:
                        return evidence
                    if not cursor.last_event_id and not _worth_another_try(response.status):
                        return None
                    # The refusal may be of the event id alone, which servers may forget sooner
                    # than the session: ask afresh.
                    cursor.last_event_id = ""
            finally:
                await response.aclose()
        failures += 1
        await trio.sleep(max(cursor.retry or 0.0, REOPEN.delay(failures, random.random)))


def _headers(exchange: Exchange, cursor: Cursor) -> RawHeaders:
    if not cursor.last_event_id:
        return exchange.session.get_headers
    return (*exchange.session.get_headers, (LAST_EVENT_HEADER, cursor.last_event_id.encode()))


def _worth_another_try(status: int) -> bool:
    # 409: the server still holds the stream we lost; it lets go of it when it notices.
    return status in (408, 409, 425, 429) or status >= 500


async def _consume(response: Response, cursor: Cursor, deliver: Deliver) -> bool:
    """Deliver events until the stream ends; return whether it was worth opening."""
    opened, before = trio.current_time(), cursor.events
    decoder = SSEDecoder()
    try:
        while chunk := await response.receive():
            events = decoder.feed(chunk)
            cursor.advance(decoder, len(events))
            for event in events:
                if event.data:
                    await _deliver_all(event.data, deliver)
    except (WireError, SSEError):
        pass
    return cursor.events > before or trio.current_time() - opened >= SETTLED_SECONDS


async def _deliver_all(data: bytes, deliver: Deliver) -> None:
    try:
        messages = decode(data)
    except InvalidMessage:
        return
    for message in messages:
        await deliver(message)
