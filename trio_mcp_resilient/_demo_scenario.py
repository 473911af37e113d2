"""What the demo does to one client: kill its server, then delete its session under 20 calls."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import trio

from trio_mcp_resilient._demo_clients import Call, Opener
from trio_mcp_resilient._demo_journal import Journal
from trio_mcp_resilient._demo_process import ServerProcess, free_port, open_server_process

CALLS = 20
"""Concurrent calls on the deleted session."""
CALL_LIMIT = 20.0
"""Seconds after which a call that has neither an answer nor an error counts as hung."""
COLUMN_LIMIT = 180.0
"""Seconds for everything that is done to one client, starting the servers included."""

OK = "ok"
HUNG = "no answer"

Say: TypeAlias = Callable[[str], None]
"""Takes one line of progress."""


@dataclass(frozen=True, slots=True)
class Column:
    """What one client got. Outcomes are `OK`, `HUNG`, or the error's words; empty while not known."""

    client: str
    before: str = ""
    """The call before the server was killed."""
    first: str = ""
    """The first call after the restart."""
    again: str = ""
    """The one after that."""
    restart_handshakes: int = 0
    """Handshakes the restarted server was asked for."""
    concurrent: tuple[str, ...] = ()
    """The calls made at once on a deleted session."""
    delete_handshakes: int = 0
    """Handshakes asked for after the deletion."""
    twice: int = 0
    """Tickets that the server booked more than once, over the whole run."""

    @property
    def concurrent_ok(self) -> int:
        """How many of the concurrent calls were answered."""
        return self.concurrent.count(OK)


Show: TypeAlias = Callable[[Column], None]
"""Takes a column as far as it is known."""


class DemoFailed(RuntimeError):
    """The demo could not be carried out: no server, or no end in time."""


async def run_column(name: str, opener: Opener, say: Say, show: Show) -> Column:
    """Do everything to one client, on a server of its own.

    Args:
        name: what the column calls the client.
        opener: opens it.
        say: called before each step.
        show: called after each.

    Raises:
        DemoFailed: the server or the clock did not play along. A client's failure is no error here.
        ServerFailed: the server would not start.

    Cancellation: the server is killed. Checkpoint: always.
    """
    column = Column(name)

    def know(**facts: Any) -> None:
        nonlocal column
        booked = journal.executions()
        column = replace(column, **facts, twice=sum(times > 1 for times in booked.values()))
        show(column)

    with tempfile.TemporaryDirectory(prefix="trio-mcp-demo-") as directory:
        journal = Journal(Path(directory, "journal"))
        port = free_port()
        command = [
            sys.executable,
            "-m",
            "trio_mcp_resilient._demo_server",
            str(port),
            str(Path(directory, "journal")),
        ]
        async with open_server_process(command, port=port, log=Path(directory, "log")) as server:
            with trio.move_on_after(COLUMN_LIMIT):
                say(f"{name}: starting a server")
                await server.start()
                say(f"{name}: the server is process {server.pid}, on 127.0.0.1:{port}")
                url = f"http://127.0.0.1:{port}/mcp"
                await _restart(opener, url, server, journal, say, know)
                await _delete(opener, url, server, journal, say, know)
                return column
    raise DemoFailed(f"{name}: not done within {COLUMN_LIMIT:g} s")


Know: TypeAlias = Callable[..., None]
"""Takes what has become known of the column, by its fields."""


async def _restart(
    opener: Opener, url: str, server: ServerProcess, journal: Journal, say: Say, know: Know
) -> None:
    """Kill the server between two calls, as a deploy does."""
    async with opener(url) as call:
        know(before=await _outcome(call, "before"))
        known = len(journal.sessions())
        say(f"killing process {server.pid} with SIGKILL")
        await server.kill()
        await server.start()
        say(f"the server is back as process {server.pid}, and knows no session")
        know(first=await _outcome(call, "first"))
        know(again=await _outcome(call, "again"), restart_handshakes=len(journal.sessions()) - known)


async def _delete(
    opener: Opener, url: str, server: ServerProcess, journal: Journal, say: Say, know: Know
) -> None:
    """Let somebody else delete the session, then call `CALLS` times at once."""
    async with opener(url) as call:
        await _outcome(call, "warm-up")
        known = journal.sessions()
        say("deleting the session from outside")
        await _delete_session(server.port, known[-1])
        outcomes: dict[int, str] = {}

        async def one(number: int) -> None:
            outcomes[number] = await _outcome(call, f"concurrent-{number}")
            know(
                concurrent=tuple(outcomes[each] for each in sorted(outcomes)),
                delete_handshakes=len(journal.sessions()) - len(known),
            )

        async with trio.open_nursery() as nursery:
            for number in range(CALLS):
                nursery.start_soon(one, number)


async def _outcome(call: Call, ticket: str) -> str:
    await trio.lowlevel.checkpoint()
    try:
        with trio.fail_after(CALL_LIMIT):
            answer = await call(ticket)
    except trio.TooSlowError:
        return HUNG
    except Exception as error:
        # One line: what a client says about the loss is the cell of a table.
        return " ".join(f"{type(error).__name__}: {error}".split())
    return OK if answer == f"booked {ticket}" else f"wrong answer: {answer!r:.60}"


async def _delete_session(port: int, session_id: str) -> None:
    """Send the DELETE by hand: whoever ends the session must not be a client of it."""
    request = (
        "DELETE /mcp HTTP/1.1",
        f"Host: 127.0.0.1:{port}",
        f"Mcp-Session-Id: {session_id}",
        "Connection: close",
    )
    answer = b""
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    async with stream:
        await stream.send_all("\r\n".join((*request, "", "")).encode("ascii"))
        async for data in stream:
            answer += data
    if not answer.startswith(b"HTTP/1.1 20"):
        raise DemoFailed(f"the server refused the DELETE: {answer[:60]!r}")
