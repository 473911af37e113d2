"""A call in flight, and how the end of its session reaches it."""

from __future__ import annotations

import enum
from dataclasses import dataclass

import trio
from mcp.shared.dispatcher import ProgressFnT

from trio_mcp_resilient._errors import Evidence
from trio_mcp_resilient._jsonrpc import RequestId


class EndReason(enum.StrEnum):
    """Why a generation ended."""

    LOST = "lost"
    """The server no longer knows the session."""
    INVALIDATED = "invalidated"
    """The application asked for a fresh one."""
    CLOSED = "closed"
    """The client was closed."""


@dataclass(frozen=True)
class GenerationEnd:
    """How a generation ended: what is broadcast to its calls in flight."""

    reason: EndReason
    evidence: Evidence | None = None


_Channel = tuple[trio.MemorySendChannel[GenerationEnd], trio.MemoryReceiveChannel[GenerationEnd]]


class Flight:
    """One call in flight: the scope its request runs in, and the channel it hears of the end by.

    The call keeps its own POST after it has heard, because only its own answer, refusal or cut
    tells whether it ran. The channel is opened by whoever comes first, the end of the session or
    a call that waits for something: nearly every call is answered before there is either.
    """

    __slots__ = ("_channel", "lasting", "on_progress", "request_id", "scope", "sent")

    def __init__(
        self, request_id: RequestId, on_progress: ProgressFnT | None, *, lasting: bool = False
    ) -> None:
        self.request_id = request_id
        self.on_progress = on_progress
        self.lasting = lasting
        """Whether its answer is a stream without an end, which nobody waits for."""
        self.sent = False
        """Whether the first byte was about to be written: then the server may have the request."""
        self.scope = trio.CancelScope()
        self._channel: _Channel | None = None

    def _open(self) -> _Channel:
        if self._channel is None:
            # One end is all a flight can hear, so the sender never blocks and never loses it.
            self._channel = trio.open_memory_channel[GenerationEnd](1)
        return self._channel

    def tell(self, end: GenerationEnd, drain: float) -> None:
        """Broadcast the end to this call and bound what it may still wait for, in seconds."""
        if not self.sent:
            # Still waiting to be written: it need not be, for the next session will take it.
            self.scope.cancel()
            return
        self._open()[0].send_nowait(end)
        if self.lasting:
            drain = 0.0
        self.scope.deadline = min(self.scope.deadline, trio.current_time() + drain)

    async def leave(self) -> None:
        """Note that the request is about to be written; the last moment to be told not to.

        Checkpoint: only for cancellation.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        self.sent = True

    async def end_within(self, seconds: float) -> GenerationEnd | None:
        """Wait for the end of the session, at most `seconds`; None if it still stands then."""
        hear = self._open()[1]
        with trio.move_on_after(seconds):
            return await hear.receive()
        return None

    def close(self) -> None:
        """Let go of the channel."""
        if self._channel is not None:
            for side in self._channel:
                side.close()
