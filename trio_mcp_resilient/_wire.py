"""What a generation asks of HTTP: one exchange, and how far a failed one got.

Sans-IO words only. `_plain_wire` and `_httpx_wire` are the two implementations; everything
above them speaks in these terms and never in an HTTP library's.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from trio_mcp_resilient._endpoint import Endpoint

RawHeaders = Sequence[tuple[bytes, bytes]]
"""Header fields in wire order, names in lower case."""
BeforeWrite = Callable[[], Awaitable[None]]
"""Awaited at the last moment at which a request can still be held back."""


class Stage(enum.IntEnum):
    """How far a request got before its exchange failed; later stages compare greater."""

    NOT_CONNECTED = 0
    """No connection was had: nothing left this machine."""
    PARTLY_WRITTEN = 1
    """The last byte was never accepted, and a request cut short cannot run."""
    WRITTEN = 2
    """All of it was accepted and nothing came back: it may have run."""
    ANSWERING = 3
    """The answer had begun: it probably ran."""

    @property
    def certainly_not_executed(self) -> bool:
        """Whether a request that failed at this stage cannot have run."""
        return self <= Stage.PARTLY_WRITTEN


class WireError(Exception):
    """An HTTP exchange that failed below HTTP: refused, reset, cut, timed out, or malformed.

    Not raised for a status code: an answer of any status is an answer. The cause is the
    stream's or the parser's own exception.
    """

    def __init__(self, stage: Stage, message: str) -> None:
        super().__init__(stage, message)
        self.stage = stage
        self.message = message

    def __str__(self) -> str:
        return self.message


class HookFailed(WireError):
    """The user's own part in the exchange raised: `connect`, an auth flow or an event hook."""

    def __init__(self, cause: Exception, message: str = "") -> None:
        said = message or f"{type(cause).__name__} in the application's own hook"
        super().__init__(Stage.NOT_CONNECTED, said)
        self.cause = cause
        """What it raised, and what the caller of the request gets."""


@dataclass(slots=True)
class Outgoing:
    """One request, whole."""

    endpoint: Endpoint
    method: str
    headers: RawHeaders = field(repr=False)
    body: bytes = field(repr=False)
    read_timeout: float
    """Seconds of silence on the answer's connection that count as a cut; `math.inf` for none."""
    before_write: BeforeWrite | None = None
    bare: bool = False
    """Whether it goes with nothing of the client's but what is here: no cookie, no default."""


class Response(Protocol):
    """The head of an answer, with its body still to be read."""

    @property
    def status(self) -> int:
        """The status code, 200 to 599; interim 1xx answers are never seen here."""
        ...

    @property
    def headers(self) -> RawHeaders:
        """The header fields, names in lower case."""
        ...

    async def receive(self) -> bytes:
        """Return the next bytes of the body, or `b""` at its end.

        Raises:
            WireError: at `Stage.ANSWERING`, if the body was cut short or malformed.
        """
        ...

    async def aclose(self) -> None:
        """Give the connection back: reusable if the body was read whole, closed otherwise.

        Never blocks for the peer, and works in a cancelled scope.
        """
        ...


class Wire(Protocol):
    """One endpoint over HTTP, for as long as one generation lives."""

    async def send(
        self,
        method: str,
        headers: RawHeaders,
        body: bytes = b"",
        *,
        may_be_silent: bool = False,
        before_write: BeforeWrite | None = None,
    ) -> Response:
        """Send one request to the endpoint and return once the head of its answer is here.

        Args:
            method: POST, GET or DELETE.
            headers: what the session adds to the client's own.
            body: of a POST.
            may_be_silent: whether the answer is a stream on which silence is no sign of a cut.
            before_write: awaited when there is a connection, before anything is written on it.

        Raises:
            WireError: with the stage that was reached.

        Cancellation: the exchange is abandoned and its connection closed; whether the
        request arrived is then unknown.
        """
        ...

    async def tend(self, wait: Callable[[], Awaitable[object]]) -> None:
        """Close connections as they expire, for as long as `wait()` waits."""
        ...

    async def aclose(self) -> None:
        """Close every connection. Idempotent; works in a cancelled scope."""
        ...
