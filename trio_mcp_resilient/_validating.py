"""The listing that the SDK's session makes by itself, after a tool's first call.

It lists the tools to validate the call's result, inside `call_tool`. An error of that listing
would come out of `call_tool`: "not executed", or with an invitation to try again, after the tool
has run. So it has to be told from a listing that the application asked for. Both look alike, but
the hidden one follows the call in the same task, and so in the same context.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, cast

from mcp_types import JSONRPCRequest


class Validating:
    """Knows for one session of the SDK's which of its listings are hidden ones."""

    def __init__(self) -> None:
        self._listed: set[object] = set()

    def sent(self, request: JSONRPCRequest) -> bool:
        """Note a request, in the context of its caller; return whether it is a hidden listing."""
        last = _last_call.get()
        called = request.method == "tools/call"
        _last_call.set(_Call(self, (request.params or {}).get("name")) if called else None)
        return (
            request.method == "tools/list"
            and last is not None
            and last.session is self
            and last.succeeded
            and last.tool not in self._listed
        )

    def answered(self, request: JSONRPCRequest, result: Mapping[str, Any]) -> None:
        """Note a result, in the context of its request's caller or in a copy of it."""
        if request.method == "tools/call":
            last = _last_call.get()
            if last is not None:
                last.succeeded = not result.get("isError", False)
        elif request.method == "tools/list":
            names = _names(result.get("tools"))
            whole = "cursor" not in (request.params or {}) and result.get("nextCursor") is None
            self._listed = names if whole else self._listed | names


class _Call:
    """The call of a tool, if that is the last request that was sent in a context."""

    def __init__(self, session: Validating, tool: object) -> None:
        self.session = session
        self.tool = tool
        self.succeeded = False


_last_call: ContextVar[_Call | None] = ContextVar("last_call", default=None)


def _names(tools: object) -> set[object]:
    if not isinstance(tools, list):
        return set()
    listed = [
        cast("dict[str, object]", tool) for tool in cast("list[object]", tools) if isinstance(tool, dict)
    ]
    # A name that is no text, and may not even be hashable, is the session's to refuse.
    return {name for tool in listed if isinstance(name := tool.get("name"), str)}
