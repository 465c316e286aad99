"""Explanations of requests whose counts and times are known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.planner.models import SMOLLM2_135M, recorded, steps_of
from tests.support.metrics import request_metrics
from twofold.core.record import SequenceRecord, WaitReason
from twofold.core.report import RequestMetrics
from twofold.planner.explain.lines import explain_request

STEPS = steps_of(SMOLLM2_135M, "Q4_1")


def report(record: SequenceRecord, *, admitted: float | None = 1.0, first: float | None = 1.5) -> RequestMetrics:
    """Arrives at 0, is admitted at 1, samples its first token at 1.5 and its last at 2.5."""
    last = None if first is None else 2.5
    return request_metrics("r", 0.0, admitted, first, last, 2.5, 41, 0, 38, ("stop",), record)


def explained(given: RequestMetrics) -> dict[str, list[str]]:
    """Lines by their first word."""
    found: dict[str, list[str]] = {}
    for line in explain_request(given, STEPS):
        label, _, rest = line.partition(" ")
        found.setdefault(label, []).append(rest.strip())
    return found


def test_each_phase_beside_its_floor() -> None:
    """All Q4_1, the weights are 84.2 MB. At 10 GB a second that is 8.4 ms, with keys and values of 41 tokens 8.5 ms.

    Decode reads them 37 times, with keys and values of contexts 42 … 78: 51 MB.
    """
    assert STEPS.cost.weight_bytes() == pytest.approx(84.2e6, rel=1e-3)
    lines = explained(report(recorded(41, 38)))
    assert lines["queue"] == ["1,000.0 ms"]
    assert lines["prefill"] == ["500.0 ms  41 rows in 1 step; at least 8.5 ms (memory), 2% of the limit"]
    assert lines["decode"] == ["1,000.0 ms  37 rows in 37 steps; at least 316.6 ms (memory), 32% of the limit"]


def test_no_share_is_above_all_of_the_limit() -> None:
    given = replace(report(recorded(41, 38)), first_token=1.001 + report(recorded(41, 38)).arrival)
    (line,) = explained(given)["prefill"]
    assert line.endswith("(memory), at the measured limit")


def test_work_in_flops_and_bytes() -> None:
    (line,) = explained(report(recorded(41, 38)))["work"]
    assert line == "prefill 8.82 GFLOP, 86.1 MB; decode 10.1 GFLOP, 3.17 GB"


def test_the_share_of_steps_with_others() -> None:
    record = recorded(41, 1)
    for position in range(41, 78):
        record.decode.add_step(position, 1, step_rows=4, logit_rows=1, seconds=0.01)
    (line,) = explained(report(record))["work"]
    assert line.endswith("MB, 25% of its steps")


def test_stalls_by_cause() -> None:
    record = recorded(41, 38)
    record.stall(WaitReason.PREEMPTED, 0.12, until=2.0)
    record.stall(WaitReason.PREFILL, 0.031)
    record.stall(WaitReason.TURN, 0.02)
    record.preemptions, record.recomputed, record.swapped = 1, 38, 2
    assert explained(report(record))["stalled"] == [
        "120.0 ms  preempted 1 time, 38 tokens computed again, 2 blocks swapped",
        "31.0 ms  waiting behind others' prefill",
    ]


@pytest.mark.parametrize(
    ("saved_s", "gain"),
    [(1.93, "412 steps and 1.93 s saved"), (-0.04, "412 steps saved, 40 ms lost"), (0.0, "412 steps and 0 saved")],
)
def test_drafts_and_what_they_saved(saved_s: float, gain: str) -> None:
    record = recorded(41, 38)
    assert "drafted" not in explained(report(record))
    record.speculate(drafted=1500, accepted=412, saved_s=saved_s)
    assert explained(report(record))["drafted"] == [f"412 of 1,500 tokens were right; {gain}"]


@pytest.mark.parametrize(
    ("predicted", "verdict"), [(0.1, "right"), (0.1004, "right"), (0.15, "50% too long"), (0.05, "50% too short")]
)
def test_predictions_have_a_verdict(predicted: float, verdict: str) -> None:
    record = recorded(41, 38)
    assert "predicted" not in explained(report(record))
    record.decode.add_step(78, 1, step_rows=1, logit_rows=1, seconds=0.1, predicted_s=predicted)
    (line,) = explained(report(record))["predicted"]
    assert line == f"{predicted * 1000:.1f} ms  for 100.0 ms of steps: {verdict}"


def test_a_request_that_never_ran() -> None:
    record = SequenceRecord()
    record.stall(WaitReason.TURN, 2.5, until=2.5)
    lines = explained(report(record, admitted=None, first=None))
    assert lines == {"queue": ["2,500.0 ms"], "stalled": ["2,500.0 ms  waiting behind others"]}


def test_a_request_that_was_cut_short_in_its_prompt() -> None:
    lines = explained(report(recorded(41, 1), first=None))
    assert lines["prefill"][0].startswith("1,500.0 ms  41 rows")
    assert "decode" not in lines
