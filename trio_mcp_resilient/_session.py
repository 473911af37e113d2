"""One session as the wire knows it: the handshake that makes it, the headers that carry it.

A session of the modern era is what `server/discover` told: there is no id, and nothing at the
server that could be forgotten but the process itself.

Sans-IO: it builds what is sent and judges what came back, and has no idea how either travels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mcp_types import SERVER_INFO_META_KEY, DiscoverResult, InitializeResult
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from trio_mcp_resilient._envelope import Introduction, Params, routing_headers, unwrap, wrap
from trio_mcp_resilient._eras import Era
from trio_mcp_resilient._secrets import fingerprint
from trio_mcp_resilient._wire import RawHeaders

SESSION_HEADER = b"mcp-session-id"
VERSION_HEADER = b"mcp-protocol-version"
LAST_EVENT_HEADER = b"last-event-id"

JSON_TYPE = (b"content-type", b"application/json")
ANSWER_TYPES = (b"accept", b"application/json, text/event-stream")
STREAM_TYPE = (b"accept", b"text/event-stream")

MAX_SESSION_ID_BYTES = 4096
"""The longest session id that is accepted; it goes into every request, and some are sealed tokens."""

INITIALIZE_HEADERS: RawHeaders = (ANSWER_TYPES, JSON_TYPE)
"""An `initialize` carries no session id, above all not the lost one: every stateful server
refuses it, or worse, brings the dead session's id back."""


class UnusableHandshake(ValueError):
    """The server's answer to `initialize` makes no session this client could speak on."""


@dataclass(frozen=True)
class Session:
    """What one successful handshake agreed on."""

    id: str | None
    """The id to send with every later request; None if the server keeps no sessions."""
    protocol_version: str
    result: dict[str, Any]
    """The InitializeResult or DiscoverResult as it came."""
    negotiated: InitializeResult | DiscoverResult
    """The same, typed."""
    post_headers: RawHeaders
    """For a POST, encoded once for the whole generation."""
    get_headers: RawHeaders
    """For a GET or DELETE."""
    era: Era = Era.LEGACY
    envelope: Params | None = None
    """What each request carries in its `_meta`, in the modern era; None in the legacy one."""

    @classmethod
    def from_answer(cls, result: dict[str, Any], headers: RawHeaders) -> Session:
        """Judge a successful answer to `initialize`, the only place a session id is taken from.

        Raises:
            UnusableHandshake: for a version this client does not speak, or an id that is not
                visible ASCII (specification, session management 1: anything else is not a
                header's business).
        """
        version = result.get("protocolVersion")
        if not isinstance(version, str) or version not in HANDSHAKE_PROTOCOL_VERSIONS:
            raise UnusableHandshake(f"the server answered with protocol version {version!r:.40}")
        try:
            negotiated = InitializeResult.model_validate(result, by_name=False)
        except ValidationError as error:
            raise UnusableHandshake("the server's InitializeResult is malformed") from error
        raw_id = next((value for name, value in headers if name == SESSION_HEADER), None)
        if raw_id is not None and not (raw_id and all(0x21 <= byte <= 0x7E for byte in raw_id)):
            raise UnusableHandshake("the server gave a session id that is not visible ASCII")
        if raw_id is not None and len(raw_id) > MAX_SESSION_ID_BYTES:
            raise UnusableHandshake(f"the server gave a session id of more than {MAX_SESSION_ID_BYTES} bytes")
        carried = [(VERSION_HEADER, version.encode("ascii"))]
        if raw_id is not None:
            carried.append((SESSION_HEADER, raw_id))
        return cls(
            id=None if raw_id is None else raw_id.decode("ascii"),
            protocol_version=version,
            result=result,
            negotiated=negotiated,
            post_headers=(ANSWER_TYPES, JSON_TYPE, *carried),
            get_headers=(STREAM_TYPE, *carried),
        )

    @classmethod
    def from_discovery(cls, result: dict[str, Any], introduction: Introduction) -> Session:
        """Judge a result of `server/discover`.

        Raises:
            UnusableHandshake: it is none, or shares no modern version with this client.
        """
        try:
            told = {**result, "ttlMs": max(result.get("ttlMs") or 0, 0)}
            negotiated = DiscoverResult.model_validate(told, by_name=False)
        except (ValidationError, TypeError) as error:
            raise UnusableHandshake("the server's DiscoverResult is malformed") from error
        mutual = [version for version in MODERN_PROTOCOL_VERSIONS if version in negotiated.supported_versions]
        if not mutual:
            raise UnusableHandshake("the server offers no version of the modern era")
        version = (VERSION_HEADER, mutual[-1].encode("ascii"))
        return cls(
            id=None,
            protocol_version=mutual[-1],
            result=result,
            negotiated=negotiated,
            post_headers=(ANSWER_TYPES, JSON_TYPE, version),
            get_headers=(STREAM_TYPE, version),
            era=Era.MODERN,
            envelope=introduction.envelope(mutual[-1]),
        )

    def dress(self, method: str, params: Params) -> tuple[str, Params, RawHeaders]:
        """Make a request fit for this session, whichever the SDK's session stamped it for."""
        if self.envelope is None:
            return method, unwrap(params), ()
        if method == "ping":
            # The modern era has none, and whoever pings may not have heard of it yet.
            method = "server/discover"
        return method, wrap(self.envelope, params), routing_headers(method, params)

    def is_still(self, result: dict[str, Any]) -> bool:
        """Whether a later discovery tells the same of the server: no other was deployed meanwhile."""
        return _lasting(result) == _lasting(self.result)

    @property
    def label(self) -> str:
        """The id's fingerprint, fit to be shown; empty if there is no id."""
        return "" if self.id is None else fingerprint(self.id)

    def __repr__(self) -> str:
        return f"<Session {self.label or 'without id'} {self.protocol_version}>"


def _lasting(result: dict[str, Any]) -> dict[str, Any]:
    """Return what is about the server, and not about this one answer of its."""
    told = {key: value for key, value in result.items() if key not in ("ttlMs", "cacheScope", "_meta")}
    meta: Params = result.get("_meta") or {}
    return {**told, "_meta": meta.get(SERVER_INFO_META_KEY)}
