"""Subscriptions of the SDK's client, through every session: the same one goes on after a cut.

The SDK's client ends a subscription with its stream. To it this one does not end: the request
is sent again beneath it, the second acknowledgment is kept from it, and every change that it
covers is told once, for it may have happened while nobody listened.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Mapping
from typing import Any, cast

import trio
from mcp.shared.dispatcher import CallOptions, as_request_id
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import SUBSCRIPTION_ID_META_KEY, event_to_notification
from mcp_types import CONNECTION_CLOSED, JSONRPCRequest, RequestId, SubscriptionFilter
from pydantic import ValidationError

from trio_mcp_resilient._dispatcher import ResilientDispatcher
from trio_mcp_resilient._listening import REOPEN, SETTLED_SECONDS
from trio_mcp_resilient._secrets import one_line
from trio_mcp_resilient._subscription import FRUITLESS, covered

logger = logging.getLogger("trio_mcp_resilient")

ACKNOWLEDGED = "notifications/subscriptions/acknowledged"


class _Held:
    """One subscription, which its client opened once."""

    def __init__(self) -> None:
        self.was_acknowledged = False
        self.fruitless = 0
        self.opened = trio.current_time()


class Relistening:
    """Holds the subscriptions of one session of the SDK's."""

    def __init__(
        self,
        dispatcher: ResilientDispatcher,
        put: Callable[[str, dict[str, Any] | None], None],
        on_gap: Callable[[], None],
    ) -> None:
        self._dispatcher = dispatcher
        self._put = put
        self._on_gap = on_gap
        self._held: dict[RequestId, _Held] = {}

    async def hold(self, request: JSONRPCRequest, options: CallOptions) -> dict[str, Any]:
        """Keep a subscription open; return what the server said when it ended it for good.

        Servers that shut down end their subscriptions in good order as well, so that is believed
        only once it has happened again and again. A stream that breaks before it was ever
        acknowledged is its client's to see.

        Raises:
            MCPError: it was refused, or cannot be opened again.
        """
        held = self._held[request.id] = _Held()
        try:
            while True:
                held.opened = trio.current_time()
                try:
                    result = await self._dispatcher.send_raw_request(request.method, request.params, options)
                except MCPError as error:
                    # One that has a cause never left: there was no session for the whole time it may take.
                    broke = error.code == CONNECTION_CLOSED and error.__cause__ is None
                    if not (broke and held.was_acknowledged and self._goes_on(held)):
                        raise
                    logger.info("a subscription broke off: %s", one_line(str(error)))
                else:
                    if not (held.was_acknowledged and self._goes_on(held)):
                        return result
                await trio.sleep(REOPEN.delay(held.fruitless, random.random))
        finally:
            del self._held[request.id]

    def _goes_on(self, held: _Held) -> bool:
        if trio.current_time() - held.opened >= SETTLED_SECONDS:
            held.fruitless = 0
        held.fruitless += 1
        return held.fruitless <= FRUITLESS

    def intercept(self, method: str, params: Mapping[str, Any] | None) -> bool:
        """Look at a notification; return whether it was for here alone."""
        meta = (params or {}).get("_meta")
        if not self._held or not isinstance(meta, Mapping):
            return False
        subscription = as_request_id(cast("Mapping[str, Any]", meta).get(SUBSCRIPTION_ID_META_KEY))
        held = None if subscription is None else self._held.get(subscription)
        if held is None:
            return False
        if method != ACKNOWLEDGED:
            held.fruitless = 0
            return False
        if not held.was_acknowledged:
            held.was_acknowledged = True
            return False
        self._tell_the_gap(subscription, (params or {}).get("notifications"))
        return True

    def _tell_the_gap(self, subscription: RequestId | None, honored: Any) -> None:
        self._on_gap()
        try:
            changes = covered(SubscriptionFilter.model_validate(honored or {}))
        except ValidationError:
            logger.warning("a subscription was acknowledged without saying what it covers")
            return
        for change in changes:
            notification = event_to_notification(change, {SUBSCRIPTION_ID_META_KEY: subscription})
            dumped = notification.model_dump(by_alias=True, mode="json", exclude_none=True)
            self._put(dumped["method"], dumped.get("params"))
