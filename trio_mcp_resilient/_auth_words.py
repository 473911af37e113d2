"""What may be said of an OAuth flow of the SDK's: nothing that it quotes of an answer.

An answer of an authorization server has tokens in it. A flow that fails over one puts it, whole, into
its error and into its log.
"""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

from trio_mcp_resilient._secrets import redact

SDK_LOGGER = "mcp.client.auth"

_driven: ContextVar[bool] = ContextVar("driven", default=False)


def without_secrets(error: Exception) -> Exception:
    """Return an error of the SDK's without what it quotes.

    What the application's own handlers raise is the application's, and passes as it is.
    """
    from mcp.client.auth import OAuthFlowError, OAuthRegistrationError, OAuthTokenError
    from pydantic import ValidationError

    if isinstance(error, ValidationError):
        return OAuthFlowError(f"an answer of the authorization server is no valid {error.title}")
    for kind in (OAuthTokenError, OAuthRegistrationError, OAuthFlowError):
        if isinstance(error, kind):
            return kind(redact(str(error)))
    return error


def said_of(error: Exception) -> str:
    """Return an error's kind and words, without secrets."""
    error = without_secrets(error)
    return f"{type(error).__name__}: {redact(str(error))}"


@contextmanager
def unquoted() -> Generator[None]:
    """Let the SDK's logger quote nothing, while the block runs and for this task alone."""
    token = _driven.set(True)
    try:
        yield
    finally:
        _driven.reset(token)


def watch_the_sdk() -> None:
    """Put the filter that `unquoted` needs on the SDK's loggers. Idempotent."""
    # A filter of a logger does not see what the loggers below it take.
    for name in list(logging.root.manager.loggerDict):
        if name == SDK_LOGGER or name.startswith(f"{SDK_LOGGER}."):
            logging.getLogger(name).addFilter(_take_quotes_out)


def _take_quotes_out(record: logging.LogRecord) -> bool:
    if _driven.get():
        said, error = redact(record.getMessage()), record.exc_info[1] if record.exc_info else None
        record.msg = f"{said}: {said_of(error)}" if isinstance(error, Exception) else said
        # A traceback ends in the words of its error, and of those that it came from.
        record.args, record.exc_info, record.exc_text = (), None, None
    return True
