"""HTTP for a generation: which way its requests go out, and httpx's words translated to ours.

There are two ways. Without an `httpx.Auth`, a client of the user's or a proxy, httpx has nothing
to do for us, and requests go straight to the Trio-native connections (`PlainWire`). Otherwise
they pass through an `httpx.AsyncClient` (`HttpxWire`), ours over the same connections, or the
user's over whatever it has. A provider of the SDK's (`_auth`) works on either. This module and
`_httpx_transport` are the only ones that know httpx's names.
"""

from __future__ import annotations

import math
import ssl
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from urllib.request import getproxies, proxy_bypass

import httpx
import httpx2
import trio

from trio_mcp_resilient._auth import Credentials, credentials
from trio_mcp_resilient._auth_flow import Send
from trio_mcp_resilient._connections import Connections
from trio_mcp_resilient._cookies import Cookies, tidy
from trio_mcp_resilient._dial import Connect
from trio_mcp_resilient._endpoint import Endpoint
from trio_mcp_resilient._http11 import SLICE_BYTES
from trio_mcp_resilient._httpx_transport import WIRE_RESPONSE, TrioHTTPTransport, stage_of
from trio_mcp_resilient._inflating import Inflated
from trio_mcp_resilient._patience import Patience
from trio_mcp_resilient._wire import (
    BeforeWrite,
    HookFailed,
    Outgoing,
    RawHeaders,
    Response,
    Stage,
    Wire,
    WireError,
)

ENDING_GRACE = 0.02
"""How long an answer that is no longer wanted may take to end, in seconds."""
MAX_REDIRECTS = 5
FAREWELL_SECONDS = 1.0
"""How long a foreign transport may take to close a connection, since it may wait for its peer."""
DEFAULT_HEADERS = {
    "user-agent": "trio-mcp-resilient",
    # MCP answers are small or streamed, and what is never compressed cannot be a bomb.
    "accept-encoding": "identity",
}
OURS = frozenset(
    {"accept-encoding", "content-length", "transfer-encoding", "mcp-session-id", "last-event-id"}
)
"""Headers that follow from the body and the session; beside ours another would be a contradiction."""


def wire_opener(
    endpoint: Endpoint,
    *,
    headers: Mapping[str, str] | None,
    auth: httpx.Auth | httpx2.Auth | None,
    http_client: httpx.AsyncClient | None,
    ssl_context: ssl.SSLContext | None,
    connect: Connect | None,
    read_timeout: float,
    patience: Patience,
) -> Callable[[], Wire]:
    """Choose the way out once, and return what opens it afresh for each generation.

    Raises:
        ValueError: for a header that is none, or options that exclude each other.
        TypeError: for an `auth` that is neither httpx's nor httpx2's.
    """
    own = {name.lower(): value for name, value in (headers or {}).items()}
    if wrong := sorted(own.keys() & OURS):
        raise ValueError(f"{', '.join(wrong)} is a header that this client sets itself")
    fields = _encode({**DEFAULT_HEADERS, **own})
    if http_client is not None:
        if auth is not None or ssl_context is not None or connect is not None:
            raise ValueError("auth, ssl_context and connect are settings of the http_client you pass")
        # Its own default headers stand where the application set none here, except that nothing
        # is to be compressed.
        theirs = _encode({"accept-encoding": "identity", **own})
        return lambda: HttpxWire(http_client, endpoint, theirs, read_timeout, owned=False)
    # Made once: the tokens are the client's, and outlive every generation.
    provider = None if auth is None or isinstance(auth, httpx.Auth) else credentials(auth, patience)
    flow = auth if isinstance(auth, httpx.Auth) else None
    proxied = connect is None and _proxied(endpoint)
    if flow is None and not proxied:
        return lambda: PlainWire(
            Connections(connect=connect, ssl_context=ssl_context), endpoint, fields, read_timeout, provider
        )
    transport = None if proxied else TrioHTTPTransport

    def open_wire() -> Wire:
        client = httpx.AsyncClient(
            auth=flow,
            verify=ssl_context if ssl_context is not None else True,
            transport=None if transport is None else transport(ssl_context=ssl_context, connect=connect),
            trust_env=transport is None,
        )
        return HttpxWire(client, endpoint, fields, read_timeout, owned=True, provider=provider)

    return open_wire


def _proxied(endpoint: Endpoint) -> bool:
    proxies = getproxies()
    return (endpoint.scheme in proxies or "all" in proxies) and not proxy_bypass(endpoint.host)


def _encode(headers: Mapping[str, str]) -> RawHeaders:
    """Encode header fields, refusing what could smuggle in a second one."""
    fields: list[tuple[bytes, bytes]] = []
    for name, value in headers.items():
        if not name.isascii() or not name or any(c <= " " or c in ":\x7f" for c in name):
            raise ValueError(f"{name!r} is not a header name")
        if any(c in "\r\n\0" for c in value):
            raise ValueError(f"the value of header {name!r} has a line break or NUL in it")
        fields.append((name.encode("ascii"), value.strip().encode("utf-8")))
    return tuple(fields)


class _Following(ABC):
    """Sends to one endpoint, following redirects that stay on its origin and keep the method."""

    def __init__(
        self, endpoint: Endpoint, fields: RawHeaders, read_timeout: float, provider: Credentials | None
    ) -> None:
        self._endpoint = endpoint
        self._fields = fields
        self._read_timeout = read_timeout
        self._provider = provider
        self._send: Send = self._send_once if provider is None else self._send_authorized

    async def send(
        self,
        method: str,
        headers: RawHeaders,
        body: bytes = b"",
        *,
        may_be_silent: bool = False,
        before_write: BeforeWrite | None = None,
    ) -> Response:
        """Send one request and return once the head of its final answer is here."""
        read_timeout = math.inf if may_be_silent else self._read_timeout
        fields = (*self._fields, *headers)
        request = Outgoing(self._endpoint, method, fields, body, read_timeout, before_write)
        response = await self._send(request)
        if 300 <= response.status < 400:
            response, there = await _follow(response, self._send, request)
            if not 300 <= response.status < 400 and response.status not in (404, 405, 410):
                # Remembered if it leads to somebody, so that only the first request of a generation
                # makes the detour.
                self._endpoint = there
        return response

    async def _send_authorized(self, request: Outgoing) -> Response:
        assert self._provider is not None
        return await self._provider.send(request, self._send_once, self._fetch)

    async def _fetch(self, request: Outgoing) -> Response:
        response, _ = await _follow(await self._send_once(request), self._send_once, request)
        return response

    @abstractmethod
    async def _send_once(self, request: Outgoing) -> Response: ...


async def _follow(response: Response, send: Send, request: Outgoing) -> tuple[Response, Endpoint]:
    """Send again to where redirects lead, and return the final answer and whose it is."""
    for _ in range(MAX_REDIRECTS):
        there = _redirect(request.endpoint, request.method, response)
        if there is None:
            break
        await response.aclose()
        request = replace(request, endpoint=there)
        response = await send(request)
    return response, request.endpoint


class PlainWire(_Following):
    """An endpoint straight over Trio-native connections, owned by one generation."""

    def __init__(
        self,
        connections: Connections,
        endpoint: Endpoint,
        fields: RawHeaders,
        read_timeout: float,
        provider: Credentials | None = None,
    ) -> None:
        super().__init__(endpoint, fields, read_timeout, provider)
        self._connections = connections
        self._cookies: Cookies | None = None
        """Made with the first cookie: few servers set one, and each client would pay for the jar."""

    async def _send_once(self, request: Outgoing) -> Response:
        if self._cookies is not None and not request.bare:
            request = replace(request, headers=(*request.headers, *self._cookies.header(request.endpoint)))
        try:
            response = await self._connections.request(
                request.endpoint,
                request.method,
                request.headers,
                request.body,
                read_timeout=request.read_timeout,
                # What fits the kernel's buffer of an idle connection needs no watch.
                write_timeout=math.inf if len(request.body) <= SLICE_BYTES else self._read_timeout,
                before_write=request.before_write,
            )
        except WireError:
            raise
        except Exception as error:
            # The user's `connect` raised something that no stream raises.
            raise HookFailed(error) from error
        cookie = encoded = False
        for name, _ in response.headers:
            if name == b"set-cookie" and not request.bare:
                cookie = True
            elif name == b"content-encoding":
                encoded = True
        if cookie:
            self._cookies = self._cookies or Cookies()
            self._cookies.keep(request.endpoint, response)
        return Inflated(response) if encoded else response

    async def tend(self, wait: Callable[[], Awaitable[object]]) -> None:
        """Close connections as they expire, for as long as `wait()` waits."""
        await self._connections.tend(wait)

    async def aclose(self) -> None:
        """Close every connection."""
        await self._connections.aclose()


class HttpxWire(_Following):
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


def _redirect(endpoint: Endpoint, method: str, response: Response) -> Endpoint | None:
    """Return where to send the same request again, if this answer says so and may be obeyed."""
    if response.status not in ((307, 308) if method != "GET" else (301, 302, 303, 307, 308)):
        return None
    location = next((value for name, value in response.headers if name == b"location"), b"")
    return endpoint.redirected(location.decode("latin-1")) if location else None


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
