"""The standard ways to break a server under its client, as a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias, final

from trio_mcp_resilient._scripted_dialects import DIALECTS
from trio_mcp_resilient._scripted_faults import How, Point, Rule
from trio_mcp_resilient._scripted_records import When
from trio_mcp_resilient._scripted_server import ScriptedServer

Strike: TypeAlias = Callable[[ScriptedServer, When], Rule | None]
MANY = 10
"""Enough calls at once that a handshake for each would show."""


@final
@dataclass(frozen=True)
class Break:
    """One way to break a server; `assert_recovers` does it."""

    what: str
    """What happens to the server, as a clause."""
    strike: Strike
    """Does it. The second argument tells the calls that are looked at; a rule that was made is returned."""
    calls: int = MANY
    """How many calls are made at once, after it was done."""
    running: bool = False
    """Whether it happens while a further call has run and waits for its answer."""
    answered: bool = True
    """Whether those calls must succeed, since it is certain whether they ran; otherwise they may say that
    they do not know."""
    running_answered: bool = False
    """The same of the call that was running."""


def _lose_in(dialect: str) -> Strike:
    def strike(server: ScriptedServer, calls: When) -> None:
        server.dialect(dialect)
        server.lose_session()

    return strike


def _lose(server: ScriptedServer, calls: When) -> None:
    server.lose_session()


def _evict(server: ScriptedServer, calls: When) -> None:
    server.lose_session(streams="end")


def _restart(server: ScriptedServer, calls: When) -> None:
    server.restart()


def _restart_with_a_store(server: ScriptedServer, calls: When) -> None:
    server.restart(keep_sessions=True)


def _outage(server: ScriptedServer, calls: When) -> None:
    server.restart(down_for=1)


def _cut_at(point: Point, how: How = "reset") -> Strike:
    return lambda server, calls: server.cut(point, how=how, when=calls)


def _one(what: str, strike: Strike, *, answered: bool = False) -> Break:
    """What happens to a single call."""
    return Break(what, strike, calls=1, answered=answered)


BREAKS: Mapping[str, Break] = {
    **{
        dialect: Break(f"the session is forgotten, and refused as {dialect!r}", _lose_in(dialect))
        for dialect in DIALECTS
    },
    "idle": Break("the session is evicted, and its streams end cleanly", _evict),
    "restart": Break("the server restarts and forgets its sessions", _restart),
    "restart-kept": Break("the server restarts and keeps its sessions", _restart_with_a_store),
    "outage": Break("the server restarts, and refuses connections for a second", _outage),
    "lost-while-running": Break(
        "the session is forgotten while a call waits for its answer, which still comes",
        _lose,
        running=True,
        running_answered=True,
    ),
    "idle-while-running": Break("the session is evicted while a call runs", _evict, running=True),
    "restart-while-running": Break("the server restarts while a call runs", _restart, running=True),
    "cut-mid-request": _one(
        "the connection is reset before the request has left whole",
        lambda server, calls: server.cut("mid-request", when=calls),
        answered=True,
    ),
    "cut-before-run": _one("the connection is reset before the call runs", _cut_at("before-run")),
    "cut-before-head": _one("the connection is reset before the answer begins", _cut_at("before-head")),
    "cut-after-head": _one("the connection is reset after the answer's head", _cut_at("after-head")),
    "cut-mid-body": _one("the connection is reset within the answer", _cut_at("mid-body")),
    "cut-before-end": _one(
        "the connection is reset after the answer, before the body's end",
        _cut_at("before-end"),
        answered=True,
    ),
    "end-mid-body": _one("the connection ends cleanly within the answer", _cut_at("mid-body", "fin")),
    "silent": _one(
        "the server runs the call and says nothing more",
        lambda s, calls: s.go_silent("before-head", when=calls),
    ),
    "502": _one(
        "a proxy answers 502 after the call ran", lambda s, calls: s.answer(502, when=calls, ran=True)
    ),
    "503": _one("a proxy answers 503 instead of the server", lambda s, calls: s.answer(503, when=calls)),
}
"""What `assert_recovers` can do to a server, by name: each dialect of a lost session, and the rest."""
