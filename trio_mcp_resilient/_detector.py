"""The detector: what an HTTP answer says of its request and of the session. One table, no I/O.

A false "session lost" recycles a healthy session and, worse, sends a request again that may have
run. So every row is narrow, and what fits none of them is judged by its status alone, which never
means a loss. `docs/detector.md` shows the table, and is generated from it.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from functools import lru_cache

from trio_mcp_resilient._body import REMEMBERED, Said, is_worth_remembering, read
from trio_mcp_resilient._body import excerpt as excerpt
from trio_mcp_resilient._wording import Sign, signs_of


class Verdict(enum.StrEnum):
    """What an HTTP answer means for the request it answers and for the session."""

    ANSWERED = "answered"
    """The request has its result or its JSON-RPC error, or needs none."""
    SESSION_LOST = "session lost"
    """The session is gone, and the request was certainly not executed."""
    OUTCOME_UNKNOWN = "outcome unknown"
    """The request may have been executed."""
    AUTH = "auth"
    """The credentials were refused; the session may live."""
    TRANSIENT = "transient"
    """Nobody took the request on: certainly not executed, worth trying again after a pause."""
    REFUSED = "refused"
    """The server said no to this request; the session lives."""


class Kind(enum.Enum):
    """What was sent."""

    REQUEST = "request"
    INITIALIZE = "initialize"
    NOTIFICATION = "notification"
    GET = "GET"
    DELETE = "DELETE"


@dataclass(frozen=True)
class Rule:
    """One row: it applies if all of its conditions hold. Empty ones always do."""

    name: str
    verdict: Verdict
    why: str
    """The reason in one line, and where it comes from."""
    statuses: tuple[range, ...] = ()
    kinds: tuple[Kind, ...] = ()
    with_id: bool = False
    """Only if the request carried a session id."""
    all_of: tuple[Sign, ...] = ()
    any_of: tuple[Sign, ...] = ()
    none_of: tuple[Sign, ...] = ()

    def applies(self, kind: Kind, status: int, with_id: bool, signs: frozenset[Sign]) -> bool:
        """Return whether this row judges such an answer."""
        return (
            (not self.statuses or any(status in some for some in self.statuses))
            and (not self.kinds or kind in self.kinds)
            and (with_id or not self.with_id)
            and signs.issuperset(self.all_of)
            and (not self.any_of or not signs.isdisjoint(self.any_of))
            and signs.isdisjoint(self.none_of)
        )


def _only(*statuses: int) -> tuple[range, ...]:
    return tuple(range(status, status + 1) for status in statuses)


SUCCESS, REDIRECT = (range(200, 300),), (range(300, 400),)
CLIENT_ERROR, SERVER_ERROR = (range(400, 500),), (range(500, 600),)
ERROR = (range(400, 600),)

CALLS = (Kind.REQUEST, Kind.INITIALIZE)
POSTS = (*CALLS, Kind.NOTIFICATION)

LOOKUP = (Sign.UNKNOWN_SESSION, Sign.MISSING_ID, Sign.UNINITIALIZED)
"""Said by a session layer that looked for the session before anything else."""
LOSS = (*LOOKUP, Sign.ENDED_SESSION)
"""The last one may also be said of a request that was running."""
ALIVE = (Sign.LIVING_SESSION, Sign.MID_REQUEST)
SOMETHING_ELSE = (*ALIVE, Sign.LOGIN, Sign.ARGUMENT)
"""Words that show that the sentence is about something else than a lost session."""
NOT_THE_LAYER = (Sign.INVALID_PARAMS, Sign.INTERNAL_ERROR)

RULES: tuple[Rule, ...] = (
    # A result is the application's, whatever its text says.
    Rule(
        "result",
        Verdict.ANSWERED,
        "the request ran; texts within a result, `isError` included, are never read",
        SUCCESS,
        POSTS,
        all_of=(Sign.RESULT,),
    ),
    Rule(
        "result with an error status",
        Verdict.OUTCOME_UNKNOWN,
        "contradicts itself, and something seems to have run",
        all_of=(Sign.RESULT,),
    ),
    # 2xx: errors inside.
    Rule(
        "2xx, header named",
        Verdict.SESSION_LOST,
        "an error about the header we did send (servers without HTTP statuses of their own)",
        SUCCESS,
        POSTS,
        with_id=True,
        all_of=(Sign.NAMES_HEADER,),
        any_of=(Sign.UNKNOWN_SESSION, Sign.MISSING_ID),
        none_of=(*SOMETHING_ELSE, Sign.CHATTER),
    ),
    Rule(
        "2xx, server not initialized",
        Verdict.SESSION_LOST,
        "exactly these words: refused before dispatch (anubis before 1.0)",
        SUCCESS,
        POSTS,
        with_id=True,
        all_of=(Sign.ONLY_UNINITIALIZED,),
        none_of=(Sign.CHATTER,),
    ),
    Rule(
        "2xx, nobody's error",
        Verdict.SESSION_LOST,
        "an error of no request in particular, before anything else, says so (onyx, keryx)",
        SUCCESS,
        POSTS,
        with_id=True,
        any_of=LOOKUP,
        none_of=(*SOMETHING_ELSE, *NOT_THE_LAYER, Sign.ENDED_SESSION, Sign.ECHOED_ID, Sign.CHATTER),
    ),
    Rule(
        "2xx, error", Verdict.ANSWERED, "a JSON-RPC error is an answer", SUCCESS, CALLS, all_of=(Sign.ERROR,)
    ),
    Rule(
        "2xx, no answer",
        Verdict.OUTCOME_UNKNOWN,
        "accepted, then ended without a result: it may have run (the SDK's servers)",
        SUCCESS,
        CALLS,
    ),
    Rule("2xx", Verdict.ANSWERED, "a notification, GET or DELETE needs no more (specification)", SUCCESS),
    Rule("redirect", Verdict.REFUSED, "a safe one was followed below; nothing ran here", REDIRECT),
    # Errors about the session.
    Rule(
        "ended meanwhile",
        Verdict.OUTCOME_UNKNOWN,
        "`Session terminated before the request completed`: it may have run (SDK 2.x server)",
        ERROR,
        POSTS,
        all_of=(Sign.MID_REQUEST,),
        any_of=(Sign.UNKNOWN_SESSION, Sign.ENDED_SESSION),
    ),
    Rule(
        "404 or 410 says so",
        Verdict.SESSION_LOST,
        "specification, session management 3; whatever the JSON-RPC code (kotlin says -32601)",
        _only(404, 410),
        with_id=True,
        any_of=LOSS,
        none_of=ALIVE,
    ),
    Rule(
        "4xx, header named",
        Verdict.SESSION_LOST,
        "a refusal that names the header we did send (typescript-sdk, csharp-sdk, java-sdk)",
        _only(400, 409, 422),
        with_id=True,
        all_of=(Sign.NAMES_HEADER,),
        any_of=(Sign.UNKNOWN_SESSION, Sign.ENDED_SESSION, Sign.MISSING_ID),
        none_of=(*ALIVE, Sign.LOGIN),
    ),
    Rule(
        "4xx says so",
        Verdict.SESSION_LOST,
        "older SDKs answer 400 `No valid session ID provided`, rmcp up to 0.16 401, others 409 and 422",
        _only(400, 401, 409, 422),
        with_id=True,
        any_of=LOSS,
        none_of=(*SOMETHING_ELSE, *NOT_THE_LAYER),
    ),
    Rule(
        "500 or 503 says so",
        Verdict.SESSION_LOST,
        "the session was not found, which comes before executing (rmcp 500, neotoma 503)",
        _only(500, 503),
        with_id=True,
        any_of=LOOKUP,
        none_of=(*SOMETHING_ELSE, *NOT_THE_LAYER, Sign.ENDED_SESSION, Sign.TOO_MANY_SESSIONS),
    ),
    Rule(
        "404 about something else",
        Verdict.REFUSED,
        "an unknown method is a 404 since 2026-07-28; an event, tool or token is no session",
        _only(404, 410),
        any_of=(
            Sign.METHOD_NOT_FOUND,
            Sign.DISPATCHER_CODE,
            Sign.OTHER_MISSING,
            Sign.LIVING_SESSION,
            Sign.LOGIN,
        ),
    ),
    Rule(
        "404 that names the request",
        Verdict.REFUSED,
        "some servers map a tool's error to 404: it was read by more than the session layer",
        _only(404, 410),
        all_of=(Sign.ECHOED_ID,),
        none_of=(Sign.FITS_404,),
    ),
    Rule(
        "404 or 410",
        Verdict.SESSION_LOST,
        "specification, session management 4: a 404 to a request with an id asks for a new session",
        _only(404, 410),
        with_id=True,
        none_of=(Sign.MID_REQUEST,),
    ),
    # Errors about anything else.
    Rule("credentials", Verdict.AUTH, "RFC 9110, 15.5.2, 15.5.4 and 15.5.8", _only(401, 403, 407)),
    Rule(
        "slow down",
        Verdict.TRANSIENT,
        "refused by a limiter, or as too early (RFC 6585, 4; RFC 8470, 5.2)",
        _only(425, 429),
    ),
    Rule(
        "no room for a session",
        Verdict.TRANSIENT,
        "others may end theirs",
        ERROR,
        (Kind.INITIALIZE,),
        all_of=(Sign.TOO_MANY_SESSIONS,),
    ),
    Rule(
        "503, not dispatched",
        Verdict.TRANSIENT,
        "the gateway or server says that nobody took it on (HAProxy, Envoy, supergateway)",
        _only(503),
        any_of=(Sign.NOT_DISPATCHED, Sign.TOO_MANY_SESSIONS),
        none_of=(Sign.MID_REQUEST,),
    ),
    Rule(
        "GET failed", Verdict.TRANSIENT, "a GET executes nothing", (*_only(408), *SERVER_ERROR), (Kind.GET,)
    ),
    Rule("not implemented", Verdict.REFUSED, "RFC 9110, 15.6.2 and 15.6.6", _only(501, 505)),
    Rule(
        "timeout",
        Verdict.OUTCOME_UNKNOWN,
        "should mean that the request never came whole, but servers say it of slow handlers",
        _only(408),
    ),
    Rule("other 4xx", Verdict.REFUSED, "the request's own fault (RFC 9110, 15.5)", CLIENT_ERROR),
    Rule(
        "other 5xx",
        Verdict.OUTCOME_UNKNOWN,
        "also a gateway's: nginx sends the same 502 for a refused connection and for a lost answer",
        SERVER_ERROR,
    ),
    Rule("no status", Verdict.OUTCOME_UNKNOWN, "no final HTTP answer at all"),
)
"""The table; the first row that applies decides, and the last always does."""


def classify(
    *,
    http_method: str,
    rpc_method: str | None,
    session_id_sent: bool,
    status: int,
    content_type: str = "",
    body: bytes = b"",
) -> Verdict:
    """Judge one HTTP answer.

    Never raises, and looks at no more than the first 64 KiB of the body.

    Args:
        http_method: `POST`, `GET` or `DELETE`.
        rpc_method: the JSON-RPC method that was posted; None for a GET, a DELETE, or a posted
            answer to the server.
        session_id_sent: whether the request carried an `Mcp-Session-Id`. Without one no verdict
            is `Verdict.SESSION_LOST`.
        status: the HTTP status; 0 if there was no answer.
        content_type: taken for completeness. Servers label wrongly, so the body decides.
        body: what came of the body. Of a 2xx answer only what is framed whole counts.

    Returns:
        The verdict of the first row of the table that applies.
    """
    judge = _remembered if is_worth_remembering(body) else _judged
    return judge(_kind(http_method, rpc_method), status, session_id_sent, body)


def _judged(kind: Kind, status: int, with_id: bool, body: bytes) -> Verdict:
    signs = _signs(read(body, finished=200 <= status < 300))
    return rule_for(kind, status, with_id, signs).verdict


_remembered = lru_cache(REMEMBERED)(_judged)
"""Judging takes 0.1 ms, half of a call, and a lost session is met by many."""


def rule_for(kind: Kind, status: int, with_id: bool, signs: frozenset[Sign]) -> Rule:
    """Return the row of the table that judges."""
    return next(rule for rule in RULES if rule.applies(kind, status, with_id, signs))


def _kind(http_method: str, rpc_method: str | None) -> Kind:
    method = http_method.upper()
    if method in ("GET", "DELETE"):
        return Kind(method)
    if rpc_method == "initialize":
        return Kind.INITIALIZE
    if rpc_method is None or rpc_method.startswith("notifications/"):
        return Kind.NOTIFICATION
    return Kind.REQUEST


INVALID_PARAMS, METHOD_NOT_FOUND, INTERNAL_ERROR = -32602, -32601, -32603
DISPATCHER_CODES = frozenset({INVALID_PARAMS, INTERNAL_ERROR, -32002, -32042})
"""Codes that an error naming its request has only from behind the session layer."""


def _signs(said: Said) -> frozenset[Sign]:
    if said.result:
        return frozenset({Sign.RESULT})
    shown = {
        Sign.ERROR: said.error,
        Sign.ECHOED_ID: said.echoes_id,
        Sign.CHATTER: said.chatter,
        Sign.METHOD_NOT_FOUND: said.code == METHOD_NOT_FOUND,
        Sign.INVALID_PARAMS: said.code == INVALID_PARAMS and said.echoes_id,
        Sign.INTERNAL_ERROR: said.code == INTERNAL_ERROR and said.echoes_id,
        Sign.DISPATCHER_CODE: said.code in DISPATCHER_CODES and said.echoes_id,
    }
    # A page counts only where it shows a gateway: it may be anybody's page.
    of_page = signs_of(said.page) & {Sign.NOT_DISPATCHED, Sign.TOO_MANY_SESSIONS}
    return signs_of(said.text) | of_page | {sign for sign, is_shown in shown.items() if is_shown}
