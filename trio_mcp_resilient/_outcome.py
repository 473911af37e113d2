"""What became of one POST, and the table that says what is done about it."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

from trio_mcp_resilient._errors import ConnectionLost, Evidence, OutcomeUnknown, ResilientError, SessionLost


class Fate(enum.Enum):
    """How one POST ended."""

    ANSWERED = "answered"
    """With this request's result, or its JSON-RPC error."""
    REFUSED = "refused"
    """By an HTTP error that is the request's own fault; the session lives."""
    BUSY = "busy"
    """By a server or gateway that says it dispatched nothing; the session may live."""
    LOST = "lost"
    """By a session layer that no longer knows the id: certainly not executed."""
    UNSENT = "unsent"
    """Before its last byte was accepted: certainly not executed."""
    UNKNOWN = "unknown"
    """Sent whole, then cut: it may have run."""


class Notice(enum.Enum):
    """What a POST's end says about the generation it ran on."""

    NOTHING = "nothing"
    SUSPECT = "suspect"
    """The session is in doubt: ask it, and start another if it is gone."""
    CONDEMN = "condemn"
    """The session is gone."""


@dataclass(frozen=True)
class Treatment:
    """What is done about a fate: row of the table below."""

    notice: Notice
    executed: str
    """For people: whether the request ran."""
    resend: str
    """For people: when it is sent again."""
    error: type[ResilientError] | None
    """What the caller gets if it is not sent again, or not with success."""


TREATMENTS: dict[Fate, Treatment] = {
    Fate.ANSWERED: Treatment(Notice.NOTHING, "yes", "never", None),
    Fate.REFUSED: Treatment(Notice.NOTHING, "as the server says", "never", None),
    Fate.BUSY: Treatment(Notice.NOTHING, "no", "once, after a pause, on the same session if it lives", None),
    Fate.LOST: Treatment(Notice.CONDEMN, "no", "once, on the next session", SessionLost),
    Fate.UNSENT: Treatment(Notice.SUSPECT, "no", "once, when a session answers again", ConnectionLost),
    Fate.UNKNOWN: Treatment(
        Notice.SUSPECT, "unknown", "once, only if repeating is harmless or allowed", OutcomeUnknown
    ),
}


@dataclass(slots=True)
class Outcome:
    """One POST's fate with what it brought."""

    fate: Fate
    result: dict[str, Any] | None = None
    """The result, when ANSWERED with one."""
    error: Exception | None = None
    """What to raise unchanged, when ANSWERED with a JSON-RPC error or REFUSED or BUSY."""
    evidence: Evidence | None = None
    """What was seen, for every fate but ANSWERED."""
    pause: float | None = None
    """Seconds the server asked to wait (`Retry-After`), when BUSY."""
    begun: bool = True
    """Whether writing it had begun; if not, its next sending is its first."""
    session_gone: bool = False
    """Whether the session is known to be lost although the request's own fate is UNKNOWN."""
    in_doubt: bool = False
    """Whether the session is in doubt although the request has its answer."""

    @property
    def notice(self) -> Notice:
        """What the supervisor is told."""
        if self.session_gone:
            return Notice.CONDEMN
        return Notice.SUSPECT if self.in_doubt else TREATMENTS[self.fate].notice
