"""A raw HTTP/1.1 client with a session and no manners, for the tests of the scripted server."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import h11

from trio_mcp_resilient.testing import (
    MemoryStream,
    ScriptedServer,
)

MODERN = "2026-07-28"
META = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientInfo": {"name": "peer", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}},
}
BASE = {"host": "scripted.test", "accept": "application/json, text/event-stream"}


class Answer:
    """What came back, as far as it came."""

    def __init__(self) -> None:
        self.status: int | None = None
        self.headers: dict[str, str] = {}
        self.body = b""
        self.whole = False

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[dict[str, str]]:
        blocks = [block for block in self.body.decode().split("\n\n") if block]
        return [dict(line.split(": ", 1) for line in block.splitlines()) for block in blocks]

    @property
    def messages(self) -> list[Any]:
        return [json.loads(event["data"]) for event in self.events if event["data"]]


class Peer:
    """A client of one connection and one session, without any manners."""

    def __init__(self, server: ScriptedServer) -> None:
        self.server = server
        self.session: str | None = None
        self.version = "2025-11-25"
        self._ids = iter(range(1, 1000))
        self._h11 = h11.Connection(h11.CLIENT)
        self.stream: MemoryStream | None = None

    async def open(self) -> Peer:
        opened = await self.server.connect("scripted.test", 80)
        assert isinstance(opened, MemoryStream)
        self.stream = opened
        return self

    async def another(self) -> Peer:
        peer = await Peer(self.server).open()
        peer.session, peer._ids = self.session, self._ids
        return peer

    async def send(self, method: str, message: Any = None, **fields: str) -> None:
        body = b"" if message is None else json.dumps(message).encode()
        headers = {**BASE, "content-length": str(len(body)), "content-type": "application/json"}
        if self.session is not None:
            headers |= {"mcp-session-id": self.session, "mcp-protocol-version": self.version}
        headers |= {name.replace("_", "-"): value for name, value in fields.items()}
        head = h11.Request(method=method, target="/mcp", headers=list(headers.items()))
        data = self._h11.send(head) or b""
        data += self._h11.send(h11.Data(data=body)) or b""
        data += self._h11.send(h11.EndOfMessage()) or b""
        assert self.stream is not None
        await self.stream.send_all(data)

    async def receive(self, answer: Answer, *, events: float = math.inf) -> Answer:
        """Read on until the end of the answer, or until that many events are here."""
        assert self.stream is not None
        while len(answer.events if "event-stream" in answer.headers.get("content-type", "") else []) < events:
            event = self._h11.next_event()
            if event is h11.NEED_DATA:
                self._h11.receive_data(await self.stream.receive_some())
            elif isinstance(event, h11.Response):
                answer.status = event.status_code
                answer.headers = {name.decode(): value.decode() for name, value in event.headers}
            elif isinstance(event, h11.Data):
                answer.body += event.data
            else:
                answer.whole = True
                if self._h11.our_state is h11.DONE and self._h11.their_state is h11.DONE:
                    self._h11.start_next_cycle()
                break
        return answer

    async def ask(self, method: str, message: Any = None, **fields: str) -> Answer:
        await self.send(method, message, **fields)
        return await self.receive(Answer())

    def call(self, rpc_method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        return {"jsonrpc": "2.0", "id": next(self._ids), "method": rpc_method, "params": params or {}}

    def modern(self, rpc_method: str, params: Mapping[str, Any] | None = None) -> tuple[Any, dict[str, str]]:
        """A request of the version without sessions, and the header fields that go with it."""
        meta = {**META, **((params or {}).get("_meta") or {})}
        message = self.call(rpc_method, {**(params or {}), "_meta": meta})
        fields = {"mcp_protocol_version": MODERN, "mcp_method": rpc_method}
        named = message["params"].get("uri" if rpc_method == "resources/read" else "name")
        return message, fields if named is None else {**fields, "mcp_name": named}

    async def post_modern(self, rpc_method: str, params: Mapping[str, Any] | None = None) -> Answer:
        message, fields = self.modern(rpc_method, params)
        return await self.ask("POST", message, **fields)

    async def listen(self, **notifications: Any) -> Answer:
        """Subscribe, and return the answer as far as the acknowledgement."""
        message, fields = self.modern("subscriptions/listen", {"notifications": notifications})
        await self.send("POST", message, **fields)
        return await self.receive(Answer(), events=1)

    def tool_call(self, name: str, arguments: Mapping[str, Any] | None = None) -> dict[str, Any]:
        params = {"name": name, "arguments": arguments or {}, "_meta": {"progressToken": "p"}}
        return self.call("tools/call", params)

    async def post(self, rpc_method: str, params: Mapping[str, Any] | None = None) -> Answer:
        return await self.ask("POST", self.call(rpc_method, params))

    async def tool(self, name: str, arguments: Mapping[str, Any] | None = None) -> Answer:
        return await self.ask("POST", self.tool_call(name, arguments))

    async def notify(self, rpc_method: str, params: Mapping[str, Any] | None = None) -> Answer:
        return await self.ask("POST", {"jsonrpc": "2.0", "method": rpc_method, "params": params or {}})

    async def initialize(self) -> Answer:
        params = {
            "protocolVersion": self.version,
            "capabilities": {"roots": {}},
            "clientInfo": {"name": "peer", "version": "1"},
        }
        answer = await self.post("initialize", params)
        self.session = answer.headers.get("mcp-session-id")
        await self.notify("notifications/initialized")
        return answer


async def meet(server: ScriptedServer) -> Peer:
    """Return a peer that has shaken hands, with one tool to call."""
    server.tool("add", lambda a, b: a + b)
    peer = await Peer(server).open()
    await peer.initialize()
    return peer


ADD = {"a": 1, "b": 2}
ADDED = [{"type": "text", "text": "3"}]
