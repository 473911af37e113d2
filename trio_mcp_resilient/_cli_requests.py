"""The commands that ask a server something once: what is sent, and what is told of the answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import mcp_types as types
import trio
from mcp.shared.dispatcher import ProgressFnT
from mcp.shared.exceptions import MCPError
from pydantic import BaseModel

from trio_mcp_resilient._cli_options import Target
from trio_mcp_resilient._cli_output import BadAnswer, Data, NoAnswer
from trio_mcp_resilient._client import Client
from trio_mcp_resilient._sending import MAX_PAGES

Use = Callable[[Client], Awaitable[Data]]


class Page(Protocol):
    """One page of some listing."""

    def __call__(self, *, params: types.PaginatedRequestParams | None) -> Awaitable[types.PaginatedResult]:
        """Ask for the page that `params` names; None for the first."""
        ...


async def tools(target: Target) -> Data:
    """List all tools."""

    async def ask(client: Client) -> Data:
        return {"ok": True, "tools": await _all(client.list_tools, "tools")}

    return await _once(target, ask)


async def resources(target: Target) -> Data:
    """List all resources and their templates."""

    async def ask(client: Client) -> Data:
        listed = await _all(client.list_resources, "resources")
        try:
            templates = await _all(client.list_resource_templates, "resourceTemplates")
        except MCPError as error:
            # Many servers have resources and have never heard of templates.
            if error.code != types.METHOD_NOT_FOUND:
                raise
            templates = []
        return {"ok": True, "resources": listed, "resourceTemplates": templates}

    return await _once(target, ask)


async def prompts(target: Target) -> Data:
    """List all prompts."""

    async def ask(client: Client) -> Data:
        return {"ok": True, "prompts": await _all(client.list_prompts, "prompts")}

    return await _once(target, ask)


async def get_prompt(target: Target, name: str, arguments: dict[str, str]) -> Data:
    """Get one prompt."""

    async def ask(client: Client) -> Data:
        return {"ok": True, "result": _dumped(await client.get_prompt(name, arguments))}

    return await _once(target, ask)


async def read(target: Target, uri: str) -> Data:
    """Read one resource."""

    async def ask(client: Client) -> Data:
        return {"ok": True, "result": _dumped(await client.read_resource(uri))}

    return await _once(target, ask)


async def call(
    target: Target, tool: str, arguments: dict[str, Any], *, resend: str, progress: ProgressFnT | None
) -> Data:
    """Call one tool.

    Raises:
        NoAnswer: the time is over. The call may have run.
    """

    async def ask(client: Client) -> Data:
        result = await client.call_tool(tool, arguments, progress_callback=progress)
        return {
            "ok": not result.is_error,
            "result": _dumped(result),
            "generation": client.generation,
            "sent_again": client.statistics().resends,
        }

    # With its stream, by which servers that answer in plain JSON tell of progress.
    return await _once(target, ask, get_stream=True, resend=resend, executed=None)


async def _once(
    target: Target,
    use: Use,
    *,
    get_stream: bool = False,
    resend: str = "refused",
    executed: bool | None = False,
) -> Data:
    """Open a client, use it, and close it, all within the target's timeout.

    Raises:
        NoAnswer: it was used up after the session stood. Before that, it is `GaveUp`, which says why.
    """
    deadline = trio.current_time() + target.timeout
    async with target.client(get_stream=get_stream, resend=resend) as client:
        with trio.move_on_at(deadline):
            try:
                return await use(client)
            except RuntimeError as error:
                # How the SDK refuses a result against the tool's own schema, and questions without end.
                raise BadAnswer(str(error)) from error
        how = "it may have run" if executed is None else "nothing was executed"
        raise NoAnswer(f"no answer within {target.timeout:g} s; {how}", executed=executed)


async def _all(page: Page, name: str) -> list[Data]:
    """Return the entries of all pages."""
    entries: list[Data] = []
    params: types.PaginatedRequestParams | None = None
    for _ in range(MAX_PAGES):
        result = await page(params=params)
        entries += _dumped(result)[name]
        if result.next_cursor is None:
            return entries
        params = types.PaginatedRequestParams(cursor=result.next_cursor)
    raise BadAnswer(f"the listing has no end: {MAX_PAGES} pages and more")


def _dumped(result: BaseModel) -> Data:
    """Return a result in the words of the protocol."""
    return result.model_dump(mode="json", by_alias=True, exclude_none=True)
