"""Whoever watches a client: instruments, a channel of events, logging and OpenTelemetry."""

from __future__ import annotations

import logging
import re
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest
import trio
from mcp import MCPError
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from trio.testing import MockClock

from tests.kit import add, open_pair
from trio_mcp_resilient import (
    Event,
    LoggingInstrument,
    OutcomeUnknown,
    Resent,
    SessionEnded,
    SessionStarted,
    State,
    StateChanged,
)
from trio_mcp_resilient.otel import OpenTelemetryInstrument

CALL = "tools/call"


class Recorder:
    """An instrument that keeps what it was told, and marks each request."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def event(self, event: Event, /) -> None:
        self.told.append(type(event).__name__)

    @contextmanager
    def request(self, method: str, target: str | None, /) -> Generator[dict[str, object]]:
        self.told.append(("begins", method, target))
        try:
            yield {"mark": len(self.told)}
        except BaseException as error:
            self.told.append(("ends", type(error).__name__))
            raise
        self.told.append(("ends", None))


async def test_an_instrument_sees_requests_and_events_in_their_order(autojump_clock: MockClock) -> None:
    recorder = Recorder()
    async with open_pair(get_stream=False, instruments=[recorder]) as (server, client):
        recorder.told.clear()
        server.lose_session()
        await add(client)
    assert recorder.told[:7] == [
        ("begins", CALL, "add"),
        "SessionEnded",
        "StateChanged",
        "StateChanged",
        "SessionStarted",
        "Resent",
        ("ends", None),
    ]
    marks = [request.params["_meta"]["mark"] for request in server.posts(CALL)]
    assert marks == [1, 1], "both POSTs carry what the instrument gave"


async def test_an_instrument_is_told_how_a_request_failed(autojump_clock: MockClock) -> None:
    recorder = Recorder()
    async with open_pair(get_stream=False, instruments=[recorder]) as (server, client):
        await client.list_tools()
        server.cut("before-head", when=CALL)
        with pytest.raises(OutcomeUnknown):
            await add(client)
        with trio.move_on_after(1):
            await client.call_tool("slow", {"seconds": 60})
    assert [told for told in recorder.told if told[0] == "ends" and told[1]] == [
        ("ends", "OutcomeUnknown"),
        ("ends", "Cancelled"),
    ]


class Broken:
    """An instrument that raises whatever it is asked."""

    def event(self, event: Event, /) -> None:
        raise RuntimeError("an event")

    def request(self, method: str, target: str | None, /) -> Any:
        raise RuntimeError("a request")


async def test_an_instrument_that_raises_costs_nothing_but_its_own(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = Recorder()
    async with open_pair(get_stream=False, instruments=[Broken(), recorder]) as (server, client):
        server.lose_session()
        assert await add(client) == "3"
    assert ("begins", CALL, "add") in recorder.told
    assert "SessionEnded" in recorder.told
    assert {"an event", "a request"} <= {str(r.exc_info[1]) for r in caplog.records if r.exc_info}


async def test_two_that_watch_are_told_in_the_order_they_were_given(autojump_clock: MockClock) -> None:
    told: list[str] = []

    class Named:
        def __init__(self, name: str) -> None:
            self.name = name

        def event(self, event: Event, /) -> None:
            told.append(self.name)

    async with open_pair(
        get_stream=False, on_event=lambda event: told.append("callback"), instruments=[Named("a"), Named("b")]
    ):
        pass
    assert told[:3] == ["callback", "a", "b"]


# -- a channel ---------------------------------------------------------------------------------


async def test_events_come_by_a_channel_while_its_block_runs(autojump_clock: MockClock) -> None:
    async with open_pair(get_stream=False) as (server, client):
        server.lose_session()
        async with client.events() as events:
            await add(client)
            seen = [events.receive_nowait() for _ in range(5)]
            with pytest.raises(trio.WouldBlock):
                events.receive_nowait()
        client.invalidate()
        await client.wait_ready()
    kinds = [SessionEnded, StateChanged, StateChanged, SessionStarted, Resent]
    assert [type(event) for event in seen] == kinds


async def test_the_last_event_of_a_channel_is_the_end(autojump_clock: MockClock) -> None:
    async def watch(client: Any, task_status: trio.TaskStatus[None]) -> None:
        async with client.events() as events:
            task_status.started()
            async for event in events:
                seen.append(event)
                if event == StateChanged(State.READY, State.CLOSED):
                    return

    seen: list[Event] = []
    async with trio.open_nursery() as nursery:
        async with open_pair(get_stream=False) as (_, client):
            await nursery.start(watch, client)
    assert seen == [StateChanged(State.READY, State.CLOSED)]


async def test_a_channel_that_is_full_drops_the_oldest(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_pair(get_stream=False) as (_, client):
        async with client.events(max_buffered=2) as events:
            client.invalidate()
            await client.wait_ready()
            assert [type(events.receive_nowait()) for _ in range(2)] == [StateChanged, SessionStarted]
    assert "2 events wait to be received: the oldest was dropped" in caplog.text


async def test_a_channel_that_was_closed_is_no_error(autojump_clock: MockClock) -> None:
    async with open_pair(get_stream=False) as (_, client):
        async with client.events() as events:
            events.close()
            client.invalidate()
            await client.wait_ready()
        assert await add(client) == "3"


# -- logging -----------------------------------------------------------------------------------


async def test_events_are_logged_at_the_level_of_what_they_mean(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "app.mcp")
    async with open_pair(get_stream=False, instruments=[LoggingInstrument("app.mcp")]) as (server, client):
        await client.list_tools()
        server.lose_session()
        await add(client)
        server.cut("before-head", when=CALL)
        with pytest.raises(OutcomeUnknown):
            await add(client)
    mine = [record for record in caplog.records if record.name == "app.mcp"]
    levels = {type(vars(record)["event"]).__name__: record.levelname for record in mine}
    assert levels["StateChanged"] == "DEBUG"
    assert levels["SessionEnded"] == levels["SessionStarted"] == levels["Resent"] == "INFO"
    assert levels["OutcomeLost"] == "WARNING"


async def test_an_event_that_nobody_reads_is_not_turned_into_text(autojump_clock: MockClock) -> None:
    class Unread:
        def __str__(self) -> str:
            raise AssertionError("nobody reads it")

    logger = logging.getLogger("app.silent")
    logger.setLevel(logging.CRITICAL)
    event: Any = Unread()
    LoggingInstrument(logger).event(event)


# -- OpenTelemetry -----------------------------------------------------------------------------


class Telemetry:
    """An OpenTelemetry set up in memory."""

    def __init__(self) -> None:
        self.spans = InMemorySpanExporter()
        tracers = TracerProvider()
        tracers.add_span_processor(SimpleSpanProcessor(self.spans))
        self.tracer = tracers.get_tracer("app")
        self._reader = InMemoryMetricReader()
        self.instrument = OpenTelemetryInstrument(tracers, MeterProvider([self._reader]))

    def metrics(self) -> dict[str, float]:
        """The sums of all counters, and the counts of all histograms."""
        sums: dict[str, float] = {}
        data = self._reader.get_metrics_data()
        assert data is not None
        for resource in data.resource_metrics:
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    points: Any = metric.data.data_points
                    sums[metric.name] = sum(getattr(p, "value", getattr(p, "count", 0)) for p in points)
        return sums


async def test_a_request_is_one_span_whose_context_the_server_gets(autojump_clock: MockClock) -> None:
    telemetry = Telemetry()
    async with open_pair(get_stream=False, instruments=[telemetry.instrument]) as (server, client):
        await client.list_tools()
        server.lose_session()
        with telemetry.tracer.start_as_current_span("the application's"):
            await add(client)
        first, second = server.posts(CALL)
    span = next(s for s in telemetry.spans.get_finished_spans() if s.name == "MCP send tools/call add")
    outer = next(s for s in telemetry.spans.get_finished_spans() if s.name == "the application's")
    assert span.parent == outer.get_span_context()
    assert span.attributes == {"mcp.method.name": CALL}
    assert [(event.name, dict(event.attributes or {})) for event in span.events] == [
        ("resent", {"generation": 2})
    ]
    traceparent = first.params["_meta"]["traceparent"]
    assert traceparent == second.params["_meta"]["traceparent"]
    assert re.fullmatch(rf"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-0[0-9]", traceparent)


async def test_a_span_says_how_its_request_failed(autojump_clock: MockClock) -> None:
    telemetry = Telemetry()
    async with open_pair(get_stream=False, instruments=[telemetry.instrument]) as (server, client):
        await client.list_tools()
        with pytest.raises(MCPError):
            await client.get_prompt("no such prompt")
        server.cut("before-head", when=CALL)
        with pytest.raises(OutcomeUnknown):
            await add(client)
    failed = [s for s in telemetry.spans.get_finished_spans() if not s.status.is_ok]
    assert [s.attributes["error.type"] for s in failed if s.attributes] == ["-32602", "OutcomeUnknown"]


async def test_the_metrics_count_what_became_of_sessions(autojump_clock: MockClock) -> None:
    telemetry = Telemetry()
    async with open_pair(get_stream=False, instruments=[telemetry.instrument]) as (server, client):
        await client.list_tools()
        for _ in range(2):
            server.lose_session()
            await add(client)
        server.cut("before-head", when=CALL)
        with pytest.raises(OutcomeUnknown):
            await add(client)
        client.invalidate()
        await client.wait_ready()
    assert telemetry.metrics() == {
        "mcp.client.generations": 4,
        "mcp.client.losses": 2,
        "mcp.client.recoveries": 3,
        "mcp.client.recovery.duration": 3,
        "mcp.client.resends": 2,
        "mcp.client.outcomes_unknown": 1,
    }
