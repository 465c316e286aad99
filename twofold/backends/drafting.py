"""Draft tokens from a smaller model of the same vocabulary.

A draft is sampled from the draft model's logits by the same function of parameters, seed and position as the target's
token. Both use the same random number, so equal probabilities give equal tokens.
The keys and values of its layers are in the same blocks as those of the target, in arrays of its own.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from twofold.backends.sampling.base import F32, GREEDY
from twofold.backends.sampling.sampler import Sampler
from twofold.backends.sequence import RunnerSequence
from twofold.core.step import BlockMove, DraftRows, SequenceStep
from twofold.models.ops import Batch, Forward


class DraftModel:
    """Proposes tokens with ``forward``, whose layers are in so many ``groups``. ``vocab_size`` is the target's: ids
    beyond the smaller of both vocabularies are padding, which is never proposed, and computed as token 0."""

    def __init__(self, forward: Forward, sampler: Sampler, vocab_size: int, groups: int = 1) -> None:
        self._forward = forward
        self._groups = groups
        self._sampler = sampler
        self._vocab = vocab_size

    def move(self, moves: Sequence[BlockMove]) -> None:
        """Moves the blocks of group 0, which all its groups share with the target's."""
        own = [replace(move, group=group) for move in moves if move.group == 0 for group in range(self._groups)]
        if own:
            self._forward.move(own)

    def propose(
        self, steps: Sequence[SequenceStep], sequences: Sequence[RunnerSequence], batch: Batch
    ) -> tuple[dict[int, array[int]], tuple[float, ...]]:
        """The drafts by sequence, which are also written into ``batch``, and the seconds of each pass.

        Pass j samples the j-th draft of all sequences that have that many; the first one also computes what the draft
        model lacks of each sequence.
        """
        drafts: dict[int, array[int]] = {}
        seconds = []
        lanes = [i for i, step in enumerate(steps) if step.draft is not None]
        number = 0
        while lanes:
            began = perf_counter()
            chunks = [_chunk(steps[i], number, drafts.get(steps[i].sequence_id)) for i in lanes]
            sampling = [i for i in lanes if steps[i].model_drafts > number]
            logits = self._forward.run(self._batch(batch, lanes, chunks, steps))
            for i, token in zip(sampling, self._sample(logits, sampling, steps, sequences, number), strict=True):
                step, kept = steps[i], sequences[i]
                drafts.setdefault(step.sequence_id, array("i")).append(token)
                batch.tokens[int(batch.row_starts[i]) + 1 + number] = token
                if kept.tokens is not None:
                    kept.tokens[step.start + 1 + number] = token
            seconds.append(perf_counter() - began)
            number += 1
            lanes = [i for i in sampling if steps[i].model_drafts > number]
        return drafts, tuple(seconds)

    def _sample(
        self,
        logits: F32,
        sampling: Sequence[int],
        steps: Sequence[SequenceStep],
        sequences: Sequence[RunnerSequence],
        number: int,
    ) -> list[int]:
        """The next draft of each sequence; 0 where the draft model's logits give none, which the target refuses."""
        if not sampling:
            return []
        requests = [
            GREEDY if sequences[i].greedy else sequences[i].request(steps[i].start + 1 + number) for i in sampling
        ]
        found = self._sampler.sample(self._as_wide(logits), range(len(sampling)), requests)
        return [token if isinstance(token, int) else 0 for token in found]

    def _as_wide(self, logits: F32) -> F32:
        """Logits of the target's vocabulary: tokens that only it has are impossible."""
        own = logits.shape[1]
        if own >= self._vocab:
            return logits[:, : self._vocab]
        wide = np.full((len(logits), self._vocab), -np.inf, np.float32)
        wide[:, :own] = logits
        return wide

    def _batch(
        self, batch: Batch, lanes: Sequence[int], chunks: Sequence[DraftRows], steps: Sequence[SequenceStep]
    ) -> Batch:
        """The rows of a pass; the last row of each sequence that samples has logits."""
        lengths = [len(chunk.tokens) for chunk in chunks]
        starts = np.zeros(len(lanes) + 1, np.int32)
        starts[1:] = np.cumsum(lengths)
        tokens = np.fromiter((token for chunk in chunks for token in chunk.tokens), np.int32, int(starts[-1]))
        tokens[tokens >= self._forward.vocab_size] = 0
        positions = [np.arange(chunk.start, chunk.end, dtype=np.int32) for chunk in chunks]
        last: NDArray[np.int32] = starts[1:] - 1
        sampled = np.array([steps[i].model_drafts > 0 for i in lanes])
        tables = np.repeat(batch.block_tables[:1, lanes], self._groups, axis=0)
        return Batch(tokens, np.concatenate(positions), starts, tables, last[sampled].astype(np.int32))


def _chunk(step: SequenceStep, number: int, drafted: array[int] | None) -> DraftRows:
    """The rows of a sequence in pass ``number``."""
    assert step.draft is not None, "only sequences with rows for the draft model take part"
    if drafted is not None:
        return DraftRows(step.start + number, drafted[-1:])
    if not step.model_drafts:
        return step.draft
    assert step.draft.end == step.start, "a draft follows all known tokens"
    return DraftRows(step.draft.start, step.draft.tokens + step.tokens[:1])
