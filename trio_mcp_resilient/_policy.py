"""What the user may choose, validated once, and the two questions that depend on it:
how long to wait before the next attempt, and whether a request may be sent again."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Backoff:
    """How attempts to reach the server are spaced, for connects and lost sessions alike.

    The defaults spend about 21 s on ten attempts, inside the default `recovery_timeout`.
    """

    first: float = 0.1
    """Seconds before the second attempt; the first is made at once."""
    factor: float = 2.0
    """How much longer each wait is than the one before; 1 keeps them equal."""
    cap: float = 5.0
    """Seconds that no wait exceeds, jitter included."""
    jitter: float = 0.5
    """The share of a wait that is drawn at random, 0 to 1, so that clients spread out."""
    attempts: int = 10
    """The budget of one recovery; 0 means no end."""

    def __post_init__(self) -> None:
        if not (0 <= self.first < math.inf and 0 < self.cap < math.inf):
            raise ValueError("first and cap are seconds: finite, first not negative, cap above 0")
        if not 1 <= self.factor < math.inf:
            raise ValueError("factor is finite and not below 1")
        if not 0 <= self.jitter <= 1:
            raise ValueError("jitter is a share between 0 and 1")
        if self.attempts < 0:
            raise ValueError("attempts is a count, or 0 for no end")

    def delay(self, attempt: int, random: Callable[[], float]) -> float:
        """Return the seconds to wait after failed attempt number `attempt` (the first is 1).

        Args:
            attempt: 1 or more; any size, nothing overflows.
            random: returns a float in [0, 1).
        """
        # Doubling step by step up to the cap cannot overflow; a power of 10,000 would.
        base = self.first
        for _ in range(attempt - 1):
            base *= self.factor
            if base >= self.cap or self.factor == 1:
                break
        base = min(base, self.cap)
        return base * (1 - self.jitter * random())

    def spent(self, attempts: int) -> bool:
        """Whether `attempts` failed attempts use the budget up."""
        return self.attempts != 0 and attempts >= self.attempts


class Resend(enum.StrEnum):
    """Which requests may be sent a second time. Never a third: at most two POSTs a call."""

    NEVER = "never"
    """None: every loss is raised, and repaired in the background."""
    REFUSED = "refused"
    """Those that certainly did not run, and those that MCP itself makes harmless to repeat."""
    IDEMPOTENT = "idempotent"
    """Also calls of tools that the server marks as read-only or idempotent. Annotations are
    hints by the server: choose this only for servers that you trust."""
    ALWAYS = "always"
    """Any, even if it may have run: your word that repeating does no harm."""


HARMLESS = frozenset(
    {
        # Reads, and session state that is the same when set twice. The protocol's own list,
        # not a guess from names: `tools/call` is never here, whatever the tool is called.
        "ping",
        "server/discover",
        "tools/list",
        "resources/list",
        "resources/templates/list",
        "resources/read",
        "prompts/list",
        "prompts/get",
        "completion/complete",
        "logging/setLevel",
        "resources/subscribe",
        "resources/unsubscribe",
    }
)


@dataclass(frozen=True, kw_only=True)
class Timeouts:
    """Bounds of work that no caller can wrap in a cancel scope, in seconds; `math.inf` is none.

    There is no timeout for a call: put `trio.move_on_after` or `trio.fail_after` around it.
    """

    recovery: float = 30.0
    """How long a call waits for a ready session before it raises."""
    handshake: float = 30.0
    """One attempt to connect, initialize and restore state."""
    drain: float = 300.0
    """How long calls in flight keep their answer's connection once their session is lost."""
    read: float = 300.0
    """Silence on an answer's connection after which it counts as cut."""
    close: float = 2.0
    """The farewell: DELETE of a live session, and the notice of a cancelled call."""
    keepalive: float = math.inf
    """Idle time after which a session is asked whether it stands."""

    def __post_init__(self) -> None:
        for field in fields(self):
            if not getattr(self, field.name) > 0:
                raise ValueError(f"{field.name} timeout is a number of seconds above 0, or math.inf")
