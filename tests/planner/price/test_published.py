"""Prices equal genai-prices, where it is installed: its own arithmetic for every model, and the table inside."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from importlib.resources import files
from typing import Any, Final

import pytest

from twofold.observe.billing import TokenUsage, token_lines, total_of
from twofold.planner.price.catalog import MAKERS, ApiModel, Catalog, Tier, read_table

genai_prices = pytest.importorskip("genai_prices", reason="needs genai-prices")

from genai_prices.data import providers  # noqa: E402 - where it is installed

from tests.planner.price.make_table import write  # noqa: E402
from twofold.planner.price.catalog import read_published  # noqa: E402

USAGES: Final = (
    TokenUsage(fresh=1_000, output=100),
    TokenUsage(fresh=7, cached=90_000, written_5m=3_000, output=1),
    TokenUsage(fresh=99_999, cached=1, output=2_000),
    TokenUsage(fresh=150_000, cached=122_001, written_1h=11, output=777),
    TokenUsage(cached=300_000, written_5m=50_000, written_1h=600_000, output=64_000),
)
CONTEXTS: Final[dict[Tier, tuple[dict[str, str], ...]]] = {
    "batch": ({"processing": "batch"},),
    "flex": ({"service_tier": "flex"},),
    "priority": ({"service_tier": "priority"},),
    "fast": ({"service_tier": "fast"}, {"speed": "fast"}),
}


@pytest.fixture(scope="module")
def published() -> Catalog:
    return read_published()


def billed(model: ApiModel, usage: TokenUsage, at: datetime, tier: Tier) -> Decimal:
    prices = model.prices(usage.prompt, at, tier)
    return total_of(line.amount for line in token_lines(usage, prices, Decimal(1)))


def theirs(model: ApiModel, usage: TokenUsage, at: datetime, context: dict[str, str] | None) -> Decimal:
    given = genai_prices.Usage(
        input_tokens=usage.prompt,
        cache_read_tokens=usage.cached,
        cache_write_tokens=usage.written_5m + usage.written_1h,
        cache_write_1h_tokens=usage.written_1h,
        output_tokens=usage.output,
    )
    provider, info = _info(model)
    price = info.calc_price(given, provider, genai_request_timestamp=at, price_context=context)
    assert isinstance(price.total_price, Decimal)
    return price.total_price


def _info(model: ApiModel) -> tuple[Any, Any]:
    provider = next(each for each in providers if each.id == model.provider)
    return provider, next(each for each in provider.models if each.id == model.id)


def asked(model: ApiModel, at: datetime) -> Iterator[tuple[Tier, dict[str, str] | None]]:
    yield "default", None
    for tier in model.known_tiers(at):
        if tier != "default":
            anthropic = model.provider == "anthropic"
            yield tier, CONTEXTS[tier][-1] if anthropic else CONTEXTS[tier][0]


@pytest.mark.parametrize("maker", MAKERS)
def test_every_bill_equals_theirs(maker: str, published: Catalog) -> None:
    models = [model for model in published.models.values() if model.provider == maker]
    assert len(models) > 20
    moments = [datetime(2026, 11, 21, 12, tzinfo=UTC) + timedelta(days=days) for days in (-500, 0, 15, 60)]
    for model in models:
        for at in moments:
            for tier, context in asked(model, at):
                for usage in USAGES:
                    found, right = billed(model, usage, at, tier), theirs(model, usage, at, context)
                    assert found == right, f"{model.name} {tier} at {at}: {usage}"


def test_other_providers_bills_equal_theirs_too(published: Catalog) -> None:
    at = datetime(2026, 11, 21, 23, 30, tzinfo=UTC)
    for model in published.models.values():
        if model.provider not in MAKERS and not model.other_charges:
            assert billed(model, USAGES[1], at, "default") == theirs(model, USAGES[1], at, None), model.name


def test_the_table_inside_has_their_prices(published: Catalog) -> None:
    """Of every model that it has, now and on each later day that it knows of."""
    inside = read_table()
    assert inside.source.startswith(published.source), "make the table again: tests/planner/price/make_table.py"
    assert inside.checked is not None
    start = datetime(inside.checked.year, inside.checked.month, inside.checked.day, tzinfo=UTC)
    days = {each.start for model in inside.models.values() for each in model.lists if each.start}
    moments = [start, *(datetime(day.year, day.month, day.day, tzinfo=UTC) for day in sorted(days))]
    assert len(inside.models) > 100
    for name, model in inside.models.items():
        for at in moments:
            other = published.models[name]
            assert set(model.known_tiers(at)) == set(other.known_tiers(at)), name
            for tier in model.known_tiers(at):
                assert model.rates(at, tier) == other.rates(at, tier), f"{name} {tier} at {at}"


def test_the_table_inside_is_the_one_that_would_be_made() -> None:
    inside = read_table()
    assert inside.checked is not None
    text = files("twofold.planner.price").joinpath("table.toml").read_text(encoding="utf-8")
    assert text.splitlines() == "\n".join(write(inside.checked)).splitlines()


def test_their_rules_know_other_names(published: Catalog) -> None:
    assert published.find("anthropic/claude-sonnet-4-6-20260217").id == "claude-sonnet-4-6"
    assert published.find("claude-3-5-haiku-20241022").name == "anthropic/claude-3-5-haiku-latest"
    assert published.find("deepseek-chat").provider == "deepseek"
