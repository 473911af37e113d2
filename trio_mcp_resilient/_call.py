"""One logical call: what the SDK's session asks for, and what it says on each of its POSTs."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from mcp.shared.dispatcher import CallOptions, ProgressFnT
from mcp.shared.exceptions import MCPError
from mcp_types import HEADER_MISMATCH, RequestId

from trio_mcp_resilient._envelope import foreign_headers
from trio_mcp_resilient._outcome import Fate, Outcome
from trio_mcp_resilient._policy import HARMLESS, Resend
from trio_mcp_resilient._wire import RawHeaders

CALL_META_KEY = "trio-mcp-resilient.org/call"
"""Where `_meta` carries a call's key and attempt; the prefix is a name, not an address."""

resend_override: ContextVar[Resend | None] = ContextVar("resend_override", default=None)
"""The policy of the tool call being made, when it differs from the client's. The SDK's session
passes no option of ours through, but it does run in the caller's task."""


@dataclass(slots=True)
class Call:
    """One logical call: at most two POSTs."""

    method: str
    params: dict[str, Any]
    request_id: RequestId | None
    """The id the caller insists on; None to mint one per POST."""
    headers: RawHeaders
    on_progress: ProgressFnT | None
    cancellable: bool
    key: str | None
    """The same on both POSTs, for a server that can tell by it that it has run the call already."""
    posts: int = 0
    resend: Resend | None = None
    """Its own policy, instead of the client's."""
    carried: Mapping[str, object] | None = None
    """What instruments add to `_meta`."""
    mirrored: RawHeaders | None = None
    """The arguments that the last POST had in its headers; None where the era does not do that."""

    @classmethod
    def make(
        cls, method: str, params: Mapping[str, Any] | None, opts: CallOptions, *, key: str | None
    ) -> Call:
        """Make a call of what the SDK's session asks for."""
        resend = resend_override.get() if method == "tools/call" else None
        if resend is not None:
            # Callbacks run in the caller's task, or in one that inherits its context. What they call
            # in their turn is no part of what the caller gave its word for.
            resend_override.set(None)
        return cls(
            method=method,
            params=dict(params or {}),
            request_id=opts.get("request_id"),
            headers=foreign_headers(method, opts.get("headers") or {}),
            on_progress=opts.get("on_progress"),
            cancellable=opts.get("cancel_on_abandon", True),
            key=key,
            resend=resend,
        )

    def next_params(self, request_id: RequestId) -> dict[str, Any]:
        """Return the parameters of the next POST, with what `_meta` says of it."""
        meta: dict[str, Any] = {} if self.carried is None else {**self.carried}
        if self.on_progress is not None:
            # The id is the token: fresh for each POST, so late progress of the first is nobody's.
            meta["progressToken"] = request_id
        if self.key is not None:
            meta[CALL_META_KEY] = {"id": self.key, "attempt": self.posts + 1}
        return {**self.params, "_meta": {**(self.params.get("_meta") or {}), **meta}} if meta else self.params

    @property
    def tool(self) -> str | None:
        """The name of the tool to call, if it is a tool call."""
        name = self.params.get("name")
        return name if self.method == "tools/call" and isinstance(name, str) else None


def is_mismatch(call: Call, outcome: Outcome) -> bool:
    """Whether a call was refused unread, for headers that are not those of the tool's schema."""
    error = outcome.error
    mirrors = call.tool is not None and call.mirrored is not None
    return mirrors and isinstance(error, MCPError) and error.code == HEADER_MISMATCH


def says_nothing_of_the_first(call: Call, second: Outcome) -> bool:
    """Whether a second POST did not run, which does not tell whether the first one did."""
    if second.fate in (Fate.REFUSED, Fate.BUSY):
        # Where that makes no difference, as for a list, the refusal tells more.
        return call.method not in HARMLESS
    return second.fate in (Fate.LOST, Fate.UNSENT)
