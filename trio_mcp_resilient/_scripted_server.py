"""The scripted server: MCP's streamable HTTP binding over the parts that the other modules are."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Literal, TypeAlias, final, get_args

import trio

from trio_mcp_resilient._scripted_answer import Answer
from trio_mcp_resilient._scripted_catalog import ToolContext
from trio_mcp_resilient._scripted_checks import EVENT_STREAM, refuse
from trio_mcp_resilient._scripted_dialects import DISCOVER_DIALECTS, Reply, rpc_reply
from trio_mcp_resilient._scripted_faults import Script
from trio_mcp_resilient._scripted_http import Exchange, Over
from trio_mcp_resilient._scripted_modern import Modern
from trio_mcp_resilient._scripted_network import Ending, Network
from trio_mcp_resilient._scripted_records import SeenRequest, When, one_of, parse
from trio_mcp_resilient._scripted_session import Carrier, EventStream, ScriptedSession
from trio_mcp_resilient._scripted_sessions import PROTOCOL_VERSIONS

Era: TypeAlias = Literal["legacy", "modern", "both"]
"""Which versions a server speaks: those with sessions, those without (from 2026-07-28 on), or both."""
PATH = "/mcp"
# From this version on, an event may carry an id and nothing else; older clients choke on it.
PRIMING_SINCE = "2025-11-25"


@final
class ScriptedServer(Network, Modern, Script):
    """An MCP server for tests, made by `open_scripted_server`.

    It behaves as a good server does until it is told otherwise. All settings may be changed
    at any time; they hold for what comes next.
    """

    def __init__(self, name: str, nursery: trio.Nursery) -> None:
        Network.__init__(self, nursery, self._handle, self._admits)
        Modern.__init__(self, name, nursery)
        Script.__init__(self)
        self.era: Era = "legacy"
        """Which versions it speaks."""
        self.url: str = f"http://{name}.test{PATH}"
        """What to tell the client, together with `connect`."""
        self.retry: int | None = None
        """Milliseconds that a client is told to wait before it resumes; only said if `resumable`."""
        self.offer_get_stream = True
        """Answer GET by a stream; otherwise by 405."""
        self.offer_delete = True
        """Let clients end their sessions; otherwise DELETE is answered by 405."""
        self.allowed_hosts: Collection[str] | None = None
        """Host names that `Host` and `Origin` may have, against DNS rebinding; None for any."""
        self.headers: dict[str, str] = {}
        """Header fields to put on every answer."""
        self.delay: float | Callable[[SeenRequest], float] = 0.0
        """Seconds that each request waits before anything is done with it."""
        self._requests: list[SeenRequest] = []
        self._observers: list[Callable[[SeenRequest], None]] = []
        self._discover_refusal: Reply | None = None

    @property
    def requests(self) -> list[SeenRequest]:
        """Every request that arrived whole, in order."""
        return list(self._requests)

    def seen(self, when: When) -> list[SeenRequest]:
        """Every request that arrived whole and matches, in order."""
        return [seen for seen in self._requests if seen.matches(when)]

    def posts(self, rpc_method: str | None = None) -> list[SeenRequest]:
        """Every POST that arrived whole, in order: all, or those of one JSON-RPC method."""
        return [
            seen
            for seen in self._requests
            if seen.http_method == "POST" and rpc_method in (None, seen.rpc_method)
        ]

    def on_request(self, observe: Callable[[SeenRequest], None]) -> None:
        """Call a function with each request that arrives, before anything is done with it."""
        self._observers.append(observe)

    def discover_dialect(self, how: str | Reply | None) -> None:
        """Choose how `server/discover` is answered where it is unknown: by versions with sessions.

        Args:
            how: a key of `DISCOVER_DIALECTS`, a `Reply` of your own, or None for the answer that
                any request without a session gets.
        """
        self._discover_refusal = (
            DISCOVER_DIALECTS[one_of(DISCOVER_DIALECTS, how)] if isinstance(how, str) else how
        )

    def restart(
        self,
        *,
        era: Era | None = None,
        keep_sessions: bool = False,
        down_for: float = 0.0,
        how: Ending = "reset",
    ) -> None:
        """Die and come back: connections are cut and what runs is stopped where it is.

        Args:
            era: which versions to speak from then on; None for the same as before.
            keep_sessions: remember the sessions, as a server with a store for them does.
            down_for: seconds during which new connections are refused.
            how: how the open connections end.
        """
        if era is not None:
            one_of(get_args(Era), era)
        one_of(get_args(Ending), how)
        self._go_down(down_for, "refuse")
        self.cut_connections(how)
        self._stop_all()
        self.era = era or self.era
        if not keep_sessions:
            self.lose_session(streams="end")

    # What follows answers one request.

    async def _handle(self, exchange: Exchange) -> None:
        try:
            await self._answer(exchange)
        except Over:
            raise
        except Exception as error:
            self._fail(error)

    async def _answer(self, exchange: Exchange) -> None:
        seen = self._record(exchange)
        note_status = partial(self._note_status, seen.number)
        answer = Answer(exchange, seen, self._plan(seen), self.headers, note_status)
        modern = self._is_modern(seen)
        try:
            await self._answer_in(modern, answer, seen)
        finally:
            if modern and answer.abandoned and seen.rpc_id is not None:
                self.disconnects.append(seen.rpc_id)

    async def _answer_in(self, modern: bool, answer: Answer, seen: SeenRequest) -> None:
        delay = self.delay(seen) if callable(self.delay) else self.delay
        if delay:
            await trio.sleep(delay)
        await answer.before_run()
        offered = ["POST"] if modern else self._offered
        refusal = refuse(seen, path=PATH, offered=offered, hosts=self.allowed_hosts)
        if refusal is not None:
            await answer.reply(refusal)
        elif modern:
            await self._post_modern(answer, seen)
        elif seen.http_method == "POST":
            await self._post(answer, seen)
        elif seen.http_method == "GET":
            await self._get(answer, seen)
        else:
            await self._delete(answer, seen)

    def _record(self, exchange: Exchange) -> SeenRequest:
        seen = SeenRequest(
            len(self._requests),
            exchange.connection.number,
            trio.current_time(),
            exchange.http_method,
            exchange.target,
            exchange.headers,
            exchange.body,
            parse(exchange.body),
        )
        self._requests.append(seen)
        for observe in self._observers:
            observe(seen)
        return seen

    def _note_status(self, number: int, status: int) -> None:
        self._requests[number] = replace(self._requests[number], status=status)

    def _is_modern(self, seen: SeenRequest) -> bool:
        if self.era == "both":
            # As the SDK's server does: a version that is not known is for the newer era to refuse.
            return seen.protocol_version not in (None, *PROTOCOL_VERSIONS)
        return self.era == "modern"

    @property
    def _offered(self) -> list[str]:
        offered = {"POST": True, "GET": self.offer_get_stream, "DELETE": self.offer_delete}
        return [method for method in offered if offered[method] and (method == "POST" or not self.stateless)]

    async def _post(self, answer: Answer, seen: SeenRequest) -> None:
        if seen.rpc_method == "initialize" and (seen.session_id is None or self.stateless):
            session = self._new_session(seen.params)
            await self._request(answer, seen, session, lambda ctx: self._handshake_result(session))
            return
        if seen.rpc_method == "server/discover" and self._discover_refusal is not None:
            await answer.reply(self._discover_refusal)
            return
        found = self._find_session(seen)
        if isinstance(found, Reply):
            await answer.reply(found)
        elif seen.rpc_method == "initialize":
            await answer.reply(rpc_reply(400, -32600, "Invalid Request: Server already initialized"))
        elif seen.rpc_method is not None and seen.rpc_id is not None:
            method = seen.rpc_method
            await self._request(answer, seen, found, partial(self._result, method))
        else:
            with found.used(answer.disconnect):
                self._take(found, seen)
                await answer.whole(202, {}, b"")

    def _take(self, session: ScriptedSession, seen: SeenRequest) -> None:
        """Take a notification or a response."""
        if seen.rpc_method is None:
            session.answered(seen.message)
        elif seen.rpc_method == "notifications/initialized":
            session.initialized = True
        elif seen.rpc_method == "notifications/cancelled":
            self.cancelled.append(seen.params.get("requestId"))
            run = session.running.get(seen.params.get("requestId"))
            if run is not None:
                run.cancel()

    async def _request(
        self, answer: Answer, seen: SeenRequest, session: ScriptedSession, run: Callable[[ToolContext], Any]
    ) -> None:
        resumable = self.resumable and not self.json_mode and not self.stateless
        stream = EventStream(f"{session.number}-{seen.number}", resumable=resumable)
        headers = {"mcp-session-id": session.id} if session.id and seen.rpc_method == "initialize" else {}
        with session.used(answer.disconnect), stream.carried() as carrier:
            session.streams.append(stream)
            if resumable and session.protocol_version >= PRIMING_SINCE:
                stream.prime(self.retry)
            about = session.standalone if self.json_mode else stream
            cut = answer.disconnect if self.json_mode else partial(stream.detach, reset=True)
            context = ToolContext(session, about, seen.rpc_id, seen.params, cut)
            self._start(session, stream, context, run)
            if self.json_mode:
                await stream.finished()
                await self._answer_json(answer, session, stream, headers)
                return
            if answer.waits_for_the_run:
                await stream.finished()
            await self._carry(answer, carrier, headers)

    async def _answer_json(
        self, answer: Answer, session: ScriptedSession, stream: EventStream, headers: Mapping[str, str]
    ) -> None:
        event = stream.events[-1] if stream.events else None
        if event is None or event.message is None:
            why = "Session terminated before the request completed" if session.over else "Request cancelled"
            reply = rpc_reply(500, -32603, why)
        else:
            reply = Reply(200, event.message, headers=headers)
        await answer.reply(reply)

    async def _carry(self, answer: Answer, carrier: Carrier, headers: Mapping[str, str]) -> None:
        fixed = {"content-type": EVENT_STREAM, "cache-control": "no-cache, no-transform"}
        await answer.begin(200, {**fixed, **headers})
        while (event := await carrier.next()) is not None:
            await answer.part(event.encode(), last=event.last)
        if carrier.reset:
            answer.disconnect()
        else:
            await answer.end()

    async def _get(self, answer: Answer, seen: SeenRequest) -> None:
        session = self._find_session(seen)
        if isinstance(session, Reply):
            await answer.reply(session)
            return
        stream, position = session.resumed(seen.last_event_id)
        if stream is session.standalone and stream.carriers:
            conflict = "Conflict: Only one SSE stream is allowed per session"
            await answer.reply(rpc_reply(409, -32000, conflict))
            return
        with session.used(answer.disconnect), stream.carried() as carrier:
            if position is not None:
                carrier.position = position
            if stream is not session.standalone:
                await self._carry(answer, carrier, {})
                return
            session.listening.set()
            try:
                await self._carry(answer, carrier, {})
            finally:
                session.listening = trio.Event()

    async def _delete(self, answer: Answer, seen: SeenRequest) -> None:
        session = self._find_session(seen)
        if isinstance(session, Reply):
            await answer.reply(session)
            return
        self.deleted.append(session.id)
        self._forget(session, streams=True)
        await answer.whole(200, {}, b"")


@asynccontextmanager
async def open_scripted_server(
    name: str = "scripted", *, era: Era = "legacy", discover_dialect: str | Reply | None = None
) -> AsyncGenerator[ScriptedServer, None]:
    """Open a scripted MCP server for as long as the block runs.

    Args:
        name: what it calls itself, and the host in its `url`. Servers of different names have
            different session ids.
        era: which versions it speaks: those with sessions (`legacy`), 2026-07-28, which has none
            (`modern`), or `both`.
        discover_dialect: how `server/discover` is answered where it is unknown, as for
            `ScriptedServer.discover_dialect`.

    Yields:
        The server, up and with nothing to offer yet.

    Whatever the block raises comes out as itself. So does what your functions raise that
    the server calls (observers, matchers, bodies), and what a tool's handler asserts.

    Cancellation: the exit stops what runs and closes every connection at once.
    Checkpoints: the exit is one.
    """
    raised: BaseException | None = None
    server: ScriptedServer | None = None
    try:
        async with trio.open_nursery() as nursery:
            server = ScriptedServer(name, nursery)
            server.era = era
            server.discover_dialect(discover_dialect)
            # Raised again outside the nursery, which would wrap it.
            try:
                yield server
            except BaseException as error:  # noqa: ASYNC103
                raised = error
            nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        # Anything but cancellation here is no Exception, such as a KeyboardInterrupt, and wins.
        if raised is None or group.split(trio.Cancelled)[1]:
            raise
    if server is not None and server.failure is not None:
        raise server.failure
    if raised is not None:
        raise raised
