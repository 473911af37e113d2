"""The detector, held against what real servers sent, sentences, near misses and hostile bodies."""

from __future__ import annotations

import gzip
import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from mcp import MCPError

from tests.kit import load_script
from trio_mcp_resilient._body import PREFIX_BYTES, REMEMBERED, REMEMBERED_BYTES, TEXT_CHARS, read
from trio_mcp_resilient._detector import (
    RULES,
    Verdict,
    _kind,  # pyright: ignore[reportPrivateUsage]
    _remembered,  # pyright: ignore[reportPrivateUsage]
    _signs,  # pyright: ignore[reportPrivateUsage]
    classify,
    excerpt,
    rule_for,
)
from trio_mcp_resilient._sdk_errors import is_session_terminated
from trio_mcp_resilient._secrets import fingerprint, redact
from trio_mcp_resilient._wording import _GRAMMAR, Sign, signs_of  # pyright: ignore[reportPrivateUsage]

LOST, UNKNOWN, REFUSED = Verdict.SESSION_LOST, Verdict.OUTCOME_UNKNOWN, Verdict.REFUSED
ANSWERED, AUTH, TRANSIENT = Verdict.ANSWERED, Verdict.AUTH, Verdict.TRANSIENT


def judge(
    status: int,
    body: bytes | str = b"",
    *,
    rpc: str | None = "tools/call",
    http: str = "POST",
    sent: bool = True,
    content_type: str = "",
) -> Verdict:
    return classify(
        http_method=http,
        rpc_method=rpc,
        session_id_sent=sent,
        status=status,
        content_type=content_type,
        body=body.encode() if isinstance(body, str) else body,
    )


def error(message: str, code: int = -32000, id: Any = None, **more: Any) -> str:
    return json.dumps({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message, **more}})


# What real servers sent

RPC_METHODS = {
    "POST tools/call": "tools/call",
    "POST other": "tools/list",
    "POST initialize": "initialize",
    "notification": "notifications/initialized",
    "GET": None,
    "DELETE": None,
}
CORPUS: list[dict[str, Any]] = [
    json.loads(line)
    for line in (Path(__file__).parent / "data" / "corpus.jsonl").read_text(encoding="utf-8").splitlines()
]


def facts_of(row: dict[str, Any]) -> dict[str, Any]:
    headers = {name.lower(): value for name, value in row["headers"].items()}
    return {
        "http_method": row["request"] if row["request"] in ("GET", "DELETE") else "POST",
        "rpc_method": RPC_METHODS[row["request"]],
        "session_id_sent": row["sent_session_id"],
        "status": row["status"],
        "content_type": headers.get("content-type", ""),
        "body": row["body"].encode(),
    }


def expected_of(row: dict[str, Any]) -> set[Verdict]:
    match row["verdict"]:
        case "session_lost_not_executed":
            return {LOST}
        case "session_lost_maybe_executed":
            # Of a GET, "lost" speaks of the session; the call it resumed is another matter.
            return {UNKNOWN, LOST} if row["request"] == "GET" else {UNKNOWN}
        case "auth":
            return {AUTH}
        case "transient":
            return {UNKNOWN} if row["executed"] == "maybe" else {TRANSIENT}
        case other:
            assert other == "not_session_loss"
            return {ANSWERED, REFUSED, AUTH, TRANSIENT}


def test_the_corpus_is_there() -> None:
    assert len(CORPUS) == 182 and len({row["id"] for row in CORPUS}) == 182


@pytest.mark.parametrize(
    "row", [row for row in CORPUS if not row["ambiguous"]], ids=lambda row: str(row["id"])
)
def test_corpus(row: dict[str, Any]) -> None:
    assert classify(**facts_of(row)) in expected_of(row)


@pytest.mark.parametrize("row", [row for row in CORPUS if row["ambiguous"]], ids=lambda row: str(row["id"]))
def test_ambiguous_rows_never_run_a_call_twice(row: dict[str, Any]) -> None:
    verdict = classify(**facts_of(row))
    if row["executed"] == "maybe":
        assert verdict is UNKNOWN
    if row["verdict"] == "not_session_loss" and verdict is LOST:
        # The specification asks for a new session after a 404 to a request with an id.
        assert row["status"] == 404


# Sentences

LOSS_SENTENCES = """
Session not found
session not found\n
Session expired
Session has expired or is invalid
Your session has expired, please re-initialize
Unknown session
Unknown session ID: abc-123
Session abc123 not found
Session 'abc' not found
session "x-y-z" does not exist
Session 11111111-2222-4333-8444-555555555555 no longer exists
Session with ID 'abc' could not be found.
Session ID abc.def not found
Session (abc) not found.
The specified session was not found
The requested session does not exist
The session could not be found
Session cannot be found
session doesn\u2019t exist or has expired
Session is closed
Session has been terminated
Session timed out due to inactivity
Session is no longer valid
Session ID not recognised
session id is unknown
The session ID does not match any active session
Session evicted
Stale session ID
MCP session not found
mcp: session not found
Streamable HTTP session not found
Error: Session not found
Unauthorized: Session not found
404: session not found
ERROR \u2013 session not found
Please reinitialize
mcp-session-id header missing
Mcp-Session-Id header is required
Missing required header: Mcp-Session-Id
Missing or invalid Mcp-Session-Id header
Invalid Mcp-Session-Id
Mcp-Session-Id is invalid.
Mcp-Session-Id header references an unknown session
mcp: invalid session ID header
mcp: session header is required for non-initialize requests
Invalid or missing session ID
Invalid or expired session
invalid session ID format
Bad Request: No valid session ID provided
Session ID required
session id not provided
No session ID provided
No sessionId
Invalid sessionId
Missing session
No session
No active session found
no such session
No session with id 1234
Unable to find session
Could not find session
There is no session with that ID
Bad Request: Server not initialized
Session has not been initialized
Send an initialize request first
You must initialize first
Unexpected message, expect initialize request
No active transport
No transport found for sessionId
SESSION_NOT_FOUND
invalid_session_id
SessionNotFoundException: abc
Received request for unknown session
server restarted, session lost
"""
SENTENCES = [line for line in LOSS_SENTENCES.split("\n") if line]

FRAMES = {
    "text": lambda text: text,
    "JSON-RPC": lambda text: error(text),
    "JSON-RPC that names the request": lambda text: error(text, -32600, 7),
    "JSON-RPC in a batch": lambda text: f"[{error(text)}]",
    "error": lambda text: json.dumps({"error": text}),
    "error object": lambda text: json.dumps({"error": {"message": text}}),
    "problem details": lambda text: json.dumps({"title": "Bad Request", "detail": text}),
    "JSON string": lambda text: json.dumps(text),
    "event": lambda text: f"event: message\r\ndata: {error(text)}\r\n\r\n",
    "event, cut": lambda text: f"data: {error(text)}",
    "event of text": lambda text: f": hi\n\ndata: {text.strip()}\n\n",
    "BOM": lambda text: "\ufeff" + error(text),
}


@pytest.mark.parametrize("sentence", SENTENCES)
def test_sentences_that_say_it(sentence: str) -> None:
    for name, frame in FRAMES.items():
        for status in (400, 401, 404, 409, 410, 422):
            assert judge(status, frame(sentence)) is LOST, (name, status)
            assert judge(status, frame(sentence), sent=False) is not LOST, (name, status)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-8-sig"])
def test_encodings(encoding: str) -> None:
    assert judge(400, error("Session not found").encode(encoding)) is LOST
    assert judge(400, "No valid session ID provided".encode(encoding)) is LOST


ANOTHERS = [
    "browser",
    "database",
    "login",
    "user",
    "tmux",
    "SSH",
    "terminal",
    "chat",
    "trading",
    "in-browser",
]


@pytest.mark.parametrize("whose", ANOTHERS)
@pytest.mark.parametrize(
    "sentence",
    [
        "{} session not found",
        "{} session has expired",
        "the {} session is closed",
        "Invalid {} session",
        "no {} session",
    ],
)
def test_a_session_of_something_else(whose: str, sentence: str) -> None:
    for frame in (FRAMES["text"], FRAMES["JSON-RPC"], FRAMES["error"]):
        for status in (400, 401, 500, 503):
            assert judge(status, frame(sentence.format(whose))) is not LOST


NEAR_MISSES: dict[str, tuple[int, str, Verdict]] = {
    # The session lives.
    "session exists": (400, error("Session registration failed: session already exists"), REFUSED),
    "initialized": (400, error("Invalid Request: Server already initialized", -32600), REFUSED),
    "stateless": (400, error("The Mcp-Session-Id header is not supported in stateless mode"), REFUSED),
    "invalid, but stateless": (400, "The Mcp-Session-Id header is invalid in stateless mode", REFUSED),
    "invalid, but taken": (404, "Invalid session: already connected from another client", REFUSED),
    "another session's stream": (400, "Last-Event-ID refers to a different session ID", REFUSED),
    "second stream": (409, error("Conflict: Only one SSE stream is allowed per session"), REFUSED),
    "busy": (409, "Session is already in use", REFUSED),
    "locked": (400, "session locked", REFUSED),
    "another user's": (403, "session user mismatch\n", AUTH),
    "protocol version": (400, error("Unsupported protocol version in session"), REFUSED),
    "single value": (400, "Bad Request: Mcp-Session-Id header must be a single value", REFUSED),
    "not supported": (400, "Sessions are not supported", REFUSED),
    "hint": (400, "Bad input. If the session has expired, start again.", REFUSED),
    "limit": (400, "Session limit exceeded", REFUSED),
    "not ready": (400, "Session not ready", REFUSED),
    "of another noun": (400, "Invalid session name", REFUSED),
    "of another noun, missing": (400, "Session name is missing", REFUSED),
    # The tool's arguments.
    "underscore": (400, error("session_id is required", -32602, 7), REFUSED),
    "underscore in plain": (400, "Missing required argument: session_id", REFUSED),
    "camel case": (400, '{"error":"Validation failed","message":"sessionId must be a UUID"}', REFUSED),
    "invalid params": (400, error("Invalid params: session not found", -32602, 7), REFUSED),
    "invalid params, unsaid": (400, error("session not found", -32602, 7), REFUSED),
    "internal error": (400, error("session not found", -32603, 7), REFUSED),
    "quoted": (400, "'session' is invalid", REFUSED),
    "field": (400, "Field 'session' is invalid", REFUSED),
    "tool": (500, error("Error executing tool x: session not found", -32603, 7), UNKNOWN),
    "the tool's upstream": (500, error("Session expired or invalid", -32603, 7), UNKNOWN),
    # Credentials.
    "OAuth": (401, '{"error":"invalid_token","error_description":"The session token expired"}', AUTH),
    "login": (401, "Your session has expired, please log in again", AUTH),
    "sign in": (401, "Session expired. Sign in.", AUTH),
    "cookie": (400, "Invalid session cookie", REFUSED),
    "forbidden": (403, "Session not found", AUTH),
    "proxy": (407, "", AUTH),
    # It may have run.
    "ended meanwhile": (500, error("Session terminated before the request completed", -32603), UNKNOWN),
    "ended meanwhile, another status": (404, "Session closed while processing the request", UNKNOWN),
    "ended, says a 500": (500, "Session terminated", UNKNOWN),
    "ended, says a 503": (503, "Session closed", UNKNOWN),
    "gateway": (502, "Session not found", UNKNOWN),
    "crash": (500, "Internal Server Error", UNKNOWN),
    "a long page": (500, "Traceback: session not found " + "x" * TEXT_CHARS, UNKNOWN),
    # 404s about something else.
    "method": (404, error("Method not found", -32601, 7), REFUSED),
    "method, nobody's": (404, error("Method not found", -32601), REFUSED),
    "tool not found": (404, error("Unknown tool: x", -32602, 7), REFUSED),
    "tool not found, plain": (404, "Tool not found", REFUSED),
    "resource": (404, error("Resource not found", -32002, 7), REFUSED),
    "the tool's own 404": (404, error("User 7 not found", -32000, 7), REFUSED),
    "the tool's own session": (404, error("Browser session not found", -32000, 7), REFUSED),
    "event": (404, error("Event not found", -32001), REFUSED),
    "WebSocket": (404, error("WebSocket is gone", -32001), REFUSED),
    # No words.
    "HTML": (400, "<html><body>Session not found</body></html>", REFUSED),
    "cut JSON": (400, '{"error": "Session not found', REFUSED),
}


@pytest.mark.parametrize(("status", "body", "verdict"), NEAR_MISSES.values(), ids=NEAR_MISSES.keys())
def test_near_misses(status: int, body: str, verdict: Verdict) -> None:
    assert judge(status, body) is verdict


JAVA = {"cause": None, "jsonRpcError": {"code": -32603, "message": "Session not found: 7"}}
CASES: dict[str, tuple[int, str, Verdict]] = {
    # 404 and 410, with words and without.
    "404, empty": (404, "", LOST),
    "410, empty": (410, "", LOST),
    "404, page": (404, "<h1>Not Found</h1>", LOST),
    "404, JSON-RPC without words": (404, '{"jsonrpc":"2.0","id":1}', LOST),
    "404, names the request, generic": (404, error("Not Found", -32600, 7), LOST),
    "404, names the request, says so": (404, error("Session expired", -32603, 7), LOST),
    "404, code of an unknown method": (404, error("Not Found: Invalid session ID", -32601), LOST),
    "404, exception": (404, json.dumps({**JAVA, "message": "Session not found: 7"}), LOST),
    # 5xx before dispatch.
    "500": (500, "Encounter an error when get session: Session not found: abc-1", LOST),
    "503": (503, error("MCP session is unknown on this API instance. Enable sticky sessions.", -32001), LOST),
    # Invalid params, but about the header.
    "header": (400, error("Invalid params: missing Mcp-Session-Id header", -32602, 7), LOST),
    "session layer's invalid params": (400, error("Invalid session ID", -32602), LOST),
    # Nobody took it on.
    "429": (429, "", TRANSIENT),
    "425": (425, "", TRANSIENT),
    "HAProxy": (503, "<h1>503</h1>\nNo server is available to handle this request.\n", TRANSIENT),
    "Envoy": (503, "no healthy upstream", TRANSIENT),
    "Traefik": (503, "no available server\n", TRANSIENT),
    "shutting down": (503, "Gateway is shutting down", TRANSIENT),
    "overload": (503, error("Server overloaded", -32000), TRANSIENT),
    "sessions": (503, error("maximum concurrent sessions (100) reached", -32603, 1), TRANSIENT),
    "shutting down under it": (503, "Request aborted: shutting down", UNKNOWN),
    "Envoy, cut": (503, "upstream connect error or disconnect/reset before headers", UNKNOWN),
    # The rest, by status.
    "0": (0, "", UNKNOWN),
    "101": (101, "", UNKNOWN),
    "302": (302, "", REFUSED),
    "307": (307, "", REFUSED),
    "400": (400, "", REFUSED),
    "401": (401, "", AUTH),
    "405": (405, "", REFUSED),
    "408": (408, "", UNKNOWN),
    "413": (413, "", REFUSED),
    "500, bare": (500, "", UNKNOWN),
    "501": (501, "", REFUSED),
    "502": (502, "", UNKNOWN),
    "503, bare": (503, "", UNKNOWN),
    "504": (504, "", UNKNOWN),
    "520": (520, "", UNKNOWN),
    "999": (999, "", UNKNOWN),
    "-1": (-1, "", UNKNOWN),
}


@pytest.mark.parametrize(("status", "body", "verdict"), CASES.values(), ids=CASES.keys())
def test_cases(status: int, body: str, verdict: Verdict) -> None:
    assert judge(status, body) is verdict


RESULT = json.dumps(
    {"jsonrpc": "2.0", "id": 7, "result": {"content": [{"type": "text", "text": "Session not found"}]}}
)
PROGRESS = '{"jsonrpc":"2.0","method":"notifications/progress","params":{"message":"session not found"}}'
ACCEPTED: dict[str, tuple[str, Verdict]] = {
    "result": (RESULT, ANSWERED),
    "result in an event": (f"data: {RESULT}\n\n", ANSWERED),
    "result in a batch": (f"[{PROGRESS},{RESULT}]", ANSWERED),
    "result after an error": (f"data: {error('Session not found')}\n\ndata: {RESULT}\n\n", ANSWERED),
    "result beyond the prefix": (RESULT.replace("Session", "x" * PREFIX_BYTES), ANSWERED),
    "event beyond the prefix": (f"data: {RESULT}\n\n".replace("Session", "x" * PREFIX_BYTES), ANSWERED),
    "error": (error("Unknown tool", -32602, 7), ANSWERED),
    "error of the tool's session": (error("Session not found", -32603, 7), ANSWERED),
    "error of the tool's session, other code": (error("Session not found", -32000, 7), ANSWERED),
    "error about the tool's header": (
        error("Invalid argument: missing Mcp-Session-Id header", -32000, 7),
        ANSWERED,
    ),
    "error of nobody": (error("Invalid Request", -32600), ANSWERED),
    "nothing": ("", UNKNOWN),
    "only progress": (f"data: {PROGRESS}\n\n", UNKNOWN),
    "priming event": ("id: 1\ndata: \nretry: 500\n\n", UNKNOWN),
    "page": ("<html>Session not found</html>", UNKNOWN),
    "cut result": (RESULT[:-20], UNKNOWN),
    "event that did not end": (f"data: {RESULT}\n", UNKNOWN),
    "error that is no JSON-RPC": ('{"error":"Bad gateway"}', UNKNOWN),
    "says so": (error("Session not found", -32600), LOST),
    "says so, no JSON-RPC": ('data: {"error":"Session not found"}\n\n', LOST),
    "says so, SDK's placeholder": (error("Session not found", -32600, "server-error"), LOST),
    "not initialized": (error("Server not initialized", -32002, 7), LOST),
    "not initialized, somewhere": (error("Language server not initialized", -32002, 7), ANSWERED),
    "header": (error("Missing Mcp-Session-Id header", -32000, 7), LOST),
    # Something had begun before it was said, or may have.
    "says so after progress": (f"data: {PROGRESS}\n\ndata: {error('Session not found')}\n\n", ANSWERED),
    "unknown or ended": ('data: {"error":"Session terminated","message":"No active session"}\n\n', UNKNOWN),
    "ended": ('data: {"error":"Session terminated"}\n\n', UNKNOWN),
}


@pytest.mark.parametrize(("body", "verdict"), ACCEPTED.values(), ids=ACCEPTED.keys())
def test_accepted_requests(body: str, verdict: Verdict) -> None:
    assert judge(200, body) is verdict


@pytest.mark.parametrize(
    ("status", "http", "rpc", "verdict"),
    [
        (202, "POST", "notifications/initialized", ANSWERED),
        (202, "POST", None, ANSWERED),
        (202, "POST", "tools/call", UNKNOWN),
        (204, "POST", "ping", UNKNOWN),
        (200, "GET", None, ANSWERED),
        (204, "DELETE", None, ANSWERED),
        (405, "GET", None, REFUSED),
        (409, "GET", None, REFUSED),
        (500, "GET", None, TRANSIENT),
        (503, "GET", None, TRANSIENT),
        (500, "DELETE", None, UNKNOWN),
        (500, "POST", "notifications/cancelled", UNKNOWN),
        (404, "GET", None, LOST),
        (404, "get", None, LOST),
        (404, "POST", "notifications/cancelled", LOST),
        (404, "DELETE", None, LOST),
        (404, "PATCH", None, LOST),
    ],
)
def test_what_was_sent_matters(status: int, http: str, rpc: str | None, verdict: Verdict) -> None:
    assert judge(status, http=http, rpc=rpc) is verdict


def test_no_room_for_a_session() -> None:
    full = error("Too many active sessions", -32000)
    assert judge(400, full, rpc="initialize", sent=False) is TRANSIENT
    assert judge(400, full) is REFUSED


# Properties

STATUSES = st.sampled_from([0, 200, 202, 302, 400, 401, 403, 404, 409, 410, 422, 500, 503]) | st.integers(
    -5, 1000
)
TEXTS = st.one_of(
    st.sampled_from(SENTENCES),
    st.text(max_size=40),
    st.lists(st.sampled_from(SENTENCES), max_size=3).map(" ".join),
)
BODIES = st.one_of(
    st.binary(max_size=80),
    TEXTS.map(str.encode),
    st.tuples(st.sampled_from(list(FRAMES.values())), TEXTS).map(
        lambda pair: pair[0](pair[1]).encode("utf-8", "replace")
    ),
)
HTTP_METHODS = st.sampled_from(["POST", "GET", "DELETE"]) | st.text(max_size=5)
RPC = st.none() | st.sampled_from(["initialize", "tools/call", "notifications/x"]) | st.text(max_size=5)


@given(HTTP_METHODS, RPC, st.booleans(), STATUSES, st.text(max_size=20), BODIES)
def test_total_and_never_lost_without_an_id(
    http: str, rpc: str | None, sent: bool, status: int, content_type: str, body: bytes
) -> None:
    verdict = judge(status, body, http=http, rpc=rpc, sent=sent, content_type=content_type)
    assert isinstance(verdict, Verdict)
    assert sent or verdict is not LOST


JSON_VALUES = st.recursive(
    TEXTS | st.booleans() | st.integers(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=5,
)
WITHOUT_SURROGATES = JSON_VALUES.map(lambda value: json.loads(json.dumps(value).encode("ascii")))


@given(WITHOUT_SURROGATES, STATUSES, st.booleans(), st.integers(0, 10**6) | st.text(max_size=5))
@example("Session not found", 404, True, 7)
@example({"error": {"message": "Session not found"}}, 400, False, 7)
def test_a_result_is_never_a_loss(result: Any, status: int, in_event: bool, id: int | str) -> None:
    body = json.dumps({"jsonrpc": "2.0", "id": id, "result": result})
    verdict = judge(status, f"event: message\ndata: {body}\n\n" if in_event else body)
    assert verdict is (ANSWERED if 200 <= status < 300 else UNKNOWN)


@given(WITHOUT_SURROGATES, st.floats(0, 1), st.sampled_from([200, 400, 401, 500, 503]))
@example("Session not found. " * 5, 0.9, 400)
def test_a_cut_result_is_never_a_loss(result: Any, where: float, status: int) -> None:
    body = json.dumps({"jsonrpc": "2.0", "id": 7, "result": result})
    assert judge(status, body[: int(len(body) * where)]) is not LOST


@given(BODIES, st.binary(max_size=100), STATUSES)
def test_what_lies_beyond_the_prefix_changes_nothing(body: bytes, beyond: bytes, status: int) -> None:
    start = (body + b" " * PREFIX_BYTES)[:PREFIX_BYTES]
    assert judge(status, start + b"." + beyond) is judge(status, start + b".")


HUGE = 8 * 1024 * 1024


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000 + b"]" * 100_000,
        b'{"error":' * 100_000,
        b'{"jsonrpc":"2.0","id":1,"error":' + b"[" * 100_000,
        b"data:" * 100_000,
        b"data: {}\n\n" * 100_000,
        b"\n" * 100_000,
        b"<" * 100_000,
        b"\xff" * 100_000,
        b"\x00" * 100_000,
        b"session " * 100_000,
        b"[" + b'"session",' * 100_000,
        gzip.compress(error("Session not found").encode()),
        b'{"jsonrpc":"2.0","id":1,"error":{"code":' + b"9" * 100_000,
        bytes(HUGE),
    ],
    ids=lambda body: f"{body[:12]!r} {len(body)}",
)
def test_hostile_bodies_are_judged_by_the_status(body: bytes) -> None:
    assert judge(400, body) is REFUSED
    assert judge(200, body) is UNKNOWN
    assert len(excerpt(body)) <= 200


class Counted(bytes):
    """Bytes that tell how many of them were asked for."""

    asked = 0

    def __getitem__(self, key: Any) -> Any:
        assert isinstance(key, slice), "one byte at a time"
        taken = super().__getitem__(key)
        Counted.asked = max(Counted.asked, len(taken))
        return taken

    def __iter__(self) -> Any:
        raise AssertionError("all of it")


def test_looks_at_the_prefix_only() -> None:
    Counted.asked = 0
    assert judge(400, Counted(b"x" * HUGE)) is REFUSED
    excerpt(Counted(b"x" * HUGE), "text/html")
    assert Counted.asked == PREFIX_BYTES


@pytest.mark.parametrize(
    "first",
    ["session ", "session id: ", "no valid ", "invalid or ", "#, ", "is was or , ", "a_", "Aa", "'a "],
)
@pytest.mark.parametrize("second", ["", "session, ", "1-", "not be ", "max ", "can't ", "event # "])
def test_no_text_makes_the_grammar_backtrack(first: str, second: str) -> None:
    # An exponential pattern would not return from this; a quadratic one stays small at 1,000.
    signs_of(((first + second) * TEXT_CHARS)[:TEXT_CHARS])


def test_the_same_refusal_is_judged_once_and_little_is_remembered() -> None:
    _remembered.cache_clear()
    for _ in range(3):
        assert judge(404, b"Session not found") is LOST
        assert judge(503, b"Session not found", sent=False) is UNKNOWN
    assert (_remembered.cache_info().misses, _remembered.cache_info().hits) == (2, 4)
    for number in range(3 * REMEMBERED):
        judge(404, b"%d" % number)
        judge(404, b"%0*d" % (REMEMBERED_BYTES + 1, number))
    assert _remembered.cache_info().currsize == REMEMBERED
    assert _remembered.cache_info().misses == 2 + 3 * REMEMBERED


# The table and its documentation


def rules_met() -> set[str]:
    rows = [facts_of(row) for row in CORPUS]
    rows += [
        {
            "http_method": "POST",
            "rpc_method": rpc,
            "session_id_sent": True,
            "status": status,
            "body": body.encode(),
        }
        for (status, body, _), rpc in itertools.product(
            [
                *NEAR_MISSES.values(),
                *CASES.values(),
                *((200, body, verdict) for body, verdict in ACCEPTED.values()),
            ],
            ["tools/call", "initialize"],
        )
    ]
    rows.append(
        {
            "http_method": "POST",
            "rpc_method": "ping",
            "session_id_sent": True,
            "status": 404,
            "body": RESULT.encode(),
        }
    )
    rows.append(
        {"http_method": "GET", "rpc_method": None, "session_id_sent": True, "status": 500, "body": b""}
    )
    return {
        rule_for(
            _kind(row["http_method"], row["rpc_method"]),
            row["status"],
            row["session_id_sent"],
            _signs(read(row["body"], finished=200 <= row["status"] < 300)),
        ).name
        for row in rows
    }


def test_every_rule_is_needed() -> None:
    assert rules_met() == {rule.name for rule in RULES}
    assert len({rule.name for rule in RULES}) == len(RULES)


def test_only_rules_with_an_id_say_lost() -> None:
    assert all(rule.with_id for rule in RULES if rule.verdict is LOST)


def test_the_grammar_finds_no_sign_of_the_envelope() -> None:
    envelope = {
        Sign.RESULT,
        Sign.ERROR,
        Sign.ECHOED_ID,
        Sign.CHATTER,
        Sign.METHOD_NOT_FOUND,
        Sign.INVALID_PARAMS,
    }
    assert set(Sign) - set(_GRAMMAR) == envelope | {
        Sign.INTERNAL_ERROR,
        Sign.DISPATCHER_CODE,
        Sign.NAMES_HEADER,
    }


def test_the_documented_table_is_this_one() -> None:
    maker = load_script(Path(__file__).parent.parent / "docs" / "detector_table.py")
    page = maker.PAGE.read_text(encoding="utf-8")
    assert maker.written(page) == page, "run: python docs/detector_table.py"
    assert page.count("**session lost**") == sum(rule.verdict is LOST for rule in RULES)


# The SDK's error


class McpError(Exception):
    """The 1.x class, as far as it is looked at."""

    def __init__(self, code: Any, message: Any) -> None:
        super().__init__(message)
        self.error = type("ErrorData", (), {"code": code, "message": message})()


class Theirs(MCPError):
    """Somebody's subclass."""


@pytest.mark.parametrize(
    ("raised", "terminated"),
    [
        (McpError(32600, "Session terminated"), True),
        (MCPError(-32600, "Session terminated"), True),
        (Theirs(-32600, "Session terminated"), True),
        # Each line has its own sign.
        (McpError(-32600, "Session terminated"), False),
        (MCPError(32600, "Session terminated"), False),
        (MCPError(-32600, "Session not found"), False),
        (MCPError(-32600, "Session terminated "), False),
        (MCPError(-32603, "Session terminated before the request completed"), False),
        (MCPError(-32600, "Session terminated before the request completed"), False),
        (MCPError(-32000, "Session terminated"), False),
        (McpError(32600.0, "Session terminated"), False),
        (McpError("32600", "Session terminated"), False),
        (McpError(32600, None), False),
        (RuntimeError("Session terminated"), False),
        (ExceptionGroup("", [MCPError(-32600, "Session terminated")]), False),
        (type("McpError", (Exception,), {})("Session terminated"), False),
    ],
    ids=lambda value: str(value) if isinstance(value, bool) else type(value).__name__,
)
def test_is_session_terminated(raised: Exception, terminated: bool) -> None:
    assert is_session_terminated(raised) is terminated


class HostileError(McpError):
    @property
    def error(self) -> Any:
        raise RuntimeError("not yours")

    @error.setter
    def error(self, value: Any) -> None:
        pass


def test_an_error_whose_attributes_raise_is_none_of_the_sdk() -> None:
    assert is_session_terminated(HostileError(32600, "Session terminated")) is False


# Excerpts and secrets

UUID = "11111111-2222-4333-8444-555555555555"


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        (b"Session not found", "Session not found"),
        (b"  a\r\n\tb\x00\x1b[31mc\x7f ", "a b [31mc"),
        ("caf\u00e9 \u202e\u2028x".encode(), "caf\u00e9 x"),
        (
            b"<html><head><title>t</title><style>p{}</style></head><body><h1>502 Bad&nbsp;Gateway</h1>",
            "502 Bad Gateway",
        ),
        (b"<script>alert(1)</script>a<!-- b -->&lt;c&gt;", "a <c>"),
        (f"Session not found: {UUID}\n".encode(), "Session not found: \u2026"),
        (b'{"error":"no session 7f3a"}', '{"error":"no session \u2026"}'),
        (b"Bearer x.y is bad", "Bearer \u2026 is bad"),
        (b"authorization: Bearer abc", "authorization: Bearer \u2026"),
        (b'{"access_token": "s3"}', '{"access_token": "\u2026"}'),
        (b"UPC5XLI4ROJYIYVMNN7HSBJN7Y is gone", "\u2026 is gone"),
        (b"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIx.sig!", "\u2026!"),
        (b"", ""),
        (b"\xff\xfe" + "not found".encode("utf-16-le"), "not found"),
    ],
)
def test_excerpt(body: bytes, shown: str) -> None:
    assert excerpt(body) == shown


def test_excerpt_takes_the_word_of_the_content_type() -> None:
    assert excerpt(b"Oops <b>really</b>", "Text/HTML; charset=utf-8") == "Oops really"
    assert excerpt(b"a <b>", "text/plain") == "a <b>"


def test_excerpt_is_cut_after_it_was_redacted() -> None:
    assert excerpt(b"word " * 100, limit=20) == "word word word word\u2026"
    assert excerpt(b"x" * 195 + b" " + UUID.encode(), limit=200).count("1") == 0
    assert excerpt(b"abc", limit=3) == "abc"


@given(st.binary(max_size=300) | st.text(max_size=300).map(lambda text: text.encode("utf-8", "replace")))
def test_excerpt_is_one_printable_line(body: bytes) -> None:
    shown = excerpt(body, "text/html", limit=50)
    assert len(shown) <= 50 and shown.isprintable()


@given(
    st.uuids(),
    st.sampled_from(["{}", "Session {} not found", '{{"id":"{}"}}', "session not found: {}", "id={}&a"]),
)
def test_no_uuid_survives(uuid: Any, sentence: str) -> None:
    for spelled in (str(uuid), uuid.hex, str(uuid).upper()):
        assert spelled not in redact(sentence.format(spelled))


def test_words_survive() -> None:
    text = "MCP session is unknown or expired on this API instance; HTTP 404 at /mcp, retry in 500 ms"
    assert redact(text) == text


def test_fingerprint() -> None:
    assert re.fullmatch(r"#[0-9a-f]{8}", fingerprint(UUID))
    assert fingerprint(UUID) == fingerprint(UUID) != fingerprint(UUID + " ")
    assert fingerprint("\ud800") != fingerprint("")


def test_an_excerpt_of_a_jsonrpc_error_is_its_message() -> None:
    error = b'{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"Session not found"}}'
    assert excerpt(error, "application/json") == "Session not found (code -32600)"
    assert excerpt(b"event: message\ndata: " + error + b"\n\n", "text/event-stream") == excerpt(error)
