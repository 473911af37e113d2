"""What clients listen to: `subscriptions/listen`, and the changes that are told to whoever hears them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, cast, final

import trio

from trio_mcp_resilient._scripted_envelope import SUBSCRIPTION_KEY
from trio_mcp_resilient._scripted_session import EventStream, Message
from trio_mcp_resilient._scripted_sessions import Sessions

LISTS = {
    "toolsListChanged": "notifications/tools/list_changed",
    "promptsListChanged": "notifications/prompts/list_changed",
    "resourcesListChanged": "notifications/resources/list_changed",
}
RESOURCES = "resourceSubscriptions"


@final
class Subscription:
    """One `subscriptions/listen` that is open."""

    def __init__(
        self, subscription_id: Any, honoured: Message, stream: EventStream, disconnect: Callable[[], None]
    ) -> None:
        self.id: Any = subscription_id
        """The JSON-RPC id of the request, with which all that it hears is stamped."""
        self.notifications = honoured
        """What was asked for and is honoured."""
        self.open: bool = True
        """False once the server has ended it or the client has left."""
        self.ending: trio.Event = trio.Event()
        self._stream = stream
        self._disconnect = disconnect

    def __repr__(self) -> str:
        return f"<subscription {self.id!r} to {sorted(self.notifications)}>"

    def tell(self, method: str, params: Message | None = None) -> bool:
        """Send a notification, stamped, wanted or not; return whether anybody hears it."""
        if not self.open:
            return False
        stamped = {**(params or {}), "_meta": {SUBSCRIPTION_KEY: self.id}}
        return self._stream.send({"jsonrpc": "2.0", "method": method, "params": stamped})

    def wants(self, method: str, params: Message) -> bool:
        """Whether it asked for this."""
        if method == "notifications/resources/updated":
            return params.get("uri") in self.notifications.get(RESOURCES, ())
        return any(LISTS.get(kind) == method for kind in self.notifications)

    def end(self, *, result: bool = True) -> None:
        """End it: by its result, as a server does on purpose, or cleanly but without one."""
        self.open = False
        if result:
            self.ending.set()
        else:
            self._stream.detach()

    def cut(self) -> None:
        """Reset its connection."""
        self.open = False
        self._disconnect()


class Subscriptions(Sessions):
    """The part of a `ScriptedServer` that tells changes."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._subscriptions: list[Subscription] = []
        self.honoured: Collection[str] = (*LISTS, RESOURCES)
        """Which kinds of subscription are honoured; the others are left out of the acknowledgement."""
        self._subscribed = trio.Event()

    @property
    def subscriptions(self) -> list[Subscription]:
        """The open subscriptions, oldest first."""
        return [subscription for subscription in self._subscriptions if subscription.open]

    async def subscribed(self, count: int = 1) -> Subscription:
        """Wait until that many subscriptions are open at once, and return the newest.

        Cancellation: nothing happened. Checkpoint: always.
        """
        await trio.lowlevel.checkpoint()
        while len(self.subscriptions) < count:
            await self._subscribed.wait()
        return self.subscriptions[-1]

    def end_subscriptions(self) -> None:
        """End all subscriptions, each by its result."""
        for subscription in self.subscriptions:
            subscription.end()

    def tools_list_changed(self) -> int:
        """Tell all that listen that the list of tools has changed, and return how many hear it."""
        return self._changed("notifications/tools/list_changed")

    def prompts_list_changed(self) -> int:
        """Tell all that listen that the list of prompts has changed, and return how many hear it."""
        return self._changed("notifications/prompts/list_changed")

    def resources_list_changed(self) -> int:
        """Tell all that listen that the list of resources has changed, and return how many hear it."""
        return self._changed("notifications/resources/list_changed")

    def resource_updated(self, uri: str) -> int:
        """Notify who has subscribed to a resource, and return how many hear it."""
        return super().resource_updated(uri) + self._tell("notifications/resources/updated", {"uri": uri})

    def _changed(self, method: str) -> int:
        return self.notify(method) + self._tell(method, {})

    def _tell(self, method: str, params: Message) -> int:
        wanted = [each for each in self.subscriptions if each.wants(method, params)]
        return sum(each.tell(method, params) for each in wanted)

    def _subscription(
        self, rpc_id: Any, params: Message, stream: EventStream, cut: Callable[[], None]
    ) -> Subscription:
        asked = params.get("notifications")
        wanted: Mapping[str, Any] = cast("Mapping[str, Any]", asked) if isinstance(asked, Mapping) else {}
        honoured: dict[str, Any] = {kind: True for kind in LISTS if wanted.get(kind) is True}
        if wanted.get(RESOURCES):
            honoured[RESOURCES] = list(wanted[RESOURCES])
        honoured = {kind: value for kind, value in honoured.items() if kind in self.honoured}
        return Subscription(rpc_id, honoured, stream, cut)

    async def _listen(self, subscription: Subscription) -> Message:
        """Serve a subscription until it is ended, and return its result."""
        said = {"notifications": subscription.notifications}
        self._subscriptions.append(subscription)
        try:
            subscription.tell("notifications/subscriptions/acknowledged", said)
            self._subscribed.set()
            self._subscribed = trio.Event()
            await subscription.ending.wait()
        finally:
            subscription.open = False
            self._subscriptions.remove(subscription)
        return {"_meta": {SUBSCRIPTION_KEY: subscription.id}}
