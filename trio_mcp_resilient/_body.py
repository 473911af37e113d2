"""What the body of an answer holds: a JSON-RPC result or error, else the words it says.

Servers frame the same words in a dozen ways: JSON-RPC, JSON-RPC in an event of SSE with any
content type, an error object of their web framework, a serialised exception, plain text. All of
that is taken off here. Nothing is trusted: a body may be truncated, compressed, huge or hostile.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import cast

from pydantic_core import from_json

from trio_mcp_resilient._secrets import one_line
from trio_mcp_resilient._sse import SSEDecoder

PREFIX_BYTES = 64 * 1024
"""How much of a body is looked at: refusals are short, and work must be bounded."""
TEXT_CHARS = 1000
"""How much of a text is judged, and the longest body that counts as a text: a session layer
says one sentence, and what is longer is a page or a stack trace."""

_TEXT_MEMBERS = ("error", "code", "title", "message", "detail", "reason", "description", "error_description")
"""Where frameworks put the words of an error, in the order they are joined."""
_NOBODYS_IDS = frozenset({"", "server-error"})
"""What SDKs put in the place of an id when they answer no request in particular."""


@dataclass(frozen=True)
class Said:
    """What a body says, as far as its prefix shows."""

    result: bool = False
    """It holds a result: whatever the words in it are, they are the application's."""
    error: bool = False
    """It holds a JSON-RPC error."""
    code: int | None = None
    """That error's code."""
    echoes_id: bool = False
    """That error names a request: it comes from behind the session layer, or may."""
    chatter: bool = False
    """It holds messages that are no answer, such as progress: something has begun to run."""
    text: str = ""
    """The words of the error, or of a short plain body."""
    page: str = ""
    """The words of an HTML page: fit to recognise a gateway by, and nothing else."""


def read(body: bytes, *, finished: bool) -> Said:
    """Return what the first 64 KiB of a body say.

    Args:
        finished: whether only events that were ended count, as for the client that reads an
            answer. The words of a refusal count even if its last event was cut.
    """
    truncated = len(body) > PREFIX_BYTES
    decoded = _beginning(body)
    text = decoded.strip()
    if text.startswith("<"):
        return Said(page=_page_text(text))
    if text[:1] in _JSON_STARTS:
        # What looks like JSON and is none is not a text either: it may be a result that was cut.
        return _of_values([_parsed(text, partial=truncated)])
    if _FRAMED.match(text):
        return _of_values(list(_events(decoded, ended_only=finished and not truncated, partial=truncated)))
    return Said(text="" if len(text) > TEXT_CHARS else text)


_JSON_STARTS = ("{", "[", '"')
_FRAMED = re.compile(r"(?:event|data|id|retry)?:")


def _beginning(body: bytes) -> str:
    # `bytes` because a slice of a subclass may be anything.
    return _decoded(bytes(body[:PREFIX_BYTES])).lstrip().lstrip("\ufeff").lstrip()


def _decoded(raw: bytes) -> str:
    """Decode what may be UTF-16, as some frameworks of Windows send; else UTF-8 with replacements."""
    if raw[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return raw.decode("utf-16", "replace")
    # Every text of interest begins with two characters of ASCII (RFC 4627, section 3).
    if len(raw) > 1 and raw[1] == 0 != raw[0]:
        return raw.decode("utf-16-le", "replace")
    if len(raw) > 1 and raw[0] == 0 != raw[1]:
        return raw.decode("utf-16-be", "replace")
    return raw.decode("utf-8", "replace")


def _parsed(text: str, *, partial: bool) -> object:
    try:
        # The members before the cut show what it is; depth and size are bounded by the parser.
        return from_json(
            text.encode("utf-8", "replace"), allow_partial="trailing-strings" if partial else "off"
        )
    except ValueError:
        return None


def _events(text: str, *, ended_only: bool, partial: bool) -> Iterator[object]:
    raw = text.encode("utf-8", "replace")
    for event in SSEDecoder().feed(raw if ended_only else raw + b"\n\n"):
        data = event.data.decode("utf-8", "replace").strip()
        if data[:1] in _JSON_STARTS:
            yield _parsed(data, partial=partial)
        else:
            yield data[: TEXT_CHARS + 1]


def _of_values(values: list[object]) -> Said:
    """Judge the values of all events, or of a body's one JSON text; batches are opened."""
    members: list[object] = []
    for value in values:
        members += cast("list[object]", value) if isinstance(value, list) else [value]
    said = [_of_value(member) for member in members]
    chatter = any(one.chatter for one in said)
    # A result outweighs an error, and an error in an envelope outweighs loose words.
    best = max(said, key=lambda one: (one.result, one.error, bool(one.text)), default=Said())
    return replace(best, chatter=chatter)


def _of_value(value: object) -> Said:
    if isinstance(value, str):
        return Said(text="" if len(value) > TEXT_CHARS else value)
    if not isinstance(value, dict):
        return Said()
    members = cast("dict[str, object]", value)
    if isinstance(members.get("method"), str):
        return Said(chatter=True)
    result = members.get("result")
    if result is not None and ("jsonrpc" in members or isinstance(result, dict)):
        return Said(result=True)
    error = members.get("error")
    if "jsonrpc" in members and isinstance(error, dict):
        return _of_error(cast("dict[str, object]", error), members.get("id"))
    nested = cast("dict[str, object]", error) if isinstance(error, dict) else {}
    return Said(text="\n".join([*_texts(members), *_texts(nested)])[:TEXT_CHARS])


def _of_error(error: dict[str, object], request_id: object) -> Said:
    code, message = error.get("code"), error.get("message")
    return Said(
        error=True,
        code=code if isinstance(code, int) and not isinstance(code, bool) else None,
        echoes_id=isinstance(request_id, str | int) and request_id not in _NOBODYS_IDS,
        text=message[:TEXT_CHARS] if isinstance(message, str) else "",
    )


def _texts(members: dict[str, object]) -> Iterator[str]:
    for name in _TEXT_MEMBERS:
        value = members.get(name)
        if isinstance(value, str):
            yield value[:TEXT_CHARS]


# Excerpts

_EXCERPT_SOURCE_CHARS = 8 * 1024
_HIDDEN = re.compile(r"<(script|style|head)\b.*?(?:</\1\s*>|\Z)|<!--.*?(?:-->|\Z)", re.DOTALL | re.IGNORECASE)
_TAG = re.compile(r"<[^<>]*(?:>|\Z)")
_NO_CHARACTER = re.compile(r"&#0*[1-9][0-9]{7,};?")
"""Beyond Unicode. `html.unescape` makes a number of the digits first, and `int` refuses 5,000."""


def _page_text(text: str) -> str:
    visible = _TAG.sub(" ", _HIDDEN.sub(" ", text[:_EXCERPT_SOURCE_CHARS]))
    return " ".join(html.unescape(_NO_CHARACTER.sub("\ufffd", visible)).split())[:TEXT_CHARS]


def excerpt(body: bytes, content_type: str = "", limit: int = 200) -> str:
    """Return the beginning of a body on one printable line, fit for error texts.

    Of a JSON-RPC error it is the message; tags of HTML are left out; and whatever looks like an id
    or a token is an ellipsis.

    Args:
        content_type: names HTML whose beginning does not look like it; else it may be empty.
        limit: the most characters to return.
    """
    shorten = _remembered_excerpt if is_worth_remembering(body) else _excerpt
    return shorten(body, "html" in content_type.lower(), limit)


def _excerpt(body: bytes, is_page: bool, limit: int) -> str:
    said = read(body, finished=False)
    text = _beginning(body)[:_EXCERPT_SOURCE_CHARS]
    if said.error and said.text:
        # The envelope would fill the line and say nothing.
        text = said.text if said.code is None else f"{said.text} (code {said.code})"
    elif is_page or text.startswith("<"):
        text = _page_text(text)
    return one_line(text, limit)


# What is remembered. Those who lose one session are refused in the same words.

REMEMBERED_BYTES = 2048
"""The longest body that is remembered with what it was found to mean."""
REMEMBERED = 32
"""How many of them; only a server that words each refusal differently has more."""


def is_worth_remembering(body: bytes) -> bool:
    """Return whether a body is one to remember: short, and no subclass that compares as it likes."""
    return type(body) is bytes and len(body) <= REMEMBERED_BYTES


_remembered_excerpt = lru_cache(REMEMBERED)(_excerpt)
