"""The accounting of requests that ended: their bills, their records, the sums of usage, and the calls of observers.

A record is plain data, for ``"twofold": {"explain": true}`` and for ``GET /v1/twofold/requests/{id}``. Seconds are wall
time but for ``machine_s``, which is the request's part of the steps it ran in. Beside the seconds of a phase is the
least that this machine could have taken (``planner/predict/phase.py``), by which limit, and the share of it that was
reached. Counts are of what was computed: what a cache gave appears only as cached tokens. Money is rounded to what a
floating-point number holds; sums are made of exact amounts.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from twofold.core.errors import NotFoundError, quoted
from twofold.core.record import PhaseWork, SequenceRecord
from twofold.core.report import RequestMetrics
from twofold.core.request import TTL_SECONDS
from twofold.observe.accounting.bill import Bill, make_bill
from twofold.observe.accounting.prices import PriceSheet
from twofold.observe.served import ServedObserver, ServedRequest
from twofold.planner.predict.phase import PhaseCost, phase_floor
from twofold.planner.predict.steps import StepPredictor
from twofold.server.accounts.usage import UsageStore
from twofold.server.context import RequestContext

MAX_RECENT: Final = 1_000
MAX_RECENT_PROMPTS: Final = 8_000
"""Prompts of all recent requests; a prompt takes about 1.5 KiB, and one request may have thousands."""
MAX_PROMPTS_SHOWN: Final = 64
"""Prompts that a record shows one by one; its sums are of all."""


class RecentRequests:
    """The last ``most`` requests that ended, fewer if they have more than ``max_prompts`` together.

    A tenant sees its own; a name that a client gives its request finds no request of another tenant.
    """

    def __init__(self, most: int = MAX_RECENT, max_prompts: int = MAX_RECENT_PROMPTS) -> None:
        self._most = most
        self._max_prompts = max_prompts
        self._prompts = 0
        self._requests: OrderedDict[tuple[str, str], tuple[ServedRequest, StepPredictor | None]] = OrderedDict()

    def add(self, served: ServedRequest, steps: StepPredictor | None = None) -> None:
        """Keeps a request, without what grows with its completion; ``record_data`` is made on demand.

        ``steps`` predicts steps of its model on this machine; None if that was not measured.
        """
        name = (served.tenant, served.request_id)
        if (before := self._requests.pop(name, None)) is not None:
            self._prompts -= len(before[0].reports)
        self._prompts += len(served.reports)
        self._requests[name] = replace(served, gaps_s=sorted(served.gaps_s)[-1:]), steps
        while len(self._requests) > self._most or (self._prompts > self._max_prompts and len(self._requests) > 1):
            _, (oldest, _) = self._requests.popitem(last=False)
            self._prompts -= len(oldest.reports)

    def data(self, tenant: str, request_id: str) -> dict[str, Any]:
        """The record of a tenant's request. NotFoundError if it runs, never was, or is not among the last ones."""
        found = self._requests.get((tenant, request_id))
        if found is None:
            raise NotFoundError(
                f"No request {quoted(request_id)} ended recently.",
                hint=f"The last {self._most:,} are kept; ids are in the header x-request-id.",
            )
        return record_data(*found)

    def __len__(self) -> int:
        return len(self._requests)


@dataclass(frozen=True, slots=True)
class Accounting:
    """Accounts for each request once. Without a ``sheet`` nothing has a price."""

    sheet: PriceSheet | None
    recent: RecentRequests
    usage: UsageStore
    observers: Sequence[ServedObserver]

    def explain(self, context: RequestContext) -> dict[str, Any]:
        """The record of a request whose completion is whole, and that ends now."""
        self._complete(context)
        return record_data(context.record, context.steps)

    def close(self, context: RequestContext) -> None:
        """Accounts for a request that has ended."""
        self._complete(context)
        served = context.record
        if served.model:
            self.usage.add(served)
            self.recent.add(served, context.steps)
        for observer in self.observers:
            observer.on_served(served)

    def _complete(self, context: RequestContext) -> None:
        served = context.record
        served.duration_s = time.monotonic() - context.arrived
        if self.sheet is not None and served.reports:
            served.bill = make_bill(served.reports, served.written_tokens, self.sheet, served.model, served.tier)


def record_data(served: ServedRequest, steps: StepPredictor | None = None) -> dict[str, Any]:
    """The record of a request. Its prompts are in order; of many, the first MAX_PROMPTS_SHOWN are shown."""
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
        "retries": served.retries,
        "tokens": _tokens(served),
        "prompts": [_prompt(report, steps) for report in served.reports[:MAX_PROMPTS_SHOWN]],
        "prompts_left_out": max(0, len(served.reports) - MAX_PROMPTS_SHOWN),
        "cost": None if served.bill is None else _bill(served.bill),
    }


def _bill(bill: Bill) -> dict[str, Any]:
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


def _prompt(report: RequestMetrics, steps: StepPredictor | None) -> dict[str, Any]:
    record, count = report.record, report.completions
    return {
        "prompt_tokens": report.prompt_tokens,
        "cached_tokens": report.cached_tokens,
        "output_tokens": report.output_tokens,
        "finish_reasons": list(report.finish_reasons),
        "queue_s": report.queue_s,
        "prefill_s": report.prefill_s,
        "decode_s": report.decode_s,
        "ttft_s": report.ttft_s,
        "prefill": _phase(record.prefill, report.prefill_s, steps, count),
        "decode": _phase(record.decode, report.decode_s, steps, count),
        "stalls_s": {cause.name.lower(): seconds for cause, seconds in record.stalls.items()},
        "preemptions": record.preemptions,
        "recomputed_tokens": record.recomputed,
        "swapped_blocks": record.swapped,
        **_prediction(record),
    }


def _phase(work: PhaseWork, seconds: float, steps: StepPredictor | None, completions: int) -> dict[str, Any]:
    """What was done in a phase. ``rows_share`` is the part of its steps' rows that were the request's own."""
    counts = {
        "rows": work.rows,
        "steps": work.steps,
        "rows_share": work.share / work.steps if work.steps else None,
        "machine_s": work.machine_s,
    }
    if steps is None or not work.rows:
        return counts
    done = PhaseCost.of(work, steps.cost)
    floor = phase_floor(work, steps, completions)
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
    """Seconds of its steps beside the predicted ones; an error above 0 means that the prediction was longer."""
    phases = (record.prefill, record.decode)
    took = sum(work.seconds - work.unpredicted_s for work in phases)
    predicted = sum(work.predicted_s for work in phases)
    known = took > 0 and predicted > 0
    return {
        "steps_s": sum(work.seconds for work in phases),
        "predicted_s": predicted if known else None,
        "prediction_error": predicted / took - 1 if known else None,
    }
