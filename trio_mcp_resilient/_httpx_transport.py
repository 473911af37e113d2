"""The connections as a transport for httpx, with httpx's exceptions.

httpx's own transport degrades with concurrency and, on Trio, can be left without a usable
connection by cancellation (`docs/transport.md` has the measurement). This one knows neither
proxies nor HTTP/2.
"""

from __future__ import annotations

import math
import ssl
from collections.abc import AsyncIterator
from types import TracebackType
from typing import cast

import httpx

from trio_mcp_resilient._connections import (
    CONNECT_TIMEOUT,
    ENDING_GRACE,
    KEEPALIVE_EXPIRY,
    Connections,
    ConnectionStatistics,
)
from trio_mcp_resilient._dial import Connect
from trio_mcp_resilient._endpoint import DEFAULT_PORTS, Endpoint
from trio_mcp_resilient._http11 import Body
from trio_mcp_resilient._http_errors import Malformed, NoSlot, NotHTTP, TimedOut
from trio_mcp_resilient._http_messages import PooledResponse
from trio_mcp_resilient._wire import Stage, WireError

NEVER_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol)

WIRE_RESPONSE = "trio_mcp_resilient.response"
"""The extension by which a response brings our own along, to be read without httpx's generators."""


def stage_of(error: httpx.TransportError) -> Stage:
    """Return how far the request had got that failed with `error`.

    Exact for the errors of `TrioHTTPTransport`. For those of other transports it takes the worse
    for granted: httpcore swallows a failing write and reports what reading gives, so of all but
    a failed connect the request may have arrived whole, and may have run.
    """
    if isinstance(error.__cause__, WireError):
        return error.__cause__.stage
    return Stage.NOT_CONNECTED if isinstance(error, NEVER_SENT) else Stage.WRITTEN


class TrioHTTPTransport(httpx.AsyncBaseTransport):
    """HTTP/1.1 for `httpx.AsyncClient` on Trio, over a pool that cancellation cannot harm.

    Args:
        ssl_context: for https; by default one that trusts what the system trusts, shared by all
            transports. It replaces the `verify` and `cert` of the client, which do not apply to a
            transport of one's own.
        connect: an async function from host and port to a `trio.abc.Stream`, for Unix sockets,
            tunnels and tests; by default `trio.open_tcp_stream`. TLS is put on top by us.
        max_connections: how many may be open, None for no limit. Requests beyond wait in order.
        keepalive_expiry: seconds that an idle connection is kept at most; 0 keeps none.
        connect_timeout: seconds, for requests that come without httpx's own timeouts.
        ending_grace: seconds to wait for the end of an earlier answer that was not read to its
            end, before another connection is opened; 0 closes such connections at once.

    The errors are httpx's. Each is raised from one that knows how far the request had got, see
    `error.__cause__.stage`. Nothing is ever sent twice.

    Cancellation: the request's connection is closed, and nothing else is affected.
    """

    def __init__(
        self,
        *,
        ssl_context: ssl.SSLContext | None = None,
        connect: Connect | None = None,
        max_connections: int | None = None,
        keepalive_expiry: float = KEEPALIVE_EXPIRY,
        connect_timeout: float = CONNECT_TIMEOUT,
        ending_grace: float = ENDING_GRACE,
    ) -> None:
        self._connections = Connections(
            ssl_context=ssl_context,
            connect=connect,
            max_connections=max_connections,
            keepalive_expiry=keepalive_expiry,
            connect_timeout=connect_timeout,
            ending_grace=ending_grace,
        )

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request and return once the head of the answer is here. Called by httpx.

        Honors `request.extensions["timeout"]` (seconds, by kind; None for ever) and `["target"]`.

        Args:
            request: what to send, with an absolute URL of http or https.

        Raises:
            httpx.TransportError: from the `WireError` that tells the stage.
            httpx.LocalProtocolError: for a request that is not valid HTTP.

        Cancellation: the connection is closed and leaves the pool; no other request notices.
        Checkpoint: always.
        """
        timeouts = _timeouts(request)
        try:
            response = await self._connections.request(
                _endpoint(request),
                request.method,
                [(name.lower(), value) for name, value in request.headers.raw],
                _body(request),
                read_timeout=timeouts.get("read", math.inf),
                write_timeout=timeouts.get("write", math.inf),
                connect_timeout=timeouts.get("connect"),
                pool_timeout=timeouts.get("pool", math.inf),
            )
        except WireError as error:
            raise _translated(error, request) from error
        except NotHTTP as error:
            raise httpx.LocalProtocolError(str(error), request=request) from WireError(
                error.stage, str(error)
            )
        return httpx.Response(
            response.status,
            headers=list(response.headers),
            stream=_ResponseStream(response, request),
            extensions={
                "http_version": b"HTTP/1.1",
                "reason_phrase": response.reason,
                WIRE_RESPONSE: response,
            },
        )

    def close(self) -> None:
        """Close every connection without awaiting. Idempotent. Requests in progress fail."""
        self._connections.close()

    async def aclose(self) -> None:
        """Close every connection; called by httpx.

        Cancellation: they are closed all the same. Checkpoint: always.
        """
        await self._connections.aclose()

    def statistics(self) -> ConnectionStatistics:
        """Return how many connections are busy, idle, ending, and so on."""
        return self._connections.statistics()

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        await self.aclose()


class _ResponseStream(httpx.AsyncByteStream):
    """The body, as httpx reads it. Not a generator: nothing to finalize, and one frame less."""

    def __init__(self, response: PooledResponse, request: httpx.Request) -> None:
        self._response = response
        self._request = request

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        try:
            data = await self._response.receive()
        except WireError as error:
            raise _translated(error, self._request) from error
        if not data:
            raise StopAsyncIteration
        return data

    async def aclose(self) -> None:
        await self._response.aclose()


def _endpoint(request: httpx.Request) -> Endpoint:
    url = request.url
    if url.scheme not in DEFAULT_PORTS:
        message = "the URL is neither http:// nor https://"
        raise httpx.UnsupportedProtocol(message, request=request) from WireError(Stage.NOT_CONNECTED, message)
    target: bytes = request.extensions.get("target", url.raw_path)
    return Endpoint(
        url.scheme,
        url.raw_host.decode("ascii"),
        url.port or DEFAULT_PORTS[url.scheme],
        target.decode("ascii"),
    )


def _body(request: httpx.Request) -> Body:
    try:
        # Whole if it is bytes: then it goes out together with the head.
        return request.content
    except httpx.RequestNotRead:
        # A synchronous stream is refused by AsyncClient before it comes here.
        return cast(httpx.AsyncByteStream, request.stream)


def _timeouts(request: httpx.Request) -> dict[str, float]:
    given: dict[str, float | None] = request.extensions.get("timeout", {})
    return {name: math.inf if seconds is None else seconds for name, seconds in given.items()}


def _translated(error: WireError, request: httpx.Request) -> httpx.TransportError:
    """Return httpx's word for `error`."""
    timed_out = isinstance(error, TimedOut)
    kind: type[httpx.TransportError]
    if isinstance(error, NoSlot):
        kind = httpx.PoolTimeout
    elif isinstance(error, Malformed):
        kind = httpx.RemoteProtocolError
    elif error.stage is Stage.NOT_CONNECTED:
        kind = httpx.ConnectTimeout if timed_out else httpx.ConnectError
    elif error.stage is Stage.PARTLY_WRITTEN:
        kind = httpx.WriteTimeout if timed_out else httpx.WriteError
    else:
        kind = httpx.ReadTimeout if timed_out else httpx.ReadError
    return kind(error.message, request=request)
