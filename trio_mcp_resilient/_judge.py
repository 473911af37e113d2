"""The detector's table, and what the application adds to it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from mcp_types.version import LATEST_HANDSHAKE_VERSION

from trio_mcp_resilient._detector import Verdict, classify
from trio_mcp_resilient._eras import speaks_otherwise

logger = logging.getLogger("trio_mcp_resilient")


@dataclass(frozen=True)
class Facts:
    """What is known of an HTTP answer when it is judged: what `classify` takes."""

    http_method: str
    rpc_method: str | None
    """The JSON-RPC method that was posted; None for a GET, or for an answer to the server."""
    session_id_sent: bool
    status: int
    content_type: str
    body: bytes
    """The beginning of the body, at most 64 KiB."""
    protocol_version: str = LATEST_HANDSHAKE_VERSION
    """The version that was agreed on."""


Detect = Callable[[Facts], Verdict | None]
"""An application's own judgement of an answer; None where it has none, and the table decides."""


class Judge:
    """Judges answers: the application first, if it has a say, then the table."""

    def __init__(self, detect: Detect | None) -> None:
        self._detect = detect

    def verdict(self, facts: Facts) -> Verdict:
        """Return what an answer means. Never raises.

        The application's function fails closed: when it raises, or says that a session was lost
        whose id was never sent, the table decides, and a healthy session is kept.
        """
        if self._detect is not None:
            try:
                verdict = self._detect(facts)
            except Exception:
                logger.exception("detect raised; the table decides")
                verdict = None
            if verdict is not None and (verdict is not Verdict.SESSION_LOST or facts.session_id_sent):
                return Verdict(verdict)
        if speaks_otherwise(facts.protocol_version, facts.status, facts.body):
            return Verdict.SESSION_LOST
        return classify(
            http_method=facts.http_method,
            rpc_method=facts.rpc_method,
            session_id_sent=facts.session_id_sent,
            status=facts.status,
            content_type=facts.content_type,
            body=facts.body,
        )
