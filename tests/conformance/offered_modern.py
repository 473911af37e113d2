"""What the suite asks of a server without sessions (2026-07-28) beyond all others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trio_mcp_resilient.testing import InputRequired, ScriptedServer, ToolContext

MIRRORED = {
    "type": "object",
    "properties": {"region": {"type": "string", "x-mcp-header": "Region"}, "query": {"type": "string"}},
}


def offer_what_needs_no_session(server: ScriptedServer) -> None:
    """Offer the tools and the prompt that only exist for this version."""

    def trigger_tool_change() -> str:
        return f"{server.tools_list_changed()} heard it"

    def trigger_prompt_change() -> str:
        return f"{server.prompts_list_changed()} heard it"

    tools: dict[str, Callable[..., Any]] = {
        "test_trigger_tool_change": trigger_tool_change,
        "test_trigger_prompt_change": trigger_prompt_change,
        **TOOLS,
    }
    for name, tool in tools.items():
        server.tool(name, tool, description="One of the suite's.")
    server.tool(
        "test_mirrored", mirrored, inputSchema=MIRRORED, description="Repeats an argument in a header."
    )
    server.prompt("test_input_required_result_prompt", "", description="A prompt that asks.")
    get_prompt = server.methods["prompts/get"]

    async def get_prompt_that_asks(ctx: ToolContext) -> Any:
        if ctx.params.get("name") != "test_input_required_result_prompt":
            return get_prompt(ctx)
        given = await elicit(ctx, "user_context", "context")
        text = {"type": "text", "text": f"in the context of {given}"}
        return {"messages": [{"role": "user", "content": text}]}

    server.methods["prompts/get"] = get_prompt_that_asks


async def elicit(ctx: ToolContext, key: str, field: str) -> Any:
    """Ask for one field of text, and return it."""
    schema = {"type": "object", "properties": {field: {"type": "string"}}, "required": [field]}
    params = {"message": f"What is your {field}?", "requestedSchema": schema}
    answer = await ctx.request("elicitation/create", params, key=key)
    return answer.get("content", {}).get(field)


def asked_to_sample(text: str) -> dict[str, Any]:
    message = {"role": "user", "content": {"type": "text", "text": text}}
    return {"messages": [message], "maxTokens": 50}


async def missing_capability(ctx: ToolContext) -> str:
    await ctx.request("sampling/createMessage", asked_to_sample("anything"))
    return "sampled"


async def streaming_elicitation(ctx: ToolContext) -> str:
    ctx.progress(1)
    return f"elicited {await elicit(ctx, 'name', 'name')}"


def logging_tool(ctx: ToolContext) -> str:
    ctx.log("unasked")
    return "logged, if it was asked for"


def mirrored(region: str = "", query: str = "") -> str:
    return f"{query} in {region}"


async def elicitation(ctx: ToolContext) -> str:
    return f"Hello, {await elicit(ctx, 'user_name', 'name')}!"


async def sampling(ctx: ToolContext) -> str:
    asked = asked_to_sample("What is the capital of France?")
    answer = await ctx.request("sampling/createMessage", asked, key="capital_question")
    return str(answer["content"]["text"])


async def list_roots(ctx: ToolContext) -> str:
    answer = await ctx.request("roots/list", key="client_roots")
    return f"{len(answer['roots'])} roots"


async def confirm(ctx: ToolContext) -> str:
    return f"state-ok {await elicit(ctx, 'confirm', 'ok')}"


async def multi_round(ctx: ToolContext) -> str:
    name = await elicit(ctx, "step1", "name")
    return f"{name} likes {await elicit(ctx, 'step2', 'color')}"


def multiple_inputs(ctx: ToolContext) -> str:
    schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    asked = {
        "user_name": ("elicitation/create", {"message": "What is your name?", "requestedSchema": schema}),
        "greeting": ("sampling/createMessage", asked_to_sample("Generate a greeting")),
        "client_roots": ("roots/list", {}),
    }
    if set(asked) <= set(ctx.responses):
        return "all is answered"
    requests = {key: {"method": method, "params": params} for key, (method, params) in asked.items()}
    raise InputRequired(requests, "state of three")


def capabilities(ctx: ToolContext) -> str:
    if ctx.responses:
        return "answered"
    if "sampling" not in ctx.session.client_capabilities:
        return "nothing can be asked"
    asked = {"method": "sampling/createMessage", "params": asked_to_sample("anything")}
    raise InputRequired({"sampled": asked})


TOOLS: dict[str, Callable[..., Any]] = {
    "test_missing_capability": missing_capability,
    "test_streaming_elicitation": streaming_elicitation,
    "test_logging_tool": logging_tool,
    "test_input_required_result_elicitation": elicitation,
    "test_input_required_result_sampling": sampling,
    "test_input_required_result_list_roots": list_roots,
    "test_input_required_result_request_state": confirm,
    "test_input_required_result_tampered_state": confirm,
    "test_input_required_result_multiple_inputs": multiple_inputs,
    "test_input_required_result_multi_round": multi_round,
    "test_input_required_result_capabilities": capabilities,
}
