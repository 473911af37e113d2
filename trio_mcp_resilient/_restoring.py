"""The state of a session that its successor has to be given again.

The protocol keeps log level and subscriptions per session and says nothing of what becomes of
them in the next one, so in effect they are the client's to restore. What to restore is learned
from the requests that pass by, which covers the SDK session's own methods as well as ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trio_mcp_resilient._events import ToolsChanged


@dataclass(slots=True)
class SessionState:
    """What was set on the session and succeeded, and the tools as they were last listed."""

    log_level: dict[str, Any] | None = None
    subscriptions: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    tools: dict[str, dict[str, Any]] | None = None
    """By name, as of the last whole listing; None if they were never listed."""
    _pages: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])

    def observe(
        self, method: str, params: Mapping[str, Any], result: Mapping[str, Any]
    ) -> ToolsChanged | None:
        """Learn from a request that the server answered with a result.

        Returns:
            How the tools differ from those listed before, when a listing was completed and
            they do.
        """
        if method == "tools/list":
            return self._learn_tools(params, result)
        if method == "logging/setLevel":
            self.log_level = {"level": params.get("level")}
        elif method == "resources/subscribe":
            uri = params.get("uri")
            if isinstance(uri, str):
                self.subscriptions[uri] = {"uri": uri}
        elif method == "resources/unsubscribe":
            self.subscriptions.pop(str(params.get("uri")), None)
        return None

    def _learn_tools(self, params: Mapping[str, Any], result: Mapping[str, Any]) -> ToolsChanged | None:
        if "cursor" not in params:
            self._pages = {}
        for tool in result.get("tools") or ():
            match tool:
                case {"name": str() as name}:
                    self._pages[name] = tool
                case _:
                    continue
        if result.get("nextCursor") is not None:
            return None
        before, now = self.tools, self._pages
        self.tools, self._pages = now, {}
        return None if before is None else _difference(before, now)

    def requests(self) -> list[tuple[str, dict[str, Any]]]:
        """Return what to ask of a new session, in order."""
        level = [] if self.log_level is None else [("logging/setLevel", self.log_level)]
        return level + [("resources/subscribe", params) for params in self.subscriptions.values()]

    def may_repeat(self, tool: str | None) -> bool:
        """Whether the server's annotations say that calling this tool again does no harm."""
        if tool is None:
            return False
        match (self.tools or {}).get(tool):
            case {"annotations": {"readOnlyHint": True} | {"idempotentHint": True}}:
                return True
            case _:
                return False


def _difference(before: dict[str, Any], now: dict[str, Any]) -> ToolsChanged | None:
    added = tuple(sorted(now.keys() - before.keys()))
    removed = tuple(sorted(before.keys() - now.keys()))
    changed = tuple(sorted(name for name in now.keys() & before.keys() if now[name] != before[name]))
    return ToolsChanged(added, removed, changed) if added or removed or changed else None
