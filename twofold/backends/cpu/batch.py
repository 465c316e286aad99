"""From a batch to the step's record: row counts, pointers, and the items of attention."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from twofold.backends.cpu.kernels.attention import ITEM_INTS
from twofold.backends.cpu.kernels.signature import StepFields
from twofold.backends.cpu.kernels.split import MERGE_INTS, SPLIT
from twofold.models.ops import Batch

QUERIES_PER_ITEM = 12
"""Query heads times rows of one attention item."""
UNITS_PER_WORKER = 4
"""With fewer units of attention for each worker than this, long contexts are cut into splits."""


class StepRecord:
    """The record that every kernel of a step reads."""

    def __init__(self, *, rows: int, heads: int, kv_heads: int, workers: int, partials: int) -> None:
        self._rows_per_item = max(1, QUERIES_PER_ITEM // (heads // kv_heads))
        self._enough_items = -(-UNITS_PER_WORKER * workers // kv_heads)
        self._partials = partials
        lists = np.zeros((5, rows), np.int32)
        self._tokens, self._positions, self._row_sequence, self._logit_rows, self._hidden_rows = lists
        self._items = np.zeros((rows + partials, ITEM_INTS), np.int32)
        self._merges = np.zeros((partials, MERGE_INTS), np.int32)
        self._tables: NDArray[np.int32] | None = None
        self.step = np.zeros(StepFields.SIZE, np.int64)
        self.step[StepFields.ONE] = 1
        self.step[StepFields.TOKENS] = self._tokens.ctypes.data
        self.step[StepFields.POSITIONS] = self._positions.ctypes.data
        self.step[StepFields.LOGIT_LIST] = self._logit_rows.ctypes.data
        self.step[StepFields.HIDDEN_LIST] = self._hidden_rows.ctypes.data
        self.step[StepFields.ROW_SEQUENCE] = self._row_sequence.ctypes.data
        self.step[StepFields.ITEM_LIST] = self._items.ctypes.data
        self.step[StepFields.MERGE_LIST] = self._merges.ctypes.data

    def fill(self, batch: Batch) -> None:
        """Describes ``batch`` for the kernels."""
        step, rows, wanted, hidden = self.step, len(batch.tokens), len(batch.logit_rows), len(batch.hidden_rows)
        self._tokens[:rows] = batch.tokens
        self._positions[:rows] = batch.positions
        self._logit_rows[:wanted] = batch.logit_rows
        self._hidden_rows[:hidden] = batch.hidden_rows
        step[StepFields.ROWS], step[StepFields.LOGIT_ROWS], step[StepFields.HIDDEN_ROWS] = rows, wanted, hidden
        self._take_tables(batch.block_tables)
        step[StepFields.ITEMS], step[StepFields.MERGES] = self._fill_items(batch)

    def _take_tables(self, tables: NDArray[np.int32]) -> None:
        """Tables are large, so they are read where they lie; they are kept until the next step."""
        group_bytes, table_bytes, entry_bytes = tables.strides
        assert tables.dtype == np.int32
        assert entry_bytes == 4
        self._tables = tables
        self.step[StepFields.TABLES] = tables.__array_interface__["data"][0]
        self.step[StepFields.TABLE_STRIDE] = table_bytes // 4
        self.step[StepFields.GROUP_STRIDE] = group_bytes // 4

    def _fill_items(self, batch: Batch) -> tuple[int, int]:
        """Lists items and merges; how many there are of each."""
        starts = batch.row_starts.tolist()
        positions = batch.positions
        items: list[tuple[int, int, int, int, int, int]] = []
        merges: list[tuple[int, int, int, int]] = []
        partial = 0
        few = len(starts) - 1 < self._enough_items
        for sequence, (first, end) in enumerate(pairwise(starts)):
            self._row_sequence[first:end] = sequence
            position = int(positions[first])
            splits = position // SPLIT + 1
            if few and end - first == 1 and 1 < splits <= self._partials - partial:
                items += [(sequence, first, 1, position, split, partial + split) for split in range(splits)]
                merges.append((first, partial, splits, 0))
                partial += splits
                continue
            for row in range(first, end, self._rows_per_item):
                items.append((sequence, row, min(self._rows_per_item, end - row), position + row - first, -1, 0))
        self._items[: len(items), :6] = items
        if merges:
            self._merges[: len(merges)] = merges
        return len(items), len(merges)
