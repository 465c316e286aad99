"""From a step to the arrays that a model runs on. One Python statement or two for each row that generates."""

from __future__ import annotations

import numpy as np

from twofold.core.step import Logits, SequenceStep, StepInput
from twofold.models.ops import Batch


class BatchBuilder:
    """Fills int32 arrays that are allocated once; a Batch is a view of them and lasts until the next one is built.

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

    def build(self, step_input: StepInput) -> Batch:
        """The step's rows, in its order."""
        row = logit_row = hidden_row = 0
        for index, step in enumerate(step_input.steps):
            for table, blocks in zip(self._tables, step.tables, strict=True):
                table[index, : len(blocks)] = blocks
            end = self._place_rows(step, row)
            logit_row = self._place_logits(step.logits, row, end, logit_row)
            if step.pooling is not None:
                hidden_row = self._place_hidden(row if step.pooling == "mean" else end - 1, end, hidden_row)
            self._row_starts[index + 1] = row = end
        return Batch(
            self._tokens[:row],
            self._positions[:row],
            self._row_starts[: len(step_input.steps) + 1],
            self._tables[:, : len(step_input.steps)],
            self._logit_rows[:logit_row],
            self._hidden_rows[:hidden_row],
        )

    def _place_rows(self, step: SequenceStep, row: int) -> int:
        """Tokens and positions of the step from ``row`` on; the row after them."""
        count = len(step.tokens)
        if count == 1:
            self._tokens[row] = step.tokens[0]
            self._positions[row] = step.start
        else:
            self._tokens[row : row + count] = step.tokens
            self._positions[row : row + count] = self._counting[step.start : step.start + count]
        return row + count

    def _place_logits(self, wanted: Logits, row: int, end: int, logit_row: int) -> int:
        """Which of the rows from ``row`` to ``end`` need logits; the logit row after them."""
        if wanted is Logits.LAST:
            self._logit_rows[logit_row] = end - 1
            return logit_row + 1
        if wanted is Logits.ALL:
            self._logit_rows[logit_row : logit_row + end - row] = self._counting[row:end]
            return logit_row + end - row
        return logit_row

    def _place_hidden(self, first: int, end: int, hidden_row: int) -> int:
        """The hidden states of the rows from ``first`` to ``end`` are wanted; the hidden row after them."""
        after = hidden_row + end - first
        self._hidden_rows[hidden_row:after] = self._counting[first:end]
        return after
