"""Who carries out what a pool's books say: starts the clients, hears of their ends, wakes to sweep.

A close is always a task of its own, and nothing here waits for one but the end of the pool. So
nobody ever waits for another caller's goodbye.
"""

from __future__ import annotations

import contextvars
import logging
import random
from collections.abc import Callable

import trio

from trio_mcp_resilient._crowd import Crowd
from trio_mcp_resilient._errors import PoolFull, ResilientError
from trio_mcp_resilient._pool_client import Asked, PooledClient
from trio_mcp_resilient._pool_events import ClientClosed, ClientOpened, Closing, PoolEvent
from trio_mcp_resilient._pool_lease import Lease, LeaseState
from trio_mcp_resilient._pool_slot import SlotState
from trio_mcp_resilient._pool_slots import Limits, Slots
from trio_mcp_resilient._pool_statistics import PoolCounters, PoolStatistics

UNWIND_SECONDS = 1.0
"""How long leases that were cancelled have for their own cleanup before their clients close."""

logger = logging.getLogger("trio_mcp_resilient")


class Keeper:
    """What a `Pool` runs on."""

    def __init__(
        self,
        nursery: trio.Nursery,
        limits: Limits,
        *,
        name: str,
        grace: float,
        watcher: Callable[[PoolEvent], None] | None,
    ) -> None:
        self.name = name
        self.closed: bool = False
        self.counters: PoolCounters = PoolCounters()
        self.slots: Slots[PooledClient] = Slots(limits, self.counters, random.random)
        self.leases: Crowd[Lease] = Crowd()
        self.clients: Crowd[PooledClient] = Crowd()
        """Those that say goodbye included."""
        self._nursery = nursery
        self._grace = grace
        self._watcher = watcher
        self._nap = trio.CancelScope()
        # A client serves many tasks: it must not run in the context of the first of them.
        self._context = contextvars.copy_context()

    # -- leases -------------------------------------------------------------------------------

    def request(self, asked: Asked) -> Lease:
        """Ask for a client.

        Raises:
            PoolFull: there is no room, and the policy is to fail.
            trio.ClosedResourceError: the pool is closed.
        """
        if self.closed:
            raise trio.ClosedResourceError("this pool is closed")
        self.counters.requests += 1
        lease = Lease(asked, self)
        try:
            self.slots.ask(lease, trio.current_time())
        except PoolFull:
            self.counters.refused += 1
            raise
        if lease.state is LeaseState.ASKING:
            self.counters.waited += 1
        self._set_alarm()
        return lease

    def give_back(self, lease: Lease) -> None:
        """End a lease."""
        slot, now = lease.slot, trio.current_time()
        assert slot is not None
        self.counters.lease_seconds += now - slot.holders.pop(lease)
        self.leases.remove(lease)
        self.slots.give_back(slot, now)
        self._set_alarm()

    def open(self, asked: Asked) -> PooledClient:
        """Begin to connect a client."""
        self.counters.connects += 1
        slot = PooledClient(asked, self)
        self.clients.add(slot)
        self._context.run(self._nursery.start_soon, slot.run)
        return slot

    def given(self, lease: Lease, slot: PooledClient) -> None:
        """Write down a lease that was accepted."""
        now = trio.current_time()
        slot.holders[lease] = now
        self.leases.add(lease)
        self.counters.leases += 1
        self.counters.wait_seconds += now - lease.asked_at

    def left(self, lease: Lease) -> None:
        """Strike out one who waits no more."""
        self.counters.abandoned += 1
        self.slots.leave(lease, trio.current_time())
        self._set_alarm()

    # -- what its clients tell ----------------------------------------------------------------

    def connected(self, client: PooledClient, seconds: float) -> None:
        """Hand a client over to all who wait for it."""
        self.counters.connect_seconds += seconds
        logger.info("%s: opened %s in %.2f s", self.name, client.key.label, seconds)
        self.tell(ClientOpened(client.key.label, seconds))
        self.slots.connected(client, trio.current_time())
        self._set_alarm()

    def broke(self, client: PooledClient, error: Exception) -> None:
        """Tell those who wait for a client, or have a lease of it, that it failed."""
        label = client.key.label
        if client.state is SlotState.GONE:
            # A connect that was given up may well have failed; anything else is a bug.
            log = logger.info if isinstance(error, ResilientError) else logger.error
            log("%s: %s failed while it closed", self.name, label, exc_info=error)
            return
        if client.state is SlotState.CONNECTING:
            self.counters.connect_failures += 1
            logger.warning("%s: could not open %s: %s", self.name, label, error)
        else:
            logger.error("%s: %s failed", self.name, label, exc_info=error)
        self.tell(ClientClosed(label, Closing.FAILED, f"{type(error).__name__}: {error}"))
        self.slots.failed(client, error, trio.current_time())
        for holder in client.holders:
            holder.end(error)
        self._set_alarm()

    def quiet(self, client: PooledClient) -> None:
        """Let a client rest whose last call has ended."""
        self.slots.settle(client, trio.current_time())
        self._set_alarm()

    def closing(self, client: PooledClient, reason: Closing) -> None:
        """Tell that a client has left."""
        logger.info("%s: closed %s: %s", self.name, client.key.label, reason)
        self.tell(ClientClosed(client.key.label, reason))

    def gone(self, client: PooledClient) -> None:
        """Forget a client whose task ends."""
        self.clients.remove(client)

    @property
    def is_watched(self) -> bool:
        """Whether somebody wants to be told."""
        return self._watcher is not None

    def tell(self, event: PoolEvent) -> None:
        """Pass an event on."""
        if self._watcher is not None:
            self._watcher(event)

    # -- time ---------------------------------------------------------------------------------

    async def sweep(self) -> None:
        """Close what has been idle or alive for too long, until cancelled."""
        while True:
            with trio.CancelScope(deadline=self.slots.next_expiry()) as self._nap:
                await trio.sleep_forever()
            self.slots.expire(trio.current_time())

    def _set_alarm(self) -> None:
        """Wake the sweep earlier, if there is something for it earlier; later it finds out itself."""
        expiry = self.slots.next_expiry()
        if expiry < self._nap.deadline:
            self._nap.deadline = expiry

    # -- the end ------------------------------------------------------------------------------

    async def aclose(self) -> None:
        """Let leases finish within the bound, cancel the others, and wait for every goodbye."""
        self._shut()
        try:
            with trio.move_on_after(self._grace):
                await self.leases.empty()
            self._end_leases()
            with trio.move_on_after(UNWIND_SECONDS):
                await self.leases.empty()
            for client in self.slots.held:
                self.slots.evict(client)
            await self.clients.empty()
        except trio.Cancelled:
            self.stop()
            raise

    def stop(self) -> None:
        """End everything now. What is left is the goodbyes, which are bounded."""
        self._shut()
        self._end_leases()
        for client in self.clients:
            client.stop()

    def _shut(self) -> None:
        if not self.closed:
            self.closed = True
            self.slots.shut(_closed(), trio.current_time())

    def _end_leases(self) -> None:
        for lease in self.leases:
            lease.end(_closed())

    # -- what there is to know ----------------------------------------------------------------

    def statistics(self) -> PoolStatistics:
        """Return how it is and what was done."""
        counters, held = self.counters, self.slots.held
        states = [slot.state for slot in held]
        return PoolStatistics(
            max_clients=self.slots.limits.max_clients,
            clients=len(held),
            connecting=states.count(SlotState.CONNECTING),
            in_use=states.count(SlotState.IN_USE),
            idle=states.count(SlotState.IDLE),
            closing=len(self.clients) - len(held),
            leased=len(self.leases),
            waiting=self.slots.waiting,
            requests=counters.requests,
            leases=counters.leases,
            waited=counters.waited,
            wait_seconds=counters.wait_seconds,
            lease_seconds=counters.lease_seconds,
            refused=counters.refused,
            abandoned=counters.abandoned,
            connects=counters.connects,
            connect_seconds=counters.connect_seconds,
            connect_failures=counters.connect_failures,
            closed={reason: counters.closed[reason] for reason in Closing},
        )


def _closed() -> trio.ClosedResourceError:
    return trio.ClosedResourceError("the pool was closed")
