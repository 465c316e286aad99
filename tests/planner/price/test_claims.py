"""Public claims about the money of prompt caches, corrected: the arithmetic of each."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from twofold.planner.price.catalog import read_table
from twofold.planner.price.workload import DAY_S, ApiCost, CacheCost, Workload, api_cost

AT = datetime(2026, 11, 21, tzinfo=UTC)
CLAIM = Workload(input_tokens=2_000, output_tokens=0, requests_per_day=1_000, prefix_tokens=2_000)
"""2,000 tokens of prompt, 1,000 requests a day, on Sonnet 4.6: "saves $5.90 a day, 98 %"."""


def cost(workload: Workload, model: str = "claude-sonnet-4-6") -> ApiCost:
    return api_cost(read_table().find(model), workload, AT)


def saved_a_day(found: ApiCost) -> float:
    return float(found.saved) * found.workload.requests_per_day


def test_the_prompt_is_too_short_to_be_cached_and_saves_nothing() -> None:
    found = cost(CLAIM)
    assert (found.caching, found.min_cached, saved_a_day(found)) == ("too short", 2_048, 0)


def test_the_ceiling_is_ninety_per_cent_and_poisson_arrivals_save_less() -> None:
    """As if the minimum were met, on a model of the same prices with a shorter one: $5.40 at most, and $5.19."""
    found = cost(CLAIM, "claude-sonnet-4-5")
    assert found.caching == "on"
    assert float(found.plain.total) * 1_000 == pytest.approx(6.00)
    assert float(found.max_saved) * 1_000 == pytest.approx(5.40)
    assert saved_a_day(found) == pytest.approx(5.19, abs=0.005)


def test_a_five_minute_window_has_three_and_a_half_of_the_requests_and_not_seventy() -> None:
    assert CLAIM.requests_per_day / DAY_S * 300 == pytest.approx(3.47, abs=0.005)


def test_five_minutes_pay_from_the_first_read_and_the_hour_from_the_second() -> None:
    """ "Break-even at 2 reads" is right for the hour alone."""
    prices = cost(CLAIM).prices
    short, long = CacheCost.of(prices, "5m"), CacheCost.of(prices, "1h")
    assert short.mean(1 / 2) < 1
    assert long.mean(1 / 2) > 1
    assert long.mean(1 / 3) < 1


def test_one_request_pays_more_with_a_cache_than_without() -> None:
    found = cost(replace(CLAIM, prefix_tokens=2_000, session=1), "claude-sonnet-4-5")
    assert saved_a_day(found) == pytest.approx(-1.5)
