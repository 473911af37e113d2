"""A session lost between calls: the next one is answered, whatever it is, and nothing runs twice."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import trio
from mcp import Client as SdkClient

from trio_mcp_resilient import Event, SessionStarted, open_client

from .calling import MANY, act, gather, once_each, plain_sdk_leaks
from .servers import SSE_KINDS, Kind, RealServer, open_server

pytestmark = [pytest.mark.real, pytest.mark.limit(60)]


@pytest.mark.parametrize("get_stream", [True, False], ids=["stream", "no-stream"])
async def test_a_killed_and_restarted_server(server: RealServer, get_stream: bool) -> None:
    async with open_client(server.url, mode="legacy", get_stream=get_stream) as client:
        await act(client, "before")
        await server.restart()
        await act(client, "after")
        assert server.handshakes == 2
        await server.restart()
        tools = await client.list_tools()
        assert {tool.name for tool in tools.tools} == {"act", "act_slowly", "act_in_steps"}
        assert server.handshakes == 3
    assert server.executions() == Counter(["before", "after"])


async def test_a_session_deleted_by_somebody_else(server: RealServer) -> None:
    # Without the standalone stream it is the call, and nothing before it, that meets the loss.
    async with open_client(server.url, mode="legacy", get_stream=False) as client:
        await act(client, "before")
        await server.delete_session(server.newest_session)
        await act(client, "after")
        assert server.handshakes == 2
        await server.delete_session(server.newest_session)
        await client.list_tools()
        assert server.handshakes == 3
        # Both met it themselves. The client's own look at what the new session offers may have, too.
        assert client.statistics().resends >= 2
    assert server.executions() == Counter(["before", "after"])


async def test_many_calls_at_once_on_a_deleted_session(server: RealServer) -> None:
    async with open_client(server.url, mode="legacy", get_stream=False) as client:
        await act(client, "before")
        await server.delete_session(server.newest_session)
        ends = await gather(act, client, "many")
        assert ends == [None] * MANY
        assert server.handshakes == 2
    assert server.executions("many") == once_each("many")


async def test_a_session_that_expired_from_idleness(kind: Kind, tmp_path: Path) -> None:
    async with open_server(kind.with_env(IDLE="0.5"), tmp_path) as server:
        # The standalone stream would keep the session busy.
        async with open_client(server.url, mode="legacy", get_stream=False) as client:
            await act(client, "before")
            await server.wait_until_refused(server.newest_session, pause=0.6)
            known = server.handshakes
            await act(client, "after")
            assert server.handshakes == known + 1
        assert server.executions() == Counter(["before", "after"])


@pytest.mark.parametrize("kind", SSE_KINDS, ids=str)
async def test_the_standalone_stream_shows_the_loss_before_a_call_meets_it(server: RealServer) -> None:
    renewed = trio.Event()

    def watch(event: Event) -> None:
        if isinstance(event, SessionStarted) and event.generation == 2:
            renewed.set()

    async with open_client(server.url, mode="legacy", on_event=watch) as client:
        await act(client, "before")
        await server.delete_session(server.newest_session)
        await renewed.wait()
        await act(client, "after")
        assert client.statistics().resends == 0
    assert server.handshakes == 2


@pytest.mark.parametrize("kind", SSE_KINDS, ids=str)
async def test_the_farewell_ends_the_session_on_the_server(server: RealServer) -> None:
    async with open_client(server.url, mode="legacy") as client:
        await act(client, "only")
    await server.wait_until_refused(server.newest_session)


@plain_sdk_leaks
@pytest.mark.parametrize("kind", SSE_KINDS, ids=str)
async def test_control_the_plain_sdk_client_stays_stuck(server: RealServer) -> None:
    async with SdkClient(server.url, mode="legacy") as client:
        await act(client, "before")
        await server.restart()
        for key in ("after", "again"):
            with pytest.raises(Exception, match="Session not found"):
                await act(client, key)
        ends = await gather(act, client, "many")
        assert None not in ends
    assert server.handshakes == 1
    assert server.executions() == Counter(["before"])
