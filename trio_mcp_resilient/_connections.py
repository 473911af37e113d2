"""The keep-alive pool: HTTP/1.1 connections to any origin, without a task or a nursery.

At every moment a connection belongs to exactly one of: the task that runs an exchange on it, the
idle ones, the ending ones. It goes back to the pool in one synchronous step, or is closed. So
there is nothing that a cancellation could leave half done, and no cleanup to wait for.
"""

from __future__ import annotations

import math
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import trio

from trio_mcp_resilient._dial import Connect, dial
from trio_mcp_resilient._endpoint import Endpoint
from trio_mcp_resilient._http11 import (
    After,
    Body,
    HTTP11Connection,
)
from trio_mcp_resilient._http_errors import NoSlot, TimedOut
from trio_mcp_resilient._http_messages import PooledResponse, RequestHeads
from trio_mcp_resilient._spares import Lot, Origin, Spares
from trio_mcp_resilient._wire import BeforeWrite, RawHeaders, Stage, WireError

KEEPALIVE_EXPIRY = 4.0
"""How long an idle connection is kept, in seconds: less than the 5 of uvicorn and of node, so that
the server does not close it at the moment we write on it."""
KEEPALIVE_MARGIN = 1.0
"""How many seconds before the time the server announced (`Keep-Alive: timeout=`) we stop using it."""
CONNECT_TIMEOUT = 10.0
ENDING_GRACE = 0.02
"""How long a request waits for an ending connection before it opens a new one, in seconds. A new
one would cost a round trip or three; the end of a stream is usually on its way."""
ENDING_TRIES = 4
"""How many ending connections one request looks at."""


@dataclass(frozen=True)
class ConnectionStatistics:
    """What a pool holds at one moment."""

    busy: int
    """Connections with an exchange on them."""
    idle: int
    """Connections ready for a request."""
    ending: int
    """Connections that still owe the end of an answer nobody wants."""
    connecting: int
    """Connections being opened."""
    opened: int
    """Connections opened since the beginning."""
    waiting: int
    """Requests that wait because `max_connections` are busy."""


class Connections:
    """A pool of HTTP/1.1 connections.

    Args:
        connect: opens byte streams; `trio.open_tcp_stream` by default.
        ssl_context: for https; by default a shared one that trusts what the system trusts.
        max_connections: how many connections may be open, None for no limit. Requests beyond
            wait in order of arrival.
        keepalive_expiry: seconds that an idle connection is kept at most; 0 keeps none.
        connect_timeout: seconds for connecting and TLS together, or `math.inf`.
        ending_grace: seconds to wait for an ending connection. With 0, one whose answer was not
            read to the end is closed at once, which is what tells a server to stop.

    Idle connections are closed when the next request finds them expired, or when they expire, if
    somebody lends a task to `tend` them.
    """

    def __init__(
        self,
        *,
        connect: Connect | None = None,
        ssl_context: ssl.SSLContext | None = None,
        max_connections: int | None = None,
        keepalive_expiry: float = KEEPALIVE_EXPIRY,
        connect_timeout: float = CONNECT_TIMEOUT,
        ending_grace: float = ENDING_GRACE,
    ) -> None:
        if max_connections is not None and max_connections < 1:
            raise ValueError("max_connections is at least 1")
        self._connect = connect
        self._ssl_context = ssl_context
        self._max_connections = max_connections
        # Trio's semaphore hands a slot straight to the first waiter, and a waiter that was handed
        # one cannot be cancelled out of it: no slot is ever given to someone who has left.
        self._slots = None if max_connections is None else trio.Semaphore(max_connections)
        self._keepalive_expiry = keepalive_expiry
        self._connect_timeout = connect_timeout
        self._ending_grace = ending_grace
        self._spares = Spares(self._drop)
        self._all: set[HTTP11Connection] = set()
        self._dials: set[trio.CancelScope] = set()
        self._heads = RequestHeads()
        self._opened = 0
        self._closed = False

    async def request(
        self,
        endpoint: Endpoint,
        method: str,
        headers: RawHeaders,
        body: Body = b"",
        *,
        read_timeout: float = math.inf,
        write_timeout: float = math.inf,
        connect_timeout: float | None = None,
        pool_timeout: float = math.inf,
        before_write: BeforeWrite | None = None,
    ) -> PooledResponse:
        """Send one request and return once the head of its answer is here.

        Args:
            headers: names in lower case. Host, and content-length or transfer-encoding, are
                added where missing; nothing else is.
            body: bytes, or the parts of it as they come.
            read_timeout: seconds without a byte of the answer, or `math.inf`.
            write_timeout: seconds without 64 KiB of the request accepted, or `math.inf`.
            connect_timeout: instead of the pool's own.
            pool_timeout: seconds to wait for one of `max_connections`, or `math.inf`.
            before_write: awaited when there is a connection, before anything is written on it. What
                it raises is raised, and the connection kept.

        Raises:
            WireError: with the stage that was reached; at `NOT_CONNECTED` if the pool is closed.
            NotHTTP: a `ValueError`, for a header, method or target that is not valid HTTP, or a
                body that differs from its content-length.

        Nothing is ever sent twice here. Cancellation: the connection is closed; whether the
        request arrived is unknown. Checkpoint: yes.
        """
        request = self._heads.checked(method, endpoint, headers, body)
        if self._slots is not None:
            await self._take_slot(self._slots, pool_timeout)
        try:
            connection = await self._checkout(
                (endpoint.scheme, endpoint.host, endpoint.port), connect_timeout
            )
        except BaseException:
            if self._slots is not None:
                self._slots.release()
            raise
        if before_write is not None:
            try:
                await before_write()
            except BaseException:
                self._done(connection, After.IDLE)
                raise
        head = await connection.exchange(
            request, body, write_timeout=write_timeout, read_timeout=read_timeout
        )
        return PooledResponse(connection, method, head, read_timeout)

    def close(self) -> None:
        """Close every connection without awaiting. Idempotent.

        Exchanges in progress fail with a `WireError`, and so do requests that wait or come later.
        """
        self._closed = True
        for scope in self._dials:
            scope.cancel()
        for connection in self._all:
            connection.close()
        self._all.clear()
        self._spares.clear()

    async def tend(self, wait: Callable[[], Awaitable[object]]) -> None:
        """Close connections as they expire, for as long as `wait()` waits. Checkpoint: as it has."""
        await self._spares.tend(wait)

    async def aclose(self) -> None:
        """Close every connection, as `close()`. Checkpoint: yes, but one that cannot be cancelled."""
        self.close()
        await trio.lowlevel.cancel_shielded_checkpoint()

    def statistics(self) -> ConnectionStatistics:
        """Return what the pool holds now."""
        idle, ending = self._spares.count()
        return ConnectionStatistics(
            busy=sum(connection.busy for connection in self._all),
            idle=idle,
            ending=ending,
            connecting=len(self._dials),
            opened=self._opened,
            waiting=0 if self._slots is None else self._slots.statistics().tasks_waiting,
        )

    # Getting a connection.

    async def _take_slot(self, slots: trio.Semaphore, seconds: float) -> None:
        with trio.move_on_after(seconds):
            await slots.acquire()
            return
        raise NoSlot(
            Stage.NOT_CONNECTED, f"all {self._max_connections} connections were busy for {seconds:g} s"
        )

    async def _checkout(self, origin: Origin, connect_timeout: float | None) -> HTTP11Connection:
        lot = self._spares.lot(origin)
        if lot is not None:
            connection = await self._pop_idle(lot)
            if connection is None and lot.ending:
                connection = await self._pop_ending(lot)
            if connection is not None:
                return connection
        return await self._open(origin, self._connect_timeout if connect_timeout is None else connect_timeout)

    async def _pop_idle(self, lot: Lot) -> HTTP11Connection | None:
        now = trio.current_time()
        # The one used last is the least likely to be stale, and lets the others expire.
        while lot.idle:
            connection = lot.idle.pop()
            if connection.expires_at > now and await self._is_fresh(connection):
                return connection
            self._drop(connection)
        return None

    async def _is_fresh(self, connection: HTTP11Connection) -> bool:
        try:
            return await connection.is_fresh()
        except BaseException:
            self._drop(connection)
            raise

    async def _pop_ending(self, lot: Lot) -> HTTP11Connection | None:
        """Return an ending connection that has ended, waiting for one if that has been worth it."""
        tries = min(ENDING_TRIES, len(lot.ending))
        # Others take from it too, while we listen to one.
        while tries and lot.ending:
            tries -= 1
            connection = await self._try_to_end(lot, 0)
            if connection is not None:
                lot.patient = True
                return connection
        if not lot.patient or not lot.ending:
            return None
        connection = await self._try_to_end(lot, self._ending_grace)
        # A server that keeps its streams open would make every request wait for nothing.
        lot.patient = connection is not None
        return connection

    async def _try_to_end(self, lot: Lot, seconds: float) -> HTTP11Connection | None:
        connection = lot.ending.pop()
        try:
            ended = await connection.try_to_end(seconds)
        except BaseException:
            self._drop(connection)
            raise
        if ended:
            return connection
        if ended is None and not connection.closed:
            lot.ending.insert(0, connection)
        else:
            self._drop(connection)
        return None

    async def _open(self, origin: Origin, seconds: float) -> HTTP11Connection:
        if self._max_connections is not None:
            limit = self._max_connections
            self._spares.make_room(lambda: len(self._all) + len(self._dials) >= limit)
        scope = trio.CancelScope(deadline=trio.current_time() + seconds)
        self._dials.add(scope)
        link = None
        try:
            if not self._closed:
                with scope:
                    link = await dial(*origin, self._connect, self._ssl_context)
        finally:
            self._dials.discard(scope)
        if self._closed:
            if link is not None:
                link.close()
            raise WireError(Stage.NOT_CONNECTED, "the connections were closed")
        if link is None:
            raise TimedOut(
                Stage.NOT_CONNECTED, f"no connection to {origin[1]}:{origin[2]} within {seconds:g} s"
            )
        connection = HTTP11Connection(link, origin, self._done)
        self._all.add(connection)
        self._opened += 1
        return connection

    # Having it back.

    def _done(self, connection: HTTP11Connection, after: After) -> None:
        if self._slots is not None:
            self._slots.release()
        if after is After.CLOSED or self._closed:
            self._drop(connection)
            return
        if after is After.IDLE:
            seconds = min(self._keepalive_expiry, connection.keepalive - KEEPALIVE_MARGIN)
        else:
            seconds = self._keepalive_expiry if self._ending_grace else 0
        if seconds > 0:
            self._spares.keep(connection, seconds, is_idle=after is After.IDLE)
        else:
            self._drop(connection)

    def _drop(self, connection: HTTP11Connection) -> None:
        connection.close()
        self._all.discard(connection)
