"""The whole client, against a server whose bytes arrive mutated.

The server is the scripted one and behaves; between it and the client bytes are flipped, inserted,
left out and repeated. Every call ends in a result or in an error of the documented kinds, in
bounded virtual time, and the client leaves nothing behind.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

import mcp
import trio
from mcp import MCPError
from pydantic import ValidationError
from trio.testing import MockClock

from tests.kit import open_server
from trio_mcp_resilient import Backoff, Client, ResilientError, open_client, resilient_transport
from trio_mcp_resilient.testing import ScriptedServer

QUICK = Backoff(first=0.1, factor=2, cap=1, jitter=0, attempts=3)
DAY = 24 * 60 * 60.0
LONG = 10 * DAY
"""A server may say `retry:` of a day, eight times in a row, so a call may take that long."""


@dataclass(frozen=True)
class Mutation:
    """One change of what the server sends, counted over all connections."""

    at: int
    how: Literal["flip", "insert", "drop", "repeat", "end"]
    argument: bytes

    def apply(self, data: bytes, place: int) -> bytes:
        """Return the bytes with this change at a place in them."""
        size = len(self.argument) + 1
        match self.how:
            case "flip":
                flipped = bytes(byte ^ 1 << size % 8 for byte in data[place : place + 1])
                return data[:place] + flipped + data[place + 1 :]
            case "insert":
                return data[:place] + self.argument + data[place:]
            case "drop":
                return data[:place] + data[place + size :]
            case "repeat":
                return data[: place + size] + data[place:]
            case "end":
                return data[:place]


@dataclass(frozen=True)
class Scene:
    """One run of the client."""

    mutations: list[Mutation]
    json_mode: bool
    resumable: bool
    mode: Literal["auto", "legacy"]
    sdk: bool
    """Whether the SDK's own client is on top."""


@dataclass
class Noise:
    """Mutates the bytes of all connections, in the order in which they arrive."""

    mutations: list[Mutation]
    passed: int = 0
    streams: list[Noisy] = field(default_factory=list)

    def change(self, data: bytes) -> tuple[bytes, bool]:
        """Return what becomes of the next bytes, and whether the connection ends with them."""
        start, self.passed = self.passed, self.passed + len(data)
        hit = [mutation for mutation in self.mutations if start <= mutation.at < self.passed]
        for mutation in sorted(hit, key=lambda mutation: -mutation.at):
            data = mutation.apply(data, mutation.at - start)
        return data, any(mutation.how == "end" for mutation in hit)


class Noisy(trio.abc.Stream):
    """A connection with noise on its way in."""

    def __init__(self, inner: trio.abc.Stream, noise: Noise) -> None:
        self._inner = inner
        self._noise = noise
        self._ended = False
        self.closed = False

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        while not self._ended:
            data = bytes(await self._inner.receive_some(max_bytes))
            if not data:
                break
            data, self._ended = self._noise.change(data)
            if data:
                return data
        await trio.lowlevel.checkpoint()
        return b""

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._inner.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._inner.wait_send_all_might_not_block()

    def is_readable(self) -> bool:
        return self._ended or self._inner.is_readable()  # type: ignore[attr-defined]

    def close(self) -> None:
        self.closed = True
        self._inner.close()  # type: ignore[attr-defined]

    async def aclose(self) -> None:
        self.close()
        await trio.lowlevel.checkpoint()


def client(scene: Scene) -> None:
    """Play one scene."""
    trio.run(_play, scene, clock=MockClock(autojump_threshold=0))


async def _play(scene: Scene) -> None:
    noise = Noise(scene.mutations)
    with trio.fail_after(2 * LONG):
        async with open_server() as server:
            server.json_mode, server.resumable = scene.json_mode, scene.resumable
            await _use(scene, server, noise)
    assert all(stream.closed for stream in noise.streams)


async def _use(scene: Scene, server: ScriptedServer, noise: Noise) -> None:
    async def connect(host: str, port: int) -> trio.abc.Stream:
        noise.streams.append(Noisy(await server.connect(host, port), noise))
        return noise.streams[-1]

    options: dict[str, Any] = {
        "connect": connect,
        "backoff": QUICK,
        "recovery_timeout": 60,
        "mode": scene.mode,
    }
    try:
        if scene.sdk:
            async with mcp.Client(resilient_transport(server.url, **options)) as theirs:
                await _call(theirs)
        else:
            async with open_client(server.url, **options) as ours:
                await _call(ours)
    except* (ResilientError, MCPError):
        # No session could be made of what arrived. The SDK's client says so in a group.
        pass


async def _call(opened: Client | mcp.Client) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_ends, opened, "tools/list")
        for _ in range(2):
            nursery.start_soon(_ends, opened, "add")
    for method in ("add", "ping", "slow", "add"):
        await _ends(opened, method)


async def _ends(opened: Client | mcp.Client, method: str) -> None:
    """Make one request; whatever it comes to is of the kinds that the manual names."""
    with trio.move_on_after(LONG):
        try:
            match method:
                case "tools/list":
                    await opened.list_tools()
                case "ping":
                    # The SDK's own calls it deprecated.
                    await (opened.ping() if isinstance(opened, Client) else opened.list_tools())
                case "slow":
                    await opened.call_tool("slow", {"seconds": 2}, progress_callback=_ignore)
                case _:
                    await opened.call_tool("add", {"a": 1, "b": 2})
        except (MCPError, ResilientError, ValidationError):
            # The last is the SDK's: a result of another shape than MCP's.
            pass
        except RuntimeError as error:
            # The SDK's as well: a result that is not what its tool's schema promises.
            assert type(error) is RuntimeError and "tool" in str(error)


async def _ignore(progress: float, total: float | None, message: str | None) -> None:
    assert math.isfinite(progress) or math.isinf(progress)
    await trio.lowlevel.checkpoint()
