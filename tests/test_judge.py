"""The application's own word on an answer: heard first, and failing closed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from trio.testing import MockClock

from tests.kit import add, open_pair
from trio_mcp_resilient import Facts, RequestRefused, Verdict
from trio_mcp_resilient._judge import Judge

LOST = Facts("POST", "tools/call", True, 404, "", b"")
ODD = Facts("POST", "tools/call", True, 418, "text/plain", b"gone fishing")


def raises(facts: Facts) -> Verdict:
    raise RuntimeError("bug")


@pytest.mark.parametrize(
    ("detect", "facts", "verdict"),
    [
        (None, LOST, Verdict.SESSION_LOST),
        (None, ODD, Verdict.REFUSED),
        (lambda facts: None, LOST, Verdict.SESSION_LOST),
        (lambda facts: Verdict.SESSION_LOST, ODD, Verdict.SESSION_LOST),
        (lambda facts: Verdict.REFUSED, LOST, Verdict.REFUSED),
        (raises, ODD, Verdict.REFUSED),
        (raises, LOST, Verdict.SESSION_LOST),
    ],
)
def test_who_decides(
    detect: Callable[[Facts], Verdict | None] | None, facts: Facts, verdict: Verdict
) -> None:
    assert Judge(detect).verdict(facts) is verdict


def test_no_session_is_lost_whose_id_was_never_sent() -> None:
    facts = Facts("POST", "tools/call", False, 418, "", b"")
    assert Judge(lambda facts: Verdict.SESSION_LOST).verdict(facts) is Verdict.REFUSED


async def test_a_dialect_of_the_applications_own(autojump_clock: MockClock) -> None:
    seen: list[Facts] = []

    def detect(facts: Facts) -> Verdict | None:
        seen.append(facts)
        return Verdict.SESSION_LOST if facts.status == 418 else None

    async with open_pair(get_stream=False, detect=detect) as (server, client):
        server.answer(418, "gone fishing", when="tools/call")
        assert await add(client) == "3"
        assert client.generation == 2
        assert (seen[0].http_method, seen[0].rpc_method, seen[0].body) == (
            "POST",
            "tools/call",
            b"gone fishing",
        )


async def test_without_it_the_same_answer_is_a_refusal(autojump_clock: MockClock) -> None:
    async with open_pair(get_stream=False) as (server, client):
        server.answer(418, "gone fishing", when="tools/call")
        with pytest.raises(RequestRefused):
            await add(client)
        assert client.generation == 1
