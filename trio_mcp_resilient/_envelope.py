"""What a client says of itself: once per session, or in the envelope of each modern request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mcp.shared.inbound import (
    MCP_METHOD_HEADER,
    MCP_NAME_HEADER,
    MCP_PARAM_HEADER_PREFIX,
    MCP_PROTOCOL_VERSION_HEADER,
    NAME_BEARING_METHODS,
    encode_header_value,
)
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    LOG_LEVEL_META_KEY,
    PROTOCOL_VERSION_META_KEY,
)
from mcp_types.version import LATEST_HANDSHAKE_VERSION

from trio_mcp_resilient._wire import RawHeaders

Params = dict[str, Any]

ENVELOPE_KEYS = frozenset(
    {PROTOCOL_VERSION_META_KEY, CLIENT_INFO_META_KEY, CLIENT_CAPABILITIES_META_KEY, LOG_LEVEL_META_KEY}
)
_PARAM_PREFIX = MCP_PARAM_HEADER_PREFIX.lower()


@dataclass(frozen=True)
class Introduction:
    """Who the client is, to be said again to every server process that it meets."""

    info: Params
    capabilities: Params
    knows_legacy_only: bool = False
    """Whether the SDK's session began by `initialize`, and could not speak the modern era."""
    log_level: str | None = None
    """From which level on a modern server may send log messages; None for not at all."""

    @classmethod
    def read(cls, method: str, params: Mapping[str, Any]) -> Introduction:
        """Learn it from the first request of the SDK's session, `initialize` or `server/discover`."""
        if method == "initialize":
            info, capabilities = params.get("clientInfo"), params.get("capabilities")
            return cls(info or {}, capabilities or {}, knows_legacy_only=True)
        meta: Params = params.get("_meta") or {}
        return cls(meta.get(CLIENT_INFO_META_KEY) or {}, meta.get(CLIENT_CAPABILITIES_META_KEY) or {})

    def initialize_params(self) -> Params:
        """Return the parameters of `initialize`."""
        return {
            "protocolVersion": LATEST_HANDSHAKE_VERSION,
            "capabilities": self.capabilities,
            "clientInfo": self.info,
        }

    def envelope(self, version: str) -> Params:
        """Return what each request at `version` carries in its `_meta`."""
        level = {} if self.log_level is None else {LOG_LEVEL_META_KEY: self.log_level}
        return {
            **level,
            PROTOCOL_VERSION_META_KEY: version,
            CLIENT_INFO_META_KEY: self.info,
            CLIENT_CAPABILITIES_META_KEY: self.capabilities,
        }


def wrap(envelope: Params, params: Params) -> Params:
    """Put the envelope around a request; what it says of its own log level stands."""
    meta: Params = params.get("_meta") or {}
    level = {LOG_LEVEL_META_KEY: meta[LOG_LEVEL_META_KEY]} if LOG_LEVEL_META_KEY in meta else {}
    return {**params, "_meta": {**meta, **envelope, **level}}


def unwrap(params: Params) -> Params:
    """Take off the envelope that the SDK's session put around a request.

    It did so by the era of the session that it knew, and the request goes out on another.
    """
    meta = params.get("_meta")
    if not meta or ENVELOPE_KEYS.isdisjoint(meta):
        return params
    rest = {key: value for key, value in meta.items() if key not in ENVELOPE_KEYS}
    bare = {key: value for key, value in params.items() if key != "_meta"}
    return {**bare, "_meta": rest} if rest else bare


def fill_in(method: str, result: Params) -> Params:
    """Read what a modern result leaves out as the specification says; the SDK refuses it instead.

    An absent `resultType` means complete (specification, overview), no caching hints mean none.
    """
    defaults: Params = {"resultType": "complete"}
    if method == "ping":
        # `server/discover` was asked in its place, and what that tells is no part of a ping's result.
        return defaults
    if method.endswith("/list") or method == "server/discover":
        defaults.update(ttlMs=0, cacheScope="private")
    return {**defaults, **result} if defaults.keys() - result.keys() else result


def routing_headers(method: str, params: Params) -> RawHeaders:
    """Return the headers by which gateways route a modern request without reading its body."""
    fields = [(MCP_METHOD_HEADER.encode(), encode_header_value(method).encode("ascii"))]
    name = params.get(NAME_BEARING_METHODS.get(method, ""))
    if isinstance(name, str):
        fields.append((MCP_NAME_HEADER.encode(), encode_header_value(name).encode("ascii")))
    return tuple(fields)


def foreign_headers(method: str, headers: Mapping[str, str]) -> RawHeaders:
    """Return the headers of a request that are not the session's business to make anew.

    Raises:
        ValueError: for one that would be two. The SDK packs names and arguments in base64;
            whoever hands over headers of their own may not.
    """
    own = {MCP_PROTOCOL_VERSION_HEADER, MCP_METHOD_HEADER}
    if method in NAME_BEARING_METHODS:
        own.add(MCP_NAME_HEADER)
    fields = tuple(
        (name.lower().encode("ascii"), value.encode("ascii"))
        for name, value in headers.items()
        if name.lower() not in own and not name.lower().startswith(_PARAM_PREFIX)
    )
    if any(byte in text for field in fields for text in field for byte in b"\r\n\0"):
        raise ValueError("a header has a line break or NUL in it")
    return fields
