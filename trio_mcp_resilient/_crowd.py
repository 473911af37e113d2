"""A set whose emptiness can be awaited."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

import trio

T = TypeVar("T")


class Crowd(Generic[T]):
    """Who is there, in the order in which they came."""

    def __init__(self) -> None:
        self._members: dict[T, None] = {}
        self._emptied = trio.Event()

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[T]:
        return iter(list(self._members))

    def add(self, member: T) -> None:
        """Let one in."""
        self._members[member] = None

    def remove(self, member: T) -> None:
        """Let one out, and whoever awaited the last one go on."""
        del self._members[member]
        if not self._members:
            self._emptied.set()
            self._emptied = trio.Event()

    async def empty(self) -> None:
        """Wait until nobody is there. Checkpoint: always."""
        await trio.lowlevel.checkpoint()
        while self._members:
            await self._emptied.wait()
