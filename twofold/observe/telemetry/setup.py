"""Where traces and OpenTelemetry's metrics go: a collector that speaks OTLP over HTTP.

The SDK and its exporter are an extra (``otel``) and imported only when somebody wants them. They
send from threads of their own; a collector that is away loses telemetry and holds up no request. Providers belong to
the ``Telemetry`` that made them, not to the process.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final, Protocol, Self

from twofold.core.errors import UsageError
from twofold.observe.served import ServedRequest
from twofold.observe.telemetry.meters import RequestMeters
from twofold.observe.telemetry.spans import RequestSpans

FLUSH_MS: Final = 3_000
"""What is not sent by then, when the server ends, is lost."""


class Provider(Protocol):
    """What of the SDK's providers is needed at the end."""

    def force_flush(self, timeout_millis: float = ...) -> bool: ...

    def shutdown(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Telemetry:
    """``ServedObserver`` that tells requests to a collector. ``close`` sends what is left."""

    spans: RequestSpans
    meters: RequestMeters
    providers: tuple[Provider, ...]

    @classmethod
    def to(cls, endpoint: str, *, service: str = "twofold", version: str = "") -> Self:
        """Sends to the collector at ``endpoint``, such as http://localhost:4318 (OTEL_EXPORTER_OTLP_ENDPOINT).

        Raises UsageError where the extra is not installed.
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
        """Sends what is left, and ends the threads. It may take seconds: not for the event loop."""
        for provider in self.providers:
            provider.force_flush(FLUSH_MS)
            provider.shutdown()


def _sdk(module: str) -> Any:
    try:
        return import_module(f"opentelemetry.{module}")
    except ImportError as error:
        raise UsageError(
            "Telemetry was asked for, but OpenTelemetry's SDK and OTLP exporter are not installed.",
            hint="Run: pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-http",
        ) from error
