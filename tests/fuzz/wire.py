"""The HTTP/1.1 reader: any bytes end in an answer or a `WireError`, and leave no connection."""

from __future__ import annotations

from typing import Literal

import trio
from trio.testing import MockClock

from tests.fuzz.pieces import cut
from tests.http_peer import ENDPOINT
from trio_mcp_resilient._connections import Connections
from trio_mcp_resilient._scripted_stream import MemoryStream, memory_connection
from trio_mcp_resilient._wire import Stage, WireError

Ending = Literal["end", "reset", "silence"]
PATIENCE = 5.0


def http11(example: tuple[bytes, list[int], Ending]) -> None:
    """Send a request, give the reader some bytes and an ending, and read what it makes of them."""
    trio.run(_exchange, *example, clock=MockClock(autojump_threshold=0))


async def _exchange(data: bytes, places: list[int], ending: Ending) -> None:
    near, far = memory_connection()

    async def connect(host: str, port: int) -> trio.abc.Stream:
        await trio.lowlevel.checkpoint()
        return near

    connections = Connections(connect=connect)
    with trio.fail_after(100):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_answer, far, cut(data, places), ending)
            try:
                response = await connections.request(ENDPOINT, "POST", [], b"{}", read_timeout=PATIENCE)
                assert 200 <= response.status <= 999
                read = 0
                while part := await response.receive():
                    read += len(part)
                assert read <= len(data)
                await response.aclose()
            except WireError as error:
                assert error.stage >= Stage.PARTLY_WRITTEN
                assert error.message.isprintable()
    held = connections.statistics()
    assert (held.busy, held.connecting) == (0, 0)
    connections.close()


async def _answer(far: MemoryStream, parts: list[bytes], ending: Ending) -> None:
    try:
        for part in parts:
            await far.send_all(part)
            await trio.testing.wait_all_tasks_blocked()
    except trio.BrokenResourceError:
        return
    if ending == "end":
        await far.aclose()
    elif ending == "reset":
        far.reset()
