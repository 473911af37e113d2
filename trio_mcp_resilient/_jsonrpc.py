"""JSON-RPC 2.0 messages, from bytes and to bytes.

`pydantic_core` parses and writes several times faster than `json`, and comes with the SDK. Its
parser takes at most 200 levels of nesting and integers of 4,300 digits, so no input is costly out
of proportion to its length. As everywhere in Python, the last value of a duplicate key counts, and
1e999 is an infinity; the bare words NaN and Infinity are refused, for JSON does not have them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from pydantic_core import from_json, to_json

MAX_BATCH = 10_000
"""How many members a batch may have: each costs a thousand times what its three bytes cost the sender."""
MAX_ID_CHARS = 1024
"""The longest id of a server's request: it is kept, and sent back."""

RequestId = str | int
"""What correlates an answer with its request; never a bool, which would alias 0 and 1."""


class InvalidMessage(ValueError):
    """Bytes that are no JSON-RPC message. The text says where, and quotes nothing."""


@dataclass(frozen=True, slots=True)
class Request:
    """Asks for an answer."""

    id: RequestId
    method: str
    params: dict[str, Any] | None = None
    size: int = field(default=0, compare=False, repr=False)
    """About how many bytes it had on the wire; what waits to be handled is bounded by it."""


@dataclass(frozen=True, slots=True)
class Notification:
    """Asks for nothing."""

    method: str
    params: dict[str, Any] | None = None
    size: int = field(default=0, compare=False, repr=False)
    """As that of a request."""


@dataclass(frozen=True, slots=True)
class Result:
    """Answers a request with what it asked for."""

    id: RequestId
    result: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Failure:
    """Answers a request with an error."""

    id: RequestId | None
    """None if the server could not read the request's id, or did not care to echo it."""
    code: int
    message: str
    data: Any = None


Message = Request | Notification | Result | Failure


def matches(a: RequestId | None, b: RequestId | None) -> bool:
    """Return whether two ids mean the same request.

    "7" and 7 do: some servers echo an id as a string, and the SDKs correlate it all the same.
    No id means no request, so None matches nothing.
    """
    if a is None or b is None:
        return False
    return a == b or _coerced(a) == _coerced(b)


def _coerced(request_id: RequestId) -> RequestId:
    if isinstance(request_id, str):
        try:
            return int(request_id)
        except ValueError:
            pass
    return request_id


# Decoding


def decode(data: bytes | str) -> list[Message]:
    """Return the messages of one JSON text: one, or as many as a batch holds.

    Protocol version 2025-03-26 has batches. A member of one that is no message is left out,
    for it must not cost the others (JSON-RPC 2.0, section 6).

    Raises:
        InvalidMessage: it is not JSON, or holds no message, or more than `MAX_BATCH`.
    """
    value = _parse(data)
    if not isinstance(value, list):
        return [_message(value, len(data))]
    members = cast("list[object]", value)
    if len(members) > MAX_BATCH:
        raise InvalidMessage(f"a batch of more than {MAX_BATCH} members")
    messages: list[Message] = []
    for member in members:
        try:
            messages.append(_message(member, len(data) // len(members)))
        except InvalidMessage:
            continue
    if not messages:
        raise InvalidMessage("a batch without a message")
    return messages


def _parse(data: bytes | str) -> object:
    raw = data.encode("utf-8", "replace") if isinstance(data, str) else data
    # RFC 8259, section 8.1, lets a parser ignore the mark that no sender may write.
    raw = raw.removeprefix(b"\xef\xbb\xbf")
    try:
        return from_json(raw, allow_inf_nan=False)
    except ValueError as error:
        mended = _mended(raw)
        if mended == raw:
            raise InvalidMessage(f"not JSON: {error!s:.100}") from None
    try:
        return from_json(mended, allow_inf_nan=False)
    except ValueError as error:
        raise InvalidMessage(f"not JSON: {error!s:.100}") from None


_ESCAPE = re.compile(
    # Everything between two surrogates in one match: a hostile text is all escapes, and a match for
    # each would take seconds.
    rb"(?:[^\\]++|\\[^u]|\\u(?![dD][89a-fA-F]))++"
    rb"|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|(?P<lone>\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
)


def _mended(raw: bytes) -> bytes:
    """Put U+FFFD where text is not Unicode: an answer cut in the middle of an emoji is an answer.

    JavaScript servers write lone surrogates as escapes, others write broken UTF-8. Browsers read
    both like this. Only strings can hold either, so the structure stays as it was.
    """
    text = raw.decode("utf-8", "replace").encode()
    return _ESCAPE.sub(lambda match: rb"\ufffd" if match["lone"] else match[0], text)


def _message(value: object, size: int) -> Message:
    if not isinstance(value, dict):
        raise InvalidMessage("a message must be a JSON object")
    members = cast("dict[str, Any]", value)
    if members.get("jsonrpc") != "2.0":
        # Gateways of other protocols answer {"error": {"code": ...}} as well.
        raise InvalidMessage('a message must have "jsonrpc": "2.0"')
    # Serializers that write every member write null for the one that is not there.
    if members.get("method") is not None:
        return _call(members, size)
    if members.get("error") is not None:
        return _failure(members)
    result = members.get("result")
    if not isinstance(result, dict):
        raise InvalidMessage("a message must have a method, an object as its result, or an error")
    return Result(_required_id(members), cast("dict[str, Any]", result))


def _call(members: dict[str, Any], size: int) -> Request | Notification:
    method, params = members["method"], members.get("params")
    if not isinstance(method, str):
        raise InvalidMessage("a method must be a string")
    if params is not None and not isinstance(params, dict):
        raise InvalidMessage("params must be an object")
    known = cast("dict[str, Any] | None", params)
    if members.get("id") is None:
        return Notification(method, known, size)
    request_id = _required_id(members)
    if isinstance(request_id, str) and len(request_id) > MAX_ID_CHARS:
        raise InvalidMessage(f"an id of more than {MAX_ID_CHARS} characters")
    return Request(request_id, method, known, size)


def _failure(members: dict[str, Any]) -> Failure:
    if members.get("result") is not None:
        raise InvalidMessage("a message must not have both a result and an error")
    error = members["error"]
    if not isinstance(error, dict):
        raise InvalidMessage("an error must be an object")
    fields = cast("dict[str, Any]", error)
    code, message = fields.get("code"), fields.get("message")
    if not isinstance(code, int) or isinstance(code, bool):
        raise InvalidMessage("an error's code must be an integer")
    text = message if isinstance(message, str) else ""
    request_id = None if members.get("id") is None else _required_id(members)
    return Failure(request_id, code, text, fields.get("data"))


def _required_id(members: dict[str, Any]) -> RequestId:
    request_id = members.get("id")
    if isinstance(request_id, str | int) and not isinstance(request_id, bool):
        return request_id
    raise InvalidMessage("an id must be a string or an integer")


# Encoding


def encode_request(request_id: RequestId, method: str, params: Mapping[str, Any] | None = None) -> bytes:
    """Return the bytes of a request.

    Raises:
        ValueError: `params` hold what JSON cannot: NaN, infinities, lone surrogates, unknown
            types, references in a circle. So do the other `encode_` functions.
    """
    return _encode({"jsonrpc": "2.0", "id": request_id, "method": method}, "params", params)


def encode_notification(method: str, params: Mapping[str, Any] | None = None) -> bytes:
    """Return the bytes of a notification."""
    return _encode({"jsonrpc": "2.0", "method": method}, "params", params)


def encode_result(request_id: RequestId, result: Mapping[str, Any]) -> bytes:
    """Return the bytes of an answer that gives a result."""
    return _encode({"jsonrpc": "2.0", "id": request_id}, "result", result)


def encode_error(request_id: RequestId | None, code: int, message: str, data: Any = None) -> bytes:
    """Return the bytes of an answer that gives an error."""
    error = {"code": code, "message": message}
    return _encode(
        {"jsonrpc": "2.0", "id": request_id}, "error", error if data is None else {**error, "data": data}
    )


def _encode(envelope: dict[str, Any], name: str, value: Mapping[str, Any] | None) -> bytes:
    if value is not None:
        envelope[name] = value
    encoded = to_json(envelope)
    # `to_json` writes floats that JSON has no word for as bare words. Looking for them costs a
    # tenth of what a second serializer would, and text that merely says NaN passes the parser.
    if b"NaN" in encoded or b"Infinity" in encoded:
        try:
            from_json(encoded, allow_inf_nan=False)
        except ValueError:
            raise ValueError(f"{name} hold NaN or an infinity, which JSON has no word for") from None
    return encoded
