"""What is seen of a run from outside the client: the material that the oracle judges."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import trio

from trio_mcp_resilient import Event, SessionStarted, State, StateChanged
from trio_mcp_resilient.testing import MemoryStream

MARK = "sim"
"""Where a request's `_meta`, and its result's, carries the number of the logical call."""


def call_of(rpc_method: str | None, params: Mapping[str, Any]) -> int | None:
    """The number of the logical call that a request belongs to; None for the client's own requests."""
    if rpc_method == "completion/complete":
        # The only one whose `_meta` the client's method does not pass on.
        return int(params["argument"]["value"])
    mark = (params.get("_meta") or {}).get(MARK)
    return mark if isinstance(mark, int) else None


@dataclass(frozen=True)
class Sent:
    """One request as it left the client."""

    at: float
    http_method: str
    rpc_method: str | None
    call: int | None
    session: str | None
    last_event_id: str | None
    whole: bool
    """Whether the last byte was accepted; if not, it cannot have run."""
    state: State
    """The client's state then."""
    request_id: int | str | None = None
    """The JSON-RPC id of a request."""


@dataclass
class Ended:
    """One logical call, and how it ended."""

    call: int
    began: float
    ended: float = -1.0
    how: str = "never"
    """`result`, `cancelled`, or the name of the exception's class."""
    error: BaseException | None = None
    problem: str = ""
    """What was wrong with the result, if it was somebody else's."""


@dataclass
class Ledger:
    """Everything seen, in order, and a trace of it for people."""

    trace: list[str] = field(default_factory=list)
    sent: list[Sent] = field(default_factory=list)
    runs: Counter[int] = field(default_factory=Counter)
    """How often a handler was started, by logical call."""
    events: list[Event] = field(default_factory=list)
    ended: dict[int, Ended] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    """What was wrong the moment it was seen."""
    state: State = State.CONNECTING
    swaps: list[float] = field(default_factory=list)
    """When each generation began to stand."""
    faults: int = 0
    """Faults that happened, not only that were planned."""
    _ordinals: dict[str, int] = field(default_factory=dict)

    def note(self, text: str) -> None:
        """Add a line to the trace."""
        self.trace.append(f"{trio.current_time():10.4f} {text}")

    def problem(self, text: str) -> None:
        """Note that something is wrong."""
        self.problems.append(text)
        self.note(f"PROBLEM {text}")

    def fault(self, text: str) -> None:
        """Count a fault that happens."""
        self.faults += 1
        self.note(f"fault   {text}")

    def ordinal(self, session: str | None) -> str:
        """A session's name in the trace: the n-th seen, since ids of real servers are random."""
        return "-" if session is None else f"s{self._ordinals.setdefault(session, len(self._ordinals) + 1)}"

    def told(self, event: Event) -> None:
        """Take an event of the client's."""
        self.events.append(event)
        if isinstance(event, StateChanged):
            if event.before is not self.state:
                self.problem(f"the client moved from {event.before}, but was {self.state}")
            self.state = event.after
        if isinstance(event, SessionStarted):
            self.swaps.append(trio.current_time())
        self.note(f"event   {_shown(event)}")

    def started(self, call: int | None, rpc_method: str) -> None:
        """Take the start of a handler at the server."""
        if call is not None:
            self.runs[call] += 1
        self.note(f"runs    {rpc_method} {call}")

    def record(self, stream: MemoryStream) -> MemoryStream:
        """See what the client sends on a connection, as it leaves, and let through what is let through."""
        admits = stream.admits

        def watch(data: bytes) -> int | None:
            admitted = None if admits is None else admits(data)
            self._leaves(data, whole=admitted is None)
            return admitted

        stream.admits = watch
        return stream

    def _leaves(self, data: bytes, *, whole: bool) -> None:
        head, _, body = data.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        message = json.loads(body) if body else {}
        rpc_method = message.get("method")
        session = headers.get("mcp-session-id")
        sent = Sent(
            at=trio.current_time(),
            http_method=first.partition(" ")[0],
            rpc_method=rpc_method,
            call=call_of(rpc_method, message.get("params") or {}),
            session=session,
            last_event_id=headers.get("last-event-id"),
            whole=whole,
            state=self.state,
            request_id=message.get("id") if rpc_method else None,
        )
        self.sent.append(sent)
        part = "" if whole else " (a part)"
        what = rpc_method or ("an answer" if body else "")
        self.note(f"sent    {sent.http_method} {what} {sent.call} on {self.ordinal(session)}{part}")

    def fingerprint(self) -> str:
        """A short name for the whole trace."""
        return hashlib.sha256("\n".join(self.trace).encode()).hexdigest()[:16]


def _shown(event: Event) -> str:
    # Without sessions and texts, in which a real server's random ids would differ each time.
    shown = [type(event).__name__]
    for name in ("before", "after", "generation", "reason", "method", "in_flight", "losses"):
        if hasattr(event, name):
            shown.append(f"{name}={getattr(event, name)}")
    return " ".join(shown)
