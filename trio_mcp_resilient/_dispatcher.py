"""The SDK's seam: every request of every kind passes here, in its caller's own task.

`mcp.ClientSession` runs on any `Dispatcher`. On this one a call is: await a ready generation,
POST, read the answer, return (`_sending`).
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import anyio.abc
import trio
from mcp.shared.dispatcher import (
    CallOptions,
    OnNotify,
    OnNotifyIntercept,
    OnRequest,
)
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_REQUEST,
    REQUEST_TIMEOUT,
)

from trio_mcp_resilient._call import Call
from trio_mcp_resilient._discovery import DISCOVER
from trio_mcp_resilient._envelope import Introduction, fill_in
from trio_mcp_resilient._eras import Era
from trio_mcp_resilient._errors import GaveUp, HandshakeFailed
from trio_mcp_resilient._generation import LISTEN, Generation
from trio_mcp_resilient._inbound import Inbound
from trio_mcp_resilient._instruments import Instruments
from trio_mcp_resilient._nursery import open_hidden_nursery
from trio_mcp_resilient._restoring import SessionState
from trio_mcp_resilient._sending import Sending
from trio_mcp_resilient._statistics import Counters
from trio_mcp_resilient._supervisor import Supervisor

logger = logging.getLogger("trio_mcp_resilient")

UNWATCHED = nullcontext(None)


class ResilientDispatcher:
    """An `mcp.shared.dispatcher.Dispatcher` whose sessions come and go beneath it."""

    def __init__(
        self,
        sending: Sending,
        *,
        call_keys: bool,
        counters: Counters,
        instruments: Instruments,
        log_level: str | None = None,
    ) -> None:
        self.inbound = Inbound(self)
        self._sending = sending
        self._nursery: trio.Nursery
        self._introduction: Introduction | None = None
        """What the SDK's session said of the client, said again in every later handshake."""
        self._log_level = log_level
        self._call_keys = call_keys
        self._counters = counters
        self._instruments = instruments
        self._initialized = False

    @property
    def supervisor(self) -> Supervisor:
        """What keeps a session standing."""
        return self._sending.supervisor

    @property
    def state(self) -> SessionState:
        """What a new session has to be told again."""
        return self._sending.state

    # -- the Dispatcher protocol --------------------------------------------------------------

    async def run(
        self,
        on_request: OnRequest,
        on_notify: OnNotify,
        on_notify_intercept: OnNotifyIntercept | None = None,
        *,
        task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        """Keep a session standing, and hand the server's messages to the SDK's, until cancelled."""
        async with open_hidden_nursery() as self._nursery:
            try:
                self.inbound.attach(on_request, on_notify, on_notify_intercept, self._nursery)
                task_status.started()
                await self.supervisor.run(self._nursery)
            finally:
                # Inside the nursery: from here on nobody starts anything in it any more.
                self.inbound.detach()

    def start_soon(self, work: Callable[[], Awaitable[object]]) -> None:
        """Run something beside the sessions, until the client is closed. Once `run` has started."""
        self._nursery.start_soon(work)

    async def notify(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> None:
        """Send a notification on the current session; it is dropped if there is none to be had."""
        if method == "notifications/initialized":
            # Part of each handshake of ours; the SDK's session says it once, after the fact.
            await trio.lowlevel.checkpoint()
            return
        try:
            generation = await self.supervisor.ready()
        except (GaveUp, HandshakeFailed, trio.ClosedResourceError) as error:
            logger.debug("dropped %s: %s", method, error)
            return
        await generation.notify(method, None if params is None else dict(params))

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> dict[str, Any]:
        """Send a request and return its result, whatever session that takes.

        Waits for a ready session (at most the recovery timeout), for the answer, and once more
        for both if the request has to be sent again.

        Raises:
            MCPError: the server answered with a JSON-RPC error, or `opts["timeout"]` elapsed.
            ResilientError: as its subclasses say.
            trio.ClosedResourceError: the client is closed.

        Cancellation: the request is never sent again; the server is told in the background.
        Whether it ran is unknown. Checkpoint: always.
        """
        opts = opts or {}
        if method in ("initialize", DISCOVER) and (self._introduction is None or method == "initialize"):
            return await self._introduce(method, params or {})
        call = Call.make(method, params, opts, key=uuid.uuid4().hex if self._call_keys else None)
        timeout = opts.get("timeout")
        send = self._sending.listen if method == LISTEN else self._sending.send
        watched = self._instruments.around(method, call.params) if self._instruments.tracers else UNWATCHED
        counters = self._counters
        counters.calls += 1
        counters.in_progress += 1
        try:
            with watched as call.carried:
                if timeout is None:
                    return await send(call)
                with trio.move_on_after(timeout):
                    return await send(call)
                raise MCPError(REQUEST_TIMEOUT, f"Request {method!r} timed out")
        finally:
            counters.in_progress -= 1
            if counters.on_quiet is not None and not counters.in_progress:
                counters.on_quiet()

    # -- how the client introduces itself -----------------------------------------------------

    @property
    def is_introduced(self) -> bool:
        """Whether it is known what to say of the client, and sessions are made."""
        return self._introduction is not None

    @property
    def introduction(self) -> Introduction:
        """What the next handshake says of the client, with the log level last asked for."""
        assert self._introduction is not None, "the supervisor starts once it is known"
        level = (self.state.log_level or {}).get("level") or self._log_level
        return replace(self._introduction, log_level=level)

    async def _introduce(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Answer the SDK session's own handshake from the one that a generation made.

        A session that begins by `server/discover` is told the result of whichever was made; one
        that begins by `initialize` knows the legacy era only, and a session is made for it.
        """
        if self._introduction is None:
            self._introduction = Introduction.read(method, params)
            self.supervisor.start()
        elif method == "initialize" and self._initialized:
            await trio.lowlevel.checkpoint()
            raise MCPError(INVALID_REQUEST, "this client makes its handshakes itself")
        session = (await self.supervisor.ready()).session
        self._initialized = self._initialized or method == "initialize"
        return fill_in(DISCOVER, session.result) if session.era is Era.MODERN else session.result

    async def prepare(self, generation: Generation) -> None:
        """Give a new session what its predecessor had, before calls may use it."""
        await self._sending.prepare(generation, has_roots="roots" in self.introduction.capabilities)
