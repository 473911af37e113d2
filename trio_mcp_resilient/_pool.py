"""`open_pool`: many clients for many servers and identities, leased, counted and evicted."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Literal, Unpack, final

import httpx
import httpx2
import trio

from trio_mcp_resilient._client import Client
from trio_mcp_resilient._events import contained
from trio_mcp_resilient._nursery import open_hidden_nursery
from trio_mcp_resilient._pool_client import Asked
from trio_mcp_resilient._pool_events import Closing, PoolEvent
from trio_mcp_resilient._pool_keeper import Keeper
from trio_mcp_resilient._pool_keys import IdentityHook, Keyring, merged
from trio_mcp_resilient._pool_options import ClientOptions
from trio_mcp_resilient._pool_slots import Limits
from trio_mcp_resilient._pool_statistics import PoolStatistics


@final
class Pool:
    """Clients of any number of servers and identities, so many at once and no more.

    Returned by `open_pool`; do not make one yourself.
    """

    def __init__(
        self,
        keeper: Keeper,
        keyring: Keyring,
        *,
        headers: Mapping[str, str] | None,
        auth: httpx.Auth | httpx2.Auth | None,
        options: ClientOptions,
    ) -> None:
        self._keeper = keeper
        self._keyring = keyring
        self._headers = headers
        self._auth = auth
        self._options = options

    def __repr__(self) -> str:
        now = self.statistics()
        state = "closed" if self._keeper.closed else f"{now.clients} of {now.max_clients} clients"
        return f"<Pool {self._keeper.name}: {state}, {now.leased} leased, {now.waiting} waiting>"

    @asynccontextmanager
    async def client(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        auth: httpx.Auth | httpx2.Auth | None = None,
        name: str | None = None,
        **options: Unpack[ClientOptions],
    ) -> AsyncGenerator[Client, None]:
        """Lease the client of an endpoint and an identity, for as long as the block runs.

        Waits for room, first come first served, and for the connect if there is no such client
        yet. There is no timeout for that: put `trio.fail_after` around it. Whoever asks for the
        same shares the client, at once and whoever else waits for room.

        Args:
            url: the server's endpoint.
            headers: sent with every request, and instead of the pool's of the same names. They are
                part of the identity.
            auth: as `open_client` takes it, instead of the pool's. The object itself is part of the
                identity: keep one for each user, and do not make one for each lease.
            name: what log lines and events call the client; by default the endpoint without its
                query, and a fingerprint of the identity.
            options: as of `open_client`, instead of the pool's. Only who asks for the same options
                shares the client.

        Yields:
            The client. It may serve other tasks at the same time.

        Raises:
            PoolFull: every client is in use, and the pool was opened with `when_full="fail"`.
            HandshakeFailed: as of `open_client`, like `GaveUp` and `ValueError`. All who wait for
                the same connect get one each; whoever asks later begins another.
            trio.ClosedResourceError: the pool is closed; or it closed before the block had ended,
                and cancelled it.

        If the client's own task fails during the lease, which takes a bug, the block is cancelled
        and raises a copy of what the task failed with. What the block raises comes out as itself.

        Cancellation: while waiting, nothing was leased; a connect that was begun goes on, for
        whoever asks next, unless its room is wanted. Checkpoints: entering is one, leaving is not.
        """
        asked = self._ask(url, headers, auth, name, options)
        await trio.lowlevel.checkpoint()
        lease = self._keeper.request(asked)
        client = await lease.wait()
        try:
            with lease.scope:
                yield client
        finally:
            self._keeper.give_back(lease)
        if lease.scope.cancelled_caught and lease.error is not None:
            raise lease.error

    def invalidate(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        auth: httpx.Auth | httpx2.Auth | None = None,
        **options: Unpack[ClientOptions],
    ) -> bool:
        """Give the client of an endpoint and an identity to nobody any more.

        Leases of it go on; it is closed when the last one ends, or at once if there is none.
        Whoever asks from now on gets another. Not a checkpoint.

        Args:
            url: as for `client`, like the others.
            headers: likewise.
            auth: likewise.
            options: likewise.

        Returns:
            Whether there was one.
        """
        slot = self._keeper.slots.find(self._ask(url, headers, auth, None, options).key)
        if slot is not None:
            self._keeper.slots.retire(slot, Closing.INVALIDATED, trio.current_time())
        return slot is not None

    def invalidate_all(self, url: str | None = None) -> int:
        """Do as `invalidate` for every identity, and return how many clients that were.

        It looks at every client of the pool. Not a checkpoint.

        Args:
            url: the endpoint whose clients are meant; None for all endpoints.
        """
        slots, endpoint = self._keeper.slots, None if url is None else self._keyring.endpoint(url)
        found = [slot for slot in slots.held if slots.find(slot.key) is slot]
        meant = [slot for slot in found if endpoint in (None, slot.key.endpoint)]
        for slot in meant:
            slots.retire(slot, Closing.INVALIDATED, trio.current_time())
        return len(meant)

    def statistics(self) -> PoolStatistics:
        """Return how the pool is now, and its counts since it was opened. Not a checkpoint."""
        return self._keeper.statistics()

    async def aclose(self) -> None:
        """Close the pool: nobody gets a client any more, and every session is ended at its server.

        Those who wait are told at once. Leases have the pool's `grace` to finish and are then
        cancelled, also that of the caller, if it has one. Then every client says goodbye, all at the
        same time. Leaving the pool's block does this; calling it earlier, or twice, is fine.

        Cancellation: the rest is not waited for, but still done: leases are cancelled, and the
        goodbyes run in the background until the pool's block ends. Checkpoint: always.
        """
        await self._keeper.aclose()

    def _ask(
        self,
        url: str,
        headers: Mapping[str, str] | None,
        auth: httpx.Auth | httpx2.Auth | None,
        name: str | None,
        options: ClientOptions,
    ) -> Asked:
        fields = merged(self._headers, headers)
        auth = self._auth if auth is None else auth
        options = {**self._options, **options}
        key = self._keyring.key(url, fields, auth, name=name, options=options)
        return Asked(key, url, fields, auth, options)


@asynccontextmanager
async def open_pool(
    *,
    max_clients: float = 100,
    max_idle: float = math.inf,
    idle_timeout: float = 300.0,
    max_lifetime: float = 3600.0,
    when_full: Literal["wait", "fail"] = "wait",
    grace: float = 10.0,
    key: IdentityHook | None = None,
    on_event: Callable[[PoolEvent], None] | None = None,
    name: str = "pool",
    headers: Mapping[str, str] | None = None,
    auth: httpx.Auth | httpx2.Auth | None = None,
    **options: Unpack[ClientOptions],
) -> AsyncGenerator[Pool, None]:
    """Open a pool of clients, for as long as the block runs.

    A client is opened when somebody first leases it, and lives in the pool's block: it stays open
    when the lease ends, for the next one. Nobody ever waits for another client's close, which
    happens in the background; while it does, the client takes up no room in the pool.

    Args:
        max_clients: how many clients there are at most, leased or idle; `math.inf` for any number.
            When another is wanted, the one that was idle for longest is closed for it.
        max_idle: how many of them may be idle; 0 closes each when its last lease ends.
        idle_timeout: seconds after which an idle client is closed; `math.inf` for never.
        max_lifetime: seconds after which a client is replaced, less up to a tenth at random, so
            that those opened together do not end together; `math.inf` for never. One in use is
            closed when it comes back.
        when_full: what becomes of a lease when all clients are in use: `"wait"`, or `"fail"` with
            `PoolFull`.
        grace: seconds that leases have to finish when the pool closes.
        key: names the identity that a lease is for, instead of its headers, auth and options:
            `key(url, headers, auth)`, with the merged headers under names in lower case. Leases of
            one endpoint with the same name share the client that the first of them opened. For
            headers that change while the user is the same, such as a token.
        on_event: called with each `PoolEvent`, synchronously; it must not block.
        name: what log lines call the pool.
        headers: sent by all clients, unless a lease has a header of the same name.
        auth: as `open_client` takes it, for all clients whose lease has none.
        options: as of `open_client`, for all clients.

    Yields:
        The pool, with no client yet.

    Raises:
        ValueError: a limit makes no sense.

    Whatever the block raises comes out as itself; leases are then not waited for. So are they not
    when the block is cancelled.

    Cancellation: the exit still says goodbye to the servers, for at most `close_timeout` seconds.
    Checkpoints: leaving is one.
    """
    limits = Limits(max_clients, max_idle, idle_timeout, max_lifetime, when_full)
    if not grace >= 0:
        raise ValueError("grace is a number of seconds, or math.inf")
    watcher = None if on_event is None else contained(on_event)
    async with open_hidden_nursery() as nursery:
        keeper = Keeper(nursery, limits, name=name, grace=grace, watcher=watcher)
        nursery.start_soon(keeper.sweep)
        try:
            yield Pool(keeper, Keyring(key), headers=headers, auth=auth, options=options)
            await keeper.aclose()
        finally:
            keeper.stop()
