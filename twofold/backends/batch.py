"""From a step to the arrays that a model runs on, and what is kept of sequences from step to step."""

from __future__ import annotations

from array import array

import numpy as np

from twofold.backends.sampling.base import SampleRequest
from twofold.backends.sampling.filters import changes_logits
from twofold.core.step import SAMPLED, SequenceStart, SequenceStep, StepInput
from twofold.models.ops import Batch


class RunnerSequence:
    """What a runner keeps of a sequence.

    slot      where its block tables are
    sampling  how its tokens are sampled; None where none are
    tokens    the tokens so far, where penalties need them
    last      the token that was sampled last
    greedy    whether its samples without a mask are the largest logits
    plain     whether samples are all that its steps give
    """

    __slots__ = ("greedy", "last", "plain", "sampling", "slot", "tokens")

    def __init__(self, slot: int, begin: SequenceStart) -> None:
        self.slot = slot
        self.sampling = sampling = begin.sampling
        self.last = SAMPLED
        self.tokens: array[int] | None = None
        self.greedy = False
        self.plain = sampling is not None and sampling.params.logprobs is None
        if sampling is not None and sampling.params.penalises:
            self.tokens = begin.tokens[:]
        if sampling is not None and sampling.params.greedy and not sampling.suppressed:
            self.greedy = not changes_logits(SampleRequest(sampling.params, sampling.seed, 0))

    def requests(self, step: SequenceStep, mask: bytes | None) -> list[SampleRequest]:
        """What the samples of a step depend on, row by row; ``mask`` holds the masks of these rows."""
        spec, known, words = self.sampling, self.tokens, None
        assert spec is not None, "a sequence that samples began with a SamplingSpec"
        requests = []
        for index in range(step.samples):
            position = step.start + len(step.tokens) - step.samples + 1 + index
            if mask is not None:
                size = len(mask) // step.samples
                words = mask[index * size : (index + 1) * size]
            requests.append(
                SampleRequest(
                    spec.params,
                    spec.seed,
                    position,
                    () if known is None else known[: spec.prompt_length],
                    () if known is None else known[spec.prompt_length : position],
                    spec.suppressed if position < spec.suppressed_until else (),
                    words,
                    step.candidates,
                )
            )
        return requests


class BatchBuilder:
    """Fills int32 arrays that are allocated once; a Batch is a view of them and lasts until the next one is built.
    ``sequences`` are those of the last step, in its order.

    ``context`` is the longest sequence; block tables are as wide as it needs. Entries of a table past the end of a
    sequence's blocks keep whatever an earlier step left there.
    """

    def __init__(
        self, *, sequences: int, rows: int, logit_rows: int, context: int, blocks: int, groups: int = 1
    ) -> None:
        self._tokens = np.zeros(rows, np.int32)
        self._positions = np.zeros(rows, np.int32)
        self._row_starts = np.zeros(sequences + 1, np.int32)
        self._tables = np.zeros((groups, sequences, blocks), np.int32)
        self._logit_rows = np.zeros(logit_rows, np.int32)
        self._hidden_rows = np.zeros(rows, np.int32)
        self._counting = np.arange(max(context, rows), dtype=np.int32)
        self._free = list(range(sequences))
        self._kept: dict[int, RunnerSequence] = {}
        self._slots: list[int] = []
        self.sequences: list[RunnerSequence] = []
        self._chosen = self._tables[:, :0]

    def build(self, step_input: StepInput) -> Batch:
        """The step's rows, in its order, with the tokens that were sampled since it was planned."""
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
        """Tokens and positions of the step from ``row`` on; the row after them."""
        tokens, count = step.tokens, len(step.tokens)
        if tokens[0] == SAMPLED:
            tokens = array("i", [kept.last]) + tokens[1:]
        if kept.tokens is not None:
            del kept.tokens[step.start :]
            kept.tokens.extend(tokens)
        if count == 1:
            self._tokens[row] = tokens[0]
            self._positions[row] = step.start
        else:
            self._tokens[row : row + count] = tokens
            self._positions[row : row + count] = self._counting[step.start : step.start + count]
        return row + count

    def _place_hidden(self, first: int, end: int, hidden_row: int) -> int:
        """The hidden states of the rows from ``first`` to ``end`` are wanted; the hidden row after them."""
        after = hidden_row + end - first
        self._hidden_rows[hidden_row:after] = self._counting[first:end]
        return after
