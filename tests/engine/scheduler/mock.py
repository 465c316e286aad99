"""Sequences, schedulers and outcomes without a model."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Row
from typing import Any

from tests.support.basis import BASIS
from twofold.core.params import SamplingParams
from twofold.core.record import SequenceRecord
from twofold.core.request import RequestOptions
from twofold.core.step import (
    Pooling,
    PositionLogprobs,
    SequenceOutcome,
    SequenceStep,
    StepOutcome,
    StepPlan,
    TokenConstraint,
    TokenEvent,
    TokenLogprob,
)
from twofold.engine.kv.manager import BlockManager, GroupSize
from twofold.engine.scheduler.budget import Budget, FixedBudget, StepLimits
from twofold.engine.scheduler.scheduler import Scheduler
from twofold.engine.scheduler.sequence import Sequence
from twofold.engine.scheduler.step_time import StepTimeModel

END = 9


def make_sequence(
    number: int = 0,
    prompt: int | Iterable[int] = 5,
    answer: int = 3,
    *,
    options: RequestOptions | None = None,
    arrival: float = 0.0,
    parent: Sequence | None = None,
    reports_prompt: bool = False,
    samples: bool = True,
    constraint: TokenConstraint | None = None,
    pooling: Pooling | None = None,
    candidates: int = 0,
    **params: Any,
) -> Sequence:
    """A sequence of ``prompt`` tokens, its own unless given, with room for ``answer`` more; token 9 ends it."""
    tokens = [100 + number] * prompt if isinstance(prompt, int) else list(prompt)
    return Sequence(
        number,
        tokens,
        SamplingParams(max_tokens=answer, **params) if answer else SamplingParams(**params),
        seed=number,
        limit=len(tokens) + answer,
        options=options or RequestOptions(),
        arrival=arrival,
        record=SequenceRecord(),
        end_ids=(END,),
        reports_prompt=reports_prompt,
        samples=samples,
        constraint=constraint,
        parent=parent,
        pooling=pooling,
        candidates=candidates,
    )


def make_manager(
    blocks: int = 32, *, host: int = 0, window: int | None = None, caching: bool = True, states: int = 0
) -> BlockManager:
    """Blocks of 4 positions; with ``window`` a second group that sees so far; and ``states``."""
    groups = [GroupSize(None, blocks, host)]
    if window is not None:
        groups.append(GroupSize(window, blocks, host))
    if states:
        groups.append(GroupSize(None, states, host // 4, state=True))
    return BlockManager(groups, 4, prefix_caching=caching, chunk=4)


def make_scheduler(
    seqs: int = 4,
    rows: int = 8,
    logit_rows: int = 8,
    blocks: int = 32,
    *,
    host: int = 0,
    window: int | None = None,
    budget: Budget | None = None,
    model: StepTimeModel | None = None,
    manager: BlockManager | None = None,
    **options: Any,
) -> Scheduler:
    return Scheduler(
        manager or make_manager(blocks, host=host, window=window),
        StepLimits(seqs, rows, logit_rows),
        budget=budget or FixedBudget(rows),
        step_time=model or StepTimeModel(BASIS),
        **options,
    )


def answer_plan(
    plan: StepPlan, token: Callable[[SequenceStep], int] = lambda _: 1, *, seconds: float = 0.0, moves_s: float = 0.0
) -> StepOutcome:
    """An outcome that samples ``token(step)`` for each sample of the step, with all other requested results."""
    return StepOutcome(tuple(_outcome(step, token) for step in plan.steps), seconds, moves_s)


def _outcome(step: SequenceStep, token: Callable[[SequenceStep], int]) -> SequenceOutcome:
    scored = tuple(PositionLogprobs(TokenLogprob(scored, -1.0, 1)) for scored in step.scored)
    hidden = None
    if step.pooling is not None:
        rows = step.tokens if step.pooling == "mean" else step.tokens[-1:]
        hidden = array("f", [float(len(rows))])
    if not step.samples:
        return SequenceOutcome(step.sequence_id, prompt_logprobs=scored, hidden=hidden)
    if step.candidates:
        best = tuple(TokenLogprob(i + 1, -float(i + 1), i + 1) for i in range(step.candidates))
        return SequenceOutcome(step.sequence_id, prompt_logprobs=scored, candidates=best)
    return SequenceOutcome(step.sequence_id, (token(step),), prompt_logprobs=scored)


def turn(
    scheduler: Scheduler, token: int = 1, now: float = 0.0, seconds: float = 0.0
) -> tuple[StepPlan, list[TokenEvent]]:
    """One turn of the loop."""
    plan = scheduler.plan(now)
    return plan, scheduler.commit(plan, answer_plan(plan, lambda _: token, seconds=seconds), now + seconds)


def finish_all(scheduler: Scheduler, token: int = 1, most: int = 5000, now: float = 0.0) -> list[TokenEvent]:
    """Turns until there is no more work; every turn must do something."""
    events: list[TokenEvent] = []
    for _ in range(most):
        if not scheduler.has_work:
            return events
        plan, new = turn(scheduler, token, now)
        assert plan, "there is work, and nothing was planned"
        events += new
    raise AssertionError(f"no end after {most} turns")


def shape(plan: StepPlan) -> Row[tuple[int, int, int]]:
    """Sequence, first position and number of rows of each part of a plan."""
    return [(step.sequence_id, step.start, len(step.tokens)) for step in plan.steps]
