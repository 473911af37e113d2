"""The scripted server without sessions (2026-07-28): raw HTTP/1.1, and the SDK's client as a control."""

from __future__ import annotations

from typing import Any

import mcp
import mcp_types
import pytest
import trio
import trio.testing
from mcp.client.subscriptions import ToolsListChanged
from scripted_peer import ADD, ADDED, MODERN, Peer

from trio_mcp_resilient.testing import (
    DISCOVER_DIALECTS,
    ScriptedServer,
    open_scripted_server,
)

SERVER_INFO = {"io.modelcontextprotocol/serverInfo": {"name": "scripted", "version": "1"}}


async def come(server: ScriptedServer) -> Peer:
    """Return a peer, with one tool to call."""
    server.tool("add", lambda a, b: a + b)
    return await Peer(server).open()


async def add(peer: Peer) -> Any:
    return await peer.post_modern("tools/call", {"name": "add", "arguments": ADD})


async def test_is_discovered_and_called(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server(era="modern") as server:
        server.instructions = "add things"
        peer = await come(server)
        discovered = (await peer.post_modern("server/discover")).json["result"]
        assert discovered["supportedVersions"] == [MODERN]
        assert discovered["capabilities"] == server.capabilities
        assert discovered["instructions"] == "add things"
        assert discovered["resultType"] == "complete" and discovered["_meta"] == SERVER_INFO
        answer = await add(peer)
        assert answer.status == 200 and "mcp-session-id" not in answer.headers
        assert answer.json["result"] == {"resultType": "complete", "content": ADDED, "_meta": SERVER_INFO}
        assert server.executed == {"add": 1} and not server.sessions and not server.client_faults


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("mcp_protocol_version", "2025-11-25"),
        ("mcp_method", "tools/list"),
        ("mcp_name", "sub"),
        ("mcp_name", "=?base64?c3Vi?="),
        ("mcp_name", "=?base64?no?="),
    ],
)
async def test_header_fields_must_repeat_the_body(
    autojump_clock: trio.testing.MockClock, field: str, value: str
) -> None:
    async with open_scripted_server(era="modern") as server:
        peer = await come(server)
        message, fields = peer.modern("tools/call", {"name": "add", "arguments": ADD})
        answer = await peer.ask("POST", message, **{**fields, field: value})
        assert answer.status == 400 and answer.json["error"]["code"] == -32020
        assert answer.json["id"] == message["id"]
        assert server.client_faults == {"header": 1} and not server.executed


async def test_the_envelope_must_be_there(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server(era="modern") as server:
        peer = await come(server)
        answer = await peer.tool("add", ADD)
        assert answer.status == 400 and answer.json["error"]["code"] == -32602
        assert server.client_faults == {"envelope": 1} and not server.executed


async def test_initialize_is_told_the_version(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server(era="modern") as server:
        refused = await (await come(server)).initialize()
        assert refused.status == 400 and refused.json["error"]["code"] == -32022
        assert refused.json["error"]["data"] == {"supported": [MODERN], "requested": "2025-11-25"}


@pytest.mark.parametrize("dialect", DISCOVER_DIALECTS)
async def test_a_server_of_sessions_knows_no_discovery(
    autojump_clock: trio.testing.MockClock, dialect: str
) -> None:
    async with open_scripted_server(discover_dialect=dialect) as server:
        peer = await come(server)
        message, fields = peer.modern("server/discover")
        answer = await peer.ask("POST", message, **fields)
        assert answer.status == int(dialect[:3])
        assert (await peer.initialize()).status == 200


async def test_both_eras_on_one_url(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server(era="both") as server:
        peer = await come(server)
        await peer.initialize()
        assert (await peer.tool("add", ADD)).messages[0]["result"]["content"] == ADDED
        newer = await Peer(server).open()
        assert (await add(newer)).json["result"]["content"] == ADDED
        assert not server.client_faults


async def test_comes_back_in_another_era(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server(era="modern") as server:
        peer = await come(server)
        await add(peer)
        server.restart(era="legacy")
        peer = await Peer(server).open()
        assert (await add(peer)).status == 400
        assert (await peer.initialize()).status == 200
        server.restart(era="modern")
        peer = await Peer(server).open()
        assert (await peer.initialize()).status == 400
        assert (await add(peer)).status == 200


async def test_a_disconnect_is_the_cancel(autojump_clock: trio.testing.MockClock) -> None:
    async with open_scripted_server(era="modern") as server:
        ended = trio.Event()

        async def slow() -> None:
            try:
                await trio.sleep_forever()
            finally:
                ended.set()

        server.tool("slow", slow)
        peer = await Peer(server).open()
        message, fields = peer.modern("tools/call", {"name": "slow"})
        await peer.send("POST", message, **fields)
        await trio.testing.wait_all_tasks_blocked()
        assert server.running == 1 and peer.stream is not None
        peer.stream.close()
        await ended.wait()
        assert server.disconnects == [message["id"]]


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("mode", ["auto", MODERN])
async def test_the_sdk_client_calls_and_listens(mode: Any) -> None:
    async with open_scripted_server(era="modern") as server:
        server.tool("add", lambda a, b: a + b)
        port = await server.serve_tcp()
        async with mcp.Client(f"http://127.0.0.1:{port}/mcp", mode=mode) as client:
            assert client.protocol_version == MODERN
            result = await client.call_tool("add", ADD)
            assert result.content == [mcp_types.TextContent(type="text", text="3")]
            async with client.listen(tools_list_changed=True) as subscription:
                assert server.tools_list_changed() == 1
                assert await anext(aiter(subscription)) == ToolsListChanged()
        assert not server.client_faults
