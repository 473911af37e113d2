"""Tokens that expire: what the application renews, and what the server accepts.

The application's `httpx.Auth` sends a request that was refused for its token once more, by a new
one. That is its own doing, below the client's; so it is counted, for the oracle to allow for it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Generator

import httpx

from tests.simulation.ledger import call_of

CHALLENGE = {"www-authenticate": 'Bearer error="invalid_token"'}


class Tokens(httpx.Auth):
    """Both sides of one credential."""

    def __init__(self) -> None:
        self._valid = self._held = 1
        self.repeated: Counter[int] = Counter()
        """How often a request of each call was sent again for want of a token."""
        self.repeated_ids: Counter[int | str] = Counter()
        """Likewise by the JSON-RPC id."""

    def expire(self) -> None:
        """Let the server accept only a token that is yet to be fetched."""
        self._valid += 1

    @property
    def authorization(self) -> str:
        """The header that is accepted."""
        return f"Bearer {self._valid}"

    def accepts(self, authorization: str | None) -> bool:
        """Whether a request with this header may pass."""
        return authorization == self.authorization

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        """Send a request, and once more if its token was refused."""
        request.headers["authorization"] = f"Bearer {self._held}"
        response = yield request
        if response.status_code == 401:
            self._held = self._valid
            self._count(json.loads(request.content or b"{}"))
            request.headers["authorization"] = f"Bearer {self._held}"
            yield request

    def _count(self, message: dict[str, object]) -> None:
        method, params, request_id = message.get("method"), message.get("params"), message.get("id")
        call = call_of(str(method), params if isinstance(params, dict) else {})
        if call is not None:
            self.repeated[call] += 1
        if method and isinstance(request_id, int | str):
            self.repeated_ids[request_id] += 1
