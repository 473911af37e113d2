"""The state of a session that its successor has to be given again.

The protocol keeps log level and subscriptions per session and says nothing of what becomes of
them in the next one, so in effect they are the client's to restore. What to restore is learned
from the requests that pass by, which covers the SDK session's own methods as well as ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from mcp.shared.inbound import find_invalid_x_mcp_header, mcp_param_headers, x_mcp_header_map

from trio_mcp_resilient._events import ToolsChanged
from trio_mcp_resilient._wire import RawHeaders

HeaderMap = dict[tuple[str, ...], str]
"""From where an argument is found to the header that mirrors it."""


@dataclass(slots=True)
class SessionState:
    """What was set on the session and succeeded, and the tools as they were last listed."""

    log_level: dict[str, Any] | None = None
    subscriptions: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    tools: dict[str, dict[str, Any]] | None = None
    """By name, as of the last whole listing; None if they were never listed."""
    _pages: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    _header_maps: dict[str, HeaderMap] = field(default_factory=dict[str, HeaderMap])

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
        self._header_maps = {}
        before, now = self.tools, self._pages
        self.tools, self._pages = now, {}
        return None if before is None else _difference(before, now)

    def requests(self) -> list[tuple[str, dict[str, Any]]]:
        """Return what to ask of a new session, in order."""
        level = [] if self.log_level is None else [("logging/setLevel", self.log_level)]
        return level + [("resources/subscribe", params) for params in self.subscriptions.values()]

    def parameter_headers(self, tool: str, arguments: Any) -> RawHeaders:
        """Return the headers that mirror arguments, as the tool's schema says; none if it is unknown."""
        listed = (self.tools or {}).get(tool)
        if listed is None or not isinstance(arguments, Mapping):
            return ()
        mapping = self._header_maps.get(tool)
        if mapping is None:
            schema = listed.get("inputSchema")
            valid = find_invalid_x_mcp_header(schema) is None
            mapping = self._header_maps[tool] = x_mcp_header_map(schema) if valid else {}
        headers = mcp_param_headers(mapping, cast("Mapping[str, Any]", arguments)) if mapping else {}
        return tuple((name.lower().encode("ascii"), value.encode("ascii")) for name, value in headers.items())

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
