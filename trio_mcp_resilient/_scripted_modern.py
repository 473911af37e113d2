"""Protocol 2026-07-28: no session and no handshake, and each request stands for itself.

An answer is JSON, unless something is said before it or it takes long; then it is an event stream
from there on. A disconnect cancels what runs for the request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, cast

import trio

from trio_mcp_resilient._scripted_answer import Answer
from trio_mcp_resilient._scripted_catalog import Catalog, ToolContext
from trio_mcp_resilient._scripted_checks import EVENT_STREAM
from trio_mcp_resilient._scripted_dialects import Reply, rpc_reply
from trio_mcp_resilient._scripted_envelope import (
    CAPABILITIES_KEY,
    CLIENT_INFO_KEY,
    HTTP_STATUS,
    LOG_LEVEL_KEY,
    METHOD_NOT_FOUND,
    MODERN_VERSIONS,
    SERVER_INFO_KEY,
    Rejection,
    meta_of,
    reject,
    unsupported,
)
from trio_mcp_resilient._scripted_inputs import InputRequired, Inputs
from trio_mcp_resilient._scripted_records import SeenRequest
from trio_mcp_resilient._scripted_runs import Runs
from trio_mcp_resilient._scripted_session import Carrier, EventStream, Message, RpcError, ScriptedSession
from trio_mcp_resilient._scripted_sessions import PROTOCOL_VERSIONS
from trio_mcp_resilient._scripted_subscriptions import Subscriptions

LISTEN = "subscriptions/listen"
GONE = ("initialize", "ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe")
"""Methods that earlier versions have and this one has not."""
CACHED = (
    "server/discover",
    "tools/list",
    "resources/list",
    "resources/templates/list",
    "resources/read",
    "prompts/list",
)
"""Methods whose results say how long they may be kept."""
PING = b": ping\n\n"


class Modern(Subscriptions, Catalog, Runs):
    """The part of a `ScriptedServer` that speaks the version without sessions."""

    def __init__(self, name: str, nursery: trio.Nursery) -> None:
        Subscriptions.__init__(self, name)
        Catalog.__init__(self)
        Runs.__init__(self, nursery)
        self.modern_versions: Sequence[str] = MODERN_VERSIONS
        """The versions without sessions that it speaks."""
        self.json_mode = False
        """Answer POSTs by JSON instead of an event stream. What is said about them goes to the GET stream,
        or, where there is none, nowhere."""
        self.sse_after: float = 15.0
        """Without sessions: seconds without a word after which an answer becomes an event stream; with 0
        every answer is one."""
        self.ping_interval: float = 15.0
        """Without sessions: seconds of silence on an event stream after which a comment is sent."""
        self.says_result_type = True
        """Put `resultType: complete` on results; some servers leave it out."""
        self.cache_hints: Message = {"ttlMs": 0, "cacheScope": "private"}
        """What results say about being kept."""
        self.cancels_on_disconnect = True
        """Without sessions: cancel what runs for a client that leaves. Behind some proxies nobody learns."""
        self.disconnects: list[Any] = []
        """The JSON-RPC ids of requests whose client left before the answer: its way to cancel them."""
        self.client_faults: Counter[str] = Counter()
        """What clients did against the version without sessions: requests with a wrong or missing
        `envelope` or `header`, a `session id`, and POSTs of a `notification` or a `response`."""

    async def _post_modern(self, answer: Answer, seen: SeenRequest) -> None:
        if seen.session_id is not None:
            self._client_fault("session id", seen)
        if seen.rpc_method is None or ("id" in seen.message and seen.rpc_id is None):
            self._client_fault("response", seen)
            message = "Body must be a single JSON-RPC request or notification object"
            await answer.reply(rpc_reply(400, -32600, message))
        elif seen.rpc_id is None:
            self._client_fault("notification", seen)
            rejection = unsupported(seen.protocol_version, self.modern_versions)
            await answer.reply(Reply(202) if rejection is None else rejection.reply(seen))
        elif (rejection := self._rejection(seen)) is not None:
            if rejection.what != "version":
                self._client_fault(rejection.what, seen)
            await answer.reply(rejection.reply(seen))
        else:
            await self._request_modern(answer, seen)

    def _client_fault(self, what: str, seen: SeenRequest) -> None:
        # Who has not learnt of a redeploy does no wrong.
        if not self._speaks_with_sessions(seen):
            self.client_faults[what] += 1

    def _speaks_with_sessions(self, seen: SeenRequest) -> bool:
        return CAPABILITIES_KEY not in meta_of(seen) and seen.protocol_version in PROTOCOL_VERSIONS

    def _rejection(self, seen: SeenRequest) -> Rejection | None:
        if self._speaks_with_sessions(seen):
            # The specification has it told what is spoken here, before anything else is looked at.
            return unsupported(seen.protocol_version, self.modern_versions)
        if seen.rpc_method == "initialize" and seen.protocol_version is None:
            return unsupported(seen.params.get("protocolVersion"), self.modern_versions)
        listed: Message = self._tools.get(str(seen.tool), {})
        return reject(seen, self.modern_versions, listed.get("inputSchema") or {})

    async def _request_modern(self, answer: Answer, seen: SeenRequest) -> None:
        session = self._one_request(seen)
        stream = EventStream(f"{seen.number}", resumable=False)
        # What is said on a stream that nothing carries is dropped.
        about = EventStream("nowhere", resumable=False) if self.json_mode else stream
        inputs = Inputs(self._name, seen.params, session.client_capabilities)
        cut = partial(stream.detach, reset=True)
        context = ToolContext(session, about, seen.rpc_id, seen.params, cut, inputs)
        run = partial(self._result_modern, str(seen.rpc_method))
        if seen.rpc_method == LISTEN:
            subscription = self._subscription(seen.rpc_id, seen.params, stream, answer.disconnect)
            run = partial(self._result_of_listening, subscription)
        with stream.carried() as carrier:
            scope = self._start(session, stream, context, run)
            try:
                await self._answer_modern(answer, stream, carrier)
            finally:
                if self.cancels_on_disconnect:
                    scope.cancel()

    def _one_request(self, seen: SeenRequest) -> ScriptedSession:
        """Return what the envelope tells about the client, as a session of one request."""
        meta = meta_of(seen)
        session = ScriptedSession("", 0, str(seen.protocol_version), resumable=False)
        session.client_info = meta.get(CLIENT_INFO_KEY) or {}
        session.client_capabilities = meta.get(CAPABILITIES_KEY) or {}
        # Logging is asked for by each request; a level above all there are is how to say no.
        session.log_level = str(meta.get(LOG_LEVEL_KEY, "off"))
        return session

    async def _result_modern(self, method: str, context: ToolContext) -> Message:
        try:
            result = await self._plain_result(method, context)
        except InputRequired as required:
            return self._stamped(required.result)
        hints: Message = self.cache_hints if method in CACHED else {}
        return self._completed({**hints, **result})

    async def _plain_result(self, method: str, context: ToolContext) -> Message:
        if method == "server/discover":
            await trio.lowlevel.checkpoint()
            told = {"supportedVersions": list(self.modern_versions), "capabilities": self.capabilities}
            return told if self.instructions is None else {**told, "instructions": self.instructions}
        if method in GONE:
            raise RpcError(METHOD_NOT_FOUND, "Method not found", method)
        return cast("Message", await self._result(method, context))

    async def _result_of_listening(self, subscription: Any, context: ToolContext) -> Message:
        return self._completed(await self._listen(subscription))

    def _completed(self, result: Message) -> Message:
        typed = {"resultType": "complete"} if self.says_result_type else dict[str, Any]()
        return self._stamped({**typed, **result})

    def _stamped(self, result: Message) -> Message:
        meta: Message = result.get("_meta") or {}
        return {**result, "_meta": {SERVER_INFO_KEY: self.info, **meta}}

    async def _answer_modern(self, answer: Answer, stream: EventStream, carrier: Carrier) -> None:
        # A subscription runs until it is ended, so nothing can wait for that.
        waits = answer.seen.rpc_method != LISTEN and (self.json_mode or answer.waits_for_the_run)
        if waits:
            await stream.finished()
        elif self.sse_after > 0:
            with trio.move_on_after(self.sse_after):
                await carrier.ready()
        first = stream.events[0].message if stream.events and stream.events[0].last else None
        if first is None or (self.sse_after <= 0 and not self.json_mode):
            await self._carry_modern(answer, carrier)
        else:
            error: Mapping[str, Any] = first.get("error") or {}
            await answer.reply(Reply(HTTP_STATUS.get(error.get("code", 0), 200), first))

    async def _carry_modern(self, answer: Answer, carrier: Carrier) -> None:
        await answer.begin(200, {"content-type": EVENT_STREAM, "cache-control": "no-cache, no-transform"})
        while True:
            with trio.move_on_after(self.ping_interval) as silence:
                await carrier.ready()
            if silence.cancelled_caught:
                await answer.part(PING, last=False)
                continue
            event = await carrier.next()
            if event is None:
                break
            await answer.part(event.encode(), last=event.last)
        if carrier.reset:
            answer.disconnect()
        else:
            await answer.end()
