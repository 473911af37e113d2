"""One client of a pool, in a task of the pool's own: its lifetime is not that of who asked first."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import httpx
import httpx2
import trio

from trio_mcp_resilient._client import Client, counters_of
from trio_mcp_resilient._events import Event
from trio_mcp_resilient._open import open_client
from trio_mcp_resilient._pool_events import ClientEvent, Closing, PoolEvent
from trio_mcp_resilient._pool_keys import Key
from trio_mcp_resilient._pool_options import ClientOptions
from trio_mcp_resilient._pool_slot import Slot

CLOSE_TIMEOUT = 2.0
"""What `open_client` takes if it is not told."""


@dataclass(frozen=True, eq=False)
class Asked:
    """What a lease asks for. Whoever holds it keeps the auth object, which is in the key, alive."""

    key: Key
    url: str = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    auth: httpx.Auth | httpx2.Auth | None = field(repr=False)
    options: ClientOptions = field(repr=False)


class Holder(Protocol):
    """Who holds a lease, as far as its client has to do with them."""

    def end(self, error: Exception) -> None:
        """Cancel the lease, because of this."""
        ...


class Owner(Protocol):
    """The pool, as its clients see it. All synchronous."""

    def connected(self, client: PooledClient, seconds: float) -> None:
        """Hear that a client is connected."""
        ...

    def broke(self, client: PooledClient, error: Exception) -> None:
        """Hear that a client could not be connected, or that its task failed."""
        ...

    def quiet(self, client: PooledClient) -> None:
        """Hear that a client's last call in progress has ended."""
        ...

    def closing(self, client: PooledClient, reason: Closing) -> None:
        """Hear that a client has left, and now says goodbye."""
        ...

    def gone(self, client: PooledClient) -> None:
        """Hear that a client's task ends."""
        ...

    @property
    def is_watched(self) -> bool:
        """Whether somebody wants to be told."""
        ...

    def tell(self, event: PoolEvent) -> None:
        """Pass an event on."""
        ...


class PooledClient(Slot):
    """A slot with its client, and the task that keeps it open."""

    def __init__(self, asked: Asked, owner: Owner) -> None:
        super().__init__(asked.key)
        self.holders: dict[Holder, float] = {}
        """Who has a lease, and since when."""
        self.client: Client | None = None
        self._asked = asked
        self._owner = owner
        self._over = trio.Event()
        self._scope = trio.CancelScope()

    @property
    def is_quiet(self) -> bool:
        """Whether no call is in progress on the client."""
        return self.client is None or counters_of(self.client).in_progress == 0

    def close(self, reason: Closing) -> None:
        """Begin to close the client, or to give up connecting it.

        A handshake under way gets as long as a farewell does: cut before its answer, it would
        leave a session at the server that nobody knows to end.
        """
        self._over.set()
        if self.client is None:
            patience = self._asked.options.get("close_timeout", CLOSE_TIMEOUT)
            self._scope.deadline = trio.current_time() + patience
        self._owner.closing(self, reason)

    def stop(self) -> None:
        """Close it now, whatever it does; only the goodbye to the server is still bounded work."""
        self._scope.cancel()

    async def run(self) -> None:
        """Open the client, keep it open until it is to close, and say goodbye."""
        asked, began = self._asked, trio.current_time()
        try:
            with self._scope:
                async with open_client(
                    asked.url,
                    headers=asked.headers,
                    auth=asked.auth,
                    name=asked.key.label,
                    on_event=self._watch if self._owner.is_watched else None,
                    **asked.options,
                ) as self.client:
                    self._scope.deadline = math.inf
                    counters_of(self.client).on_quiet = partial(self._owner.quiet, self)
                    self._owner.connected(self, trio.current_time() - began)
                    await self._over.wait()
        except Exception as error:
            # It is one client's failure, and neither the pool's nor the other clients'.
            self._owner.broke(self, error)
        finally:
            self._owner.gone(self)

    def _watch(self, event: Event) -> None:
        self._owner.tell(ClientEvent(self.key.label, event))
