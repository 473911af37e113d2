"""One session of the scripted server, and the event streams it speaks on."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, final

import trio

from trio_mcp_resilient._scripted_dialects import rpc_error

Message = Mapping[str, Any]


class RpcError(Exception):
    """A JSON-RPC error: what a tool raises to answer by one, and what the client's refusal raises here."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message
        self.data = data

    def __str__(self) -> str:
        return f"{self.message} ({self.code})"


@dataclass(frozen=True)
class StreamEvent:
    """One event of a stream."""

    event_id: str | None
    message: Message | None
    """None for the event that only carries an id to resume from."""
    retry: int | None = None
    """Milliseconds that the client should wait before it resumes."""
    last: bool = False
    """Whether it is the answer proper, after which the stream ends."""

    def encode(self) -> bytes:
        """Return the event as server-sent event."""
        lines: list[str] = []
        if self.event_id is not None:
            lines.append(f"id: {self.event_id}")
        if self.retry is not None:
            lines.append(f"retry: {self.retry}")
        if self.message is None:
            lines.append("data: ")
        else:
            lines += ["event: message", f"data: {json.dumps(self.message)}"]
        return "".join(f"{line}\n" for line in [*lines, ""]).encode()


class EventStream:
    """Messages to the client in order: one stream for each POST, one for the session.

    It outlives the connections that carry it, and remembers all it said if it is resumable.
    """

    def __init__(self, name: str, *, resumable: bool) -> None:
        self.name = name
        self.resumable = resumable
        self.events: list[StreamEvent] = []
        self.ended: bool = False
        self.carriers: int = 0
        """How many connections carry it now."""
        self._detached: list[tuple[int, bool]] = []
        self._news = trio.Event()

    def prime(self, retry: int | None) -> None:
        """Say nothing but an id, so that the client can resume from the very beginning."""
        self._append(StreamEvent(self._next_id(), None, retry))

    def send(self, message: Message, *, last: bool = False) -> bool:
        """Say something, and return whether anybody hears it, now or by resuming."""
        if self.ended or not (self.resumable or self.carriers):
            return False
        self._append(StreamEvent(self._next_id(), message, None, last))
        if last:
            self.end()
        return True

    def end(self) -> None:
        """Say no more; what carries the stream ends cleanly."""
        self.ended = True
        self._wake()

    def detach(self, *, reset: bool = False) -> None:
        """Let what carries it end, cleanly or not, once all said so far is sent; the stream goes on."""
        self._detached.append((len(self.events), reset))
        self._wake()

    async def finished(self) -> None:
        """Wait until the answer has been said, or nothing more will be."""
        await trio.lowlevel.checkpoint()
        while not self.ended:
            await self._news.wait()

    @contextmanager
    def carried(self) -> Generator[Carrier, None, None]:
        """Let one connection carry the stream, from the next event on."""
        self.carriers += 1
        try:
            yield Carrier(self, len(self.events), len(self._detached))
        finally:
            self.carriers -= 1

    def position_after(self, event_id: str) -> int | None:
        """Return where to go on after an event, or None if it is none of this stream's."""
        places = (place for place, event in enumerate(self.events, 1) if event.event_id == event_id)
        return next(places, None)

    def detached_since(self, detachments: int) -> tuple[int, bool] | None:
        """Return where the first `detach` since then was, and whether it asked for a reset."""
        return self._detached[detachments] if len(self._detached) > detachments else None

    async def news(self) -> None:
        """Wait until something changes."""
        await self._news.wait()

    def _next_id(self) -> str | None:
        return f"{self.name}-{len(self.events)}" if self.resumable else None

    def _append(self, event: StreamEvent) -> None:
        self.events.append(event)
        self._wake()

    def _wake(self) -> None:
        self._news.set()
        self._news = trio.Event()


class Carrier:
    """What one connection still has to carry of a stream."""

    def __init__(self, stream: EventStream, position: int, detachments: int) -> None:
        self.position = position
        self.reset = False
        """Whether the connection is to be reset after the last event."""
        self._stream = stream
        self._detachments = detachments

    async def next(self) -> StreamEvent | None:
        """Return the next event, or None when nothing more is to be sent."""
        await self.ready()
        end, self.reset = self._end
        if self.position >= min(end, len(self._stream.events)):
            return None
        self.position += 1
        return self._stream.events[self.position - 1]

    async def ready(self) -> None:
        """Wait until `next` would return at once. Nothing is lost if this is cancelled."""
        await trio.lowlevel.checkpoint()
        while self.position >= len(self._stream.events) and not self._over:
            await self._stream.news()

    @property
    def _end(self) -> tuple[float, bool]:
        return self._stream.detached_since(self._detachments) or (math.inf, False)

    @property
    def _over(self) -> bool:
        return self._stream.ended or self.position >= self._end[0]


@final
class ScriptedSession:
    """One session; made by the client's `initialize`. Read it, change nothing."""

    def __init__(self, session_id: str, number: int, protocol_version: str, *, resumable: bool) -> None:
        self.id = session_id
        self.number = number
        """Counted from 1, over the whole life of the server; 0 without sessions."""
        self.protocol_version = protocol_version
        self.client_info: Message = {}
        self.client_capabilities: Message = {}
        self.initialized = False
        """Whether the client has sent `notifications/initialized`."""
        self.log_level: str | None = None
        self.subscriptions: set[str] = set()
        self.running: dict[Any, trio.CancelScope] = {}
        """The requests that run now, by their JSON-RPC id."""
        self.streams: list[EventStream] = []
        """The streams of its POSTs: all that can be resumed, and else those that have not ended."""
        self.standalone: EventStream = EventStream(f"{number}-get", resumable=resumable)
        """What the GET stream carries."""
        self.listening: trio.Event = trio.Event()
        """Set once a GET stream is open; a new one each time it closes."""
        self.last_used: float = trio.current_time()
        self._uses: list[Callable[[], None]] = []
        self._questions: dict[str, _Question] = {}
        self._asked = 0
        self.over: bool = False

    def __repr__(self) -> str:
        return f"<session {self.number} {self.protocol_version}>"

    @contextmanager
    def used(self, disconnect: Callable[[], None]) -> Generator[None, None, None]:
        """Count as in use by one exchange, so that the idle timeout does not run."""
        self._uses.append(disconnect)
        try:
            yield
        finally:
            self._uses.remove(disconnect)
            self.last_used = trio.current_time()

    def cut(self) -> None:
        """Reset every connection that is busy with this session."""
        for disconnect in list(self._uses):
            disconnect()

    @property
    def idle_for(self) -> float:
        """Seconds since the last request or open stream; minus infinity while there is one."""
        return -math.inf if self._uses else trio.current_time() - self.last_used

    def end(self, *, streams: bool) -> None:
        """Be over: questions to the client fail, and its streams end cleanly if asked."""
        self.over = True
        for question in self._questions.values():
            question.settle(rpc_error(-32000, "the session ended before the client answered"))
        if streams:
            for stream in (*self.streams, self.standalone):
                stream.end()

    def resumed(self, last_event_id: str | None) -> tuple[EventStream, int | None]:
        """Return the stream that a GET is for, and where in it the GET goes on (None: at its end)."""
        if last_event_id is None or not self.standalone.resumable:
            return self.standalone, None
        for stream in (self.standalone, *self.streams):
            position = stream.position_after(last_event_id)
            if position is not None:
                return stream, position
        # An id that was never given: a stream that ends at once, as the Python SDK's does.
        unknown = EventStream("unknown", resumable=False)
        unknown.end()
        return unknown, None

    async def ask(self, stream: EventStream, method: str, params: Message | None) -> Any:
        """Send a request to the client and return its result.

        Raises:
            RpcError: the client refused, or the session ended first.

        Cancellation: an answer that comes later is dropped. Checkpoint: always.
        """
        self._asked += 1
        request_id = f"server-{self._asked}"
        question = self._questions[request_id] = _Question()
        try:
            stream.send({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params or {}})
            if self.over:
                question.settle(rpc_error(-32000, "the session has ended"))
            return await question.result()
        finally:
            del self._questions[request_id]

    def answered(self, response: Message) -> None:
        """Take the client's response to a question; one that nobody asked is dropped."""
        question = self._questions.get(str(response.get("id")))
        if question is not None:
            question.settle(response)


class _Question:
    def __init__(self) -> None:
        self._settled = trio.Event()
        self._response: Message = {}

    def settle(self, response: Message) -> None:
        if not self._settled.is_set():
            self._response = response
            self._settled.set()

    async def result(self) -> Any:
        await self._settled.wait()
        error = self._response.get("error")
        if error is not None:
            raise RpcError(error.get("code", 0), error.get("message", ""), error.get("data"))
        return self._response.get("result")
