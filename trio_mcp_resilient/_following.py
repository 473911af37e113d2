"""Requests to one endpoint, wherever it has moved on its origin, with the credentials it wants."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import replace

from trio_mcp_resilient._auth import Credentials
from trio_mcp_resilient._auth_flow import Send
from trio_mcp_resilient._endpoint import Endpoint
from trio_mcp_resilient._wire import BeforeWrite, Outgoing, RawHeaders, Response

MAX_REDIRECTS = 5


class Following(ABC):
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


def _redirect(endpoint: Endpoint, method: str, response: Response) -> Endpoint | None:
    """Return where to send the same request again, if this answer says so and may be obeyed."""
    if response.status not in ((307, 308) if method != "GET" else (301, 302, 303, 307, 308)):
        return None
    location = next((value for name, value in response.headers if name == b"location"), b"")
    return endpoint.redirected(location.decode("latin-1")) if location else None
