"""The access log: a line for each request that ended, with sizes, times and names."""

from __future__ import annotations

import re
from typing import Any, Final, Literal

from structlog.typing import FilteringBoundLogger

from twofold.observe.served import ServedRequest

Access = Literal["all", "errors", "off"]
"""Requests in the log: all, those with a status of 400 or more, or none."""
TRACE_ID: Final = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")


class RequestLines:
    """``ServedObserver``: logs failures of the server as errors, refusals under overload as warnings."""

    def __init__(self, logger: FilteringBoundLogger, access: Access = "all") -> None:
        self._logger = logger
        self._least = {"all": 0, "errors": 400, "off": 1_000}[access]

    def on_served(self, served: ServedRequest) -> None:
        if served.status < self._least:
            return
        if served.status < 500:
            log = self._logger.info
        else:
            log = self._logger.warning if served.status in (503, 529) else self._logger.error
        log("request", **request_fields(served))


def request_fields(served: ServedRequest) -> dict[str, Any]:
    """The fields of a line; those without a value are omitted. Times are milliseconds."""
    trace = TRACE_ID.fullmatch(served.traceparent or "")
    work: dict[str, Any] = {}
    if served.reports:
        reasons = {reason for report in served.reports for reason in report.finish_reasons}
        work = {
            "ttft_ms": _ms(served.ttft_s),
            "tpot_ms": _ms(served.tpot_s),
            "queue_ms": _ms(max(report.queue_s for report in served.reports)),
            "prompt_tokens": served.prompt_tokens,
            "cached_tokens": served.cached_tokens,
            "output_tokens": served.output_tokens,
            "preemptions": sum(report.record.preemptions for report in served.reports) or None,
            "finish": ",".join(sorted(reasons)) or None,
        }
    known = {
        "request_id": served.request_id,
        "endpoint": served.endpoint,
        "status": served.status,
        "error": served.error,
        "field": served.field_name,
        "model": served.model or None,
        "tenant": served.tenant or None,
        "key": served.key or None,
        "tier": served.tier,
        "stream": served.stream,
        "ms": _ms(served.duration_s),
        **work,
        "cache": "hit" if served.cached_answer else None,
        "cost": served.cost,
        "currency": served.currency or None,
        "trace_id": trace and trace[1],
    }
    return {name: value for name, value in known.items() if value is not None}


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1e3, 2)
