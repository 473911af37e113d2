"""How the scripted server is reached: in memory or on loopback, up or down, and cut off at will."""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Callable
from typing import Literal, TypeAlias, get_args

import trio

from trio_mcp_resilient._scripted_http import Connection, Handler
from trio_mcp_resilient._scripted_records import one_of
from trio_mcp_resilient._scripted_stream import memory_connection, reset

Ending: TypeAlias = Literal["reset", "fin"]
"""How a connection ends below HTTP: by a TCP reset, or cleanly but too early."""


class Network:
    """The part of a `ScriptedServer` that has to do with connections."""

    def __init__(self, nursery: trio.Nursery, handle: Handler, admits: Callable[[bytes], int | None]) -> None:
        self._nursery = nursery
        self._handle_exchange = handle
        self._admits_bytes = admits
        self._connections: dict[int, Connection] = {}
        self._down_until = -math.inf
        self._hang = False
        self._went_up = trio.Event()
        self.connections_made: int = 0
        """How many connections were accepted, ever."""
        self.connects_refused: int = 0
        """How many times `connect` was refused."""
        self.keep_alive_timeout: float = math.inf
        """Seconds after which an idle connection is closed (read when a connection is accepted)."""

    @property
    def open_connections(self) -> int:
        """How many connections are open now."""
        return len(self._connections)

    @property
    def is_down(self) -> bool:
        """Whether new connections are refused (or hang)."""
        return trio.current_time() < self._down_until

    async def connect(self, host: str, port: int) -> trio.abc.Stream:
        """Return the client's side of a new connection, whatever host and port are asked for.

        Waits for the server to come up if it was taken down with `how="hang"`.

        Args:
            host: not looked at, like `port`; here because it is what `open_client` takes.
            port: likewise.

        Raises:
            ConnectionRefusedError: the server is down.

        Cancellation: no connection was made. Checkpoint: always.
        """
        await trio.lowlevel.checkpoint()
        while self.is_down:
            if not self._hang:
                self.connects_refused += 1
                raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED), host)
            with trio.move_on_at(self._down_until):
                await self._went_up.wait()
        ours, theirs = memory_connection()
        theirs.admits = self._admits_bytes
        self._nursery.start_soon(self._serve, self._accept(ours))
        return theirs

    async def serve_tcp(self, port: int = 0) -> int:
        """Serve on 127.0.0.1 as well, until the server's block ends, and return the port.

        While the server is down, such connections are accepted by the operating system and
        then reset at once: refusing is something that only `connect` can do.

        Args:
            port: 0 for any that is free.

        Cancellation: nothing is left open. Checkpoint: always.
        """
        listeners = await trio.open_tcp_listeners(port, host="127.0.0.1")
        self._nursery.start_soon(trio.serve_listeners, self._serve_socket, listeners)
        return int(listeners[0].socket.getsockname()[1])

    def down(self, how: Literal["refuse", "hang"] = "refuse", *, cut: bool = True) -> None:
        """Stop accepting connections, until `up`.

        Args:
            how: whether a new connection is refused, or nobody answers (`hang`).
            cut: also reset the connections that are open.
        """
        self._go_down(math.inf, how)
        if cut:
            self.cut_connections()

    def up(self) -> None:
        """Accept connections again."""
        self._down_until = -math.inf
        self._went_up.set()

    def cut_connections(self, how: Ending = "reset") -> None:
        """End every open connection. What the server is doing goes on."""
        one_of(get_args(Ending), how)
        for connection in list(self._connections.values()):
            connection.cut(how)

    def _go_down(self, seconds: float, how: Literal["refuse", "hang"]) -> None:
        self._down_until = trio.current_time() + seconds
        self._hang = how == "hang"
        self._went_up = trio.Event()

    def _accept(self, stream: trio.abc.Stream) -> Connection:
        # Counted here and not in the connection's task, whose turn comes in no certain order.
        connection = Connection(self.connections_made, stream, self.keep_alive_timeout)
        self.connections_made += 1
        self._connections[connection.number] = connection
        return connection

    async def _serve_socket(self, stream: trio.SocketStream) -> None:
        if self.is_down:
            reset(stream)
        else:
            await self._serve(self._accept(stream))

    async def _serve(self, connection: Connection) -> None:
        try:
            await connection.serve(self._handle_exchange)
        finally:
            del self._connections[connection.number]
