"""The runner of models whose logits are NumPy arrays: block moves, one batch, one forward pass, sampling."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Final, TypeAlias

import numpy as np

from twofold.backends.base import NO_MASKS, RunnerSizes
from twofold.backends.drafting import DraftModel
from twofold.backends.sampling.base import F32, GREEDY, SampleRequest
from twofold.backends.sampling.sampler import Sampler
from twofold.backends.sequence import RunnerSequence
from twofold.core.errors import ModelError, TwofoldError
from twofold.core.step import (
    DRAFTED,
    HIDDEN_SCALE,
    SAMPLED,
    Pooling,
    PositionLogprobs,
    SequenceOutcome,
    SequenceStart,
    SequenceStep,
    StepInput,
    StepMasks,
    StepOutcome,
)
from twofold.models.ops import Batch, Forward


class BatchBuilder:
    """Fills int32 arrays that are allocated once; a Batch is a view of them and lasts until the next one is built.

    ``sequences`` are those of the last step, in its order. Entries of a block table past the end of a sequence's blocks
    keep the numbers of earlier steps.
    """

    def __init__(self, sizes: RunnerSizes) -> None:
        self._tokens = np.zeros(sizes.rows, np.int32)
        self._positions = np.zeros(sizes.rows, np.int32)
        self._row_starts = np.zeros(sizes.sequences + 1, np.int32)
        self._tables = np.zeros((len(sizes.blocks), sizes.sequences, sizes.blocks_per_sequence), np.int32)
        self._logit_rows = np.zeros(sizes.logit_rows, np.int32)
        self._hidden_rows = np.zeros(sizes.rows, np.int32)
        self._counting = np.arange(max(sizes.context, sizes.rows), dtype=np.int32)
        self._free = list(range(sizes.sequences))
        self._kept: dict[int, RunnerSequence] = {}
        self._slots: list[int] = []
        self.sequences: list[RunnerSequence] = []
        self._chosen = self._tables[:, :0]

    def build(self, step_input: StepInput) -> Batch:
        """The step's rows, in its order. SAMPLED tokens are replaced by those that the last step sampled."""
        for number in step_input.ended:
            self._end(number)
        row = logit_row = hidden_row = 0
        changed, slots, self.sequences = False, [], []
        for index, step in enumerate(step_input.steps):
            kept = self._kept[step.sequence_id] if step.begin is None else self._begin(step, step.begin)
            slots.append(kept.slot)
            self.sequences.append(kept)
            for change in step.changes:
                table = self._tables[change.group, kept.slot]
                table[change.first : change.first + len(change.blocks)] = change.blocks
                changed = True
            end = self._place_rows(step, kept, row)
            wanted = end - row if step.scored else step.samples
            if wanted:
                self._logit_rows[logit_row : logit_row + wanted] = self._counting[end - wanted : end]
                logit_row += wanted
            if step.pooling is not None:
                hidden_row = self._place_hidden(row if step.pooling == "mean" else end - 1, end, hidden_row)
            self._row_starts[index + 1] = row = end
        if changed or slots != self._slots:
            self._slots, self._chosen = slots, self._tables[:, slots]
        return Batch(
            self._tokens[:row],
            self._positions[:row],
            self._row_starts[: len(slots) + 1],
            self._chosen,
            self._logit_rows[:logit_row],
            self._hidden_rows[:hidden_row],
        )

    def _begin(self, step: SequenceStep, begin: SequenceStart) -> RunnerSequence:
        self._end(step.sequence_id)
        kept = self._kept[step.sequence_id] = RunnerSequence(self._free.pop(), begin)
        return kept

    def _end(self, sequence_id: int) -> None:
        kept = self._kept.pop(sequence_id, None)
        if kept is not None:
            self._free.append(kept.slot)

    def _place_rows(self, step: SequenceStep, kept: RunnerSequence, row: int) -> int:
        """Writes the step's tokens and positions from ``row`` on. Returns the row after them."""
        tokens, count = step.tokens, len(step.tokens)
        if tokens[0] == SAMPLED:
            tokens = array("i", [kept.last]) + tokens[1:]
        if kept.tokens is not None:
            del kept.tokens[step.start :]
            kept.tokens.extend(tokens)
        assert tokens[-1] != DRAFTED or step.draft is not None, "the draft model computes what it lacks first"
        if count == 1:
            self._tokens[row] = tokens[0]
            self._positions[row] = step.start
        else:
            self._tokens[row : row + count] = tokens
            self._positions[row : row + count] = self._counting[step.start : step.start + count]
        return row + count

    def _place_hidden(self, first: int, end: int, hidden_row: int) -> int:
        """Requests the hidden states of the rows ``first`` … ``end`` − 1. Returns the hidden row after them."""
        after = hidden_row + end - first
        self._hidden_rows[hidden_row:after] = self._counting[first:end]
        return after


UNMASKED: Final[tuple[bytes | None, ...]] = (None,)
"""The masks of one row without a mask."""
Sampled: TypeAlias = Sequence[int | TwofoldError]
"""Sampled tokens, or the error that prevented them."""


class HostRunner:
    """``ModelRunner`` of a ``Forward``. A step that raised may be executed again: it writes the same K and V."""

    def __init__(
        self,
        forward: Forward,
        sampler: Sampler,
        sizes: RunnerSizes,
        *,
        compile_s: float = 0.0,
        close: Callable[[], None] = lambda: None,
        draft: DraftModel | None = None,
    ) -> None:
        self.forward = forward
        self.draft = draft
        self.sampler = sampler
        self.vocab_size, self.hidden_size = forward.vocab_size, forward.hidden_size
        self.max_rows, self.max_logit_rows = forward.max_rows, forward.max_logit_rows
        self.compile_s = compile_s
        self.close = close
        self.block_nbytes = forward.cache.block_nbytes
        self.read_blocks, self.write_blocks = forward.cache.read_blocks, forward.cache.write_blocks
        self.provide_blocks = forward.provide_blocks
        self.batches = BatchBuilder(sizes)

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
            if runner.draft is not None:
                runner.draft.move(step.moves)
        self._moved = self._started = perf_counter()
        self._logits: F32 | None = None
        self._sequences: list[RunnerSequence] = []
        self._drafts: dict[int, array[int]] = {}
        self._draft_s: tuple[float, ...] = ()
        if step.steps:
            batch = runner.batches.build(step)
            self._sequences = runner.batches.sequences
            if runner.draft is not None and any(entry.draft for entry in step.steps):
                self._drafts, self._draft_s = runner.draft.propose(step.steps, self._sequences, batch)
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
            draft_s=self._draft_s,
        )

    def _outcomes(self, logits: F32, masks: StepMasks) -> tuple[SequenceOutcome, ...]:
        outcomes: list[SequenceOutcome] = []
        sampled = self._sample(logits, masks)
        first = place = hidden = 0
        for step, kept in zip(self._step.steps, self._sequences, strict=True):
            number, samples = step.sequence_id, step.samples
            end = first + (len(step.tokens) if step.scored else samples)
            if step.candidates or number in masks.skipped:
                samples = 0
            elif masks.allowed:
                samples = len(masks.allowed.get(number, UNMASKED * samples))
            tokens = sampled[place : place + samples]
            if samples == 1 and kept.plain and not step.scored and type(tokens[0]) is int:
                kept.last = tokens[0]
                outcomes.append(SequenceOutcome(number, (tokens[0],)))
            elif step.pooling is not None:
                after = hidden + (1 if step.pooling == "last" else len(step.tokens))
                prompt = self._scored(step, logits[first:end])
                outcomes.append(_pooled(step, step.pooling, self._forward.hidden[hidden:after], prompt))
                hidden = after
            elif step.candidates and number not in masks.skipped:
                outcomes.append(self._candidates(step, kept, logits[first:end], masks))
            else:
                outcomes.append(self._outcome(step, kept, logits[first:end], tokens))
            first, place = end, place + samples
        return tuple(outcomes)

    def _sample(self, logits: F32, masks: StepMasks) -> Sampled:
        """Samples after the rows of all sequences, whether or not the drafts before them are accepted."""
        at: list[int] = []
        requests: list[SampleRequest] = []
        end = 0
        for step, kept in zip(self._step.steps, self._sequences, strict=True):
            end += len(step.tokens) if step.scored else step.samples
            if not step.samples or step.candidates or step.sequence_id in masks.skipped:
                continue
            allowed = masks.allowed.get(step.sequence_id) if masks.allowed else None
            allowed = UNMASKED * step.samples if allowed is None else allowed
            first = end - step.samples
            at.extend(range(first, first + len(allowed)))
            if kept.greedy and not any(allowed):
                requests.extend([GREEDY] * len(allowed))
            else:
                requests.extend(kept.requests(step, allowed))
        return self._sampler.sample(logits, at, requests) if at else []

    def _candidates(self, step: SequenceStep, kept: RunnerSequence, logits: F32, masks: StepMasks) -> SequenceOutcome:
        """The most likely tokens after the last of the sequence's rows of ``logits``."""
        prompt = self._scored(step, logits)
        (request,) = kept.requests(step, masks.allowed.get(step.sequence_id, UNMASKED))
        found = self._sampler.candidates(logits[-1], request)
        if isinstance(found, TwofoldError):
            return SequenceOutcome(step.sequence_id, prompt_logprobs=prompt, error=found)
        return SequenceOutcome(step.sequence_id, prompt_logprobs=prompt, candidates=found)

    def _outcome(self, step: SequenceStep, kept: RunnerSequence, logits: F32, sampled: Sampled) -> SequenceOutcome:
        """The outcome of a step, from the sequence's rows of ``logits`` and the samples after them."""
        prompt = self._scored(step, logits)
        tokens = accept(sampled, self._drafts.get(step.sequence_id, step.draft_tokens))
        if isinstance(tokens, TwofoldError):
            return SequenceOutcome(step.sequence_id, prompt_logprobs=prompt, error=tokens)
        logprobs: tuple[PositionLogprobs, ...] = ()
        if tokens and kept.sampling is not None:
            kept.last = tokens[-1]
            if kept.sampling.params.logprobs is not None:
                start = len(logits) - step.samples
                rows = logits[start : start + len(tokens)]
                logprobs = self._sampler.score(rows, tokens, kept.sampling.params.logprobs)
        return SequenceOutcome(step.sequence_id, tokens, logprobs, prompt)

    def _scored(self, step: SequenceStep, logits: F32) -> tuple[PositionLogprobs, ...]:
        if not step.scored:
            return ()
        return self._sampler.score(logits[: len(step.scored)], step.scored, step.alternatives)


def accept(sampled: Sampled, drafts: Sequence[int]) -> tuple[int, ...] | TwofoldError:
    """The accepted samples: all up to and including the first that differs from the draft in its place.

    A sample depends on its position and the tokens before it, so single steps would sample the same tokens.
    """
    tokens: list[int] = []
    for index, token in enumerate(sampled):
        if isinstance(token, TwofoldError):
            return tuple(tokens) or token
        tokens.append(token)
        if index < len(drafts) and drafts[index] != token:
            break
    return tuple(tokens)


def _pooled(step: SequenceStep, pooling: Pooling, hidden: F32, prompt: tuple[PositionLogprobs, ...]) -> SequenceOutcome:
    """The outcome of a step with pooling: its rows of ``hidden``, pooled into ``SequenceOutcome.hidden``."""
    if pooling == "last":
        vector = hidden[-1].astype(np.float64)
    else:
        vector = np.rint(hidden.astype(np.float64) * HIDDEN_SCALE).sum(axis=0)
    if not np.isfinite(vector).all():
        error = ModelError(
            "The model computed hidden states that are not finite.",
            hint="The file may be damaged: verify its checksum.",
        )
        return SequenceOutcome(step.sequence_id, prompt_logprobs=prompt, error=error)
    return SequenceOutcome(step.sequence_id, prompt_logprobs=prompt, hidden=array("d", vector.tobytes()))
