"""What is wrong with a request before its session is even looked at."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from urllib.parse import urlsplit

from trio_mcp_resilient._scripted_dialects import Reply, rpc_reply
from trio_mcp_resilient._scripted_records import SeenRequest

JSON = "application/json"
EVENT_STREAM = "text/event-stream"
ACCEPTED = {"POST": (JSON, EVENT_STREAM), "GET": (EVENT_STREAM,)}
"""What a client must accept, by HTTP method."""


def refuse(
    seen: SeenRequest,
    *,
    path: str,
    offered: Sequence[str],
    hosts: Collection[str] | None,
) -> Reply | None:
    """Return what refuses a request, or None if its session may be looked at.

    Args:
        seen: the request.
        path: the only path there is.
        offered: the HTTP methods there are.
        hosts: names that `Host` and `Origin` may have; None for any.
    """
    return (
        _refuse_host(seen, hosts)
        or _refuse_method(seen, path, offered)
        or _refuse_accept(seen)
        or (_refuse_body(seen) if seen.http_method == "POST" else None)
    )


def _refuse_host(seen: SeenRequest, hosts: Collection[str] | None) -> Reply | None:
    if hosts is None:
        return None
    host = f"//{seen.headers.get('host', '')}"
    if urlsplit(host).hostname not in hosts:
        return Reply(421, "Invalid Host header")
    origin = seen.headers.get("origin")
    if origin is not None and urlsplit(origin).hostname not in hosts:
        return Reply(403, "Invalid Origin header")
    return None


def _refuse_method(seen: SeenRequest, path: str, offered: Sequence[str]) -> Reply | None:
    if urlsplit(seen.target).path != path:
        return Reply(404, "Not Found", "text/plain")
    if seen.http_method not in offered:
        return rpc_reply(405, -32000, "Method not allowed.", allow=", ".join(offered))
    return None


def _refuse_accept(seen: SeenRequest) -> Reply | None:
    accept = seen.headers.get("accept", "")
    if "*/*" in accept or all(kind in accept for kind in ACCEPTED.get(seen.http_method, ())):
        return None
    return rpc_reply(406, -32600, "Not Acceptable")


def _refuse_body(seen: SeenRequest) -> Reply | None:
    if not seen.headers.get("content-type", "").startswith(JSON):
        return rpc_reply(415, -32600, "Unsupported Media Type: Content-Type must be application/json")
    if seen.message is None:
        return rpc_reply(400, -32700, "Parse error")
    if not isinstance(seen.message, Mapping):
        # Batches came with one version of the protocol and left with the next.
        return rpc_reply(400, -32600, "Invalid Request")
    return None


def refuse_version(seen: SeenRequest, versions: Sequence[str]) -> Reply | None:
    """Return what refuses a request on a session that is known, if its version is not spoken here.

    SDK servers look for the session first: after a redeploy that speaks less, an old session is lost.
    """
    # `initialize` negotiates the version, so what its header says does not count.
    version = seen.protocol_version
    if version is None or version in versions or seen.rpc_method == "initialize":
        return None
    known = ", ".join(versions)
    return rpc_reply(400, -32000, f"Bad Request: Unsupported protocol version: {version} ({known})")
