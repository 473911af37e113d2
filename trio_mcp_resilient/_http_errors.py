"""How an HTTP/1.1 exchange fails, beyond what `WireError` says of it."""

from __future__ import annotations

from trio_mcp_resilient._wire import Stage, WireError


class TimedOut(WireError):
    """The peer, or the way to it, took longer than it was given."""


class Malformed(WireError):
    """What came back is not HTTP/1.1, or ended in its middle.

    The parser's own words are not in its chain, for they quote header lines, and those have
    secrets in them.
    """


class NotHTTP(ValueError):
    """What the caller asked to send is not valid HTTP."""

    def __init__(self, message: str, stage: Stage = Stage.NOT_CONNECTED) -> None:
        super().__init__(message)
        self.stage = stage


class NoSlot(TimedOut):
    """All connections that are allowed were busy for longer than the pool timeout."""
