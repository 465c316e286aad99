"""Steps on this machine: one batch, one forward pass, one round of sampling."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from twofold.core.step import Logits, PositionLogprobs, SequenceOutcome, SequenceStep, StepOutcome, StepPlan
from twofold.engine.batch import BatchBuilder
from twofold.ops.base import Forward
from twofold.sampling.sampler import Sampler

F32: TypeAlias = NDArray[np.float32]


class LocalExecutor:
    """Runs a model in this process. It keeps nothing of a sequence between steps but what the KV blocks hold."""

    def __init__(self, forward: Forward, sampler: Sampler, batches: BatchBuilder) -> None:
        self._forward = forward
        self._sampler = sampler
        self._batches = batches

    def run(self, plan: StepPlan) -> StepOutcome:
        logits = self._forward.run(self._batches.build(plan))
        ends = _logit_ends(plan)
        at = [end - 1 for end, step in zip(ends, plan.steps, strict=True) if step.draw is not None]
        requests = [step.draw for step in plan.steps if step.draw is not None]
        tokens = iter(self._sampler.draw(logits, at, requests) if at else ())
        return StepOutcome(
            tuple(
                self._outcome(step, logits, end, None if step.draw is None else next(tokens))
                for end, step in zip(ends, plan.steps, strict=True)
            )
        )

    def _outcome(self, step: SequenceStep, logits: F32, end: int, token: int | None) -> SequenceOutcome:
        """What the step gave; its logit rows are those before ``end``."""
        drawn: tuple[PositionLogprobs, ...] = ()
        prompt: tuple[PositionLogprobs, ...] = ()
        if step.scored:
            first = end - len(step.tokens)
            prompt = self._sampler.score(logits[first : first + len(step.scored)], step.scored, step.alternatives)
        if token is None or step.draw is None:
            return SequenceOutcome(step.sequence_id, prompt_logprobs=prompt)
        if step.draw.params.logprobs is not None:
            drawn = self._sampler.score(logits[end - 1 : end], (token,), step.draw.params.logprobs)
        return SequenceOutcome(step.sequence_id, (token,), drawn, prompt)


def _logit_ends(plan: StepPlan) -> list[int]:
    """For each step, the logit row after its own."""
    ends, row = [], 0
    for step in plan.steps:
        if step.logits is Logits.LAST:
            row += 1
        elif step.logits is Logits.ALL:
            row += len(step.tokens)
        ends.append(row)
    return ends
