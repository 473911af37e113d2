"""What a pool tells those who watch it: frozen records, each with the label of the client it is about."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TypeAlias

from trio_mcp_resilient._events import Event


class Closing(enum.StrEnum):
    """Why a client left its pool."""

    IDLE = "idle"
    """Nobody used it for `idle_timeout` seconds."""
    SURPLUS = "surplus"
    """More than `max_idle` clients were idle, and it had been so for longest."""
    ROOM = "room"
    """The pool was full, and a client for somebody else was wanted."""
    AGE = "age"
    """It was open for `max_lifetime` seconds, less the jitter."""
    INVALIDATED = "invalidated"
    """The application said so."""
    FAILED = "failed"
    """It could not be connected, or its own task failed later."""
    POOL_CLOSED = "pool closed"
    """The pool was closed."""


@dataclass(frozen=True)
class ClientOpened:
    """A client is connected."""

    client: str
    """The label: the endpoint without its query, and a fingerprint of the identity; or its `name`."""
    seconds: float
    """How long it took."""


@dataclass(frozen=True)
class ClientClosed:
    """A client has left the pool; whoever asks for the same gets another. It closes in the background."""

    client: str
    reason: Closing
    error: str = ""
    """What failed, if the reason is `FAILED`."""


@dataclass(frozen=True)
class ClientEvent:
    """A client of the pool told something of itself."""

    client: str
    event: Event


PoolEvent: TypeAlias = ClientOpened | ClientClosed | ClientEvent
