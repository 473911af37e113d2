"""How a session of the SDK's begins above our sessions, whose eras it need not share.

It begins by `server/discover`, by `initialize` if that was refused, or by neither, if its user
says which version the server speaks. What it agreed on then it keeps for its whole life. The
server may be of the other era later; then what the two eras say differently is translated.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mcp.shared.dispatcher import CallOptions
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    UNSUPPORTED_PROTOCOL_VERSION,
    JSONRPCRequest,
)

from trio_mcp_resilient._discovery import DISCOVER
from trio_mcp_resilient._dispatcher import ResilientDispatcher
from trio_mcp_resilient._envelope import fill_in
from trio_mcp_resilient._eras import Era
from trio_mcp_resilient._errors import GaveUp, HandshakeFailed


class Greeting:
    """What one session of the SDK's agreed on, and how it came to that."""

    def __init__(self, dispatcher: ResilientDispatcher) -> None:
        self._dispatcher = dispatcher
        self._era: Era | None = None
        self._failure: GaveUp | HandshakeFailed | None = None

    async def answer(self, request: JSONRPCRequest, options: CallOptions) -> dict[str, Any]:
        """Answer a handshake of the session's from the one that a generation made."""
        if request.method == "initialize" and self._failure is not None:
            # The SDK takes any refusal of its discovery for a word about the era. What failed was
            # the handshake of either era, and it has been tried for long enough.
            failure, self._failure = self._failure, None
            raise failure
        try:
            result = await self._dispatcher.send_raw_request(request.method, request.params, options)
        except (GaveUp, HandshakeFailed) as error:
            if request.method == DISCOVER:
                self._failure = error
            raise
        era = Era.LEGACY if "protocolVersion" in result else Era.MODERN
        if era is Era.LEGACY and request.method == DISCOVER:
            raise MCPError(METHOD_NOT_FOUND, "Method not found", DISCOVER)
        if era is Era.MODERN and request.method == "initialize":
            # It gave up asking before the server was there. This sends it back.
            data = {"supported": result.get("supportedVersions"), "requested": _version(request.params)}
            raise MCPError(UNSUPPORTED_PROTOCOL_VERSION, "Unsupported protocol version", data)
        self._era = era
        return result

    async def precede(self, request: JSONRPCRequest, options: CallOptions) -> None:
        """See that there is a session for a request, if its sender has not asked for one.

        Raises:
            MCPError: it says neither who it is nor that it was told who the server is.
        """
        if self._dispatcher.is_introduced:
            return
        meta: dict[str, Any] = (request.params or {}).get("_meta") or {}
        if CLIENT_CAPABILITIES_META_KEY not in meta:
            raise MCPError(INVALID_REQUEST, "initialize comes first")
        self._era = Era.MODERN
        await self._dispatcher.send_raw_request(DISCOVER, {"_meta": meta}, options)

    def complete(self, method: str, result: dict[str, Any]) -> dict[str, Any]:
        """Make a result fit for the era of the session, whichever it comes from.

        A legacy session needs nothing: what it does not know it leaves aside.
        """
        return fill_in(method, result) if self._era is Era.MODERN else result


def _version(params: Mapping[str, Any] | None) -> str:
    return str((params or {}).get("protocolVersion", ""))
