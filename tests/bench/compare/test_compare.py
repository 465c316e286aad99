from __future__ import annotations

import json
import math

import pytest

from tests.bench.compare.documents import document, run, served
from twofold.bench.compare import ComparedFigure, Comparison, compare
from twofold.bench.metrics.goodput import Objectives
from twofold.bench.metrics.requests import MeasurementRule
from twofold.bench.report.document import read
from twofold.core.errors import ParameterError


def _rows(found: Comparison) -> dict[str, ComparedFigure]:
    return {f"{row.measure} {row.statistic}": row for row in found.pairs[0].rows}


def test_a_document_against_itself_has_no_differences() -> None:
    one = document(run(served(1)))
    found = compare(one, one)
    assert found.differences == ()
    assert {row.verdict for row in found.pairs[0].rows} == {"noise"}
    assert {row.ratio for row in found.pairs[0].rows} == {1.0}
    assert found.pairs[0].words() == "At rate 6, all differences may be chance."


def test_differences_by_chance_are_noise() -> None:
    called = [
        row.verdict
        for seed in range(4)
        for row in compare(document(run(served(10 + seed))), document(run(served(20 + seed)))).pairs[0].rows
    ]
    assert called.count("noise") >= 0.95 * len(called)


def test_a_slower_server_is_worse_and_a_faster_one_better() -> None:
    slow, fast = document(run(served(1, 600, slower=1.3))), document(run(served(2, 600)))
    rows = _rows(compare(fast, slow))
    assert (rows["tpot_s p50"].verdict, rows["itl_s p90"].verdict) == ("worse", "worse")
    assert rows["tpot_s p50"].ratio == pytest.approx(1.3, rel=0.06)
    assert rows["requests_per_s mean"].verdict == "noise"
    assert _rows(compare(slow, fast))["tpot_s p50"].verdict == "better"


def test_failures_show_in_rates_and_percentiles() -> None:
    sound, broken = document(run(served(1))), document(run(served(1, failing=0.3)))
    rows = _rows(compare(sound, broken))
    assert (rows["answered_share mean"].verdict, rows["requests_per_s mean"].verdict) == ("worse", "worse")
    assert rows["ttft_s p99"].b == math.inf
    assert rows["ttft_s p90"].verdict == "worse"
    assert rows["ttft_s p90"].cells()[2] == "∞"


def test_both_are_judged_by_the_same_objectives() -> None:
    strict = Objectives(ttft=0.2, itl=0.05)
    a, b = document(run(served(1), objectives=strict)), document(run(served(2, slower=1.5)))
    row = _rows(compare(a, b))["attainment mean"]
    said = a.runs[0].summary["goodput"]["attainment"]
    assert row.a == pytest.approx(said)
    assert row.verdict == "worse"
    assert "attainment mean" not in _rows(compare(b, b))


def test_failures_meet_no_objective() -> None:
    a = document(run(served(1), objectives=Objectives(ttft=60.0)))
    row = _rows(compare(a, document(run(served(1, failing=0.3)))))["attainment mean"]
    assert row.a == 1.0
    assert row.b == pytest.approx(0.7, abs=0.08)


def test_percentiles_that_have_too_few_requests_are_left_out() -> None:
    found = _rows(compare(document(run(served(1, 25))), document(run(served(2, 400)))))
    assert "ttft_s p50" in found
    assert not {"ttft_s p90", "ttft_s p99"} & found.keys()


def test_without_chunks_their_rows_are_missing() -> None:
    found = _rows(compare(document(run(served(1), chunks=False)), document(run(served(2)))))
    assert "itl_s p50" not in found
    assert "tpot_s p50" in found


def test_settings_that_differ_come_first() -> None:
    one, two = served(1), served(2)
    a = document(run(one), seed=1, warmup=0)
    b = document(run(two, rule=MeasurementRule(2.0)), model="b-model", version="2", seed=2, warmup=2)
    found = [(each.path, each.expected) for each in compare(a, b).differences]
    assert found == [
        ("rule.warmup_s", False),
        ("settings.warmup", False),
        ("target.model", False),
        ("version", False),
        ("settings.seed", True),
    ]
    assert compare(a, b).differences[2].words() == "target.model: a-model in a, b-model in b"


def test_runs_at_the_same_point_belong_together() -> None:
    loads = [{"kind": "open", "arrivals": {"rate": rate}} for rate in (2.0, 4.0, 8.0)]
    a = document(run(served(1), loads[0]), run(served(2), loads[1]))
    b = document(run(served(3), loads[1]), run(served(4), loads[1]), run(served(5), loads[2]))
    found = compare(a, b)
    assert [(pair.point, pair.n) for pair in found.pairs] == [((("rate", 4.0),), (400, 800))]
    assert found.alone == ((("rate", 2.0),), (("rate", 8.0),))


def test_one_point_each_is_compared_whatever_it_is() -> None:
    open_loop, closed = document(run(served(1))), document(run(served(2), {"kind": "closed", "concurrency": 4}))
    found = compare(open_loop, closed)
    assert found.pairs[0].point == ()
    assert "load.kind" in {each.path for each in found.differences}
    assert found.pairs[0].words().startswith("All differences")


def test_documents_that_cannot_be_compared() -> None:
    whole, empty = document(run(served(1))), document()
    with pytest.raises(ParameterError, match="has no runs"):
        compare(whole, empty)
    with pytest.raises(ParameterError, match="has 0 measured requests"):
        compare(whole, whole.without_requests())
    two = document(*(run(served(1, 20), {"arrivals": {"rate": rate}}) for rate in (1.0, 2.0)))
    other = document(*(run(served(1, 20), {"arrivals": {"rate": rate}}) for rate in (3.0, 4.0)))
    with pytest.raises(ParameterError, match="in common"):
        compare(two, other)


def test_a_stopped_run_is_compared_by_its_complete_requests() -> None:
    samples = served(1, 100)
    for late in samples[90:]:
        late.outcome = "unfinished"
        late.response.moments, late.ended_s = late.response.moments[:0], None
    found = _rows(compare(document(run(samples, interrupted=True)), document(run(served(2, 100)))))
    assert found["ttft_s p50"].a is not None
    assert found["ttft_s p50"].a < 1.0


def test_a_run_without_measured_requests_is_ignored() -> None:
    a, b = document(run(served(1)), run([], interrupted=True)), document(run(served(2)))
    assert compare(a, b).pairs[0].n == (400, 400)


def test_a_comparison_is_plain_data_and_the_same_each_time() -> None:
    a, b = document(run(served(1))), document(run(served(2, failing=0.3)))
    found = compare(read(a.to_json()), b).to_json()
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert found == compare(a, b).to_json()
    assert found != compare(a, b, seed=1).to_json()
