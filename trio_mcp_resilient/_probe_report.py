"""What a probe saw of a server, what it means for clients, and what to mend: tables, no I/O."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from trio_mcp_resilient._detector import Verdict


class Step(enum.StrEnum):
    """What a probe sends, in this order."""

    DISCOVER = "server/discover"
    MODERN_CALL = "tools/list, 2026-07-28"
    MODERN_ID = "the same with a made-up session id"
    INITIALIZE = "initialize"
    INITIALIZED = "notifications/initialized"
    CALL = "tools/list on the session"
    STREAM = "GET on the session"
    NO_ID = "tools/list without an id"
    MADE_UP = "tools/list with a made-up id"
    MADE_UP_STREAM = "GET with a made-up id"
    DELETE = "DELETE"
    OLD = "tools/list with the deleted id"


@dataclass(frozen=True)
class Row:
    """One request of the probe, and what came of it."""

    step: Step
    status: int | None
    """The HTTP status; None if no answer came."""
    content_type: str
    excerpt: str
    """What the answer said, or how it failed: on one line, with nothing secret in it."""
    verdict: Verdict
    """What `classify` makes of it."""
    event_ids: bool = False
    """Whether it came in events that carry ids."""
    gave_id: bool = False
    """Whether it named a session."""

    @property
    def answered(self) -> bool:
        """Whether the status is a success."""
        return self.status is not None and 200 <= self.status < 300


Rows: TypeAlias = Mapping[Step, Row]


class Level(enum.StrEnum):
    """How much a finding weighs: the specification's own words."""

    MUST = "must"
    SHOULD = "should"
    MAY = "may"


@dataclass(frozen=True)
class Finding:
    """One thing to mend."""

    step: Step
    level: Level
    what: str
    fix: str
    section: str
    """Where the specification asks for it."""


@dataclass(frozen=True)
class Report:
    """What a probe found out about one endpoint."""

    endpoint: str
    """Without the query, which may hold a secret."""
    server: str
    """The name and version that it gives itself; empty if it gave none."""
    protocol_version: str
    """The version agreed on by `initialize`; empty if that was refused."""
    eras: tuple[str, ...]
    keeps_sessions: bool
    unfit: str
    """Why nothing could be examined; empty if it was."""
    rows: tuple[Row, ...]

    @property
    def by_step(self) -> Rows:
        """The rows by what was sent."""
        return {row.step: row for row in self.rows}

    @property
    def refusals(self) -> tuple[Row, ...]:
        """The answers to ids that the server does not know: those of a client whose session is gone."""
        return tuple(row for row in self.rows if row.step in (Step.MADE_UP, Step.OLD))

    @property
    def standard_client_recovers(self) -> bool | None:
        """Whether 404 answers every unknown id, on which alone a client must start anew.

        None if there is nothing to lose.
        """
        return all(row.status == 404 for row in self.refusals) if self.keeps_sessions else None

    @property
    def this_client_recovers(self) -> bool | None:
        """Whether this package reads every such answer as a lost session; None as above."""
        if not self.keeps_sessions:
            return None
        return all(row.verdict is Verdict.SESSION_LOST for row in self.refusals)

    @property
    def resumable(self) -> bool:
        """Whether a cut answer can be taken up: its events carry ids."""
        call = self.by_step.get(Step.CALL)
        return call is not None and call.event_ids

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What to mend, by the order of the requests."""
        rows = self.by_step
        return tuple(
            advice.finding(rows[advice.step])
            for advice in ADVICE
            if advice.step in rows
            and (self.keeps_sessions or not advice.with_sessions)
            and advice.applies(rows[advice.step], rows)
        )

    @property
    def sound(self) -> bool:
        """Whether the server was examined and does all that it must."""
        return not self.unfit and all(finding.level is not Level.MUST for finding in self.findings)


@dataclass(frozen=True)
class Advice:
    """What is wrong if an answer looks so, and how it is mended."""

    step: Step
    level: Level
    applies: Callable[[Row, Rows], bool]
    what: str
    """May name the row's `status`, `verdict` and `excerpt`."""
    fix: str
    section: str
    with_sessions: bool = False
    """Whether it holds only for servers that keep sessions."""

    def finding(self, row: Row) -> Finding:
        """Return it with the row's own words."""
        status = "nothing" if row.status is None else row.status
        what = self.what.format(status=status, verdict=row.verdict, excerpt=row.excerpt)
        return Finding(self.step, self.level, what, self.fix, self.section)


def _accepted(row: Row, rows: Rows) -> bool:
    return row.answered and row.verdict is not Verdict.SESSION_LOST


def _not(*statuses: int) -> Callable[[Row, Rows], bool]:
    return lambda row, rows: row.status not in statuses


def _refused_otherwise(row: Row, rows: Rows) -> bool:
    return row.status != 404 and not _accepted(row, rows)


def _misread(row: Row, rows: Rows) -> bool:
    return row.status == 404 and row.verdict is not Verdict.SESSION_LOST


MANAGEMENT = "2025-11-25, Transports, Session Management"
LISTENING = "2025-11-25, Transports, Listening for Messages from the Server"
KNOW_YOUR_IDS = "keep the ids that were given out, and answer every other with 404"
ANSWER_404 = "answer 404 to every id that is not known (any more), whatever the method"

ADVICE: tuple[Advice, ...] = (
    Advice(
        Step.DISCOVER,
        Level.SHOULD,
        lambda row, rows: row.status is None,
        "gives no answer to a method that it does not know ({excerpt}); clients of both eras wait for it",
        "answer with a JSON-RPC error, code -32601",
        "2026-07-28, Versioning, Backward Compatibility",
    ),
    Advice(
        Step.DISCOVER,
        Level.SHOULD,
        lambda row, rows: row.gave_id,
        "names a session where none was made: with {status}, to server/discover",
        "send Mcp-Session-Id with the result of initialize and nowhere else",
        f"{MANAGEMENT} 1",
    ),
    Advice(
        Step.MODERN_CALL,
        Level.MUST,
        # A server without tools answers 404 there: an unknown method.
        lambda row, rows: not row.answered and row.status != 404,
        "offers 2026-07-28 by server/discover, and answers {status} to a request of it: {excerpt}",
        "serve every version that server/discover names",
        "2026-07-28, Discovery",
    ),
    Advice(
        Step.MODERN_ID,
        Level.MUST,
        lambda row, rows: row.status != rows[Step.MODERN_CALL].status,
        "looks at a session id in a request of 2026-07-28: {status}",
        "ignore Mcp-Session-Id where the request says that its version is 2026-07-28",
        "2026-07-28, Streamable HTTP, Earlier Revisions",
    ),
    Advice(
        Step.INITIALIZED,
        Level.MUST,
        _not(202),
        "answers {status} to a notification",
        "answer 202 without a body",
        "2025-11-25, Transports, Sending Messages to the Server 4",
    ),
    Advice(
        Step.CALL,
        Level.MUST,
        lambda row, rows: not row.answered,
        "answers {status} to the first request of a session that it has just made: {excerpt}",
        "know the session from initialize on, in every process that may be asked",
        f"{MANAGEMENT} 2",
    ),
    Advice(
        Step.CALL,
        Level.MAY,
        lambda row, rows: row.answered and not row.event_ids,
        "an answer whose connection breaks is lost: it comes without event ids",
        "answer by an event stream, give its events ids, and replay them by Last-Event-ID",
        "2025-11-25, Transports, Resumability and Redelivery",
    ),
    Advice(
        Step.STREAM,
        Level.MUST,
        lambda row, rows: (
            row.status != 405 and not (row.status == 200 and row.content_type == "text/event-stream")
        ),
        "answers GET by {status} and no event stream",
        "answer by an event stream, or by 405 where none is offered",
        f"{LISTENING} 3",
    ),
    Advice(
        Step.NO_ID,
        Level.SHOULD,
        _not(400),
        "answers {status} to a request that names no session",
        "answer 400",
        f"{MANAGEMENT} 2",
        with_sessions=True,
    ),
    Advice(
        Step.MADE_UP,
        Level.MUST,
        _accepted,
        "takes a session id that it never gave out",
        KNOW_YOUR_IDS,
        f"{MANAGEMENT} 3; Security Best Practices, Session Hijacking",
        with_sessions=True,
    ),
    Advice(
        Step.MADE_UP,
        Level.MUST,
        _refused_otherwise,
        "answers {status} to an id that it does not know; clients start a new session on 404 only",
        ANSWER_404,
        f"{MANAGEMENT} 3 and 4",
        with_sessions=True,
    ),
    Advice(
        Step.MADE_UP,
        Level.SHOULD,
        _misread,
        'its 404 reads as if something else were missing ("{excerpt}": {verdict})',
        'say "Session not found", with a code that means nothing else (not -32601)',
        f"{MANAGEMENT} 3",
        with_sessions=True,
    ),
    Advice(
        Step.MADE_UP_STREAM,
        Level.MUST,
        lambda row, rows: rows[Step.STREAM].answered and row.status != 404,
        "answers {status} to a GET with an id that it does not know",
        ANSWER_404,
        f"{MANAGEMENT} 3",
        with_sessions=True,
    ),
    Advice(
        Step.DELETE,
        Level.SHOULD,
        lambda row, rows: not row.answered and row.status != 405,
        "answers {status} to the DELETE of a living session",
        "end the session and answer 200 or 204, or answer 405 to all of them",
        f"{MANAGEMENT} 5",
        with_sessions=True,
    ),
    Advice(
        Step.OLD,
        Level.MUST,
        _accepted,
        "goes on answering on a session whose DELETE it has accepted",
        "forget the session, or answer 405 to DELETE",
        f"{MANAGEMENT} 3 and 5",
        with_sessions=True,
    ),
    Advice(
        Step.OLD,
        Level.MUST,
        _refused_otherwise,
        "answers {status} to the id of a session that has ended; clients start a new session on 404 only",
        ANSWER_404,
        f"{MANAGEMENT} 3 and 4",
        with_sessions=True,
    ),
)
"""What a probe looks for. Each entry is about one answer."""


def as_json(report: Report) -> dict[str, Any]:
    """Return the report as `trio-mcp probe --json` prints it."""
    return {
        "ok": report.sound,
        "endpoint": report.endpoint,
        "server": report.server,
        "protocol_version": report.protocol_version,
        "eras": list(report.eras),
        "keeps_sessions": report.keeps_sessions,
        "unfit": report.unfit,
        "resumable": report.resumable,
        "standard_client_recovers": report.standard_client_recovers,
        "this_client_recovers": report.this_client_recovers,
        "rows": [
            {
                "step": str(row.step),
                "status": row.status,
                "content_type": row.content_type,
                "excerpt": row.excerpt,
                "verdict": str(row.verdict),
            }
            for row in report.rows
        ],
        "findings": [
            {
                "step": str(finding.step),
                "level": str(finding.level),
                "what": finding.what,
                "fix": finding.fix,
                "section": finding.section,
            }
            for finding in report.findings
        ],
    }
