"""Calls in several rounds: the server asks for something, and the call is made again with the answer.

In the modern era a server has no way to ask a client but in the result of a call (specification,
multi-round requests). Each round is a call of its own, sent at most twice like any other.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio
from mcp.client import ClientRequestContext, ClientSession, InputRequiredRoundsExceededError
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, ErrorData, InputRequest, InputRequiredResult, InputResponses

from trio_mcp_resilient._nursery import open_hidden_nursery

MAX_QUESTIONS = 100
"""How many things a server may ask for in one round; each runs a callback of the application's."""
PAUSE = 0.05
MAX_PAUSE = 0.25
"""Seconds between rounds in which the server asks nothing but patience: the SDK's own waits."""

Final = TypeVar("Final")
Round = Callable[[InputResponses | None, str | None], Awaitable[Final | InputRequiredResult]]
"""Makes the call with the answers so far, and the server's own state as it came."""


async def in_rounds(session: ClientSession, make: Round[Final], max_rounds: int) -> Final:
    """Make a call, and again with what the server asks for, until it has its result.

    Raises:
        mcp.client.InputRequiredRoundsExceededError: the server asks more than `max_rounds` times.
        mcp.MCPError: a callback of the application's refused, or has no answer.
    """
    result = await make(None, None)
    rounds, pause = 0, PAUSE
    while isinstance(result, InputRequiredResult):
        rounds += 1
        if rounds > max_rounds:
            raise InputRequiredRoundsExceededError(max_rounds)
        if result.input_requests:
            pause = PAUSE
            answers: InputResponses | None = await _answers(session, result.input_requests)
        else:
            await trio.sleep(pause)
            pause = min(pause * 2, MAX_PAUSE)
            answers = None
        result = await make(answers, result.request_state)
    return result


async def _answers(session: ClientSession, requests: dict[str, InputRequest]) -> InputResponses:
    """Ask the application's callbacks, all at once; the first refusal ends the others."""
    if len(requests) > MAX_QUESTIONS:
        raise MCPError(INTERNAL_ERROR, f"the server asked for more than {MAX_QUESTIONS} things at once")
    answers: InputResponses = {}
    refusals: list[ErrorData] = []
    done = trio.Event()

    async def ask(key: str, request: InputRequest) -> None:
        params = request.params
        context = ClientRequestContext(session=session, request_id=key, meta=params.meta if params else None)
        answer = await session.dispatch_input_request(context, request)
        if isinstance(answer, ErrorData):
            refusals.append(answer)
        else:
            answers[key] = answer
        if refusals or len(answers) == len(requests):
            done.set()

    async with open_hidden_nursery() as nursery:
        for key, request in requests.items():
            nursery.start_soon(ask, key, request)
        await done.wait()
    if refusals:
        raise MCPError.from_error_data(refusals[0])
    return answers
