from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.bench.search.servers import fixed
from twofold.bench.metrics.goodput import Objectives
from twofold.bench.record import RunRecord
from twofold.bench.search import parse_rates, sweep
from twofold.core.errors import ParameterError


@pytest.mark.parametrize(
    ("text", "rates"),
    [
        ("1,2,4", (1.0, 2.0, 4.0)),
        ("4, 1, 1", (1.0, 4.0)),
        ("1..16x2", (1.0, 2.0, 4.0, 8.0, 16.0)),
        ("1..10x2", (1.0, 2.0, 4.0, 8.0)),
        ("2..10+4", (2.0, 6.0, 10.0)),
        ("0.1..0.3+0.1", (0.1, 0.2, 0.3)),
        (".5,1..4x2", (0.5, 1.0, 2.0, 4.0)),
    ],
)
def test_rates(text: str, rates: tuple[float, ...]) -> None:
    assert parse_rates(text) == rates


@pytest.mark.parametrize(
    "text", ["", "0", "-1", "1..", "4..1x2", "1..4x1", "1..4+0", "0..4+1", "x", "1..1000+1", "inf"]
)
def test_what_is_no_rate(text: str) -> None:
    with pytest.raises(ParameterError) as caught:
        parse_rates(text)
    assert caught.value.param == "rates"


def test_a_curve_over_rates() -> None:
    line = fixed(0.1)
    curve = sweep(line, (1.0, 5.0, 20.0), 20.0, objectives=Objectives(ttft=0.5))
    points = curve["points"]
    assert [point["rate"] for point in points] == [1.0, 5.0, 20.0]
    assert points[0]["attainment"] == 1.0
    assert points[0]["ttft_s"]["p99"] < points[2]["ttft_s"]["p99"]
    assert points[2]["requests_per_s"] == pytest.approx(10.0, rel=0.1)
    assert json.loads(json.dumps(curve, allow_nan=False)) == curve
    assert [seed for _, _, seed in line.runs] == [0, 1, 2]


def test_a_stopped_run_ends_the_sweep() -> None:
    line = fixed(0.1)

    def run(rate: float, seconds: float, seed: int) -> RunRecord:
        return replace(line(rate, seconds, seed), interrupted=seed == 1)

    curve = sweep(run, (1.0, 2.0, 4.0), 10.0)
    assert (len(curve["points"]), curve["interrupted"]) == (2, True)
