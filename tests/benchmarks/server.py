"""A canned MCP server over raw sockets: it parses what it must, and its answers are prepared.

    python -m tests.benchmarks.server json|sse [CERTIFICATE_CHAIN_WITH_KEY]

It prints its port and serves on loopback until it is ended. `POST /mcp` speaks MCP 2025-11-25
with sessions and a standalone stream. Beside it, for whoever measures:

- `GET /counts`: connections, handshakes and calls so far, and calls held now
- `POST /forget`: forget all sessions; `POST /forget/N`: do so when the Nth call from now arrives
- `POST /release`: answer the calls of `hold`, which are kept waiting until then
"""

from __future__ import annotations

import itertools
import json
import selectors
import socket
import ssl
import sys
from typing import Any

READ_BYTES = 65536
BACKLOG = 4096
NOT_FOUND = b'{"jsonrpc":"2.0","id":null,"error":{"code":-32001,"message":"Session not found"}}'
STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
RESULTS: dict[str, Any] = {
    "initialize": {
        "protocolVersion": "2025-11-25",
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "canned", "version": "1"},
    },
    "tools/list": {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in ("add", "hold")]},
    "tools/call": {"content": [{"type": "text", "text": "3"}], "isError": False},
    "ping": {},
}


class Server:
    """Its sessions and counts, and the loop that serves every connection in turn."""

    def __init__(self, *, sse: bool, tls: ssl.SSLContext | None) -> None:
        self.sse = sse
        self.tls = tls
        self.sessions: set[bytes] = set()
        self.held: list[tuple[Connection, bytes]] = []
        self.counts = {"connections": 0, "handshakes": 0, "calls": 0, "refused": 0}
        self.forget_in = 0
        self._numbers = itertools.count(1)
        self._selector = selectors.DefaultSelector()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=BACKLOG)
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ, None)

    @property
    def port(self) -> int:
        """Where it listens."""
        port: int = self._listener.getsockname()[1]
        return port

    def serve(self) -> None:
        """Serve for ever."""
        while True:
            for key, _ in self._selector.select():
                if key.data is None:
                    self._accept()
                elif not key.data.read():
                    self._selector.unregister(key.fileobj)
                    key.data.socket.close()

    def _accept(self) -> None:
        while True:
            try:
                accepted, _ = self._listener.accept()
            except BlockingIOError:
                return
            self.counts["connections"] += 1
            accepted.setblocking(False)
            # The end of a stream is a write of its own and must not wait for an acknowledgement.
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self.tls is not None:
                # The handshake is made by the first reads.
                accepted = self.tls.wrap_socket(accepted, server_side=True, do_handshake_on_connect=False)
            self._selector.register(accepted, selectors.EVENT_READ, Connection(self, accepted))

    def new_session(self) -> bytes:
        """Make a session and return its id."""
        self.counts["handshakes"] += 1
        session = b"session-%d" % next(self._numbers)
        self.sessions.add(session)
        return session

    def knows(self, session: bytes, *, is_call: bool) -> bool:
        """Count a call and return whether its session stands, forgetting all first if it is time."""
        if not is_call:
            return session in self.sessions
        self.counts["calls"] += 1
        if self.forget_in:
            self.forget_in -= 1
            if not self.forget_in:
                self.sessions.clear()
        known = session in self.sessions
        self.counts["refused"] += not known
        return known

    def release(self) -> None:
        """Answer the held calls."""
        held, self.held = self.held, []
        for connection, request_id in held:
            connection.answer("tools/call", request_id)


class Connection:
    """One connection: the bytes of a request that is not here whole, and the answers' socket."""

    def __init__(self, server: Server, accepted: socket.socket) -> None:
        self.socket = accepted
        self._server = server
        self._buffer = b""

    def read(self) -> bool:
        """Take what has arrived and answer what is whole; return whether the connection goes on."""
        try:
            data = self.socket.recv(READ_BYTES)
        except (BlockingIOError, ssl.SSLWantReadError):
            return True
        except OSError:
            return False
        if not data:
            return False
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = self._buffer[:end].lower()
            whole = end + 4 + int(_field(head, b"content-length") or 0)
            if len(self._buffer) < whole:
                break
            body, self._buffer = self._buffer[end + 4 : whole], self._buffer[whole:]
            self._request(head, body)
        return True

    def _request(self, head: bytes, body: bytes) -> None:
        method, target, _ = head.split(b" ", 2)
        if target != b"/mcp":
            self._control(target)
            return
        session = _field(head, b"mcp-session-id")
        if method == b"get":
            self._send(STREAM_HEAD if session in self._server.sessions else _whole(404, NOT_FOUND))
        elif method == b"delete":
            self._server.sessions.discard(session)
            self._send(_whole(200, b""))
        else:
            self._post(session, json.loads(body))

    def _post(self, session: bytes, message: dict[str, Any]) -> None:
        method, request_id = message["method"], message.get("id")
        if method == "initialize":
            self._send(_whole(200, _result(method, request_id), self._server.new_session()))
        elif not self._server.knows(session, is_call=method == "tools/call"):
            self._send(_whole(404, NOT_FOUND))
        elif request_id is None:
            self._send(_whole(202, b""))
        elif method == "tools/call" and message["params"]["name"] == "hold":
            self._server.held.append((self, request_id))
        else:
            self.answer(method, request_id)

    def answer(self, method: str, request_id: Any) -> None:
        """Answer a request, as JSON or as a stream of one event."""
        body = _result(method, request_id)
        if not self._server.sse:
            self._send(_whole(200, body))
            return
        event = b"event: message\r\ndata: %b\r\n\r\n" % body
        self._send(b"%b%x\r\n%b\r\n" % (STREAM_HEAD, len(event), event))
        self._send(b"0\r\n\r\n")

    def _control(self, target: bytes) -> None:
        server = self._server
        if target.startswith(b"/forget/"):
            server.forget_in = int(target.removeprefix(b"/forget/"))
        elif target == b"/forget":
            server.sessions.clear()
        elif target == b"/release":
            server.release()
        self._send(_whole(200, json.dumps({**server.counts, "held": len(server.held)}).encode()))

    def _send(self, data: bytes) -> None:
        # Answers are small and their readers wait for them: the socket's buffer has room.
        if self.socket.send(data) != len(data):
            raise BlockingIOError("the client does not read")


def _field(head: bytes, name: bytes) -> bytes:
    """Return a header's value from a head in lower case."""
    start = head.find(b"\r\n%b:" % name)
    if start < 0:
        return b""
    end = head.find(b"\r\n", start + 2)
    return head[start + len(name) + 3 : end if end >= 0 else None].strip()


def _result(method: str, request_id: Any) -> bytes:
    return _RESULTS[method] % json.dumps(request_id).encode()


_RESULTS = {
    method: b'{"jsonrpc":"2.0","id":%%b,"result":%b}' % json.dumps(result).encode()
    for method, result in RESULTS.items()
}


def _whole(status: int, body: bytes, session: bytes = b"") -> bytes:
    extra = b"mcp-session-id: %b\r\n" % session if session else b""
    return b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\n%bcontent-length: %d\r\n\r\n%b" % (
        status,
        extra,
        len(body),
        body,
    )


def main() -> None:
    """Serve as the command line says."""
    tls = None
    if len(sys.argv) > 2:
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(sys.argv[2])
    server = Server(sse=sys.argv[1] == "sse", tls=tls)
    print(server.port, flush=True)
    server.serve()


if __name__ == "__main__":
    main()
