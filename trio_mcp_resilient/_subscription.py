"""`subscriptions/listen`, through every session: opened again after a cut, the gap told.

The protocol does not replay what changed while nobody listened, so after a gap each change that
was listened for may have happened, and is told as if it had.
"""

from __future__ import annotations

import logging
import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import final

import mcp_types as types
import trio
from mcp.client.session import ClientSession
from mcp.client.subscriptions import (
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ServerEvent,
    SubscriptionLost,
    ToolsListChanged,
    listen,
)
from mcp.client.subscriptions import Subscription as Stream
from mcp.shared.exceptions import MCPError

from trio_mcp_resilient._listening import REOPEN, SETTLED_SECONDS
from trio_mcp_resilient._secrets import one_line

logger = logging.getLogger("trio_mcp_resilient")

FRUITLESS = 5
"""How many streams in a row may end without having been worth it, before the end is believed."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What to listen for: the protocol's SubscriptionFilter."""

    tools_list_changed: bool = False
    prompts_list_changed: bool = False
    resources_list_changed: bool = False
    resource_subscriptions: tuple[str, ...] = ()


def covered(honored: types.SubscriptionFilter) -> list[ServerEvent]:
    """Return every change that a subscription would have told."""
    kinds: list[ServerEvent] = []
    if honored.tools_list_changed:
        kinds.append(ToolsListChanged())
    if honored.prompts_list_changed:
        kinds.append(PromptsListChanged())
    if honored.resources_list_changed:
        kinds.append(ResourcesListChanged())
    return kinds + [ResourceUpdated(uri) for uri in honored.resource_subscriptions or ()]


@final
class Subscription:
    """Changes at the server, as they are told: an async iterator of the SDK's event types.

    Yielded by `Client.listen`. Each event means "fetch it again". Where the stream broke, it is
    opened again, and every change that it covers is told once, for it may have happened meanwhile.
    Iterate in one task. Cancelling a wait loses nothing.
    """

    def __init__(
        self,
        session: ClientSession,
        wanted: Wanted,
        on_gap: Callable[[], Awaitable[None]],
        is_closed: Callable[[], bool],
    ) -> None:
        self._session = session
        self._wanted = wanted
        self._on_gap = on_gap
        self._is_closed = is_closed
        self._stack = AsyncExitStack()
        self._stream: Stream | None = None
        self._opened = 0.0
        self._fruitless = 0
        self._missed: list[ServerEvent] = []
        self._honored: types.SubscriptionFilter | None = None

    @property
    def honored(self) -> types.SubscriptionFilter:
        """The part of what was asked for that the server agreed to tell, as of the last opening."""
        assert self._honored is not None, "there is none before it is open"
        return self._honored

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> ServerEvent:
        """Wait for the next change.

        Raises:
            StopAsyncIteration: the server ended the subscription in good order, again and again.
            mcp.client.subscriptions.SubscriptionLost: it cannot be opened again.
            trio.ClosedResourceError: the client's block has ended.
            mcp.client.subscriptions.ListenNotSupportedError: another server came up, of an era
                that knows no subscriptions.

        Checkpoint: always. Cancellation: no event is lost.
        """
        await trio.lowlevel.checkpoint()
        while not self._missed:
            try:
                if self._stream is None:
                    await self._open_again()
                    continue
                event = await anext(self._stream)
            except (SubscriptionLost, StopAsyncIteration, MCPError) as error:
                await self._ended(error)
            else:
                self._fruitless = 0
                return event
        return self._missed.pop(0)

    async def open(self) -> None:
        """Open the stream and wait for the server's acknowledgment; `Client.listen` has done so.

        Cancellation: nothing is left open. Checkpoint: always.
        """
        if self._is_closed():
            await trio.lowlevel.checkpoint()
            raise trio.ClosedResourceError("this client is closed")
        wanted = self._wanted
        self._stream = await self._stack.enter_async_context(
            listen(
                self._session,
                tools_list_changed=wanted.tools_list_changed,
                prompts_list_changed=wanted.prompts_list_changed,
                resources_list_changed=wanted.resources_list_changed,
                resource_subscriptions=wanted.resource_subscriptions,
            )
        )
        self._honored = self._stream.honored
        self._opened = trio.current_time()

    async def _open_again(self) -> None:
        if not self._is_closed():
            await trio.sleep(REOPEN.delay(self._fruitless, random.random))
        await self.open()
        self._missed = covered(self.honored)
        await self._on_gap()

    async def _ended(self, error: Exception) -> None:
        """Let go of a stream that ended; believe it once it has ended too often."""
        if self._stream is not None and trio.current_time() - self._opened >= SETTLED_SECONDS:
            self._fruitless = 0
        await self.aclose()
        self._fruitless += 1
        logger.info("a subscription ended: %s", one_line(str(error)))
        if self._fruitless > FRUITLESS:
            raise error

    async def aclose(self) -> None:
        """Close the stream, which is how the server learns that nobody listens.

        Leaving the block of `Client.listen` does this. Cancellation: it is closed all the same.
        Checkpoint: if it was open.
        """
        self._stream = None
        await self._stack.aclose()


@asynccontextmanager
async def subscribe(
    session: ClientSession,
    wanted: Wanted,
    on_gap: Callable[[], Awaitable[None]],
    is_closed: Callable[[], bool],
) -> AsyncGenerator[Subscription, None]:
    """Open a subscription for as long as the block runs.

    Args:
        on_gap: awaited after the stream was opened again, before the missed changes are told.
        is_closed: whether the client's block has ended.
    """
    subscription = Subscription(session, wanted, on_gap, is_closed)
    await subscription.open()
    try:
        yield subscription
    finally:
        await subscription.aclose()
