"""The two messages of an exchange: the request's head, checked, and the answer, as it is handed out."""

from __future__ import annotations

import math

import h11
import trio

from trio_mcp_resilient._endpoint import Endpoint
from trio_mcp_resilient._http11 import MAX_LEFTOVER_BYTES, Body, HTTP11Connection
from trio_mcp_resilient._http_errors import NotHTTP
from trio_mcp_resilient._wire import RawHeaders

MAX_HEADS = 256
"""How many request heads are remembered, before they are all forgotten."""


def new_request(method: str, endpoint: Endpoint, headers: RawHeaders, body: Body) -> h11.Request:
    """Return a checked request head, with the Host and framing fields that `headers` lacks.

    Raises:
        NotHTTP: for what is no header, method or target, for CONNECT, or if the
            content-length is not the body's. Nothing was sent then.
    """
    fields = list(headers)
    names = dict(fields)
    if b"host" not in names:
        fields.insert(0, (b"host", endpoint.authority.encode("ascii")))
    if not isinstance(body, bytes):
        if b"content-length" not in names and b"transfer-encoding" not in names:
            fields.append((b"transfer-encoding", b"chunked"))
    elif b"content-length" in names:
        if names[b"content-length"] != b"%d" % len(body):
            raise NotHTTP(f"content-length is not the body's, which has {len(body)} bytes")
    elif b"transfer-encoding" not in names and (body or method not in ("GET", "HEAD", "OPTIONS", "DELETE")):
        # RFC 9110 section 8.6: where a body has a meaning, its absence is said by a zero.
        fields.append((b"content-length", b"%d" % len(body)))
    if method == "CONNECT":
        raise NotHTTP("CONNECT makes a tunnel, which this is not")
    try:
        return h11.Request(method=method, target=endpoint.target, headers=fields)
    except h11.LocalProtocolError:
        pass
    # Out of its handler, since the parser's error quotes the value, which may be a secret.
    raise NotHTTP(_fault(fields))


def _fault(fields: list[tuple[bytes, bytes]]) -> str:
    for name, value in fields:
        try:
            h11.Request(method="GET", target="/", headers=[(b"host", b""), (name, value)])
        except h11.LocalProtocolError:
            if name != b"host":
                return f"header {name!r}, or its value, is not valid HTTP"
    return "the method or the target is not valid HTTP"


class RequestHeads:
    """Checked request heads, the same object for the same head.

    Checking each field costs a tenth of an exchange, and the requests of one session differ in
    little but their length. They belong to one pool, since what is in them may be secret. One
    is kept from the second time on: a handshake's and a listing's do not come again, and each
    takes a KiB.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str, Endpoint, RawHeaders, int], h11.Request] = {}
        self._seen = 0
        """A bit for each head, or for several: taking one for seen too early costs nothing but its KiB."""

    def checked(self, method: str, endpoint: Endpoint, headers: RawHeaders, body: Body) -> h11.Request:
        """Return the head of a request, as `new_request` does."""
        if not isinstance(body, bytes):
            return new_request(method, endpoint, headers, body)
        key = (method, endpoint, tuple(headers), len(body))
        head = self._known.get(key)
        if head is None:
            head = new_request(method, endpoint, headers, body)
            bit = 1 << hash(key) % MAX_HEADS
            if self._seen & bit:
                if len(self._known) >= MAX_HEADS:
                    self._known.clear()
                self._known[key] = head
            self._seen |= bit
        return head


class PooledResponse:
    """The head of an answer, with its body still on the connection."""

    __slots__ = ("_connection", "_may_wait", "_read_timeout", "_unread", "headers", "reason", "status")

    def __init__(
        self, connection: HTTP11Connection, method: str, head: h11.Response, read_timeout: float
    ) -> None:
        self._connection: HTTP11Connection | None = connection
        self._read_timeout = read_timeout
        self.status = head.status_code
        self.reason = head.reason
        self.headers: RawHeaders = [(name.lower(), value) for name, value in head.headers.raw_items()]
        self._unread = 0
        framed = False
        keep = head.http_version >= b"1.1"
        for name, value in self.headers:
            if name == b"content-length":
                framed = True
                self._unread = int(value)
            elif name == b"transfer-encoding":
                framed = True
            elif name == b"connection":
                keep = keep and b"close" not in value.lower()
            elif name == b"keep-alive":
                connection.keepalive = _announced(value)
        # An answer to GET is left unread by the reader of an endless stream, who says goodbye so.
        self._may_wait = keep and framed and method == "POST"

    async def receive(self) -> bytes:
        """Return the next bytes of the body, or `b""` at its end.

        Raises:
            WireError: at `Stage.ANSWERING`, if the body was cut short or malformed, if nothing
                came within the read timeout, or if the response was closed before.

        Cancellation: the connection is closed, and the rest of the body lost. Checkpoint: only
        when it waits; one more turn of the scheduler for bytes that are already here would be a
        tenth of a whole exchange.
        """
        connection = self._connection
        if connection is None:
            return b""
        try:
            while not (data := connection.take_body()) and not connection.ended:
                await connection.receive(self._read_timeout)
        except BaseException:
            connection.abandon()
            raise
        self._unread -= len(data)
        if connection.ended:
            # At once, not when the end is asked for: it is the next request's already.
            self._connection = None
            connection.finish()
        return data

    async def aclose(self) -> None:
        """Give the connection back: reusable, or soon to be, or closed. Idempotent.

        If the body was not read to its end, the answer was one to POST and the rest is at most 64
        KiB, the pool takes it back as ending; unless this is a cancelled scope, where the peer
        is told at once by closing. Never waits. Checkpoint: no.
        """
        connection, self._connection = self._connection, None
        if connection is not None:
            cancelled = trio.current_effective_deadline() == -math.inf
            connection.leave_unread(
                may_wait=self._may_wait and not cancelled and self._unread <= MAX_LEFTOVER_BYTES
            )


def _announced(value: bytes) -> float:
    """Return the seconds of a `Keep-Alive: timeout=N` header, infinite if there are none."""
    for parameter in value.split(b","):
        name, _, seconds = parameter.strip().partition(b"=")
        if name.strip().lower() == b"timeout" and seconds.strip().isdigit():
            return float(seconds)
    return math.inf
