"""Which era a generation speaks: what was spoken last at this origin first, then the other."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import trio

from trio_mcp_resilient._discovery import NoAnswer, NotModern, discover
from trio_mcp_resilient._endpoint import Endpoint
from trio_mcp_resilient._envelope import Introduction
from trio_mcp_resilient._eras import Era, Mode
from trio_mcp_resilient._errors import HandshakeFailed
from trio_mcp_resilient._handshake import NotLegacy, TryAgain, shake_hands
from trio_mcp_resilient._jsonrpc import RequestId
from trio_mcp_resilient._patience import Patience
from trio_mcp_resilient._session import Session
from trio_mcp_resilient._wire import Wire

DISCOVERY_SECONDS = 10.0
"""How long a server may think about `server/discover` while there is another era to try; the
SDK's own limit. Some legacy servers never answer what they do not know."""
MAX_ORIGINS = 1000

Origin = tuple[str, str, int]

_memory: trio.lowlevel.RunVar[dict[Origin, Era]] = trio.lowlevel.RunVar("eras by origin")
"""The specification would have the era remembered per origin. All clients of one `trio.run` share
the memory, and a wrong one costs a round trip."""


class Silent(NoAnswer):
    """Nothing came of the request for as long as it may take."""


@dataclass(frozen=True)
class Negotiation:
    """Makes sessions of whichever era the server speaks.

    `seconds` is how long its caller waits for one: half of it is left for the other era.
    """

    wire: Wire
    endpoint: Endpoint
    introduction: Introduction
    mode: Mode
    next_id: Callable[[], RequestId]
    patience: Patience
    seconds: float

    async def run(self) -> Session:
        """Make one session, or raise saying whether trying again could help.

        Raises:
            TryAgain: the server is down, busy or restarting; that is no sign of an era.
            HandshakeFailed: it answered, and the answer will not change by itself.
        """
        known = remembered(self.endpoint)
        failed: HandshakeFailed | None = None
        reminder = True
        for era in self.mode.order(known):
            try:
                session = await (self._discover() if era is Era.MODERN else self._initialize())
            except NotModern as error:
                if isinstance(error, NoAnswer):
                    if known is Era.MODERN or len(self.mode.eras) == 1:
                        # It was modern a moment ago. If it breaks off again, it may not be any more.
                        forget(self.endpoint)
                        raise TryAgain(str(error)) from error
                    # What broke off may have been a modern server's: look again next time. Silence
                    # is remembered, for it would cost as long again each time.
                    reminder = isinstance(error, Silent)
                failed = failed or HandshakeFailed(str(error))
            except HandshakeFailed as error:
                failed = error
                if era is Era.MODERN:
                    break
            else:
                # Who asks for sessions only does not learn whether the server knows better.
                if reminder and (era is Era.MODERN or len(self.mode.eras) > 1):
                    remember(self.endpoint, era)
                return session
        assert failed is not None, "there is an era to try"
        if isinstance(failed, NotLegacy) and Era.MODERN in self.mode.eras:
            # It is of the modern era by its own words, and still `server/discover` met something else,
            # such as a gateway's page.
            raise TryAgain(str(failed)) from failed
        raise failed

    async def _discover(self) -> Session:
        limit = min(DISCOVERY_SECONDS, self.seconds / 2) if len(self.mode.eras) > 1 else math.inf
        with self.patience.move_on_after(limit):
            return await discover(
                self.wire, self.endpoint, self.introduction, self.mode.version, self.next_id
            )
        raise Silent(f"{self.endpoint}: no answer to server/discover within {limit:g} s")

    async def _initialize(self) -> Session:
        params = self.introduction.initialize_params()
        return await shake_hands(self.wire, self.endpoint, params, self.next_id())


def remembered(endpoint: Endpoint) -> Era | None:
    """Return the era that was last spoken at an endpoint's origin."""
    return _memory.get({}).get(_origin(endpoint))


def remember(endpoint: Endpoint, era: Era) -> None:
    """Remember the era for the whole origin; the oldest memory of too many is given up."""
    eras = _memory.get({})
    eras.pop(_origin(endpoint), None)
    eras[_origin(endpoint)] = era
    if len(eras) > MAX_ORIGINS:
        del eras[next(iter(eras))]
    _memory.set(eras)


def forget(endpoint: Endpoint) -> None:
    """Forget the era of an endpoint's origin."""
    _memory.get({}).pop(_origin(endpoint), None)


def _origin(endpoint: Endpoint) -> Origin:
    return endpoint.scheme, endpoint.host, endpoint.port
