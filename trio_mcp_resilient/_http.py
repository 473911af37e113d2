"""HTTP for a generation: which way its requests go out.

There are two ways. Without an `httpx.Auth`, a client of the user's or a proxy, httpx has nothing
to do for us, and requests go straight to the Trio-native connections (`PlainWire`). Otherwise
they pass through an `httpx.AsyncClient` (`HttpxWire`), ours over the same connections, or the
user's over whatever it has. A provider of the SDK's (`_auth`) works on either.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from urllib.request import getproxies, proxy_bypass

import httpx
import httpx2

from trio_mcp_resilient._auth import credentials
from trio_mcp_resilient._connections import Connections
from trio_mcp_resilient._dial import Connect
from trio_mcp_resilient._endpoint import Endpoint
from trio_mcp_resilient._httpx_transport import TrioHTTPTransport
from trio_mcp_resilient._httpx_wire import HttpxWire
from trio_mcp_resilient._patience import Patience
from trio_mcp_resilient._plain_wire import PlainWire
from trio_mcp_resilient._wire import RawHeaders, Wire

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
