"""Making a session of the legacy era: initialize, judge the answer, say initialized."""

from __future__ import annotations

from typing import Any

from mcp_types.version import LATEST_HANDSHAKE_VERSION

from trio_mcp_resilient._answers import Cursor, header, media_type, read_answer, read_excerpt
from trio_mcp_resilient._detector import Verdict, classify, excerpt
from trio_mcp_resilient._endpoint import Endpoint
from trio_mcp_resilient._eras import speaks_otherwise
from trio_mcp_resilient._errors import HandshakeFailed
from trio_mcp_resilient._jsonrpc import (
    Failure,
    Message,
    RequestId,
    Result,
    encode_notification,
    encode_request,
)
from trio_mcp_resilient._session import INITIALIZE_HEADERS, Session, UnusableHandshake
from trio_mcp_resilient._wire import HookFailed, Response, Wire, WireError

RETRYABLE = frozenset({408, 421, 425, 429, 500, 502, 503, 504})
"""Statuses to `initialize` that a later attempt may mend. A handshake changes nothing at the
server, so unlike a call it may be repeated after a 500."""


MAX_RETRY_AFTER = 3600.0
"""What a longer `Retry-After` is read as, in seconds: one answer must not put a client away for weeks."""


class TryAgain(Exception):
    """One attempt failed in a way that a later one may not.

    The message is fit to be shown; `pause` is the wait in seconds the server asked for.
    """

    def __init__(self, message: str, pause: float | None = None) -> None:
        super().__init__(message)
        self.pause = pause


class NotLegacy(HandshakeFailed):
    """The server refused `initialize` in the words of the modern era."""


async def shake_hands(
    wire: Wire, endpoint: Endpoint, params: dict[str, Any], request_id: RequestId
) -> Session:
    """Make one session, or raise saying whether trying again could help.

    Raises:
        TryAgain: the server is down, busy or restarting.
        HandshakeFailed: it answered, and the answer will not change by itself.
    """
    try:
        response = await wire.send(
            "POST", INITIALIZE_HEADERS, encode_request(request_id, "initialize", params)
        )
    except HookFailed as error:
        raise HandshakeFailed(f"{endpoint}: {error}") from error.cause
    except WireError as error:
        raise TryAgain(f"{endpoint}: {error}") from error
    try:
        if not 200 <= response.status < 300:
            raise await _refused(response, endpoint)
        return await _accepted(response, endpoint, request_id)
    except WireError as error:
        raise TryAgain(f"{endpoint}: the answer to initialize broke off: {error}") from error
    finally:
        await response.aclose()


async def say_initialized(wire: Wire, endpoint: Endpoint, session: Session) -> None:
    """Tell the server that the session is in use; it may refuse anything before that.

    Raises:
        TryAgain: the notification did not arrive, or met a server that does not know the
            session (a balancer that sent it elsewhere): the session is of no use.
    """
    try:
        response = await wire.send(
            "POST", session.post_headers, encode_notification("notifications/initialized")
        )
    except WireError as error:
        raise TryAgain(f"{endpoint}: notifications/initialized was not delivered: {error}") from error
    try:
        if response.status < 400:
            return
        body = await read_excerpt(response)
        verdict = classify(
            http_method="POST",
            rpc_method="notifications/initialized",
            session_id_sent=session.id is not None,
            status=response.status,
            content_type=header(response, b"content-type"),
            body=body,
        )
        if verdict is Verdict.SESSION_LOST:
            raise TryAgain(f"{endpoint}: the new session was refused at once, with {response.status}")
        # Anything else is the server's opinion of one notification; calls will tell.
    finally:
        await response.aclose()


async def _accepted(response: Response, endpoint: Endpoint, request_id: RequestId) -> Session:
    answer = await read_answer(response, request_id, nobody, Cursor())
    if isinstance(answer.message, Failure):
        said = f"{endpoint} refused initialize: {excerpt(answer.raw, 'application/json')}"
        is_modern = speaks_otherwise(LATEST_HANDSHAKE_VERSION, response.status, answer.raw)
        raise NotLegacy(said) if is_modern else HandshakeFailed(said)
    if answer.message is None and not answer.raw and media_type(response) == "text/event-stream":
        # A server that shuts down ends its streams cleanly, this one too.
        raise TryAgain(f"{endpoint}: the answer to initialize ended before it came")
    if not isinstance(answer.message, Result):
        raise HandshakeFailed(f"{endpoint} answered initialize with something that is not MCP")
    try:
        return Session.from_answer(answer.message.result, response.headers)
    except UnusableHandshake as error:
        raise HandshakeFailed(f"{endpoint}: {error}") from error


async def _refused(response: Response, endpoint: Endpoint) -> Exception:
    """Say what a refused `initialize` means."""
    body = await read_excerpt(response)
    content_type = header(response, b"content-type")
    verdict = classify(
        http_method="POST",
        rpc_method="initialize",
        session_id_sent=False,
        status=response.status,
        content_type=content_type,
        body=body,
    )
    quoted = excerpt(body, content_type)
    said = f"{endpoint} answered initialize with {response.status}" + (f' "{quoted}"' if quoted else "")
    if speaks_otherwise(LATEST_HANDSHAKE_VERSION, response.status, body):
        return NotLegacy(said)
    if response.status in RETRYABLE or verdict is Verdict.TRANSIENT:
        return TryAgain(said, retry_after(response))
    if verdict is Verdict.AUTH:
        return HandshakeFailed(f"{said}: authentication failed")
    if response.status in (404, 405, 410):
        return HandshakeFailed(f"{said}: is the URL that of an MCP endpoint?")
    if 300 <= response.status < 400:
        return HandshakeFailed(f"{said}: a redirect off its origin is not followed")
    return HandshakeFailed(said)


def retry_after(response: Response) -> float | None:
    """Return the seconds a server asked to wait; a date or nonsense counts as not asked."""
    value = header(response, b"retry-after").strip()
    if not (value.isascii() and value.isdigit()):
        return None
    # `int` refuses 5,000 digits.
    return min(float(value), MAX_RETRY_AFTER)


async def nobody(message: Message) -> None:
    """Before the session stands nothing else is due; a server that chats is not listened to."""
