"""The SDK's seam: every request of every kind passes here, in its caller's own task.

`mcp.ClientSession` runs on any `Dispatcher`. On this one a call is: await a ready generation,
POST, read the answer, return. What follows when the POST brings anything but an answer is
`_outcome.TREATMENTS`; the code below only carries that table out.
"""

from __future__ import annotations

import itertools
import logging
import random
import uuid
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import anyio.abc
import trio
from mcp.shared.dispatcher import CallOptions, OnNotify, OnNotifyIntercept, OnRequest, ProgressFnT
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from mcp_types import INVALID_REQUEST, REQUEST_TIMEOUT, RequestId

from trio_mcp_resilient._errors import GaveUp, HandshakeFailed, OutcomeUnknown, Recovery
from trio_mcp_resilient._events import OutcomeLost, Resent, RestoreFailed, Watcher
from trio_mcp_resilient._generation import Generation
from trio_mcp_resilient._inbound import Inbound
from trio_mcp_resilient._outcome import TREATMENTS, Fate, Outcome
from trio_mcp_resilient._policy import HARMLESS, Backoff, Resend, Timeouts
from trio_mcp_resilient._restoring import SessionState
from trio_mcp_resilient._statistics import Counters
from trio_mcp_resilient._supervisor import FLAPPING_HINT, Supervisor
from trio_mcp_resilient._wire import RawHeaders

logger = logging.getLogger("trio_mcp_resilient")

CALL_META_KEY = "trio-mcp-resilient.org/call"
"""Where `_meta` carries a call's key and attempt; the prefix is a name, not an address."""

resend_override: ContextVar[Resend | None] = ContextVar("resend_override", default=None)
"""The policy of the call being made, when it differs from the client's. The SDK's session
passes no option of ours through, but it does run in the caller's task."""


@dataclass(slots=True)
class Call:
    """One logical call: at most two POSTs."""

    method: str
    params: dict[str, Any]
    request_id: RequestId | None
    """The id the caller insists on; None to mint one per POST."""
    headers: RawHeaders
    on_progress: ProgressFnT | None
    cancellable: bool
    key: str | None
    """The same on both POSTs, for a server that can tell by it that it has run the call already."""
    posts: int = 0

    def next_params(self, request_id: RequestId) -> dict[str, Any]:
        """Return the parameters of the next POST, with what `_meta` says of it."""
        self.posts += 1
        meta: dict[str, Any] = {}
        if self.on_progress is not None:
            # The id is the token: fresh for each POST, so late progress of the first is nobody's.
            meta["progressToken"] = request_id
        if self.key is not None:
            meta[CALL_META_KEY] = {"id": self.key, "attempt": self.posts}
        return {**self.params, "_meta": {**(self.params.get("_meta") or {}), **meta}} if meta else self.params

    def tool(self) -> str | None:
        """The name of the tool to call, if it is a tool call."""
        name = self.params.get("name")
        return name if self.method == "tools/call" and isinstance(name, str) else None


class ResilientDispatcher:
    """An `mcp.shared.dispatcher.Dispatcher` whose sessions come and go beneath it."""

    def __init__(
        self,
        *,
        resend: Resend,
        call_keys: bool,
        backoff: Backoff,
        timeouts: Timeouts,
        counters: Counters,
        watcher: Watcher | None,
    ) -> None:
        self.inbound = Inbound(self)
        self.supervisor: Supervisor
        """Set before `initialize` is called; the two know each other."""
        self.initialize_params: dict[str, Any] | None = None
        """What the first handshake said of the client, said again to every later session."""
        self._resend = resend
        self._call_keys = call_keys
        self._backoff = backoff
        self._timeouts = timeouts
        self._counters = counters
        self._watcher = watcher
        self._ids = itertools.count(1)
        self.state = SessionState()
        """What a new session has to be told again."""

    def next_id(self) -> int:
        """Mint a request id, unique for the life of the client and so in each of its sessions."""
        return next(self._ids)

    # -- the Dispatcher protocol --------------------------------------------------------------

    async def run(
        self,
        on_request: OnRequest,
        on_notify: OnNotify,
        on_notify_intercept: OnNotifyIntercept | None = None,
        *,
        task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        """Hand the server's messages to the session until cancelled."""
        self.inbound.attach(on_request, on_notify, on_notify_intercept)
        task_status.started()
        await self.inbound.run()

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
        if method == "initialize":
            return await self._initialize(params)
        call = _call(method, params, opts, key=uuid.uuid4().hex if self._call_keys else None)
        timeout = opts.get("timeout")
        if timeout is None:
            return await self._send(call)
        with trio.move_on_after(timeout):
            return await self._send(call)
        raise MCPError(REQUEST_TIMEOUT, f"Request {method!r} timed out")

    async def _initialize(self, params: Mapping[str, Any] | None) -> dict[str, Any]:
        """Answer the SDK session's own `initialize` from the handshake that a generation made."""
        if self.initialize_params is not None:
            await trio.lowlevel.checkpoint()
            raise MCPError(INVALID_REQUEST, "this client makes its handshakes itself")
        self.initialize_params = dict(params or {})
        self.supervisor.start()
        generation = await self.supervisor.ready()
        return generation.session.result

    # -- one logical call ---------------------------------------------------------------------

    async def _send(self, call: Call) -> dict[str, Any]:
        self._counters.calls += 1
        generation = await self.supervisor.ready()
        outcome = await self._post(generation, call)
        if outcome.fate is not Fate.ANSWERED and self._may_resend(call, outcome):
            generation = await self._next_chance(call, outcome)
            self._counters.resends += 1
            if self._watcher is not None and outcome.evidence is not None:
                self._watcher(Resent(call.method, generation.number, outcome.evidence))
            first, outcome = outcome, await self._post(generation, call)
            if first.fate is Fate.UNKNOWN and outcome.fate in (Fate.LOST, Fate.UNSENT):
                # That the second did not run says nothing of the first.
                raise self._error(call, first, resent=True) from self._error(call, outcome)
            if outcome.result is None:
                raise self._error(call, outcome, resent=True)
        if outcome.result is None:
            raise self._error(call, outcome)
        if call.method in STATEFUL:
            difference = self.state.observe(call.method, call.params, outcome.result)
            if difference is not None and self._watcher is not None:
                self._watcher(difference)
        return outcome.result

    async def _post(self, generation: Generation, call: Call) -> Outcome:
        """Send once, and tell the supervisor what it means for the session."""
        request_id = self.next_id() if call.request_id is None else call.request_id
        outcome = await generation.request(
            call.method,
            call.next_params(request_id),
            request_id=request_id,
            headers=call.headers,
            on_progress=call.on_progress,
            cancellable=call.cancellable,
        )
        if outcome.fate is not Fate.ANSWERED:
            self.supervisor.report(generation, outcome.notice, outcome.evidence)
        return outcome

    def _may_resend(self, call: Call, outcome: Outcome) -> bool:
        policy = resend_override.get() or self._resend
        if policy is Resend.NEVER:
            return False
        if outcome.fate in (Fate.LOST, Fate.UNSENT, Fate.BUSY):
            return True
        if outcome.fate is not Fate.UNKNOWN:
            return False
        if call.method in HARMLESS or policy is Resend.ALWAYS:
            return True
        return policy is Resend.IDEMPOTENT and self.state.may_repeat(call.tool())

    async def _next_chance(self, call: Call, outcome: Outcome) -> Generation:
        """Await the session to send on again; if none comes, raise what the first POST met."""
        try:
            if outcome.fate is Fate.BUSY:
                pause = self._backoff.delay(1, random.random) if outcome.pause is None else outcome.pause
                if pause > self._timeouts.recovery:
                    raise self._error(call, outcome)
                await trio.sleep(pause)
            return await self.supervisor.ready()
        except (GaveUp, HandshakeFailed) as failure:
            raise self._error(call, outcome, failure.recovery) from failure

    def _error(
        self, call: Call, outcome: Outcome, recovery: Recovery | None = None, *, resent: bool = False
    ) -> Exception:
        if outcome.error is not None:
            return outcome.error
        kind = TREATMENTS[outcome.fate].error
        assert kind is not None
        if recovery is None:
            recovery = self.supervisor.recovery_so_far()
        summary = SUMMARIES[outcome.fate].format(call.method) + (" (sent twice)" if resent else "")
        if outcome.fate is Fate.LOST and self.supervisor.is_flapping:
            summary += f" ({FLAPPING_HINT})"
        error = kind(summary, evidence=outcome.evidence, recovery=recovery)
        if isinstance(error, OutcomeUnknown):
            self._counters.outcome_unknown += 1
            if self._watcher is not None and outcome.evidence is not None:
                self._watcher(OutcomeLost(call.method, outcome.evidence))
        return error

    # -- state that follows -------------------------------------------------------------------

    async def prepare(self, generation: Generation) -> None:
        """Give a new session what its predecessor had, before calls may use it.

        A failure is told and not fatal: a session without a subscription is better than none.
        """
        if generation.number == 1:
            return
        for method, params in self.state.requests():
            outcome = await generation.request(method, params, request_id=self.next_id())
            if outcome.fate is Fate.LOST:
                self.supervisor.report(generation, outcome.notice, outcome.evidence)
                return
            if outcome.result is None:
                error = str(outcome.error or outcome.evidence)
                logger.warning("generation %d: %s was not restored: %s", generation.number, method, error)
                if self._watcher is not None:
                    self._watcher(RestoreFailed(generation.number, method, error))
        if "roots" in (self.initialize_params or {}).get("capabilities", {}):
            # The server asked the last session for the roots, and knows none in this one.
            await generation.notify("notifications/roots/list_changed", None)


def _encoded(headers: Mapping[str, str]) -> RawHeaders:
    """Encode what the SDK's session adds to a request, but for the version it last knew.

    What counts is the version of the generation that the request really goes out on.
    """
    return tuple(
        (name.lower().encode("ascii"), value.encode("ascii"))
        for name, value in headers.items()
        if name.lower() != MCP_PROTOCOL_VERSION_HEADER
    )


STATEFUL = frozenset({"tools/list", "logging/setLevel", "resources/subscribe", "resources/unsubscribe"})
"""Requests whose success tells what a new session has to be given again."""

SUMMARIES = {
    Fate.LOST: "{} was not executed: the session was lost",
    Fate.UNSENT: "{} was not executed: it never left whole",
    Fate.UNKNOWN: "{} may or may not have been executed",
}


def _call(method: str, params: Mapping[str, Any] | None, opts: CallOptions, *, key: str | None) -> Call:
    return Call(
        method=method,
        params=dict(params or {}),
        request_id=opts.get("request_id"),
        headers=_encoded(opts.get("headers") or {}),
        on_progress=opts.get("on_progress"),
        cancellable=opts.get("cancel_on_abandon", True),
        key=key,
    )
