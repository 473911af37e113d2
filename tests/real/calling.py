"""How the tests call: one call or many at once, each with a key that the server records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable

import pytest
import trio
from mcp import Client as SdkClient
from mcp_types import CallToolResult, TextContent

from trio_mcp_resilient import Client

MANY = 20

plain_sdk_leaks = pytest.mark.filterwarnings("ignore:Async generator 'http(x|core)2:ResourceWarning")
"""For the controls: the SDK's client drops its event streams half-read, which is not ours to mend."""


async def act(client: Client | SdkClient, key: str) -> None:
    """Call `act` and check that its answer is this call's own."""
    result = await client.call_tool("act", {"key": key})
    assert isinstance(result, CallToolResult)
    assert not result.is_error
    (block,) = result.content
    assert isinstance(block, TextContent)
    assert block.text == f"did {key}"


async def act_slowly(client: Client | SdkClient, key: str) -> None:
    """Call the tool that begins and never ends."""
    await client.call_tool("act_slowly", {"key": key})


async def gather(
    what: Callable[[Client | SdkClient, str], Awaitable[None]], client: Client | SdkClient, prefix: str
) -> list[Exception | None]:
    """Make `MANY` calls at once, with keys that begin with `prefix`; return how each ended."""
    ends: list[Exception | None] = []

    async def one(key: str) -> None:
        try:
            await what(client, key)
        except Exception as error:
            ends.append(error)
        else:
            ends.append(None)

    async with trio.open_nursery() as nursery:
        for key in keys(prefix):
            nursery.start_soon(one, key)
    return ends


def keys(prefix: str) -> list[str]:
    """The keys that `gather` uses."""
    return [f"{prefix}-{number}" for number in range(MANY)]


def once_each(prefix: str) -> Counter[str]:
    """What the server has to have counted if each call ran exactly once."""
    return Counter(keys(prefix))
