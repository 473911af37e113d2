"""The sessions of a scripted server: how they begin, what ends them, and how a lost one is refused."""

from __future__ import annotations

import hashlib
import math
from typing import Any, Literal, TypeAlias, get_args

import trio

from trio_mcp_resilient._scripted_checks import refuse_version
from trio_mcp_resilient._scripted_dialects import DIALECTS, Reply, rpc_reply
from trio_mcp_resilient._scripted_records import SeenRequest, one_of
from trio_mcp_resilient._scripted_session import Message, ScriptedSession

Streams: TypeAlias = Literal["keep", "end", "cut"]
"""What becomes of the exchanges in flight when their session is lost."""
PROTOCOL_VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")


class Sessions:
    """The part of a `ScriptedServer` that has to do with sessions."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._sessions: dict[str, ScriptedSession] = {}
        self._refusal = DIALECTS["404-rpc"]
        self.protocol_version = PROTOCOL_VERSIONS[-1]
        """The newest version it speaks; older ones as well."""
        self.capabilities: Message = {
            "tools": {"listChanged": True},
            "resources": {"subscribe": True, "listChanged": True},
            "prompts": {"listChanged": True},
            "logging": {},
            "completions": {},
        }
        self.info: Message = {"name": name, "version": "1"}
        self.instructions: str | None = None
        self.idle_timeout: float = math.inf
        """Seconds without a request or an open stream after which a session is forgotten."""
        self.stateless = False
        """Have no sessions: no ids, no GET stream, no DELETE."""
        self.resumable = False
        """Give events ids, remember them, and replay by `Last-Event-ID` (for sessions made from then on)."""
        self.missing_id: Reply = rpc_reply(400, -32600, "Bad Request: Missing session ID")
        """The answer to a request that should carry a session id and does not."""
        self.handshakes: int = 0
        """How many sessions were made, ever."""
        self.deleted: list[str] = []
        """The ids of sessions that the client ended by DELETE."""
        self.cancelled: list[Any] = []
        """The JSON-RPC ids that `notifications/cancelled` named."""

    @property
    def sessions(self) -> list[ScriptedSession]:
        """The live sessions, oldest first."""
        for session in list(self._sessions.values()):
            if session.idle_for > self.idle_timeout:
                self._forget(session, streams=True)
        return list(self._sessions.values())

    def lose_session(
        self,
        session: ScriptedSession | str | None = None,
        *,
        streams: Streams = "keep",
    ) -> int:
        """Forget a session, or all of them: whoever names it later is refused in the current dialect.

        What runs for it runs on.

        Args:
            session: the session or its id; None for all.
            streams: what becomes of the exchanges in flight: `keep` lets them come to their
                answers, as on a server behind a balancer that now sends the client elsewhere;
                `end` ends them cleanly without an answer, as an eviction does; `cut` resets them.

        Returns:
            How many sessions were lost.
        """
        one_of(get_args(Streams), streams)
        wanted = session.id if isinstance(session, ScriptedSession) else session
        lost = [known for known in self.sessions if wanted in (None, known.id)]
        for each in lost:
            self._forget(each, streams=streams == "end")
            if streams == "cut":
                each.cut()
        return len(lost)

    def dialect(self, how: str | Reply) -> None:
        """Choose how a lost session is refused: a key of `DIALECTS`, or a `Reply` of your own."""
        self._refusal = DIALECTS[one_of(DIALECTS, how)] if isinstance(how, str) else how

    def notify(
        self, method: str, params: Message | None = None, *, session: ScriptedSession | None = None
    ) -> int:
        """Send a notification on the GET stream of one session or of all, and return how many hear it."""
        message = {"jsonrpc": "2.0", "method": method, "params": params or {}}
        heard_by = [session] if session is not None else self.sessions
        return sum(each.standalone.send(message) for each in heard_by)

    def resource_updated(self, uri: str) -> int:
        """Notify the sessions that have subscribed to a resource, and return how many hear it."""
        subscribed = [session for session in self.sessions if uri in session.subscriptions]
        params = {"uri": uri}
        return sum(
            self.notify("notifications/resources/updated", params, session=each) for each in subscribed
        )

    async def request(
        self, method: str, params: Message | None = None, *, session: ScriptedSession | None = None
    ) -> Any:
        """Ask the client something on the GET stream, waiting for one to open, and return its result.

        Args:
            method: `ping`, `sampling/createMessage`, `elicitation/create`, `roots/list` or another.
            params: its parameters.
            session: whose client; by default that of the only session.

        Raises:
            RpcError: the client refused, or the session ended first.
            ValueError: there is not exactly one session.

        Cancellation: an answer that comes later is dropped. Checkpoint: always.
        """
        session = self.the_session if session is None else session
        await session.listening.wait()
        return await session.ask(session.standalone, method, params)

    @property
    def the_session(self) -> ScriptedSession:
        """The only session there is."""
        sessions = self.sessions
        if len(sessions) != 1:
            raise ValueError(f"there are {len(sessions)} sessions")
        return sessions[0]

    def _forget(self, session: ScriptedSession, *, streams: bool) -> None:
        del self._sessions[session.id]
        session.end(streams=streams)

    def _new_session(self, params: Message) -> ScriptedSession:
        asked = params.get("protocolVersion")
        version = str(asked) if asked in self._versions else self.protocol_version
        if self.stateless:
            return ScriptedSession("", 0, version, resumable=False)
        self.handshakes += 1
        # Counted, so that a test replays; hashed, so that no two servers' ids are alike by chance.
        digest = hashlib.sha256(f"{self._name} {self.handshakes}".encode()).hexdigest()
        session = ScriptedSession(digest[:32], self.handshakes, version, resumable=self.resumable)
        session.client_info = params.get("clientInfo") or {}
        session.client_capabilities = params.get("capabilities") or {}
        self._sessions[session.id] = session
        return session

    def _handshake_result(self, session: ScriptedSession) -> Message:
        result: dict[str, Any] = {
            "protocolVersion": session.protocol_version,
            "capabilities": self.capabilities,
            "serverInfo": self.info,
        }
        return result if self.instructions is None else {**result, "instructions": self.instructions}

    @property
    def _versions(self) -> tuple[str, ...]:
        return tuple(version for version in PROTOCOL_VERSIONS if version <= self.protocol_version)

    def _find_session(self, seen: SeenRequest) -> ScriptedSession | Reply:
        """Return the session that a request names, or what refuses it."""
        if self.stateless:
            return ScriptedSession("", 0, seen.protocol_version or self.protocol_version, resumable=False)
        if seen.session_id is None:
            return self.missing_id
        session = self._sessions.get(seen.session_id)
        if session is not None and session.idle_for > self.idle_timeout:
            self._forget(session, streams=True)
            session = None
        if session is None:
            return self._refusal
        return refuse_version(seen, self._versions) or session

    async def listening(self) -> ScriptedSession:
        """Wait until the only session's GET stream is open, and return that session.

        Cancellation: nothing happened. Checkpoint: always.
        """
        session = self.the_session
        await session.listening.wait()
        await trio.lowlevel.checkpoint()
        return session
