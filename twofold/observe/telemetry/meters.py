"""OpenTelemetry's metrics of GenAI servers, with the bounds that the conventions advise."""

from __future__ import annotations

from typing import Final

from opentelemetry.metrics import Histogram, MeterProvider

from twofold.observe.metrics.timing import Timing
from twofold.observe.served import ServedRequest
from twofold.observe.telemetry.names import OPERATIONS, common_attributes
from twofold.observe.telemetry.spans import SCOPE

DURATION_S: Final = tuple(0.01 * 2**i for i in range(14))
"""0.01, 0.02, … 81.92"""
FIRST_TOKEN_S: Final = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
)  # fmt: skip
TOKEN_S: Final = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)


class RequestMeters:
    """``ServedObserver``: records each request that ended with a meter."""

    def __init__(self, provider: MeterProvider) -> None:
        meter = provider.get_meter(SCOPE)

        def seconds(name: str, text: str, bounds: tuple[float, ...]) -> Histogram:
            return meter.create_histogram(
                f"gen_ai.server.{name}", "s", text, explicit_bucket_boundaries_advisory=bounds
            )

        self._duration = seconds("request.duration", "Seconds from a request to the end of its answer.", DURATION_S)
        self._first = seconds("time_to_first_token", "Seconds to the first token of a good answer.", FIRST_TOKEN_S)
        self._each = seconds("time_per_output_token", "Seconds for each token after the first.", TOKEN_S)

    def on_served(self, served: ServedRequest) -> None:
        operation = OPERATIONS.get(served.endpoint)
        if operation is None:
            return
        attributes, timing = common_attributes(served, operation), Timing.of(served)
        self._duration.record(timing.e2e_s, attributes)
        if served.status >= 400:
            return
        if timing.ttft_s is not None:
            self._first.record(timing.ttft_s, attributes)
        if timing.tpot_s is not None:
            self._each.record(timing.tpot_s, attributes)
