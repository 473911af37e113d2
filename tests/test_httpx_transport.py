"""The transport under `httpx.AsyncClient`: what httpx sees of answers and of failures."""

from __future__ import annotations

import gzip
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any, cast

import httpx
import pytest
import trio
import trio.testing

from tests.http_peer import (
    ANSWER,
    EVENT_CHUNK,
    JSON,
    LAST_CHUNK,
    STREAM_HEAD,
    FarEnd,
    Handler,
    Peer,
    answering,
    tolerant,
)
from trio_mcp_resilient._connections import ConnectionStatistics
from trio_mcp_resilient._httpx_transport import TrioHTTPTransport, stage_of
from trio_mcp_resilient._wire import Stage, WireError

Clock = trio.testing.MockClock
URL = "http://peer.example/mcp"


async def test_carries_a_request_and_its_answer() -> None:
    async with trio.open_nursery() as nursery:
        peer = Peer(nursery, answering(ANSWER))
        async with httpx.AsyncClient(transport=TrioHTTPTransport(connect=peer.connect)) as client:
            for number in range(3):
                response = await client.post(f"{URL}?q=a%20b", json={"n": number}, headers={"X-Own": "own"})
                assert response.status_code == 200
                assert response.reason_phrase == "OK"
                assert response.http_version == "HTTP/1.1"
                assert response.headers["Content-Type"] == "application/json"
                assert response.json() == {"jsonrpc": "2.0", "id": 1, "result": {}}
        (end,) = peer.ends
        assert [json.loads(body) for body in peer.bodies] == [{"n": 0}, {"n": 1}, {"n": 2}]
        head, _ = end.requests[0]
        assert (head.method, head.target) == (b"POST", b"/mcp?q=a%20b")
        names = [name for name, _ in head.headers]
        assert sorted(names) == sorted(set(names))
        assert dict(head.headers)[b"x-own"] == b"own"
        assert dict(head.headers)[b"host"] == b"peer.example"
        # The nursery ends, since leaving the client's block closed the connection.


async def test_adds_no_header_of_its_own() -> None:
    async with trio.open_nursery() as nursery:
        peer = Peer(nursery, answering(ANSWER))
        transport = TrioHTTPTransport(connect=peer.connect)
        request = httpx.Request(
            "GET", "https://peer.example:80/".replace("https", "http"), headers={"a": "b"}
        )
        response = await transport.handle_async_request(request)
        await response.aread()
        await transport.aclose()
        head, _ = peer.ends[0].requests[0]
        assert list(head.headers) == [(b"host", b"peer.example"), (b"a", b"b")]


@pytest.mark.parametrize("url", ["http://[::1]:8080/", "http://bücher.example/"])
async def test_understands_each_kind_of_host(url: str) -> None:
    async with trio.open_nursery() as nursery:
        peer = Peer(nursery, answering(ANSWER))
        async with httpx.AsyncClient(transport=TrioHTTPTransport(connect=peer.connect)) as client:
            await client.get(url)
        host, expected = {
            "http://[::1]:8080/": (("::1", 8080), b"[::1]:8080"),
            "http://bücher.example/": (("xn--bcher-kva.example", 80), b"xn--bcher-kva.example"),
        }[url]
        assert peer.hosts == [host]
        assert dict(peer.ends[0].requests[0][0].headers)[b"host"] == expected


async def test_streams_a_request_and_an_answer() -> None:
    async def body() -> AsyncIterator[bytes]:
        for part in (b"one", b"two"):
            await trio.lowlevel.checkpoint()
            yield part

    async with trio.open_nursery() as nursery:
        peer = Peer(nursery, answering(STREAM_HEAD + EVENT_CHUNK * 3 + LAST_CHUNK, size=7))
        transport = TrioHTTPTransport(connect=peer.connect)
        async with httpx.AsyncClient(transport=transport) as client:
            async with client.stream("POST", URL, content=body()) as response:
                lines = [line async for line in response.aiter_lines() if line]
            assert lines == ["data: " + JSON.decode()] * 3
            assert transport.statistics() == ConnectionStatistics(0, 1, 0, 0, 1, 0)
        assert peer.bodies == [b"onetwo"]


async def test_leaves_decompression_to_httpx() -> None:
    packed = gzip.compress(JSON * 1000)
    head = b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(packed)
    async with trio.open_nursery() as nursery:
        peer = Peer(nursery, answering(head + packed, size=11))
        async with httpx.AsyncClient(transport=TrioHTTPTransport(connect=peer.connect)) as client:
            assert (await client.get(URL)).content == JSON * 1000


async def test_breaking_off_after_the_answer_keeps_the_connection(autojump_clock: Clock) -> None:
    async def handle(end: FarEnd) -> None:
        while await end.request() is not None:
            await end.send(STREAM_HEAD + EVENT_CHUNK)
            await trio.sleep(0.001)
            await end.send(LAST_CHUNK)

    async with trio.open_nursery() as nursery:
        transport = TrioHTTPTransport(connect=Peer(nursery, tolerant(handle)).connect)
        async with httpx.AsyncClient(transport=transport) as client:
            for _ in range(10):
                async with client.stream("POST", URL, json={}) as response:
                    # httpx's own readers leave generators behind when one breaks off.
                    async with aclosing(cast("AsyncGenerator[bytes]", aiter(response.stream))) as parts:
                        assert JSON in await anext(parts)
            assert transport.statistics().opened == 1


async def test_a_body_of_bytes_leaves_with_its_head() -> None:
    sent: list[bytes] = []
    async with trio.open_nursery() as nursery:
        peer = Peer(nursery, answering(ANSWER))

        async def connect(host: str, port: int) -> trio.abc.Stream:
            stream: Any = await peer.connect(host, port)
            # A question that the stream asks before bytes leave it; None lets all of them go.
            stream.admits = sent.append
            return cast("trio.abc.Stream", stream)

        async with httpx.AsyncClient(transport=TrioHTTPTransport(connect=connect)) as client:
            await client.post(URL, content=b"body")
    assert [data[-8:] for data in sent] == [b"\r\n\r\nbody"]


async def test_honors_the_target_extension() -> None:
    async with trio.open_nursery() as nursery:
        peer = Peer(nursery, answering(ANSWER))
        async with httpx.AsyncClient(transport=TrioHTTPTransport(connect=peer.connect)) as client:
            await client.request("OPTIONS", URL, extensions={"target": b"*"})
        assert peer.ends[0].requests[0][0].target == b"*"


# Failures.


async def closing(end: FarEnd) -> None:
    await end.finish()


async def closing_after_the_request(end: FarEnd) -> None:
    await end.request()
    await end.finish()


async def resetting(end: FarEnd) -> None:
    await end.request()
    end.stream.reset()  # type: ignore[attr-defined]


async def silent(end: FarEnd) -> None:
    while await end.request() is not None:
        pass


async def never(data: bytes) -> None:
    await trio.sleep_forever()


def cutting(how: str) -> Handler:
    async def handle(end: FarEnd) -> None:
        await end.request()
        await end.send(STREAM_HEAD + EVENT_CHUNK)
        if how == "reset":
            end.stream.reset()  # type: ignore[attr-defined]
        elif how == "close":
            await end.finish()
        else:
            await end.request()

    return handle


FAILURES: dict[str, tuple[Handler | str, type[httpx.TransportError], Stage]] = {
    "refused": ("refused", httpx.ConnectError, Stage.NOT_CONNECTED),
    "no way": ("hanging", httpx.ConnectTimeout, Stage.NOT_CONNECTED),
    "closed before": (closing, httpx.WriteError, Stage.PARTLY_WRITTEN),
    "stuck": ("stuck", httpx.WriteTimeout, Stage.PARTLY_WRITTEN),
    "closed after": (closing_after_the_request, httpx.RemoteProtocolError, Stage.WRITTEN),
    "reset after": (resetting, httpx.ReadError, Stage.WRITTEN),
    "silent": (silent, httpx.ReadTimeout, Stage.WRITTEN),
    "body reset": (cutting("reset"), httpx.ReadError, Stage.ANSWERING),
    "body cut": (cutting("close"), httpx.RemoteProtocolError, Stage.ANSWERING),
    "body silent": (cutting("wait"), httpx.ReadTimeout, Stage.ANSWERING),
    "nonsense": (tolerant(answering(b"nonsense\r\n\r\n")), httpx.RemoteProtocolError, Stage.ANSWERING),
}


@pytest.mark.parametrize(("handler", "kind", "stage"), FAILURES.values(), ids=FAILURES.keys())
async def test_each_failure_has_httpx_s_name_and_our_stage(
    handler: Handler | str, kind: type[httpx.TransportError], stage: Stage, autojump_clock: Clock
) -> None:
    async with trio.open_nursery() as nursery:
        peer = Peer(nursery, silent if isinstance(handler, str) else handler)

        async def connect(host: str, port: int) -> trio.abc.Stream:
            if handler == "refused":
                raise ConnectionRefusedError
            if handler == "hanging":
                await trio.sleep_forever()
            stream: Any = await peer.connect(host, port)
            if handler == "stuck":
                stream.send_all = never
            await trio.testing.wait_all_tasks_blocked()
            return cast("trio.abc.Stream", stream)

        transport = TrioHTTPTransport(connect=connect)
        async with httpx.AsyncClient(transport=transport) as client:
            with pytest.raises(kind) as caught:
                await client.post(URL, json={}, timeout=httpx.Timeout(5, connect=3, write=4))
            assert type(caught.value) is kind
            assert isinstance(caught.value.__cause__, WireError)
            assert stage_of(caught.value) is stage
            assert caught.value.request.url == URL
            assert trio.current_time() == pytest.approx(
                {httpx.ConnectTimeout: 3, httpx.WriteTimeout: 4, httpx.ReadTimeout: 5}.get(kind, 0)
            )
            assert transport.statistics().busy == transport.statistics().idle == 0


async def test_waiting_for_a_connection_times_out_as_httpx_says(autojump_clock: Clock) -> None:
    async with trio.open_nursery() as nursery:
        peer = Peer(nursery, answering(ANSWER))
        transport = TrioHTTPTransport(connect=peer.connect, max_connections=1)
        async with httpx.AsyncClient(transport=transport, timeout=httpx.Timeout(5, pool=2)) as client:
            async with client.stream("GET", URL):
                with pytest.raises(httpx.PoolTimeout) as caught:
                    await client.get(URL)
                assert stage_of(caught.value) is Stage.NOT_CONNECTED
                assert trio.current_time() == pytest.approx(2)
            assert (await client.get(URL)).status_code == 200


async def test_no_timeout_means_none(autojump_clock: Clock) -> None:
    async def slow(end: FarEnd) -> None:
        await end.request()
        await trio.sleep(3600)
        await end.send(ANSWER)

    async with trio.open_nursery() as nursery:
        transport = TrioHTTPTransport(connect=Peer(nursery, slow).connect)
        async with httpx.AsyncClient(transport=transport, timeout=None) as client:
            assert (await client.get(URL)).status_code == 200


@pytest.mark.parametrize(
    ("url", "headers", "kind"),
    [
        ("ftp://peer.example/", {}, httpx.UnsupportedProtocol),
        (URL, {"a": "b\r\nc: d"}, httpx.LocalProtocolError),
    ],
)
async def test_what_cannot_be_sent_is_refused_before_anything_is(
    url: str, headers: dict[str, str], kind: type[httpx.TransportError]
) -> None:
    async with trio.open_nursery() as nursery:
        peer = Peer(nursery, answering(ANSWER))
        async with httpx.AsyncClient(transport=TrioHTTPTransport(connect=peer.connect)) as client:
            with pytest.raises(kind) as caught:
                await client.get(url, headers=headers)
        assert peer.hosts == []
        assert stage_of(caught.value) is Stage.NOT_CONNECTED


@pytest.mark.parametrize("raises", [True, False], ids=["raises", "too long"])
async def test_a_body_that_goes_wrong(raises: bool) -> None:
    async def body() -> AsyncIterator[bytes]:
        yield b"0123"
        if raises:
            raise ValueError("the application's own")

    async with trio.open_nursery() as nursery:
        peer = Peer(nursery, tolerant(silent))
        async with httpx.AsyncClient(transport=TrioHTTPTransport(connect=peer.connect)) as client:
            with pytest.raises(ValueError if raises else httpx.LocalProtocolError) as caught:
                await client.post(URL, content=body(), headers={"content-length": "5" if raises else "3"})
        if isinstance(caught.value, httpx.LocalProtocolError):
            assert stage_of(caught.value) is Stage.WRITTEN
        else:
            assert str(caught.value) == "the application's own"


@pytest.mark.parametrize(
    ("error", "stage"),
    [
        (httpx.ConnectError("x"), Stage.NOT_CONNECTED),
        (httpx.ConnectTimeout("x"), Stage.NOT_CONNECTED),
        (httpx.PoolTimeout("x"), Stage.NOT_CONNECTED),
        (httpx.UnsupportedProtocol("x"), Stage.NOT_CONNECTED),
        (httpx.WriteError("x"), Stage.WRITTEN),
        (httpx.WriteTimeout("x"), Stage.WRITTEN),
        (httpx.ReadError("x"), Stage.WRITTEN),
        (httpx.ReadTimeout("x"), Stage.WRITTEN),
        (httpx.RemoteProtocolError("x"), Stage.WRITTEN),
        (httpx.LocalProtocolError("x"), Stage.WRITTEN),
        (httpx.ProxyError("x"), Stage.WRITTEN),
        (httpx.CloseError("x"), Stage.WRITTEN),
    ],
)
def test_of_a_foreign_transport_s_error_the_worse_is_taken_for_granted(
    error: httpx.TransportError, stage: Stage
) -> None:
    assert stage_of(error) is stage


async def test_closing_synchronously_ends_requests_in_progress() -> None:
    async with trio.open_nursery() as nursery:
        transport = TrioHTTPTransport(connect=Peer(nursery, silent).connect)
        client = httpx.AsyncClient(transport=transport)

        async def fail() -> None:
            with pytest.raises(httpx.ReadError):
                await client.get(URL)

        nursery.start_soon(fail)
        await trio.testing.wait_all_tasks_blocked()
        transport.close()
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(httpx.ConnectError, match="closed"):
            await client.get(URL)
        await client.aclose()


async def test_works_over_real_tcp_with_the_client_cancelled_now_and_then() -> None:
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    url = f"http://127.0.0.1:{listener.socket.getsockname()[1]}/mcp"

    async def serve(stream: trio.SocketStream) -> None:
        await tolerant(answering(ANSWER, size=100))(FarEnd(stream))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, serve, [listener])
        transport = TrioHTTPTransport(max_connections=4)
        async with httpx.AsyncClient(transport=transport) as client:

            async def caller(steps: int) -> None:
                async with trio.open_nursery() as inner:
                    inner.start_soon(client.get, url)
                    for _ in range(steps):
                        await trio.lowlevel.checkpoint()
                    inner.cancel_scope.cancel()

            async with trio.open_nursery() as callers:
                for steps in range(80):
                    callers.start_soon(caller, steps)
            assert transport.statistics().busy == transport.statistics().waiting == 0
            for _ in range(8):
                assert (await client.get(url)).content == JSON
        nursery.cancel_scope.cancel()
