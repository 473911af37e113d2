"""Server-sent events, from bytes to events (WHATWG HTML, section 9.2).

Lines end at CR, LF or CRLF and nowhere else: the specification counts neither U+2028 nor U+0085
as a line's end, and clients that split decoded text with `str.splitlines` lose answers by it.
So lines are cut while they are bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_EVENT_BYTES = 16 * 1024 * 1024
"""The largest event by default; rmcp's limit."""
MAX_RETRY_MS = 24 * 60 * 60 * 1000
"""What a longer `retry` is read as: nobody means more than a day, and `int` refuses 5,000 digits."""

BOM = b"\xef\xbb\xbf"
CR, LF = 0x0D, 0x0A


class SSEError(ValueError):
    """A stream of events that cannot be read further."""


class EventTooLarge(SSEError):
    """One event, or one line, is larger than the decoder's limit."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"an event is larger than {limit} bytes")


@dataclass(frozen=True)
class Event:
    """One block of lines that held at least one field.

    Blocks without data are events here, unlike in a browser: MCP servers open a stream with an
    id and empty data (SEP-1699), and whoever reads the stream must see that to resume it.
    """

    event: str
    """The event's type; `message` if the server named none."""
    data: bytes
    """The `data` lines joined by LF, not decoded: the JSON parser takes UTF-8 as it is, and is the
    first to need the text. Empty if there was none, or only an empty line of it."""
    id: str | None
    """The id this very block set; None if it set none, empty if it took the id back."""
    retry: int | None
    """The milliseconds this very block asked to wait before reconnecting; None if it did not."""


class SSEDecoder:
    """Turns a stream's bytes, however they are cut, into events; one decoder per stream.

    What the stream leaves unfinished at its end is no event and changes nothing here.

    Args:
        max_event_bytes: how large the fields of one event may be together; comments count alone.
    """

    __slots__ = (
        "_after_cr",
        "_at_start",
        "_data",
        "_event",
        "_fields",
        "_id",
        "_limit",
        "_partial",
        "_retry",
        "_size",
        "_too_large",
        "last_event_id",
        "retry",
    )

    last_event_id: str
    """The id of the last finished event that set one: what `Last-Event-ID` should say."""
    retry: int | None
    """The last reconnection time asked for, in milliseconds, a day at most; None if none was."""

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self.last_event_id = ""
        self.retry = None
        self._limit = max_event_bytes
        self._at_start = True
        self._after_cr = False
        self._too_large = False
        # One bytearray for the line in progress: appending is linear however it is cut.
        self._partial = bytearray()
        # The block of lines in progress.
        self._fields = False
        self._size = 0
        self._data: list[bytes] = []
        self._event = ""
        self._id: str | None = None
        self._retry: int | None = None

    @property
    def unfinished(self) -> int:
        """How many bytes of an event that is not whole yet have come; comments do not count."""
        return self._size + (0 if self._partial.startswith(b":") else len(self._partial))

    def feed(self, data: bytes) -> list[Event]:
        """Take the stream's next bytes and return the events they finish, in order.

        Raises:
            EventTooLarge: an event grew past the limit; so does every later call. Events that
                were finished before it in the same bytes are returned first.
        """
        if self._too_large:
            raise EventTooLarge(self._limit)
        events: list[Event] = []
        try:
            for line in self._lines(data):
                if not line:
                    if self._fields:
                        events.append(self._finish())
                elif line[0] != 0x3A:
                    self._field(line)
            self._check(len(self._partial))
        except EventTooLarge:
            self._too_large = True
            if not events:
                raise
        return events

    def _lines(self, data: bytes) -> list[bytes]:
        """Return the lines that `data` finishes, and keep what it leaves unfinished."""
        if self._after_cr and data:
            # The CR ended its line when it came: waiting for an LF would hold the event back.
            self._after_cr = False
            if data[0] == LF:
                data = data[1:]
        if not data:
            return []
        lines = data.splitlines()
        self._after_cr = data[-1] == CR
        rest = b"" if data[-1] in (CR, LF) else lines.pop()
        if lines:
            if self._partial:
                lines[0] = bytes(self._partial) + lines[0]
                self._partial.clear()
            if self._at_start:
                self._at_start = False
                lines[0] = lines[0].removeprefix(BOM)
        self._partial += rest
        return lines

    def _field(self, line: bytes) -> None:
        self._check(len(line))
        name, _, value = line.partition(b":")
        if value.startswith(b" "):
            value = value[1:]
        if name == b"data":
            self._data.append(value)
        elif name == b"event":
            self._event = value.decode(errors="replace")
        elif name == b"id":
            if b"\0" in value:
                return
            self._id = value.decode(errors="replace")
        elif name == b"retry":
            if not value.isdigit():
                return
            self._retry = self.retry = _milliseconds(value)
        else:
            return
        self._fields = True
        self._size += len(line) + 1

    def _check(self, more: int) -> None:
        if self._size + more > self._limit:
            raise EventTooLarge(self._limit)

    def _finish(self) -> Event:
        data = self._data[0] if len(self._data) == 1 else b"\n".join(self._data)
        event = Event(self._event or "message", data, self._id, self._retry)
        if self._id is not None:
            self.last_event_id = self._id
        self._fields, self._size = False, 0
        self._data, self._event, self._id, self._retry = [], "", None, None
        return event


def _milliseconds(digits: bytes) -> int:
    significant = digits.lstrip(b"0")
    if len(significant) > len(str(MAX_RETRY_MS)):
        return MAX_RETRY_MS
    return min(int(significant or b"0"), MAX_RETRY_MS)
