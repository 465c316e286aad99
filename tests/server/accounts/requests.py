"""Requests with known counts."""

from __future__ import annotations

from typing import Any

from tests.support.metrics import request_metrics
from twofold.core.record import SequenceRecord
from twofold.core.report import RequestMetrics
from twofold.observe.served import ServedRequest

NOON = 1_795_262_400.0
"""2026-11-21 12:00 UTC."""


def report(prompt: int = 100, cached: int = 40, output: int = 11, *, batch: int = 1) -> RequestMetrics:
    """Waits 0.5 s; each row takes 1 ms, and is 1/batch of its step's rows."""
    record = SequenceRecord(cached=cached, fresh=prompt - cached)
    fresh = prompt - cached
    record.prefill.add_step(cached, fresh, step_rows=fresh * batch, logit_rows=1, seconds=fresh / 1000)
    for position in range(prompt, prompt + output - 1):
        record.decode.add_step(position, 1, step_rows=batch, logit_rows=1, seconds=0.001, predicted_s=0.0011)
    first = 10.5 + fresh / 1000
    last = first + (output - 1) / 1000
    return request_metrics("r", 10.0, 10.5, first, last, last, prompt, cached, output, ("stop",), record)


def served(*reports: RequestMetrics, **changes: Any) -> ServedRequest:
    fields: dict[str, Any] = {
        "request_id": "req_1",
        "endpoint": "/v1/chat/completions",
        "dialect": "openai",
        "model": "small",
        "tenant": "acme",
        "key": "k1",
        "tier": "default",
        "stream": True,
        "status": 200,
        "error": None,
        "arrived_at": NOON,
        "duration_s": 0.8,
        "reports": reports or (report(),),
    }
    return ServedRequest(**fields | changes)
