"""What a workload costs by the token."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from twofold.bench.draw.chart import Guide, Line
from twofold.core.errors import ParameterError
from twofold.planner.price.catalog import parse_table, read_table
from twofold.planner.price.document import price_document
from twofold.planner.price.report import (
    PriceAnswer,
    api_lines,
    caching_chart,
    compression_lines,
    dollars,
    price_lines,
    time_words,
)
from twofold.planner.price.workload import (
    ApiCost,
    Compression,
    Workload,
    against_cache,
    api_cost,
    caching_options,
    cliff_above,
    compression_saved,
    min_ratio,
)

AT = datetime(2026, 11, 21, tzinfo=UTC)
TABLE = parse_table(
    'source = "a page"\nchecked = 2026-11-21\n[p]\n'
    '"m" = [{ input = 2, cache_read = 0.2, cache_write = 2.5, cache_write_1h = 4, output = 10 },'
    " { above = 1000, input = 4, cache_read = 0.4, cache_write = 5, cache_write_1h = 8, output = 15 },"
    ' { tier = "batch", of = 0.5 }]'
)
WORK = Workload(input_tokens=1_000, output_tokens=100, requests_per_day=100, prefix_tokens=600)


def cost(workload: Workload) -> ApiCost:
    return api_cost(TABLE.models["p/m"], workload, AT)


def test_a_request_pays_for_each_of_its_tokens_once() -> None:
    found = cost(WORK)
    assert found.plain.total == Decimal("0.003")
    assert found.miss.total == Decimal("0.0033")
    assert found.hit.total == Decimal("0.00192")
    assert {line.kind: int(line.quantity) for line in found.hit.lines} == {
        "input": 400,
        "cache_read": 600,
        "output": 100,
    }


def test_the_mean_is_weighted_by_the_share_of_misses() -> None:
    found = cost(replace(WORK, session=4))
    assert found.per_request == (found.miss.total + 3 * found.hit.total) / 4
    assert found.per_day == found.per_request * 100
    assert found.per_month == pytest.approx(found.per_day * Decimal(365) / 12)
    assert found.saved == found.plain.total - found.per_request


def test_an_hour_is_written_at_its_own_price() -> None:
    assert cost(replace(WORK, ttl="1h")).miss.total == Decimal("0.0042")


def test_a_tier_costs_its_share() -> None:
    assert cost(replace(WORK, tier="batch")).hit.total * 2 == cost(WORK).hit.total


def test_a_cliff_raises_the_price_of_all_tokens() -> None:
    below, above = cost(WORK), cost(replace(WORK, input_tokens=1_001))
    assert cliff_above(below, AT) is None
    found = cliff_above(above, AT)
    assert found is not None
    assert (found.above, found.paid) == (1_000, Decimal("0.005504") - Decimal("0.003002"))


def test_completions_half_as_long_save_half_of_the_output() -> None:
    assert cost(WORK).half_output_saves == Decimal("0.0005")
    assert cost(replace(WORK, output_tokens=1)).half_output_saves == Decimal("0.00001")
    assert cost(replace(WORK, output_tokens=0)).half_output_saves == 0


def test_every_way_of_caching_is_compared() -> None:
    options = list(caching_options(cost(WORK), AT))
    assert [(each.caching, each.workload.ttl) for each in options] == [("off", "5m"), ("on", "5m"), ("on", "1h")]
    assert len(list(caching_options(cost(replace(WORK, prefix_tokens=0)), AT))) == 1


@pytest.mark.parametrize(
    ("field", "value"),
    [("input_tokens", 0), ("output_tokens", -1), ("requests_per_day", 0.0), ("prefix_tokens", 1_001), ("session", 0)],
)
def test_impossible_workloads_are_refused(field: str, value: float) -> None:
    with pytest.raises(ParameterError, match=f"{field} must be"):
        replace(WORK, **{field: value})  # type: ignore[arg-type]


def test_compression_pays_where_it_saves_more_than_it_costs() -> None:
    """Saved: p · S · (1 − 1/x) − cost; against a cached prefix only if x > 1/r."""
    assert Compression(4).saved(1_000, 2e-6) == pytest.approx(0.0015)
    assert Compression(4, cost=0.0015).saved(1_000, 2e-6) <= 0
    assert Compression(4, cost=0.0014).saved(1_000, 2e-6) > 0
    assert Compression(10).saved(1_000, 2e-6, cached_at=0.1) <= 0
    assert Compression(10.1).saved(1_000, 2e-6, cached_at=0.1) > 0
    assert min_ratio(1_000, 2e-6, cached_at=0.1) == pytest.approx(10)
    assert min_ratio(1_000, 2e-6, 0.001) == pytest.approx(2)
    assert min_ratio(1_000, 2e-6, 0.002) == float("inf")
    for ratio, price in ((0.0, 0.0), (float("nan"), 0.0), (2.0, -1.0)):
        with pytest.raises(ParameterError):
            Compression(ratio, price)


def test_compression_of_a_workload() -> None:
    found = cost(WORK)
    assert compression_saved(found, Compression(2)) == pytest.approx(0.001)
    against = against_cache(found, Compression(2))
    assert against is not None
    assert (against.saved, against.min_ratio) == pytest.approx((600 * 2e-6 * (0.1 - 0.5), 10))
    assert against_cache(cost(replace(WORK, prefix_tokens=0)), Compression(2)) is None


def test_lines_of_prices_and_costs() -> None:
    found = cost(replace(WORK, input_tokens=2_000))
    lines = [
        *price_lines(found.model, TABLE, 2_000, AT, "default"),
        *api_lines(found, AT),
        *compression_lines(found, Compression(2)),
    ]
    text = "\n".join(lines)
    for words in (
        "p/m: dollars per million tokens (a page, checked on 2026-11-21)",
        "input 4, cache read 0.4, cache write 5, cache write for 1 hour 8, output 15",
        "2,000 input and 100 output tokens per request, 100 requests per day",
        "no cache",
        "1h cache",
        "A 5m cache write breaks even after 0.28 reads.",
        "It pays off while the mean gap between requests is below 20.4 min; here it is 14.4 min.",
        "Prompts above 1,000 tokens cost more: that adds $0.0045 per request.",
        "Against cache reads it pays off from 10.0:1",
    ):
        assert words in text, words


def test_the_chart_of_a_cached_prefix_has_no_savings_from_the_longest_gap_on() -> None:
    found = cost(WORK)
    chart = caching_chart(found, AT)
    assert chart is not None
    lines = [mark for mark in chart.marks if isinstance(mark, Line)]
    assert [line.label for line in lines] == ["5m cache", "1h cache"]
    longest = found.cache.longest_gap_s(300) / 60
    assert longest in [mark.value for mark in chart.marks if isinstance(mark, Guide)]
    assert all((saved > 0) == (gap < longest) for gap, saved in lines[0].points)
    assert caching_chart(cost(replace(WORK, prefix_tokens=0)), AT) is None


def test_the_lines_name_a_prompt_that_exceeds_the_context() -> None:
    model = replace(TABLE.models["p/m"], context=900, other_charges=("web searches",))
    text = "\n".join(price_lines(model, TABLE, 1_000, AT, "batch"))
    assert "the prompt of 1,000 tokens exceeds its context of 900" in text
    assert "not included: web searches" in text
    assert "p/m, tier batch:" in text


def test_the_lines_name_a_prefix_that_is_too_short() -> None:
    model = read_table().find("claude-sonnet-4-6")
    text = "\n".join(api_lines(api_cost(model, WORK, AT), AT))
    assert "A prefix of 600 tokens is not cached: the minimum for anthropic/claude-sonnet-4-6 is 2,048." in text


def test_the_document_has_the_same_figures() -> None:
    found = cost(replace(WORK, session=4))
    document: Any = msgspec.to_builtins(price_document(PriceAnswer(found, TABLE, AT)))
    assert document["cost"]["per_request"] == float(found.per_request)
    assert document["caching"]["miss_share"] == 0.25
    assert [each["ttl"] for each in document["options"]] == [None, "5m", "1h"]
    assert sum(line["amount"] for line in document["bills"]["miss"]) == pytest.approx(float(found.miss.total))


def test_amounts_and_times_are_short() -> None:
    assert [dollars(x) for x in (0, 1234.5, 0.01234, -0.5, 2e-6)] == [
        "$0.00",
        "$1,234.50",
        "$0.0123",
        "-$0.5",
        "$2.00e-06",
    ]
    assert [time_words(x) for x in (3, 90, 7200)] == ["3 s", "1.5 min", "2.0 h"]
