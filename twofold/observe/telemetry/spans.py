"""Traces: a request as a span with its phases as children, made when it has ended.

    chat smollm2                     server span, child of the caller's (traceparent)
    ├── queue      0.000 → 0.012     one row of phases for each prompt
    ├── prefill    0.012 → 0.080
    └── decode     0.080 → 1.310

Times of phases come from the engine's process. Its clock is the machine's monotonic one, which all processes share
(``time.perf_counter`` promises that), so one offset leads from it to the time of day.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final

from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, TracerProvider, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from twofold.core.report import RequestReport
from twofold.observe.served import ServedRequest
from twofold.observe.telemetry.names import OPERATIONS, Attributes, span_attributes

SCOPE: Final = "twofold"
MOST_STALLS: Final = 32
"""A span tells the times of so many stalls of a prompt."""
LONGEST_TRACEPARENT: Final = 64


def wall_offset() -> float:
    """Seconds from the engine's clock to the time of day."""
    return time.time() - time.perf_counter()


class RequestSpans:
    """``ServedObserver``: tells each request that ended to a tracer, which does nothing where no SDK is behind it."""

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
        """The caller's span; a new trace where there is none, or none that can be read."""
        if traceparent is None or len(traceparent) > LONGEST_TRACEPARENT:
            return Context()
        return self._parents.extract({"traceparent": traceparent}, Context())

    def _phases(self, span: Span, served: ServedRequest, ended: float) -> None:
        offset, context = self._offset(), set_span_in_context(span, Context())

        def wall(moment: float) -> int:
            return _ns(min(max(moment + offset, served.arrived_at), ended))

        for report in served.reports:
            for name, start, end, attributes in phases(report):
                child = self._tracer.start_span(name, context, start_time=wall(start), attributes=attributes)
                child.end(wall(end))
            for pause in islice(report.record.pauses, MOST_STALLS):
                stall: Attributes = {
                    "twofold.cause": pause.cause.value,
                    "twofold.seconds": pause.end - pause.start,
                }
                span.add_event("stalled", stall, wall(pause.start))


def phases(report: RequestReport) -> Iterator[tuple[str, float, float, Attributes]]:
    """Those that happened, with their start and end on the engine's clock and what was done in them."""
    admitted, first, last, record = report.admitted, report.first_token, report.last_token, report.record
    yield "queue", report.arrival, report.finished if admitted is None else admitted, {}
    if admitted is not None:
        tokens: Attributes = {
            "twofold.prompt_tokens": report.prompt_tokens,
            "twofold.cached_tokens": report.cached_tokens,
            "twofold.steps": record.prefill.steps,
        }
        yield "prefill", admitted, report.finished if first is None else first, tokens
    if first is not None and last is not None and last > first:
        done: Attributes = {
            "twofold.output_tokens": report.output_tokens,
            "twofold.steps": record.decode.steps,
            "twofold.preemptions": record.preemptions,
        }
        yield "decode", first, last, done


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
