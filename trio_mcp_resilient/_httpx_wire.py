"""An endpoint through an `httpx.AsyncClient`, and httpx's words translated to ours.

Beside `_httpx_transport` this is the only module that deals in what httpx calls things.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress

import httpx
import trio

from trio_mcp_resilient._auth import Credentials
from trio_mcp_resilient._cookies import tidy
from trio_mcp_resilient._endpoint import Endpoint
from trio_mcp_resilient._following import Following
from trio_mcp_resilient._httpx_transport import WIRE_RESPONSE, stage_of
from trio_mcp_resilient._inflating import Inflated
from trio_mcp_resilient._wire import HookFailed, Outgoing, RawHeaders, Response, Stage, WireError

ENDING_GRACE = 0.02
"""How long an answer that is no longer wanted may take to end, in seconds."""
FAREWELL_SECONDS = 1.0
"""How long a foreign transport may take to close a connection, since it may wait for its peer."""


class HttpxWire(Following):
    """An endpoint through an `httpx.AsyncClient`, with its auth flow, cookies and event hooks."""

    def __init__(
        self,
        client: httpx.AsyncClient,
        endpoint: Endpoint,
        fields: RawHeaders,
        read_timeout: float,
        *,
        owned: bool,
        provider: Credentials | None = None,
    ) -> None:
        super().__init__(endpoint, fields, read_timeout, provider)
        self._client = client
        self._owned = owned

    async def _send_once(self, request: Outgoing) -> Response:
        if any(byte in value for _, value in request.headers for byte in b"\r\n\0"):
            # Ours would refuse it; of the application's client and what is below it we do not know.
            raise HookFailed(ValueError("a header's value has a line break or NUL in it"))
        if request.before_write is not None:
            # httpx does not say when it has a connection.
            await request.before_write()
        make = httpx.Request if request.bare else self._client.build_request
        seconds = None if request.read_timeout == math.inf else request.read_timeout
        try:
            made = make(
                request.method,
                request.endpoint.url,
                headers=list(request.headers),
                content=request.body if request.method == "POST" else None,
                extensions={"timeout": httpx.Timeout(10.0, read=seconds).as_dict()},
            )
        except ValueError as error:
            # httpx cannot encode a cookie that is in the application's jar.
            raise HookFailed(error) from error
        try:
            response = await self._client.send(made, stream=True, follow_redirects=False)
        except httpx.TransportError as error:
            raise WireError(_stage_of(error, made), _said(error)) from error
        except Exception as error:
            raise HookFailed(error) from error
        if self._owned:
            tidy(self._client.cookies)
        answer = HttpxResponse(response)
        return Inflated(answer) if "content-encoding" in response.headers and not answer.decoded else answer

    async def tend(self, wait: Callable[[], Awaitable[object]]) -> None:
        """Wait: httpx closes what has expired with the next request."""
        await wait()

    async def aclose(self) -> None:
        """Close the client, unless it is the user's."""
        if self._owned:
            with trio.move_on_after(FAREWELL_SECONDS):
                await self._client.aclose()
        else:
            await trio.lowlevel.cancel_shielded_checkpoint()


class HttpxResponse:
    """An `httpx.Response`, as a generation reads it."""

    def __init__(self, response: httpx.Response) -> None:
        self._response = response
        self._body: AsyncIterator[bytes] | None = None
        # httpx reads through a tower of async generators, each of which Trio has to finalize when
        # a body is left in its middle, as every answered event stream is. Ours can be read as is.
        self.decoded = response.is_stream_consumed
        """Whether a hook has read it already: then httpx has decoded it, too."""
        direct = response.extensions.get(WIRE_RESPONSE)
        self._direct: Response | None = None if self.decoded else direct
        self.status = response.status_code
        self.headers: RawHeaders = [(name.lower(), value) for name, value in response.headers.raw]

    async def receive(self) -> bytes:
        """Return the next bytes of the body, as they came, or `b""` at its end."""
        if self._direct is not None:
            return await self._direct.receive()
        if self._body is None:
            self._body = self._response.aiter_bytes() if self.decoded else self._response.aiter_raw()
        try:
            async for chunk in self._body:
                if chunk:
                    return chunk
        except httpx.TransportError as error:
            raise WireError(Stage.ANSWERING, _said(error)) from error
        return b""

    async def aclose(self) -> None:
        """Give the connection back, or close it."""
        if self._body is not None:
            # The end of the body is usually on its way, and with it the connection's next use. If
            # it is not, this cancellation unwinds httpx's nested generators from the inside, which
            # closing the outermost would not: they would be left to the garbage collector.
            with trio.move_on_after(ENDING_GRACE, shield=True), suppress(httpx.HTTPError):
                async for _ in self._body:
                    pass
        # httpx's transports may do I/O here, and under a pending cancellation leave their pool
        # in disorder: so they get a moment in which nothing can be cancelled.
        with trio.move_on_after(FAREWELL_SECONDS, shield=True):
            await self._response.aclose()


def _stage_of(error: httpx.TransportError, request: httpx.Request) -> Stage:
    """Return how far a request had got when its exchange, or one of its auth flow's own, failed."""
    try:
        elsewhere = _place(error.request.url) != _place(request.url)
    except RuntimeError:
        # Somebody's own transport has not said which request it was.
        elsewhere = False
    if elsewhere:
        # The flow had asked elsewhere for credentials, so the request had not been sent, or had
        # been refused. A flow may hand on a copy of the request: only another place is proof.
        return Stage.NOT_CONNECTED
    return stage_of(error)


def _place(url: httpx.URL) -> tuple[str, str, int | None, str]:
    return url.scheme, url.host, url.port, url.path


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
