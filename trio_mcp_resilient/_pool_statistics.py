"""What a pool counts, and the frozen picture of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from trio_mcp_resilient._pool_events import Closing


@dataclass(slots=True)
class PoolCounters:
    """The live counts, each written in one place."""

    requests: int = 0
    leases: int = 0
    waited: int = 0
    wait_seconds: float = 0.0
    lease_seconds: float = 0.0
    refused: int = 0
    abandoned: int = 0
    connects: int = 0
    connect_seconds: float = 0.0
    connect_failures: int = 0
    closed: Counter[Closing] = field(default_factory=Counter[Closing])


@dataclass(frozen=True)
class PoolStatistics:
    """The state of a pool now, and its counts since it was opened. Seconds are of Trio's clock."""

    # Gauges: how it is now.
    max_clients: float
    """The bound of `clients`."""
    clients: int
    """Clients that take up room: connecting, in use and idle ones."""
    connecting: int
    """Clients that are being connected."""
    in_use: int
    """Clients with a lease or a call."""
    idle: int
    """Clients that nobody uses: one is closed when its room is wanted."""
    closing: int
    """Clients that have left the pool and are saying goodbye to their servers. They take up no room."""
    leased: int
    """Leases now; several may share a client."""
    waiting: int
    """Those who wait for room. Those who wait for a connect under way are not among them."""
    # Counters: what it has done.
    requests: int
    """How many times a lease was asked for."""
    leases: int
    """How many were given."""
    waited: int
    """How many of those asked had to wait, for room or for a connect."""
    wait_seconds: float
    """How long those that were given had waited, in all."""
    lease_seconds: float
    """How long the leases that ended had lasted, in all."""
    refused: int
    """Asked while the pool was full, and refused by `when_full="fail"`."""
    abandoned: int
    """Who left, cancelled, before there was a lease."""
    connects: int
    """Connects begun; 1 for any number that wait for the same client."""
    connect_seconds: float
    """How long those that succeeded took, in all."""
    connect_failures: int
    """Connects that failed; not those that were given up."""
    closed: Mapping[Closing, int]
    """Clients that have left the pool, by reason."""
