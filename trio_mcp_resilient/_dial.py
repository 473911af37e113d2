"""Connecting: a TCP stream by happy eyeballs, TLS on top, and what the rest needs to hold one.

A `Link` is a connected stream with the three things that Trio's stream interface lacks and a
pool without background tasks needs: to close without awaiting, to look without waiting whether
something has arrived, and to know that both also work under TLS.
"""

from __future__ import annotations

import functools
import ipaddress
import ssl
from collections.abc import Awaitable, Callable
from typing import TypeAlias, cast

import trio

from trio_mcp_resilient._wire import Stage, WireError

Connect: TypeAlias = Callable[[str, int], Awaitable[trio.abc.Stream]]
"""Opens a byte stream to a host and port; TLS is put on top of it by us.

Takes the host without brackets. Raises `OSError` if there is no way. The stream must be Trio's
own, or have a synchronous `close()`. If its `send_all` raises or is cancelled, the last byte must
not have been accepted: on that rests that a request cut short did not run. It may have a
synchronous `is_readable()`; without one, looking takes `PROBE_SECONDS`.
"""

Stapled: TypeAlias = "trio.StapledStream[trio.abc.SendStream, trio.abc.ReceiveStream]"
RECEIVE_BYTES = 65536
PROBE_SECONDS = 0.001
"""How long a stream that cannot tell whether it is readable is listened to instead."""
STREAM_ERRORS = (trio.BrokenResourceError, trio.ClosedResourceError)


@functools.cache
def default_ssl_context() -> ssl.SSLContext:
    """Return the one context that all connections without their own share.

    Made when first needed and only once, because loading the system's trust store costs tens of
    milliseconds and most of a megabyte.
    """
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


async def dial(
    scheme: str, host: str, port: int, connect: Connect | None, ssl_context: ssl.SSLContext | None
) -> Link:
    """Connect, with TLS if the scheme is https, and return the link.

    Raises:
        WireError: at `Stage.NOT_CONNECTED`, if there is no way there or TLS fails.
        TypeError: if `connect` returned a stream that cannot be closed without awaiting.

    Cancellation: nothing stays open. Checkpoint: yes.
    """
    try:
        raw = await (connect or _connect_tcp)(host, port)
    except (OSError, UnicodeError, trio.TooSlowError, *STREAM_ERRORS) as error:
        # UnicodeError is how the resolver says that a host name has an impossible label.
        raise WireError(Stage.NOT_CONNECTED, f"cannot connect to {host}:{port}: {_why(error)}") from error
    try:
        closers = _closers(raw)
    except TypeError:
        await trio.aclose_forcefully(raw)
        raise
    if scheme != "https":
        return Link(raw, None, closers)
    try:
        return await _with_tls(raw, host, port, ssl_context or default_ssl_context(), closers)
    except BaseException:
        for close in closers:
            close()
        raise


async def _connect_tcp(host: str, port: int) -> trio.abc.Stream:
    """Connect to a name by happy eyeballs; an address has nothing to resolve and no rival to race."""
    if not _is_address(host):
        return await trio.open_tcp_stream(host, port)
    plain = trio.socket.socket(trio.socket.AF_INET6 if ":" in host else trio.socket.AF_INET)
    try:
        await plain.connect((host, port))
    except BaseException:
        plain.close()
        raise
    return trio.SocketStream(plain)


def _is_address(host: str) -> bool:
    """Whether a host is an address, and a whole one: one with a zone is left to the resolver."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return "%" not in host


async def _with_tls(
    raw: trio.abc.Stream, host: str, port: int, context: ssl.SSLContext, closers: list[Callable[[], None]]
) -> Link:
    tap = _Tap(raw)
    # RFC 6066 section 3: the server name is sent without the dot that ends an absolute name.
    tls = trio.SSLStream(tap, context, server_hostname=host.removesuffix("."), https_compatible=True)
    try:
        await tls.do_handshake()
    except STREAM_ERRORS as error:
        raise WireError(Stage.NOT_CONNECTED, f"no TLS with {host}:{port}: {_why(error)}") from error
    chosen = tls.selected_alpn_protocol()
    # A context of the application's may offer h2; it is not ours to change.
    if chosen not in (None, "http/1.1"):
        raise WireError(Stage.NOT_CONNECTED, f"{host}:{port} chose {chosen}, which is not HTTP/1.1")
    return Link(tls, tap, closers)


class Link:
    """A connected stream, possibly under TLS. Its two I/O methods are the stream's own."""

    __slots__ = ("_closers", "_stream", "_tap", "receive_some", "send_all")

    def __init__(self, stream: trio.abc.Stream, tap: _Tap | None, closers: list[Callable[[], None]]) -> None:
        self._stream = stream
        self._tap = tap
        self._closers = closers
        # Bound once: no frame of ours lies on the hot path.
        self.send_all = stream.send_all
        self.receive_some = stream.receive_some

    async def receive_now(self) -> bytes | bytearray | None:
        """Return what has already arrived, `b""` for the peer's end, or None for nothing.

        Raises:
            trio.BrokenResourceError: if the peer has reset the connection.

        Cancellation: nothing is lost. Checkpoint: only if there was something.
        """
        tap = self._tap
        if tap is None:
            return await _receive_now(self._stream)
        tap.looking = True
        try:
            # Through TLS, since some of what is left may be in its buffer, and some of what has
            # arrived may be its own: session tickets are no data, a close_notify is an end.
            return await self.receive_some(RECEIVE_BYTES)
        except _NothingYet:
            return None
        finally:
            tap.looking = False

    def close(self) -> None:
        """Close at once, without a TLS farewell: HTTP's framing already tells a cut from an end."""
        for close in self._closers:
            close()


class _NothingYet(Exception):
    """TLS asked for bytes while we only looked whether there are some."""


class _Tap(trio.abc.Stream):
    """Lies under TLS, so that looking for data can be told apart from waiting for it.

    `trio.SSLStream` hides its buffers and has no way to look. An exception from the stream below
    it passes through unharmed, because no byte has moved.
    """

    def __init__(self, raw: trio.abc.Stream) -> None:
        self.raw = raw
        self.looking = False

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self.raw.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self.raw.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        if not self.looking:
            return await self.raw.receive_some(max_bytes)
        data = await _receive_now(self.raw)
        if data is None:
            raise _NothingYet
        return data

    async def aclose(self) -> None:
        await self.raw.aclose()


async def _receive_now(raw: trio.abc.ReceiveStream) -> bytes | bytearray | None:
    readable = _is_readable(raw)
    if readable is False:
        return None
    if readable:
        return await raw.receive_some(RECEIVE_BYTES)
    with trio.move_on_after(PROBE_SECONDS):
        return await raw.receive_some(RECEIVE_BYTES)
    return None


def _is_readable(raw: trio.abc.ReceiveStream) -> bool | None:
    """Whether receiving would return at once; None if the stream cannot tell."""
    if isinstance(raw, trio.SocketStream):
        # A closed one would make poll raise a ValueError; receiving says it properly.
        return raw.socket.fileno() == -1 or raw.socket.is_readable()
    if isinstance(raw, trio.StapledStream):
        return _is_readable(cast("Stapled", raw).receive_stream)
    tell: Callable[[], bool] | None = getattr(raw, "is_readable", None)
    return None if tell is None else tell()


def _closers(raw: trio.abc.AsyncResource) -> list[Callable[[], None]]:
    """Return what to call to close a stream without awaiting.

    `aclose()` would do, were it not a checkpoint: closing has to work in `finally` blocks of
    cancelled calls without losing their exception.
    """
    if isinstance(raw, trio.SocketStream):
        return [raw.socket.close]
    if isinstance(raw, trio.SSLStream):
        return _closers(cast("trio.SSLStream[trio.abc.Stream]", raw).transport_stream)
    if isinstance(raw, trio.StapledStream):
        stapled = cast("Stapled", raw)
        return [*_closers(stapled.send_stream), *_closers(stapled.receive_stream)]
    close: Callable[[], None] | None = getattr(raw, "close", None)
    if close is None:
        raise TypeError(f"connect returned a {type(raw).__name__}, which has no synchronous close()")
    return [close]


def _why(error: BaseException) -> str:
    """Return what went wrong in one line, from the innermost reasons."""
    cause = error.__cause__
    if isinstance(cause, ExceptionGroup):
        attempts = cast("ExceptionGroup[Exception]", cause).exceptions
        return "; ".join(sorted({_why(attempt) for attempt in attempts}))
    if cause is not None:
        return _why(cause)
    return str(error) or type(error).__name__
