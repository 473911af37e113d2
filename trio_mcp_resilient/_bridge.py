"""Between the SDK's streams and our dispatcher: messages here, calls there.

The SDK's session numbers its requests, correlates answers and progress by those numbers, and
cancels by them. Below it each number means something else on every session, so the numbers of
the two sides never pass from one to the other: an answer is written under the id its request
was read with, and progress under its token.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import trio
from mcp.shared.dispatcher import CallOptions, DispatchContext
from mcp.shared.exceptions import MCPError
from mcp.shared.jsonrpc_dispatcher import cancelled_request_id_from_params, progress_token_from_params
from mcp.shared.message import ClientMessageMetadata, MessageMetadata, SessionMessage
from mcp.shared.transport_context import TransportContext
from mcp_types import (
    CONNECTION_CLOSED,
    INVALID_PARAMS,
    ErrorData,
    JSONRPCError,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    ProgressToken,
    RequestId,
)

from trio_mcp_resilient._discovery import DISCOVER
from trio_mcp_resilient._dispatcher import ResilientDispatcher
from trio_mcp_resilient._errors import ResilientError, as_error_data
from trio_mcp_resilient._generation import LISTEN
from trio_mcp_resilient._greeting import Greeting
from trio_mcp_resilient._relistening import Relistening
from trio_mcp_resilient._sdk_streams import ReadStream, WriteStream
from trio_mcp_resilient._secrets import one_line
from trio_mcp_resilient._sending import MAX_PAGES
from trio_mcp_resilient._supervisor import in_background
from trio_mcp_resilient._validating import Validating

logger = logging.getLogger("trio_mcp_resilient")

CHANGED = {
    "tools/list": "notifications/tools/list_changed",
    "prompts/list": "notifications/prompts/list_changed",
    "resources/list": "notifications/resources/list_changed",
    "resources/templates/list": "notifications/resources/list_changed",
}
"""What tells a client of the SDK's that what it keeps of a listing is old."""


class _Asked:
    """A request of the server's that waits for the SDK session's answer."""

    def __init__(self) -> None:
        self.answered = trio.Event()
        self.answer: JSONRPCResponse | JSONRPCError | None = None


class Bridge:
    """Serves one session of the SDK's from one dispatcher."""

    def __init__(
        self, dispatcher: ResilientDispatcher, nursery: trio.Nursery, on_gap: Callable[[], None]
    ) -> None:
        self.reader = ReadStream()
        self.writer = WriteStream(self._take, self._left)
        self._dispatcher = dispatcher
        self._nursery = nursery
        self._calls: dict[RequestId, trio.CancelScope] = {}
        self._asked: dict[RequestId, _Asked] = {}
        self._names = (f"asked-{number}" for number in itertools.count(1))
        self._has_left = False
        self._greeting = Greeting(dispatcher)
        self._relistening = Relistening(dispatcher, self._put, on_gap)
        self._validating = Validating()
        self._listed: set[str] = set()

    async def run(self) -> None:
        """Keep a session standing, and hand on what the server sends unasked, until cancelled."""
        await self._dispatcher.run(self._on_request, self._on_notify, self._on_notify_intercept)

    def close(self) -> None:
        """End both streams, for a session that has not closed them itself."""
        self.reader.end()
        self.writer.close()

    def _left(self) -> None:
        """Abandon what the session that has left waited for, and what waits for it."""
        self._has_left = True
        for scope in self._calls.values():
            scope.cancel(reason="the session was closed")
        for asked in self._asked.values():
            asked.answered.set()

    # -- what the SDK's session writes --------------------------------------------------------

    async def _take(self, item: SessionMessage) -> None:
        """Take one message, in the task of whoever made the session write it."""
        # First, so that a cancelled write has written nothing.
        await trio.lowlevel.checkpoint()
        message = item.message
        if isinstance(message, JSONRPCRequest):
            self._start(message, _options(item.metadata))
        elif isinstance(message, JSONRPCNotification):
            if message.method == "notifications/cancelled":
                self._cancel(message)
            elif self._dispatcher.is_introduced:
                await self._dispatcher.notify(message.method, message.params, _options(item.metadata))
        elif message.id in self._asked:
            asked = self._asked[message.id]
            asked.answer = message
            asked.answered.set()

    def _start(self, request: JSONRPCRequest, options: CallOptions) -> None:
        """Make the call that a request asks for, in a task with its caller's context."""
        token = progress_token_from_params(request.params)
        if token is not None:
            options["on_progress"] = partial(self._report, token)
        if isinstance(request.id, str):
            # Chosen by the caller, who counts on it on the wire; the session's own are numbers.
            options["request_id"] = request.id
        scope = self._calls[request.id] = trio.CancelScope()
        hidden = self._validating.sent(request)
        self._nursery.start_soon(self._call, request, options, scope, hidden)

    async def _call(
        self, request: JSONRPCRequest, options: CallOptions, scope: trio.CancelScope, hidden: bool
    ) -> None:
        try:
            with scope:
                self.reader.put(await self._answer(request, options, hidden))
        finally:
            if self._calls.get(request.id) is scope:
                del self._calls[request.id]

    async def _answer(
        self, request: JSONRPCRequest, options: CallOptions, hidden: bool
    ) -> JSONRPCResponse | JSONRPCError:
        """Call, and express whatever comes of it as an answer to the SDK session's request."""
        result: dict[str, Any]
        try:
            result = await self._request(request, options)
        except Exception as error:
            if not (hidden and isinstance(error, ResilientError)):
                return JSONRPCError(jsonrpc="2.0", id=request.id, error=_error_data(request.method, error))
            logger.warning("a tool's result was not validated: %s", one_line(str(error)))
            result = {"tools": []}
        result = self._greeting.complete(request.method, result)
        self._validating.answered(request, result)
        if request.method in CHANGED:
            self._listed.add(request.method)
        return JSONRPCResponse(jsonrpc="2.0", id=request.id, result=result)

    async def _request(self, request: JSONRPCRequest, options: CallOptions) -> dict[str, Any]:
        if request.method in ("initialize", DISCOVER):
            return await self._greeting.answer(request, options)
        await self._greeting.precede(request, options)
        if request.method == LISTEN:
            return await self._relistening.hold(request, options)
        return await self._dispatcher.send_raw_request(request.method, request.params, options)

    async def _report(
        self, token: ProgressToken, progress: float, total: float | None, message: str | None
    ) -> None:
        """Put a call's progress, under the token that the SDK's session knows it by."""
        params = {"progressToken": token, "progress": progress, "total": total, "message": message}
        known = {name: value for name, value in params.items() if value is not None}
        self._put("notifications/progress", known)
        await trio.lowlevel.checkpoint()

    def _cancel(self, notification: JSONRPCNotification) -> None:
        """Cancel a call; the dispatcher tells the server, by the id that the server knows."""
        request_id = cancelled_request_id_from_params(notification.params)
        scope = None if request_id is None else self._calls.get(request_id)
        if scope is not None:
            scope.cancel(reason="the caller was cancelled")

    # -- what the server sends of its own accord ----------------------------------------------

    async def _on_request(
        self, context: DispatchContext[TransportContext], method: str, params: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        """Have the SDK's session answer a request, under an id that no other session's can be."""
        name = next(self._names)
        asked = self._asked[name] = _Asked()
        try:
            self.reader.put(
                JSONRPCRequest(
                    jsonrpc="2.0", id=name, method=method, params=None if params is None else dict(params)
                )
            )
            if not self._has_left:
                await asked.answered.wait()
        except trio.Cancelled:
            # The server took it back, or its session is gone: nobody waits for an answer.
            self._put("notifications/cancelled", {"requestId": name})
            raise
        finally:
            del self._asked[name]
        if asked.answer is None:
            raise MCPError(CONNECTION_CLOSED, "Connection closed")
        if isinstance(asked.answer, JSONRPCError):
            raise MCPError.from_jsonrpc_error(asked.answer)
        return asked.answer.result

    def _on_notify_intercept(self, method: str, params: Mapping[str, Any] | None) -> bool:
        """Hand a notification on, in the order of the wire."""
        if method == "notifications/progress":
            # It names a call by our number for it, and has been put under the SDK session's.
            return True
        if method == "notifications/cancelled":
            # Of a request of the server's, whose handler is told by its own cancellation; unless it
            # ends a stream that the session opened under an id of its choice.
            request_id = cancelled_request_id_from_params(params)
            if not isinstance(request_id, str) or request_id not in self._calls:
                return True
        if self._relistening.intercept(method, params):
            return True
        self._put(method, None if params is None else dict(params))
        return True

    async def _on_notify(
        self, context: DispatchContext[TransportContext], method: str, params: Mapping[str, Any] | None
    ) -> None:
        """Nothing is left for here: every notification was intercepted."""

    def _put(self, method: str, params: dict[str, Any] | None) -> None:
        self.reader.put(JSONRPCNotification(jsonrpc="2.0", method=method, params=params))

    # -- after a recovery ---------------------------------------------------------------------

    async def announce(self) -> None:
        """Say which listings may be old, since another server may have come up in the old one's place.

        Tools are listed again and compared, as `open_client` does. What else was listed is only
        said to have changed: it costs a request only if somebody asks for it again.
        """
        before = self._dispatcher.state.tools
        changed = {CHANGED[method] for method in self._listed}
        if before is not None and await self._list_tools_again() and self._dispatcher.state.tools == before:
            changed.discard(CHANGED["tools/list"])
        for method in sorted(changed):
            self._put(method, None)

    async def _list_tools_again(self) -> bool:
        """List the tools, for the dispatcher to see; return whether the listing came to its end."""
        params: dict[str, Any] = {}
        token = in_background.set(True)
        try:
            for _ in range(MAX_PAGES):
                page = await self._dispatcher.send_raw_request("tools/list", params)
                if page.get("nextCursor") is None:
                    return True
                params = {"cursor": page["nextCursor"]}
        except trio.ClosedResourceError:
            pass
        except (MCPError, ResilientError, ValueError) as error:
            logger.warning("the tools of the new session could not be listed: %s", one_line(str(error)))
        finally:
            in_background.reset(token)
        return False


def _options(metadata: MessageMetadata) -> CallOptions:
    """Return what the SDK's session said of a message beside it."""
    options: CallOptions = {}
    if isinstance(metadata, ClientMessageMetadata) and metadata.headers:
        options["headers"] = metadata.headers
    return options


def _error_data(method: str, error: Exception) -> ErrorData:
    """Express as a JSON-RPC error what a call raised: there is no other way through the SDK's session."""
    if isinstance(error, ResilientError):
        return as_error_data(error)
    if isinstance(error, MCPError):
        return error.error
    if isinstance(error, trio.ClosedResourceError):
        return ErrorData(code=CONNECTION_CLOSED, message="Connection closed")
    if isinstance(error, ValueError):
        return ErrorData(code=INVALID_PARAMS, message=str(error))
    # A hook of the application's raised, such as its authentication: its failure costs this call.
    failure = ResilientError(f"{method} failed: {type(error).__name__}: {one_line(str(error))}")
    failure.__cause__ = error
    return as_error_data(failure)
