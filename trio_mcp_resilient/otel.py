"""OpenTelemetry: a span for each request, its context to the server, and the client's metrics.

    from trio_mcp_resilient import open_client
    from trio_mcp_resilient.otel import OpenTelemetryInstrument

    async with open_client(url, instruments=[OpenTelemetryInstrument()]) as client:
        ...

Without an SDK of OpenTelemetry set up, its interface does nothing, and so does this.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import final

from mcp.shared.exceptions import MCPError
from opentelemetry.metrics import MeterProvider, get_meter
from opentelemetry.propagate import inject
from opentelemetry.trace import SpanKind, StatusCode, TracerProvider, get_current_span, get_tracer

from trio_mcp_resilient._errors import ResilientError
from trio_mcp_resilient._events import (
    Event,
    OutcomeLost,
    RecoveryFailed,
    Resent,
    SessionEnded,
    SessionStarted,
)
from trio_mcp_resilient._flight import EndReason
from trio_mcp_resilient._instruments import Carried

__all__ = ["OpenTelemetryInstrument"]

SCOPE = "trio_mcp_resilient"


@final
class OpenTelemetryInstrument:
    """Traces requests and counts what becomes of sessions; may watch any number of clients.

    Spans are those of the SDK's own dispatcher: `MCP send tools/call add`, of kind CLIENT, with the
    W3C trace context in the request's `_meta` (SEP-414). A request that is sent twice is one span,
    with an event for the second sending.

    Metrics, all counters but the last:

    - `mcp.client.generations`: sessions that stood
    - `mcp.client.losses`: sessions that the server had forgotten
    - `mcp.client.recoveries` and `mcp.client.recovery_failures`
    - `mcp.client.resends` and `mcp.client.outcomes_unknown`, by `mcp.method.name`
    - `mcp.client.recovery.duration`: a histogram of seconds

    Args:
        tracer_provider: None for the global one, like the next.
        meter_provider: likewise.
    """

    def __init__(
        self, tracer_provider: TracerProvider | None = None, meter_provider: MeterProvider | None = None
    ) -> None:
        self._tracer = get_tracer(SCOPE, tracer_provider=tracer_provider)
        meter = get_meter(SCOPE, meter_provider=meter_provider)
        self._generations = meter.create_counter("mcp.client.generations", "{session}")
        self._losses = meter.create_counter("mcp.client.losses", "{session}")
        self._recoveries = meter.create_counter("mcp.client.recoveries", "{recovery}")
        self._failures = meter.create_counter("mcp.client.recovery_failures", "{recovery}")
        self._resends = meter.create_counter("mcp.client.resends", "{request}")
        self._unknown = meter.create_counter("mcp.client.outcomes_unknown", "{request}")
        self._duration = meter.create_histogram("mcp.client.recovery.duration", "s")

    def event(self, event: Event, /) -> None:
        """Count an event, and note in the current span that its request was sent again.

        Args:
            event: what happened.
        """
        match event:
            case SessionStarted(generation=1):
                self._generations.add(1)
            case SessionStarted(recovery=recovery):
                self._generations.add(1)
                self._recoveries.add(1)
                self._duration.record(recovery.seconds)
            case SessionEnded(reason=EndReason.LOST):
                self._losses.add(1)
            case RecoveryFailed():
                self._failures.add(1)
            case Resent(method=method, generation=generation):
                self._resends.add(1, {"mcp.method.name": method})
                # The event is told in the task of the request, whose span is the current one.
                get_current_span().add_event("resent", {"generation": generation})
            case OutcomeLost(method=method):
                self._unknown.add(1, {"mcp.method.name": method})
            case _:
                pass

    @contextmanager
    def request(self, method: str, target: str | None, /) -> Generator[Carried]:
        """Open a span around a request and yield its context, for the server to go on from.

        Args:
            method: the JSON-RPC method.
            target: the tool or prompt that is called; None for what has no name.
        """
        name = f"MCP send {method} {target}" if target else f"MCP send {method}"
        with self._tracer.start_as_current_span(
            name,
            kind=SpanKind.CLIENT,
            attributes={"mcp.method.name": method},
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            carried: Carried = {}
            inject(carried)
            try:
                yield carried
            except MCPError as error:
                code = str(error.error.code)
                span.set_attributes({"error.type": code, "rpc.response.status_code": code})
                span.set_status(StatusCode.ERROR, error.error.message)
                raise
            except ResilientError as error:
                span.set_attribute("error.type", type(error).__name__)
                span.set_status(StatusCode.ERROR, str(error))
                raise
