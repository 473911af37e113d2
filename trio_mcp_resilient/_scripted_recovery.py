"""`assert_recovers`: break a server under a client, and judge what became of the calls.

The server counts, so nothing has to be believed but the errors, and those are held to what they
say. Errors are read by their shape, not by their class: the kit shares nothing with the client
it judges, and an application may have errors of its own.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast

import trio

from trio_mcp_resilient._scripted_breaks import BREAKS, Break
from trio_mcp_resilient._scripted_faults import Rule
from trio_mcp_resilient._scripted_records import SeenRequest, one_of
from trio_mcp_resilient._scripted_server import ScriptedServer

PROBE = "assert_recovers_probe"
UNSAID: Final = object()
SAID = {"no": False, "unknown": None, "yes": True}
SHOWN = 40
"""How many requests a failure shows."""


class CallsTools(Protocol):
    """Whatever calls tools: a client of any make, or an application's own wrapper of one."""

    async def call_tool(self, name: str, arguments: dict[str, Any], /) -> Any:
        """Call a tool, and return its result, or something whose `repr` shows the result's text.

        Cancellation: yours to say; `assert_recovers` cancels calls only when it fails or is cancelled.
        Checkpoint: always.
        """
        ...


async def assert_recovers(
    client: CallsTools,
    server: ScriptedServer,
    how: str = "all",
    *,
    resends: bool = True,
    within: float = 600.0,
) -> None:
    """Break a scripted server under a client, and assert that the client comes through.

    A call is made before, one or several at once when it has happened, and one after. What is
    asserted:

    - what certainly did not run is sent again, and every call whose fate is certain succeeds;
    - a call that may have run succeeds, or raises an error that says so;
    - what errors say is true, by the server's count;
    - nothing ran twice, and each result is that of its own call;
    - one handshake is made for a lost session, at most one otherwise;
    - the call after that succeeds.

    An error says what is known by its attribute `executed`, as that of `ResilientError`: False for
    "it did not run", None for "it may have run". Through the SDK's client it is `data["executed"]`.

    It adds a tool for its own use and takes it away again. The server keeps the last dialect. Use it
    with `MockClock`: "outage" takes a second or more, and "silent" as long as the client's patience.
    The client should be the only one of the server, connected by `server.connect`: over TCP
    "outage" and "cut-mid-request" are not what they say. A client that sends calls again which
    may have run (`resend="always"`) fails, as it should. In the era without sessions none is lost, and the
    calls must simply succeed.

    Args:
        client: what is judged; it must allow several calls at once.
        server: the server that it is a client of.
        how: a key of `BREAKS`, or "all" for one after another.
        resends: whether what certainly did not run is to be sent again; False lets it raise.
        within: seconds that each step may take before it counts as hung.

    Raises:
        AssertionError: the client failed; the message tells how, and what the server saw.
        KeyError: `how` is no key of `BREAKS`.

    Cancellation: the calls that were made are cancelled. Checkpoint: always.
    """
    __tracebackhide__ = True
    for name in BREAKS if how == "all" else [one_of(BREAKS, how)]:
        trial = _Trial(client, server, BREAKS[name], resends, within)
        await trial.run()
        problems = list(trial.problems())
        if problems:
            raise AssertionError(trial.report(name, problems))


def _probe(mark: str) -> str:
    return mark


@dataclass(eq=False)
class _Call:
    """One call, and what became of it."""

    name: str
    mark: str
    answered: bool
    """Whether it must succeed."""
    back: bool = False
    result: Any = None
    error: Exception | None = None

    async def make(self, client: CallsTools) -> None:
        try:
            self.result = await client.call_tool(PROBE, {"mark": self.mark})
        except Exception as error:
            self.error = error
        self.back = True


class _Trial:
    """One break, from the call before to the call after."""

    def __init__(
        self, client: CallsTools, server: ScriptedServer, broken: Break, resends: bool, within: float
    ) -> None:
        self._client = client
        self._server = server
        self._break = broken
        self._resends = resends
        self._within = within
        self._calls: list[_Call] = []
        self._first_request = len(server.requests)
        self._first_execution = len(server.executions)
        self._handshakes = 0
        self._lost = 0
        self._rule: Rule | None = None

    async def run(self) -> None:
        self._server.tool(PROBE, _probe)
        try:
            await self._make("the call before", answered=True)
            if self._calls[0].error is None and self._calls[0].back:
                self._handshakes = self._server.handshakes
                await self._strike_and_call()
                await self._make("the call after", answered=True)
        finally:
            self._server.remove_tool(PROBE)

    async def _strike_and_call(self) -> None:
        with trio.move_on_after(self._within):
            async with trio.open_nursery() as nursery:
                held = None
                if self._break.running:
                    held = self._server.hold(lambda seen: seen.tool == PROBE, point="before-head")
                    running = self._new("the call that was running", self._break.running_answered)
                    nursery.start_soon(running.make, self._client)
                    await held.reached()
                self._strike()
                try:
                    async with trio.open_nursery() as calls:
                        for number in range(1, self._break.calls + 1):
                            name = "the call" if self._break.calls == 1 else f"call {number}"
                            calls.start_soon(self._new(name, self._break.answered).make, self._client)
                finally:
                    if held is not None:
                        held.release()
        if self._rule is not None:
            self._rule.drop()

    def _strike(self) -> None:
        before = {session.id for session in self._server.sessions}
        self._rule = self._break.strike(self._server, lambda seen: seen.tool == PROBE)
        self._lost = len(before - {session.id for session in self._server.sessions})

    async def _make(self, name: str, *, answered: bool) -> None:
        with trio.move_on_after(self._within):
            await self._new(name, answered).make(self._client)

    def _new(self, name: str, answered: bool) -> _Call:
        # The same mark twice, in two trials on one server, would be two runs of one call.
        mark = f"mark-{self._first_execution:06}-{len(self._calls):03}"
        self._calls.append(_Call(name, mark, answered))
        return self._calls[-1]

    # What follows judges.

    def problems(self) -> Iterator[str]:
        shared: dict[str, list[str]] = {}
        for call in self._calls:
            for problem in self._problems_of(call):
                shared.setdefault(problem, []).append(call.name)
        for problem, names in shared.items():
            yield f"{', '.join(names)}: {problem}"
        if self._rule is not None and not self._rule.hits:
            yield "it did not happen to any call (over TCP some things cannot)"
        made = self._server.handshakes - self._handshakes if len(self._calls) > 1 else 0
        least, most = min(self._lost, 1), max(self._lost, 1)
        if not least <= made <= most:
            due = "one was due" if least == most else f"{least} to {most} were due"
            yield f"{made} handshakes were made, and {due}"

    def _problems_of(self, call: _Call) -> Iterator[str]:
        ran = sum(
            execution.arguments.get("mark") == call.mark
            for execution in self._server.executions[self._first_execution :]
        )
        times = {0: "did not run", 1: "ran once"}.get(ran, f"ran {ran} times")
        if ran > 1:
            yield times
        if not call.back:
            yield f"was not back after {self._within:g} s; it {times}"
        elif call.error is not None:
            said = f"raised {type(call.error).__name__}: {_short(call.error)}"
            problem = self._problem_with(call, ran)
            if problem is not None:
                yield f"{said}\n    {problem}; it {times}"
        elif call.mark not in repr(call.result):
            yield f"came back with what is not its own: {_short(repr(call.result))}"
        elif not ran:
            yield "came back, and did not run"

    def _problem_with(self, call: _Call, ran: int) -> str | None:
        said = _executed(call.error)
        if said is UNSAID:
            return "which does not say whether it ran"
        if said is not None and bool(said) != bool(ran):
            return f"which says executed={said}"
        if call.answered and said is None:
            return "which says that nobody can know, and one can"
        if call.answered and self._resends:
            return "which could have been sent again"
        return None

    def report(self, name: str, problems: list[str]) -> str:
        requests = self._server.requests[self._first_request :]
        lines = [f"no recovery from {name!r} ({self._break.what}):"]
        lines += [f"  - {problem}" for problem in problems]
        lines += ["what the server saw:", *(f"  {seen}" for seen in requests[-SHOWN:])]
        return _without_ids("\n".join(lines), requests)


def _executed(error: Exception | None) -> object:
    """Return what an error says of whether its request ran: False, None, True, or nothing."""
    data = getattr(error, "data", None)
    if isinstance(data, Mapping) and cast("Mapping[str, Any]", data).get("executed") in SAID:
        return SAID[data["executed"]]
    return getattr(error, "executed", UNSAID)


def _short(text: object) -> str:
    return textwrap.shorten(str(text), 200)


def _without_ids(text: str, requests: list[SeenRequest]) -> str:
    """Name sessions by numbers: some servers quote the id, and reports are kept."""
    ids = dict.fromkeys(seen.session_id for seen in requests if seen.session_id)
    for number, session_id in enumerate(ids, 1):
        text = text.replace(session_id, f"<session {number}>")
    return text
