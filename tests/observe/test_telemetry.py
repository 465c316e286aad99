"""OpenTelemetry's spans and meters: GenAI names, nested times, the caller's trace, and no content."""

from __future__ import annotations

import time
from collections.abc import Iterator
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import ConsoleMetricExporter, HistogramDataPoint, InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import NoOpTracerProvider, SpanKind, StatusCode

from tests.observe.served import START, failed, report, served
from twofold.core.errors import UsageError
from twofold.core.record import Pause, SequenceRecord, WaitReason
from twofold.observe import otel
from twofold.observe.otel import RequestMeters, RequestSpans, Telemetry

ARRIVED = 1_700_000_000.0
OFFSET = ARRIVED + 0.01 - START
"""The engine heard of it 10 ms after the server did."""
CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Traced:
    """A tracer whose spans are kept."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.spans = RequestSpans(provider, lambda: OFFSET)

    def __call__(self, **changes: Any) -> dict[str, ReadableSpan]:
        """Spans by name of one request."""
        self._exporter.clear()
        self.spans.on_served(served(**changes))
        return {span.name: span for span in self._exporter.get_finished_spans()}


@pytest.fixture
def traced() -> Traced:
    return Traced()


def test_a_request_is_a_span_with_its_phases(traced: Traced) -> None:
    spans = traced()
    root = spans.pop("chat small")
    assert list(spans) == ["queue", "prefill", "decode"]
    assert root.kind is SpanKind.SERVER
    assert (root.start_time, root.end_time) == (round(ARRIVED * 1e9), round((ARRIVED + 0.75) * 1e9))
    ends = [each.end_time for each in spans.values()]
    assert [each.start_time for each in spans.values()][1:] == ends[:-1]
    seconds = [(each.end_time or 0) / 1e9 - (each.start_time or 0) / 1e9 for each in spans.values()]
    assert seconds == pytest.approx([0.1, 0.2, 0.4], abs=1e-5)
    for each in spans.values():
        assert each.parent is not None
        assert root.context is not None
        assert each.parent.span_id == root.context.span_id
        assert (root.start_time or 0) <= (each.start_time or 0) <= (each.end_time or 0) <= (root.end_time or 0)


def test_drafts_are_attributes_of_decode(traced: Traced) -> None:
    given = report()
    given.record.speculate(drafted=9, accepted=6, saved_s=0.25)
    attributes = traced(reports=(given,))["decode"].attributes or {}
    found = [
        attributes[f"twofold.speculation.{name}"] for name in ("drafted_tokens", "accepted_tokens", "saved_seconds")
    ]
    assert found == [9, 6, 0.25]


def test_attributes_bear_the_names_of_the_conventions(traced: Traced) -> None:
    attributes = traced(written_tokens={300.0: 8}, reasoning_tokens=3)["chat small"].attributes
    assert attributes is not None
    expected = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "twofold",
        "gen_ai.request.model": "small",
        "gen_ai.request.max_tokens": 64,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.stream": True,
        "gen_ai.response.id": "req_1",
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.usage.input_tokens": 20,
        "gen_ai.usage.output_tokens": 21,
        "gen_ai.usage.cache_read.input_tokens": 16,
        "gen_ai.usage.cache_creation.input_tokens": 8,
        "gen_ai.usage.reasoning.output_tokens": 3,
    }
    assert expected.items() <= dict(attributes).items()
    assert "gen_ai.request.seed" not in attributes
    assert "error.type" not in attributes


@pytest.mark.parametrize(
    ("endpoint", "name"),
    [
        ("/v1/messages", "chat small"),
        ("/v1/responses", "chat small"),
        ("/v1/completions", "text_completion small"),
        ("/v1/embeddings", "embeddings small"),
        ("/tokenize", None),
    ],
)
def test_spans_are_named_by_operation(traced: Traced, endpoint: str, name: str | None) -> None:
    spans = traced(endpoint=endpoint)
    assert (name in spans) if name else not spans


def test_the_callers_trace_goes_on(traced: Traced) -> None:
    root = traced(traceparent=CALLER)["chat small"]
    assert root.context is not None
    assert root.parent is not None
    assert f"{root.context.trace_id:032x}" == CALLER.split("-")[1]
    assert f"{root.parent.span_id:016x}" == CALLER.split("-")[2]


@pytest.mark.parametrize("traceparent", [None, "", "garbage", "00-" + "0" * 32 + "-" + "0" * 16 + "-01", "9" * 10_000])
def test_a_trace_that_cannot_be_read_is_a_new_one(traced: Traced, traceparent: str | None) -> None:
    assert traced(traceparent=traceparent)["chat small"].parent is None


def test_a_trace_that_is_not_sampled_is_not_recorded(traced: Traced) -> None:
    assert not traced(traceparent=CALLER[:-2] + "00")


@pytest.mark.parametrize(("status", "code"), [(503, StatusCode.ERROR), (400, StatusCode.UNSET)])
def test_spans_of_errors_have_a_status_and_an_error_type(traced: Traced, status: int, code: StatusCode) -> None:
    ended = failed(status, "word")
    spans = traced(status=status, error="word", reports=ended.reports, gaps_s=[], first_token_s=None, bill=None)
    root = spans["chat small"]
    assert root.status.status_code is code
    assert root.attributes is not None
    assert root.attributes["error.type"] == "word"


def test_stalls_are_events_and_bounded(traced: Traced) -> None:
    pauses = [Pause(WaitReason.PREEMPTED, START + 0.4 + i / 1e4, START + 0.4 + (i + 1) / 1e4) for i in range(100)]
    root = traced(reports=(report(record=SequenceRecord(pauses=pauses)),))["chat small"]
    assert len(root.events) == 32
    assert root.events[0].attributes == {"twofold.cause": "preempted", "twofold.seconds": pytest.approx(1e-4)}


def test_times_of_a_clock_that_is_off_stay_inside(traced: Traced) -> None:
    late = report(arrival=START - 50, admitted=START + 50, first_token=None, last_token=None, finished=START + 60)
    spans = traced(reports=(late,))
    root = spans.pop("chat small")
    for each in spans.values():
        assert (root.start_time or 0) <= (each.start_time or 0) <= (each.end_time or 0) <= (root.end_time or 0)


def test_without_an_sdk_it_costs_next_to_nothing() -> None:
    telemetry = Telemetry(RequestSpans(NoOpTracerProvider()), RequestMeters(NoOpMeterProvider()), ())
    request = served()
    began = time.thread_time()
    for _ in range(200):
        telemetry.on_served(request)
    assert (time.thread_time() - began) / 200 < 200e-6


def points(reader: InMemoryMetricReader) -> Iterator[tuple[str, HistogramDataPoint]]:
    data = reader.get_metrics_data()
    for resource in data.resource_metrics if data else ():
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                for point in metric.data.data_points:
                    assert isinstance(point, HistogramDataPoint)
                    yield metric.name, point


def test_meters_record_the_servers_times() -> None:
    reader = InMemoryMetricReader()
    meters = RequestMeters(MeterProvider([reader], shutdown_on_exit=False))
    meters.on_served(served())
    meters.on_served(served(status=503, error="WorkerError"))
    meters.on_served(served(endpoint="/tokenize"))
    found = list(points(reader))
    sums = {name: point.sum for name, point in found if "error.type" not in (point.attributes or {})}
    assert sums == {
        "gen_ai.server.request.duration": pytest.approx(0.75),
        "gen_ai.server.time_to_first_token": pytest.approx(0.31),
        "gen_ai.server.time_per_output_token": pytest.approx(0.02),
    }
    assert len(found) == 4
    bounds = {name: tuple(point.explicit_bounds) for name, point in found}
    assert bounds["gen_ai.server.request.duration"][-1] == 81.92
    assert bounds["gen_ai.server.time_to_first_token"][0] == 0.001


def test_a_missing_extra_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(otel, "import_module", missing)
    with pytest.raises(UsageError, match="not installed") as raised:
        Telemetry.to("http://localhost:4318")
    assert "pip install opentelemetry-sdk" in str(raised.value.hint)


def test_telemetry_goes_to_the_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    def fake(name: str) -> Any:
        if not name.startswith("opentelemetry.exporter"):
            return import_module(name)
        return SimpleNamespace(OTLPSpanExporter=span_exporter, OTLPMetricExporter=metric_exporter)

    def span_exporter(endpoint: str) -> InMemorySpanExporter:
        endpoints.append(endpoint)
        return kept

    def metric_exporter(endpoint: str) -> Any:
        endpoints.append(endpoint)
        return ConsoleMetricExporter(out=open_null)

    kept, endpoints = InMemorySpanExporter(), list[str]()
    monkeypatch.setattr(otel, "import_module", fake)
    with open("/dev/null", "w", encoding="utf-8") as open_null:
        telemetry = Telemetry.to("http://collector:4318/", service="mine", version="1")
        telemetry.on_served(served())
        telemetry.close()
    assert endpoints == ["http://collector:4318/v1/traces", "http://collector:4318/v1/metrics"]
    spans = kept.get_finished_spans()
    assert [span.name for span in spans] == ["queue", "prefill", "decode", "chat small"]
    assert spans[0].resource.attributes["service.name"] == "mine"
