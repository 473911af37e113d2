"""Between a client and a real server: what goes over the wire is counted, and cut at a chosen byte.

Servers that are not ours write no journal of what they run. A call that reached one once, and was
not refused, ran at most once, so here it is the wire that is counted.
"""

from __future__ import annotations

import json
import re
import socket
import struct
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, final

import trio

STATUS = re.compile(rb"HTTP/1\.1 (\d+)")
SESSION = re.compile(rb"\r\nmcp-session-id: *(\S+)", re.IGNORECASE)
LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
END_OF_HEAD = b"\r\n\r\n"


@dataclass(eq=False)
class Seen:
    """One request that arrived whole, and what has come back for it."""

    http_method: str
    head: bytes
    message: dict[str, Any]
    answer: bytes = b""

    @property
    def rpc_method(self) -> str:
        """The JSON-RPC method, if there is one."""
        return str(self.message.get("method", ""))

    @property
    def key(self) -> str:
        """The call's own key, which every test puts into the arguments."""
        return str(self.message.get("params", {}).get("arguments", {}).get("key", ""))

    @property
    def status(self) -> int:
        """The answer's status; 0 if there was none."""
        found = STATUS.match(self.answer) if END_OF_HEAD in self.answer else None
        return int(found[1]) if found else 0

    @property
    def body(self) -> bytes:
        """What has come of the answer's body, as it is framed on the wire."""
        return self.answer.partition(END_OF_HEAD)[2]


Cutter = Callable[[Seen], int | None]
"""Asked after each piece of an answer: how many bytes of the whole answer to let through before
the connection is reset, or None to go on."""


@final
class Proxy:
    """Made by `open_proxy`."""

    def __init__(self, upstream: int) -> None:
        self.port = 0
        self.seen: list[Seen] = []
        self.cutter: Cutter = lambda seen: None
        self.cuts = 0
        self._upstream = upstream

    def posts(self, rpc_method: str) -> list[Seen]:
        """Every POST of one JSON-RPC method, in order."""
        return [one for one in self.seen if one.http_method == "POST" and one.rpc_method == rpc_method]

    def sent(self, prefix: str = "") -> Counter[str]:
        """How often each call was sent whose key begins with `prefix`."""
        return Counter(one.key for one in self.posts("tools/call") if one.key.startswith(prefix))

    def let_in(self, prefix: str = "") -> Counter[str]:
        """How often each call was sent and not refused: an upper bound of how often it ran."""
        calls = [one for one in self.posts("tools/call") if one.status in (0, 200)]
        return Counter(one.key for one in calls if one.key.startswith(prefix))

    @property
    def handshakes(self) -> int:
        """How many sessions the server has made."""
        return len(self._sessions)

    @property
    def newest_session(self) -> str:
        """The id of the last session it made."""
        return self._sessions[-1]

    @property
    def _sessions(self) -> list[str]:
        found = [SESSION.search(one.answer) for one in self.posts("initialize") if one.status == 200]
        return [match[1].decode() for match in found if match]

    async def serve(self, client: trio.SocketStream) -> None:
        """Carry one connection until either side has ended it."""
        async with client:
            try:
                server = await trio.open_tcp_stream("127.0.0.1", self._upstream)
            except OSError:
                reset(client)
                return
            async with server:
                exchange = _Exchange(self, client, server)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(exchange.carry, exchange.requests, nursery.cancel_scope)
                    nursery.start_soon(exchange.carry, exchange.answers, nursery.cancel_scope)


@final
class _Exchange:
    """The two directions of one connection."""

    def __init__(self, proxy: Proxy, client: trio.SocketStream, server: trio.SocketStream) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server
        self._unread = b""
        self._current: Seen | None = None

    async def carry(self, direction: Callable[[], Awaitable[None]], both: trio.CancelScope) -> None:
        """Carry one direction to its end, which ends the other."""
        try:
            await direction()
        except trio.BrokenResourceError:
            reset(self._client)
            reset(self._server)
        except trio.ClosedResourceError:
            pass  # The other direction has done it.
        both.cancel()

    async def requests(self) -> None:
        async for data in self._client:
            self._read(bytes(data))
            await self._server.send_all(data)

    async def answers(self) -> None:
        async for data in self._server:
            seen = self._current
            assert seen is not None, "an answer before a request"
            let_through = len(seen.answer)
            seen.answer += bytes(data)
            end = self._proxy.cutter(seen)
            if end is not None:
                await self._client.send_all(seen.answer[let_through:end])
                self._proxy.cuts += 1
                raise trio.BrokenResourceError
            await self._client.send_all(data)

    def _read(self, data: bytes) -> None:
        """Note each request once it is whole: the client sends one after another, of known length."""
        self._unread += data
        while END_OF_HEAD in self._unread:
            head, _, rest = self._unread.partition(END_OF_HEAD)
            found = LENGTH.search(head)
            length = int(found[1]) if found else 0
            if len(rest) < length:
                return
            message = json.loads(rest[:length]) if length else {}
            self._current = Seen(head.split(b" ", 1)[0].decode(), head, message)
            self._proxy.seen.append(self._current)
            self._unread = rest[length:]


def reset(stream: trio.SocketStream) -> None:
    """Close so that the other side gets a reset and no orderly end."""
    if stream.socket.fileno() >= 0:
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        stream.socket.close()


@asynccontextmanager
async def open_proxy(upstream: int) -> AsyncGenerator[Proxy, None]:
    """Stand before the server on a loopback port for as long as the block lasts."""
    proxy = Proxy(upstream)
    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        proxy.port = listener.socket.getsockname()[1]
        nursery.start_soon(trio.serve_listeners, proxy.serve, [listener])
        yield proxy
        nursery.cancel_scope.cancel()
