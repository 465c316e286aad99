"""A model that samples a given script for any prompt, to test everything after sampling."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from twofold.core.step import BlockMove
from twofold.models.ops import Batch, Forward


class ScriptedForward(Forward):
    """After a prompt of ``prompt`` tokens, every sequence samples ``script``, and then token 0 forever."""

    hidden_size = 8
    max_rows = 64
    max_logit_rows = 64

    def __init__(self, script: Sequence[int], prompt: int, vocab: int = 300) -> None:
        self.cache = self
        self._script, self._prompt, self.vocab_size = list(script), prompt, vocab
        self.hidden = np.zeros((0, self.hidden_size), np.float32)

    def run(self, batch: Batch) -> NDArray[np.float32]:
        logits = np.zeros((len(batch.logit_rows), self.vocab_size), np.float32)
        for index, row in enumerate(batch.logit_rows):
            place = int(batch.positions[row]) + 1 - self._prompt
            said = 0 <= place < len(self._script)
            logits[index, self._script[place] if said else 0] = 20
        self.hidden = np.ones((len(batch.hidden_rows), self.hidden_size), np.float32)
        return logits

    def move(self, moves: Sequence[BlockMove]) -> None:
        """Nothing is kept, so there is nothing to move."""

    def block_nbytes(self, group: int) -> int:
        raise AssertionError(f"nothing is kept of group {group}")

    def read_blocks(self, group: int, blocks: Sequence[int], into: memoryview) -> None:
        raise AssertionError(f"nothing is kept of blocks {blocks} of group {group}: {into}")

    def write_blocks(self, group: int, blocks: Sequence[int], content: memoryview) -> None:
        raise AssertionError(f"nothing is kept of blocks {blocks} of group {group}: {content}")
