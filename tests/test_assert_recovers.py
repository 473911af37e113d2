"""The kit's own judge: what it passes, and above all what it fails, and in which words."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import mcp
import pytest
import trio
from mcp import MCPError
from trio.testing import MockClock

from tests.kit import STEADY, open_pair, open_sdk_pair, open_server
from trio_mcp_resilient import Client, OutcomeUnknown, ResilientError, SessionLost, open_client
from trio_mcp_resilient.testing import BREAKS, DIALECTS, CallsTools, ScriptedServer, assert_recovers


@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize("get_stream", [True, False])
async def test_ours_recovers(era: Any, get_stream: bool, autojump_clock: MockClock) -> None:
    async with open_pair(era, get_stream=get_stream) as (server, client):
        await assert_recovers(client, server)
        assert {how for how in BREAKS if how in DIALECTS} == set(DIALECTS)


async def test_the_sdks_on_our_transport_recovers(autojump_clock: MockClock) -> None:
    async with open_sdk_pair() as (server, client):
        await assert_recovers(client, server)


@pytest.mark.parametrize("json_mode", [True, False])
async def test_whatever_the_answers_are(json_mode: bool, autojump_clock: MockClock) -> None:
    async with open_pair() as (server, client):
        server.json_mode = json_mode
        server.resumable = not json_mode
        for how in BREAKS:
            if "-" in how and how not in DIALECTS:
                await assert_recovers(client, server, how)


async def test_it_takes_its_tool_away(autojump_clock: MockClock) -> None:
    async with open_pair() as (server, client):
        await assert_recovers(client, server, "restart")
        assert [tool.name for tool in (await client.list_tools()).tools] == ["add", "slow"]


async def test_an_unknown_name_is_refused(autojump_clock: MockClock) -> None:
    async with open_pair() as (server, client):
        with pytest.raises(ValueError, match="earthquake' is none of "):
            await assert_recovers(client, server, "earthquake")


# -- what fails --------------------------------------------------------------------------------------


async def test_the_sdks_client_fails() -> None:
    async with open_server() as server:
        # It leaves the generators that read an event stream to the garbage collector.
        server.json_mode, server.offer_get_stream = True, False
        url = f"http://127.0.0.1:{await server.serve_tcp()}/mcp"
        # It speaks TCP only, so the clock is the real one; nothing here waits.
        async with mcp.Client(url, mode="legacy") as client:
            with pytest.raises(AssertionError) as failed:
                await assert_recovers(client, server, "404-32001")
    said = str(failed.value)
    assert "no recovery from '404-32001' (the session is forgotten, and refused as '404-32001'):" in said
    assert "call 1, call 2, call 3" in said
    assert "call 10, the call after: raised MCPError: Session not found" in said
    assert "which does not say whether it ran; it did not run" in said
    assert "0 handshakes were made, and one was due" in said
    assert "POST tools/call id=" in said
    assert "-> 404>" in said


class Other:
    """A client with habits of its own."""

    def __init__(self, call: Callable[[str, dict[str, Any]], Awaitable[Any]]) -> None:
        self._call = call

    async def call_tool(self, name: str, arguments: dict[str, Any], /) -> Any:
        return await self._call(name, arguments)


def tries_anything_again(server: ScriptedServer, client: Client) -> CallsTools:
    async def call(name: str, arguments: dict[str, Any]) -> Any:
        try:
            return await client.call_tool(name, arguments)
        except ResilientError:
            return await client.call_tool(name, arguments)

    return Other(call)


def raising(
    kind: Callable[[str, ResilientError], Exception],
) -> Callable[[ScriptedServer, Client], CallsTools]:
    def make(server: ScriptedServer, client: Client) -> CallsTools:
        async def call(name: str, arguments: dict[str, Any]) -> Any:
            try:
                return await client.call_tool(name, arguments)
            except ResilientError as error:
                raise kind(server.requests[3].session_id or "", error) from error

        return Other(call)

    return make


def waits_for_ever(server: ScriptedServer, client: Client) -> CallsTools:
    async def call(name: str, arguments: dict[str, Any]) -> Any:
        try:
            return await client.call_tool(name, arguments)
        except ResilientError:
            await trio.sleep_forever()

    return Other(call)


def opens_a_client_for_each(server: ScriptedServer, client: Client) -> CallsTools:
    async def call(name: str, arguments: dict[str, Any]) -> Any:
        async with open_client(server.url, connect=server.connect, mode="legacy") as another:
            return await another.call_tool(name, arguments)

    return Other(call)


def gives_the_last_answer(server: ScriptedServer, client: Client) -> CallsTools:
    answers: list[Any] = []

    async def call(name: str, arguments: dict[str, Any]) -> Any:
        answers.append(await client.call_tool(name, arguments))
        return answers[-2] if len(answers) > 1 else answers[0]

    return Other(call)


def makes_answers_up(server: ScriptedServer, client: Client) -> CallsTools:
    async def call(name: str, arguments: dict[str, Any]) -> Any:
        await trio.lowlevel.checkpoint()
        return arguments["mark"]

    return Other(call)


def renews_all_the_time(server: ScriptedServer, client: Client) -> CallsTools:
    async def call(name: str, arguments: dict[str, Any]) -> Any:
        client.invalidate()
        return await client.call_tool(name, arguments)

    return Other(call)


LIES = {
    "runs a call twice": (tries_anything_again, "cut-before-head", "the call: ran 2 times"),
    "says it did not run": (
        raising(lambda _, error: SessionLost("lost")),
        "cut-before-head",
        "raised SessionLost: lost\n    which says executed=False; it ran once",
    ),
    "hangs": (waits_for_ever, "silent", "the call: was not back after 600 s; it ran once"),
    "a handshake for each call": (
        opens_a_client_for_each,
        "404-rpc",
        "11 handshakes were made, and one was due",
    ),
    "mixes answers up": (gives_the_last_answer, "restart-kept", "came back with what is not its own: "),
    "invents answers": (makes_answers_up, "restart-kept", "came back, and did not run"),
    "handshakes for nothing": (
        renews_all_the_time,
        "cut-before-end",
        "2 handshakes were made, and 0 to 1 were due",
    ),
    "does not say": (
        raising(lambda _, error: RuntimeError("failed")),
        "cut-mid-body",
        "the call: raised RuntimeError: failed\n    which does not say whether it ran; it ran once",
    ),
    "tells a session's id": (
        raising(lambda session_id, error: RuntimeError(f"no {session_id}")),
        "cut-mid-body",
        "raised RuntimeError: no <session 1>",
    ),
}


@pytest.mark.parametrize("lie", LIES)
async def test_a_client_that_does_wrong_fails(lie: str, autojump_clock: MockClock) -> None:
    make, how, said = LIES[lie]
    async with open_pair() as (server, client):
        with pytest.raises(AssertionError) as failed:
            await assert_recovers(make(server, client), server, how)
        assert said in str(failed.value)
        assert not any(seen.session_id in str(failed.value) for seen in server.requests if seen.session_id)


async def test_a_client_that_never_worked_fails_at_the_call_before(autojump_clock: MockClock) -> None:
    async def call(name: str, arguments: dict[str, Any]) -> Any:
        await trio.lowlevel.checkpoint()
        raise OSError("no route")

    async with open_server() as server:
        with pytest.raises(AssertionError, match="the call before: raised OSError: no route"):
            await assert_recovers(Other(call), server)
        assert server.requests == []


async def test_a_client_that_says_unknown_where_it_is_known_fails(autojump_clock: MockClock) -> None:
    async with open_pair(resend="never") as (server, client):
        doubting = raising(lambda _, error: OutcomeUnknown("who knows"))(server, client)
        with pytest.raises(AssertionError, match="which says that nobody can know, and one can"):
            await assert_recovers(doubting, server, "cut-mid-request", resends=False)


async def test_a_client_may_be_told_not_to_send_again(autojump_clock: MockClock) -> None:
    async with open_pair(resend="never", get_stream=False) as (server, client):
        await assert_recovers(client, server, resends=False)
        with pytest.raises(
            AssertionError, match=r"raised SessionLost: .*\n    which could have been sent again"
        ):
            await assert_recovers(client, server, "404-rpc")


async def test_the_sdks_errors_are_read_by_their_data(autojump_clock: MockClock) -> None:
    async with open_sdk_pair(resend="never", get_stream=False) as (server, client):
        await assert_recovers(client, server, resends=False)
        with pytest.raises(
            AssertionError, match=r"raised MCPError: .*\n    which could have been sent again"
        ):
            await assert_recovers(client, server, "404-rpc")


async def test_a_server_that_executed_without_an_answer_may_be_said_to_have(
    autojump_clock: MockClock,
) -> None:
    class Ran(MCPError):
        executed = True

    async with open_pair() as (server, client):
        ran = raising(lambda _, error: Ran(-1, "it ran"))(server, client)
        await assert_recovers(ran, server, "cut-before-head")
        with pytest.raises(AssertionError, match="which says executed=True; it did not run"):
            await assert_recovers(ran, server, "cut-before-run")


async def test_what_did_not_happen_is_no_proof() -> None:
    async with open_server() as server:
        url = f"http://127.0.0.1:{await server.serve_tcp()}/mcp"
        async with open_client(url, mode="legacy", backoff=STEADY) as client:
            with pytest.raises(AssertionError, match="it did not happen to any call"):
                await assert_recovers(client, server, "cut-mid-request")
