"""What comes from a server, or from whoever names tools, goes into no header and no log as it is."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from mcp import MCPError
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.hostile import (
    CLIENTS,
    END,
    MIB,
    SESSION,
    STREAM,
    URL,
    Heard,
    envelope,
    event,
    flood,
    introduction,
    open_hostile,
    open_reached,
    open_victim,
    result_of,
    said,
    to,
)
from tests.http_peer import ENDPOINT
from tests.kit import add
from trio_mcp_resilient import (
    HandshakeFailed,
    OutcomeUnknown,
    open_client,
)
from trio_mcp_resilient._answers import (
    MAX_EVENT_ID_BYTES,
)
from trio_mcp_resilient._httpx_wire import HttpxWire
from trio_mcp_resilient._session import MAX_SESSION_ID_BYTES
from trio_mcp_resilient._wire import HookFailed

# What is sent is what was meant.


@pytest.mark.parametrize(
    "odd", ["a b", "a\tb", "\u00e9", "a\x01b", "", "x" * (MAX_SESSION_ID_BYTES + 1)], ids=ascii
)
async def test_a_session_id_that_is_no_token_makes_no_session(odd: str, autojump_clock: MockClock) -> None:
    answer = to(initialize=lambda heard: said(introduction(heard), f"mcp-session-id: {odd}"))
    async with open_hostile(answer) as server:
        with pytest.raises(HandshakeFailed) as caught:
            async with open_client(URL, connect=server.connect):
                pytest.fail("nothing was to be opened")
        assert not odd or odd not in str(caught.value)
        assert server.count("notifications/initialized") == 0


@pytest.mark.parametrize("version", ["2025-11-25\r\nx: y", "2025-11-25 ", "1999-01-01", "x" * MIB])
async def test_a_protocol_version_is_one_that_is_known(version: str, autojump_clock: MockClock) -> None:
    answer = to(initialize=lambda heard: said(introduction(heard, version)))
    async with open_hostile(answer) as server:
        with pytest.raises(HandshakeFailed) as caught:
            async with open_client(URL, connect=server.connect):
                pytest.fail("nothing was to be opened")
        assert len(str(caught.value)) < 500 and "\n" not in str(caught.value)


@pytest.mark.parametrize("length", [MAX_EVENT_ID_BYTES, MAX_EVENT_ID_BYTES + 1])
async def test_an_event_id_that_is_too_long_is_not_sent_back(length: int, autojump_clock: MockClock) -> None:
    cut = STREAM + event(None, "id: " + "7" * length, "retry: 0") + END

    def stream(heard: Heard) -> bytes:
        call = next(one for one in server.heard if one.rpc == "tools/call")
        return STREAM + event(result_of(call)) + END

    async with open_victim(to(tools_call=cut, GET=stream)) as (server, client):
        await client.list_tools()
        if length <= MAX_EVENT_ID_BYTES:
            assert await add(client) == "3"
        else:
            with pytest.raises(OutcomeUnknown):
                await add(client)
        assert server.count("GET") == (length <= MAX_EVENT_ID_BYTES)


HEADERS = {
    "a line break": {"x": "a\r\nmcp-session-id: b"},
    "a bare line feed": {"x": "a\nb"},
    "a NUL": {"x": "a\0b"},
    "a colon in the name": {"x: y": "z"},
    "a line break in the name": {"x\r\ny": "z"},
    "a name of another script": {"\u00e9": "z"},
    "no name": {"": "z"},
    "a length": {"Content-Length": "7"},
    "a framing": {"Transfer-Encoding": "chunked"},
    "a session": {"Mcp-Session-Id": "z"},
    "a coding": {"Accept-Encoding": "gzip"},
    "half a character": {"x": "\ud800"},
}


@pytest.mark.parametrize("mine", [True, False], ids=["ours", "the application's client"])
@pytest.mark.parametrize("headers", HEADERS.values(), ids=HEADERS.keys())
async def test_headers_that_could_smuggle_are_refused_at_once(headers: dict[str, str], mine: bool) -> None:
    async with httpx.AsyncClient() as http_client:
        options: dict[str, Any] = {} if mine else {"http_client": http_client}
        with pytest.raises(ValueError, match=r"header|surrogates"):
            async with open_client(URL, headers=headers, **options):
                pytest.fail("nothing was to be opened")


@pytest.mark.parametrize("how", CLIENTS)
@pytest.mark.parametrize("odd", ["a\r\nx-evil: 1", "a\nb", "a\0b"], ids=ascii)
async def test_a_header_for_one_request_is_checked_before_anything_is_sent(
    odd: str, how: str, autojump_clock: MockClock
) -> None:
    heard: list[Heard] = []

    def note(one: Heard) -> None:
        heard.append(one)

    async with open_reached(note, how) as client:
        await client.list_tools()
        dispatcher = client.session._dispatcher
        for headers in ({"X-Custom": odd}, {odd: "x"}):
            before = len(heard)
            with pytest.raises(ValueError, match="header"):
                await dispatcher.send_raw_request("tools/call", {"name": "add"}, {"headers": headers})
            assert len(heard) == before
        assert await add(client) == "3"


async def test_an_applications_client_is_given_no_header_that_would_be_two() -> None:
    sent: list[httpx.Request] = []

    def note(request: httpx.Request) -> httpx.Response:
        sent.append(request)
        return httpx.Response(202)

    async with httpx.AsyncClient(transport=httpx.MockTransport(note)) as http_client:
        wire = HttpxWire(http_client, ENDPOINT, (), 1.0, owned=False)
        await (await wire.send("POST", ((b"x", b"a"),), b"{}")).aclose()
        for odd in (b"a\r\nx-evil: 1", b"a\nb", b"a\0b"):
            with pytest.raises(HookFailed, match="ValueError"):
                await wire.send("POST", ((b"x", odd),), b"{}")
    assert len(sent) == 1


def modern(heard: Heard) -> bytes | None:
    """A server of 2026-07-28, whose tool wants its argument in a header."""
    properties = {"a": {"type": "string", "x-mcp-header": "A"}}
    tool = {"name": NAME, "inputSchema": {"type": "object", "properties": properties}}
    if heard.rpc == "server/discover":
        info = {"name": "hostile", "version": "1"}
        told = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}, "serverInfo": info}
        return said(envelope(id=heard.id, result=told))
    return said(envelope(id=heard.id, result={"tools": [tool]})) if heard.rpc == "tools/list" else None


NAME = "add\r\nx-evil: 1"


async def test_names_and_arguments_that_become_headers_are_encoded(autojump_clock: MockClock) -> None:
    async with open_victim(modern) as (server, client):
        await client.list_tools()
        await client.call_tool(NAME, {"a": "1\r\nx-evil: 2"})
        sent = server.heard[-1].headers
        assert sent["mcp-name"].startswith("=?base64?") and sent["mcp-param-a"].startswith("=?base64?")
        assert "x-evil" not in sent


async def test_a_server_that_quotes_the_session_id_does_not_have_it_repeated(
    autojump_clock: MockClock,
) -> None:
    def error(heard: Heard) -> dict[str, Any]:
        text = f"bad argument (in {SESSION})"
        return envelope(
            id=heard.id, error={"code": -32602, "message": text, "data": {"ids": [SESSION, {SESSION: 1}]}}
        )

    for status in (200, 400):
        answer = to(tools_call=lambda heard, status=status: said(error(heard), status=status))
        async with open_victim(answer) as (_, client):
            await client.list_tools()
            with pytest.raises(MCPError) as caught:
                await add(client)
            shown = (
                str(caught.value) + repr(caught.value) + repr(caught.value.data) + repr(caught.value.error)
            )
            assert SESSION not in shown
            assert caught.value.message.startswith("bad argument (in #")


async def test_a_servers_words_are_one_line_in_errors_and_logs(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "trio_mcp_resilient")
    evil = "no\n2026-01-01 CRITICAL root: forged\x1b[2J"

    def refuse(heard: Heard) -> bytes:
        return said(envelope(id=heard.id, error={"code": -32000, "message": evil}))

    async with open_hostile(to(initialize=refuse)) as server:
        with pytest.raises(HandshakeFailed) as caught:
            async with open_client(URL, connect=server.connect):
                pytest.fail("nothing was to be opened")
        assert str(caught.value).isprintable()

    def strange(heard: Heard) -> bytes:
        return flood(event(envelope(method="notifications/" + evil)))(heard)

    async def fail(message: object) -> None:
        raise RuntimeError("handler")

    async with open_victim(to(tools_call=strange), message_handler=fail) as (_, client):
        await client.list_tools()
        await add(client)
        await wait_all_tasks_blocked()
    assert all(record.getMessage().isprintable() for record in caplog.records)
