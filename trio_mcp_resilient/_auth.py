"""Credentials from the SDK's OAuth providers, for many calls at once.

A provider is an `httpx2.Auth`, that is a *flow*: it is given a request, asks for requests of its
own (metadata, registration, token), and then for the given one. httpx2 keeps the flow open while
the given request is under way, and the SDK's flows hold their provider's lock until its answer
begins. With that a client makes one call at a time, and a call during which the server asks the
client something waits for ever. So here a flow runs up to the point where it wants the request
sent, and is closed. Only an answer that challenges the credentials starts another run, which is
told of the answer.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import Protocol

import httpx2

from trio_mcp_resilient._auth_flow import Answer, Badge, Run, Send, read_challenge, with_badge
from trio_mcp_resilient._auth_words import watch_the_sdk
from trio_mcp_resilient._detector import Verdict, classify
from trio_mcp_resilient._patience import Patience
from trio_mcp_resilient._wire import Outgoing, Response

ROUNDS = 3
"""How often one request may be challenged: once with credentials that others have renewed
meanwhile, once with refreshed ones, and once after asking for new ones."""
LONG_AGO = 1.0
"""A moment of the wall clock, which the SDK's providers reckon expiry in; 0 would mean never."""


class Credentials(Protocol):
    """What gets a request past the endpoint's guard. One for all generations of a client."""

    async def send(self, outgoing: Outgoing, send: Send, fetch: Send) -> Response:
        """Send a request with credentials and return the answer, once its head is here.

        Args:
            send: sends to the endpoint.
            fetch: sends what the credentials themselves need, to other origins as well.

        Raises:
            WireError: at `NOT_CONNECTED` also where an exchange of the flow's own failed.
            HookFailed: the flow, or the application's part in it, raised.

        Cancellation: abandons whatever is under way. What was being obtained is obtained by
        the next request that needs it.
        """
        ...


def credentials(auth: object, patience: Patience) -> Credentials:
    """Return what drives an `httpx2.Auth`.

    Args:
        patience: what has to wait while somebody logs in.

    Raises:
        TypeError: if it is anything else.
    """
    if not isinstance(auth, httpx2.Auth):
        kind = type(auth).__name__
        raise TypeError(f"auth is an httpx.Auth or a provider of the SDK's (an httpx2.Auth), not a {kind}")
    # Unlike httpx2 itself, importing the rest of the SDK has not imported these.
    from mcp.client.auth import OAuthClientProvider
    from mcp.client.auth.extensions.identity_assertion import IdentityAssertionOAuthProvider

    watch_the_sdk()
    if isinstance(auth, OAuthClientProvider | IdentityAssertionOAuthProvider):
        return SharedCredentials(auth, patience)
    return PrivateCredentials(auth, patience)


class PrivateCredentials:
    """An `httpx2.Auth` that we know nothing of, driven as httpx2 would: one flow for each request."""

    def __init__(self, auth: httpx2.Auth, patience: Patience) -> None:
        self._auth = auth
        self._patience = patience

    async def send(self, outgoing: Outgoing, send: Send, fetch: Send) -> Response:
        """Send a request with credentials, see `Credentials`."""
        async with aclosing(Run(self._auth, outgoing, fetch, self._patience)) as run:
            await run.advance()
            while True:
                response = await send(with_badge(outgoing, run.badge))
                if response.status >= 400:
                    response = shown = await read_challenge(response)
                else:
                    # It may be a long stream, and is the caller's to read.
                    shown = Answer(response.status, response.headers, b"")
                try:
                    more = await run.advance(shown)
                except BaseException:
                    await response.aclose()
                    raise
                if not more:
                    return response
                await response.aclose()


class SharedCredentials:
    """A provider of the SDK's: one token for all requests, renewed once for all that need it."""

    def __init__(self, auth: httpx2.Auth, patience: Patience) -> None:
        self._auth = auth
        self._patience = patience
        self._bearer = False
        """Whether the badge is nothing but the provider's current token."""

    async def send(self, outgoing: Outgoing, send: Send, fetch: Send) -> Response:
        """Send a request with credentials, see `Credentials`."""
        badge = self._at_hand() or await self._obtain(outgoing, fetch)
        asked = False
        for number in range(ROUNDS):
            response = await send(with_badge(outgoing, badge))
            # Nobody is asked to log in for the sake of a farewell.
            if asked or outgoing.method == "DELETE" or not is_challenge(response):
                return response
            challenge = await read_challenge(response)
            if speaks_of_the_session(outgoing, challenge):
                return challenge
            if number == 0 and challenge.status == 401:
                self._expire(badge)
            renewed, asked = await self._renew(outgoing, badge, challenge, fetch)
            if renewed is None:
                return challenge
            badge = renewed
        return await send(with_badge(outgoing, badge))

    def _at_hand(self) -> Badge | None:
        """Return the badge if it needs no flow.

        It saves time, and it does not wait for the provider's lock: while somebody is asked to
        agree to more, what was agreed to already goes on.
        """
        context = getattr(self._auth, "context", None)
        if self._bearer and context is not None and context.is_token_valid():
            return _bearer(context.current_tokens.access_token)
        return None

    async def _obtain(self, outgoing: Outgoing, fetch: Send) -> Badge:
        async with aclosing(Run(self._auth, outgoing, fetch, self._patience)) as run:
            await run.advance()
            self._note(run.badge)
            return run.badge

    async def _renew(
        self, outgoing: Outgoing, refused: Badge, challenge: Answer, fetch: Send
    ) -> tuple[Badge | None, bool]:
        """Return a badge to try instead of a refused one, and whether it was asked for with this challenge.

        The provider's lock lets one run in at a time, and a run that finds another badge than the
        refused one has waited for somebody else who renewed it.
        """
        async with aclosing(Run(self._auth, outgoing, fetch, self._patience)) as run:
            await run.advance()
            self._note(run.badge)
            if run.badge and run.badge != refused:
                return run.badge, False
            if not await run.advance(challenge):
                return None, True
            self._note(run.badge)
            return run.badge, True

    def _note(self, badge: Badge) -> None:
        tokens = getattr(getattr(self._auth, "context", None), "current_tokens", None)
        self._bearer = tokens is not None and badge == _bearer(tokens.access_token)

    def _expire(self, refused: Badge) -> None:
        """Let the provider try its refresh token first: it would ask the user to log in again.

        Only where it knows the authorization server. Without its metadata the provider would
        send the refresh token to the endpoint's own origin.
        """
        context = getattr(self._auth, "context", None)
        if context is None or context.oauth_metadata is None or not context.can_refresh_token():
            return
        if refused == _bearer(context.current_tokens.access_token):
            context.token_expiry_time = LONG_AGO


def _bearer(token: str) -> Badge:
    return ((b"authorization", b"Bearer " + token.encode("utf-8")),)


def is_challenge(response: Response) -> bool:
    """Whether an answer may be mended by other credentials: 401, or 403 for want of a scope."""
    return response.status == 401 or (
        response.status == 403 and b"insufficient_scope" in _header(response, b"www-authenticate")
    )


def speaks_of_the_session(outgoing: Outgoing, challenge: Answer) -> bool:
    """Whether a 401 without a challenge is how an old server refuses a session id it has forgotten."""
    if challenge.status != 401 or _header(challenge, b"www-authenticate"):
        return False
    verdict = classify(
        http_method=outgoing.method,
        rpc_method=None,
        session_id_sent=any(name == b"mcp-session-id" for name, _ in outgoing.headers),
        status=challenge.status,
        content_type=_header(challenge, b"content-type").decode("latin-1"),
        body=challenge.body,
    )
    return verdict is Verdict.SESSION_LOST


def _header(response: Response, name: bytes) -> bytes:
    return b", ".join(value for field, value in response.headers if field == name)
