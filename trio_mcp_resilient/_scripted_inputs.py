"""How a server of protocol 2026-07-28 asks the client: by a result that says what is missing.

The client asks for the same again, with the answers. The handler runs anew from its first line,
and each of its questions that has been answered returns at once.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from typing import Any, cast

from trio_mcp_resilient._scripted_envelope import INVALID_PARAMS, MISSING_CAPABILITY
from trio_mcp_resilient._scripted_session import Message, RpcError

CAPABILITY = {
    "elicitation/create": "elicitation",
    "sampling/createMessage": "sampling",
    "roots/list": "roots",
}
"""What a client must be capable of, by what it is asked."""


class InputRequired(Exception):
    """Ends a run by a result that asks the client (2026-07-28); `ToolContext.request` raises it for you.

    Args:
        requests: what to ask, each with its `method` and `params`, by keys of your own; None to ask
            nothing.
        state: what the client is to repeat when it comes again; None for nothing.
    """

    def __init__(self, requests: Mapping[str, Message] | None = None, state: str | None = None) -> None:
        super().__init__(requests, state)
        self.requests = requests
        self.state = state

    @property
    def result(self) -> Message:
        """The result that says so."""
        optional = {"inputRequests": self.requests, "requestState": self.state}
        said: dict[str, Any] = {name: value for name, value in optional.items() if value is not None}
        return {"resultType": "input_required", **said}


class Inputs:
    """The client's answers to one request, and the questions of its run."""

    def __init__(self, name: str, params: Message, capabilities: Message) -> None:
        given = params.get("inputResponses")
        self.responses: Message = cast("Message", given) if isinstance(given, Mapping) else {}
        self._secret = name
        self._state = params.get("requestState")
        self._capabilities = capabilities
        self._asked = 0

    def ask(self, method: str, params: Message | None, key: str | None) -> Any:
        """Return the client's answer to the next question of the run, asked by this key or a counted one.

        Raises:
            InputRequired: it has not been asked yet, or did not answer.
            RpcError: the client is not capable of it, or the state is not one of this server's.
        """
        self._asked += 1
        key = key or f"input-{self._asked}"
        answers = {**self._opened(), **self.responses}
        if isinstance(answers.get(key), Mapping):
            return answers[key]
        needed = CAPABILITY.get(method)
        if needed is not None and needed not in self._capabilities:
            required = {"requiredCapabilities": {needed: dict[str, Any]()}}
            raise RpcError(MISSING_CAPABILITY, "Missing required client capability", required)
        raise InputRequired({key: {"method": method, "params": params or {}}}, self._sealed(answers))

    def _sealed(self, answers: Message) -> str:
        # All that was answered so far is in the state, so that it outlives a restart of the server.
        payload = base64.urlsafe_b64encode(json.dumps(answers).encode()).decode()
        return f"{payload}.{self._seal(payload)}"

    def _opened(self) -> Message:
        if self._state is None:
            return {}
        payload, _, seal = str(self._state).partition(".")
        if seal != self._seal(payload):
            raise RpcError(INVALID_PARAMS, "Invalid or expired requestState")
        opened: Message = json.loads(base64.urlsafe_b64decode(payload))
        return opened

    def _seal(self, payload: str) -> str:
        return hashlib.sha256(f"{self._secret} {payload}".encode()).hexdigest()[:16]
