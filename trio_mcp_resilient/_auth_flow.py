"""One run of an OAuth flow of the SDK's, which is written for httpx2, over our own connections."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field, replace

import httpx2
import trio

from trio_mcp_resilient._auth_words import said_of, unquoted, without_secrets
from trio_mcp_resilient._endpoint import DEFAULT_PORTS, Endpoint
from trio_mcp_resilient._patience import Patience
from trio_mcp_resilient._wire import HookFailed, Outgoing, RawHeaders, Response, Stage, WireError

CHALLENGE_BYTES = 64 * 1024
CHALLENGE_SECONDS = 5.0
"""How much of a challenge's body is read, and for how long: what matters of one is in its head."""
ANSWER_BYTES = 1024 * 1024
ANSWER_SECONDS = 30.0
"""What an answer to a flow's own request may be: whoever the endpoint names as its authorization
server gets to answer, and callers wait behind it."""

Send = Callable[[Outgoing], Awaitable[Response]]
"""Sends one request, following redirects within its origin."""
Badge = RawHeaders
"""The header fields that a flow has put on a request, names in lower case."""


def with_badge(request: Outgoing, badge: Badge) -> Outgoing:
    """Return a request with the fields of its credentials in the place of those it had."""
    names = {name for name, _ in badge}
    return replace(request, headers=(*(field for field in request.headers if field[0] not in names), *badge))


class Run:
    """One run of a flow: sends what it asks for, and stops where it wants the given request sent."""

    def __init__(self, auth: httpx2.Auth, outgoing: Outgoing, fetch: Send, patience: Patience) -> None:
        url = outgoing.endpoint.url
        self._request = httpx2.Request(
            outgoing.method, url, headers=list(outgoing.headers), content=outgoing.body
        )
        self._before = frozenset(_fields(self._request))
        self._fetch = fetch
        self._patience = patience
        self._flow: AsyncGenerator[httpx2.Request, httpx2.Response] = auth.async_auth_flow(self._request)
        self.badge: Badge = ()
        """What the flow has put on the given request so far."""

    async def advance(self, answer: Answer | None = None) -> bool:
        """Run on to where the given request is to be sent; return False if it ends before.

        Args:
            answer: what the given request was answered with, when it was sent.
        """
        try:
            with unquoted():
                if answer is None:
                    wanted = await anext(self._flow)
                else:
                    wanted = await self._ask(answer.told(self._request))
                while not self._is_given(wanted):
                    told = await self._obtain(wanted)
                    wanted = await (self._flow.asend(told) if answer is None else self._ask(told))
        except StopAsyncIteration:
            return False
        except WireError:
            raise
        except Exception as error:
            failure = error
        else:
            self.badge = tuple(field for field in _fields(wanted) if field not in self._before)
            return True
        # Outside of the handler, so that what may quote a token is nobody's context.
        raise HookFailed(without_secrets(failure), f"authorization failed: {said_of(failure)}")

    async def aclose(self) -> None:
        """End the flow, and so give back the lock it may hold. Works in a cancelled scope."""
        with unquoted():
            await self._flow.aclose()

    async def _ask(self, told: httpx2.Response) -> httpx2.Request:
        """Let the flow go on after a challenge, when it may have to ask somebody to log in."""
        with self._patience.asking():
            return await self._flow.asend(told)

    def _is_given(self, wanted: httpx2.Request) -> bool:
        # A flow may hand on a copy. What goes where the given request goes counts as it: to take
        # it for the flow's own would be to say that it certainly did not run.
        given = self._request
        return wanted is given or (wanted.method, wanted.url) == (given.method, given.url)

    async def _obtain(self, wanted: httpx2.Request) -> httpx2.Response:
        """Send a request of the flow's own: with what the flow put on it, and nothing else."""
        endpoint = _endpoint(wanted)
        headers = [(b"accept-encoding", b"identity"), *_fields(wanted)]
        request = Outgoing(endpoint, wanted.method, headers, await wanted.aread(), ANSWER_SECONDS, bare=True)
        try:
            with trio.fail_after(ANSWER_SECONDS):
                response = await self._fetch(request)
                try:
                    answer = await _read_whole(response)
                finally:
                    await response.aclose()
        except HookFailed:
            raise
        except (WireError, trio.TooSlowError) as error:
            said = f"no answer within {ANSWER_SECONDS:g} s" if isinstance(error, trio.TooSlowError) else error
            # The request that waits for the credentials was not sent, or was refused for want of them.
            raise WireError(Stage.NOT_CONNECTED, f"no credentials: {endpoint}: {said}") from error
        return answer.told(wanted)


def _fields(request: httpx2.Request) -> RawHeaders:
    return [(name.lower(), value) for name, value in request.headers.raw]


def _endpoint(request: httpx2.Request) -> Endpoint:
    url = request.url
    if url.scheme not in DEFAULT_PORTS:
        raise WireError(Stage.NOT_CONNECTED, "no credentials: their URL is neither http:// nor https://")
    return Endpoint(
        url.scheme,
        url.raw_host.decode("ascii"),
        url.port or DEFAULT_PORTS[url.scheme],
        url.raw_path.decode("ascii"),
    )


@dataclass
class Answer:
    """An answer that was read, to be shown to a flow, and to be read again by whoever sent the request."""

    status: int
    headers: RawHeaders = field(repr=False)
    body: bytes = field(repr=False)

    def told(self, request: httpx2.Request) -> httpx2.Response:
        """Return it in httpx2's words."""
        # The body is as it will be read: its length and encoding on the wire say nothing of it.
        dropped = (b"content-encoding", b"content-length", b"transfer-encoding")
        headers = [field for field in self.headers if field[0] not in dropped]
        return httpx2.Response(self.status, headers=headers, content=self.body, request=request)

    async def receive(self) -> bytes:
        """Return the body, then nothing."""
        await trio.lowlevel.checkpoint()
        body, self.body = self.body, b""
        return body

    async def aclose(self) -> None:
        """Do nothing: the connection was given back when the answer had been read."""
        await trio.lowlevel.cancel_shielded_checkpoint()


async def read_challenge(response: Response) -> Answer:
    """Read a refusal, as much as comes in bounded bytes and time, and give its connection back."""
    body = b""
    try:
        with trio.move_on_after(CHALLENGE_SECONDS):  # noqa: ASYNC912  # the first receive is its cancel point
            while len(body) < CHALLENGE_BYTES and (chunk := await response.receive()):
                body += chunk
    except WireError:
        pass
    finally:
        await response.aclose()
    return Answer(response.status, response.headers, body[:CHALLENGE_BYTES])


async def _read_whole(response: Response) -> Answer:
    body = b""
    while chunk := await response.receive():
        body += chunk
        if len(body) > ANSWER_BYTES:
            raise WireError(Stage.ANSWERING, f"the answer is larger than {ANSWER_BYTES} bytes")
    return Answer(response.status, response.headers, body)
