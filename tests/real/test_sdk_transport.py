"""The SDK's own client on our transport, over real servers that are killed; as a control, on its own."""

from __future__ import annotations

from collections import Counter

import pytest
import trio
from mcp import Client as SdkClient
from mcp import MCPError
from mcp.client.subscriptions import ToolsListChanged

from trio_mcp_resilient import OutcomeUnknown, resilient_transport

from .calling import MANY, act, act_slowly, gather, once_each, plain_sdk_leaks
from .servers import KINDS, RealServer
from .test_real_running import PERSISTENT, SOON

pytestmark = [pytest.mark.real, pytest.mark.limit(60)]

MODERN_KINDS = [kind for kind in KINDS if kind.name.startswith("mcp2")]


async def test_a_killed_and_restarted_server(server: RealServer) -> None:
    async with SdkClient(resilient_transport(server.url), mode="legacy") as client:
        await act(client, "before")
        await server.restart()
        ends = await gather(act, client, "many")
        assert ends == [None] * MANY
        tools = await client.list_tools()
        assert {tool.name for tool in tools.tools} == {"act", "act_slowly", "act_in_steps"}
    assert server.handshakes == 2
    assert server.executions() == once_each("many") + Counter(["before"])


@plain_sdk_leaks
async def test_control_without_our_transport_it_is_stuck(server: RealServer) -> None:
    async with SdkClient(server.url, mode="legacy") as client:
        await act(client, "before")
        await server.restart()
        ends = await gather(act, client, "many")
        assert None not in ends
        # Not even alone, and for as long as it lives.
        with pytest.raises(MCPError):
            await act(client, "alone")
    assert server.handshakes == 1
    assert server.executions() == Counter(["before"])


async def test_many_running_calls_whose_server_is_killed(server: RealServer) -> None:
    ends: list[Exception | None] = []

    async def run_slow_calls() -> None:
        ends.extend(await gather(act_slowly, client, "slow"))

    transport = resilient_transport(server.url, backoff=PERSISTENT)
    async with SdkClient(transport, mode="legacy") as client:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run_slow_calls)
            await server.wait_until(lambda: len(server.executions("slow")) == MANY)
            await server.process.kill()
            nursery.cancel_scope.deadline = trio.current_time() + SOON
        unknown = [isinstance(end, MCPError) and OutcomeUnknown.from_mcp(end) is not None for end in ends]
        assert unknown == [True] * MANY
        await server.process.start()
        await act(client, "after")
    assert server.executions("slow") == once_each("slow")
    assert server.executions("after").total() == 1


@pytest.mark.parametrize("kind", MODERN_KINDS, ids=str)
async def test_without_sessions(server: RealServer) -> None:
    async with SdkClient(resilient_transport(server.url, backoff=PERSISTENT)) as client:
        assert client.protocol_version == "2026-07-28"
        async with client.listen(tools_list_changed=True) as subscription:
            await act(client, "before")
            await server.restart()
            ends = await gather(act, client, "many")
            assert ends == [None] * MANY
            assert await anext(subscription) == ToolsListChanged()
    assert server.handshakes == 0
    assert server.executions() == once_each("many") + Counter(["before"])
