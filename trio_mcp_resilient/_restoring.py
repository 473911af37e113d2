"""The state of a session that its successor has to be given again.

The protocol keeps log level and subscriptions per session and says nothing of what becomes of
them in the next one, so in effect they are the client's to restore. What to restore is learned
from the requests that pass by, which covers the SDK session's own methods as well as ours.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, cast

from mcp.shared.inbound import (
    X_MCP_HEADER_KEY,
    find_invalid_x_mcp_header,
    mcp_param_headers,
    x_mcp_header_map,
)

from trio_mcp_resilient._events import ToolsChanged
from trio_mcp_resilient._wire import RawHeaders

HeaderMap = dict[tuple[str, ...], str]
"""From where an argument is found to the header that mirrors it."""

MAX_TOOLS = 10_000
"""How many tools are remembered; of a larger listing it is the first."""
MAX_LISTINGS = 16
"""How many listings under way are remembered, each up to its last page."""
MAX_TOOL_NAME = 1024
"""The longest name, in characters, that is remembered."""
MAX_TOOL_HEADERS = 100
"""Of how many arguments a tool may want to have headers; one that wants more gets none."""


@dataclass(frozen=True, slots=True)
class Tool:
    """What is remembered of a tool: not the tool, for a description may be as large as an answer."""

    digest: bytes
    repeatable: bool
    """Whether its annotations say that calling it again does no harm."""
    headers: HeaderMap
    """Which arguments are mirrored in headers."""

    @classmethod
    def of(cls, listed: Mapping[str, Any]) -> Tool:
        """Take down a tool as it was listed."""
        text = json.dumps(listed, sort_keys=True)
        match listed:
            case {"annotations": {"readOnlyHint": True} | {"idempotentHint": True}}:
                repeatable = True
            case _:
                repeatable = False
        headers = _header_map(listed.get("inputSchema")) if f'"{X_MCP_HEADER_KEY}"' in text else {}
        return cls(blake2b(text.encode(), digest_size=16).digest(), repeatable, headers)


def _header_map(schema: Any) -> HeaderMap:
    headers = x_mcp_header_map(schema) if find_invalid_x_mcp_header(schema) is None else {}
    return headers if len(headers) <= MAX_TOOL_HEADERS else {}


@dataclass(slots=True)
class SessionState:
    """What was set on the session and succeeded, and the tools as they were last listed."""

    log_level: dict[str, Any] | None = None
    subscriptions: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    tools: dict[str, Tool] | None = None
    """By name, as of the last whole listing; None if they were never listed."""
    _begun: OrderedDict[int, dict[str, Tool]] = field(default_factory=OrderedDict[int, dict[str, Tool]])
    """What came before the page that a cursor leads to, by the cursor's hash: of each listing under way."""

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
        cursor, following = params.get("cursor"), result.get("nextCursor")
        now = {} if cursor is None else self._begun.pop(hash(str(cursor)), None)
        if now is None:
            # Its beginning was not seen, or another listing, made at the same time, was quicker.
            return None
        listed = result.get("tools")
        for tool in cast("list[object]", listed) if isinstance(listed, list) else ():
            match tool:
                case {"name": str() as name} if len(name) <= MAX_TOOL_NAME:
                    if len(now) < MAX_TOOLS:
                        now[name] = Tool.of(cast("dict[str, Any]", tool))
                case _:
                    continue
        if following is not None:
            self._begun[hash(str(following))] = now
            if len(self._begun) > MAX_LISTINGS:
                self._begun.popitem(last=False)
            return None
        self._begun.clear()
        before, self.tools = self.tools, now
        return None if before is None else _difference(before, now)

    def requests(self) -> list[tuple[str, dict[str, Any]]]:
        """Return what to ask of a new session, in order."""
        level = [] if self.log_level is None else [("logging/setLevel", self.log_level)]
        return level + [("resources/subscribe", params) for params in self.subscriptions.values()]

    def parameter_headers(self, tool: str, arguments: Any) -> RawHeaders:
        """Return the headers that mirror arguments, as the tool's schema says; none if it is unknown."""
        known = (self.tools or {}).get(tool)
        if known is None or not known.headers or not isinstance(arguments, Mapping):
            return ()
        headers = mcp_param_headers(known.headers, cast("Mapping[str, Any]", arguments))
        return tuple((name.lower().encode("ascii"), value.encode("ascii")) for name, value in headers.items())

    def may_repeat(self, tool: str | None) -> bool:
        """Whether the server's annotations say that calling this tool again does no harm."""
        known = None if tool is None else (self.tools or {}).get(tool)
        return known is not None and known.repeatable


def _difference(before: dict[str, Tool], now: dict[str, Tool]) -> ToolsChanged | None:
    added = tuple(sorted(now.keys() - before.keys()))
    removed = tuple(sorted(before.keys() - now.keys()))
    changed = tuple(sorted(name for name in now.keys() & before.keys() if now[name] != before[name]))
    return ToolsChanged(added, removed, changed) if added or removed or changed else None
