"""The protocol's two eras: which may be spoken, and what shows that a server speaks the other.

Until 2025-11-25 a client makes a session by `initialize`, and each request names it. Since
2026-07-28 there are no sessions: each request says of its client all that a server needs, and
`server/discover` tells what the server offers. A redeploy may move an endpoint from one era to
the other, either way.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from typing import Any, cast

from mcp_types import (
    HEADER_MISMATCH,
    INVALID_PARAMS,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    PROTOCOL_VERSION_META_KEY,
    UNSUPPORTED_PROTOCOL_VERSION,
)
from mcp_types.version import LATEST_MODERN_VERSION, MODERN_PROTOCOL_VERSIONS

from trio_mcp_resilient._body import read
from trio_mcp_resilient._jsonrpc import Failure, InvalidMessage, decode
from trio_mcp_resilient._wording import Sign, signs_of


class Era(enum.StrEnum):
    """How a client and a server know each other."""

    LEGACY = "legacy"
    """By a session, made by `initialize`: protocol 2024-11-05 to 2025-11-25."""
    MODERN = "modern"
    """By what each request says itself: protocol 2026-07-28."""

    @classmethod
    def of(cls, version: str) -> Era:
        """Return the era a protocol version belongs to."""
        return cls.MODERN if version in MODERN_PROTOCOL_VERSIONS else cls.LEGACY


@dataclass(frozen=True)
class Mode:
    """Which eras a client may speak, and at which version of the modern one it begins."""

    eras: tuple[Era, ...]
    version: str = LATEST_MODERN_VERSION

    @classmethod
    def parse(cls, mode: str) -> Mode:
        """Read the `mode` that an application passes: "auto", "legacy", or a modern version.

        Raises:
            ValueError: for anything else. A version of the legacy era is the server's choice.
        """
        if mode == "auto":
            return cls((Era.MODERN, Era.LEGACY))
        if mode == "legacy":
            return cls((Era.LEGACY,))
        if mode in MODERN_PROTOCOL_VERSIONS:
            return cls((Era.MODERN,), mode)
        known = ", ".join(repr(version) for version in MODERN_PROTOCOL_VERSIONS)
        raise ValueError(f"mode is 'auto', 'legacy' or one of {known}, not {mode!r}")

    def order(self, remembered: Era | None) -> tuple[Era, ...]:
        """Return the eras to try, the one that was spoken last time first."""
        return tuple(sorted(self.eras, key=lambda era: era is not remembered)) if remembered else self.eras


MODERN_CODES = frozenset({HEADER_MISMATCH, MISSING_REQUIRED_CLIENT_CAPABILITY, UNSUPPORTED_PROTOCOL_VERSION})
"""Errors that only a server of the modern era gives (specification, backward compatibility)."""
NO_SUCH_SESSION = frozenset({Sign.MISSING_ID, Sign.UNINITIALIZED, Sign.UNKNOWN_SESSION})
_UNSUPPORTED = re.compile(
    r"(?:unsupported|not supported|invalid|unknown|bad).{0,40}protocol.?version"
    r"|protocol.?version.{0,60}(?:unsupported|not supported|invalid|unknown)",
    re.IGNORECASE | re.DOTALL,
)


def supported_versions(data: Any) -> list[str] | None:
    """Return the versions that an UNSUPPORTED_PROTOCOL_VERSION error names; None if it names none."""
    supported: object = cast("dict[str, object]", data).get("supported") if isinstance(data, dict) else None
    if not isinstance(supported, list):
        return None
    return [version for version in cast("list[object]", supported) if isinstance(version, str)]


def speaks_otherwise(version: str, status: int, body: bytes) -> bool:
    """Whether a refusal shows that the server no longer speaks the version that was agreed on.

    Such a refusal comes from the protocol's own layer, before any dispatch: the request was
    certainly not executed. Another handshake finds out what is spoken now.
    """
    if not 400 <= status < 500:
        # That layer refuses by status. In a 200 a code is the tool's own, such as one that a tool
        # passes on from a server behind it, and the tool has run.
        return False
    failure = _failure(body)
    if failure is not None and failure.code in MODERN_CODES:
        if failure.code == UNSUPPORTED_PROTOCOL_VERSION:
            # Which it names (specification, versioning); else it is anybody's number.
            supported = supported_versions(failure.data)
            return supported is not None and version not in supported
        # Of a modern request they are about its own headers and capabilities.
        return Era.of(version) is Era.LEGACY
    if failure is not None and failure.code == INVALID_PARAMS and Era.of(version) is Era.LEGACY:
        # A server of the modern era only, which misses what a legacy request has no reason to carry.
        return PROTOCOL_VERSION_META_KEY in failure.message
    return Era.of(version) is Era.MODERN and _asks_for_a_session(body, by_name=False)


def may_speak_otherwise(version: str, status: int, body: bytes) -> bool:
    """Whether a refusal of a modern request has the words of `speaks_otherwise`, but anybody's.

    Servers of the modern era give a tool's own error an HTTP status, and it names the request as an
    error of theirs does. So it may have run, and the server is asked what it speaks.
    """
    if Era.of(version) is Era.LEGACY or not 400 <= status < 500:
        return False
    failure = _failure(body)
    unsupported = failure is not None and failure.code == UNSUPPORTED_PROTOCOL_VERSION
    return unsupported or _asks_for_a_session(body, by_name=True)


def _failure(body: bytes) -> Failure | None:
    try:
        messages = decode(body)
    except InvalidMessage:
        return None
    return next((message for message in messages if isinstance(message, Failure)), None)


def _asks_for_a_session(body: bytes, *, by_name: bool) -> bool:
    """Whether a server that was asked without a session id wants one, or an older version.

    Args:
        by_name: whether it says so of this request. A session layer has not read its id.
    """
    said = read(body, finished=False)
    return (
        not said.result
        and said.echoes_id is by_name
        and (
            not NO_SUCH_SESSION.isdisjoint(signs_of(said.text)) or _UNSUPPORTED.search(said.text) is not None
        )
    )
