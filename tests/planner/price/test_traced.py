"""What a trace costs: each request by its own lengths, through a cache with a time to live."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest

from twofold.bench.load.trace import Trace, read_trace
from twofold.core.errors import ParameterError
from twofold.planner.price.catalog import parse_table, read_table
from twofold.planner.price.report import trace_lines
from twofold.planner.price.workload import TracedCost, api_cost, traced_cost

AT = datetime(2026, 11, 21, tzinfo=UTC)
MODEL = parse_table(
    'source = "a page"\nchecked = 2026-11-21\n[p]\n'
    '"m" = [{ input = 1, cache_read = 0.1, cache_write = 1.25, cache_write_1h = 2, output = 5 },'
    " { above = 1000, input = 2, cache_read = 0.2, cache_write = 2.5, output = 10 }]"
).models["p/m"]

Request = tuple[float, int, int, Sequence[tuple[int, int]]]
"""Arrival in seconds, prompt tokens, output tokens, and the (key, tokens) of shared pieces."""


def trace(*requests: Request) -> Trace:
    found = Trace(Path("made"), "twofold")
    for at_s, prompt, output, pieces in requests:
        found.add("at", at_s, prompt, output)
        found.share([key for key, _ in pieces], [tokens for _, tokens in pieces])
    return found


def cost(*requests: Request) -> TracedCost:
    return traced_cost(MODEL, trace(*requests), "5m", AT)


def test_a_prefix_is_written_once_and_read_while_it_is_live() -> None:
    shared = [(7, 300)]
    found = cost((0, 400, 10, shared), (299, 500, 10, shared), (598, 400, 10, shared), (899, 400, 10, shared))
    assert (found.written, found.read, found.fresh, found.output) == (600, 600, 500, 40)
    assert found.plain == Decimal("0.0019")
    assert found.cached == (600 * Decimal("1.25") + 60 + 500 + 200) / 1_000_000


def test_the_longest_live_prefix_is_read_and_the_rest_written() -> None:
    found = cost(
        (0, 300, 0, [(1, 100), (2, 100)]), (1, 300, 0, [(1, 100), (3, 100)]), (2, 300, 0, [(2, 100), (1, 100)])
    )
    assert (found.written, found.read) == (200 + 100 + 200, 100)


def test_every_request_pays_by_its_own_length() -> None:
    found = cost((0, 1_000, 0, []), (1, 1_001, 0, []))
    assert found.plain == found.cached == Decimal("0.001") + Decimal("0.002002")


def test_prefixes_below_the_minimum_are_not_cached() -> None:
    model = read_table().find("claude-sonnet-4-5")
    short, long = [(1, 1_000)], [(1, 1_000), (2, 100)]
    found = traced_cost(model, trace((0, 1_200, 0, short), (1, 1_200, 0, short), (2, 1_200, 0, long)), "5m", AT)
    assert (found.written, found.read) == (1_100, 0)
    found = traced_cost(model, trace((0, 1_200, 0, long), (1, 1_200, 0, short), (2, 1_200, 0, long)), "5m", AT)
    assert (found.written, found.read) == (1_100, 1_100)


def test_the_mean_request() -> None:
    found = cost((0, 400, 10, [(7, 300)]), (43_200, 600, 30, [(8, 300)]))
    work = found.workload("default")
    assert (work.input_tokens, work.output_tokens, work.requests_per_day) == (500, 20, 4)
    assert found.per_month(Decimal(1)) == pytest.approx(2 * 365 / 12)
    with pytest.raises(ParameterError, match="arrive at once"):
        cost((0, 400, 10, [])).workload("default")


def test_lines_of_a_trace() -> None:
    found = cost((0, 400, 10, [(7, 300)]), (60, 400, 10, [(8, 300)]))
    text = "\n".join(trace_lines(found, api_cost(MODEL, found.workload("default"), AT)))
    assert "trace of 2 requests in 1.0 min: 400 input and 10 output tokens on average" in text
    assert "The cache costs 16.7% more: 600 tokens are written and 0 read." in text


@pytest.mark.data
def test_an_hour_of_conversations_gains_little_from_five_minutes_and_loses_by_an_hour(test_data: Path) -> None:

    found = read_trace(test_data / "traces" / "mooncake_conversation.jsonl.gz")
    model = read_table().find("claude-sonnet-4-6")
    short, long = (traced_cost(model, found, ttl, AT) for ttl in ("5m", "1h"))
    assert short.saved_share == pytest.approx(0.0456, abs=0.0005)
    assert long.saved_share == pytest.approx(-0.29, abs=0.005)
    assert short.prompt == long.prompt == 144_793_823
