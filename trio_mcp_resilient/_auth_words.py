"""What may be said of an OAuth flow of the SDK's: no token of an answer that it quotes.

A flow that fails over an answer of an authorization server puts it, whole, into its error and into
its log.
"""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

import trio

from trio_mcp_resilient._secrets import one_line

SDK_LOGGER = "mcp.client.auth"

MAX_CHARS = 1000
"""How much of its words is kept: an answer may be a megabyte."""

_driving: ContextVar[trio.lowlevel.Task | None] = ContextVar("driving", default=None)
"""The task that drives a flow. What the flow's handlers start inherits this, and is another task."""


def without_secrets(error: Exception) -> Exception:
    """Return an error of the SDK's without the tokens that it quotes.

    What the application's own handlers raise is the application's, and passes as it is.
    """
    from mcp.client.auth import OAuthFlowError, OAuthRegistrationError, OAuthTokenError
    from pydantic import ValidationError

    if isinstance(error, ValidationError):
        return OAuthFlowError(f"an answer of the authorization server is no valid {error.title}")
    for kind in (OAuthTokenError, OAuthRegistrationError, OAuthFlowError):
        if isinstance(error, kind):
            return kind(one_line(str(error), MAX_CHARS))
    return error


def said_of(error: Exception) -> str:
    """Return an error's kind and words, without secrets."""
    error = without_secrets(error)
    return f"{type(error).__name__}: {one_line(str(error), MAX_CHARS)}"


@contextmanager
def unquoted() -> Generator[None]:
    """Let the SDK's logger quote no tokens, while the block runs and for this task alone."""
    token = _driving.set(trio.lowlevel.current_task())
    try:
        yield
    finally:
        _driving.reset(token)


def watch_the_sdk() -> None:
    """Put the filter that `unquoted` needs on the SDK's loggers. Idempotent."""
    # A filter of a logger does not see what the loggers below it take.
    for name in list(logging.root.manager.loggerDict):
        if name == SDK_LOGGER or name.startswith(f"{SDK_LOGGER}."):
            logging.getLogger(name).addFilter(_take_quotes_out)


def _drives_here() -> bool:
    try:
        return _driving.get() is trio.lowlevel.current_task()
    except RuntimeError:
        # A thread of a handler's, which inherits the variable as well.
        return False


def _take_quotes_out(record: logging.LogRecord) -> bool:
    if _drives_here():
        said = one_line(record.getMessage(), MAX_CHARS)
        error = record.exc_info[1] if record.exc_info else None
        record.msg = f"{said}: {said_of(error)}" if isinstance(error, Exception) else said
        # A traceback ends in the words of its error, and of those that it came from.
        record.args, record.exc_info, record.exc_text = (), None, None
    return True
