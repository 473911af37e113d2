"""An endpoint straight over Trio-native connections."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from dataclasses import replace

from trio_mcp_resilient._auth import Credentials
from trio_mcp_resilient._connections import Connections
from trio_mcp_resilient._cookies import Cookies
from trio_mcp_resilient._endpoint import Endpoint
from trio_mcp_resilient._following import Following
from trio_mcp_resilient._http11 import SLICE_BYTES
from trio_mcp_resilient._inflating import Inflated
from trio_mcp_resilient._wire import HookFailed, Outgoing, RawHeaders, Response, WireError


class PlainWire(Following):
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
