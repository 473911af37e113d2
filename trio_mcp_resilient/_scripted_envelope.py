"""What protocol 2026-07-28 asks of every request: the envelope in `_meta`, and header fields that repeat it.

The order of the checks and the words of the errors are those of the SDK's server.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from trio_mcp_resilient._scripted_dialects import Reply, rpc_error
from trio_mcp_resilient._scripted_records import SeenRequest

MODERN_VERSIONS = ("2026-07-28",)
NAMESPACE = "io.modelcontextprotocol/"
VERSION_KEY = f"{NAMESPACE}protocolVersion"
CLIENT_INFO_KEY = f"{NAMESPACE}clientInfo"
CAPABILITIES_KEY = f"{NAMESPACE}clientCapabilities"
LOG_LEVEL_KEY = f"{NAMESPACE}logLevel"
SERVER_INFO_KEY = f"{NAMESPACE}serverInfo"
SUBSCRIPTION_KEY = f"{NAMESPACE}subscriptionId"

INVALID_PARAMS = -32602
METHOD_NOT_FOUND = -32601
HEADER_MISMATCH = -32020
MISSING_CAPABILITY = -32021
UNSUPPORTED_VERSION = -32022
HTTP_STATUS = {
    -32700: 400,
    -32600: 400,
    INVALID_PARAMS: 400,
    METHOD_NOT_FOUND: 404,
    HEADER_MISMATCH: 400,
    MISSING_CAPABILITY: 400,
    UNSUPPORTED_VERSION: 400,
}
"""The status that goes with an error, unless an event stream has begun before; 200 for all others."""
NAMED_BY = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
"""Which parameter `Mcp-Name` repeats, by method."""
SENTINEL = ("=?base64?", "?=")


@dataclass(frozen=True)
class Rejection:
    """What is wrong with a request."""

    what: str
    """`envelope`, `header` or `version`."""
    code: int
    message: str
    data: Any = None

    def reply(self, seen: SeenRequest) -> Reply:
        """Return the answer that says so."""
        error = rpc_error(self.code, self.message, seen.rpc_id, self.data)
        return Reply(HTTP_STATUS[self.code], error)


def meta_of(seen: SeenRequest) -> Mapping[str, Any]:
    """Return the `_meta` of a request; empty if it has none."""
    meta = seen.params.get("_meta")
    return cast("Mapping[str, Any]", meta) if isinstance(meta, Mapping) else {}


def unsupported(requested: Any, versions: Sequence[str]) -> Rejection | None:
    """Return what refuses a version, or None if it is one of those."""
    if requested in versions:
        return None
    data = {"supported": list(versions), "requested": requested}
    return Rejection("version", UNSUPPORTED_VERSION, "Unsupported protocol version", data)


def reject(seen: SeenRequest, versions: Sequence[str], input_schema: Mapping[str, Any]) -> Rejection | None:
    """Return what is wrong with a request, or None if it may run.

    Args:
        seen: a JSON-RPC request.
        versions: the versions of this era that are spoken here.
        input_schema: that of the tool that is called; else empty.
    """
    meta = meta_of(seen)
    missing = [key for key in (VERSION_KEY, CAPABILITIES_KEY) if key not in meta]
    if missing:
        message = f"params._meta is missing the required envelope key(s): {', '.join(missing)}"
        return Rejection("envelope", INVALID_PARAMS, message)
    version = meta[VERSION_KEY]
    return (
        _mismatch(seen, version) or unsupported(version, versions) or _parameter_mismatch(seen, input_schema)
    )


def _mismatch(seen: SeenRequest, version: Any) -> Rejection | None:
    if seen.protocol_version != version:
        return _wrong_header("mcp-protocol-version", "request envelope's protocol version")
    if seen.headers.get("mcp-method") != seen.rpc_method:
        return _wrong_header("mcp-method", "request body's method")
    key = NAMED_BY.get(str(seen.rpc_method))
    named = None if key is None else seen.params.get(key)
    if named is not None and decoded(seen.headers.get("mcp-name")) != named:
        return _wrong_header("mcp-name", f"request body's {key!r} parameter")
    return None


def _parameter_mismatch(seen: SeenRequest, input_schema: Mapping[str, Any]) -> Rejection | None:
    for path, header in _mirrored(input_schema, ()):
        value = _value_at(seen.params.get("arguments"), path)
        sent = seen.headers.get(f"mcp-param-{header.lower()}")
        argument = f"request body's {'.'.join(path)!r} argument"
        if (value is None) != (sent is None) or (value is not None and not _same(value, decoded(sent))):
            return _wrong_header(f"Mcp-Param-{header}", argument)
    return None


def _wrong_header(header: str, said: str) -> Rejection:
    return Rejection("header", HEADER_MISMATCH, f"{header} header does not match the {said}")


def _mirrored(schema: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield where the parameters are that a header field repeats, and the name of the field."""
    properties: Mapping[str, Any] = schema.get("properties") or {}
    for name, inner in properties.items():
        if "x-mcp-header" in inner:
            yield (*path, name), str(inner["x-mcp-header"])
        yield from _mirrored(inner, (*path, name))


def _value_at(arguments: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        arguments = cast("Mapping[str, Any]", arguments).get(name) if isinstance(arguments, Mapping) else None
    return arguments


def _same(value: Any, sent: str | None) -> bool:
    if isinstance(value, bool):
        return sent == str(value).lower()
    if isinstance(value, int) and sent is not None:
        # Numbers are compared as such: 42 and 42.0 are the same integer.
        whole, _, fraction = sent.partition(".")
        return whole == str(value) and not fraction.strip("0")
    return sent == str(value)


def decoded(value: str | None) -> str | None:
    """Return a header's value as it was before it was made fit for a header; None if it is malformed."""
    before, after = SENTINEL
    if value is None or not (value.startswith(before) and value.endswith(after)):
        return value
    try:
        return base64.b64decode(value[len(before) : -len(after)], validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None
