"""Every exception the package raises, divided by who acted.

The server ended the session (`SessionLost`), the network broke (`ConnectionLost`), nobody
can tell whether the request ran (`OutcomeUnknown`), the server said no (`RequestRefused`),
there was no way back (`HandshakeFailed`, `GaveUp`), or no room in a pool (`PoolFull`). A JSON-RPC
error sent by the server stays the SDK's own `mcp.MCPError`, and using a closed client is
`trio.ClosedResourceError`.
"""

from __future__ import annotations

import copy
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, ErrorData

ERROR_CODE = -31900
"""The code of an error of ours that has to pass for a JSON-RPC error. Outside the range that
JSON-RPC reserves, in which servers and SDKs have given every code several meanings."""


@dataclass(frozen=True)
class Evidence:
    """What was seen when a request was refused or cut: enough to diagnose, nothing secret."""

    generation: int
    """The generation the request was sent on; the first is 1."""
    session: str
    """The session's fingerprint (never its id, which is a bearer secret); empty if it had no id."""
    what: str
    """One clause: what was sent and what came of it."""
    status: int | None = None
    """The HTTP status, or None when no answer came."""
    excerpt: str = ""
    """The beginning of the answer's body, on one line, with anything like a secret left out."""

    def __str__(self) -> str:
        session = f"session {self.session}" if self.session else "no session id"
        quoted = f': "{self.excerpt}"' if self.excerpt else ""
        return f"{self.what}{quoted} ({session}, generation {self.generation})"


@dataclass(frozen=True)
class Recovery:
    """How one recovery went, as far as it had got when this was made."""

    attempts: int
    """How many handshakes or probes were tried."""
    seconds: float
    """How long it took, on Trio's clock."""
    last_error: str = ""
    """The last attempt's failure; empty after a success."""

    def __str__(self) -> str:
        tries = "1 attempt" if self.attempts == 1 else f"{self.attempts} attempts"
        last = f", last error: {self.last_error}" if self.last_error else ""
        return f"{tries} in {self.seconds:.2f} s{last}"


class ResilientError(Exception):
    """The base of every error this package raises for a request or a connection.

    You do not get it for an error that the server sent as JSON-RPC (`mcp.MCPError`, unless
    it is a `RequestRefused`), for your own cancellation or timeout, nor for a closed client.
    """

    executed: bool | None = None
    """False if the request certainly did not run, None if that is not known."""

    def __init__(
        self, message: str, *, evidence: Evidence | None = None, recovery: Recovery | None = None
    ) -> None:
        # Not super(): `RequestRefused` has a second base with a signature of its own.
        Exception.__init__(self, message)
        self._summary = message
        self.evidence = evidence
        self.recovery = recovery

    @classmethod
    def from_mcp(cls, error: MCPError) -> Self | None:
        """Return the error of this class that `error` stands for, or None if it stands for none.

        For callers of the SDK's own client on `resilient_transport`: what comes to them through
        the SDK has to come as a JSON-RPC error. Only an error that was made in this process is
        believed; a server cannot forge one. Not a checkpoint.

        Args:
            error: what the SDK's client raised.
        """
        if isinstance(error, cls):
            return error
        carried = error.data.error if isinstance(error.data, _Carried) else None
        return carried if isinstance(carried, cls) else None

    def __str__(self) -> str:
        parts = [self._summary]
        if self.evidence is not None:
            parts.append(f"evidence: {self.evidence}")
        if self.recovery is not None:
            said = self.recovery.last_error == self._summary
            parts.append(f"reconnect: {replace(self.recovery, last_error='') if said else self.recovery}")
        return "; ".join(parts)


class SessionLost(ResilientError):
    """The server had forgotten the session and refused the request, which did not run.

    Raised when the request was refused a second time, when no new session could be made (the
    cause says why), or when the resend policy forbids a resend. You do not get it for a
    session whose loss was repaired.
    """

    executed: bool | None = False


class ConnectionLost(ResilientError):
    """The request never left whole: no connection was had, or the write failed part-way.

    Raised after the one resend failed too, or when the server did not come back within the
    recovery bounds. It did not run.
    """

    executed: bool | None = False


class OutcomeUnknown(ResilientError):
    """The request was sent, its answer was cut, and nobody can tell whether it ran.

    Raised at once, without waiting for the session to be repaired; the repair goes on in the
    background. You do not get it for requests that are harmless to repeat, unless the
    repetition ended the same way.
    """


class HandshakeFailed(ResilientError):
    """The endpoint answered `initialize` in a way that trying again cannot mend.

    A wrong URL, failed authentication, an unsupported protocol version, or a JSON-RPC error.
    You do not get it for a server that is down or busy: that is retried, then `GaveUp`.
    """

    executed: bool | None = False


class GaveUp(ResilientError):
    """No session could be made within the budget of attempts, or within `recovery_timeout`.

    The cause is an `ExceptionGroup` of what the attempts met. The client is not dead: the next
    call starts a new recovery.
    """

    executed: bool | None = False


class PoolFull(ResilientError):
    """Every client of the pool is in use, and `when_full="fail"` says not to wait.

    You do not get it for a client that is in the pool already: a lease of that takes up no room.
    """

    executed: bool | None = False


class RequestRefused(ResilientError, MCPError):
    """The server answered the request with an HTTP error and no JSON-RPC error of its own.

    It is an `mcp.MCPError` as well, with code -32603, as the SDK's client raises there. The
    session is kept.
    """

    def __init__(self, message: str, *, status: int, evidence: Evidence) -> None:
        ResilientError.__init__(self, message, evidence=evidence)
        MCPError.__init__(self, INTERNAL_ERROR, message, {"status": status})
        self.status = status
        """The HTTP status; 401 and 403 are refused authentication."""


def twin(error: Exception) -> Exception:
    """Return a copy of an error that several tasks are to raise.

    Each needs one of its own: a shared one would collect the tracebacks of all. The copy of a
    `ResilientError` has its cause, which is for users to look at; that of another error has the
    error itself as its cause, which shows where it was raised, if it was.
    """
    try:
        copied = copy.copy(error)
    except Exception:
        copied = error
    if copied is error or type(copied) is not type(error):
        # Not every exception can be made again from its own `args`.
        copied = ResilientError(f"{type(error).__name__}: {error}")
        copied.__cause__ = error
    elif isinstance(error, ResilientError):
        copied.__cause__ = error.__cause__
    elif error.__traceback__ is not None:
        copied.__cause__ = error
    return copied


class _Carried(dict[str, Any]):
    """An error's data for people and logs, and with it the error itself.

    Between our end of the SDK's streams and its session nothing is serialized, so the error
    arrives with its cause, and an answer of the server's, which is JSON, is never one of these.
    """

    error: ResilientError


def as_error_data(error: ResilientError) -> ErrorData:
    """Express an error of ours as a JSON-RPC error; `ResilientError.from_mcp` turns it back."""
    evidence, recovery = error.evidence, error.recovery
    data = _Carried(
        kind=type(error).__name__,
        executed="no" if error.executed is False else "unknown",
        evidence=None if evidence is None else asdict(evidence),
        recovery=None if recovery is None else asdict(recovery),
    )
    data.error = error
    if isinstance(error, RequestRefused):
        # As the SDK's own transport says it.
        data["status"] = error.status
        return ErrorData(code=error.code, message=str(error), data=data)
    return ErrorData(code=ERROR_CODE, message=str(error), data=data)
