"""How many rows prompts get beside those that generate."""

from __future__ import annotations

import pytest

from tests.sched.mock import make_sequence
from tests.sched.test_step_time import decode, taught
from twofold.core.errors import ParameterError
from twofold.core.request import RequestOptions
from twofold.sched.budget import MIN_PREFILL_ROWS, UNLEARNED_ROWS, Allowance, FixedBudget, LiveBudget
from twofold.sched.sequence import Sequence
from twofold.sched.step_time import StepShape, StepTimeModel

NOBODY = StepShape()
MODEL = taught(600, noise=0.02)


def generating(target: float | None = None, tokens: int = 1, first: float | None = 0.0) -> Sequence:
    sequence = make_sequence(options=RequestOptions(tpot_target_s=target), answer=100)
    sequence.tokens.extend([1] * tokens)
    sequence.first_token_at = first
    return sequence


def test_without_anybody_who_generates_prompts_get_all() -> None:
    for budget in (FixedBudget(20), LiveBudget(MODEL, 0.001)):
        assert budget.rows(NOBODY, StepShape().plus(0, 100), budget.allowance([], 0.0), 0, 412) == 412


def test_a_fixed_budget_counts_rows() -> None:
    budget = FixedBudget(40)
    assert budget.rows(decode(8), decode(8), budget.allowance([], 0.0), 0, 500) == 32
    assert budget.rows(decode(8), decode(8).plus(0, 30), budget.allowance([], 0.0), 0, 500) == 2
    assert budget.rows(decode(38), decode(38), budget.allowance([], 0.0), 0, 500) == MIN_PREFILL_ROWS


def test_a_live_budget_fills_the_allowance_and_no_more() -> None:
    budget, step = LiveBudget(MODEL, 0.05), decode(8)
    rows = budget.rows(step, step, Allowance(0.05, 0.05), 500, 500)
    seconds = [MODEL.predict(step.plus(500, count)) or 0.0 for count in (rows, rows + 1)]
    assert rows > MIN_PREFILL_ROWS
    assert seconds[0] <= 0.05 < seconds[1]


def test_rows_given_to_earlier_prompts_count() -> None:
    budget, step = LiveBudget(MODEL, 0.05), decode(8)
    whole = budget.rows(step, step, Allowance(0.05, 0.05), 500, 500)
    rest = budget.rows(step, step.plus(500, 30), Allowance(0.05, 0.05), 500, 500)
    assert rest == pytest.approx(whole - 30, abs=3)


def test_prompts_always_get_some_rows() -> None:
    budget, step = LiveBudget(MODEL, 0.05), decode(8)
    behind = Allowance(-1.0, 0.05)
    assert budget.rows(step, step, behind, 500, 500) == MIN_PREFILL_ROWS
    assert budget.rows(step, step, behind, 500, 3) == 3
    assert budget.rows(step, step.plus(0, MIN_PREFILL_ROWS), behind, 500, 500) == 0


def test_where_decoding_alone_is_too_slow_prompts_may_double_the_step() -> None:
    budget, step = LiveBudget(MODEL, 0.03), decode(32)
    rows = budget.rows(step, step, Allowance(-1.0, 0.03), 500, 500)
    alone, together = MODEL.predict(step), MODEL.predict(step.plus(500, rows))
    assert alone is not None
    assert together is not None
    assert 1.9 * alone < together <= 2 * alone


def test_before_anything_is_known_prompts_get_a_fixed_number() -> None:
    budget = LiveBudget(StepTimeModel(), 0.05)
    assert budget.rows(decode(8), decode(8), Allowance(0.05, 0.05), 0, 500) == UNLEARNED_ROWS


def test_the_tightest_sequence_counts() -> None:
    budget = LiveBudget(MODEL, 0.05)
    assert budget.allowance([generating(), generating(target=0.02)], 0.0) == Allowance(0.02, 0.02)
    assert budget.allowance([generating(), generating(target=0.5)], 0.0) == Allowance(0.05, 0.05)


def test_who_is_behind_its_schedule_tightens_and_nobody_saves_up() -> None:
    budget = LiveBudget(MODEL, 0.05)
    assert budget.allowance([generating(tokens=10)], 0.47).seconds == pytest.approx(0.03)
    assert budget.allowance([generating(tokens=10)], 0.1).seconds == 0.05
    assert budget.allowance([generating(first=None)], 9.0).seconds == 0.05


def test_impossible_budgets_are_refused() -> None:
    with pytest.raises(ParameterError):
        FixedBudget(0)
    with pytest.raises(ParameterError):
        LiveBudget(MODEL, 0.0)
