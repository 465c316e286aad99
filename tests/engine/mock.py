"""A model of a millisecond: logits are a hash of the tokens that its paged store holds, so a wrong block table, a
wrong position or a forgotten write gives another answer.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from twofold.ops.base import Batch

MIX = np.uint64(0x9E3779B97F4A7C15)


class MockForward:
    """Forward over ``vocab`` tokens. ``batches`` counts the steps, ``widest`` the most rows of one."""

    def __init__(
        self, *, vocab: int = 300, blocks: int = 64, block_size: int = 4, max_rows: int = 64, max_logit_rows: int = 64
    ) -> None:
        self.store = np.full((blocks, block_size), -1, np.int64)
        self._vocab, self._max_rows, self._max_logit_rows = vocab, max_rows, max_logit_rows
        self.batches = 0
        self.widest = 0
        self.failing = False

    @property
    def vocab_size(self) -> int:
        return self._vocab

    @property
    def max_rows(self) -> int:
        return self._max_rows

    @property
    def max_logit_rows(self) -> int:
        return self._max_logit_rows

    def run(self, batch: Batch) -> NDArray[np.float32]:
        assert len(batch.tokens) <= self._max_rows
        assert len(batch.logit_rows) <= self._max_logit_rows
        if self.failing:
            raise RuntimeError("the mock was told to fail")
        self.batches += 1
        self.widest = max(self.widest, len(batch.tokens))
        size = self.store.shape[1]
        owner = np.repeat(np.arange(len(batch.row_starts) - 1), np.diff(batch.row_starts))
        blocks = batch.block_tables[0, owner, batch.positions // size]
        self.store[blocks, batch.positions % size] = batch.tokens
        logits = np.empty((len(batch.logit_rows), self._vocab), np.float32)
        for index, row in enumerate(batch.logit_rows):
            logits[index] = self._logits(batch.block_tables[0, owner[row]], int(batch.positions[row]) + 1)
        return logits

    def _logits(self, table: NDArray[np.int32], length: int) -> NDArray[np.float32]:
        """Logits after the first ``length`` tokens that the table's blocks hold."""
        size = self.store.shape[1]
        context = self.store[table[: -(-length // size)]].reshape(-1)[:length]
        return hash_logits(context, self._vocab)


def hash_logits(context: NDArray[np.int64], vocab: int) -> NDArray[np.float32]:
    """Random logits, a function of the tokens and their order."""
    with np.errstate(over="ignore"):
        places = np.arange(1, len(context) + 1, dtype=np.uint64) * MIX
        key = np.bitwise_xor.reduce((context.astype(np.uint64) + np.uint64(1)) * (places | np.uint64(1)))
    return (np.random.default_rng(int(key)).standard_normal(vocab) * 3).astype(np.float32)
