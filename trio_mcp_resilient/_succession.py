"""Giving a session what its predecessor had: the log level, the subscriptions, the roots."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from trio_mcp_resilient._eras import Era
from trio_mcp_resilient._errors import Evidence
from trio_mcp_resilient._events import RestoreFailed
from trio_mcp_resilient._generation import Generation
from trio_mcp_resilient._instruments import Instruments
from trio_mcp_resilient._outcome import Fate, Notice
from trio_mcp_resilient._restoring import SessionState
from trio_mcp_resilient._secrets import one_line

logger = logging.getLogger("trio_mcp_resilient")

SETTINGS = {"logging/setLevel": "level", "resources/subscribe": "uri", "resources/unsubscribe": "uri"}
"""Requests that change the session they are sent on, and the parameter that tells what they set."""


class Succession:
    """Carries the state of the sessions of one client on."""

    def __init__(
        self,
        state: SessionState,
        next_id: Callable[[], int],
        report: Callable[[Generation, Notice, Evidence | None], None],
        instruments: Instruments,
    ) -> None:
        self._state = state
        self._next_id = next_id
        self._report = report
        self._instruments = instruments
        self._given: list[tuple[str, dict[str, Any]]] = []
        """What the newest session was given before calls could use it."""

    async def prepare(self, generation: Generation, *, has_roots: bool) -> None:
        """Give a new session what its predecessor had, before calls may use it.

        A failure is told and not fatal: a session without a subscription is better than none.
        """
        if generation.number == 1:
            return
        self._given = self._state.requests()
        for method, params in self._given:
            if not await self._give(generation, method, params):
                return
        if has_roots:
            # The server asked the last session for the roots, and knows none in this one.
            await generation.notify("notifications/roots/list_changed", None)

    async def catch_up(self, generation: Generation, method: str, params: dict[str, Any]) -> None:
        """Set on the newest session what its predecessor has confirmed, if that came too late for it."""
        what = SETTINGS[method]
        setting = (method, {what: params.get(what)})
        undone = method == "resources/unsubscribe"
        known = (("resources/subscribe", setting[1]) not in self._given) if undone else setting in self._given
        if not known:
            await self._give(generation, *setting)

    async def _give(self, generation: Generation, method: str, params: dict[str, Any]) -> bool:
        """Set one thing on a session; return whether there still is that session."""
        if generation.session.era is Era.MODERN:
            # A log level is carried by each request.
            if method != "logging/setLevel":
                self._failed(generation, method, "the server is of the era without sessions")
            return True
        outcome = await generation.request(method, params, request_id=self._next_id())
        if outcome.fate is Fate.LOST:
            self._report(generation, outcome.notice, outcome.evidence)
            return False
        if outcome.result is None:
            self._failed(generation, method, one_line(str(outcome.error or outcome.evidence)))
        return True

    def _failed(self, generation: Generation, method: str, error: str) -> None:
        logger.warning("generation %d: %s was not restored: %s", generation.number, method, error)
        if self._instruments:
            self._instruments.tell(RestoreFailed(generation.number, method, error))
