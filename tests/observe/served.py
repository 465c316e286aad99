"""Requests that ended, steps and snapshots, as tests change them."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

from tests.support.metrics import request_metrics
from twofold.core.record import SequenceRecord, WaitReason
from twofold.core.report import (
    BlockCounts,
    DraftCounts,
    EngineSnapshot,
    PinCounts,
    RequestMetrics,
    StepReport,
    StoreCounts,
)
from twofold.observe.billing import Bill, BillLine
from twofold.observe.served import AskedParams, ServedRequest

BILL = Bill("USD", "default", Decimal(1), (BillLine("output", Decimal(1), "token", Decimal(2000), Decimal("0.002")),))
START = 5_000.0
"""Seconds on the engine's clock."""


def report(**changes: Any) -> RequestMetrics:
    """Waits 0.1 s, prefills for 0.2 s, decodes 20 tokens after the first one in 0.4 s."""
    record = SequenceRecord(stalls={WaitReason.PREEMPTED: 0.05}, preemptions=1, cached=16, fresh=4)
    plain: dict[str, Any] = {
        "request_id": "req_1", "arrival": START, "admitted": START + 0.1, "first_token": START + 0.3,
        "last_token": START + 0.7, "finished": START + 0.7, "prompt_tokens": 20, "cached_tokens": 16,
        "output_tokens": 21, "finish_reasons": ("stop",), "record": record,
    }  # fmt: skip
    return request_metrics(**plain | changes)


def served(**changes: Any) -> ServedRequest:
    """A stream that went well."""
    plain = ServedRequest(
        request_id="req_1", endpoint="/v1/chat/completions", dialect="openai", model="small", tenant="acme", key="k1",
        tier="default", stream=True, status=200, error=None, arrived_at=1_700_000_000.0, duration_s=0.75,
        first_token_s=0.31, gaps_s=[0.02] * 20, reports=(report(),), bill=BILL,
        params=AskedParams(max_tokens=64, temperature=0.5), limits_s={"prefill": 0.1, "decode": 0.3},
    )  # fmt: skip
    return replace(plain, **changes)


def failed(status: int, error: str, **changes: Any) -> ServedRequest:
    """A request that ended before it came to an engine."""
    nothing: dict[str, Any] = {"reports": (), "gaps_s": [], "first_token_s": None, "bill": None, "limits_s": {}}
    return served(status=status, error=error, **(nothing | changes))


def step(**changes: Any) -> StepReport:
    plain = StepReport(
        number=0, started=START, decode_rows=3, prefill_rows=20, sequences=4, logit_rows=4, moves=0, predicted_s=0.018,
        seconds=0.02, moves_s=0.001, host_s=0.002, waiting=2, running=4, blocks=BlockCounts(60, 30, 10),
    )  # fmt: skip
    return replace(plain, **changes)


def snapshot(**changes: Any) -> EngineSnapshot:
    plain = EngineSnapshot(
        waiting=2, running=4, blocks=BlockCounts(60, 30, 10), pinned=5, block_size=16, queries=1000, hits=400,
        evicted=7, pins={300.0: PinCounts(written=64, read=128, expired=32, refused=16)}, preemptions=3, swaps=2,
        prediction_error=0.04, store=StoreCounts(bytes=4096, segments=2, loads=1, loaded=512, written=2),
        drafts=DraftCounts(2, 9, 6, [2, 2, 1, 1, 0]),
    )  # fmt: skip
    return replace(plain, **changes)
