"""What both SDK lines need to take up a cut stream: an event store, in memory."""

from __future__ import annotations

from typing import Any

from mcp.server.streamable_http import EventCallback, EventMessage, EventStore


class MemoryStore(EventStore):
    """Keeps every message of every stream; an event's id is its place in the list."""

    def __init__(self) -> None:
        self._events: list[tuple[str, Any]] = []

    async def store_event(self, stream_id: str, message: Any) -> str:
        """Keep a message, or a mere mark if it is None, and return its id."""
        self._events.append((stream_id, message))
        return str(len(self._events))

    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> str | None:
        """Send what came later on the same stream; return which stream that is."""
        try:
            place = int(last_event_id)
            stream_id, _ = self._events[place - 1]
        except (ValueError, IndexError):
            return None
        for later, (of, message) in enumerate(self._events[place:], place + 1):
            if of == stream_id and message is not None:
                await send_callback(EventMessage(message, str(later)))
        return stream_id
