"""What the scripted server offers: tools, resources, prompts, and answers to every other method."""

from __future__ import annotations

import inspect
import json
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, cast

import trio

from trio_mcp_resilient._scripted_inputs import InputRequired, Inputs
from trio_mcp_resilient._scripted_records import Execution
from trio_mcp_resilient._scripted_session import EventStream, Message, RpcError, ScriptedSession

ToolHandler: TypeAlias = Callable[..., Any]
MethodHandler: TypeAlias = Callable[["ToolContext"], Any]

LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
JSON_TYPES = {int: "integer", float: "number", str: "string", bool: "boolean", list: "array", dict: "object"}
JSON_TYPE_NAMES = {python.__name__: name for python, name in JSON_TYPES.items()}


class ToolContext:
    """What a handler knows of the request it runs for; given to a parameter named `ctx`."""

    def __init__(
        self,
        session: ScriptedSession,
        stream: EventStream,
        rpc_id: Any,
        params: Message,
        cut: Callable[[], None],
        inputs: Inputs | None = None,
    ) -> None:
        self.session = session
        self.rpc_id = rpc_id
        self.params = params
        self._stream = stream
        self._cut = cut
        self._inputs = inputs

    def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """Report progress, if the client asked for it."""
        meta: Message = self.params.get("_meta") or {}
        if "progressToken" in meta:
            said: dict[str, Any] = {"progressToken": meta["progressToken"], "progress": progress}
            optional = {"total": total, "message": message}
            said |= {name: value for name, value in optional.items() if value is not None}
            self.notify("notifications/progress", said)

    def log(self, data: Any, level: str = "info", logger: str | None = None) -> None:
        """Send a log message, unless the client set a higher level, or, without sessions, none."""
        threshold = self.session.log_level or "debug"
        if threshold in LEVELS and LEVELS.index(level) >= LEVELS.index(threshold):
            said = {"level": level, "data": data}
            self.notify("notifications/message", said if logger is None else {**said, "logger": logger})

    def notify(self, method: str, params: Message | None = None) -> None:
        """Send a notification on the request's own stream."""
        self._stream.send({"jsonrpc": "2.0", "method": method, "params": params or {}})

    @property
    def responses(self) -> Message:
        """What the client answers to an `InputRequired` that you raised, by your keys; empty before."""
        return {} if self._inputs is None else self._inputs.responses

    async def request(self, method: str, params: Message | None = None, *, key: str | None = None) -> Any:
        """Ask the client something on the request's own stream, and return its result.

        Without sessions (2026-07-28) nothing can be asked so. The run ends there by a result that says what
        is missing, and the client comes again with it: the handler then runs from its first line, and
        this returns at once. So such a handler is executed once more than it asks.

        Args:
            method: `sampling/createMessage`, `elicitation/create`, `roots/list` or another.
            params: its parameters.
            key: without sessions, what the client is to call its answer; None for a counted name.

        Raises:
            RpcError: the client refused, or the session ended first.

        Cancellation: an answer that comes later is dropped. Checkpoint: always.
        """
        if self._inputs is not None:
            await trio.lowlevel.checkpoint()
            return self._inputs.ask(method, params, key)
        return await self.session.ask(self._stream, method, params)

    def close_stream(self) -> None:
        """End the connection cleanly after what was said so far, and go on: the client can only resume.

        Without sessions there is no resuming, and an end of the connection is the end of the run.
        """
        self._stream.detach()

    def cut(self) -> None:
        """Reset the connection after what was said so far, and go on, except without sessions."""
        self._cut()


class Catalog:
    """The part of a `ScriptedServer` that answers JSON-RPC requests."""

    def __init__(self) -> None:
        self.executed: Counter[str] = Counter()
        """How often each tool's handler was started."""
        self.executions: list[Execution] = []
        """Every start of a tool's handler, in order."""
        self.page_size: int | None = None
        """How many entries a list answers at once; None for all."""
        self.methods: dict[str, MethodHandler] = {
            "ping": lambda ctx: {},
            "tools/list": lambda ctx: self._page("tools", self._tools, ctx),
            "tools/call": self._call_tool,
            "resources/list": lambda ctx: self._page("resources", self._resources, ctx),
            "resources/templates/list": lambda ctx: self._page("resourceTemplates", self._templates, ctx),
            "resources/read": self._read_resource,
            "resources/subscribe": lambda ctx: self._subscribe(ctx, True),
            "resources/unsubscribe": lambda ctx: self._subscribe(ctx, False),
            "prompts/list": lambda ctx: self._page("prompts", self._prompts, ctx),
            "prompts/get": self._get_prompt,
            "completion/complete": lambda ctx: {"completion": {"values": [], "hasMore": False}},
            "logging/setLevel": self._set_level,
        }
        """What answers each method: sync or async functions of a `ToolContext`, to change and add to."""
        self._tools: dict[str, dict[str, Any]] = {}
        self._handlers: dict[str, ToolHandler] = {}
        self._resources: dict[str, dict[str, Any]] = {}
        self._texts: dict[str, str] = {}
        self._templates: dict[str, dict[str, Any]] = {}
        self._prompts: dict[str, dict[str, Any]] = {}
        self._prompt_texts: dict[str, str] = {}

    def tool(self, name: str, handler: ToolHandler, **listed: Any) -> None:
        """Offer a tool, or replace the one of this name.

        Args:
            name: the tool's name.
            handler: sync or async; gets the arguments by name, and a `ToolContext` if it has a
                parameter named `ctx`. Returns text, a mapping (structured content, or a whole
                result if it has `content`), a pydantic model of a whole result, or anything
                else, sent as text. What it raises is the tool's error (`isError`), except
                `RpcError`, sent as such, and `AssertionError`, which ends the server's block,
                since tests assert in handlers.
            listed: further members of the tool's entry in `tools/list`, such as `annotations`.
        """
        listed = {"name": name, "inputSchema": _input_schema(handler), **listed}
        self._tools[name] = listed
        self._handlers[name] = handler

    def remove_tool(self, name: str) -> None:
        """Offer a tool no longer."""
        del self._tools[name], self._handlers[name]

    def resource(self, uri: str, text: str, **listed: Any) -> None:
        """Offer a text resource, or replace the one of this URI."""
        self._resources[uri] = {"uri": uri, "name": uri, "mimeType": "text/plain", **listed}
        self._texts[uri] = text

    def template(self, uri_template: str, **listed: Any) -> None:
        """List a resource template."""
        self._templates[uri_template] = {"uriTemplate": uri_template, "name": uri_template, **listed}

    def prompt(self, name: str, text: str, **listed: Any) -> None:
        """Offer a prompt; its text may name arguments in braces."""
        self._prompts[name] = {"name": name, **listed}
        self._prompt_texts[name] = text

    async def _result(self, method: str, ctx: ToolContext) -> Any:
        handler = self.methods.get(method)
        if handler is None:
            raise RpcError(-32601, "Method not found")
        return await _maybe_await(handler(ctx))

    async def _call_tool(self, ctx: ToolContext) -> Message:
        name = str(ctx.params.get("name"))
        arguments: Message = ctx.params.get("arguments") or {}
        handler = self._handlers.get(name)
        if handler is None:
            raise RpcError(-32602, f"Unknown tool: {name}")
        self.executed[name] += 1
        now = trio.current_time()
        self.executions.append(Execution(name, arguments, ctx.rpc_id, ctx.session.id or None, now))
        context = {"ctx": ctx} if "ctx" in inspect.signature(handler).parameters else {}
        try:
            return _tool_result(await _maybe_await(handler(**arguments, **context)))
        except (RpcError, InputRequired, AssertionError):
            raise
        except Exception as error:
            return {"content": [{"type": "text", "text": str(error)}], "isError": True}

    def _page(self, name: str, entries: Mapping[str, Message], ctx: ToolContext) -> Message:
        start = int(ctx.params.get("cursor") or 0)
        listed = list(entries.values())
        end = len(listed) if self.page_size is None else start + self.page_size
        page: dict[str, Any] = {name: listed[start:end]}
        return page if end >= len(listed) else {**page, "nextCursor": str(end)}

    def _read_resource(self, ctx: ToolContext) -> Message:
        uri = str(ctx.params.get("uri"))
        if uri not in self._texts:
            code = -32002 if ctx.session.protocol_version < "2026-07-28" else -32602
            raise RpcError(code, "Resource not found", {"uri": uri})
        return {"contents": [{"uri": uri, "mimeType": "text/plain", "text": self._texts[uri]}]}

    def _subscribe(self, ctx: ToolContext, wanted: bool) -> Message:
        uri = str(ctx.params.get("uri"))
        (ctx.session.subscriptions.add if wanted else ctx.session.subscriptions.discard)(uri)
        return {}

    def _get_prompt(self, ctx: ToolContext) -> Message:
        name = str(ctx.params.get("name"))
        if name not in self._prompt_texts:
            raise RpcError(-32602, f"Unknown prompt: {name}")
        text = self._prompt_texts[name].format_map(ctx.params.get("arguments") or {})
        return {"messages": [{"role": "user", "content": {"type": "text", "text": text}}]}

    def _set_level(self, ctx: ToolContext) -> Message:
        level = str(ctx.params.get("level"))
        if level not in LEVELS:
            raise RpcError(-32602, f"Unknown level: {level}")
        ctx.session.log_level = level
        return {}


async def _maybe_await(value: Any) -> Any:
    if inspect.isawaitable(value):
        return await value
    await trio.lowlevel.checkpoint()
    return value


def _input_schema(handler: ToolHandler) -> Message:
    """Describe a handler's parameters, as far as their annotations are plain types."""
    parameters = [p for p in inspect.signature(handler).parameters.values() if p.name != "ctx"]
    named = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    schema: dict[str, Any] = {"type": "object", "properties": {p.name: _type_of(p.annotation) for p in named}}
    required = [p.name for p in named if p.default is p.empty]
    return {**schema, "required": required} if required else schema


def _type_of(annotation: Any) -> Message:
    name = JSON_TYPE_NAMES.get(annotation) if isinstance(annotation, str) else JSON_TYPES.get(annotation)
    return {} if name is None else {"type": name}


def _tool_result(value: Any) -> Message:
    if hasattr(value, "model_dump"):
        dumped: Message = value.model_dump(mode="json", by_alias=True, exclude_none=True)
        return dumped
    if isinstance(value, Mapping):
        mapping = cast("Message", value)
        if "content" in mapping:
            return mapping
        return {"content": [{"type": "text", "text": json.dumps(mapping)}], "structuredContent": mapping}
    return {"content": [{"type": "text", "text": value if isinstance(value, str) else json.dumps(value)}]}
