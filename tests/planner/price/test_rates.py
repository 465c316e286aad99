"""Rates by moment, tier and length of the prompt; the table inside."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal

import pytest

from twofold.core.errors import ParameterError
from twofold.observe.billing import TokenPrices
from twofold.planner.price.catalog import ApiModel, PriceList, Rate, parse_table, read_table

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
HEAD = 'source = "a page"\nchecked = 2026-11-21\n[maker]\n'


def model(text: str) -> ApiModel:
    return parse_table(HEAD + f'"m" = [{text}]').models["maker/m"]


def decimals(*texts: str) -> TokenPrices:
    """These prices; published lists have none for a store, which costs what the cache does."""
    return TokenPrices(*map(Decimal, (*texts, texts[1], texts[4])))


def test_a_step_is_a_cliff_for_the_whole_request() -> None:
    rate = Rate(Decimal(3), ((200_000, Decimal(6)), (500_000, Decimal(9))))
    found = [rate.of(tokens) for tokens in (0, 200_000, 200_001, 500_000, 500_001)]
    assert found == [Decimal(price) for price in (3, 3, 6, 6, 9)]


def test_a_kind_without_a_rate_is_charged_as_the_next_wider_one() -> None:
    assert model("{ input = 2, output = 8 }").prices(1, NOW) == decimals("2", "2", "2", "2", "2", "8")
    found = model("{ input = 2, cache_read = 0.2, cache_write = 2.5, output = 8 }").prices(1, NOW)
    assert found == decimals("2", "0.2", "2.5", "2.5", "2.5", "8")
    found = model("{ input = 2, cache_write = 2.5, cache_write_1h = 4, cache_write_5m = 3 }").prices(1, NOW)
    assert found == decimals("2", "2", "3", "2.5", "4", "0")


def test_prices_change_on_a_day_by_utc() -> None:
    found = model("{ input = 2, output = 8 }, { from = 2026-12-01, input = 4, output = 16 }")
    before = datetime(2026, 12, 1, 0, 59, tzinfo=timezone(timedelta(hours=1)))
    assert found.prices(1, before).input == 2
    assert found.prices(1, before + timedelta(minutes=1)).input == 4


def test_prices_of_some_hours() -> None:
    day, night = ({"input": Rate(Decimal(price))} for price in (2, 1))
    found = ApiModel("p", "m", (PriceList(day), PriceList(night, hours=(time(22), time(6)))), {})  # type: ignore[arg-type]
    prices = [found.prices(1, NOW.replace(hour=hour)).input for hour in (5, 6, 21, 22)]
    assert prices == [1, 2, 2, 1]


def test_a_tier_changes_what_it_names() -> None:
    found = model('{ input = 2, cache_read = 0.5, output = 8 }, { tier = "batch", input = 1, output = 4 }')
    assert found.prices(1, NOW, "batch") == decimals("1", "0.5", "1", "1", "1", "4")


def test_a_tier_may_be_a_part_of_every_price_with_its_steps_and_days() -> None:
    text = "{ input = 2, output = 8 }, { above = 100, input = 4 }, { from = 2027-01-01, input = 6, output = 9 }"
    found = model(text + ', { tier = "flex", of = 0.5 }')
    later = NOW + timedelta(days=60)
    assert [found.prices(tokens, NOW, "flex").input for tokens in (100, 101)] == [1, 2]
    assert found.prices(101, later, "flex").input == 3
    assert found.cliffs(NOW) == (100,)
    assert found.cliffs(later) == ()


def test_an_unknown_tier_is_refused_with_those_that_there_are() -> None:
    found = model('{ input = 2 }, { tier = "flex", of = 0.5 }')
    with pytest.raises(ParameterError, match="maker/m has no prices for tier 'batch'") as caught:
        found.prices(1, NOW, "batch")
    assert caught.value.hint is not None
    assert "default, flex" in caught.value.hint


def test_the_table_inside_is_dated_and_sound() -> None:
    table = read_table()
    assert table.checked is not None
    assert table.checked >= date(2026, 11, 21)
    assert str(table.checked) in table.source
    assert {key.partition("/")[0] for key in table.models} == {"anthropic", "openai", "google"}
    for each in table.models.values():
        for tier in each.known_tiers(NOW):
            prices = each.prices(1_000, NOW, tier)
            assert 0 < prices.cache_read <= prices.input <= prices.cache_write_1h, each.name
            assert prices.output > 0, each.name


def test_anthropics_prices_keep_their_factors() -> None:
    """Batch is half; a write is 1.25 of input for 5 minutes and 2 for an hour; claude-3-haiku's are rounded."""
    for each in read_table().models.values():
        prices = each.prices(1, NOW)
        if each.provider == "anthropic" and prices.cache_write_5m != prices.input and each.id != "claude-3-haiku":
            assert (prices.cache_write_5m, prices.cache_write_1h) == (prices.input * Decimal("1.25"), prices.input * 2)
        if "batch" in each.known_tiers(NOW) and each.provider == "anthropic":
            assert each.prices(1, NOW, "batch").output * 2 == prices.output
