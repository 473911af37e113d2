"""Making a session of the modern era: `server/discover`, and what its answer says of the era."""

from __future__ import annotations

from collections.abc import Callable

from mcp_types import UNSUPPORTED_PROTOCOL_VERSION
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS

from trio_mcp_resilient._answers import Cursor, header, read_answer, read_excerpt
from trio_mcp_resilient._detector import Verdict, classify, excerpt
from trio_mcp_resilient._endpoint import Endpoint
from trio_mcp_resilient._envelope import Introduction, routing_headers
from trio_mcp_resilient._eras import supported_versions
from trio_mcp_resilient._errors import HandshakeFailed
from trio_mcp_resilient._handshake import TryAgain, nobody, retry_after
from trio_mcp_resilient._jsonrpc import Failure, InvalidMessage, RequestId, Result, decode, encode_request
from trio_mcp_resilient._secrets import one_line
from trio_mcp_resilient._session import ANSWER_TYPES, JSON_TYPE, VERSION_HEADER, Session, UnusableHandshake
from trio_mcp_resilient._wire import HookFailed, Response, Wire, WireError

DISCOVER = "server/discover"


class NotModern(Exception):
    """The server showed no sign of the modern era. The message is fit to be shown."""


class NoAnswer(NotModern):
    """The request left whole and nothing came of it, which is no sign of either era."""


async def discover(
    wire: Wire, endpoint: Endpoint, introduction: Introduction, version: str, next_id: Callable[[], RequestId]
) -> Session:
    """Ask what the server offers, first at `version`, then at one that it names.

    Raises:
        TryAgain: the server is down, busy or restarting.
        NotModern: anything but positive evidence of the modern era.
        HandshakeFailed: it is of that era, and shares no version with this client.
    """
    answer = await _ask(wire, endpoint, introduction, version, next_id())
    if isinstance(answer, Failure) and answer.code == UNSUPPORTED_PROTOCOL_VERSION:
        supported = supported_versions(answer.data) or []
        mutual = [known for known in MODERN_PROTOCOL_VERSIONS if known in supported]
        if mutual:
            answer = await _ask(wire, endpoint, introduction, mutual[-1], next_id())
        elif supported and not any(known in HANDSHAKE_PROTOCOL_VERSIONS for known in supported):
            raise HandshakeFailed(
                f"{endpoint} speaks {one_line(', '.join(supported), 100)} only, which this client does not"
            )
    if isinstance(answer, Failure):
        raise NotModern(f"{endpoint} refused {DISCOVER}: {one_line(answer.message)} (code {answer.code})")
    try:
        return Session.from_discovery(answer.result, introduction)
    except UnusableHandshake as error:
        raise NotModern(f"{endpoint}: {error}") from error


async def _ask(
    wire: Wire, endpoint: Endpoint, introduction: Introduction, version: str, request_id: RequestId
) -> Result | Failure:
    headers = (
        ANSWER_TYPES,
        JSON_TYPE,
        (VERSION_HEADER, version.encode("ascii")),
        *routing_headers(DISCOVER, {}),
    )
    body = encode_request(request_id, DISCOVER, {"_meta": introduction.envelope(version)})
    try:
        response = await wire.send("POST", headers, body)
    except HookFailed as error:
        raise HandshakeFailed(f"{endpoint}: {error}") from error.cause
    except WireError as error:
        raise _broken(endpoint, error) from error
    try:
        if not 200 <= response.status < 300:
            return await _refused(response, endpoint)
        answer = await read_answer(response, request_id, nobody, Cursor())
    except WireError as error:
        raise _broken(endpoint, error) from error
    finally:
        await response.aclose()
    if answer.message is None:
        raise NotModern(f"{endpoint} answered {DISCOVER} with something else")
    return answer.message


def _broken(endpoint: Endpoint, error: WireError) -> Exception:
    # Some legacy servers hang up on what they do not know; a server that is down takes no request.
    if error.stage.certainly_not_executed:
        return TryAgain(f"{endpoint}: {error}")
    return NoAnswer(f"{endpoint}: the answer to {DISCOVER} broke off: {error}")


async def _refused(response: Response, endpoint: Endpoint) -> Failure:
    """Return the JSON-RPC error of a refusal, or raise what a refusal without one means."""
    body, content_type = await read_excerpt(response), header(response, b"content-type")
    try:
        failure = next((message for message in decode(body) if isinstance(message, Failure)), None)
    except InvalidMessage:
        failure = None
    if failure is not None:
        return failure
    quoted = excerpt(body, content_type)
    said = f"{endpoint} answered {DISCOVER} with {response.status}" + (f' "{quoted}"' if quoted else "")
    verdict = classify(
        http_method="POST",
        rpc_method=DISCOVER,
        session_id_sent=False,
        status=response.status,
        content_type=content_type,
        body=body,
    )
    if verdict is Verdict.TRANSIENT:
        raise TryAgain(said, retry_after(response))
    raise NotModern(said)
