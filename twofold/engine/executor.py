"""Steps on this machine: block moves, one batch, one forward pass, one round of sampling."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Container, Iterator
from dataclasses import replace
from time import perf_counter
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from twofold.core.errors import ModelError, TwofoldError
from twofold.core.step import (
    HIDDEN_SCALE,
    DrawRequest,
    Logits,
    Pooling,
    PositionLogprobs,
    SequenceOutcome,
    SequenceStep,
    StepOutcome,
    StepPlan,
)
from twofold.engine.batch import BatchBuilder
from twofold.ops.base import Forward
from twofold.sampling.sampler import Sampler

F32: TypeAlias = NDArray[np.float32]
Task: TypeAlias = Callable[[], None]


class LocalExecutor:
    """Runs a model in this process. It keeps nothing of a sequence between steps but what the KV blocks hold.

    A step that raised may be run again: its rows write the same keys and values.
    """

    def __init__(self, forward: Forward, sampler: Sampler, batches: BatchBuilder) -> None:
        self._forward = forward
        self._sampler = sampler
        self._batches = batches

    def run(self, plan: StepPlan, meanwhile: Task | None = None) -> StepOutcome:
        """Moves blocks, computes the rows and draws. The masks of constrained draws are made while the rows compute,
        after ``meanwhile``.
        """
        began = perf_counter()
        if plan.moves:
            self._forward.move(plan.moves)
        moved = perf_counter()
        if plan.steps:
            outcomes = self._advance(plan, _with_masks(plan, meanwhile))
        else:
            outcomes = ()
            if meanwhile is not None:
                meanwhile()
        return StepOutcome(outcomes, perf_counter() - moved, moved - began)

    def _advance(self, plan: StepPlan, meanwhile: Task | None) -> tuple[SequenceOutcome, ...]:
        logits = self._forward.run(self._batches.build(plan), meanwhile)
        hidden = self._forward.hidden
        ends, shut = _ends(plan), _without_draw(plan)
        drawn = self._draw(plan, logits, [end for end, _ in ends], shut)
        return tuple(
            self._outcome(step, logits[:logit_end], hidden[:hidden_end], drawn, shut.get(step.sequence_id))
            for step, (logit_end, hidden_end) in zip(plan.steps, ends, strict=True)
        )

    def _draw(self, plan: StepPlan, logits: F32, ends: list[int], shut: Container[int]) -> Iterator[int | TwofoldError]:
        """The drawn tokens of the steps that draw one, in order."""
        steps = [(end, step) for end, step in zip(ends, plan.steps, strict=True) if step.sequence_id not in shut]
        draws = [(end - 1, step.draw) for end, step in steps if _draws_token(step.draw)]
        at, requests = [row for row, _ in draws], [draw for _, draw in draws if draw is not None]
        return iter(self._sampler.draw(logits, at, requests) if at else ())

    def _outcome(
        self,
        step: SequenceStep,
        logits: F32,
        hidden: F32,
        drawn: Iterator[int | TwofoldError],
        shut: SequenceOutcome | None,
    ) -> SequenceOutcome:
        """What the step gave; its rows are the last of ``logits`` and ``hidden``. ``shut``: instead of a draw."""
        number, draw = step.sequence_id, step.draw
        prompt = self._score_prompt(step, logits)
        if step.pooling is not None:
            return _pooled(step, step.pooling, hidden, prompt)
        if draw is None or shut is not None:
            return replace(shut or SequenceOutcome(number), prompt_logprobs=prompt)
        if draw.candidates:
            found = self._sampler.candidates(logits[-1], draw)
            if isinstance(found, TwofoldError):
                return SequenceOutcome(number, prompt_logprobs=prompt, error=found)
            return SequenceOutcome(number, prompt_logprobs=prompt, candidates=found)
        token = next(drawn)
        if isinstance(token, TwofoldError):
            return SequenceOutcome(number, prompt_logprobs=prompt, error=token)
        logprobs: tuple[PositionLogprobs, ...] = ()
        if draw.params.logprobs is not None:
            logprobs = self._sampler.score(logits[-1:], (token,), draw.params.logprobs)
        return SequenceOutcome(number, (token,), logprobs, prompt)

    def _score_prompt(self, step: SequenceStep, logits: F32) -> tuple[PositionLogprobs, ...]:
        if not step.scored:
            return ()
        first = len(logits) - len(step.tokens)
        return self._sampler.score(logits[first : first + len(step.scored)], step.scored, step.alternatives)


def _draws_token(draw: DrawRequest | None) -> bool:
    return draw is not None and not draw.candidates


def _without_draw(plan: StepPlan) -> dict[int, SequenceOutcome]:
    """The outcomes of sequences that cannot draw: nothing can follow, or what may is not known yet."""
    shut = {}
    for step in plan.steps:
        constraint = None if step.draw is None else step.draw.constraint
        if constraint is None:
            continue
        if not constraint.wait():
            shut[step.sequence_id] = SequenceOutcome(step.sequence_id, deferred=True)
        elif constraint.finished:
            shut[step.sequence_id] = SequenceOutcome(step.sequence_id, complete=True)
    return shut


def _with_masks(plan: StepPlan, meanwhile: Task | None) -> Task | None:
    """``meanwhile``, then the masks that the plan's draws will need."""
    draws = [step.draw for step in plan.steps if step.draw is not None]
    constraints = [draw.constraint for draw in draws if draw.constraint is not None]
    if not constraints:
        return meanwhile

    def prepare() -> None:
        if meanwhile is not None:
            meanwhile()
        for constraint in constraints:
            constraint.prepare()
        all(constraint.wait() for constraint in constraints)  # with this thread's core, until one is late

    return prepare


def _pooled(step: SequenceStep, pooling: Pooling, hidden: F32, prompt: tuple[PositionLogprobs, ...]) -> SequenceOutcome:
    """The step's hidden states, the last rows of ``hidden``, pooled as ``SequenceOutcome.hidden`` says."""
    if pooling == "last":
        vector = hidden[-1].astype(np.float64)
    else:
        vector = np.rint(hidden[-len(step.tokens) :].astype(np.float64) * HIDDEN_SCALE).sum(axis=0)
    if not np.isfinite(vector).all():
        error = ModelError(
            "The model computed hidden states that are not finite.",
            hint="The file may be damaged: verify its checksum.",
        )
        return SequenceOutcome(step.sequence_id, prompt_logprobs=prompt, error=error)
    return SequenceOutcome(step.sequence_id, prompt_logprobs=prompt, hidden=array("d", vector.tobytes()))


def _ends(plan: StepPlan) -> list[tuple[int, int]]:
    """For each step, the logit row and the hidden row after its own."""
    ends, logit_row, hidden_row = [], 0, 0
    for step in plan.steps:
        if step.logits is Logits.LAST:
            logit_row += 1
        elif step.logits is Logits.ALL:
            logit_row += len(step.tokens)
        if step.pooling is not None:
            hidden_row += 1 if step.pooling == "last" else len(step.tokens)
        ends.append((logit_row, hidden_row))
    return ends
