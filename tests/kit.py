"""What the tests of the whole client share: a scripted server and a client of it, both in memory."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import mcp
import mcp_types as types
import trio

from trio_mcp_resilient import Backoff, Client, Event, open_client, resilient_transport
from trio_mcp_resilient.testing import ScriptedServer, open_scripted_server

Era = Literal["legacy", "modern", "both"]

STEADY = Backoff(first=1, factor=2, cap=8, jitter=0, attempts=5)
"""Waits of 1, 2, 4 and 8 s: a schedule that a test can count on."""


@asynccontextmanager
async def open_server(**options: Any) -> AsyncGenerator[ScriptedServer, None]:
    """A server with the tools that most tests call; it takes what `open_scripted_server` takes."""
    async with open_scripted_server(**options) as server:
        server.tool("add", lambda a, b: str(a + b))

        async def slow(seconds: float) -> str:
            await trio.sleep(seconds)
            return "rested"

        server.tool("slow", slow)
        yield server


@asynccontextmanager
async def open_pair(
    era: Era = "legacy", **options: Any
) -> AsyncGenerator[tuple[ScriptedServer, Client], None]:
    """A server, and a client of it that is ready, of the era of sessions unless it is told otherwise."""
    options.setdefault("backoff", STEADY)
    options.setdefault("mode", "legacy" if era == "legacy" else "auto")
    async with open_server(era=era) as server:
        async with open_client(server.url, connect=server.connect, **options) as client:
            yield server, client


@asynccontextmanager
async def open_sdk_pair(
    *, sdk: dict[str, Any] | None = None, **options: Any
) -> AsyncGenerator[tuple[ScriptedServer, mcp.Client], None]:
    """A server, and the SDK's own client of it on our transport; `sdk` is what the client itself takes."""
    options.setdefault("backoff", STEADY)
    options.setdefault("mode", "legacy")
    async with open_server() as server:
        transport = resilient_transport(server.url, connect=server.connect, **options)
        async with mcp.Client(transport, **(sdk or {})) as client:
            yield server, client


def text(result: types.CallToolResult) -> str:
    """The text of a tool's result."""
    (content,) = result.content
    assert isinstance(content, types.TextContent)
    return content.text


async def add(client: Client | mcp.Client, a: int = 1, b: int = 2) -> str:
    """Call `add`."""
    return text(await client.call_tool("add", {"a": a, "b": b}))


def load_script(path: Path) -> ModuleType:
    """Load a file that is in no package, such as those that write a page of the manual."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    # Its dataclasses look their own module up.
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def told(events: list[Event], kind: type[Any]) -> list[Any]:
    """The events of one kind."""
    return [event for event in events if isinstance(event, kind)]


class Fragile(trio.abc.Stream):
    """A stream of the application's own, with a bug."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.bug: Exception | None = None

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        data: bytes = await self._stream.receive_some(max_bytes)
        bug, self.bug = self.bug, None
        if bug is not None:
            raise bug
        return data

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    def is_readable(self) -> bool:
        return bool(self._stream.is_readable())

    def close(self) -> None:
        self._stream.close()

    async def aclose(self) -> None:
        await self._stream.aclose()
