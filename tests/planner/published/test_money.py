"""The formulas of money written out by hand, at a real model's prices."""

from __future__ import annotations

import math
from datetime import UTC, datetime

import pytest

from twofold.planner.count.crossover import implied_kv
from twofold.planner.count.memory import parameters
from twofold.planner.machines.known import find_machine
from twofold.planner.price.catalog import read_table
from twofold.planner.price.lifetime import CHINCHILLA, Lifetime
from twofold.planner.price.workload import CacheCost, Compression, Workload, api_cost, min_ratio, miss_share
from twofold.planner.shapes.known import find_shape

AT = datetime(2026, 11, 21, tzinfo=UTC)
PROMPT = Workload(input_tokens=4_000, output_tokens=0, requests_per_day=1_000, prefix_tokens=4_000)


def test_units_of_a_cache_are_those_of_anthropics_prices() -> None:
    """w = 1.25 for five minutes and 2.0 for an hour, r = 0.1."""
    prices = api_cost(read_table().find("claude-sonnet-4-6"), PROMPT, AT).prices
    short, long = CacheCost.of(prices, "5m"), CacheCost.of(prices, "1h")
    assert (short.write, long.write) == (1.25, 2.0)
    assert short.read == long.read == pytest.approx(0.1)


def test_a_prefix_costs_what_its_misses_do() -> None:
    """m·w + (1 − m)·r: m = e^(−λT), 1/(1 + λT) without refresh, 1/n of a session: (w + (n − 1)·r)/n."""
    rate, ttl = 1_000 / 86_400, 300.0
    cost = CacheCost(1.25, 0.1)
    refreshed, plain = miss_share(rate, ttl), miss_share(rate, ttl, refreshed=False)
    assert refreshed == pytest.approx(math.exp(-rate * ttl))
    assert plain == pytest.approx(1 / (1 + rate * ttl))
    assert cost.mean(refreshed) == pytest.approx(refreshed * 1.25 + (1 - refreshed) * 0.1)
    assert cost.mean(1 / 5) == pytest.approx((1.25 + 4 * 0.1) / 5)
    assert cost.max_misses == pytest.approx((1 - 0.1) / (1.25 - 0.1))


def test_a_workload_pays_by_these_formulas() -> None:
    """4,000 tokens on Sonnet 4.6, 1,000 times a day: $12 without a cache, and m·w + (1 − m)·r of that with one."""
    found = api_cost(read_table().find("claude-sonnet-4-6"), PROMPT, AT)
    miss = math.exp(-1_000 / 86_400 * 300)
    saved_a_day = float(found.saved) * 1_000
    assert float(found.plain.total) * 1_000 == pytest.approx(12.0)
    assert saved_a_day == pytest.approx(12.0 * (1 - (miss * 1.25 + (1 - miss) * 0.1)))


def test_compression_pays_above_what_the_compressor_costs() -> None:
    """p·S·(1 − 1/x) > cost; against a prefix that is read from the cache only if x > 1/r."""
    price = 3e-6
    edge = price * 4_000 * (1 - 1 / 4)
    assert Compression(4, cost=edge * 0.999).saved(4_000, price) > 0
    assert Compression(4, cost=edge * 1.001).saved(4_000, price) <= 0
    assert min_ratio(4_000, price, cached_at=0.1) == pytest.approx(1 / 0.1)


def test_a_price_tier_implies_one_of_two_caches() -> None:
    """kv = P/(ridge · c), or 2·P: for Llama-3-70B's own c* of 1,415 tokens the second is its 327,680 bytes."""
    found = implied_kv(parameters(find_shape("llama-3-70b")).active, find_machine("h100").ridge(), 1_415)
    assert found[1] == pytest.approx(327_680, rel=1e-3)
    assert found[0] == found[1] / 2


def test_the_law_of_training_and_serving() -> None:
    """6·N·D + 2·N·T under E + A/N^α + B/D^β, with (1.69, 406.4, 410.7, 0.336, 0.283) (Hoffmann et al. 2022)."""
    law = (CHINCHILLA.floor, CHINCHILLA.a, CHINCHILLA.b, CHINCHILLA.alpha, CHINCHILLA.beta)
    assert law == (1.69, 406.4, 410.7, 0.336, 0.283)
    assert CHINCHILLA.loss(7e9, 1.248e12) == 1.69 + 406.4 / 7e9**0.336 + 410.7 / 1.248e12**0.283
    assert Lifetime(7e9, 1.248e12, 2e12).flops == 6 * 7e9 * 1.248e12 + 2 * 7e9 * 2e12
