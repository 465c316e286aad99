"""The record that all kernels of a step read: numbers of rows, addresses, and the items of attention."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from twofold.backends.cpu.kernels.attention import ITEM_INTS, SPLIT
from twofold.backends.cpu.kernels.signature import StepFields
from twofold.backends.cpu.kernels.splits import MERGE_INTS
from twofold.models.ops import Batch

ITEM_QUERIES = (12, 48)
"""Limits of the query heads times rows of one attention item. Large items fill tiles and reuse keys and values; small
items give every worker one."""
UNITS_PER_WORKER = 4
"""With fewer units of attention for each worker, long contexts are divided into splits."""
MAX_SPLIT_ROWS = 8
"""Rows of the longest context that may be divided into splits in one step."""

Heads = tuple[int, int]
"""A layer's numbers of query heads and of KV heads."""


class ItemList:
    """The ``items`` of attention of a step, and the ``merges`` of those that are splits, in layers with ``heads``.

    Their numbers are in the step's record, at ``count_field`` and after it.
    """

    def __init__(self, heads: Heads, count_field: int, *, rows: int, workers: int, partials: int) -> None:
        queries, kv_heads = heads
        self.count_field = count_field
        self.items = np.zeros((rows + partials, ITEM_INTS), np.int32)
        self.merges = np.zeros((partials, MERGE_INTS), np.int32)
        self._item_rows = tuple(max(1, most // (queries // kv_heads)) for most in ITEM_QUERIES)
        self._enough_items = -(-UNITS_PER_WORKER * workers // kv_heads)

    def fill(self, starts: list[int], positions: NDArray[np.int32]) -> tuple[int, int]:
        """Lists items and merges of sequences whose rows begin at ``starts``. Returns the number of each."""
        items: list[tuple[int, int, int, int, int, int]] = []
        merges: list[tuple[int, int, int, int]] = []
        partial, partials = 0, len(self.merges)
        few = len(starts) - 1 < self._enough_items
        fewest, most = self._item_rows
        rows = min(max(len(positions) // self._enough_items, fewest), most)
        for sequence, (first, end) in enumerate(pairwise(starts)):
            position = int(positions[first])
            splits = position // SPLIT + 1
            if few and end - first == 1 and 1 < splits <= partials - partial:
                items += [(sequence, first, 1, position, split, partial + split) for split in range(splits)]
                merges.append((first, partial, splits, 0))
                partial += splits
                continue
            for row in range(first, end, rows):
                items.append((sequence, row, min(rows, end - row), position + row - first, -1, 0))
        self.items[: len(items), :6] = items
        if merges:
            self.merges[: len(merges)] = merges
        return len(items), len(merges)


class StepRecord:
    """The record of one model's steps of at most ``rows`` rows. ``items`` has a list for each of the different
    ``heads`` of its layers. Splits take up to ``partials`` slots, enough for some rows of ``context`` positions."""

    def __init__(self, heads: Iterable[Heads], *, rows: int, context: int, workers: int) -> None:
        self.partials = MAX_SPLIT_ROWS * -(-context // SPLIT)
        self.items = {
            each: ItemList(each, StepFields.SIZE + 2 * place, rows=rows, workers=workers, partials=self.partials)
            for place, each in enumerate(dict.fromkeys(heads))
        }
        lists = np.zeros((5, rows), np.int32)
        self._tokens, self._positions, self._row_sequence, self._logit_rows, self._hidden_rows = lists
        self._tables: NDArray[np.int32] | None = None
        self.step = np.zeros(StepFields.SIZE + 2 * len(self.items), np.int64)
        self.step[StepFields.ONE] = 1
        self.step[StepFields.TOKENS] = self._tokens.ctypes.data
        self.step[StepFields.POSITIONS] = self._positions.ctypes.data
        self.step[StepFields.LOGIT_LIST] = self._logit_rows.ctypes.data
        self.step[StepFields.HIDDEN_LIST] = self._hidden_rows.ctypes.data
        self.step[StepFields.ROW_SEQUENCE] = self._row_sequence.ctypes.data

    def fill(self, batch: Batch) -> None:
        """Describes ``batch`` for the kernels."""
        step, rows, wanted, hidden = self.step, len(batch.tokens), len(batch.logit_rows), len(batch.hidden_rows)
        self._tokens[:rows] = batch.tokens
        self._positions[:rows] = batch.positions
        self._logit_rows[:wanted] = batch.logit_rows
        self._hidden_rows[:hidden] = batch.hidden_rows
        step[StepFields.ROWS], step[StepFields.LOGIT_ROWS], step[StepFields.HIDDEN_ROWS] = rows, wanted, hidden
        self._take_tables(batch.block_tables)
        starts = batch.row_starts.tolist()
        for sequence, (first, end) in enumerate(pairwise(starts)):
            self._row_sequence[first:end] = sequence
        for each in self.items.values():
            step[each.count_field : each.count_field + 2] = each.fill(starts, batch.positions)

    def _take_tables(self, tables: NDArray[np.int32]) -> None:
        """Sets the address of the tables, which are too large to copy; keeps them until the next step."""
        group_bytes, table_bytes, entry_bytes = tables.strides
        assert tables.dtype == np.int32
        assert entry_bytes == 4
        self._tables = tables
        self.step[StepFields.TABLES] = tables.__array_interface__["data"][0]
        self.step[StepFields.TABLE_STRIDE] = table_bytes // 4
        self.step[StepFields.GROUP_STRIDE] = group_bytes // 4
