"""What the scripted server offers to the suite: tools, resources and prompts of the names it asks for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import trio
from offered_modern import offer_what_needs_no_session

from trio_mcp_resilient.testing import ScriptedServer, ToolContext

SCENARIOS = {
    "2025-11-25": (
        "server-initialize",
        "server-session-lifecycle",
        "server-sse-multiple-streams",
        "server-sse-polling",
        "dns-rebinding-protection",
        "ping",
        "logging-set-level",
        "completion-complete",
        "tools-list",
        "tools-call-simple-text",
        "tools-call-error",
        "tools-call-with-logging",
        "tools-call-with-progress",
        "tools-call-sampling",
        "tools-call-elicitation",
        "resources-list",
        "resources-read-text",
        "resources-subscribe",
        "resources-unsubscribe",
        "prompts-list",
        "prompts-get-simple",
        "prompts-get-with-args",
    ),
    "2026-07-28": (
        "server-stateless",
        "http-header-validation",
        "http-custom-header-server-validation",
        "caching",
        "sep-2164-resource-not-found",
        "dns-rebinding-protection",
        "server-sse-multiple-streams",
        "completion-complete",
        "tools-list",
        "tools-call-simple-text",
        "tools-call-error",
        "tools-call-with-progress",
        "resources-list",
        "resources-read-text",
        "prompts-list",
        "prompts-get-simple",
        "prompts-get-with-args",
        "input-required-result-basic-elicitation",
        "input-required-result-basic-sampling",
        "input-required-result-basic-list-roots",
        "input-required-result-request-state",
        "input-required-result-multiple-input-requests",
        "input-required-result-multi-round",
        "input-required-result-missing-input-response",
        "input-required-result-non-tool-request",
        "input-required-result-result-type",
        "input-required-result-unsupported-methods",
        "input-required-result-tampered-state",
        "input-required-result-capability-check",
        "input-required-result-ignore-extra-params",
        "input-required-result-validate-input",
    ),
}
"""All that is about how a server behaves, by version. What is left out asks for content of every type,
which would test the lines that write it down here and nothing of the server."""

PAUSE = 0.05
"""Seconds between two messages, as the suite's description of its tools asks for."""


def offer_everything(server: ScriptedServer) -> None:
    """Offer what `SCENARIOS` need, resumable and closed to other hosts, as a server on loopback should be."""
    server.allowed_hosts = ("localhost", "127.0.0.1")
    server.resumable = True
    server.retry = 100
    for tool in TOOLS:
        server.tool(f"test_{tool.__name__}", tool, description="One of the suite's.")
    server.resource("test://static-text", "static", description="A text.")
    server.resource("test://watched-resource", "watched", description="A text to subscribe to.")
    server.prompt("test_simple_prompt", "simple", description="A prompt.")
    server.prompt("test_prompt_with_arguments", "'{arg1}' and '{arg2}'", description="A prompt of two.")
    offer_what_needs_no_session(server)


def simple_text() -> str:
    return "simple"


def error_handling() -> str:
    raise ValueError("this tool has nothing but errors")


async def tool_with_logging(ctx: ToolContext) -> str:
    for message in ("started", "processing", "completed"):
        ctx.log(message)
        await trio.sleep(PAUSE)
    return "logged"


async def tool_with_progress(ctx: ToolContext) -> str:
    for progress in (0, 50, 100):
        ctx.progress(progress, 100)
        await trio.sleep(PAUSE)
    return "progressed"


async def sampling(prompt: str, ctx: ToolContext) -> str:
    message = {"role": "user", "content": {"type": "text", "text": prompt}}
    answer: dict[str, Any] = await ctx.request(
        "sampling/createMessage", {"messages": [message], "maxTokens": 100}
    )
    return f"LLM response: {answer['content']['text']}"


async def elicitation(message: str, ctx: ToolContext) -> str:
    fields = {name: {"type": "string"} for name in ("username", "email")}
    schema = {"type": "object", "properties": fields, "required": list(fields)}
    answer: dict[str, Any] = await ctx.request(
        "elicitation/create", {"message": message, "requestedSchema": schema}
    )
    return f"User response: {answer['action']} {answer.get('content')}"


async def reconnection(ctx: ToolContext) -> str:
    ctx.close_stream()
    await trio.sleep(PAUSE)
    return "reconnected"


TOOLS: tuple[Callable[..., Any], ...] = (
    simple_text,
    error_handling,
    tool_with_logging,
    tool_with_progress,
    sampling,
    elicitation,
    reconnection,
)
