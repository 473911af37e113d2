"""A watcher: each hour a model looks at what there is, and chooses tools until it is content."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import mcp_types
import trio

from trio_mcp_resilient import Client, Event, OutcomeUnknown, ToolsChanged, open_client

HOUR = 3600


@dataclass(frozen=True)
class Step:
    """What the model wants done."""

    tool: str
    arguments: dict[str, Any]


Model = Callable[[Sequence[str], Sequence[str]], Step | None]
"""Of the tools there are and of what was said in this round, makes the next step; None at its end."""


class ToolCache:
    """The names of the tools, listed once, and again when they have changed."""

    def __init__(self) -> None:
        self._names: list[str] | None = None
        self.listings = 0

    def on_event(self, event: Event) -> None:
        """Forget them: a new session may be one of another release of the server."""
        if isinstance(event, ToolsChanged):
            self._names = None

    async def names(self, client: Client) -> list[str]:
        """Return them, asking the server if need be."""
        if self._names is None:
            self.listings += 1
            self._names = [tool.name for tool in (await client.list_tools()).tools]
        return self._names


@dataclass
class Watcher:
    """A model and its tools."""

    client: Client
    model: Model
    tools: ToolCache

    async def work(self, rounds: int) -> list[str]:
        """Do that many rounds, one an hour, and return what was said in the last."""
        said: list[str] = []
        for number in range(rounds):
            if number:
                await trio.sleep(HOUR)
            said = await self._one_round()
        return said

    async def _one_round(self) -> list[str]:
        said: list[str] = []
        while (step := self.model(await self.tools.names(self.client), said)) is not None:
            said.append(await self._take(step))
        return said

    async def _take(self, step: Step) -> str:
        try:
            result = await self.client.call_tool(step.tool, step.arguments)
        except OutcomeUnknown:
            # Not for a program to decide whether it should happen again.
            return f"{step.tool} may or may not have run"
        return "".join(part.text for part in result.content if isinstance(part, mcp_types.TextContent))


@asynccontextmanager
async def open_watcher(url: str, model: Model, **options: Any) -> AsyncGenerator[Watcher, None]:
    """Open a watcher; `options` are those of `open_client`."""
    tools = ToolCache()
    async with open_client(url, on_event=tools.on_event, **options) as client:
        yield Watcher(client, model, tools)
