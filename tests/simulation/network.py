"""A network between the client and any server: every byte passes, or is kept, cut or delayed here.

The scripted server breaks exchanges by their meaning. This breaks connections by their bytes, and
knows nothing of HTTP, so it serves in front of the SDK's real server as well.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

import trio

from trio_mcp_resilient.testing import MemoryStream, memory_connection

Way = Literal["up", "down"]
"""Towards the server, or back."""
Connect = Callable[[str, int], Awaitable[trio.abc.Stream]]


@dataclass
class Cut:
    """A connection's end that waits for its bytes: taken by the first connection that has any."""

    way: Way
    after: int
    how: Literal["reset", "fin", "silence"]
    happened: Callable[[], None]


class Link:
    """One connection through the network."""

    def __init__(self, network: Network, near: MemoryStream, far: trio.abc.Stream) -> None:
        self._network = network
        self._near = near
        self._far = far
        self._flows = trio.Event()
        self._flows.set()
        self.silent = False

    def clog(self) -> None:
        """Let nothing more through, either way, until `unclog`."""
        if self._flows.is_set():
            self._flows = trio.Event()

    def unclog(self) -> None:
        """Let through what waits."""
        self._flows.set()

    def end(self, how: str) -> None:
        """End both sides at once."""
        if how == "reset":
            self._near.reset()
        for stream in (self._near, self._far):
            stream.close()  # type: ignore[attr-defined]

    async def run(self) -> None:
        """Carry bytes both ways until either side ends."""
        async with trio.open_nursery() as nursery:
            for way, source, target in (("up", self._near, self._far), ("down", self._far, self._near)):
                nursery.start_soon(self._carry, way, source, target, nursery.cancel_scope)

    async def _carry(
        self, way: Way, source: trio.abc.Stream, target: trio.abc.Stream, both: trio.CancelScope
    ) -> None:
        how = "fin"
        try:
            while data := await source.receive_some(65536):
                await self._flows.wait()
                cut = self._network.take_cut(way)
                await self._pass_on(bytes(data if cut is None else data[: cut.after]), target)
                if cut is not None:
                    cut.happened()
                    how = cut.how
                    break
            if how == "silence":
                await self._swallow(way, source)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            how = "reset"
        await self._flows.wait()
        self.end(how)
        both.cancel()

    async def _swallow(self, way: Way, source: trio.abc.Stream) -> None:
        self.silent = True
        while await source.receive_some(65536):
            pass
        if way == "down":
            # That the server has hung up is not heard either.
            await trio.sleep_forever()

    async def _pass_on(self, data: bytes, target: trio.abc.Stream) -> None:
        while data and self._network.pace:
            await trio.sleep(self._network.pace)
            piece = self._network.piece
            await target.send_all(data[:piece])
            data = data[piece:]
        if data:
            await target.send_all(data)


class Network:
    """Every connection of one client."""

    def __init__(self, nursery: trio.Nursery, upstream: Connect) -> None:
        self._nursery = nursery
        self._upstream = upstream
        self._cuts: list[Cut] = []
        self.links: list[Link] = []
        """The open connections, oldest first."""
        self.pace = 0.0
        """Seconds for each piece of every connection; 0 for no delay."""
        self.piece = 1
        """How many bytes a piece has."""
        self.latency = 0.0
        """Seconds that a connect takes."""
        self.down = False
        """Whether connects are refused."""

    async def connect(self, host: str, port: int) -> MemoryStream:
        """Return the client's side of a new connection."""
        await trio.sleep(self.latency)
        if self.down:
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED), host)
        far = await self._upstream(host, port)
        ours, near = memory_connection()
        link = Link(self, near, far)
        self.links.append(link)
        self._nursery.start_soon(self._run, link)
        return ours

    async def _run(self, link: Link) -> None:
        try:
            await link.run()
        finally:
            self.links.remove(link)

    def cut_after(self, cut: Cut) -> None:
        """Cut the next connection that has bytes for it."""
        self._cuts.append(cut)

    def take_cut(self, way: Way) -> Cut | None:
        """Claim the cut that is due, if one is."""
        cut = next((cut for cut in self._cuts if cut.way == way), None)
        if cut is not None:
            self._cuts.remove(cut)
        return cut

    def heal(self, *, silence_stays: bool) -> None:
        """Break nothing more; what has gone silent may be reset, as when its peer's machine is back."""
        self._cuts.clear()
        self.pace = self.latency = 0.0
        self.down = False
        for link in list(self.links):
            link.unclog()
            if link.silent and not silence_stays:
                link.end("reset")
