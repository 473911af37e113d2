"""Nothing that is emitted while sessions are lost and repaired holds a secret.

Emitted is: every log record of every logger, as a handler would format it, tracebacks included; every
event; every error, with its causes; and the `repr` of what people hold.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from typing import Any

import httpx
import mcp
import pytest
import trio
from trio.testing import MockClock

from tests.kit import STEADY, add, open_server
from tests.test_endings import CALL, ENDINGS
from trio_mcp_resilient import Event, Resend, open_client, resilient_transport
from trio_mcp_resilient._secrets import one_line, redact
from trio_mcp_resilient.testing import DIALECTS, ScriptedServer

LONG = 800_000
"""Characters that take minutes if the time grows as their square, and a moment if it does not."""
TOKEN = "t0ken-5ecret-of-the-application"
KEY = "k3y-5ecret-in-a-header"
QUERY = "qu3ry-5ecret"


class Bearer(httpx.Auth):
    def auth_flow(self, request: httpx.Request) -> Any:
        request.headers["authorization"] = f"Bearer {TOKEN}"
        yield request


def quoting(status: int, code: int, message: str) -> Callable[[ScriptedServer], object]:
    """A refusal in which the server repeats what it was sent."""

    def words(seen: Any) -> dict[str, Any]:
        text = message.format(seen.session_id)
        data = {"session": [seen.session_id], "header": {seen.session_id: 1}}
        return {"jsonrpc": "2.0", "id": seen.rpc_id, "error": {"code": code, "message": text, "data": data}}

    return lambda server: server.answer(status, words, when=CALL, times=2)


STORIES: dict[str, tuple[Callable[[ScriptedServer], object], Resend]] = {
    **{name: (ending.breaks, ending.resend) for name, ending in ENDINGS.items()},
    **{
        f"dialect: {name}": (
            lambda server, name=name: (server.dialect(name), server.lose_session()),  # type: ignore[misc]
            Resend.REFUSED,
        )
        for name in DIALECTS
    },
    "lost, and the id quoted": (quoting(404, -32600, "Session {} not found"), Resend.REFUSED),
    "refused, and the id quoted": (quoting(400, -32602, "bad arguments in {}"), Resend.REFUSED),
    "an error, and the id quoted": (quoting(200, -32603, "{} failed"), Resend.REFUSED),
}


class Emitted:
    """Everything that somebody could see."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.DEBUG)
        self._records = caplog.records
        self.events: list[Event] = []
        self._said: list[str] = []

    def show(self, *things: object) -> None:
        """Take down what somebody may print."""
        for thing in things:
            self._said += [repr(thing), str(thing)]
            if isinstance(thing, BaseException):
                self._said += traceback.format_exception(thing)
                self._said += [repr(getattr(thing, name, None)) for name in ("evidence", "recovery", "error")]

    def lines(self) -> list[str]:
        """Return all of it."""
        formatter = logging.Formatter("%(name)s: %(message)s")
        said = [*map(repr, self.events), *self._said, *map(formatter.format, self._records)]
        return "\n".join(said).splitlines()


def assert_no_secret(emitted: Emitted, server: ScriptedServer) -> None:
    ids = {seen.session_id for seen in server.requests if seen.session_id}
    assert ids
    for line in emitted.lines():
        # httpx itself logs the URL of each request that passes through it: SECURITY.md says so.
        secrets = {*ids, TOKEN, KEY} if line.startswith("httpx: HTTP Request") else {*ids, TOKEN, KEY, QUERY}
        assert not [secret for secret in secrets if secret in line], line


@pytest.mark.parametrize("auth", [None, Bearer()], ids=["plain", "through httpx"])
@pytest.mark.parametrize("name", STORIES)
async def test_no_story_of_a_loss_tells_a_secret(
    name: str, auth: httpx.Auth | None, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    breaks, resend = STORIES[name]
    emitted = Emitted(caplog)
    async with open_server() as server:
        async with open_client(
            f"{server.url}?key={QUERY}",
            connect=server.connect,
            auth=auth,
            headers={"x-api-key": KEY},
            backoff=STEADY,
            read_timeout=60,
            resend=resend,
            on_event=emitted.events.append,
        ) as client:
            await client.list_tools()
            breaks(server)
            for _ in range(2):
                try:
                    emitted.show(await add(client))
                except Exception as error:
                    emitted.show(error)
                emitted.show(client, client.session, client.statistics(), client.state)
        assert_no_secret(emitted, server)


async def test_the_streams_of_the_sdk_tell_no_secret(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    emitted = Emitted(caplog)
    async with open_server() as server:
        transport = resilient_transport(
            f"{server.url}?key={QUERY}",
            connect=server.connect,
            headers={"x-api-key": KEY, "authorization": f"Bearer {TOKEN}"},
            backoff=STEADY,
            on_event=emitted.events.append,
        )
        emitted.show(transport)
        async with mcp.Client(transport) as client:
            for breaks in (ScriptedServer.lose_session, quoting(400, -32602, "bad arguments in {}")):
                breaks(server)
                for _ in range(2):
                    try:
                        emitted.show(await client.call_tool("add", {"a": 1, "b": 2}))
                    except Exception as error:
                        emitted.show(error)
                await trio.sleep(1)
        assert_no_secret(emitted, server)


@pytest.mark.parametrize(
    "words", ["session:", "session=", "session   ", "not found:", "token ", "a1-", "bearer "]
)
def test_to_look_through_a_long_text_takes_no_longer_than_it_is(words: str) -> None:
    text = words * (LONG // len(words))
    assert len(redact(text)) <= len(text)
    assert len(redact(words.strip() + " " * LONG)) <= LONG + len(words)
    assert len(one_line(text)) <= 200
