"""How many rows prompts get beside generating sequences."""

from __future__ import annotations

import pytest

from tests.engine.scheduler.mock import make_scheduler, make_sequence
from tests.engine.scheduler.test_speculation import FixedTimes
from tests.engine.scheduler.test_step_time import decode, taught
from tests.support.basis import BASIS
from twofold.core.errors import ParameterError
from twofold.core.request import RequestOptions
from twofold.core.step import SequenceOutcome, StepOutcome
from twofold.engine.scheduler.budget import (
    AIM,
    LENT,
    LONGEST_GAP,
    MAX_AHEAD,
    MIN_PREFILL_ROWS,
    UNLEARNED_ROWS,
    Allowance,
    FixedBudget,
    LiveBudget,
)
from twofold.engine.scheduler.draft_model import ModelDrafts, passes
from twofold.engine.scheduler.sequence import Sequence
from twofold.engine.scheduler.speculation import Speculator
from twofold.engine.scheduler.step_time import StepShape, StepTimeModel

NOBODY = StepShape()
MODEL = taught(600, noise=0.02)


def generating(target: float | None = None, tokens: int = 1, first: float | None = 0.0) -> Sequence:
    sequence = make_sequence(options=RequestOptions(tpot_target_s=target), answer=100)
    sequence.tokens.extend([1] * tokens)
    sequence.paced_from = None if first is None else (first, 1)
    return sequence


def test_without_generating_sequences_prompts_get_all_rows() -> None:
    for budget in (FixedBudget(20), LiveBudget(MODEL, 0.001)):
        assert budget.rows(NOBODY, StepShape().plus(0, 100), budget.allowance([], NOBODY, 1.0, 0.0), 0, 412) == 412


def test_a_fixed_budget_counts_rows() -> None:
    budget = FixedBudget(40)
    assert budget.rows(decode(8), decode(8), budget.allowance([], NOBODY, 1.0, 0.0), 0, 500) == 32
    assert budget.rows(decode(8), decode(8).plus(0, 30), budget.allowance([], NOBODY, 1.0, 0.0), 0, 500) == 2
    assert budget.rows(decode(38), decode(38), budget.allowance([], NOBODY, 1.0, 0.0), 0, 500) == MIN_PREFILL_ROWS


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


def test_a_limit_that_was_given_holds_even_then() -> None:
    step, alone = decode(32), MODEL.predict(decode(32))
    assert alone is not None
    budget = LiveBudget(MODEL, 0.03, itl_limit_s=1.4 * alone)
    rows = budget.rows(step, step, Allowance(-1.0, 0.03), 500, 500)
    assert (MODEL.predict(step.plus(500, rows)) or 0.0) <= 1.4 * alone


def test_before_anything_is_known_prompts_get_a_fixed_number() -> None:
    budget = LiveBudget(StepTimeModel(BASIS), 0.05)
    assert budget.rows(decode(8), decode(8), Allowance(0.05, 0.05), 0, 500) == UNLEARNED_ROWS


def spare(budget: LiveBudget, *sequences: Sequence, share: float = 1.0, now: float = 0.0) -> Allowance:
    return budget.allowance(sequences, decode(8), share, now)


def test_the_tightest_sequence_counts() -> None:
    budget = LiveBudget(MODEL, 0.05, itl_limit_s=0.03)
    assert spare(budget, generating(), generating(target=0.02)) == Allowance(0.03, 0.02)
    late = 100 * AIM * 0.05 - 0.01
    assert spare(budget, generating(tokens=100), generating(target=0.5), now=late).seconds == pytest.approx(0.01)


def test_a_part_of_the_future_slack_is_lent() -> None:
    budget, alone = LiveBudget(MODEL, 0.05, itl_limit_s=60.0), MODEL.predict(decode(8))
    assert alone is not None
    for tokens, share, ahead in ((100, 1.0, 0), (80, 1.0, 20), (10, 1.0, MAX_AHEAD), (10, 0.2, 10), (30, 0.2, 0)):
        given = spare(budget, generating(tokens=tokens), share=share, now=tokens * AIM * 0.05)
        assert given.seconds == pytest.approx(LENT * (AIM * 0.05 - alone) * ahead)


def test_a_late_sequence_has_less_slack_and_an_early_one_more() -> None:
    budget = LiveBudget(MODEL, 0.05, itl_limit_s=60.0)
    on_time, late, early = (spare(budget, generating(tokens=10), now=now).seconds for now in (0.5, 0.6, 0.3))
    assert late == pytest.approx(on_time - 0.1)
    assert early == pytest.approx(on_time + 0.2)


def test_no_gap_is_longer_than_its_limit() -> None:
    assert spare(LiveBudget(MODEL, 0.05), generating(tokens=90)).seconds == pytest.approx(LONGEST_GAP * 0.05)
    assert spare(LiveBudget(MODEL, 0.05, itl_limit_s=0.06), generating(tokens=90)).seconds == 0.06


def test_the_passes_of_a_draft_model_count() -> None:
    """They take part of the step's seconds, so prompts get fewer rows, and slack grows more slowly."""
    budget, step = LiveBudget(MODEL, 0.05), decode(8)
    rows, fewer = (budget.rows(step, step, Allowance(0.05, 0.05, passes_s), 500, 500) for passes_s in (0.0, 0.01))
    seconds = [MODEL.predict(step.plus(500, count)) or 0.0 for count in (fewer, fewer + 1)]
    assert seconds[0] <= 0.04 < seconds[1]
    assert rows > fewer > MIN_PREFILL_ROWS
    budget, alone = LiveBudget(MODEL, 0.05, itl_limit_s=60.0), MODEL.predict(step) or 0.0
    given = budget.allowance([generating(tokens=80)], step, 1.0, 80 * AIM * 0.05, 0.002)
    assert given.seconds == pytest.approx(LENT * (AIM * 0.05 - alone - 0.002) * 20)
    assert given.draft_s == 0.002


def test_steps_with_a_draft_model_and_a_prompt_keep_the_limit() -> None:
    """A step takes 1 s and 10 ms a row, a pass of the draft model 0.3 of it, and no gap may exceed 2 s: prompts
    get the rows that are left of it, and not one fewer. Its drafts are always right."""
    times = FixedTimes(0.01)
    model = ModelDrafts(times, 0.3, context=10_000, rows=100, block_size=4)
    limit, passed = 2.0, []
    scheduler = make_scheduler(
        seqs=2,
        rows=400,
        logit_rows=32,
        blocks=400,
        budget=LiveBudget(times, 4.0, itl_limit_s=limit),
        model=times,
        features=[model, Speculator(times, 2, model)],
    )
    scheduler.add(make_sequence(0, list(range(30)), 200), 0.0)
    now = 0.0
    for number in range(40):
        if number == 10:
            scheduler.add(make_sequence(1, list(range(100, 700)), 4), now)
        plan = scheduler.plan(now)
        drafting = tuple(map(model.predict, passes(plan.steps)))
        if drafting and plan.rows > plan.decode_rows and scheduler.running == 2:
            passed.append(sum(drafting))
            rest = [step for step in plan.steps if step.sequence_id == 1]
            assert plan.predicted_s is not None
            assert plan.predicted_s <= limit
            if rest[0].end < 600:
                assert plan.predicted_s + 0.01 > limit
        seconds = (plan.predicted_s or 1.0) + (0.0 if plan.predicted_s else sum(drafting))
        now += seconds
        outcomes = [
            SequenceOutcome(step.sequence_id, tuple(range(1_000 * number, 1_000 * number + step.drafts + 1)))
            if step.samples
            else SequenceOutcome(step.sequence_id)
            for step in plan.steps
        ]
        scheduler.commit(plan, StepOutcome(tuple(outcomes), seconds, draft_s=drafting), now)
    assert len(passed) > 4
    assert min(passed) > 0.2


def test_impossible_budgets_are_refused() -> None:
    with pytest.raises(ParameterError):
        FixedBudget(0)
    with pytest.raises(ParameterError):
        LiveBudget(MODEL, 0.0)
