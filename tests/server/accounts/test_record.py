"""Records of requests, compared with numbers computed by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.api.completions import data_of
from tests.planner.models import SMOLLM2_135M, steps_of
from tests.server.accounts.requests import report, served
from tests.support.metrics import request_metrics
from twofold.core.errors import NotFoundError
from twofold.core.record import SequenceRecord, WaitReason
from twofold.core.report import RequestMetrics
from twofold.host.settings import parse_toml
from twofold.observe.billing import PriceSheet, make_bill
from twofold.observe.served import ServedHandover, ServedMove, ServedRoute
from twofold.planner.predict.phase import PhaseCost, phase_floor
from twofold.server.accounting import RecentRequests
from twofold.server.records import record_data

SHEET = PriceSheet.of(parse_toml("[default]\ninput = 1\noutput = 4"))
CEILINGS = steps_of(SMOLLM2_135M, "Q4_1")


def record(*reports: RequestMetrics, written: dict[float, int] | None = None, **changes: Any) -> dict[str, Any]:
    request = served(*reports, written_tokens=written or {}, **changes)
    request.bill = make_bill(request.reports, request.written_tokens, SHEET, "small", "default")
    request.retries = 1
    found: dict[str, Any] = data_of(record_data(request, CEILINGS))
    return found


def test_a_record_is_plain_data() -> None:
    found = record(gaps_s=[0.1, 0.3, 0.2])
    assert json.loads(json.dumps(found)) == found
    assert (found["id"], found["retries"], found["longest_gap_s"]) == ("req_1", 1, 0.3)


def test_tokens_and_money_agree() -> None:
    found = record(written={300.0: 20})
    assert found["tokens"] == {
        "prompt": 100,
        "cached": 40,
        "loaded": 0,
        "fresh": 60,
        "written": {"5m": 20},
        "output": 11,
        "reasoning": 0,
    }
    lines = {line["kind"]: (line["quantity"], line["amount"]) for line in found["cost"]["lines"]}
    assert lines == {
        "input": (40, 40e-6),
        "cache_read": (40, 4e-6),
        "cache_write_5m": (20, 25e-6),
        "output": (11, 44e-6),
    }
    assert found["cost"]["total"] == pytest.approx(113e-6)
    assert (found["cost"]["currency"], found["cost"]["factor"]) == ("USD", 1.0)


def test_phases_beside_their_limits() -> None:
    given = report(batch=4)
    (prompt,) = record(given)["prompts"]
    assert [prompt[name] for name in ("queue_s", "prefill_s", "decode_s", "ttft_s")] == pytest.approx(
        [0.5, 0.06, 0.01, 0.56]
    )
    for name, seconds in (("prefill", 0.06), ("decode", 0.01)):
        phase, work = prompt[name], getattr(given.record, name)
        floor = phase_floor(work, CEILINGS)
        done = PhaseCost.of(work, CEILINGS.cost)
        assert (phase["rows"], phase["steps"], phase["rows_share"]) == (work.rows, work.steps, 0.25)
        assert phase["machine_s"] == pytest.approx(seconds / 4)
        assert (phase["least_s"], phase["bound"]) == (floor.seconds, floor.bound)
        assert phase["roofline_share"] == pytest.approx(floor.seconds / seconds)
        assert phase["flops"] == done.flops
        assert sum(phase["bytes"].values()) == pytest.approx(done.bytes, abs=1)
    assert prompt["predicted_s"] == pytest.approx(0.011)
    assert prompt["prediction_error"] == pytest.approx(0.1)
    assert prompt["steps_s"] == pytest.approx(0.07)


def test_drafts() -> None:
    given = report()
    given.record.speculate(drafted=7, accepted=4, saved_s=0.5)
    given.record.predict(6, accepted=4)
    given.record.speculate(drafted=5, accepted=0, saved_s=-0.25)
    (prompt,) = record(given)["prompts"]
    assert prompt["speculation"] == {
        "drafted_tokens": 12,
        "accepted_tokens": 4,
        "accepted_prediction_tokens": 4,
        "rejected_prediction_tokens": 2,
        "saved_s": 0.25,
    }


def test_stalls_and_preemptions() -> None:
    given = report()
    given.record.stall(WaitReason.PREEMPTED, 0.25, until=11.0)
    given.record.preemptions, given.record.recomputed, given.record.swapped = 1, 50, 3
    (prompt,) = record(given)["prompts"]
    assert prompt["stalls_s"] == {"preempted": 0.25}
    assert (prompt["preemptions"], prompt["recomputed_tokens"], prompt["swapped_blocks"]) == (1, 50, 3)


def test_records_of_refused_requests_and_unmeasured_machines() -> None:
    refused = request_metrics("r", 0.0, None, None, None, 2.0, 9, 0, 0, ("abort",), SequenceRecord())
    found = data_of(record_data(served(refused, status=503, error="BusyError")))
    (prompt,) = found["prompts"]
    assert prompt["prefill"] == {"rows": 0, "steps": 0, "rows_share": None, "machine_s": 0.0}
    assert (prompt["ttft_s"], prompt["prediction_error"], found["cost"]) == (None, None, None)
    assert data_of(record_data(served(report())))["prompts"][0]["decode"].keys() == prompt["decode"].keys()


def test_the_last_ones_are_kept_for_their_tenant() -> None:
    recent = RecentRequests(max_requests=2)
    for number in range(3):
        recent.add(served(request_id=f"req_{number}", gaps_s=[1.0, 3.0, 2.0]))
    assert len(recent._requests) == 2
    assert all(len(request.gaps_s) == 1 for request, _ in recent._requests.values())
    assert recent.data("acme", "req_2").longest_gap_s == 3.0
    for tenant, request_id in (("acme", "req_0"), ("other", "req_2"), ("", "req_2"), ("acme", "req_9")):
        with pytest.raises(NotFoundError, match="ended recently"):
            recent.data(tenant, request_id)


def test_records_of_many_prompts_are_shortened_and_kept_less_long() -> None:
    recent = RecentRequests(max_requests=9, max_prompts=150)
    for number in (1, 2, 2, 3):
        recent.add(served(*[report()] * 70, request_id=f"req_{number}"))
    assert len(recent._requests) == 2
    found = data_of(recent.data("acme", "req_3"))
    assert (len(found["prompts"]), found["prompts_left_out"], found["tokens"]["prompt"]) == (64, 6, 7000)
    recent.add(served(*[report()] * 200, request_id="req_4"))
    recent.add(served(request_id="req_5"))
    assert len(recent._requests) == 1


def test_a_kept_record_does_not_grow_with_the_completion() -> None:
    recent, request = RecentRequests(), served(gaps_s=list(map(float, range(5000))))
    recent.add(request)
    ((kept, _),) = recent._requests.values()
    assert kept.gaps_s == [4999.0]
    assert replace(kept, gaps_s=request.gaps_s) == request
    assert recent.data(request.tenant, request.request_id) == record_data(request)


def test_routes_are_in_the_record() -> None:
    moves = (ServedMove(0, "drained"), ServedMove(2, "crashed"))
    routes = (
        ServedRoute(1, "least predicted TTFT", 32, 0.12, 0.2, moves=moves),
        ServedRoute(0, "its turn", None, None, None, handover=ServedHandover(None, 4, -0.1)),
    )
    found = record(report(), routes=routes)
    assert found["routes"] == [
        {
            "replica": 1,
            "reason": "least predicted TTFT",
            "cached_tokens": 32,
            "predicted_ttft_s": 0.12,
            "error": 0.2,
            "fetched": None,
            "moves": [{"replica": 0, "cause": "drained"}, {"replica": 2, "cause": "crashed"}],
            "handover": None,
        },
        {
            "replica": 0,
            "reason": "its turn",
            "cached_tokens": None,
            "predicted_ttft_s": None,
            "error": None,
            "fetched": None,
            "moves": [],
            "handover": {"replica": None, "tokens": 4, "gain_s": -0.1, "bytes": 0, "early_bytes": 0, "seconds": 0.0},
        },
    ]
    assert "routes" not in record(report())
