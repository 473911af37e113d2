"""What may be shown of a secret: a fingerprint of one we hold, nothing of one met in a text.

A session id is a bearer secret: whoever reads it in a log can speak on the session.
"""

from __future__ import annotations

import re
from hashlib import blake2s
from typing import Any, cast

MIN_QUOTED = 8
"""How long a secret is at least that is looked for in the words of others."""


def fingerprint(secret: str) -> str:
    """Return a short name for a secret, the same in every process: `#` and eight hex digits."""
    return "#" + blake2s(secret.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()


WITH_DIGIT = r"""[^\s"',;]{0,99} \d"""
"""What stands behind a name such as `session`, and is no word: it has a digit."""

# The texts are a server's. So nothing here may be divided in more than one way between two repetitions,
# or be looked for to the end of the text from each place: with a long one that would take for ever.
_SECRETS = re.compile(
    rf"""
    # What stands after a scheme or a name that announces a secret, however short it is.
    (?P<announced>
        \b (?: authorization ["']? \s* [:=] \s* ["']? )? (?:bearer|basic|dpop) \s+
      | \b session (?: [ _-]? id )? (?: \s with \s id )? ["']? (?: \s* [:=] \s* | \s+ ) ["']?
        (?= {WITH_DIGIT} )
      | \b not \s found [:=] \s* ["']? (?= {WITH_DIGIT} )
      | \b (?:\w*token|\w*secret|password|api[_-]?key|authorization|cookie) ["']? \s* [:=] \s* ["']?
    )
    [^\s"',;<>]+
    # UUIDs, hexadecimal and base64 runs, JWTs: long, and no word of a language.
  | (?<![\w-]) (?= [\w-]*\d ) [\w-]{{16,}} (?: \.[\w-]+ )* =*
  | (?<![\w-]) [\w+/-]{{32,}} =*
    """,
    re.VERBOSE | re.IGNORECASE,
)


def redact(text: str) -> str:
    """Return `text` with everything that looks like an id or a token replaced by an ellipsis."""
    return _SECRETS.sub(lambda match: f"{match['announced'] or ''}…", text)


def one_line(text: str, limit: int = 200) -> str:
    """Return somebody else's words on one printable line without secrets, fit for errors and logs.

    Args:
        limit: the most characters to return.
    """
    printable = "".join(char if char.isprintable() else " " for char in text)
    # Redacted before it is cut, lest the first half of a secret look like a word.
    line = redact(" ".join(printable.split()))
    return line if len(line) <= limit else line[: max(limit - 1, 0)] + "…"


def without(secret: str, value: Any) -> Any:
    """Return a JSON value with `secret` replaced by its fingerprint, wherever a text quotes it.

    Args:
        secret: shorter than `MIN_QUOTED` it is left alone: it may be part of any word.
    """
    return value if len(secret) < MIN_QUOTED else _without(secret, fingerprint(secret), value)


def _without(secret: str, shown: str, value: object) -> object:
    if isinstance(value, str):
        return value.replace(secret, shown)
    if isinstance(value, list):
        return [_without(secret, shown, item) for item in cast("list[object]", value)]
    if isinstance(value, dict):
        members = cast("dict[str, object]", value)
        return {key.replace(secret, shown): _without(secret, shown, item) for key, item in members.items()}
    return value
