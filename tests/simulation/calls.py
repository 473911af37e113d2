"""How each planned call is made, and what its answer has to be."""

from __future__ import annotations

from typing import Any

import mcp_types as types

from tests.simulation.ledger import MARK
from tests.simulation.plan import Call
from trio_mcp_resilient import Client, ResilientError

RPC_ERROR = -32050
"""The code by which a tool answers that is planned to."""
URI = "memo://one"
LEVEL = "warning"


async def make(client: Client, call: Call, progress: list[str]) -> Any:
    """Make one call and return its result."""
    meta: Any = {MARK: call.number}
    if not call.is_tool:
        return await _harmless(client, call, meta)

    async def report(value: float, total: float | None, message: str | None) -> None:
        progress.append(f"{message}")

    return await client.call_tool(
        call.what,
        {"number": call.number, "seconds": call.seconds, "steps": call.steps, "ends": call.ends},
        call.timeout,
        report if call.steps else None,
        meta=meta,
        resend=call.resend,
    )


async def _harmless(client: Client, call: Call, meta: Any) -> Any:
    if call.what.startswith("list_"):
        return await getattr(client, call.what)(params=types.PaginatedRequestParams(_meta=meta))
    if call.what == "read_resource":
        return await client.read_resource(URI, meta=meta)
    if call.what == "get_prompt":
        return await client.get_prompt("greet", {"name": "Ada"}, meta=meta)
    if call.what == "complete":
        reference = types.PromptReference(type="ref/prompt", name="greet")
        return await client.complete(reference, {"name": "name", "value": str(call.number)})
    if call.what == "subscribe":
        return await client.session.subscribe_resource(URI, meta=meta)
    if call.what == "set_level":
        params = types.SetLevelRequestParams(level=LEVEL, _meta=meta)
        return await client.session.send_request(types.SetLevelRequest(params=params), types.EmptyResult)
    return await client.ping(meta=meta)


def wrong_with(call: Call, result: Any, progress: list[str], *, marked: bool) -> str:
    """What shows that a result is not this call's own; empty if nothing does.

    Args:
        marked: whether the server marks the results of all methods, or only of tools that succeed.
    """
    is_marked = marked or (call.is_tool and not result.is_error)
    if is_marked and (result.meta or {}).get(MARK) != call.number:
        return f"an answer with the mark {result.meta}"
    if call.is_tool:
        text = result.content[0].text
        # An answer made up on the way knows nothing of tools that fail.
        if text != f"done {call.number}" and not (result.is_error and text.endswith(f"no {call.number}")):
            return f"an answer that says {text!r}"
    if strange := set(progress) - {f"{call.number}"}:
        return f"progress of {sorted(strange)}"
    return ""


def is_the_tools_own(call: Call, error: BaseException) -> bool:
    """Whether an error is the one that the tool was planned to answer by."""
    if isinstance(error, ResilientError):
        return False
    said = (getattr(error, "code", None), str(error))
    return call.ends == "rpc error" and said == (RPC_ERROR, f"no {call.number}")
