"""What other people's test suites found, told in our own words."""

from __future__ import annotations

import pytest
import trio
from mcp import MCPError
from trio.testing import MockClock

from tests.kit import add, open_pair
from trio_mcp_resilient import open_client
from trio_mcp_resilient.testing import RpcError, open_scripted_server


@pytest.mark.parametrize("code", [-32020, -32021, -32022])
async def test_a_code_of_the_other_era_is_a_tools_own_if_the_tool_gave_it(
    code: int, autojump_clock: MockClock
) -> None:
    """It was taken for a refusal by a server of the other era, and the tool was run again."""
    async with open_pair(get_stream=False) as (server, client):

        def refuse() -> str:
            raise RpcError(code, "from a server behind this one")

        server.tool("refuse", refuse)
        with pytest.raises(MCPError, match="behind this one") as caught:
            await client.call_tool("refuse", {})
        assert caught.value.code == code
        assert server.executed["refuse"] == 1
        assert client.generation == 1


async def test_a_tools_own_mismatch_is_no_mismatch_of_headers(autojump_clock: MockClock) -> None:
    """Of a tool whose arguments stay out of headers, another sending would be the same, and run it again."""
    async with open_scripted_server(era="modern") as server:

        def refuse() -> str:
            raise RpcError(-32020, "from a server behind this one")

        server.tool("refuse", refuse)
        async with open_client(server.url, connect=server.connect) as client:
            with pytest.raises(MCPError, match="behind this one"):
                await client.call_tool("refuse", {})
        assert server.executed["refuse"] == 1


async def test_an_id_that_a_caller_has_chosen_is_not_minted_for_another(autojump_clock: MockClock) -> None:
    """The other request was refused by the client itself, as if it had chosen the id."""
    async with open_pair(get_stream=False) as (server, client):
        await client.list_tools()
        dispatcher = client.session._dispatcher
        taken = max(seen.rpc_id for seen in server.posts() if isinstance(seen.rpc_id, int)) + 2
        held = server.hold("ping", point="before-run")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(dispatcher.send_raw_request, "ping", None, {"request_id": str(taken)})
            await held.reached()
            for _ in range(3):
                assert await add(client) == "3"
            # The same one again is the caller's mistake, and says so.
            with pytest.raises(ValueError, match="already in flight"):
                await dispatcher.send_raw_request("ping", None, {"request_id": taken})
            held.release()
        ids = [seen.rpc_id for seen in server.posts("tools/call")]
        assert taken not in ids
        assert len(set(ids)) == 3
