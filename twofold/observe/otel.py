"""OpenTelemetry's traces and metrics of requests, sent to a collector by OTLP over HTTP.

The SDK and its exporter are an extra (``otel``), imported only when an endpoint is set. They send from their own
threads; without a reachable collector telemetry is lost, but requests are not delayed. Each ``Telemetry`` has its own
providers; the process has no global ones.

Attributes follow the GenAI conventions (open-telemetry/semantic-conventions-genai): sizes, times and names, never
content. ``gen_ai.usage.input_tokens`` includes cached tokens in every API protocol.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from itertools import islice
from typing import Any, Final, Protocol, Self

from opentelemetry.context import Context
from opentelemetry.metrics import Histogram, MeterProvider
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, TracerProvider, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from twofold.core.errors import UsageError
from twofold.core.report import RequestMetrics
from twofold.observe.served import ServedRequest

PROVIDER: Final = "twofold"
OPERATIONS: Final = {
    "/v1/chat/completions": "chat",
    "/v1/responses": "chat",
    "/v1/messages": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
}
"""GenAI operations by route; requests of other routes are not reported."""

Value = str | int | float | bool | tuple[str, ...]
Attributes = dict[str, Value]
DURATION_S: Final = tuple(0.01 * 2**i for i in range(14))
"""0.01, 0.02, … 81.92"""
FIRST_TOKEN_S: Final = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
)  # fmt: skip
TOKEN_S: Final = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
SCOPE: Final = "twofold"
MAX_STALLS: Final = 32
"""Maximum stalls of a prompt that a span has as events."""
MAX_TRACEPARENT_CHARS: Final = 64
FLUSH_MS: Final = 3_000
"""Time to send the remaining telemetry when the server ends."""


def common_attributes(served: ServedRequest, operation: str) -> Attributes:
    """The attributes that spans and metrics share."""
    found: Attributes = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.request.model": served.model,
        "gen_ai.response.model": served.model,
    }
    if served.status >= 400:
        found["error.type"] = served.error or str(served.status)
    return found


def span_attributes(served: ServedRequest, operation: str) -> Attributes:
    """Attributes of a span; those without a value are omitted."""
    reasons = tuple(reason for report in served.reports for reason in report.finish_reasons)
    known: dict[str, Value | None] = {
        "gen_ai.response.id": served.request_id,
        "gen_ai.response.finish_reasons": reasons or None,
        "gen_ai.response.time_to_first_chunk": served.first_token_s if served.stream else None,
        "http.route": served.endpoint,
        "http.response.status_code": served.status,
        "twofold.service_tier": served.tier,
        "twofold.response_cache.hit": True if served.cached_answer else None,
        "twofold.cost": served.cost,
        "twofold.cost.currency": served.currency or None,
    }
    return common_attributes(served, operation) | _given(known | _asked(served) | _usage(served))


def _asked(served: ServedRequest) -> dict[str, Value | None]:
    params = served.params
    return {
        "gen_ai.request.max_tokens": params.max_tokens,
        "gen_ai.request.temperature": params.temperature,
        "gen_ai.request.top_p": params.top_p,
        "gen_ai.request.top_k": params.top_k,
        "gen_ai.request.seed": params.seed,
        "gen_ai.request.choice.count": params.n if params.n != 1 else None,
        "gen_ai.request.stream": served.stream,
    }


def _usage(served: ServedRequest) -> dict[str, Value | None]:
    if not served.reports:
        return {}
    return {
        "gen_ai.usage.input_tokens": served.prompt_tokens,
        "gen_ai.usage.output_tokens": served.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": served.cached_tokens,
        "gen_ai.usage.cache_creation.input_tokens": sum(served.written_tokens.values()),
        "gen_ai.usage.reasoning.output_tokens": served.reasoning_tokens,
    }


def _given(attributes: Mapping[str, Value | None]) -> Attributes:
    return {name: value for name, value in attributes.items() if value is not None}


class RequestMeters:
    """``ServedObserver``: records the times of each request."""

    def __init__(self, provider: MeterProvider) -> None:
        meter = provider.get_meter(SCOPE)

        def seconds(name: str, text: str, bounds: tuple[float, ...]) -> Histogram:
            return meter.create_histogram(
                f"gen_ai.server.{name}", "s", text, explicit_bucket_boundaries_advisory=bounds
            )

        self._duration = seconds("request.duration", "Seconds from a request to the end of its response.", DURATION_S)
        self._first = seconds(
            "time_to_first_token", "Seconds to the first token of a successful response.", FIRST_TOKEN_S
        )
        self._each = seconds("time_per_output_token", "Seconds per token after the first.", TOKEN_S)

    def on_served(self, served: ServedRequest) -> None:
        operation = OPERATIONS.get(served.endpoint)
        if operation is None:
            return
        attributes = common_attributes(served, operation)
        self._duration.record(served.duration_s, attributes)
        if served.status >= 400:
            return
        if served.ttft_s is not None:
            self._first.record(served.ttft_s, attributes)
        if served.tpot_s is not None:
            self._each.record(served.tpot_s, attributes)


def wall_offset() -> float:
    """The time of day minus the engine's clock, in seconds."""
    return time.time() - time.perf_counter()


class RequestSpans:
    """``ServedObserver``: makes a span of each request, and child spans of its phases."""

    def __init__(self, provider: TracerProvider, offset: Callable[[], float] = wall_offset) -> None:
        self._tracer = provider.get_tracer(SCOPE)
        self._parents = TraceContextTextMapPropagator()
        self._offset = offset

    def on_served(self, served: ServedRequest) -> None:
        operation = OPERATIONS.get(served.endpoint)
        if operation is None:
            return
        ended = served.arrived_at + served.duration_s
        span = self._tracer.start_span(
            f"{operation} {served.model}".strip(),
            context=self._parent(served.traceparent),
            kind=SpanKind.SERVER,
            start_time=_ns(served.arrived_at),
        )
        if span.is_recording():
            span.set_attributes(span_attributes(served, operation))
            if served.status >= 500:
                span.set_status(Status(StatusCode.ERROR))
            self._phases(span, served, ended)
        span.end(_ns(ended))

    def _parent(self, traceparent: str | None) -> Context:
        """The context of the caller's span; that of a new trace if there is no valid one."""
        if traceparent is None or len(traceparent) > MAX_TRACEPARENT_CHARS:
            return Context()
        return self._parents.extract({"traceparent": traceparent}, Context())

    def _phases(self, span: Span, served: ServedRequest, ended: float) -> None:
        offset, context = self._offset(), set_span_in_context(span, Context())

        def wall(moment: float) -> int:
            return _ns(min(max(moment + offset, served.arrived_at), ended))

        for report in served.reports:
            for name, start, end in report.phases():
                made = _phase_attributes(name, report)
                child = self._tracer.start_span(name, context, start_time=wall(start), attributes=made)
                child.end(wall(end))
            for pause in islice(report.record.pauses, MAX_STALLS):
                stall: Attributes = {
                    "twofold.cause": pause.cause.value,
                    "twofold.seconds": pause.end - pause.start,
                }
                span.add_event("stalled", stall, wall(pause.start))


def _phase_attributes(name: str, report: RequestMetrics) -> Attributes:
    record = report.record
    if name == "prefill":
        return {
            "twofold.prompt_tokens": report.prompt_tokens,
            "twofold.cached_tokens": report.cached_tokens,
            "twofold.loaded_tokens": report.loaded_tokens,
            "twofold.steps": record.prefill.steps,
        }
    if name == "decode":
        return {
            "twofold.output_tokens": report.output_tokens,
            "twofold.steps": record.decode.steps,
            "twofold.preemptions": record.preemptions,
            "twofold.speculation.drafted_tokens": record.drafted,
            "twofold.speculation.accepted_tokens": record.accepted,
            "twofold.speculation.saved_seconds": record.saved_s,
        }
    return {}


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


class Provider(Protocol):
    """The methods of the SDK's providers that ``close`` calls."""

    def force_flush(self, timeout_millis: float = ...) -> bool: ...

    def shutdown(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Telemetry:
    """``ServedObserver``: sends spans and metrics of requests to a collector."""

    spans: RequestSpans
    meters: RequestMeters
    providers: tuple[Provider, ...]

    @classmethod
    def to(cls, endpoint: str, *, service: str = "twofold", version: str = "") -> Self:
        """Telemetry for the collector at ``endpoint``, such as http://localhost:4318 (OTEL_EXPORTER_OTLP_ENDPOINT).

        Raises UsageError if the extra is not installed.
        """
        base = endpoint.rstrip("/")
        resource = _sdk("sdk.resources").Resource.create({"service.name": service, "service.version": version})
        spans = _sdk("exporter.otlp.proto.http.trace_exporter").OTLPSpanExporter(endpoint=f"{base}/v1/traces")
        metrics = _sdk("exporter.otlp.proto.http.metric_exporter").OTLPMetricExporter(endpoint=f"{base}/v1/metrics")
        tracers = _sdk("sdk.trace").TracerProvider(resource=resource, shutdown_on_exit=False)
        tracers.add_span_processor(_sdk("sdk.trace.export").BatchSpanProcessor(spans))
        reader = _sdk("sdk.metrics.export").PeriodicExportingMetricReader(metrics)
        meters = _sdk("sdk.metrics").MeterProvider([reader], resource=resource, shutdown_on_exit=False)
        return cls(RequestSpans(tracers), RequestMeters(meters), (tracers, meters))

    def on_served(self, served: ServedRequest) -> None:
        self.spans.on_served(served)
        self.meters.on_served(served)

    def close(self) -> None:
        """Sends the remaining telemetry and ends the threads. It may block for seconds."""
        for provider in self.providers:
            provider.force_flush(FLUSH_MS)
            provider.shutdown()


def _sdk(module: str) -> Any:
    try:
        return import_module(f"opentelemetry.{module}")
    except ImportError as error:
        raise UsageError(
            "OTEL_EXPORTER_OTLP_ENDPOINT is set, but OpenTelemetry's SDK and OTLP exporter are not installed.",
            hint="Run: pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-http",
        ) from error
