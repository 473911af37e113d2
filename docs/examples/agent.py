"""An agent: a model chooses tools, their results go back to it, until it has an answer.

    python agent.py http://127.0.0.1:8000/mcp "What are 19 and 23?"

An agent thinks for minutes between two calls, and waits for its user for hours. Servers forget
sessions in less. Nothing here knows about that.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any, Protocol, Unpack

import mcp
import mcp_types
import trio

from trio_mcp_resilient import Client, ClientOptions, OutcomeUnknown, ResilientError, open_client

SECONDS_PER_CALL = 120.0


@dataclass(frozen=True)
class Wish:
    """A tool call that the model asks for."""

    tool: str
    arguments: dict[str, Any] = field(default_factory=dict)


class Model(Protocol):
    """Whatever stands for a language model: it answers, or it asks for tools."""

    async def __call__(self, history: list[str], tools: list[mcp_types.Tool]) -> str | list[Wish]: ...


async def run_agent(url: str, model: Model, task: str, **options: Unpack[ClientOptions]) -> str:
    """Let a model work on a task with one server's tools; return its answer."""
    history = [task]
    async with open_client(url, **options) as client:
        while True:
            # Asked in each round, since a deploy may have changed them.
            tools = (await client.list_tools()).tools
            decision = await model(history, tools)
            if isinstance(decision, str):
                return decision
            # The model asked for them together, so none of them depends on another.
            results = [""] * len(decision)
            async with trio.open_nursery() as nursery:
                for number, wish in enumerate(decision):
                    nursery.start_soon(_carry_out, client, wish, results, number)
            history += results


async def _carry_out(client: Client, wish: Wish, results: list[str], number: int) -> None:
    results[number] = f"{wish.tool}: {await _call(client, wish)}"


async def _call(client: Client, wish: Wish) -> str:
    """Call a tool, and put into words for the model whatever came of it."""
    try:
        # The one timeout, around everything: the wait for a session, both sendings, the answer.
        with trio.fail_after(SECONDS_PER_CALL):
            result = await client.call_tool(wish.tool, wish.arguments)
    except OutcomeUnknown:
        # The one error that the model has to understand. "It failed, try again" would be a lie.
        return "the connection broke, and this may have been done; find out before you repeat it"
    except (ResilientError, mcp.MCPError) as error:
        return f"this was not done: {error}"
    except trio.TooSlowError:
        return f"there was no answer for {SECONDS_PER_CALL:g} s; this may have been done"
    return " ".join(block.text for block in result.content if isinstance(block, mcp_types.TextContent))


async def adder(history: list[str], tools: list[mcp_types.Tool]) -> str | list[Wish]:
    """Stand in for a model: it finds two numbers in its task and has them added."""
    task, *results = history
    if results:
        return f"The answer is {results[-1].removeprefix('add: ')}."
    a, b = (int(word) for word in task.replace("?", "").split() if word.isdigit())
    return [Wish("add", {"a": a, "b": b})]


if __name__ == "__main__":
    print(trio.run(run_agent, sys.argv[1], adder, sys.argv[2]))
