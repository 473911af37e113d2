"""What a scripted server is doing at the moment: one run for each request that it answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import trio

from trio_mcp_resilient._scripted_catalog import ToolContext
from trio_mcp_resilient._scripted_dialects import rpc_error
from trio_mcp_resilient._scripted_session import EventStream, Message, RpcError, ScriptedSession


class Runs:
    """The part of a `ScriptedServer` that runs what answers requests, each in a task of its own."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.failure: Exception | None = None
        """What one of the test's own functions raised; it ends the server's block."""
        self._run_nursery = nursery
        self._runs: set[trio.CancelScope] = set()

    @property
    def running(self) -> int:
        """How many requests run now."""
        return len(self._runs)

    def _start(
        self,
        session: ScriptedSession,
        stream: EventStream,
        context: ToolContext,
        run: Callable[[ToolContext], Any],
    ) -> trio.CancelScope:
        """Start what answers a request on its stream, and return what cancels it."""
        scope = session.running[context.rpc_id] = trio.CancelScope()
        self._runs.add(scope)
        self._run_nursery.start_soon(self._run, scope, session, stream, context, run)
        return scope

    def _stop_all(self) -> None:
        for run in list(self._runs):
            run.cancel()

    async def _run(
        self,
        scope: trio.CancelScope,
        session: ScriptedSession,
        stream: EventStream,
        context: ToolContext,
        run: Callable[[ToolContext], Any],
    ) -> None:
        try:
            with scope:
                response: Message
                try:
                    result = run(context)
                    result = await result if hasattr(result, "__await__") else result
                    response = {"jsonrpc": "2.0", "id": context.rpc_id, "result": result}
                except RpcError as error:
                    response = rpc_error(error.code, error.message, context.rpc_id, error.data)
                except Exception as error:
                    self._fail(error)
                    return
                stream.send(response, last=True)
        finally:
            self._runs.discard(scope)
            if session.running.get(context.rpc_id) is scope:
                del session.running[context.rpc_id]
            stream.end()
            if not stream.resumable and stream in session.streams:
                session.streams.remove(stream)

    def _fail(self, error: Exception) -> None:
        """End the server's block by what one of the test's own functions has raised."""
        self.failure = self.failure or error
        self._run_nursery.cancel_scope.cancel()
