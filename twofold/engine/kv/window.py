"""How far back the rows of a KV group see, in blocks.

A row at position p of a window of w sees positions p − w + 1 … p. Attention reads whole chunks of positions, so the
first block that it touches is the one where the chunk of its first visible position begins.
"""

from __future__ import annotations

import math
import sys

NEVER = sys.maxsize


class AttentionWindow:
    """``window`` positions, None for all; chunks and blocks are counted in positions too."""

    def __init__(self, window: int | None, chunk: int, block_size: int) -> None:
        self.window = window
        self._chunk = chunk
        self._block_size = block_size

    def first(self, start: int, published: int = 0) -> int:
        """The first block that a row at ``start`` or later reads.

        Of ``published`` blocks the last counts as read: whoever holds it keeps his place in the prefix tree.
        """
        if self.window is None or start < self.window:
            return 0
        first = (start - self.window + 1) // self._chunk * self._chunk // self._block_size
        return min(first, published - 1) if published else first

    def passes(self, block: int) -> int:
        """The first row from which on ``block`` is not read any more; NEVER without a window."""
        if self.window is None:
            return NEVER
        return -(-(block + 1) * self._block_size // self._chunk) * self._chunk + self.window - 1

    def most(self) -> int:
        """Blocks that one row can need at most; NEVER without a window."""
        if self.window is None:
            return NEVER
        turns = range(self.window - 1, self.window - 1 + math.lcm(self._chunk, self._block_size))
        return max(row // self._block_size - self.first(row, row // self._block_size) + 1 for row in turns)
