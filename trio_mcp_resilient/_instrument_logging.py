"""Events in the log, at the level of what they mean."""

from __future__ import annotations

import logging

from trio_mcp_resilient._events import (
    Event,
    Flapping,
    OutcomeLost,
    RecoveryFailed,
    Resent,
    RestoreFailed,
    SessionEnded,
    SessionStarted,
    StateChanged,
    StreamGap,
    ToolsChanged,
)

LEVELS: dict[type[Event], int] = {
    StateChanged: logging.DEBUG,
    SessionStarted: logging.INFO,
    SessionEnded: logging.INFO,
    Resent: logging.INFO,
    StreamGap: logging.INFO,
    ToolsChanged: logging.INFO,
    RestoreFailed: logging.WARNING,
    OutcomeLost: logging.WARNING,
    Flapping: logging.WARNING,
    RecoveryFailed: logging.ERROR,
}


class LoggingInstrument:
    """Writes each event to a logger: what heals by itself as INFO, what needs somebody higher.

    The package's own logger, `trio_mcp_resilient`, tells a client's life in sentences. This one is
    for those who want the events themselves, as `record.event`, in a logger of their own.

    Args:
        logger: a logger, or the name of one.
    """

    def __init__(self, logger: logging.Logger | str) -> None:
        self._logger = logging.getLogger(logger) if isinstance(logger, str) else logger

    def event(self, event: Event, /) -> None:
        """Log one event; it is turned into text only if somebody reads it.

        Args:
            event: what happened.
        """
        self._logger.log(LEVELS.get(type(event), logging.INFO), "%s", event, extra={"event": event})
