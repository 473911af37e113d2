"""How servers refuse a session they do not know, as a table.

Status, content type and body of each are what the named server sends.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from trio_mcp_resilient._scripted_records import SeenRequest

Body: TypeAlias = "bytes | str | Mapping[str, Any] | Callable[[SeenRequest], bytes | str | Mapping[str, Any]]"


@dataclass(frozen=True)
class Reply:
    """One whole HTTP answer."""

    status: int
    body: Body = b""
    """Bytes, text, or a mapping sent as JSON; or a function of the request that returns one of these."""
    content_type: str | None = None
    """None: `application/json` for a mapping, no such header for anything else."""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])

    def render(self, seen: SeenRequest) -> tuple[dict[str, str], bytes]:
        """Return the header fields and the body to answer this request with."""
        body = self.body(seen) if callable(self.body) else self.body
        content_type = self.content_type
        if isinstance(body, Mapping):
            content_type = content_type or "application/json"
            body = json.dumps(body)
        headers = {} if content_type is None else {"content-type": content_type}
        return {**headers, **self.headers}, body.encode() if isinstance(body, str) else body


def rpc_error(code: int, message: str, request_id: Any = None, data: Any = None) -> dict[str, Any]:
    """Return a JSON-RPC error response."""
    error = {"code": code, "message": message}
    return {"jsonrpc": "2.0", "id": request_id, "error": error if data is None else {**error, "data": data}}


def rpc_reply(status: int, code: int, message: str, **headers: str) -> Reply:
    """Return a refusal of the HTTP layer with a JSON-RPC error in it, whose id is null."""
    return Reply(status, rpc_error(code, message), headers=headers)


def _echoing(code: int, message: str) -> Callable[[SeenRequest], Mapping[str, Any]]:
    return lambda seen: rpc_error(code, message, seen.rpc_id)


def _java(seen: SeenRequest) -> Mapping[str, Any]:
    message = f"Session not found: {seen.session_id}"
    return {
        "cause": None,
        "stackTrace": [],
        "jsonRpcError": {"code": -32603, "message": message, "data": None},
        "message": message,
    }


def _sse_error(seen: SeenRequest) -> str:
    error = rpc_error(-32002, "Server not initialized", seen.rpc_id)
    return f"event: message\ndata: {json.dumps(error)}\n\n"


HTML_404 = (
    "<!DOCTYPE html>\n<html><head><title>Error</title></head><body><pre>Not Found</pre></body></html>\n"
)
TEXT = "text/plain; charset=utf-8"

DIALECTS: Mapping[str, Reply] = {
    # Python SDK from 1.26 on.
    "404-rpc": rpc_reply(404, -32600, "Session not found"),
    # TypeScript SDK, C#, Cloudflare.
    "404-32001": rpc_reply(404, -32001, "Session not found"),
    # n8n-mcp: the request's own id comes back.
    "404-echo": Reply(404, _echoing(-32000, "Session not found or expired")),
    # Quarkus, Spring.
    "404-empty": Reply(404),
    # A route of Express that is gone, or a proxy's page.
    "404-html": Reply(404, HTML_404, "text/html; charset=utf-8"),
    # Go SDK, playwright-mcp.
    "404-text": Reply(404, "session not found\n", TEXT),
    # Java SDK: an exception, serialized.
    "404-java": Reply(404, _java),
    # VS Code's report of a server that says "method not found" and means the session.
    "404-32601": rpc_reply(404, -32601, "Not Found: Invalid session ID"),
    # Python SDK until 1.25: no content type at all.
    "400-text": Reply(400, "Bad Request: No valid session ID provided"),
    # TypeScript SDK's older examples, and all that was copied from them.
    "400-rpc": rpc_reply(400, -32000, "Bad Request: No valid session ID provided"),
    # rmcp until 0.16; no `WWW-Authenticate`, so it is not about authentication.
    "rmcp-401": Reply(401, "Unauthorized: Session not found"),
    # npm mcp-proxy 6.7.16 with `authenticate`: it looks like a bad token.
    "401-bearer": Reply(
        401,
        _echoing(-32000, "Unauthorized: No valid session ID provided"),
        headers={"www-authenticate": 'Bearer error="invalid_token"'},
    ),
    # Go SDK 0.2.
    "410": Reply(410, "session terminated\n", TEXT),
    # anubis before 1.0: an event that carries the error.
    "200-sse-error": Reply(200, _sse_error, "text/event-stream"),
    # keryx: an event that is no JSON-RPC.
    "200-sse-text": Reply(
        200, 'event: message\ndata: {"error":"Session not found"}\n\n', "text/event-stream"
    ),
    "200-json-error": rpc_reply(200, -32600, "Session not found"),
    # rmcp, when the session ends while the request is looked at.
    "500-race": Reply(
        500, lambda seen: f"Encounter an error when get session: Session not found: {seen.session_id}"
    ),
}


def _refuses_version(seen: SeenRequest) -> Mapping[str, Any]:
    known = "2024-11-05, 2025-03-26, 2025-06-18, 2025-11-25"
    asked = seen.protocol_version
    message = f"Bad Request: Unsupported protocol version: {asked}. Supported versions: {known}"
    return rpc_error(-32600, message, "server-error")


def _older_only(seen: SeenRequest) -> Mapping[str, Any]:
    result = {"supportedVersions": ["2025-06-18", "2025-11-25"], "capabilities": dict[str, Any]()}
    return {"jsonrpc": "2.0", "id": seen.rpc_id, "result": result}


DISCOVER_DIALECTS: Mapping[str, Reply] = {
    # A server that looks neither at the version nor for a session.
    "200-32601": Reply(200, _echoing(-32601, "Method not found")),
    # Python SDK 1.x with sessions: the id in the header is one of a session that never was.
    "400-session": Reply(
        400,
        rpc_error(-32600, "Bad Request: Missing session ID", "server-error"),
        headers={"mcp-session-id": "5e551047e5551047e5551047e5551047"},
    ),
    # TypeScript SDK's examples with sessions, and all that was copied from them.
    "400-rpc": rpc_reply(400, -32000, "Bad Request: No valid session ID provided"),
    # TypeScript SDK with sessions, asked before `initialize`.
    "400-initialized": rpc_reply(400, -32000, "Bad Request: Server not initialized"),
    # Python SDK 1.x and TypeScript SDK without sessions.
    "400-version": Reply(400, _refuses_version),
    # Envoy's gateway.
    "400-text": Reply(400, "missing session ID", TEXT),
    # A router that knows methods, but not this one.
    "404-32601": Reply(404, _echoing(-32601, "Method not found")),
    "404-empty": Reply(404),
    "404-html": Reply(404, HTML_404, "text/html; charset=utf-8"),
    # Go SDK with sessions: it answers, and names only versions that need the handshake.
    "200-older": Reply(200, _older_only),
}
"""How servers of the versions with sessions answer `server/discover`."""
