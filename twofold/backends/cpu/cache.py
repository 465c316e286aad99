"""The memory of the paged KV cache: blocks for each group of layers, and a host tier that whole blocks can go to.

    group       [layers of the group][blocks]     a layer's keys and values in a block: see ``kernels.cache``
    host tier   [slots][layers of the group]      a block of all layers in one piece

A layer's blocks lie side by side: kernels read them a hundredth faster than blocks of all layers in one piece, which
would be moved a fifth faster. Pages become real as they are written: host slots that are never used take nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from twofold.backends.cpu.kernels.cache import LayerBlock
from twofold.backends.cpu.memory import aligned_zeros
from twofold.core.model import KVGroup
from twofold.core.step import BlockMove, MoveKind

Parts = NDArray[np.void]
"""Items are what one layer keeps in one block; NumPy copies such an item at once."""


class KVCache:
    """``blocks`` and ``host_slots`` count blocks of each of ``groups``; no host slots where none are given.

    Raises ResourceError where the machine does not have the memory.
    """

    def __init__(
        self, block: LayerBlock, groups: Sequence[KVGroup], blocks: Sequence[int], host_slots: Sequence[int] = ()
    ) -> None:
        self.block = block
        self.groups = tuple(groups)
        slots = host_slots or [0] * len(self.groups)
        self._blocks = [_area(block, len(g.layers), n) for g, n in zip(self.groups, blocks, strict=True)]
        self._slots = [_area(block, n, len(g.layers)) for g, n in zip(self.groups, slots, strict=True)]
        places = [(g, place, layer) for g, group in enumerate(self.groups) for place, layer in enumerate(group.layers)]
        self._places = {layer: (g, place) for g, place, layer in places}

    @property
    def nbytes(self) -> int:
        """Bytes that a full cache takes, host slots apart."""
        return sum(blocks.nbytes for blocks in self._blocks)

    def group_of(self, layer: int) -> int:
        """The group by whose block tables a layer goes."""
        return self._places[layer][0]

    def layer_address(self, layer: int) -> int:
        """Where a layer's block 0 begins; the others follow ``block.nbytes`` apart."""
        group, place = self._places[layer]
        blocks = self._blocks[group]
        return blocks.ctypes.data + place * blocks.strides[0]

    def move(self, moves: Sequence[BlockMove]) -> None:
        """Does the moves one after another."""
        for move in moves:
            match move.kind:
                case MoveKind.COPY:
                    self.copy(move.group, move.source, move.target)
                case MoveKind.OUT:
                    self.out(move.group, move.source, move.target)
                case MoveKind.IN:
                    self.bring(move.group, move.source, move.target)

    def copy(self, group: int, source: int, target: int) -> None:
        """Block ``target`` becomes what block ``source`` is."""
        _block(self._blocks[group], target)[:] = _block(self._blocks[group], source)

    def out(self, group: int, source: int, slot: int) -> None:
        """Host slot ``slot`` becomes what block ``source`` is; the block stays as it is."""
        _block(self._slots[group].T, slot)[:] = _block(self._blocks[group], source)

    def bring(self, group: int, slot: int, target: int) -> None:
        """Block ``target`` becomes what host slot ``slot`` is; the slot stays as it is."""
        _block(self._blocks[group], target)[:] = _block(self._slots[group].T, slot)


def _block(parts: Parts, index: int) -> Parts:
    """One of [layers, blocks], all layers. NumPy would count a negative number from the end."""
    assert 0 <= index < parts.shape[1]
    return parts[:, index]


def _area(block: LayerBlock, rows: int, columns: int) -> Parts:
    """Zeros: [rows, columns]."""
    kind = np.dtype((np.void, block.nbytes))
    size = rows * columns * block.nbytes
    if not size:
        return np.zeros((rows, columns), kind)
    address, owner = aligned_zeros(size)
    start = address - owner.ctypes.data
    return owner[start : start + size].view(kind).reshape(rows, columns)
