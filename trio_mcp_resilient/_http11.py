"""One HTTP/1.1 connection: h11 over a link, one exchange at a time, no task of its own.

An exchange is in one of four places when it fails, and `Stage` tells which. The order of the
two questions matters: a request that was never accepted whole cannot have run, whatever came
back; after that, any byte that came back means that the server was at it.
"""

from __future__ import annotations

import enum
import math
from collections.abc import AsyncGenerator, AsyncIterable, Callable
from contextlib import aclosing, nullcontext
from typing import cast

import h11
import trio

from trio_mcp_resilient._dial import RECEIVE_BYTES, STREAM_ERRORS, Link
from trio_mcp_resilient._http_errors import Malformed, NotHTTP, TimedOut
from trio_mcp_resilient._wire import Stage, WireError

MAX_HEAD_BYTES = 65536
"""The largest head, chunk header or trailer that is read; node's limit for a head is 16 KiB."""
MAX_INTERIM_ANSWERS = 100
"""How many 1xx answers may come before the real one. Progress is what they are for, endless not."""
SLICE_BYTES = 65536
"""A larger body is written in slices of this size, to look for an early answer in between."""
MAX_LEFTOVER_BYTES = 65536
"""How much of a body may be thrown away to save its connection; a new one is cheaper than more."""

Body = bytes | AsyncIterable[bytes]


class After(enum.Enum):
    """What became of a connection when its exchange was over."""

    IDLE = enum.auto()
    """Ready for the next request."""
    ENDING = enum.auto()
    """Ready as soon as the end of the body, which nobody waits for, has come."""
    CLOSED = enum.auto()


class HTTP11Connection:
    """A connection, owned by one exchange or by the pool, never by both."""

    def __init__(
        self,
        link: Link,
        origin: tuple[str, str, int],
        done: Callable[[HTTP11Connection, After], None],
    ) -> None:
        self._link = link
        self._h11 = h11.Connection(h11.CLIENT, MAX_HEAD_BYTES)
        self._done = done
        self.origin = origin
        self.busy = False
        """Whether an exchange owns it."""
        self.closed = False
        self.keepalive = math.inf
        """How long the peer said it keeps an idle connection, in seconds."""
        self.expires_at = math.inf
        """The pool's own note, on Trio's clock."""
        self._begin()

    def _begin(self) -> None:
        self._whole = self._begun = self._answering = self._ended = False
        self._interim = self._left_over = 0
        self._head: h11.Response | None = None
        self._problem: WireError | None = None

    # One exchange: the owner's side.

    async def exchange(
        self, request: h11.Request, body: Body, *, write_timeout: float, read_timeout: float
    ) -> h11.Response:
        """Write a request and return the head of its answer.

        Args:
            write_timeout: seconds for each slice, or `math.inf`.
            read_timeout: seconds for each receive, or `math.inf`.

        Raises:
            WireError: with the stage that was reached.

        Whatever is raised, `Cancelled` included, the connection is closed. Checkpoint: yes.
        """
        self.busy = True
        try:
            failure = await self._write_request(request, body, write_timeout)
            # A peer that refuses a request early closes; its reason may be here already.
            if failure is not None and not await self._has_answered():
                raise failure
            # Something has come already if it looked for an early answer.
            while not (self._begun and self._has_head()):
                await self.receive(read_timeout)
            head, self._head, self._answering = cast("h11.Response", self._head), None, True
            return head
        except BaseException:
            self.abandon()
            raise

    async def _write_request(self, request: h11.Request, body: Body, seconds: float) -> WireError | None:
        try:
            if isinstance(body, bytes):
                await self._write_bytes(request, body, seconds)
            else:
                await self._write_parts(request, body, seconds)
        except WireError as failure:
            return failure
        return None

    async def _write_bytes(self, request: h11.Request, body: bytes, seconds: float) -> None:
        data = self._h11.send(request)
        if body:
            data += self._h11.send(h11.Data(data=body))
        data += self._h11.send(h11.EndOfMessage())
        if len(data) <= SLICE_BYTES:
            await self._write(data, seconds)
            self._whole = True
            return
        view = memoryview(data)
        for start in range(0, len(data), SLICE_BYTES):
            if start and await self._answered_early():
                return
            await self._write(view[start : start + SLICE_BYTES], seconds)
        self._whole = True

    async def _write_parts(self, request: h11.Request, body: AsyncIterable[bytes], seconds: float) -> None:
        await self._write(self._h11.send(request), seconds)
        parts = aiter(body)
        # A generator may be left in its middle, and then has cleaning up of its own to do.
        closing = (
            aclosing(cast("AsyncGenerator[bytes, None]", parts))
            if hasattr(parts, "aclose")
            else nullcontext()
        )
        async with closing:
            async for part in parts:
                data = self._framed(h11.Data(data=part)) if part else b""
                for start in range(0, len(data), SLICE_BYTES):
                    if await self._answered_early():
                        return
                    await self._write(data[start : start + SLICE_BYTES], seconds)
        if end := self._framed(h11.EndOfMessage()):
            await self._write(end, seconds)
        self._whole = True

    def _framed(self, event: h11.Data | h11.EndOfMessage) -> bytes:
        try:
            return self._h11.send(event)
        except h11.LocalProtocolError as error:
            # A body that is too long may have been accepted as one of the length announced.
            raise NotHTTP(f"the body is not as its content-length says: {error}", Stage.WRITTEN) from error

    async def _write(self, data: bytes | memoryview, seconds: float) -> None:
        try:
            if seconds == math.inf:
                await self._link.send_all(data)
                return
            with trio.move_on_after(seconds) as scope:
                await self._link.send_all(data)
        except STREAM_ERRORS as error:
            # Trio's sockets raise for the part that the kernel did not take, so the last byte
            # was not. Under TLS it is the last record that was cut, and its end, without which it
            # cannot be opened, was not sent. The same holds if `send_all` is cancelled.
            raise WireError(Stage.PARTLY_WRITTEN, "the connection broke under the request") from error
        if scope.cancelled_caught:
            raise TimedOut(Stage.PARTLY_WRITTEN, f"the peer took no more of the request for {seconds:g} s")

    async def _answered_early(self) -> bool:
        """Whether the head of an answer is here already. Only looks, never waits."""
        while not self._has_head():
            try:
                data = await self._link.receive_now()
            except STREAM_ERRORS:
                return False
            if data is None:
                return False
            self._feed(data)
        return True

    async def _has_answered(self) -> bool:
        try:
            return await self._answered_early()
        except WireError:
            return False

    def _stage(self) -> Stage:
        if self._answering:
            # Also to half a request: a peer that answers it is at it.
            return Stage.ANSWERING
        if not self._whole:
            return Stage.PARTLY_WRITTEN
        return Stage.ANSWERING if self._begun else Stage.WRITTEN

    # Reading.

    async def receive(self, seconds: float) -> None:
        """Wait for bytes and give them to the parser."""
        try:
            if seconds == math.inf:
                data = await self._link.receive_some(RECEIVE_BYTES)
            else:
                data = None
                with trio.move_on_after(seconds):
                    data = await self._link.receive_some(RECEIVE_BYTES)
        except STREAM_ERRORS as error:
            raise WireError(self._stage(), self._lost("broke")) from error
        if data is None:
            raise TimedOut(self._stage(), f"nothing came from the peer for {seconds:g} s")
        self._feed(data)

    def _lost(self, how: str) -> str:
        return f"the connection {how} {'in the middle of' if self._begun else 'before'} an answer"

    def _feed(self, data: bytes | bytearray) -> None:
        if not data and self._h11.their_state is h11.SEND_RESPONSE:
            raise Malformed(self._stage(), self._lost("ended"))
        self._begun = True
        self._h11.receive_data(bytes(data))

    def _next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        try:
            return self._h11.next_event()
        except h11.RemoteProtocolError as error:
            # Up to the colon it is a sentence of the parser's, behind it is the peer's line.
            problem = str(error).partition(":")[0]
        raise Malformed(self._stage(), f"no HTTP/1.1: {problem}")

    def _has_head(self) -> bool:
        while self._head is None and (event := self._next_event()) is not h11.NEED_DATA:
            if isinstance(event, h11.Response):
                self._head = event
                break
            self._interim += 1
            if not isinstance(event, h11.InformationalResponse) or self._interim > MAX_INTERIM_ANSWERS:
                raise Malformed(self._stage(), "an interim answer too many, or another protocol")
        return self._head is not None

    def take_body(self) -> bytes:
        """Return what is here of the body; `b""` means that more is needed, or its end.

        What came before malformed bytes is returned first, for it may be the answer itself.
        """
        if self._problem is not None:
            raise self._problem
        parts: list[bytes] = []
        try:
            while (event := self._next_event()) is not h11.NEED_DATA:
                if not isinstance(event, h11.Data):
                    self._ended = True
                    break
                parts.append(event.data)
        except WireError as problem:
            if not parts:
                raise
            self._problem = problem
        return bytes(parts[0]) if len(parts) == 1 else b"".join(parts)

    @property
    def ended(self) -> bool:
        """Whether the body was read to its end."""
        return self._ended

    # Giving it back.

    def finish(self) -> None:
        """Give the connection back after the end of the body; closed if it cannot be used again."""
        self._leave(After.IDLE if self._renew() else After.CLOSED)

    def abandon(self) -> None:
        """Close, for the exchange did not come to its end."""
        self._leave(After.CLOSED)

    def leave_unread(self, *, may_wait: bool) -> None:
        """Give the connection back although the body's end was not read.

        Args:
            may_wait: whether the end may be waited for, by whoever needs a connection next.
        """
        try:
            while not self._ended and (part := self.take_body()):
                self._left_over += len(part)
        except WireError:
            self.abandon()
            return
        if self._ended:
            self.finish()
        else:
            self._leave(After.ENDING if may_wait and self._whole else After.CLOSED)

    def _leave(self, after: After) -> None:
        if after is After.CLOSED:
            self.close()
        if self.busy:
            self.busy = False
            self._done(self, after)

    def close(self) -> None:
        """Close at once. Idempotent. Whoever is waiting on it is told."""
        self.closed = True
        self._link.close()

    def _renew(self) -> bool:
        """Make ready for the next request, if both sides and the framing allow it."""
        if self.closed or not self._whole or self._h11.trailing_data != (b"", False):
            return False
        try:
            self._h11.start_next_cycle()
        except h11.LocalProtocolError:
            return False
        self._begin()
        return True

    # Between two exchanges: the pool's side.

    async def is_fresh(self) -> bool:
        """Whether the peer has neither closed nor said anything since the last exchange."""
        try:
            return await self._link.receive_now() is None
        except STREAM_ERRORS:
            return False

    async def try_to_end(self, seconds: float) -> bool | None:
        """Read the end of a body that nobody wants, so that the connection can be used again.

        Args:
            seconds: how long to wait for it; 0 reads only what is here.

        Returns:
            Whether it can be used; None if the end has not come yet.
        """
        try:
            if seconds:
                with trio.move_on_after(seconds):
                    await self._throw_rest_away()
            else:
                while not self._ended and (data := await self._link.receive_now()) is not None:
                    self._throw_away(data)
        except (WireError, *STREAM_ERRORS):
            return False
        if not self._ended:
            return None
        return self._renew() and await self.is_fresh()

    async def _throw_rest_away(self) -> None:
        while not self._ended:
            self._throw_away(await self._link.receive_some(RECEIVE_BYTES))

    def _throw_away(self, data: bytes | bytearray) -> None:
        self._left_over += len(data)
        if self._left_over > MAX_LEFTOVER_BYTES:
            raise Malformed(Stage.ANSWERING, "more than an end was missing")
        self._feed(data)
        while not self._ended and self.take_body():
            pass
