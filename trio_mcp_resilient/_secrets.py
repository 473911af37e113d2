"""What may be shown of a secret: a fingerprint of one we hold, nothing of one met in a text.

A session id is a bearer secret: whoever reads it in a log can speak on the session.
"""

from __future__ import annotations

import re
from hashlib import blake2s


def fingerprint(secret: str) -> str:
    """Return a short name for a secret, the same in every process: `#` and eight hex digits."""
    return "#" + blake2s(secret.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()


_SECRETS = re.compile(
    r"""
    # What stands after a scheme or a name that announces a secret, however short it is.
    (?P<announced>
        \b (?: authorization ["']? \s* [:=] \s* ["']? )? (?:bearer|basic|dpop) \s+
      | \b session (?: [ _-]? id )? (?: \s with \s id )? ["']? \s* [:=\s] \s* ["']? (?= [^\s"',;]* \d )
      | \b not \s found [:=] \s* ["']? (?= [^\s"',;]* \d )
      | \b (?:\w*token|\w*secret|password|api[_-]?key|authorization|cookie) ["']? \s* [:=] \s* ["']?
    )
    [^\s"',;<>]+
    # UUIDs, hexadecimal and base64 runs, JWTs: long, and no word of a language.
  | (?<![\w-]) (?= [\w-]*\d ) [\w-]{16,} (?: \.[\w-]+ )* =*
  | (?<![\w-]) [\w+/-]{32,} =*
    """,
    re.VERBOSE | re.IGNORECASE,
)


def redact(text: str) -> str:
    """Return `text` with everything that looks like an id or a token replaced by an ellipsis."""
    return _SECRETS.sub(lambda match: f"{match['announced'] or ''}…", text)
