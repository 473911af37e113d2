"""Which way requests go out: headers, auth flows, the user's own client, cookies and redirects."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import httpx
import pytest
import trio
from trio.testing import MockClock

from tests.kit import add, open_server
from trio_mcp_resilient import HandshakeFailed, RequestRefused, TrioHTTPTransport, open_client
from trio_mcp_resilient._endpoint import Endpoint
from trio_mcp_resilient._http import wire_opener
from trio_mcp_resilient._httpx_wire import HttpxWire
from trio_mcp_resilient._patience import Patience
from trio_mcp_resilient._plain_wire import PlainWire


class Bearer(httpx.Auth):
    """Sends a token, and a fresh one once the server refuses it."""

    def __init__(self) -> None:
        self.number = 1
        self.refreshes = 0

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        request.headers["authorization"] = f"Bearer token-{self.number}"
        response = yield request
        if response.status_code == 401:
            self.number += 1
            self.refreshes += 1
            request.headers["authorization"] = f"Bearer token-{self.number}"
            yield request


async def test_headers_are_sent_with_every_request_and_override_the_defaults(
    autojump_clock: MockClock,
) -> None:
    headers = {"X-Tenant": "blue", "User-Agent": "app/1"}
    async with open_server() as server:
        async with open_client(server.url, connect=server.connect, headers=headers) as client:
            await add(client)
        assert {seen.headers["x-tenant"] for seen in server.requests} == {"blue"}
        assert {seen.headers["user-agent"] for seen in server.requests} == {"app/1"}
        assert {seen.http_method for seen in server.requests} == {"POST", "GET", "DELETE"}


@pytest.mark.parametrize("headers", [{"x": "a\r\nb: c"}, {"x\n": "a"}, {"x:": "a"}, {"": "a"}, {"x": "\0"}])
async def test_a_header_that_would_smuggle_another_is_refused(headers: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="header"):
        async with open_client("http://server.test/mcp", headers=headers):
            pytest.fail("nothing was to be opened")


async def test_an_auth_flow_runs_for_every_request_and_a_refresh_keeps_the_session(
    autojump_clock: MockClock,
) -> None:
    auth = Bearer()
    async with open_server() as server:
        async with open_client(server.url, connect=server.connect, auth=auth, get_stream=False) as client:
            await client.list_tools()
            server.answer(401, {"error": "invalid_token"}, when="tools/call")
            assert await add(client) == "3"
            assert auth.refreshes == 1
            assert (client.generation, server.handshakes, server.executed["add"]) == (1, 1, 1)
            # A session that is lost after the refresh recovers, with the new token.
            server.lose_session()
            assert await add(client) == "3"
            assert client.generation == 2
            assert server.requests[-1].headers["authorization"] == "Bearer token-2"


async def test_a_token_that_stays_refused_is_the_callers_error(autojump_clock: MockClock) -> None:
    async with open_server() as server:
        async with open_client(server.url, connect=server.connect, auth=Bearer(), get_stream=False) as client:
            server.answer(401, {"error": "invalid_token"}, when="tools/call", times=2)
            with pytest.raises(RequestRefused) as caught:
                await add(client)
            assert caught.value.status == 401
            assert "token-" not in str(caught.value)
            assert client.generation == 1


class Broken(httpx.Auth):
    """An auth flow that fails once it is asked for the third request."""

    def __init__(self, fails_at: int) -> None:
        self.left = fails_at

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        self.left -= 1
        if self.left == 0:
            raise LookupError("no credentials")
        yield request


async def test_what_an_auth_flow_raises_reaches_the_caller_as_itself(autojump_clock: MockClock) -> None:
    async with open_server() as server:
        async with open_client(
            server.url, connect=server.connect, auth=Broken(3), get_stream=False, mode="legacy"
        ) as client:
            with pytest.raises(LookupError, match="no credentials"):
                await add(client)
            assert client.generation == 1
            assert await add(client) == "3"


async def test_an_auth_flow_that_raises_at_the_handshake_is_final(autojump_clock: MockClock) -> None:
    async with open_server() as server:
        with pytest.raises(HandshakeFailed, match="LookupError") as caught:
            async with open_client(server.url, connect=server.connect, auth=Broken(1)):
                pytest.fail("there is no session to work with")
        assert isinstance(caught.value.__cause__, LookupError)
        assert server.requests == []


async def test_a_client_of_the_users_is_used_as_it_is_and_not_closed(autojump_clock: MockClock) -> None:
    hooked: list[str] = []

    async def hook(request: httpx.Request) -> None:
        await trio.lowlevel.checkpoint()
        hooked.append(request.method)

    async with open_server() as server:
        transport = TrioHTTPTransport(connect=server.connect)
        http = httpx.AsyncClient(
            transport=transport, headers={"x-mine": "1"}, event_hooks={"request": [hook]}
        )
        async with http:
            async with open_client(server.url, http_client=http, headers={"x-too": "2"}) as client:
                await add(client)
                server.lose_session()
                await add(client)
            assert not http.is_closed
            assert all(seen.headers["x-mine"] == "1" for seen in server.requests)
            assert all(seen.headers["x-too"] == "2" for seen in server.requests)
            assert {"POST", "GET", "DELETE"} <= set(hooked)
            assert len(server.requests) == len(hooked)


async def test_settings_that_belong_to_the_passed_client_are_refused_beside_it() -> None:
    async with httpx.AsyncClient() as http:
        for wrong in ({"auth": Bearer()}, {"connect": trio.open_tcp_stream}):
            options: dict[str, Any] = {"http_client": http, **wrong}
            with pytest.raises(ValueError, match="http_client"):
                async with open_client("http://server.test/mcp", **options):
                    pytest.fail("nothing was to be opened")


async def test_a_compressed_answer_is_read(autojump_clock: MockClock) -> None:
    import gzip
    import json

    async with open_server() as server:

        def packed(seen: Any) -> bytes:
            result = {"content": [{"type": "text", "text": "zipped"}]}
            return gzip.compress(json.dumps({"jsonrpc": "2.0", "id": seen.rpc_id, "result": result}).encode())

        async with httpx.AsyncClient(transport=TrioHTTPTransport(connect=server.connect)) as http:
            async with open_client(server.url, http_client=http, get_stream=False) as client:
                await client.list_tools()
                headers = {"content-encoding": "gzip"}
                server.answer(
                    200, packed, content_type="application/json", headers=headers, when="tools/call"
                )
                result = await client.call_tool("add", {"a": 1, "b": 2})
                assert result.content[0].text == "zipped"  # type: ignore[union-attr]


async def test_a_balancers_cookie_is_kept_for_the_generation(autojump_clock: MockClock) -> None:
    async with open_server() as server:
        server.headers["set-cookie"] = "stick=m1; Path=/"
        async with open_client(server.url, connect=server.connect, get_stream=False) as client:
            await add(client)
            first, *later = server.requests
            assert "cookie" not in first.headers
            assert {seen.headers["cookie"] for seen in later} == {"stick=m1"}
            server.headers["set-cookie"] = "stick=m2; Path=/"
            server.lose_session()
            mark = len(server.requests)
            await add(client)
            again = [seen for seen in server.requests[mark:] if seen.rpc_method == "initialize"]
            assert "cookie" not in again[0].headers


@pytest.mark.parametrize("plain", [True, False], ids=["plain", "through httpx"])
@pytest.mark.parametrize("status", [307, 308])
async def test_a_redirect_within_the_origin_keeps_the_method_and_is_remembered(
    plain: bool, status: int, autojump_clock: MockClock
) -> None:
    async with open_server() as server:
        server.answer(
            status, "", headers={"location": "/mcp"}, when=lambda seen: seen.target == "/old", times=9
        )
        url = server.url.replace("/mcp", "/old")
        auth = None if plain else Bearer()
        async with open_client(url, connect=server.connect, auth=auth, get_stream=False) as client:
            assert await add(client) == "3"
        assert [seen.target for seen in server.requests].count("/old") == 1
        assert server.executed["add"] == 1


async def test_a_redirect_off_the_origin_is_not_followed(autojump_clock: MockClock) -> None:
    async with open_server() as server:
        server.answer(307, "", headers={"location": "http://evil.test/mcp"}, when="initialize")
        with pytest.raises(HandshakeFailed, match="redirect off its origin"):
            async with open_client(server.url, connect=server.connect, mode="legacy"):
                pytest.fail("there is no session to work with")
        assert len(server.requests) == 1


def way_out(url: str = "http://server.test/mcp", **options: Any) -> object:
    settings: dict[str, Any] = dict.fromkeys(("headers", "auth", "http_client", "ssl_context", "connect"))
    settings |= {"read_timeout": 60.0, "patience": Patience()}
    return wire_opener(Endpoint.parse(url), **{**settings, **options})()


def test_the_way_out_is_chosen_by_what_there_is_for_httpx_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    assert isinstance(way_out(), PlainWire)
    assert isinstance(way_out(auth=Bearer()), HttpxWire)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:3128")
    assert isinstance(way_out(), HttpxWire)
    assert isinstance(way_out("https://server.test/mcp"), PlainWire)
    assert isinstance(way_out(connect=trio.open_tcp_stream), PlainWire)
    monkeypatch.setenv("no_proxy", "server.test")
    assert isinstance(way_out(), PlainWire)


async def test_httpx_own_transport_works_over_a_real_socket() -> None:
    async with open_server() as server:
        url = f"http://127.0.0.1:{await server.serve_tcp()}/mcp"
        async with httpx.AsyncClient() as http:
            async with open_client(url, http_client=http) as client:
                assert await add(client) == "3"
                server.lose_session()
                assert await add(client) == "3"
                assert server.handshakes == 2


async def test_what_the_users_connect_raises_reaches_the_caller_as_itself(autojump_clock: MockClock) -> None:
    async with open_server() as server:
        broken = False

        async def connect(host: str, port: int) -> trio.abc.Stream:
            if broken:
                raise LookupError("no tunnel")
            return await server.connect(host, port)

        async with open_client(server.url, connect=connect) as client:
            await client.list_tools()
            broken = True
            server.cut_connections()
            with pytest.raises(LookupError, match="no tunnel"):
                await add(client)
            # The stream met the same, and the client is none the worse for it.
            await trio.sleep(5)
            broken = False
            assert await add(client) == "3"
        broken = True
        with pytest.raises(HandshakeFailed, match="LookupError"):
            async with open_client(server.url, connect=connect):
                pytest.fail("there is no session to work with")
