"""Watching one endpoint: pings at an interval, every event of the client's life, and what it adds up to.

What happens is told as records, each fit to be a line of JSON. The picture that people are shown is
made from the same records.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import final

import trio
from mcp.shared.exceptions import MCPError

from trio_mcp_resilient._cli_options import Target
from trio_mcp_resilient._cli_output import Data, describe
from trio_mcp_resilient._client import Client
from trio_mcp_resilient._errors import GaveUp, ResilientError
from trio_mcp_resilient._events import Event, StateChanged
from trio_mcp_resilient._nursery import open_hidden_nursery
from trio_mcp_resilient._states import State

SHOWN_PINGS = 60
SHOWN_EVENTS = 12
BARS = "▁▂▃▄▅▆▇█"
LOST = "×"
"""A ping that met a loss, or no server: how long it took says nothing of the network."""

Tell = Callable[[Data], None]


async def watch(target: Target, tell: Tell, *, interval: float, span: float) -> None:
    """Watch an endpoint through every restart.

    Args:
        target: whom to watch. Its `attempts` and `timeout` do not count: it is awaited for ever.
        tell: called with each record, in the order things happened.
        interval: seconds between two pings.
        span: seconds until the end; infinite for no end.

    Raises:
        HandshakeFailed: the first answer was final: a wrong URL, refused credentials.
        GaveUp: there was no session in all of the span.

    Cancellation: the session is ended, as always. Checkpoint: always.
    """
    send, receive = trio.open_memory_channel[Data](math.inf)
    failures: list[ResilientError] = []
    began = trio.current_time()

    def note(event: str, **told: object) -> None:
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        elapsed = round(trio.current_time() - began, 3)
        send.send_nowait({"at": now, "seconds": elapsed, "event": event, **told})

    def on_event(event: Event) -> None:
        # That the watch itself ends is no news of the endpoint.
        if not (isinstance(event, StateChanged) and event.after is State.CLOSED):
            note(type(event).__name__, **asdict(event))

    async def observe() -> None:
        seen = False
        with send:
            try:
                with trio.move_on_after(span):
                    async with target.client(get_stream=True, for_ever=True, on_event=on_event) as client:
                        seen = True
                        await _ping_for_ever(client, interval, note)
            except ResilientError as error:
                failures.append(error)
            else:
                if not seen:
                    failures.append(GaveUp(f"no session at {target.endpoint} within {span:g} s"))

    async with open_hidden_nursery() as nursery:
        with receive:
            nursery.start_soon(observe)
            async for record in receive:
                tell(record)
    if failures:
        raise failures[0]


async def _ping_for_ever(client: Client, interval: float, note: Callable[..., None]) -> None:
    while True:
        began, generation = trio.current_time(), client.generation
        told: Data = {}
        try:
            await client.ping()
        except ResilientError as error:
            # It is repaired in the background, or by the next ping: nothing ends a watch.
            note("PingFailed", generation=client.generation, error=describe(error))
            await trio.sleep(interval)
            continue
        except MCPError as error:
            # A server that does not know `ping` is there all the same.
            told["error"] = describe(error)
        if client.generation != generation:
            told["recovered"] = True
        milliseconds = round(1000 * (trio.current_time() - began), 3)
        note("Ping", generation=client.generation, milliseconds=milliseconds, **told)
        await trio.sleep(interval)


@final
@dataclass
class Picture:
    """What the records add up to."""

    endpoint: str
    state: str = "connecting"
    since: float = 0.0
    """Since when, in seconds from the beginning."""
    generation: int = 0
    protocol_version: str = ""
    pings: int = 0
    failed_pings: int = 0
    losses: int = 0
    recoveries: list[float] = field(default_factory=list[float])
    """How long each took, in seconds; the first connect is none."""
    latencies: deque[float | None] = field(default_factory=lambda: deque(maxlen=SHOWN_PINGS))
    """Milliseconds of the last pings; None for one that met a loss."""
    events: deque[Data] = field(default_factory=lambda: deque(maxlen=SHOWN_EVENTS))
    """The last records that are no pings."""

    def take(self, record: Data) -> None:
        """Take the next record."""
        match record["event"]:
            case "Ping":
                self.pings += 1
                self.latencies.append(None if record.get("recovered") else record["milliseconds"])
                return
            case "PingFailed":
                self.pings += 1
                self.failed_pings += 1
                self.latencies.append(None)
            case "StateChanged":
                self.state, self.since = record["after"], record["seconds"]
            case "SessionStarted":
                self.generation = record["generation"]
                self.protocol_version = record["protocol_version"]
                if self.generation > 1:
                    self.recoveries.append(record["recovery"]["seconds"])
            case "SessionEnded":
                self.losses += record["reason"] == "lost"
            case _:
                pass
        self.events.append(record)

    def summary(self) -> Data:
        """Return what is printed at the end."""
        return {
            "ok": self.generation > 0,
            "event": "Summary",
            "endpoint": self.endpoint,
            "state": self.state,
            "generation": self.generation,
            "protocol_version": self.protocol_version,
            "pings": self.pings,
            "failed_pings": self.failed_pings,
            "losses": self.losses,
            "recovery_seconds": [round(seconds, 3) for seconds in self.recoveries],
            "median_milliseconds": self.median,
        }

    @property
    def median(self) -> float | None:
        """The median of the last latencies; None if there are none."""
        known = sorted(latency for latency in self.latencies if latency is not None)
        return known[len(known) // 2] if known else None


def sparkline(latencies: Iterable[float | None]) -> str:
    """Return latencies as bars, the highest being the longest of them."""
    row = list(latencies)
    most = max((latency for latency in row if latency is not None), default=0.0) or 1.0
    return "".join(
        LOST if latency is None else BARS[min(int(latency / most * len(BARS)), len(BARS) - 1)]
        for latency in row
    )


def in_words(record: Data) -> str:
    """Return a record as a sentence without a subject."""
    match record:
        case {"event": "StateChanged", "before": before, "after": after}:
            return f"{before} -> {after}"
        case {"event": "SessionStarted", "generation": number, "protocol_version": version, "recovery": how}:
            tries = "1 attempt" if how["attempts"] == 1 else f"{how['attempts']} attempts"
            return f"generation {number} stands ({version}), after {tries} in {how['seconds']:.2f} s"
        case {"event": "SessionEnded", "generation": number, "reason": reason, "evidence": evidence}:
            seen = "" if evidence is None else f": {evidence['what']}"
            said = f' "{evidence["excerpt"]}"' if evidence is not None and evidence["excerpt"] else ""
            return f"generation {number} {reason}{seen}{said}"
        case {"event": "Ping", "generation": number, "milliseconds": milliseconds}:
            return f"generation {number} answered in {milliseconds:.1f} ms"
        case {"event": "PingFailed", "error": error}:
            return f"no answer: {error}"
        case {"event": "ToolsChanged", "added": added, "removed": removed, "changed": changed}:
            parts = (("new", added), ("gone", removed), ("changed", changed))
            return "tools " + "; ".join(f"{how}: {', '.join(names)}" for how, names in parts if names)
        case {"event": "Resent", "method": method, "generation": number}:
            return f"{method} sent again, in generation {number}"
        case {"event": "StreamGap"}:
            return "what the server said unasked meanwhile may have been missed"
        case {"event": "RecoveryFailed", "error": error}:
            return f"gave up: {error}"
        case {"event": "Flapping", "losses": losses}:
            return f"{losses} losses in a short time: the endpoint may be load-balanced without stickiness"
        case _:
            skipped = ("at", "seconds", "event")
            rest = "; ".join(f"{name}: {value}" for name, value in record.items() if name not in skipped)
            return f"{record['event']} ({rest})" if rest else str(record["event"])
