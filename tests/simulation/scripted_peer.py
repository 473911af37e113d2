"""The scripted server, furnished for a simulation: every answer is marked, every start counted."""

from __future__ import annotations

import inspect
import math
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Literal, cast

import trio

from tests.simulation.calls import RPC_ERROR, URI
from tests.simulation.ledger import MARK, Ledger, call_of
from tests.simulation.plan import TOOLS, Settings
from tests.simulation.tokens import CHALLENGE, Tokens
from trio_mcp_resilient.testing import (
    MemoryStream,
    RpcError,
    ScriptedServer,
    ToolContext,
    open_scripted_server,
)


class ScriptedPeer:
    """A scripted server, as a world sees it."""

    def __init__(
        self, server: ScriptedServer, settings: Settings, ledger: Ledger, tokens: Tokens | None
    ) -> None:
        self.server = server
        self.url = server.url
        self._ledger = ledger
        self._tokens = tokens
        self._ask_for_tokens()
        server.offer_get_stream = settings.get_offered
        server.json_mode = settings.json_mode
        server.resumable = settings.resumable
        server.retry = settings.retry
        server.stateless = settings.stateless
        server.offer_delete = settings.offer_delete
        server.protocol_version = settings.version
        server.idle_timeout = math.inf if settings.idle_timeout is None else settings.idle_timeout
        server.dialect(settings.dialect)
        server.era = settings.era or "legacy"
        for name, hints in TOOLS.items():
            server.tool(name, _work, **({} if hints is None else {"annotations": hints}))
        server.resource(URI, "text of one")
        server.prompt("greet", "hello {name}")
        for method, handler in list(server.methods.items()):
            server.methods[method] = self._marked(method, handler)

    def _ask_for_tokens(self) -> None:
        tokens = self._tokens
        if tokens is not None:
            self.server.answer(
                401,
                headers=CHALLENGE,
                when=lambda seen: not tokens.accepts(seen.headers.get("authorization")),
                times=math.inf,
            )

    def _marked(self, method: str, handler: Any) -> Any:
        async def answer(ctx: ToolContext) -> dict[str, Any]:
            number = call_of(method, ctx.params)
            self._ledger.started(number, method)
            result = handler(ctx)
            result = await result if inspect.isawaitable(result) else result
            return {**result, "_meta": {MARK: number}}

        return answer

    async def connect(self, host: str, port: int) -> MemoryStream:
        """Connect, whatever the host."""
        return cast(MemoryStream, await self.server.connect(host, port))

    def is_live(self, session_id: str) -> bool:
        """Whether the server knows a session."""
        return session_id in self.live()

    def live(self) -> list[str]:
        """The sessions that the server knows."""
        return [session.id for session in self.server.sessions]

    def lose_session(self, streams: str) -> None:
        """Forget every session."""
        self.server.lose_session(streams=cast(Literal["keep", "end", "cut"], streams))

    async def restart(self, *, keep_sessions: bool, down_for: float) -> None:
        """Die and come back."""
        self.server.restart(keep_sessions=keep_sessions, down_for=down_for)
        await trio.lowlevel.checkpoint()

    async def forget(self) -> None:
        """Part from the sessions that were left, for they may have tasks; these have none."""
        await trio.lowlevel.checkpoint()

    def calm(self, *, cut: bool) -> None:
        """Break nothing more."""
        self.server.forget_script()
        self._ask_for_tokens()
        self.server.delay = 0.0
        self.server.up()
        if cut:
            self.server.cut_connections()

    @property
    def handshakes(self) -> int:
        """How many sessions were made, ever."""
        return self.server.handshakes

    @property
    def open_connections(self) -> int:
        """How many connections are open."""
        return self.server.open_connections


@asynccontextmanager
async def open_scripted_peer(
    settings: Settings, ledger: Ledger, tokens: Tokens | None
) -> AsyncGenerator[ScriptedPeer, None]:
    """Open a scripted server for a world."""
    async with open_scripted_server() as server:
        yield ScriptedPeer(server, settings, ledger, tokens)


async def _work(ctx: ToolContext, number: int, seconds: float, steps: int, ends: str) -> str:
    for step in range(steps):
        ctx.progress(step + 1, steps, f"{number}")
        await trio.sleep(seconds / steps / 2)
    if ends == "detach":
        ctx.close_stream()
    await trio.sleep(seconds / 2 if steps else seconds)
    if ends == "tool error":
        raise ValueError(f"no {number}")
    if ends == "rpc error":
        raise RpcError(RPC_ERROR, f"no {number}")
    return f"done {number}"
