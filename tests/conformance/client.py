"""The client that the public conformance suite tests: ours, doing what each scenario asks for.

The suite starts it with the URL of its own server as the last argument, and three variables:
`MCP_CONFORMANCE_SCENARIO`, `MCP_CONFORMANCE_CONTEXT` (JSON, for scenarios that bring data) and
`MCP_CONFORMANCE_PROTOCOL_VERSION`. It counts as failed if it exits with another status than 0,
whatever the server has seen.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from typing import Any

import mcp_types as types
import trio
from mcp import MCPError
from oauth import auth_for

from trio_mcp_resilient import Client, open_client

logger = logging.getLogger("conformance_client")

STAND_INS: dict[str, Any] = {
    "string": "x",
    "integer": 1,
    "number": 1,
    "boolean": False,
    "object": {},
    "array": [],
}


async def accept_defaults(context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
    """Accept, with the default of every field that has one, as a form left untouched has."""
    schema: dict[str, Any] = getattr(params, "requested_schema", {})
    fields: dict[str, dict[str, Any]] = schema.get("properties", {})
    content = {name: field["default"] for name, field in fields.items() if "default" in field}
    return types.ElicitResult(action="accept", content=content)


async def sample(context: Any, params: types.CreateMessageRequestParams) -> types.CreateMessageResult:
    """Stand in for a model."""
    text = types.TextContent(type="text", text="x")
    return types.CreateMessageResult(role="assistant", content=text, model="none")


async def list_roots(context: Any) -> types.ListRootsResult:
    """Have no roots."""
    return types.ListRootsResult(roots=[])


async def use(client: Client, scenario: str, context: dict[str, Any]) -> None:
    """List the tools, and call what the scenario wants called."""
    tools = (await client.list_tools()).tools
    match scenario:
        case "initialize" | "json-schema-ref-no-deref":
            return
        case "json-schema-2020-12-preservation":
            (schema,) = [tool.input_schema for tool in tools if tool.name == "json_schema_2020_12_tool"]
            await client.call_tool("json_schema_echo", {"schema": schema})
        case "sep-2322-client-request-state":
            for name in ("echo_state", "unrelated", "no_state", "no_result_type"):
                await client.call_tool(f"test_mrtr_{name}", {})
        case "http-custom-headers":
            known = {tool.name for tool in tools}
            for call in context.get("toolCalls", []):
                if call["name"] in known:
                    await try_tool(client, call["name"], call.get("arguments") or {})
        case "http-invalid-tool-headers":
            for tool in tools:
                await try_tool(client, tool.name, arguments_for(tool))
        case "http-standard-headers":
            await use_everything(client, tools)
        case _ if scenario.startswith("auth/"):
            for tool in tools[:1]:
                await try_tool(client, tool.name, {})
        case _:
            for tool in tools:
                await client.call_tool(tool.name, arguments_for(tool))


async def use_everything(client: Client, tools: list[types.Tool]) -> None:
    """Make every kind of request whose target is named in a header."""
    for tool in tools:
        await try_tool(client, tool.name, arguments_for(tool))
    for resource in (await client.list_resources()).resources:
        await client.read_resource(str(resource.uri))
    for prompt in (await client.list_prompts()).prompts:
        await client.get_prompt(prompt.name, {})


async def try_tool(client: Client, name: str, arguments: dict[str, Any]) -> None:
    """Call a tool whose failure is none of the scenario's business."""
    try:
        await client.call_tool(name, arguments)
    except MCPError as error:
        logger.info("%s: %s", name, error)


def arguments_for(tool: types.Tool) -> dict[str, Any]:
    """Return the least that a tool's schema asks for."""
    fields: dict[str, dict[str, Any]] = tool.input_schema.get("properties", {})
    required: list[str] = tool.input_schema.get("required", [])
    return {name: STAND_INS.get(fields.get(name, {}).get("type", ""), "x") for name in required}


async def main(url: str) -> None:
    scenario = os.environ["MCP_CONFORMANCE_SCENARIO"]
    context: dict[str, Any] = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
    options: dict[str, Any] = {"elicitation_callback": accept_defaults}
    if scenario == "request-metadata":
        options |= {"sampling_callback": sample, "list_roots_callback": list_roots}
    if scenario.startswith("auth/"):
        options["auth"] = await auth_for(scenario, context, url)
    async with open_client(url, **options) as client:
        await use(client, scenario, context)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    trio.run(main, sys.argv[-1])
