"""The era without sessions, and redeploys from one era to the other, on real servers."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from mcp import Client as SdkClient
from mcp.client.subscriptions import ToolsListChanged

from trio_mcp_resilient import Client, Event, OutcomeUnknown, StreamGap, open_client

from .calling import MANY, act, act_slowly, gather, once_each, plain_sdk_leaks
from .servers import KINDS, Kind, RealServer, open_server
from .test_real_running import PERSISTENT, SOON, Dials

pytestmark = [pytest.mark.real, pytest.mark.limit(60)]

MODERN_KINDS = [kind for kind in KINDS if kind.name.startswith("mcp2")]
LEGACY_KINDS = [kind for kind in KINDS if kind.name == "mcp1-sse"]
MODERN = "2026-07-28"

modern = pytest.mark.parametrize("kind", MODERN_KINDS, ids=str)


@modern
async def test_many_running_calls_whose_server_is_killed(server: RealServer) -> None:
    ends: list[Exception | None] = []

    async def run_slow_calls() -> None:
        ends.extend(await gather(act_slowly, client, "slow"))

    async with open_client(server.url, backoff=PERSISTENT) as client:
        assert client.protocol_version == MODERN
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run_slow_calls)
            await server.wait_until(lambda: len(server.executions("slow")) == MANY)
            await server.process.kill()
            nursery.cancel_scope.deadline = trio.current_time() + SOON
        assert [type(end) for end in ends] == [OutcomeUnknown] * MANY
        await server.process.start()
        await act(client, "after")
    assert server.executions("slow") == once_each("slow")
    assert server.executions("after").total() == 1
    assert server.handshakes == 0, "there are no sessions in this era"


@modern
async def test_calls_made_while_the_server_is_down_wait_for_it(server: RealServer) -> None:
    ends: list[Exception | None] = []

    async def call_many() -> None:
        ends.extend(await gather(act, client, "down"))

    dials = Dials()
    async with open_client(server.url, backoff=PERSISTENT, connect=dials.dial) as client:
        await act(client, "before")
        await server.process.kill()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call_many)
            await dials.wait_for_refusals(5)
            assert ends == []
            await server.process.start()
        assert ends == [None] * MANY
    assert server.executions("down") == once_each("down")


# In JSON mode this server does not notice that its client has gone.
@pytest.mark.parametrize("kind", MODERN_KINDS[:1], ids=str)
async def test_a_cancelled_call_is_stopped_on_the_server(server: RealServer) -> None:
    async with open_client(server.url) as client:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(act_slowly, client, "slow")
            await server.wait_until(lambda: server.executions("slow").total() == 1)
            nursery.cancel_scope.cancel()
        await server.wait_until(lambda: server.stopped() == ["slow"])
        await act(client, "after")
    assert server.executions() == {"slow": 1, "after": 1}


@modern
async def test_a_subscription_outlives_the_server_and_tells_the_gap(server: RealServer) -> None:
    events: list[Event] = []
    async with open_client(server.url, backoff=PERSISTENT, on_event=events.append) as client:
        async with client.listen(tools_list_changed=True) as subscription:
            await server.restart()
            assert await anext(subscription) == ToolsListChanged()
        assert [event for event in events if isinstance(event, StreamGap)] == [StreamGap(client.generation)]


async def deploy_and_call(client: Client | SdkClient, kind: Kind, old: RealServer, folder: Path) -> int:
    """Put another server in the place of `old`; return how many of many calls it answers."""
    await act(client, "before")
    await old.process.kill()
    async with open_server(kind, folder, port=old.process.port) as new:
        ends = await gather(act, client, "new")
        answered = ends.count(None)
        if answered:
            assert new.executions() == once_each("new")
            assert new.handshakes == 1
        return answered


@pytest.mark.parametrize("legacy", LEGACY_KINDS, ids=str)
@modern
async def test_calls_are_rescued_by_a_server_of_the_older_era(
    server: RealServer, legacy: Kind, tmp_path_factory: pytest.TempPathFactory
) -> None:
    async with open_client(server.url) as client:
        assert await deploy_and_call(client, legacy, server, tmp_path_factory.mktemp("new")) == MANY
        assert client.protocol_version == "2025-11-25"


@pytest.mark.parametrize("legacy", LEGACY_KINDS, ids=str)
@plain_sdk_leaks
@modern
async def test_control_the_plain_sdk_is_stuck_in_its_era(
    server: RealServer, legacy: Kind, tmp_path_factory: pytest.TempPathFactory
) -> None:
    async with SdkClient(server.url) as client:
        assert await deploy_and_call(client, legacy, server, tmp_path_factory.mktemp("new")) == 0
