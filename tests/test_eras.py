"""The two eras without I/O: modes, envelopes, and what shows that a server speaks the other."""

from __future__ import annotations

import json
from typing import Any

import pytest
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    LOG_LEVEL_META_KEY,
    PROTOCOL_VERSION_META_KEY,
    SERVER_INFO_META_KEY,
)

from trio_mcp_resilient import Verdict
from trio_mcp_resilient._envelope import Introduction, fill_in, foreign_headers, routing_headers, unwrap, wrap
from trio_mcp_resilient._eras import Era, Mode, may_speak_otherwise, speaks_otherwise, supported_versions
from trio_mcp_resilient._judge import Facts, Judge
from trio_mcp_resilient._restoring import SessionState
from trio_mcp_resilient._session import Session, UnusableHandshake

LEGACY, MODERN = "2025-11-25", "2026-07-28"
ME = Introduction({"name": "me", "version": "1"}, {"roots": {}})
DISCOVERED = {"supportedVersions": [LEGACY, MODERN], "capabilities": {"tools": {}}}


def refusal(code: int, message: str = "no", data: Any = None, request_id: Any = 1) -> bytes:
    error = {"code": code, "message": message, "data": data}
    return json.dumps({"jsonrpc": "2.0", "id": request_id, "error": error}).encode()


def layer(code: int, message: str, request_id: Any = None) -> bytes:
    """What a session layer says, which has not read whose request it is."""
    return refusal(code, message, request_id=request_id)


# -- modes -------------------------------------------------------------------------------------


def test_auto_tries_the_modern_era_first_until_it_knows_better() -> None:
    mode = Mode.parse("auto")
    assert mode.order(None) == (Era.MODERN, Era.LEGACY)
    assert mode.order(Era.MODERN) == (Era.MODERN, Era.LEGACY)
    assert mode.order(Era.LEGACY) == (Era.LEGACY, Era.MODERN)


def test_a_single_era_is_kept_to_whatever_is_remembered() -> None:
    assert Mode.parse("legacy").order(Era.MODERN) == (Era.LEGACY,)
    assert Mode.parse(MODERN).order(Era.LEGACY) == (Era.MODERN,)


@pytest.mark.parametrize("mode", ["", "modern", LEGACY, "2099-01-01"])
def test_other_modes_are_refused(mode: str) -> None:
    with pytest.raises(ValueError, match="mode is 'auto', 'legacy' or one of '2026-07-28', not"):
        Mode.parse(mode)


def test_each_version_has_its_era() -> None:
    assert [Era.of(version) for version in ("2024-11-05", LEGACY, MODERN)] == [
        Era.LEGACY,
        Era.LEGACY,
        Era.MODERN,
    ]


# -- what contradicts an era -------------------------------------------------------------------

CONTRADICTIONS = [
    # Only a modern server knows these codes.
    (LEGACY, 400, refusal(-32022, data={"supported": [MODERN]}), True),
    (LEGACY, 400, refusal(-32020), True),
    (LEGACY, 400, refusal(-32021), True),
    # So does one that misses the envelope, and names it.
    (LEGACY, 400, refusal(-32602, f"params._meta is missing {PROTOCOL_VERSION_META_KEY}"), True),
    (MODERN, 400, refusal(-32602, f"params._meta is missing {PROTOCOL_VERSION_META_KEY}"), False),
    (LEGACY, 400, refusal(-32602, "params.name is missing"), False),
    # In a 200 the code is the tool's own, or what the tool met behind it: it has run.
    (LEGACY, 200, refusal(-32022, data={"supported": [MODERN]}), False),
    (LEGACY, 200, refusal(-32020), False),
    # A server that says it speaks our version refused something else.
    (LEGACY, 400, refusal(-32022, data={"supported": [LEGACY]}), False),
    (MODERN, 400, refusal(-32022, data={"supported": ["2099-01-01"]}), True),
    # One that does not name what it speaks: a tool's own number.
    (LEGACY, 400, refusal(-32022), False),
    # Of a modern request these are about its own headers and capabilities.
    (MODERN, 400, refusal(-32020), False),
    (MODERN, 400, refusal(-32021), False),
    # Legacy servers want a session, or an older version.
    (MODERN, 400, layer(-32600, "Bad Request: Missing session ID"), True),
    (MODERN, 400, layer(-32000, "Bad Request: Mcp-Session-Id header is required"), True),
    (MODERN, 400, layer(-32000, "Bad Request: Server not initialized"), True),
    (MODERN, 400, layer(-32600, "Bad Request: Unsupported protocol version: 2026-07-28"), True),
    (MODERN, 400, b"Invalid or missing session ID", True),
    (MODERN, 404, layer(-32001, "Session not found", "server-error"), True),
    # The words are those of a layer, but of this request: a tool that has run may have said them.
    (MODERN, 400, refusal(-32602, "Session not found"), None),
    (MODERN, 404, refusal(-32601, "Unsupported protocol version"), None),
    (MODERN, 400, refusal(-32022), None),
    (MODERN, 400, refusal(-32022, data={"supported": [MODERN]}), None),
    # None of these is about the protocol.
    (MODERN, 400, refusal(-32602, "missing argument: a"), False),
    (MODERN, 404, refusal(-32601, "Method not found"), False),
    (MODERN, 404, b"<html>Not Found</html>", False),
    (MODERN, 401, b"token expired", False),
    (MODERN, 500, b"Missing session ID", False),
    (MODERN, 503, b"", False),
    (
        MODERN,
        200,
        json.dumps({"jsonrpc": "2.0", "id": 1, "result": {"x": "Missing session ID"}}).encode(),
        False,
    ),
    # And in the legacy era a lost session is the detector's business.
    (LEGACY, 404, refusal(-32001, "Session not found"), False),
    (LEGACY, 400, b"", False),
]


@pytest.mark.parametrize(("version", "status", "body", "contradicts"), CONTRADICTIONS)
def test_what_shows_that_a_server_speaks_otherwise(
    version: str, status: int, body: bytes, contradicts: bool | None
) -> None:
    """None: it may, and the server is to be asked."""
    assert speaks_otherwise(version, status, body) is (contradicts is True)
    if not contradicts:
        assert may_speak_otherwise(version, status, body) is (contradicts is None)


def test_the_judge_takes_it_for_a_loss_with_or_without_an_id() -> None:
    facts = Facts(
        "POST", "tools/call", False, 400, "application/json", layer(-32000, "Missing session ID"), MODERN
    )
    assert Judge(None).verdict(facts) is Verdict.SESSION_LOST
    assert Judge(lambda facts: Verdict.REFUSED).verdict(facts) is Verdict.REFUSED


@pytest.mark.parametrize("data", [None, [], "x", {"supported": None}, {"supported": "2026"}, {"other": []}])
def test_versions_that_are_not_named(data: Any) -> None:
    assert supported_versions(data) is None


def test_only_texts_are_versions() -> None:
    assert supported_versions({"supported": [1, MODERN, None]}) == [MODERN]


# -- the envelope ------------------------------------------------------------------------------


def test_the_envelope_goes_around_a_request_and_comes_off_again() -> None:
    params = {"name": "add", "_meta": {"progressToken": 7}}
    wrapped = wrap(ME.envelope(MODERN), params)
    assert wrapped["_meta"] == {
        "progressToken": 7,
        PROTOCOL_VERSION_META_KEY: MODERN,
        CLIENT_INFO_META_KEY: ME.info,
        CLIENT_CAPABILITIES_META_KEY: ME.capabilities,
    }
    assert unwrap(wrapped) == params
    assert unwrap(wrap(ME.envelope(MODERN), {"name": "add"})) == {"name": "add"}
    assert params == {"name": "add", "_meta": {"progressToken": 7}}, "the caller's own was changed"


def test_an_old_envelope_is_replaced_but_for_the_requests_own_log_level() -> None:
    old = wrap(Introduction({"name": "old"}, {}, log_level="error").envelope("2099-01-01"), {})
    new = Introduction(ME.info, ME.capabilities, log_level="debug").envelope(MODERN)
    assert wrap(new, old)["_meta"] == {**new, LOG_LEVEL_META_KEY: "error"}


def test_the_introduction_is_read_from_either_handshake() -> None:
    of_initialize = Introduction.read("initialize", ME.initialize_params())
    assert (of_initialize.info, of_initialize.capabilities) == (ME.info, ME.capabilities)
    assert of_initialize.knows_legacy_only
    assert Introduction.read("server/discover", {"_meta": ME.envelope(MODERN)}) == ME


@pytest.mark.parametrize(
    ("method", "params", "name"),
    [
        ("tools/call", {"name": "add"}, b"add"),
        ("resources/read", {"uri": "memo://x"}, b"memo://x"),
        ("prompts/get", {"name": "greet"}, b"greet"),
        ("tools/call", {"name": "grüß"}, b"=?base64?Z3LDvMOf?="),
        ("tools/call", {"name": "a\r\nevil: 1"}, b"=?base64?YQ0KZXZpbDogMQ==?="),
        ("tools/list", {"name": "not one"}, None),
    ],
)
def test_gateways_are_told_method_and_name(method: str, params: dict[str, Any], name: bytes | None) -> None:
    headers = dict(routing_headers(method, params))
    assert headers.pop(b"mcp-method") == method.encode()
    assert headers == ({} if name is None else {b"mcp-name": name})


def test_the_stamp_of_the_sdks_session_is_taken_off() -> None:
    stamped = {
        "mcp-protocol-version": MODERN,
        "mcp-method": "tools/call",
        "mcp-name": "add",
        "Mcp-Param-Region": "eu",
        "x-vendor": "1",
    }
    assert foreign_headers("tools/call", stamped) == ((b"x-vendor", b"1"),)
    # A vendor's request names its target itself: no table of the protocol's knows where it is.
    assert (b"mcp-name", b"job") in foreign_headers("vendor/run", {"mcp-name": "job"})


def test_what_a_result_leaves_out_is_read_as_the_specification_says() -> None:
    assert fill_in("tools/call", {"content": []}) == {"content": [], "resultType": "complete"}
    assert fill_in("tools/list", {"tools": [], "ttlMs": 5}) == {
        "tools": [],
        "ttlMs": 5,
        "cacheScope": "private",
        "resultType": "complete",
    }
    asking = {"resultType": "input_required"}
    assert fill_in("tools/call", asking) is asking


# -- sessions of either era --------------------------------------------------------------------


def test_a_discovered_session_carries_the_envelope_and_no_id() -> None:
    session = Session.from_discovery(DISCOVERED, ME)
    assert (session.era, session.id, session.protocol_version) == (Era.MODERN, None, MODERN)
    method, params, headers = session.dress("tools/call", {"name": "add"})
    assert method == "tools/call"
    assert params["_meta"][PROTOCOL_VERSION_META_KEY] == MODERN
    assert headers == ((b"mcp-method", b"tools/call"), (b"mcp-name", b"add"))
    assert (b"mcp-protocol-version", b"2026-07-28") in session.post_headers


def test_a_legacy_session_takes_the_envelope_off() -> None:
    result = {
        "protocolVersion": LEGACY,
        "capabilities": {},
        "serverInfo": {"name": "old", "version": "1"},
    }
    session = Session.from_answer(result, [(b"mcp-session-id", b"abc")])
    wrapped = wrap(ME.envelope(MODERN), {"name": "add"})
    assert session.dress("tools/call", wrapped) == ("tools/call", {"name": "add"}, ())


@pytest.mark.parametrize(
    "result",
    [{}, {"supportedVersions": "2026-07-28", "capabilities": {}}, {**DISCOVERED, "capabilities": 1}],
)
def test_a_malformed_discovery_is_none(result: dict[str, Any]) -> None:
    with pytest.raises(UnusableHandshake, match="malformed"):
        Session.from_discovery(result, ME)


def test_a_discovery_without_a_modern_version_is_a_legacy_servers() -> None:
    with pytest.raises(UnusableHandshake, match="no version of the modern era"):
        Session.from_discovery({**DISCOVERED, "supportedVersions": [LEGACY]}, ME)


@pytest.mark.parametrize("ttl", [-1, None, 0, 60_000])
def test_any_caching_hint_will_do(ttl: int | None) -> None:
    assert Session.from_discovery({**DISCOVERED, "ttlMs": ttl}, ME).protocol_version == MODERN


def test_another_answer_is_another_server_but_for_caching_hints() -> None:
    session = Session.from_discovery(DISCOVERED, ME)
    assert session.is_still({**DISCOVERED, "ttlMs": 9, "cacheScope": "public"})
    assert session.is_still({**DISCOVERED, "_meta": {"example.com/request": "a number of its own"}})
    assert not session.is_still({**DISCOVERED, "_meta": {SERVER_INFO_META_KEY: {"name": "another"}}})
    assert not session.is_still({**DISCOVERED, "capabilities": {}})
    assert not session.is_still({**DISCOVERED, "instructions": "new"})


# -- arguments in headers ----------------------------------------------------------------------

REGION = {"type": "string", "x-mcp-header": "Region"}


def listed(*, schema: dict[str, Any]) -> SessionState:
    state = SessionState()
    state.observe("tools/list", {}, {"tools": [{"name": "deploy", "inputSchema": schema}]})
    return state


def test_arguments_are_mirrored_in_headers_as_the_schema_says() -> None:
    state = listed(schema={"type": "object", "properties": {"region": REGION}})
    assert state.parameter_headers("deploy", {"region": "eu", "x": 1}) == ((b"mcp-param-region", b"eu"),)
    assert state.parameter_headers("deploy", {"region": "a\nb"}) == (
        (b"mcp-param-region", b"=?base64?YQpi?="),
    )
    assert state.parameter_headers("deploy", {}) == ()
    assert state.parameter_headers("deploy", None) == ()
    assert state.parameter_headers("unknown", {"region": "eu"}) == ()


def test_an_invalid_annotation_mirrors_nothing() -> None:
    bad = {"type": "string", "x-mcp-header": "not a token"}
    state = listed(schema={"type": "object", "properties": {"region": bad}})
    assert state.parameter_headers("deploy", {"region": "eu"}) == ()


def test_a_new_listing_replaces_what_was_mirrored() -> None:
    state = listed(schema={"type": "object", "properties": {"region": REGION}})
    assert state.parameter_headers("deploy", {"region": "eu"}) != ()
    state.observe("tools/list", {}, {"tools": [{"name": "deploy", "inputSchema": {"type": "object"}}]})
    assert state.parameter_headers("deploy", {"region": "eu"}) == ()
