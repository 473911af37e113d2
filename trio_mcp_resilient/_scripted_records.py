"""What the scripted server has seen and done, as frozen records."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

When: TypeAlias = "str | Callable[[SeenRequest], bool] | None"
"""Which requests are meant: an HTTP or JSON-RPC method, a function that tells, or None for any."""


def one_of(words: Iterable[str], word: str) -> str:
    """Return a word of a script, if it is one that is known: a slip must not break nothing, silently.

    Raises:
        ValueError: naming the words there are.
    """
    known = list(words)
    if word not in known:
        raise ValueError(f"{word!r} is none of {', '.join(known)}")
    return word


@dataclass(frozen=True)
class SeenRequest:
    """One HTTP request, as it arrived.

    The header fields, the body and the session id are not in its `repr`: they may be secrets.
    """

    number: int
    """Counted from 0, over the whole life of the server."""
    connection: int
    """Which connection it came on, counted from 0."""
    arrived_at: float
    """`trio.current_time()` when its last byte was read."""
    http_method: str
    target: str
    headers: Mapping[str, str]
    """Names in lower case; repeated ones joined by a comma."""
    body: bytes
    message: Any
    """The body as JSON, or None if it is none."""
    status: int | None = None
    """What it was answered with, or None if nothing was sent (yet)."""

    @property
    def rpc_method(self) -> str | None:
        """The JSON-RPC method; None for a response, or for no JSON-RPC at all."""
        method = self._member("method")
        return method if isinstance(method, str) else None

    @property
    def rpc_id(self) -> Any:
        """The JSON-RPC id; None for a notification."""
        return self._member("id")

    @property
    def params(self) -> Mapping[str, Any]:
        """The JSON-RPC params; empty if there are none."""
        params = self._member("params")
        return cast("Mapping[str, Any]", params) if isinstance(params, Mapping) else {}

    @property
    def tool(self) -> str | None:
        """The tool that is called, if one is."""
        return str(self.params.get("name")) if self.rpc_method == "tools/call" else None

    @property
    def session_id(self) -> str | None:
        """The `Mcp-Session-Id` it carried."""
        return self.headers.get("mcp-session-id")

    @property
    def last_event_id(self) -> str | None:
        """The `Last-Event-ID` it carried."""
        return self.headers.get("last-event-id")

    @property
    def protocol_version(self) -> str | None:
        """The `MCP-Protocol-Version` it carried."""
        return self.headers.get("mcp-protocol-version")

    def matches(self, when: When) -> bool:
        """Whether it is one that `when` means."""
        if callable(when):
            return when(self)
        return when is None or when in (self.http_method, self.rpc_method)

    def __repr__(self) -> str:
        what = self.rpc_method or ("response" if self.message is not None else "")
        return f"<request {self.number}: {self.http_method} {what} id={self.rpc_id!r} -> {self.status}>"

    def _member(self, name: str) -> Any:
        message = self.message
        return cast("Mapping[str, Any]", message).get(name) if isinstance(message, Mapping) else None


@dataclass(frozen=True)
class Execution:
    """One run of a tool's handler, recorded before the handler's first line."""

    tool: str
    arguments: Mapping[str, Any]
    rpc_id: Any
    session_id: str | None = field(repr=False)
    started_at: float


def parse(body: bytes) -> Any:
    """Return a body as JSON, or None if it is none."""
    try:
        return json.loads(body)
    except ValueError:
        return None
