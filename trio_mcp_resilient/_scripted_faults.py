"""What can be made to go wrong with an exchange, and when: the script of a scripted server.

The points of an exchange, in order: `mid-request` (some bytes of the request were accepted, the
rest never), `before-run` (the request is here, nothing ran), `before-head` (it ran, nothing of the
answer left), `after-head` (it ran, only the head of the answer left), `mid-body` (half of the
answer proper left, and what came before it whole), `before-end` (the answer left whole, and
only what ends the HTTP body is missing).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias, get_args

import h11
import trio

from trio_mcp_resilient._scripted_dialects import Body, Reply
from trio_mcp_resilient._scripted_records import SeenRequest, When, one_of, parse

Point: TypeAlias = Literal["before-run", "before-head", "after-head", "mid-body", "before-end"]
How: TypeAlias = Literal["reset", "fin", "end", "silence"]
"""`reset`: TCP reset; `fin`: the connection ends cleanly but too early; `end`: the HTTP body ends
properly, without the answer; `silence`: nothing more comes and the connection stays open."""


class Rule:
    """Something that is to happen to the next requests that match; returned by what makes it."""

    def __init__(self, when: When, times: float) -> None:
        self._when: When = when
        self._left = times
        self._hit = trio.Event()
        self.hits: int = 0
        """How many requests it has happened to."""

    async def reached(self, hits: int = 1) -> None:
        """Wait until it has happened that many times in all.

        Cancellation: nothing happened. Checkpoint: always.
        """
        await trio.lowlevel.checkpoint()
        while self.hits < hits:
            await self._hit.wait()

    def drop(self) -> None:
        """Let it happen to no further request."""
        self._left = 0

    def wants(self, seen: SeenRequest) -> bool:
        """Whether it is still to happen, and to this request."""
        return self._left > 0 and seen.matches(self._when)

    def claim(self) -> None:
        """Use it up for one request."""
        self._left -= 1

    def happens(self) -> None:
        """Count that it happens, now."""
        self.hits += 1
        self._hit.set()
        self._hit = trio.Event()


class Held(Rule):
    """Requests that wait at a point of their exchange until they are let go."""

    def __init__(self, when: When, times: float, point: Point) -> None:
        super().__init__(when, times)
        self.point: Point = point
        self._released = trio.Event()

    def release(self) -> None:
        """Let all that wait go on, and hold no more."""
        self.drop()
        self._released.set()

    async def wait(self) -> None:
        """Hold one request, until `release`; the server calls this.

        Cancellation: the request is held no more. Checkpoint: unless already released.
        """
        self.happens()
        await self._released.wait()


class Fault(Rule):
    """An end that comes too early."""

    def __init__(
        self, when: When, times: float, how: How, point: Point | None, after_bytes: int | None
    ) -> None:
        super().__init__(when, times)
        self.how: How = how
        self.point: Point | None = point
        self.after_bytes = after_bytes


class Scripted(Rule):
    """An answer that comes instead of the real one."""

    def __init__(self, when: When, times: float, reply: Reply, ran: bool) -> None:
        super().__init__(when, times)
        self.reply = reply
        self.ran = ran


class _MidRequest(Rule):
    def __init__(self, when: When, times: float, after_bytes: int) -> None:
        super().__init__(when, times)
        self.after_bytes = after_bytes


class Script:
    """The part of a `ScriptedServer` that breaks things.

    Each request meets at most one fault or scripted answer, the first that was asked for
    and matches; being held comes on top.
    """

    def __init__(self) -> None:
        self._held: list[Held] = []
        self._rules: list[Fault | Scripted] = []
        self._mid_request: list[_MidRequest] = []

    def answer(
        self,
        status: int,
        body: Body = b"",
        *,
        content_type: str | None = None,
        headers: Mapping[str, str] | None = None,
        when: When = None,
        times: float = 1,
        ran: bool = False,
    ) -> Rule:
        """Answer the next matching requests with this instead.

        Args:
            status: the HTTP status.
            body: bytes, text, a mapping (sent as JSON), or a function of the `SeenRequest`.
            content_type: by default `application/json` for a mapping, else none.
            headers: further header fields.
            when: an HTTP or JSON-RPC method, or a function of the `SeenRequest`; None for any.
            times: how many requests; `math.inf` for all.
            ran: let the request run first, and throw its own answer away.
        """
        reply = Reply(status, body, content_type, headers or {})
        rule = Scripted(when, times, reply, ran)
        self._rules.append(rule)
        return rule

    def cut(
        self,
        point: Point | Literal["mid-request"] | None = None,
        *,
        after_bytes: int | None = None,
        how: How = "reset",
        when: When = None,
        times: float = 1,
    ) -> Rule:
        """End the connection too early during the next matching exchanges.

        Args:
            point: where, as this module's text lists them. All after `before-run` wait for the
                request to have run, so that it is certain. `mid-request` works in memory only,
                not over TCP, and is decided when the client sends.
            after_bytes: instead of a point, how many bytes of the answer, head included, still
                leave. With `mid-request`, how many bytes of the request are accepted.
            how: `reset`, `fin`, `end` or `silence`.
            when: as for `answer`.
            times: as for `answer`.

        Raises:
            ValueError: for a point or an ending that there is not.
        """
        one_of(get_args(How), how)
        if point == "mid-request":
            unfinished = _MidRequest(when, times, 1 if after_bytes is None else after_bytes)
            self._mid_request.append(unfinished)
            return unfinished
        if (point is None) == (after_bytes is None):
            raise ValueError("say where: either a point or after_bytes")
        if point is not None:
            one_of([*get_args(Point), "mid-request"], point)
        if after_bytes is not None and how not in ("reset", "fin"):
            raise ValueError("only a reset or a fin can come after a number of bytes")
        rule = Fault(when, times, how, point, after_bytes)
        self._rules.append(rule)
        return rule

    def go_silent(self, point: Point = "before-run", *, when: When = None, times: float = 1) -> Rule:
        """From that point of the next matching exchanges on, say nothing more and stay connected."""
        return self.cut(point, how="silence", when=when, times=times)

    def hold(
        self,
        when: When = None,
        *,
        point: Literal["before-run", "before-head"] = "before-run",
        times: float = 1,
    ) -> Held:
        """Hold the next matching requests, before they run or before they are answered.

        `await held.reached()` waits until one has come there; `held.release()` lets it go on.
        """
        one_of(("before-run", "before-head"), point)
        held = Held(when, times, point)
        self._held.append(held)
        return held

    def forget_script(self) -> None:
        """Drop everything that has not happened yet; what is held stays held."""
        for rule in (*self._held, *self._rules, *self._mid_request):
            rule.drop()

    def _plan(self, seen: SeenRequest) -> tuple[Held | None, Fault | Scripted | None]:
        held = next((rule for rule in self._held if rule.wants(seen)), None)
        rule = next((rule for rule in self._rules if rule.wants(seen)), None)
        for claimed in (held, rule):
            if claimed is not None:
                claimed.claim()
        return held, rule

    def _admits(self, data: bytes) -> int | None:
        if not self._mid_request:
            return None
        seen = _peek(data)
        rule = next((rule for rule in self._mid_request if seen is not None and rule.wants(seen)), None)
        if rule is None:
            return None
        rule.claim()
        rule.happens()
        return min(rule.after_bytes, len(data) - 1)


def _peek(data: bytes) -> SeenRequest | None:
    """Tell what request begins with these bytes, as far as they show it."""
    parser = h11.Connection(h11.SERVER)
    parser.receive_data(data)
    try:
        request = parser.next_event()
        event = parser.next_event()
    except h11.RemoteProtocolError:
        return None
    if not isinstance(request, h11.Request):
        return None
    body = bytes(event.data) if isinstance(event, h11.Data) else b""
    headers: dict[str, str] = {name.decode(): value.decode("latin-1") for name, value in request.headers}
    message: Any = parse(body)
    now = trio.current_time()
    method, target = request.method.decode(), request.target.decode("latin-1")
    return SeenRequest(-1, -1, now, method, target, headers, body, message)
