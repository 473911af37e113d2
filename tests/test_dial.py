"""Connecting: over TCP, over TLS, and over streams that tests bring; what fails there sent nothing."""

from __future__ import annotations

import socket
import ssl
from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio
import trio.testing
import trustme

from tests.http_peer import (
    ANSWER,
    ENDPOINT,
    JSON,
    FarEnd,
    Handler,
    Pair,
    Peer,
    answering,
    call,
    socket_pair,
    tolerant,
)
from trio_mcp_resilient._connections import CONNECT_TIMEOUT, Connections, ConnectionStatistics
from trio_mcp_resilient._dial import default_ssl_context
from trio_mcp_resilient._endpoint import Endpoint
from trio_mcp_resilient._http_errors import TimedOut
from trio_mcp_resilient._scripted_stream import memory_connection
from trio_mcp_resilient._wire import Stage, WireError

Clock = trio.testing.MockClock
PAIRS = [memory_connection, socket_pair, trio.testing.memory_stream_pair]


@pytest.mark.parametrize(
    "error", [ConnectionRefusedError("refused"), trio.TooSlowError(), socket.gaierror(-2)]
)
async def test_a_connection_that_is_not_had_sent_nothing(error: Exception) -> None:
    async def connect(host: str, port: int) -> trio.abc.Stream:
        raise error

    connections = Connections(connect=connect, max_connections=1)
    for _ in range(2):
        with pytest.raises(WireError) as caught:
            await call(connections)
        assert caught.value.stage is Stage.NOT_CONNECTED
        assert caught.value.__cause__ is error
    assert connections.statistics() == ConnectionStatistics(0, 0, 0, 0, 0, 0)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
async def test_connects_over_tcp_and_says_why_it_could_not(host: str) -> None:
    try:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1" if host == "localhost" else host)
    except OSError:
        pytest.skip(f"this machine has no {host}")
    port = listener.socket.getsockname()[1]
    endpoint = Endpoint.parse(f"http://{f'[{host}]' if ':' in host else host}:{port}/mcp")
    connections = Connections()

    async def serve(stream: trio.SocketStream) -> None:
        await answering(ANSWER)(FarEnd(stream))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, serve, [listener])
        for _ in range(3):
            assert await call(connections, endpoint) == JSON
        assert connections.statistics().opened == 1
        nursery.cancel_scope.cancel()
    with pytest.raises(WireError, match=rf"cannot connect to {host}:{port}: .*refused") as caught:
        await call(connections, endpoint)
    assert caught.value.stage is Stage.NOT_CONNECTED


class Sockets(trio.abc.SocketFactory):
    """Sockets that never connect."""

    def __init__(self) -> None:
        self.made: list[Sockets.Socket] = []

    class Socket:
        closed = False

        async def connect(self, address: object) -> None:
            await trio.sleep_forever()

        def close(self) -> None:
            self.closed = True

    def socket(self, *kind: object) -> Any:
        self.made.append(self.Socket())
        return self.made[-1]


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
async def test_a_connection_given_up_while_it_is_made_is_closed(host: str, autojump_clock: Clock) -> None:
    sockets = Sockets()
    trio.socket.set_custom_socket_factory(sockets)
    with pytest.raises(TimedOut):
        await call(Connections(), Endpoint.parse(f"http://{host}/mcp"))
    assert [made.closed for made in sockets.made] == [True]


async def test_connecting_is_bounded(autojump_clock: Clock) -> None:
    async def connect(host: str, port: int) -> trio.abc.Stream:
        await trio.sleep_forever()
        raise AssertionError

    connections = Connections(connect=connect)
    for seconds in (CONNECT_TIMEOUT, 3.0):
        before = trio.current_time()
        with pytest.raises(TimedOut) as caught:
            await connections.request(
                ENDPOINT, "GET", [], connect_timeout=None if seconds == CONNECT_TIMEOUT else seconds
            )
        assert caught.value.stage is Stage.NOT_CONNECTED
        assert trio.current_time() - before == pytest.approx(seconds)


async def test_a_stream_that_cannot_be_closed_at_once_is_refused_at_once() -> None:
    class Slow(trio.abc.Stream):
        closed = False

        async def send_all(self, data: bytes | bytearray | memoryview) -> None: ...
        async def wait_send_all_might_not_block(self) -> None: ...
        async def receive_some(self, max_bytes: int | None = None) -> bytes: ...  # type: ignore[empty-body]
        async def aclose(self) -> None:
            self.closed = True

    slow = Slow()

    async def connect(host: str, port: int) -> trio.abc.Stream:
        return slow

    with pytest.raises(TypeError, match="Slow"):
        await call(Connections(connect=connect))
    assert slow.closed


# TLS.


class TLSPeer(Peer):
    """Far ends that speak TLS with a certificate for peer.example."""

    def __init__(self, nursery: trio.Nursery, handler: Handler, authority: trustme.CA) -> None:
        super().__init__(nursery, self.handshake)
        self.inner = handler
        self.names: list[str | None] = []
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.set_alpn_protocols(["h2", "http/1.1"])
        self.context.sni_callback = lambda tls, name, context: self.names.append(name)
        authority.issue_cert("peer.example").configure_cert(self.context)

    async def handshake(self, end: FarEnd) -> None:
        end.stream = trio.SSLStream(end.stream, self.context, server_side=True)
        await self.inner(end)


SECURE = Endpoint.parse("https://peer.example/mcp")


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def trusting(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    authority.configure_trust(context)
    return context


@pytest.mark.parametrize("pair", PAIRS)
async def test_speaks_tls(
    pair: Pair, authority: trustme.CA, trusting: ssl.SSLContext, autojump_clock: Clock
) -> None:
    async with trio.open_nursery() as nursery:
        peer = TLSPeer(nursery, answering(ANSWER, size=1), authority)
        peer.pair = pair
        connections = Connections(connect=peer.connect, ssl_context=trusting)
        for _ in range(5):
            assert await call(connections, SECURE, b"x" * 100_000) == JSON
        assert len(peer.ends) == 1
        assert peer.names == ["peer.example"]
        assert peer.hosts == [("peer.example", 443)]
        assert peer.ends[0].stream.selected_alpn_protocol() == "http/1.1"  # type: ignore[attr-defined]
        connections.close()


async def test_the_dot_of_an_absolute_name_is_not_part_of_the_certificate(
    authority: trustme.CA, trusting: ssl.SSLContext
) -> None:
    async with trio.open_nursery() as nursery:
        peer = TLSPeer(nursery, answering(ANSWER), authority)
        connections = Connections(connect=peer.connect, ssl_context=trusting)
        assert await call(connections, Endpoint.parse("https://peer.example./mcp")) == JSON
        assert peer.names == ["peer.example"]
        connections.close()


async def test_speaks_over_a_stream_that_is_itself_under_tls(
    authority: trustme.CA, trusting: ssl.SSLContext, autojump_clock: Clock
) -> None:
    async def connect(host: str, port: int) -> trio.abc.Stream:
        return trio.SSLStream(await peer.connect(host, port), trusting, server_hostname="peer.example")

    async with trio.open_nursery() as nursery:
        peer = TLSPeer(nursery, tolerant(answering(ANSWER)), authority)
        connections = Connections(connect=connect)
        for _ in range(3):
            assert await call(connections) == JSON
        assert len(peer.ends) == 1
        connections.close()


@pytest.mark.parametrize(
    ("endpoint", "trusted", "message"),
    [
        (SECURE, False, "CERTIFICATE_VERIFY_FAILED"),
        (Endpoint.parse("https://other.example/mcp"), True, "CERTIFICATE_VERIFY_FAILED.*other.example"),
    ],
)
async def test_refuses_a_certificate_that_proves_nothing(
    endpoint: Endpoint, trusted: bool, message: str, authority: trustme.CA, trusting: ssl.SSLContext
) -> None:
    async def refused(end: FarEnd) -> None:
        assert await end.request() is None

    async with trio.open_nursery() as nursery:
        peer = TLSPeer(nursery, refused, authority)
        connections = Connections(connect=peer.connect, ssl_context=trusting if trusted else None)
        with pytest.raises(WireError, match=message) as caught:
            await call(connections, endpoint)
        assert caught.value.stage is Stage.NOT_CONNECTED
        assert not peer.bodies


async def test_refuses_another_protocol_than_http11(authority: trustme.CA, trusting: ssl.SSLContext) -> None:
    trusting.set_alpn_protocols(["h2"])
    async with trio.open_nursery() as nursery:
        peer = TLSPeer(nursery, tolerant(answering(ANSWER)), authority)
        with pytest.raises(WireError, match="h2") as caught:
            await call(Connections(connect=peer.connect, ssl_context=trusting), SECURE)
        assert caught.value.stage is Stage.NOT_CONNECTED


async def test_a_handshake_that_stalls_is_bounded(autojump_clock: Clock) -> None:
    async def stall(end: FarEnd) -> None:
        while await end.stream.receive_some():
            pass

    async with trio.open_nursery() as nursery:
        connections = Connections(connect=Peer(nursery, stall).connect)
        with pytest.raises(TimedOut) as caught:
            await call(connections, SECURE)
        assert caught.value.stage is Stage.NOT_CONNECTED
        assert trio.current_time() == pytest.approx(CONNECT_TIMEOUT)


class Glued(trio.abc.Stream):
    """Holds back what is sent until it is let go, so that TLS records arrive in one piece."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self.held: bytearray | None = None

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        if self.held is None:
            await self.stream.send_all(data)
        else:
            self.held += data
            await trio.lowlevel.checkpoint()

    async def let_go(self) -> None:
        data, self.held = self.held, None
        assert data is not None
        await self.stream.send_all(data)

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        return await self.stream.receive_some(max_bytes)

    async def wait_send_all_might_not_block(self) -> None:
        await self.stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


@pytest.mark.parametrize("pair", PAIRS)
async def test_notices_a_tls_farewell_that_came_with_the_answer(
    pair: Pair, authority: trustme.CA, trusting: ssl.SSLContext, autojump_clock: Clock
) -> None:
    # It is then in TLS's own buffer, where the socket does not show it.
    async def handle(end: FarEnd) -> None:
        glued = Glued(end.stream)
        end.stream = trio.SSLStream(glued, peer.context, server_side=True)
        assert await end.request() is not None
        glued.held = bytearray()
        await end.stream.send_all(ANSWER)
        await end.stream.aclose()
        await glued.let_go()
        # The connection itself stays: only TLS's own words tell that it is over.
        assert not await glued.receive_some()

    async with trio.open_nursery() as nursery:
        peer = TLSPeer(nursery, handle, authority)
        peer.handler = handle
        peer.pair = pair
        connections = Connections(connect=peer.connect, ssl_context=trusting)
        for _ in range(3):
            assert await call(connections, SECURE) == JSON
        assert len(peer.ends) == 3
        connections.close()


async def test_a_write_cut_under_tls_was_not_accepted_whole(
    authority: trustme.CA, trusting: ssl.SSLContext, autojump_clock: Clock
) -> None:
    async def closing(end: FarEnd) -> None:
        await end.stream.do_handshake()  # type: ignore[attr-defined]
        with trio.move_on_after(1):
            await end.request()
        end.stream.transport_stream.close()  # type: ignore[attr-defined]

    async with trio.open_nursery() as nursery:
        peer = TLSPeer(nursery, closing, authority)
        connections = Connections(connect=peer.connect, ssl_context=trusting)

        async def parts() -> AsyncIterator[bytes]:
            yield b"x"
            await trio.sleep(2)
            yield b"y"

        with pytest.raises(WireError) as caught:
            await connections.request(SECURE, "POST", [(b"content-length", b"2")], parts())
        assert caught.value.stage is Stage.PARTLY_WRITTEN
        assert peer.bodies == []


def test_the_default_context_is_made_once_and_verifies() -> None:
    context = default_ssl_context()
    assert context is default_ssl_context()
    assert context.check_hostname
    assert context.verify_mode is ssl.CERT_REQUIRED
