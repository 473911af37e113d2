"""One answer, with what the script does to it on its way."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import trio

from trio_mcp_resilient._scripted_dialects import Reply
from trio_mcp_resilient._scripted_faults import Fault, Held, How, Scripted
from trio_mcp_resilient._scripted_http import Exchange, Over
from trio_mcp_resilient._scripted_records import SeenRequest


class Answer:
    """What the server sends to one request. Every method may unwind with `Over`."""

    def __init__(
        self,
        exchange: Exchange,
        seen: SeenRequest,
        plan: tuple[Held | None, Fault | Scripted | None],
        extra_headers: Mapping[str, str],
        on_status: Callable[[int], None],
    ) -> None:
        self._exchange = exchange
        self.seen = seen
        self._held, rule = plan
        self._fault = rule if isinstance(rule, Fault) else None
        self._scripted = rule if isinstance(rule, Scripted) else None
        self._extra = extra_headers
        self._on_status = on_status
        self._complete = False

    @property
    def waits_for_the_run(self) -> bool:
        """Whether nothing may be sent before the request has run."""
        held = self._held is not None and self._held.point == "before-head"
        # A fault by bytes has no point, and may strike anywhere.
        early = self._fault is not None and self._fault.point in ("before-head", "after-head", None)
        return held or early or self._scripted is not None

    @property
    def abandoned(self) -> bool:
        """Whether the client has left before the answer was complete."""
        return self._exchange.connection.client_left and not self._complete

    def disconnect(self) -> None:
        """Reset the connection under the answer, from any task."""
        self._exchange.connection.cut("reset")

    async def before_run(self) -> None:
        """The request is here and nothing has run."""
        await self._hold("before-run")
        await self._fault_at("before-run")
        if self._scripted is not None and not self._scripted.ran:
            await self._send_scripted(self._scripted)

    async def reply(self, reply: Reply) -> None:
        """Send a whole answer that was written down before."""
        headers, body = reply.render(self.seen)
        await self.whole(reply.status, headers, body)

    async def whole(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """Send a whole answer."""
        if self._fault is None:
            await self._before_head()
            self._on_status(status)
            await self._exchange.respond(status, {**headers, **self._extra}, body)
            self._complete = True
            return
        await self.begin(status, headers)
        await self.part(body, last=True)
        await self.end()

    async def begin(self, status: int, headers: Mapping[str, str]) -> None:
        """Send the head of an answer that comes in parts."""
        await self._before_head()
        if self._fault is not None and self._fault.after_bytes is not None:
            self._fault.happens()
            self._exchange.bytes_left = self._fault.after_bytes
            self._exchange.cut_how = self._fault.how
        self._on_status(status)
        await self._exchange.begin(status, {**headers, **self._extra})
        await self._fault_at("after-head")

    async def part(self, data: bytes, *, last: bool) -> None:
        """Send a part of the body; the answer proper is the last."""
        if last and self._fault is not None and self._fault.point == "mid-body":
            await self._exchange.write(data[: len(data) // 2])
            await self._fault_at("mid-body")
        await self._exchange.write(data)
        if last:
            await self._fault_at("before-end")

    async def end(self) -> None:
        """Send what ends the body."""
        await self._exchange.end()
        self._complete = True

    async def _before_head(self) -> None:
        await self._hold("before-head")
        await self._fault_at("before-head")
        if self._scripted is not None:
            await self._send_scripted(self._scripted)

    async def _hold(self, point: str) -> None:
        if self._held is not None and self._held.point == point:
            await self._held.wait()

    async def _fault_at(self, point: str) -> None:
        fault = self._fault
        if fault is not None and fault.point == point:
            fault.happens()
            await self._act(fault.how, head_sent=point not in ("before-run", "before-head"))

    async def _act(self, how: How, *, head_sent: bool) -> None:
        if how == "silence":
            await trio.sleep_forever()
        if how == "end" and head_sent:
            await self._exchange.end()
            raise Over
        # A body that has not begun cannot end properly.
        self._exchange.cut("reset" if how == "reset" else "fin")

    async def _send_scripted(self, scripted: Scripted) -> None:
        scripted.happens()
        headers, body = scripted.reply.render(self.seen)
        self._on_status(scripted.reply.status)
        await self._exchange.respond(scripted.reply.status, {**headers, **self._extra}, body)
        self._complete = True
        raise Over
