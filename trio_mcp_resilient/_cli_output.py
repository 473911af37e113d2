"""How a command ends and what it prints: exit statuses, one line for an error, one JSON text for machines.

What goes to stdout is the result; everything else goes to stderr.
"""

from __future__ import annotations

import enum
import importlib.util
import json
import re
import sys
from typing import Any

from mcp.shared.exceptions import MCPError
from pydantic import ValidationError

from trio_mcp_resilient._errors import OutcomeUnknown, RequestRefused, ResilientError
from trio_mcp_resilient._secrets import redact

PROGRAM = "trio-mcp"
LINE = 800
"""Characters of the longest error: our own have three clauses, and what a server says has no end."""

Data = dict[str, Any]
"""What a command found out, as `--json` prints it; people are shown the same."""


class Exit(enum.IntEnum):
    """The exit statuses."""

    OK = 0
    SAID_NO = 1
    """The server answered with an error, or the tool did (`isError`); something is to be mended."""
    USAGE = 2
    """The command line makes no sense, or the extra `cli` is missing."""
    UNREACHABLE = 3
    """No session could be had, or no answer came, and nothing was executed."""
    OUTCOME_UNKNOWN = 4
    """The call may have run."""
    INTERRUPTED = 130
    """Ctrl-C. What a shell expects: 128 and the signal's number, like the next two."""
    NOBODY_READS = 141
    """Whoever read the output has gone."""
    TERMINATED = 143
    """SIGTERM."""


class UsageError(Exception):
    """The command line makes no sense; the message says why and quotes no secret."""


class NoAnswer(Exception):
    """The time that `--timeout` gave is over."""

    def __init__(self, message: str, *, executed: bool | None) -> None:
        super().__init__(message)
        self.executed = executed


class BadAnswer(Exception):
    """The server answered, and not as MCP asks for."""


def exit_of(error: Exception) -> Exit:
    """Return the status for what ended a command."""
    if isinstance(error, UsageError):
        return Exit.USAGE
    # `RequestRefused` is a `ResilientError` as well, and an answer.
    if isinstance(error, RequestRefused | BadAnswer) or not isinstance(error, ResilientError | NoAnswer):
        return Exit.SAID_NO
    may_have_run = isinstance(error, OutcomeUnknown) or error.executed is None
    return Exit.OUTCOME_UNKNOWN if may_have_run else Exit.UNREACHABLE


EXPECTED = (UsageError, NoAnswer, BadAnswer, ResilientError, MCPError, ValidationError)
"""What ends a command with one line. Anything else is a bug, and shows its traceback."""


def describe(error: Exception) -> str:
    """Return one line about an error, with its cause and without anything secret or untypable."""
    if isinstance(error, ValidationError):
        # Its own words quote the answer.
        text = f"the server's answer is not MCP's {error.title}: {error.error_count()} fault(s)"
    elif isinstance(error, MCPError) and not isinstance(error, ResilientError):
        # The server's words, which no one has looked at yet.
        text = f"the server said: {redact(error.message)} (code {error.code})"
    else:
        text = str(error)
    line = clean(" ".join(text.split()))
    return line if len(line) <= LINE else f"{line[: LINE - 1]}…"


def failure(error: Exception) -> Data:
    """Return what `--json` prints of an error."""
    told: Data = {"kind": type(error).__name__, "message": describe(error)}
    if isinstance(error, ResilientError | NoAnswer):
        told["executed"] = error.executed
    elif isinstance(error, MCPError):
        told["code"] = error.code
    return {"ok": False, "error": told}


def print_json(data: Data, *, indent: int | None = 2) -> None:
    """Print one JSON text. It is ASCII, so that nothing in it can steer a terminal."""
    print(json.dumps(data, indent=indent), flush=True)


def say(line: str) -> None:
    """Print one line for people, on stderr."""
    print(f"{PROGRAM}: {line}", file=sys.stderr, flush=True)


STEERING = re.compile(
    # Controls but for tab and newline, and what turns the direction of text; half of a surrogate pair
    # cannot even be encoded.
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def clean(text: str) -> str:
    """Return a server's text with what could steer a terminal made visible instead."""
    return STEERING.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def has_view() -> bool:
    """Whether the library that shows things to people is installed: the extra `cli`."""
    return importlib.util.find_spec("rich") is not None
