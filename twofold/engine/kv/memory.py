"""How much memory keys and values take, and how it is shared between groups of layers.

A layer with a window keeps only what its rows can still see, so its group needs a bounded number of blocks for each
sequence; what is left goes to the widest group, whose blocks grow with the text.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from twofold.core.kv_layout import KVLayout
from twofold.core.model import ATTENTION_CHUNK, KVGroup, ModelSpec
from twofold.engine.kv.manager import GroupSize
from twofold.engine.kv.pool import blocks_for

MAX_BLOCKS: Final = 1 << 18
"""More blocks than this cost more to keep account of than prefixes of that age are worth."""
WINDOW_SHARE: Final = 0.5
"""Groups with windows take at most this share of the memory, unless one sequence needs more."""


@dataclass(frozen=True, slots=True)
class KVDemand:
    """What sequences of a model need. ``rows`` are the most that a step computes: they are there beside the window."""

    spec: ModelSpec
    layout: KVLayout
    rows: int

    def blocks(self, group: KVGroup, context: int) -> int:
        """Most blocks that a sequence of ``context`` tokens holds at once."""
        size = self.layout.block_size
        everything = blocks_for(context, size)
        if group.window is None:
            return everything
        return min(everything, blocks_for(group.window + self.rows + ATTENTION_CHUNK, size) + 1)

    def sequence_bytes(self, context: int) -> int:
        """Bytes of one sequence of ``context`` tokens."""
        return sum(self.blocks(g, context) * self.layout.block_bytes(g) for g in self.spec.kv_groups(context))


def largest_context(demand: KVDemand, longest: int, memory: int) -> int:
    """The longest sequence up to ``longest`` tokens that fits into ``memory`` bytes; if less, whole blocks."""
    if demand.sequence_bytes(longest) <= memory:
        return longest
    size = demand.layout.block_size
    low, high = 0, longest // size
    while low < high:
        middle = (low + high + 1) // 2
        fits = demand.sequence_bytes(middle * size) <= memory
        low, high = (middle, high) if fits else (low, middle - 1)
    return low * size


def share_out(
    demand: KVDemand, context: int, memory: int, swap: int, sequences: int, *, keeps_prefixes: bool
) -> tuple[GroupSize, ...]:
    """Blocks of each group in ``memory`` bytes, and its host slots in ``swap`` bytes.

    Groups after the first get what ``sequences`` sequences need at most. Without ``keeps_prefixes`` the first gets no
    more than that either: there is nothing to keep in the rest.
    """
    groups = demand.spec.kv_groups(context)
    assert all((a.window or context) >= (b.window or context) for a, b in pairwise(groups))
    least = [demand.blocks(group, context) for group in groups]
    sizes = [demand.layout.block_bytes(group) for group in groups]
    blocks = list(least)
    spare = memory - sum(count * size for count, size in zip(least, sizes, strict=True))
    for index in range(1, len(groups)):
        allowed = int(memory * WINDOW_SHARE / (len(groups) - 1)) // sizes[index]
        more = min(least[index] * sequences, allowed, least[index] + spare // sizes[index]) - least[index]
        blocks[index] += max(0, more)
        spare -= max(0, more) * sizes[index]
    blocks[0] += spare // sizes[0]
    blocks[0] = min(blocks[0], least[0] * sequences if not keeps_prefixes else max(MAX_BLOCKS, least[0]))
    total = sum(count * size for count, size in zip(blocks, sizes, strict=True))
    return tuple(
        GroupSize(group.window, count, count * swap // total) for group, count in zip(groups, blocks, strict=True)
    )
