"""Sequences and outcomes without a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twofold.core.params import SamplingParams
from twofold.core.step import SequenceOutcome, SequenceStep, StepOutcome, StepPlan
from twofold.sched.sequence import Sequence

END = 9


def make_sequence(
    number: int = 0, prompt: int = 5, answer: int = 3, *, scores_prompt: bool = False, **params: Any
) -> Sequence:
    """A sequence of ``prompt`` tokens with room for ``answer`` more; token 9 ends it."""
    return Sequence(
        number,
        [1] * prompt,
        SamplingParams(max_tokens=answer, **params),
        seed=number,
        limit=prompt + answer,
        end_ids=(END,),
        scores_prompt=scores_prompt,
    )


def answer_plan(plan: StepPlan, token: Callable[[SequenceStep], int] = lambda _: 1) -> StepOutcome:
    """An outcome that draws ``token(step)`` wherever a draw was asked for."""
    return StepOutcome(
        tuple(SequenceOutcome(step.sequence_id, (token(step),) if step.draw is not None else ()) for step in plan.steps)
    )
