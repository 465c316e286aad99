"""A model runner for models whose logits are NumPy arrays: block moves, one batch, one forward pass, sampling."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import replace
from time import perf_counter
from typing import TypeAlias

import numpy as np

from twofold.backends.base import NO_MASKS, RunnerSizes
from twofold.backends.batch import BatchBuilder
from twofold.backends.sampling.base import F32
from twofold.backends.sampling.sampler import Sampler
from twofold.core.errors import ModelError, TwofoldError
from twofold.core.step import (
    HIDDEN_SCALE,
    DrawRequest,
    Logits,
    Pooling,
    PositionLogprobs,
    SequenceOutcome,
    SequenceStep,
    StepInput,
    StepMasks,
    StepOutcome,
)
from twofold.models.ops import Forward

Drawn: TypeAlias = dict[int, int | TwofoldError]
"""What was sampled, by sequence."""


def _nothing() -> None:
    return


class HostRunner:
    """``ModelRunner`` over a ``Forward``. It keeps nothing of a sequence between steps but what the KV blocks hold.

    A step that raised may be executed again: its rows write the same keys and values.
    """

    def __init__(
        self,
        forward: Forward,
        sampler: Sampler,
        sizes: RunnerSizes,
        *,
        compile_s: float = 0.0,
        close: Callable[[], None] = _nothing,
    ) -> None:
        self.forward = forward
        self.sampler = sampler
        self.compile_s = compile_s
        self.close = close
        self.batches = BatchBuilder(
            sequences=sizes.sequences,
            rows=sizes.rows,
            logit_rows=sizes.logit_rows,
            context=sizes.context,
            blocks=sizes.blocks_per_sequence,
            groups=len(sizes.blocks),
        )

    @property
    def vocab_size(self) -> int:
        return self.forward.vocab_size

    @property
    def hidden_size(self) -> int:
        return self.forward.hidden_size

    @property
    def max_rows(self) -> int:
        return self.forward.max_rows

    @property
    def max_logit_rows(self) -> int:
        return self.forward.max_logit_rows

    def execute(self, step: StepInput, *, overlap: bool = False) -> HostStep:
        """``ModelRunner.execute``."""
        return HostStep(self, step, overlap=overlap)


class HostStep:
    """``StepHandle`` of a ``HostRunner``."""

    def __init__(self, runner: HostRunner, step: StepInput, *, overlap: bool) -> None:
        self._forward, self._sampler, self._step = runner.forward, runner.sampler, step
        self._began = perf_counter()
        if step.moves:
            self._forward.move(step.moves)
        self._moved = self._started = perf_counter()
        self._logits: F32 | None = None
        if step.steps:
            batch = runner.batches.build(step)
            self._started = perf_counter()
            if overlap:
                self._forward.begin(batch)
            else:
                self._logits = self._forward.run(batch)
        self._computed = perf_counter()

    def wait(self) -> None:
        """``StepHandle.wait``."""
        if self._logits is None and self._step.steps:
            self._logits = self._forward.finish()
            self._computed = perf_counter()

    def result(self, masks: StepMasks = NO_MASKS) -> StepOutcome:
        """``StepHandle.result``."""
        self.wait()
        sampling = perf_counter()
        outcomes = () if self._logits is None else self._outcomes(self._logits, masks)
        ended = perf_counter()
        return StepOutcome(
            outcomes,
            ended - self._moved,
            self._moved - self._began,
            self._computed - self._started,
            ended - sampling,
        )

    def _outcomes(self, logits: F32, masks: StepMasks) -> tuple[SequenceOutcome, ...]:
        hidden, steps = self._forward.hidden, self._step.steps
        ends = _ends(self._step)
        drawn = self._draw(logits, [end for end, _ in ends], masks)
        return tuple(
            self._outcome(step, logits[:logit_end], hidden[:hidden_end], drawn, masks)
            for step, (logit_end, hidden_end) in zip(steps, ends, strict=True)
        )

    def _draw(self, logits: F32, ends: list[int], masks: StepMasks) -> Drawn:
        """The sampled tokens of the sequences that sample one."""
        numbers, at, requests = [], [], []
        for end, step in zip(ends, self._step.steps, strict=True):
            draw = step.draw
            if draw is not None and not draw.candidates and step.sequence_id not in masks.skipped:
                numbers.append(step.sequence_id)
                at.append(end - 1)
                requests.append(_masked(step.sequence_id, draw, masks))
        return dict(zip(numbers, self._sampler.draw(logits, at, requests), strict=True)) if at else {}

    def _outcome(self, step: SequenceStep, logits: F32, hidden: F32, drawn: Drawn, masks: StepMasks) -> SequenceOutcome:
        """What the step gave; its rows are the last of ``logits`` and ``hidden``."""
        number, draw = step.sequence_id, step.draw
        prompt = self._score_prompt(step, logits)
        if step.pooling is not None:
            return _pooled(step, step.pooling, hidden, prompt)
        if draw is None or number in masks.skipped:
            return SequenceOutcome(number, prompt_logprobs=prompt)
        if draw.candidates:
            found = self._sampler.candidates(logits, len(logits) - 1, _masked(number, draw, masks))
            if isinstance(found, TwofoldError):
                return SequenceOutcome(number, prompt_logprobs=prompt, error=found)
            return SequenceOutcome(number, prompt_logprobs=prompt, candidates=found)
        token = drawn[number]
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


def _masked(number: int, draw: DrawRequest, masks: StepMasks) -> DrawRequest:
    mask = masks.allowed.get(number)
    return draw if mask is None else replace(draw, mask=mask)


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


def _ends(step_input: StepInput) -> list[tuple[int, int]]:
    """For each step, the logit row and the hidden row after its own."""
    ends, logit_row, hidden_row = [], 0, 0
    for step in step_input.steps:
        if step.logits is Logits.LAST:
            logit_row += 1
        elif step.logits is Logits.ALL:
            logit_row += len(step.tokens)
        if step.pooling is not None:
            hidden_row += 1 if step.pooling == "last" else len(step.tokens)
        ends.append((logit_row, hidden_row))
    return ends
