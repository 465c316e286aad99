"""All that is known of a request once it ended, as plain data: for ``"twofold": {"explain": true}`` and for
``GET /v1/twofold/requests/{id}``.

Seconds are wall time but for ``machine_s``, which is the request's part of the steps it ran in. A phase has beside its
seconds the least that this machine could have taken (``planner/predict/phase.py``), by which limit, and the share of it
that was reached. Counts are of what was computed: what a cache gave appears only as cached tokens. Money is rounded to
what a floating-point number holds; sums are made of exact amounts. Nothing that a caller or a model wrote is in it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

from twofold.core.record import PhaseWork, SequenceRecord
from twofold.core.report import RequestMetrics
from twofold.core.request import TTL_SECONDS
from twofold.observe.accounting.bill import Bill
from twofold.observe.served import ServedRequest
from twofold.planner.predict.phase import PhaseCost, phase_floor
from twofold.planner.predict.steps import StepPredictor

MAX_TOLD: Final = 64
"""Prompts that a record tells one by one; its sums are of all."""


@dataclass(frozen=True, slots=True)
class RequestAccount:
    """A request that ended (or is about to), with what its record is made of.

    ceilings   of its model and this machine; None where they were not measured
    bill       None where its model has no price
    retries    how often it was given to a model's next process, because one ended
    """

    served: ServedRequest
    ceilings: StepPredictor | None = None
    bill: Bill | None = None
    retries: int = 0

    def brief(self) -> RequestAccount:
        """Without what grows with the answer."""
        longest = sorted(self.served.gaps_s)[-1:]
        return replace(self, served=replace(self.served, gaps_s=tuple(longest)))

    def data(self) -> dict[str, Any]:
        """The record. Its prompts are in order; most requests have one, and of many the first are told."""
        served = self.served
        return {
            "id": served.request_id,
            "object": "twofold.request",
            "endpoint": served.endpoint,
            "model": served.model,
            "service_tier": served.tier,
            "stream": served.stream,
            "status": served.status,
            "error": served.error,
            "arrived_at": served.arrived_at,
            "seconds": served.duration_s,
            "first_token_s": served.first_token_s,
            "longest_gap_s": max(served.gaps_s, default=None),
            "cached_answer": served.cached_answer,
            "retries": self.retries,
            "tokens": _tokens(served),
            "prompts": [_prompt(report, self.ceilings) for report in served.reports[:MAX_TOLD]],
            "prompts_left_out": max(0, len(served.reports) - MAX_TOLD),
            "cost": None if self.bill is None else bill_data(self.bill),
        }


def bill_data(bill: Bill) -> dict[str, Any]:
    """A bill's lines and their sum. A price is of a million tokens, or of an hour."""
    return {
        "currency": bill.currency,
        "service_tier": bill.tier,
        "factor": float(bill.factor),
        "lines": [
            {
                "kind": line.kind,
                "quantity": int(line.quantity) if line.unit == "token" else float(line.quantity),
                "unit": line.unit,
                "price": float(line.price),
                "amount": float(line.amount),
            }
            for line in bill.lines
        ],
        "total": float(bill.total),
    }


def _tokens(served: ServedRequest) -> dict[str, Any]:
    written = {ttl: served.written_tokens.get(seconds, 0) for ttl, seconds in TTL_SECONDS.items()}
    return {
        "prompt": served.prompt_tokens,
        "cached": served.cached_tokens,
        "fresh": served.prompt_tokens - served.cached_tokens,
        "written": {ttl: tokens for ttl, tokens in written.items() if tokens},
        "output": served.output_tokens,
        "reasoning": served.reasoning_tokens,
    }


def _prompt(report: RequestMetrics, ceilings: StepPredictor | None) -> dict[str, Any]:
    record, count = report.record, report.completions
    return {
        "prompt_tokens": report.prompt_tokens,
        "cached_tokens": report.cached_tokens,
        "output_tokens": report.output_tokens,
        "finish_reasons": list(report.finish_reasons),
        "queue_s": report.queue_s,
        "prefill_s": report.prefill_s,
        "decode_s": report.decode_s,
        "ttft_s": None if report.first_token is None else report.first_token - report.arrival,
        "prefill": _phase(record.prefill, report.prefill_s, ceilings, count),
        "decode": _phase(record.decode, report.decode_s, ceilings, count),
        "stalls_s": {cause.name.lower(): seconds for cause, seconds in record.stalls.items()},
        "preemptions": record.preemptions,
        "recomputed_tokens": record.recomputed,
        "swapped_blocks": record.swapped,
        **_prediction(record),
    }


def _phase(work: PhaseWork, seconds: float, ceilings: StepPredictor | None, completions: int) -> dict[str, Any]:
    """What was done in a phase. ``rows_share`` is the part of its steps' rows that were the request's own."""
    counts = {
        "rows": work.rows,
        "steps": work.steps,
        "rows_share": work.share / work.steps if work.steps else None,
        "machine_s": work.machine_s,
    }
    if ceilings is None or not work.rows:
        return counts
    done = PhaseCost.of(work, ceilings.cost)
    floor = phase_floor(work, ceilings, completions)
    return counts | {
        "flops": done.flops,
        "bytes": {
            "weights": round(done.weight_bytes),
            "kv_read": done.kv_read_bytes,
            "kv_written": done.kv_written_bytes,
        },
        "least_s": floor.seconds,
        "bound": floor.bound,
        "roofline_share": floor.share(seconds),
    }


def _prediction(record: SequenceRecord) -> dict[str, float | None]:
    """Seconds of its steps beside those that were predicted for them; error > 0 predicted too long."""
    phases = (record.prefill, record.decode)
    took = _sum(work.seconds - work.unpredicted_s for work in phases)
    predicted = _sum(work.predicted_s for work in phases)
    known = took > 0 and predicted > 0
    return {
        "steps_s": _sum(work.seconds for work in phases),
        "predicted_s": predicted if known else None,
        "prediction_error": predicted / took - 1 if known else None,
    }


def _sum(seconds: Iterable[float]) -> float:
    return sum(seconds, 0.0)
