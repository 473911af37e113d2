"""Six ways in which servers refuse a lost session, after the conformance suite's proposed scenario.

Session A is lost at the first `tools/call`. A client that recovers initializes again without the
session header and makes the call again on session B. The control is the plain SDK client. Both
talk to the server over TCP, which is all that the control can do.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
from mcp import Client as SdkClient
from mcp import MCPError
from mcp_types import CallToolResult, TextContent

from trio_mcp_resilient import is_session_terminated, open_client
from trio_mcp_resilient.testing import DIALECTS, Reply, ScriptedServer, SeenRequest, open_scripted_server

REFUSALS = {
    "404-rpc": DIALECTS["404-rpc"],
    "404-32001": DIALECTS["404-32001"],
    "404-empty": DIALECTS["404-empty"],
    "404-html": Reply(404, "<h1>Not Found</h1>", "text/html"),
    "400-text": Reply(400, "Invalid or missing session ID", "text/html"),
    "400-rpc": DIALECTS["400-rpc"],
}
CALL = "tools/call"


@asynccontextmanager
async def lossy_server(variant: str) -> AsyncGenerator[tuple[ScriptedServer, str], None]:
    """Run one on a real socket of loopback; yields it and its URL."""
    async with open_scripted_server() as server:
        server.tool("echo", lambda: "ok")
        # The control leaves event streams to the garbage collector, so that it must see none.
        server.json_mode, server.offer_get_stream = True, False
        server.dialect(REFUSALS[variant])

        def forget_a(seen: SeenRequest) -> None:
            if seen.rpc_method == CALL and len(server.posts(CALL)) == 1:
                server.lose_session()

        server.on_request(forget_a)
        yield server, f"http://127.0.0.1:{await server.serve_tcp()}/mcp"


def sessions_of(server: ScriptedServer, method: str) -> list[int | None]:
    """By which sessions the requests of a method were made, counted from 1 as they came up."""
    numbers: dict[str, int] = {}
    for seen in server.requests:
        if seen.session_id is not None:
            numbers.setdefault(seen.session_id, len(numbers) + 1)
    return [None if seen.session_id is None else numbers[seen.session_id] for seen in server.seen(method)]


@pytest.mark.parametrize("variant", REFUSALS)
async def test_the_call_that_meets_the_loss_is_made_again_on_a_new_session(variant: str) -> None:
    async with lossy_server(variant) as (server, url):
        async with open_client(url, mode="legacy") as client:
            result = await client.call_tool("echo", {})
        assert isinstance(result, CallToolResult)
        assert result.content == [TextContent(type="text", text="ok")]
        # The second handshake carries no id, above all not the lost one.
        assert sessions_of(server, "initialize") == [None, None]
        assert sessions_of(server, CALL) == [1, 2]
        # The lost session is not said goodbye to; the live one is.
        assert sessions_of(server, "DELETE") == [2]
        assert server.executed["echo"] == 1


@pytest.mark.parametrize("variant", REFUSALS)
async def test_control_the_plain_sdk_client_stays_on_the_lost_session(variant: str) -> None:
    async with lossy_server(variant) as (server, url):
        async with SdkClient(url, mode="legacy") as client:
            for _ in range(2):
                with pytest.raises(MCPError) as raised:
                    await client.call_tool("echo", {})
                # The SDK says so only when the server's answer has no JSON-RPC error of its own.
                assert is_session_terminated(raised.value) is (variant in {"404-empty", "404-html"})
        assert sessions_of(server, "initialize") == [None]
        assert set(sessions_of(server, CALL)) == {1}
        assert server.executed["echo"] == 0
