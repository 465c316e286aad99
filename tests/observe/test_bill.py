"""Bills against sums made by hand, and laws that hold for all of them."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.metrics import output_times, request_metrics
from twofold.core.record import SequenceRecord
from twofold.core.report import RequestMetrics
from twofold.host.settings import parse_toml
from twofold.observe.billing import Bill, PriceSheet, TokenUsage, make_bill, total_of

SHEET = PriceSheet.of(parse_toml("[default]\ninput = 3\noutput = 15\n[models.own]\nper_hour = 0.72\nbusy_share = 0.5"))
M5, M30, H1 = 300.0, 1800.0, 3600.0


def report(prompt: int, cached: int = 0, output: int = 1, *, rows: int | None = None, batch: int = 1) -> RequestMetrics:
    """A request that computed ``rows`` of its prompt, all that was not cached if left open, at 1 ms a row of a step
    with ``batch`` times its own rows."""
    record = SequenceRecord(cached=cached, fresh=prompt - cached)
    rows = prompt - cached if rows is None else rows
    if rows:
        record.prefill.add_step(cached, rows, step_rows=rows * batch, logit_rows=1, seconds=rows / 1000)
    for position in range(prompt, prompt + output - 1):
        record.decode.add_step(position, 1, step_rows=batch, logit_rows=1, seconds=0.001)
    ran = 1.0 if rows else None
    return request_metrics("r", 0.0, ran, ran, ran, 2.0, prompt, cached, output, ("stop",), record)


def billed(
    *reports: RequestMetrics,
    written: dict[float, int] | None = None,
    sheet: PriceSheet = SHEET,
    model: str = "any",
    tier: str = "default",
) -> Bill:
    bill = make_bill(reports, written or {}, sheet, model, tier)
    assert bill is not None
    return bill


def amounts(bill: Bill) -> dict[str, str]:
    return {line.kind: str(line.amount.normalize()) for line in bill.lines}


def test_each_token_is_paid_for_once() -> None:
    bill = billed(report(1000, cached=400, output=20), written={M5: 100, H1: 300})
    assert amounts(bill) == {
        "input": "0.0006",
        "cache_read": "0.00012",
        "cache_write_5m": "0.000375",
        "cache_write_1h": "0.0018",
        "output": "0.0003",
    }
    assert bill.total == Decimal("0.003195")
    assert [line.price for line in bill.lines] == [3, Decimal("0.3"), Decimal("3.75"), 6, 15]


@pytest.mark.parametrize(("tier", "factor"), [("default", "1"), ("priority", "2"), ("flex", "0.5"), ("batch", "0.5")])
def test_tiers_pay_their_part(tier: str, factor: str) -> None:
    whole, part = billed(report(10)), billed(report(10), tier=tier)
    assert part.total == whole.total * Decimal(factor)
    assert (part.tier, part.factor) == (tier, Decimal(factor))


def test_what_never_ran_costs_nothing() -> None:
    bill = billed(report(500, output=0, rows=0), written={M5: 400})
    assert not bill.lines
    assert bill.total == 0


def test_a_prompt_that_was_cut_short_pays_for_its_rows() -> None:
    usage = TokenUsage.of([report(500, cached=100, output=0, rows=150)], {M30: 120, H1: 200})
    assert usage == TokenUsage(fresh=0, cached=100, written_30m=120, written_1h=30)


def test_rows_that_were_computed_again_are_not_paid_for() -> None:
    assert TokenUsage.of([report(100, rows=170)], {}) == TokenUsage(fresh=100, output=1)


def test_models_without_prices_have_no_bill() -> None:
    assert make_bill([report(1)], {}, PriceSheet(), "any", "default") is None


def test_own_hardware_is_paid_for_by_machine_time() -> None:
    """72 cents an hour at half use: 0.0004 a second. 100 + 9 rows of 1 ms, in steps that three others share."""
    bill = billed(report(100, output=10, batch=4), model="own")
    assert amounts(bill) == {"prefill": "0.00001", "decode": "9E-7"}
    assert [(line.quantity, line.unit) for line in bill.lines] == [
        (Decimal("0.025"), "second"),
        (Decimal("0.00225"), "second"),
    ]
    assert {line.price for line in bill.lines} == {Decimal("1.44")}


def test_who_shares_steps_pays_for_them_together() -> None:
    alone = billed(report(100, output=11), model="own").total
    together = [billed(report(100, output=11, batch=4), model="own").total for _ in range(4)]
    assert total_of(together) == alone


counts = st.integers(0, 10**9)
price = st.decimals("0", "1000000000", places=6).map(str)
factor = st.decimals("0", "1000", places=6).map(str)


@st.composite
def usages(draw: st.DrawFn) -> tuple[RequestMetrics, dict[float, int]]:
    prompt = draw(counts)
    cached = draw(st.integers(0, prompt))
    made = request_metrics("r", 0, 1, 1, 1, 2, prompt, cached, draw(counts), ("stop",), SequenceRecord())
    made.record.prefill.rows = draw(counts)
    made.record.prefill.machine_s = draw(st.floats(0, 1e6))
    made.record.decode.machine_s = draw(st.floats(0, 1e6))
    return made, {seconds: draw(counts) for seconds in (M5, M30, H1)}


@st.composite
def sheets(draw: st.DrawFn) -> PriceSheet:
    if draw(st.booleans()):
        text = f"[default]\nper_hour = {draw(price)}\nbusy_share = 0.7\n[tiers]\nflex = {draw(factor)}"
    else:
        names = ("input", "output", "cache_read", "cache_write_5m", "cache_write_1h")
        lines = [f"{name} = {draw(price)}" for name in names]
        text = "[default]\n" + "\n".join(lines) + f"\nof_input = {{ cache_write_30m = {draw(factor)} }}"
    return PriceSheet.of(parse_toml(text))


@settings(max_examples=150)
@given(one=usages(), sheet=sheets(), tier=st.sampled_from(["default", "flex", "priority"]))
def test_lines_are_exact_and_add_up(one: tuple[RequestMetrics, dict[float, int]], sheet: PriceSheet, tier: str) -> None:
    made, written = one
    usage = TokenUsage.of([made], written)
    assert usage.prompt == made.cached_tokens + min(made.prompt_tokens - made.cached_tokens, made.record.prefill.rows)
    bill = billed(made, written=written, sheet=sheet, tier=tier)
    assert all(line.amount >= 0 and line.quantity > 0 for line in bill.lines)
    assert Fraction(bill.total) == sum(Fraction(line.amount) for line in bill.lines)
    for line in bill.lines:
        exact = Fraction(line.quantity) * Fraction(line.price) / (10**6 if line.unit == "token" else 3600)
        error = abs(Fraction(line.amount) - exact)
        assert error == 0 if line.unit == "token" else error <= Fraction(1, 10**12) * (1 + Fraction(line.quantity))


@settings(max_examples=150)
@given(one=usages(), sheet=sheets(), more=counts, seconds=st.floats(0, 1e6))
def test_more_never_costs_less(
    one: tuple[RequestMetrics, dict[float, int]], sheet: PriceSheet, more: int, seconds: float
) -> None:
    made, written = one
    before = billed(made, written=written, sheet=sheet).total
    longer = replace(made, token_times=output_times(made.output_tokens + more, 1.0, 1.0))
    assert billed(longer, written=written, sheet=sheet).total >= before
    assert billed(replace(made, prompt_tokens=made.prompt_tokens + more), written=written, sheet=sheet).total >= before
    made.record.decode.machine_s += seconds
    assert billed(made, written=written, sheet=sheet).total >= before


@settings(max_examples=50)
@given(one=usages(), sheet=sheets())
def test_two_prompts_pay_what_each_pays_alone(one: tuple[RequestMetrics, dict[float, int]], sheet: PriceSheet) -> None:
    made, _ = one
    together, apart = billed(made, made, sheet=sheet), billed(made, sheet=sheet)
    assert abs(together.total - total_of([apart.total, apart.total])) <= Decimal("2e-9") * (1 + apart.total)
