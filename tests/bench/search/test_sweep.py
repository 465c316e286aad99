from __future__ import annotations

import json

import pytest

from tests.bench.search.servers import fixed
from twofold.bench.metrics.goodput import Objectives
from twofold.bench.metrics.summary import summarise
from twofold.bench.search import curve_point, parse_rates
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
def test_invalid_rates(text: str) -> None:
    with pytest.raises(ParameterError) as caught:
        parse_rates(text)
    assert caught.value.param == "rates"


def test_a_curve_over_rates() -> None:
    line = fixed(0.1)
    records = [(rate, line(rate, 20.0, seed)) for seed, rate in enumerate((1.0, 5.0, 20.0))]
    points = [curve_point(rate, summarise(record, objectives=Objectives(ttft=0.5))) for rate, record in records]
    assert [point["rate"] for point in points] == [1.0, 5.0, 20.0]
    assert points[0]["attainment"] == 1.0
    assert points[0]["ttft_s"]["p99"] < points[2]["ttft_s"]["p99"]
    assert points[2]["requests_per_s"] == pytest.approx(10.0, rel=0.1)
    assert json.loads(json.dumps(points, allow_nan=False)) == points
