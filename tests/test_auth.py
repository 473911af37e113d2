"""OAuth with the SDK's providers: what they are asked, when, how often, and what never leaks."""

from __future__ import annotations

import inspect
import logging
import runpy
import subprocess
import sys
import traceback
from collections.abc import AsyncGenerator, Callable, Generator
from pathlib import Path
from typing import Any

import httpx
import httpx2
import pytest
import trio
import trio.testing
from mcp.client.auth import OAuthFlowError, OAuthTokenError
from mcp.client.auth.extensions.client_credentials import (
    ClientCredentialsOAuthProvider,
    PrivateKeyJWTOAuthProvider,
    static_assertion_provider,
)
from mcp.client.auth.extensions.identity_assertion import IdentityAssertionOAuthProvider
from trio.testing import MockClock

from tests.authorization_server import ISSUER, METADATA, RESOURCE_METADATA, Guarded, Told, open_guarded
from tests.kit import STEADY, add, open_server
from trio_mcp_resilient import (
    Client,
    Event,
    GaveUp,
    HandshakeFailed,
    OutcomeUnknown,
    RequestRefused,
    State,
    TrioHTTPTransport,
    open_client,
)
from trio_mcp_resilient._auth import LONG_AGO, credentials
from trio_mcp_resilient._auth_flow import ANSWER_BYTES, ANSWER_SECONDS
from trio_mcp_resilient._endpoint import Endpoint
from trio_mcp_resilient._httpx_wire import HttpxWire
from trio_mcp_resilient._patience import Patience
from trio_mcp_resilient.testing import SeenRequest


def logged_in(guarded: Guarded, auth: Any = None, **options: Any) -> Any:
    """A client of the guarded server."""
    options.setdefault("get_stream", False)
    options.setdefault("backoff", STEADY)
    auth = guarded.provider() if auth is None else auth
    return open_client(guarded.server.url, connect=guarded.connect, auth=auth, **options)


async def at_once(client: Client, number: int) -> None:
    """Make that many calls at the same time, all of which must succeed."""

    async def one() -> None:
        assert await add(client) == "3"

    async with trio.open_nursery() as nursery:
        for _ in range(number):
            nursery.start_soon(one)


# -- getting in -------------------------------------------------------------------------------


async def test_the_first_request_leads_to_a_login_and_the_others_use_its_token(
    autojump_clock: MockClock,
) -> None:
    async with open_guarded() as guarded:
        async with logged_in(guarded) as client:
            assert await add(client) == "3"
        assert guarded.auth.paths == [METADATA, "/register", "/token"]
        assert guarded.auth.grants == ["authorization_code"]
        assert len(guarded.logins) == 1
        refused = [seen for seen in guarded.server.requests if seen.status == 401]
        assert refused == [guarded.server.posts()[0]]
        assert guarded.server.executed["add"] == 1


def issuer(provider: type[httpx2.Auth]) -> dict[str, Any]:
    """The argument by that name, which SDKs before 2.3 do not know and later ones want."""
    return {"issuer": ISSUER} if "issuer" in inspect.signature(provider).parameters else {}


def client_credentials(guarded: Guarded) -> httpx2.Auth:
    options = issuer(ClientCredentialsOAuthProvider)
    return ClientCredentialsOAuthProvider(guarded.server.url, guarded.storage, "app", "a-secret", **options)


def private_key(guarded: Guarded) -> httpx2.Auth:
    signed, options = static_assertion_provider("signed"), issuer(PrivateKeyJWTOAuthProvider)
    return PrivateKeyJWTOAuthProvider(guarded.server.url, guarded.storage, "app", signed, **options)


def identity_assertion(guarded: Guarded) -> httpx2.Auth:
    async def assertion(audience: str, resource: str) -> str:
        await trio.lowlevel.checkpoint()
        return f"{audience} for {resource}"

    return IdentityAssertionOAuthProvider(
        guarded.server.url, guarded.storage, "app", "a-secret", ISSUER, assertion
    )


@pytest.mark.parametrize("make", [client_credentials, private_key, identity_assertion])
async def test_every_provider_of_the_sdk_gets_in_and_renews_once_for_all(
    make: Callable[[Guarded], httpx2.Auth], autojump_clock: MockClock
) -> None:
    async with open_guarded() as guarded:
        async with logged_in(guarded, make(guarded)) as client:
            assert await add(client) == "3"
            guarded.auth.revoke()
            await at_once(client, 10)
            assert client.generation == 1
        assert len(guarded.auth.grants) == 2


async def test_what_is_no_auth_is_refused_by_type() -> None:
    for wrong in (("user", "password"), "token", object(), httpx2.Auth):
        with pytest.raises(TypeError, match=r"auth is an httpx\.Auth or a provider"):
            async with open_client("http://server.test/mcp", auth=wrong):  # type: ignore[arg-type]
                pytest.fail("nothing was to be opened")


def test_importing_the_package_does_not_import_the_providers() -> None:
    source = "import sys, trio_mcp_resilient; print('mcp.client.auth' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


async def test_a_provider_works_through_httpx_too(autojump_clock: MockClock) -> None:
    # As it has to behind a proxy.
    async with open_guarded() as guarded:
        http = httpx.AsyncClient(transport=TrioHTTPTransport(connect=guarded.connect))
        endpoint = Endpoint.parse(guarded.server.url)
        provider = credentials(guarded.provider(), Patience())
        wire = HttpxWire(http, endpoint, (), 60.0, owned=True, provider=provider)
        guarded.server.headers["set-cookie"] = "stick=m1; Path=/"
        response = await wire.send("POST", [(b"accept", b"text/event-stream")], b"[]")
        # Past the guard: what is refused now is the request.
        assert response.status not in (401, 403)
        await response.aclose()
        await wire.aclose()
        assert guarded.auth.grants == ["authorization_code"]
        assert not any("cookie" in asked.headers for asked in guarded.auth.asked)


async def test_a_login_takes_as_long_as_it_takes_and_is_asked_for_once(autojump_clock: MockClock) -> None:
    async with open_guarded() as guarded:
        guarded.patience = 3600.0
        async with logged_in(guarded, keepalive=10) as client:
            assert await add(client) == "3"
            # Once more, for a token that cannot be refreshed, while calls and pings wait.
            guarded.auth.revoke()
            guarded.auth.instead["refresh_token"] = Told(400, {"error": "invalid_grant"})
            await at_once(client, 10)
            # And once more on the way to a new session.
            guarded.auth.revoke()
            guarded.server.lose_session()
            await at_once(client, 10)
            assert guarded.server.handshakes == client.generation == 2
        assert len(guarded.logins) == 3


async def test_a_server_gets_no_more_time_for_a_login_that_took_long(autojump_clock: MockClock) -> None:
    async with open_guarded() as guarded:
        guarded.patience = 3600.0
        guarded.server.go_silent(when=guarded.auth.accepts, times=99)
        began = trio.current_time()
        with pytest.raises(GaveUp, match=r"no session at .* within 30 s"):
            async with logged_in(guarded):
                pytest.fail("there is no session to work with")
        assert trio.current_time() - began < 3600 + 31
        assert len(guarded.logins) == 1


# -- many at once -----------------------------------------------------------------------------


async def test_calls_do_not_wait_for_each_others_answers(autojump_clock: MockClock) -> None:
    async with open_guarded() as guarded:
        guarded.server.json_mode = True
        async with logged_in(guarded) as client:
            await client.list_tools()
            began = trio.current_time()
            async with trio.open_nursery() as nursery:
                for _ in range(20):
                    nursery.start_soon(client.call_tool, "slow", {"seconds": 10})
            assert trio.current_time() - began == pytest.approx(10)


async def test_a_server_may_ask_back_before_it_answers(autojump_clock: MockClock) -> None:
    async with open_guarded() as guarded:
        guarded.server.json_mode = True

        async def asking(ctx: Any) -> str:
            return str(await ctx.request("ping"))

        guarded.server.tool("asking", asking)
        async with logged_in(guarded, get_stream=True) as client:
            with trio.fail_after(60):
                result = await client.call_tool("asking", {})
            assert result.content[0].text == "{}"


@pytest.mark.parametrize("number", [1, 100])
async def test_calls_that_find_the_token_expired_share_one_refresh(
    number: int, autojump_clock: MockClock
) -> None:
    async with open_guarded() as guarded:
        provider = guarded.provider()
        async with logged_in(guarded, provider) as client:
            await client.list_tools()
            provider.context.token_expiry_time = LONG_AGO
            guarded.auth.revoke()
            await at_once(client, number)
            assert guarded.auth.grants == ["authorization_code", "refresh_token"]
            assert not [seen for seen in guarded.server.posts("tools/call") if seen.status == 401]
            assert (client.generation, guarded.server.handshakes) == (1, 1)


@pytest.mark.parametrize("number", [1, 100])
async def test_calls_in_flight_whose_token_is_refused_share_one_refresh(
    number: int, autojump_clock: MockClock
) -> None:
    states: list[object] = []
    async with open_guarded() as guarded:
        async with logged_in(guarded, on_event=states.append) as client:
            await client.list_tools()
            states.clear()
            guarded.auth.revoke()
            held = guarded.server.hold("tools/call", times=number)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(at_once, client, number)
                # All of them are on their way with the old token before the first is refused.
                await held.reached(number)
                held.release()
            assert guarded.auth.grants == ["authorization_code", "refresh_token"]
            assert len(guarded.logins) == 1
            assert guarded.server.executed["add"] == number
            assert (client.generation, guarded.server.handshakes) == (1, 1)
        assert states[0] is not None and not [event for event in states[:-1] if "Ended" in str(event)]


async def test_who_refreshes_may_be_cancelled_and_the_next_one_does_it(autojump_clock: MockClock) -> None:
    async with open_guarded() as guarded:
        async with logged_in(guarded) as client:
            await client.list_tools()
            guarded.auth.revoke()
            guarded.auth.gate = trio.Event()
            async with trio.open_nursery() as nursery:
                with trio.CancelScope() as impatient:
                    async with trio.open_nursery() as inner:
                        inner.start_soon(add, client)
                        await guarded.auth.waiting.wait()
                        # Others queue for the lock that the first one holds.
                        nursery.start_soon(at_once, client, 5)
                        await trio.testing.wait_all_tasks_blocked()
                        impatient.cancel()
                assert impatient.cancelled_caught
                # The next one asks, and is let in.
                await trio.testing.wait_all_tasks_blocked()
                guarded.auth.gate.set()
            assert guarded.server.executed["add"] == 5
            assert client.generation == 1
            assert guarded.auth.grants == ["authorization_code", "refresh_token", "refresh_token"]


async def test_one_of_those_that_wait_for_a_refresh_may_be_cancelled(autojump_clock: MockClock) -> None:
    async with open_guarded() as guarded:
        async with logged_in(guarded) as client:
            await client.list_tools()
            guarded.auth.revoke()
            guarded.auth.gate = trio.Event()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(at_once, client, 3)
                await guarded.auth.waiting.wait()
                with trio.move_on_after(1) as scope:
                    await add(client)
                assert scope.cancelled_caught
                guarded.auth.gate.set()
            assert await add(client) == "3"
            assert guarded.auth.grants == ["authorization_code", "refresh_token"]


# -- across sessions --------------------------------------------------------------------------


async def test_a_token_outlives_the_session(autojump_clock: MockClock) -> None:
    async with open_guarded() as guarded:
        async with logged_in(guarded) as client:
            for generation in (1, 2, 3):
                await at_once(client, 20)
                assert client.generation == generation
                guarded.server.lose_session()
        assert guarded.auth.grants == ["authorization_code"]
        assert len([seen for seen in guarded.server.requests if seen.status == 401]) == 1


async def test_a_token_that_expires_with_the_session_is_refreshed_on_the_way(
    autojump_clock: MockClock,
) -> None:
    async with open_guarded() as guarded:
        async with logged_in(guarded) as client:
            await at_once(client, 1)
            guarded.auth.revoke()
            guarded.server.lose_session()
            await at_once(client, 20)
            assert (client.generation, guarded.server.handshakes) == (2, 2)
        assert guarded.auth.grants == ["authorization_code", "refresh_token"]


async def test_an_old_server_that_refuses_a_forgotten_session_by_401_asks_for_no_login(
    autojump_clock: MockClock,
) -> None:
    async with open_guarded() as guarded:
        async with logged_in(guarded) as client:
            await client.list_tools()
            guarded.server.lose_session()
            guarded.server.answer(401, "Unauthorized: Session not found", when="tools/call")
            assert await add(client) == "3"
            assert client.generation == 2
        assert guarded.auth.grants == ["authorization_code"]


async def test_nobody_is_asked_to_log_in_to_say_goodbye(autojump_clock: MockClock) -> None:
    async with open_guarded() as guarded:
        async with logged_in(guarded) as client:
            await add(client)
            guarded.auth.revoke()
        assert [seen.status for seen in guarded.server.seen("DELETE")] == [401]
        assert guarded.auth.grants == ["authorization_code"]


# -- when it fails ----------------------------------------------------------------------------


async def test_a_refused_refresh_asks_the_user_again(autojump_clock: MockClock) -> None:
    async with open_guarded() as guarded:
        async with logged_in(guarded) as client:
            await client.list_tools()
            guarded.auth.revoke()
            guarded.auth.instead["refresh_token"] = Told(400, {"error": "invalid_grant"})
            await at_once(client, 10)
            assert client.generation == 1
        assert guarded.auth.grants == ["authorization_code", "refresh_token", "authorization_code"]
        assert len(guarded.logins) == 2


async def test_a_token_that_is_never_good_enough_is_the_callers_error(autojump_clock: MockClock) -> None:
    async with open_guarded() as guarded:
        async with logged_in(guarded) as client:
            await client.list_tools()
            guarded.refuse(when="tools/call", times=3)
            with pytest.raises(RequestRefused) as caught:
                await add(client)
            assert caught.value.status == 401
            assert client.state is State.READY
            # Refreshed, then asked for afresh, then left.
            assert guarded.auth.grants == ["authorization_code", "refresh_token", "authorization_code"]
            assert await add(client) == "3"
            assert (client.generation, guarded.server.executed["add"]) == (1, 1)


async def test_an_error_of_the_flow_reaches_the_caller_and_the_session_stays(
    autojump_clock: MockClock,
) -> None:
    async with open_guarded() as guarded:
        async with logged_in(guarded) as client:
            await client.list_tools()
            guarded.auth.revoke()
            guarded.auth.instead["/token"] = Told(400, {"error": "invalid_client"})
            with pytest.raises(OAuthTokenError, match="invalid_client"):
                await add(client)
            del guarded.auth.instead["/token"]
            assert await add(client) == "3"
            assert client.generation == 1


async def test_an_error_of_the_flow_at_the_handshake_is_final_and_says_so(autojump_clock: MockClock) -> None:
    async with open_guarded() as guarded:
        guarded.auth.instead["/register"] = Told(403, {"error": "closed"})
        with pytest.raises(HandshakeFailed, match="authorization failed: OAuthRegistrationError") as caught:
            async with logged_in(guarded):
                pytest.fail("there is no session to work with")
        assert isinstance(caught.value.__cause__, OAuthFlowError)


async def test_a_handler_of_the_applications_raises_to_its_caller(autojump_clock: MockClock) -> None:
    async with open_guarded() as guarded:
        provider = guarded.provider()
        async with logged_in(guarded, provider) as client:
            await client.list_tools()
            guarded.auth.revoke()
            provider.context.clear_tokens()

            async def shut(url: str) -> None:
                await trio.lowlevel.checkpoint()
                raise LookupError("no browser")

            provider.context.redirect_handler, kept = shut, provider.context.redirect_handler
            with pytest.raises(LookupError, match="no browser"):
                await add(client)
            provider.context.redirect_handler = kept
            assert await add(client) == "3"
            assert client.generation == 1


async def test_calls_wait_for_an_authorization_server_that_is_down(autojump_clock: MockClock) -> None:
    async with open_guarded() as guarded:
        async with logged_in(guarded) as client:
            await client.list_tools()
            guarded.auth.revoke()
            guarded.auth.go_down()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(at_once, client, 10)
                await trio.sleep(5)
                assert guarded.server.executed["add"] == 0
                guarded.auth.down = False
            assert (client.generation, guarded.server.handshakes) == (1, 1)
            assert guarded.server.executed["add"] == 10


async def test_an_authorization_server_that_is_down_at_first_is_tried_again(
    autojump_clock: MockClock,
) -> None:
    async with open_guarded() as guarded:
        guarded.auth.go_down()

        async def come_up() -> None:
            await trio.sleep(5)
            guarded.auth.down = False

        async with trio.open_nursery() as nursery:
            nursery.start_soon(come_up)
            async with logged_in(guarded) as client:
                assert await add(client) == "3"


@pytest.mark.parametrize("fault", ["silent", "endless"])
async def test_an_authorization_server_cannot_hold_or_fill_a_client(
    fault: str, autojump_clock: MockClock
) -> None:
    async with open_guarded() as guarded:
        async with logged_in(guarded, recovery_timeout=90) as client:
            await client.list_tools()
            guarded.auth.revoke()
            if fault == "silent":
                guarded.auth.gate = trio.Event()
            else:
                guarded.auth.instead["/token"] = Told(200, b"x" * (ANSWER_BYTES + 1))
            with pytest.raises(Exception, match=f"{ANSWER_SECONDS:g} s|{ANSWER_BYTES} bytes") as caught:
                await add(client)
            assert caught.value.executed is False  # type: ignore[attr-defined]
            assert guarded.server.executed["add"] == 0


# -- more scopes ------------------------------------------------------------------------------


def demand(guarded: Guarded, tool: str, scope: str) -> None:
    """Let a tool need a scope."""
    guarded.refuse(
        403,
        f'error="insufficient_scope", scope="{scope}"',
        when=lambda seen: (
            guarded.auth.accepts(seen) and seen.tool == tool and scope not in guarded.auth.scope_of(seen)
        ),
    )


async def test_a_call_that_needs_more_gets_more(autojump_clock: MockClock) -> None:
    async with open_guarded() as guarded:
        demand(guarded, "add", "sums")
        async with logged_in(guarded) as client:
            await client.list_tools()
            await at_once(client, 10)
            assert client.generation == 1
        assert guarded.auth.grants == ["authorization_code"] * 2


async def test_calls_that_need_different_scopes_each_get_theirs_and_keep_the_others(
    autojump_clock: MockClock,
) -> None:
    async with open_guarded() as guarded:
        demand(guarded, "add", "sums")
        demand(guarded, "slow", "patience")
        async with logged_in(guarded) as client:
            await client.list_tools()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(at_once, client, 3)
                nursery.start_soon(client.call_tool, "slow", {"seconds": 1})
            await at_once(client, 1)
            assert client.generation == 1
        assert len(guarded.logins) == 3
        assert set(guarded.storage.tokens.scope.split()) == {"sums", "patience"}  # type: ignore[union-attr]


async def test_while_somebody_is_asked_for_more_the_other_calls_go_on(autojump_clock: MockClock) -> None:
    async with open_guarded() as guarded:
        demand(guarded, "slow", "patience")
        async with logged_in(guarded) as client:
            await client.list_tools()
            guarded.patience = 300.0
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.call_tool, "slow", {"seconds": 1})
                await trio.sleep(1)
                with trio.fail_after(1):
                    await at_once(client, 10)
            assert client.generation == 1


async def test_a_403_for_another_reason_asks_for_nothing(autojump_clock: MockClock) -> None:
    async with open_guarded() as guarded:
        async with logged_in(guarded) as client:
            await client.list_tools()
            guarded.refuse(403, when="tools/call", times=1)
            with pytest.raises(RequestRefused) as caught:
                await add(client)
            assert caught.value.status == 403
        assert guarded.auth.grants == ["authorization_code"]


# -- what goes where --------------------------------------------------------------------------


async def test_a_flows_own_requests_carry_nothing_of_the_endpoints(autojump_clock: MockClock) -> None:
    headers = {"X-Api-Key": "mine", "X-Tenant": "blue"}
    async with open_guarded() as guarded:
        guarded.server.headers["set-cookie"] = "stick=m1; Path=/"
        async with logged_in(guarded, headers=headers) as client:
            await add(client)
            guarded.auth.revoke()
            await add(client)
            guarded.server.lose_session()
            await add(client)
        metadata = guarded.server.seen(lambda seen: seen.target == RESOURCE_METADATA)
        for sent in [*(asked.headers for asked in guarded.auth.asked), *(seen.headers for seen in metadata)]:
            assert not {"x-api-key", "x-tenant", "cookie", "mcp-session-id"} & set(sent)
            assert "authorization" not in sent
        posts = guarded.server.posts()
        assert {seen.headers["x-api-key"] for seen in posts} == {"mine"}
        assert all(seen.headers["cookie"] == "stick=m1" for seen in posts[1:2])


async def test_the_providers_header_takes_the_place_of_the_applications(autojump_clock: MockClock) -> None:
    async with open_guarded() as guarded:
        async with logged_in(guarded, headers={"Authorization": "Bearer mine"}) as client:
            assert await add(client) == "3"
        sent = {seen.headers["authorization"] for seen in guarded.server.posts("tools/call")}
        assert len(sent) == 1 and "Bearer mine" not in sent


async def test_a_flows_own_requests_follow_redirects_within_their_origin(autojump_clock: MockClock) -> None:
    async with open_guarded() as guarded:
        guarded.auth.instead["/token"] = Told(308, headers={"location": "/moved"})
        async with logged_in(guarded) as client:
            assert await add(client) == "3"
        assert guarded.auth.paths[-2:] == ["/token", "/moved"]
        first, second = guarded.auth.asked[-2:]
        assert (first.method, first.body) == (second.method, second.body)


@pytest.mark.parametrize("place", ["http://evil.test/token", "//evil.test/token", "http://u:p@auth.test/x"])
async def test_a_flows_own_requests_do_not_leave_their_origin(place: str, autojump_clock: MockClock) -> None:
    async with open_guarded() as guarded:
        guarded.auth.instead["/token"] = Told(307, headers={"location": place})
        with pytest.raises(HandshakeFailed, match="307"):
            async with logged_in(guarded):
                pytest.fail("there is no session to work with")
        assert "evil.test" not in guarded.hosts


async def test_a_token_follows_a_redirect_within_the_origin_and_no_other(autojump_clock: MockClock) -> None:
    async with open_guarded() as guarded:
        old = guarded.server.url.replace("/mcp", "/old")
        moved = guarded.server.answer(
            307, headers={"location": "/mcp"}, when=lambda seen: seen.target == "/old", times=99
        )
        async with open_client(old, connect=guarded.connect, auth=guarded.provider()) as client:
            assert await add(client) == "3"
            moved.drop()
            guarded.server.answer(307, headers={"location": "http://evil.test/mcp"}, when="tools/call")
            with pytest.raises(RequestRefused) as caught:
                await add(client)
            assert caught.value.status == 307
        assert "evil.test" not in guarded.hosts


async def test_an_answer_is_not_read_before_its_caller_reads_it(autojump_clock: MockClock) -> None:
    async with open_guarded() as guarded:
        heard: list[float] = []

        async def telling(ctx: Any) -> str:
            ctx.progress(1)
            await trio.sleep(60)
            return "done"

        async def on_progress(progress: float, total: float | None, message: str | None) -> None:
            await trio.lowlevel.checkpoint()
            heard.append(trio.current_time())

        guarded.server.tool("telling", telling)
        async with logged_in(guarded) as client:
            began = trio.current_time()
            await client.call_tool("telling", {}, progress_callback=on_progress)
            assert heard[0] - began < 1
            assert trio.current_time() - began >= 60


async def test_challenges_give_their_connections_back(autojump_clock: MockClock) -> None:
    async with open_guarded() as guarded:
        async with logged_in(guarded) as client:
            for _ in range(20):
                guarded.auth.revoke()
                assert await add(client) == "3"
            assert guarded.server.connections_made == 1


async def test_a_cut_after_a_renewal_is_judged_as_any_other(autojump_clock: MockClock) -> None:
    async with open_guarded() as guarded:
        async with logged_in(guarded) as client:
            await client.list_tools()
            guarded.auth.revoke()
            guarded.server.cut(
                "before-head", when=lambda seen: seen.tool is not None and guarded.auth.accepts(seen)
            )
            with pytest.raises(OutcomeUnknown):
                await add(client)
            assert guarded.server.executed["add"] == 1


# -- secrets ----------------------------------------------------------------------------------


def everything_said(error: BaseException) -> str:
    """What an error, its causes, contexts and notes would show to anybody."""
    parts = [repr(error), str(error), "".join(traceback.format_exception(error))]
    parts += getattr(error, "__notes__", [])
    inside = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    for further in (error.__cause__, error.__context__, *inside):
        if further is not None:
            parts.append(everything_said(further))
    return "\n".join(parts)


async def test_a_whole_life_tells_no_secret(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    events: list[Event] = []
    said: list[str] = []
    async with open_guarded() as guarded:
        auth, server = guarded.auth, guarded.server
        provider = guarded.provider()

        async def fails(client: Client, kind: type[Exception]) -> None:
            with pytest.raises(kind) as caught:
                await add(client)
            said.append(everything_said(caught.value))

        async with logged_in(guarded, provider, on_event=events.append, get_stream=True) as client:
            await client.list_tools()
            # Expired by the clock, then refused by the server, then lost together with the session.
            provider.context.token_expiry_time = LONG_AGO
            await add(client)
            auth.revoke()
            await add(client)
            auth.revoke()
            server.lose_session()
            await add(client)

            # A server that quotes the token it refuses, and the session with it.
            def quoting(seen: SeenRequest) -> dict[str, Any]:
                return {"error": seen.headers["authorization"], "session": seen.session_id}

            server.answer(401, quoting, when="tools/call", times=3)
            await fails(client, RequestRefused)
            server.answer(403, quoting, when="tools/call")
            await fails(client, RequestRefused)
            # A refresh token that is refused by name, and then a login that goes wrong in each way.
            for wrong in ({"access_token": 7}, {"token_type": 7}, {"expires_in": "soon"}):
                grant = {"access_token": auth.token(), "refresh_token": auth.token(), **wrong}
                auth.revoke()
                auth.forget()
                auth.instead["authorization_code"] = Told(200, grant)
                await fails(client, OAuthFlowError)
            auth.instead["authorization_code"] = Told(400, {"error_description": f"{auth.token()} is used"})
            await fails(client, OAuthFlowError)
            # An authorization server that is gone, for longer than anybody waits.
            del auth.instead["authorization_code"]
            auth.go_down()
            await fails(client, Exception)
            said += [repr(client), repr(client.statistics()), repr(credentials(provider, Patience()))]
            auth.down = False
            await add(client)
        said += [repr(event) for event in events] + [str(event) for event in events]
        secrets = auth.secrets | {seen.session_id for seen in server.requests if seen.session_id}
    said += [record.getMessage() for record in caplog.records]
    said += [
        everything_said(record.exc_info[1])
        for record in caplog.records
        if record.exc_info and record.exc_info[1]
    ]
    # The SDK's logger would have shown what the authorization server answered.
    assert any(record.name.startswith("mcp.client.auth") for record in caplog.records)
    assert len(secrets) > 15 and len(said) > 40
    text = "\n".join(said)
    assert [secret for secret in secrets if secret in text] == []


async def test_the_sdks_logger_stays_as_it_is_for_others(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("mcp.client.auth.oauth2")

    async def log() -> None:
        await trio.lowlevel.checkpoint()
        try:
            raise OAuthTokenError("Token exchange failed (400): not for others")
        except OAuthTokenError:
            logger.exception("flow %s", "error")

    async with open_guarded() as guarded, trio.open_nursery() as nursery:
        provider = guarded.provider()
        asks = provider.context.redirect_handler
        assert asks is not None

        async def asks_and_starts_something(url: str) -> None:
            nursery.start_soon(log)
            nursery.start_soon(trio.to_thread.run_sync, logger.warning, "in a thread")
            await asks(url)

        provider.context.redirect_handler = asks_and_starts_something
        async with logged_in(guarded, provider):
            await log()
    records = [record for record in caplog.records if record.name == logger.name]
    assert sorted(record.getMessage() for record in records) == ["flow error", "flow error", "in a thread"]
    assert all(record.exc_info for record in records if record.getMessage() == "flow error")


# -- other flows ------------------------------------------------------------------------------


class Numbered(httpx2.Auth):
    """Numbers its requests, once it was told to by a 401 or after a question of its own."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    async def async_auth_flow(
        self, request: httpx2.Request
    ) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        response = yield request
        self.seen.append(response.status_code)
        if response.status_code == 401:
            asked = yield httpx2.Request("GET", f"{ISSUER}{METADATA}")
            request.headers["x-number"] = asked.json()["issuer"]
            response = yield request
            self.seen.append(response.status_code)


async def test_any_other_flow_of_httpx2_runs_as_it_is(autojump_clock: MockClock) -> None:
    async with open_guarded() as guarded:
        guarded.server.forget_script()
        guarded.refuse(when=lambda seen: seen.headers.get("x-number") != ISSUER)
        auth = Numbered()
        async with logged_in(guarded, auth) as client:
            assert await add(client) == "3"
        assert auth.seen[0] == 401 and auth.seen.count(200) > 1
        # One for each request, with nothing remembered in between.
        assert len(guarded.auth.asked) == auth.seen.count(401)


async def test_basic_credentials_of_httpx2_are_sent(autojump_clock: MockClock) -> None:
    async with open_server() as server:
        auth = httpx2.BasicAuth("user", "password")
        async with open_client(server.url, connect=server.connect, auth=auth) as client:
            assert await add(client) == "3"
        assert {seen.headers["authorization"] for seen in server.requests} == {"Basic dXNlcjpwYXNzd29yZA=="}


class Asking(httpx.Auth):
    """Asks another server for each request."""

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        yield httpx.Request("POST", f"{ISSUER}/token", content=b"grant_type=password")
        yield request


async def test_a_call_whose_own_flow_lost_its_connection_was_not_sent(autojump_clock: MockClock) -> None:
    async with open_guarded() as guarded:
        guarded.server.forget_script()
        async with logged_in(guarded, Asking()) as client:
            await client.list_tools()
            guarded.auth.gate = trio.Event()
            async with trio.open_nursery() as nursery:
                # By itself "sent whole, no answer", which for a call would be an unknown outcome.
                nursery.start_soon(at_once, client, 1)
                await guarded.auth.waiting.wait()
                guarded.auth.go_down()
                guarded.auth.gate = None
                await trio.sleep(5)
                guarded.auth.down = False
            assert (client.generation, guarded.server.executed["add"]) == (1, 1)


async def test_the_manuals_example_logs_in(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    example = runpy.run_path(str(Path(__file__).parent.parent / "docs" / "howto_auth_oauth.py"))
    async with open_guarded() as guarded:

        def paste(prompt: str) -> str:
            page = capsys.readouterr().out.split()[-1]
            agreed = guarded.auth.agree(page)
            return f"http://localhost:3000/callback?code={agreed.code}&state={agreed.state}"

        monkeypatch.setattr("builtins.input", paste)
        await example["main"](guarded.server.url, connect=guarded.connect)
        assert guarded.auth.grants == ["authorization_code"]
        assert capsys.readouterr().out.split() == ["add", "slow"]
