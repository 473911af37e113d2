"""Answers that a server or a gateway may give instead of the right one, and how calls may end by them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.simulation.ledger import MARK, call_of
from trio_mcp_resilient.testing import SeenRequest

EVENTS = "text/event-stream"
JSON = "application/json"


def right_result(seen: SeenRequest) -> dict[str, Any]:
    """What the tool would have answered."""
    number = call_of(seen.rpc_method, seen.params)
    result = {"content": [{"type": "text", "text": f"done {number}"}], "_meta": {MARK: number}}
    return {"jsonrpc": "2.0", "id": seen.rpc_id, "result": result}


def _wrong_result(request_id: Any) -> dict[str, Any]:
    result = {"content": [{"type": "text", "text": "somebody else's"}], "_meta": {MARK: -1}}
    return {"jsonrpc": "2.0", "id": request_id, "result": result}


def _events(*messages: object) -> str:
    return "".join(f"event: message\ndata: {json.dumps(message)}\n\n" for message in messages)


def _error(code: int, message: str) -> Any:
    return lambda seen: {"jsonrpc": "2.0", "id": seen.rpc_id, "error": {"code": code, "message": message}}


def _among_strangers(seen: SeenRequest) -> str:
    error = {"code": -32000, "message": "somebody else's"}
    strangers = (_wrong_result(99999), _wrong_result("none"), {"jsonrpc": "2.0", "id": 99998, "error": error})
    return _events(*strangers, right_result(seen), _wrong_result(seen.rpc_id))


def _big(size: int) -> Any:
    def body(seen: SeenRequest) -> str:
        params = {"level": "info", "data": "x" * size}
        said = {"jsonrpc": "2.0", "method": "notifications/message", "params": params}
        return _events(said, right_result(seen))

    return body


@dataclass(frozen=True)
class Reply:
    """One such answer."""

    status: int
    body: Any = ""
    content_type: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    ran: bool = False
    """Whether the request runs first. Never for an answer that says it did not: no client could help it."""
    alone: frozenset[str] = frozenset()
    more: frozenset[str] = frozenset()
    tools_only: bool = False
    rare: bool = False


UNKNOWN = frozenset({"OutcomeUnknown"})
REFUSED = frozenset({"RequestRefused"})
MCP_ERROR = frozenset({"MCPError"})

TERMINATED = {
    "jsonrpc": "2.0",
    "id": None,
    "error": {"code": -32603, "message": "Session terminated before the request completed"},
}

REPLIES: dict[str, Reply] = {
    # Nobody took it on.
    "503 no backend": Reply(503, "No server is available to handle this request.", more=REFUSED),
    "503 come back": Reply(
        503, "No server is available to handle this request.", headers={"retry-after": "7"}, more=REFUSED
    ),
    "429": Reply(429, "slow down", more=REFUSED),
    "429 come back": Reply(429, "slow down", headers={"retry-after": "3"}, more=REFUSED),
    # It may have run.
    "502": Reply(502, "Bad Gateway", "text/html", alone=UNKNOWN),
    "502 ran": Reply(502, "Bad Gateway", "text/html", ran=True, alone=UNKNOWN),
    "504 ran": Reply(504, "", ran=True, alone=UNKNOWN),
    "500 ran": Reply(500, "Internal Server Error", ran=True, alone=UNKNOWN),
    "408": Reply(408, "", alone=UNKNOWN),
    "503 ran": Reply(503, "upstream gave up", ran=True, alone=UNKNOWN),
    "500 terminated": Reply(500, TERMINATED, ran=True, alone=UNKNOWN),
    "202 ran": Reply(202, "", ran=True, alone=UNKNOWN),
    "200 nonsense": Reply(200, "oops", JSON, ran=True, alone=UNKNOWN),
    "200 page": Reply(200, "<html><body>Welcome</body></html>", "text/html", ran=True, alone=UNKNOWN),
    "200 empty stream": Reply(200, "", EVENTS, ran=True, alone=UNKNOWN),
    "200 stranger": Reply(200, _wrong_result(99999), ran=True, alone=UNKNOWN),
    # No.
    "401": Reply(401, "", headers={"www-authenticate": "Bearer"}, alone=REFUSED),
    "403": Reply(403, "", alone=REFUSED),
    "413": Reply(413, "", alone=REFUSED),
    "406": Reply(406, "Not Acceptable", alone=REFUSED),
    "400 bad argument": Reply(400, _error(-32602, "bad argument"), alone=MCP_ERROR),
    "400": Reply(400, "Bad Request", alone=REFUSED),
    "404 no method": Reply(404, _error(-32601, "Method not found"), alone=MCP_ERROR),
    "405": Reply(405, "", headers={"allow": "POST"}, alone=REFUSED),
    "409": Reply(409, "Conflict", alone=REFUSED),
    "200 error": Reply(200, _error(-32000, "no such thing"), alone=MCP_ERROR),
    # Right, but oddly.
    "200 among strangers": Reply(200, _among_strangers, EVENTS, ran=True, tools_only=True),
    "200 wrong type": Reply(200, right_result, "text/plain", ran=True, tools_only=True),
    "200 long": Reply(200, _big(200_000), EVENTS, ran=True, tools_only=True),
    "200 too long": Reply(200, _big(17_000_000), EVENTS, ran=True, tools_only=True, alone=UNKNOWN, rare=True),
}

FINAL = frozenset(
    name
    for name, reply in REPLIES.items()
    if not reply.tools_only and reply.status not in (408, 429, 500, 502, 503, 504)
)
"""Answers that, to `initialize`, no later attempt would mend."""
