"""One session as the wire knows it: the handshake that makes it, the headers that carry it.

Sans-IO: it builds what is sent and judges what came back, and has no idea how either travels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mcp_types import InitializeResult
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from pydantic import ValidationError

from trio_mcp_resilient._secrets import fingerprint
from trio_mcp_resilient._wire import RawHeaders

SESSION_HEADER = b"mcp-session-id"
VERSION_HEADER = b"mcp-protocol-version"
LAST_EVENT_HEADER = b"last-event-id"

JSON_TYPE = (b"content-type", b"application/json")
ANSWER_TYPES = (b"accept", b"application/json, text/event-stream")
STREAM_TYPE = (b"accept", b"text/event-stream")

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
    """The InitializeResult as it came."""
    negotiated: InitializeResult
    """The same, typed."""
    post_headers: RawHeaders
    """For a POST, encoded once for the whole generation."""
    get_headers: RawHeaders
    """For a GET or DELETE."""

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

    @property
    def label(self) -> str:
        """The id's fingerprint, fit to be shown; empty if there is no id."""
        return "" if self.id is None else fingerprint(self.id)

    def __repr__(self) -> str:
        return f"<Session {self.label or 'without id'} {self.protocol_version}>"
