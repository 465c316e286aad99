"""A model of a millisecond: logits are a hash of the tokens that its paged store holds, so a wrong block table, a
wrong position or a forgotten write gives another answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from twofold.core.step import BlockMove, MoveKind
from twofold.models.ops import Batch, Forward

MIX = np.uint64(0x9E3779B97F4A7C15)
HIDDEN = 8
"""Width of the hidden states."""


class MockForward(Forward):
    """Forward over ``vocab`` tokens. ``batches`` counts the steps, ``widest`` the most rows of one.

    ``store`` holds tokens by block, ``slots`` blocks that moved out to the host; ``copied`` has the group and the bytes
    of each call that reads or writes blocks.
    """

    def __init__(
        self, *, vocab: int = 300, blocks: int = 64, block_size: int = 4, max_rows: int = 64, max_logit_rows: int = 64
    ) -> None:
        self.store = np.full((blocks, block_size), -1, np.int64)
        self.slots: dict[int, NDArray[np.int64]] = {}
        self.hidden = np.zeros((0, HIDDEN), np.float32)
        self.vocab_size, self.hidden_size = vocab, HIDDEN
        self.max_rows, self.max_logit_rows = max_rows, max_logit_rows
        self.copied: list[tuple[str, int, int]] = []
        self.cache = self
        self.batches = 0
        self.widest = 0
        self.failing = False

    def move(self, moves: Sequence[BlockMove]) -> None:
        for move in moves:
            block = self.slots[move.source] if move.kind is MoveKind.IN else self.store[move.source].copy()
            if move.kind is MoveKind.OUT:
                self.slots[move.target] = block
            else:
                self.store[move.target] = block

    def block_nbytes(self, group: int) -> int:
        assert group == 0, "it has one group"
        return int(self.store[0].nbytes)

    def read_blocks(self, group: int, blocks: Sequence[int], into: memoryview) -> None:
        into[:] = self.store[blocks].tobytes()
        self.copied.append(("read", group, into.nbytes))

    def write_blocks(self, group: int, blocks: Sequence[int], content: memoryview) -> None:
        self.store[blocks] = np.frombuffer(content, np.int64).reshape(len(blocks), -1)
        self.copied.append(("write", group, content.nbytes))

    def run(self, batch: Batch) -> NDArray[np.float32]:
        assert len(batch.tokens) <= self.max_rows
        assert len(batch.logit_rows) <= self.max_logit_rows
        if self.failing:
            raise RuntimeError("the mock was told to fail")
        self.batches += 1
        self.widest = max(self.widest, len(batch.tokens))
        size = self.store.shape[1]
        owner = np.repeat(np.arange(len(batch.row_starts) - 1), np.diff(batch.row_starts))
        blocks = batch.block_tables[0, owner, batch.positions // size]
        self.store[blocks, batch.positions % size] = batch.tokens
        tables, lengths = batch.block_tables[0, owner], batch.positions + 1
        self.hidden = self._after(tables[batch.hidden_rows], lengths[batch.hidden_rows], HIDDEN)
        return self._after(tables[batch.logit_rows], lengths[batch.logit_rows], self.vocab_size)

    def _after(self, tables: NDArray[np.int32], lengths: NDArray[np.int32], width: int) -> NDArray[np.float32]:
        """For each row ``width`` random values, a function of the tokens that its table's blocks hold."""
        size, values = self.store.shape[1], np.empty((len(tables), width), np.float32)
        for row, table, length in zip(values, tables, lengths.tolist(), strict=True):
            row[:] = hash_logits(self.store[table[: -(-length // size)]].reshape(-1)[:length], width)
        return values


class StateForward(MockForward):
    """Keeps a state for each sequence, too, in KV group 1: how many tokens it has seen, and a hash of them in order,
    which changes the logits. A state that is shared, lost or left behind is noticed at once."""

    def __init__(self, *, states: int = 8, **sizes: int) -> None:
        super().__init__(**sizes)
        self.states: list[tuple[int, int]] = [(-1, 0)] * states
        self.kept: dict[int, tuple[int, int]] = {}
        self.moved: Counter[MoveKind] = Counter()

    def move(self, moves: Sequence[BlockMove]) -> None:
        super().move([move for move in moves if move.group == 0])
        for move in moves:
            if move.group == 1:
                self.moved[move.kind] += 1
                state = (self.kept if move.kind is MoveKind.IN else self.states)[move.source]
                if move.kind is MoveKind.OUT:
                    self.kept[move.target] = state
                else:
                    self.states[move.target] = state

    def run(self, batch: Batch) -> NDArray[np.float32]:
        logits, after = super().run(batch), list[int]()
        for sequence, (first, end) in enumerate(pairwise(batch.row_starts.tolist())):
            slot, position = int(batch.block_tables[1, sequence, 0]), int(batch.positions[first])
            seen, state = self.states[slot] if position else (0, 0)
            assert seen == position, "a state has not seen the tokens before"
            for token in batch.tokens[first:end].tolist():
                state = hash((state, token))
                after.append(state)
            self.states[slot] = position + end - first, state
        for row, place in enumerate(batch.logit_rows.tolist()):
            logits[row] += hash_logits(np.array([after[place]]), self.vocab_size)
        return logits


def hash_logits(context: NDArray[np.int64], vocab: int) -> NDArray[np.float32]:
    """Random logits, a function of the tokens and their order."""
    with np.errstate(over="ignore"):
        places = np.arange(1, len(context) + 1, dtype=np.uint64) * MIX
        key = np.bitwise_xor.reduce((context.astype(np.uint64) + np.uint64(1)) * (places | np.uint64(1)))
    return (np.random.default_rng(int(key)).standard_normal(vocab) * 3).astype(np.float32)
