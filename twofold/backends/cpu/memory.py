"""The memory of kernels: working memory, which is reused as soon as it is free, and the paged KV cache.

    KV group    [layers of the group][blocks]     a layer's keys and values in a block: see ``kernels.cache``
    host tier   [slots][layers of the group]      a block of all layers in one piece, swapped out

A layer's blocks are adjacent: kernels read them 1 % faster than blocks of all layers in one piece, which would move
20 % faster. The system provides pages when they are first written: host slots that are never used take no memory.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from twofold.backends.cpu.kernels.cache import LayerBlock
from twofold.core.errors import ResourceError
from twofold.core.kv_layout import KVType
from twofold.core.model import KVGroup
from twofold.core.step import BlockMove, MoveKind
from twofold.core.units import format_bytes

LINE = 64
POPULATE_WRITE: Final = 23
"""Linux's MADV_POPULATE_WRITE, which ``mmap`` does not name; earlier kernels refuse it."""
Parts = NDArray[np.void]
"""An item is the content of one layer in one block, which NumPy copies as one value."""


def aligned_zeros(size: int) -> tuple[int, NDArray[np.uint8]]:
    """``size`` zero bytes from the start of a cache line on: their address, and the array that owns them.

    Large pages are requested if the system has them: a step reads all weights, and small pages would cost many address
    translations; the system also clears a large page six times as fast. It gives them to private memory only: memory
    shared with forks, the default of ``mmap``, has a setting of its own that is off.
    """
    try:
        area = mmap.mmap(-1, size + LINE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, ValueError, OverflowError) as error:
        raise ResourceError(
            f"This machine cannot provide {format_bytes(size)} of memory.",
            hint="Use a smaller model, a lower max_model_len, or fewer sequences.",
        ) from error
    if hasattr(mmap, "MADV_HUGEPAGE"):  # Linux
        area.madvise(mmap.MADV_HUGEPAGE)
    array = np.frombuffer(area, np.uint8)
    return -(-array.ctypes.data // LINE) * LINE, array


def row_stride(row_bytes: int) -> int:
    """Bytes from row to row: whole lines, but no multiple of 1024, which would map rows to few cache sets."""
    stride = -(-row_bytes // LINE) * LINE
    return stride + LINE if stride % 1024 == 0 else stride


@dataclass(frozen=True, slots=True)
class Buffer:
    """Rows of activations. Its pool owns the memory."""

    address: int
    stride: int


class BufferPool:
    """Allocates buffers and reuses those that are given back. Keep it as long as a buffer is in use."""

    def __init__(self) -> None:
        self._owned: list[NDArray[np.uint8]] = []
        self._free: dict[tuple[int, int], list[Buffer]] = defaultdict(list)

    def take(self, rows: int, row_bytes: int) -> Buffer:
        stride = row_stride(row_bytes)
        free = self._free[rows, stride]
        if free:
            return free.pop()
        address, owner = aligned_zeros(rows * stride)
        self._owned.append(owner)
        return Buffer(address, stride)

    def give(self, rows: int, buffer: Buffer) -> None:
        self._free[rows, buffer.stride].append(buffer)


class KVCache:
    """The paged KV cache. ``blocks`` and ``host_slots`` count those of each of ``groups``; no ``host_slots``: none.

    Raises ResourceError if memory does not suffice, UnsupportedModelError for a group that keeps no keys and values.
    """

    def __init__(
        self,
        groups: Sequence[KVGroup],
        block_size: int,
        dtype: KVType,
        blocks: Sequence[int],
        host_slots: Sequence[int] = (),
    ) -> None:
        self.groups, self.dtype = tuple(groups), dtype
        kinds = [group.paged for group in self.groups]
        self._kinds = [LayerBlock(kind.kv_heads, kind.head_dim, block_size, dtype) for kind in kinds]
        slots = host_slots or [0] * len(self.groups)
        counts = [
            (block, len(group.layers), count, spare)
            for block, group, count, spare in zip(self._kinds, self.groups, blocks, slots, strict=True)
        ]
        try:
            self._blocks = [_area(block, layers, count) for block, layers, count, _ in counts]
            self._slots = [_area(block, spare, layers) for block, layers, _, spare in counts]
        except ResourceError as error:
            size = format_bytes(sum(b.nbytes * layers * (count + spare) for b, layers, count, spare in counts))
            raise ResourceError(
                "This machine cannot provide the KV cache: of the memory that kv_cache_memory_bytes allows, "
                f"{max(blocks):,} blocks would take {size}.",
                hint="Lower kv_cache_memory_bytes or max_model_len, or use a smaller model.",
            ) from error
        places = [(g, place, layer) for g, group in enumerate(self.groups) for place, layer in enumerate(group.layers)]
        self._places = {layer: (g, place) for g, place, layer in places}

    def group_of(self, layer: int) -> int:
        """The KV group of a layer."""
        return self._places[layer][0]

    def block_of(self, layer: int) -> LayerBlock:
        """What a block holds of a layer."""
        return self._kinds[self.group_of(layer)]

    def layer_address(self, layer: int) -> int:
        """The address of a layer's block 0; its blocks are ``block_of(layer).nbytes`` apart."""
        group, place = self._places[layer]
        blocks = self._blocks[group]
        return blocks.ctypes.data + place * blocks.strides[0]

    def move(self, moves: Sequence[BlockMove]) -> None:
        """Moves blocks of all layers of a group, one after another; sources stay as they are."""
        for move in moves:
            blocks, slots = self._blocks[move.group], self._slots[move.group].T
            source = slots if move.kind is MoveKind.IN else blocks
            target = slots if move.kind is MoveKind.OUT else blocks
            _block(target, move.target)[:] = _block(source, move.source)

    def provide(self, blocks: Sequence[int]) -> None:
        """Requests the memory of the first blocks of each group now, instead of when they are first written: providing
        a page takes longer than filling it. Their contents stay. Does nothing on systems that cannot."""
        if sys.platform != "linux":
            return
        madvise = ctypes.CDLL(None).madvise
        for parts, count in zip(self._blocks, blocks, strict=True):
            size = min(count, parts.shape[1]) * parts.itemsize
            for layer in range(len(parts)):
                start = parts.ctypes.data + layer * parts.strides[0]
                page = start - start % mmap.PAGESIZE
                madvise(ctypes.c_void_p(page), ctypes.c_size_t(start - page + size), POPULATE_WRITE)

    def block_nbytes(self, group: int) -> int:
        """Bytes of a block of all layers of a group."""
        parts = self._blocks[group]
        return parts.itemsize * len(parts)

    def read_blocks(self, group: int, blocks: Sequence[int], into: memoryview) -> None:
        """Copies blocks, layer by layer."""
        for part, copied in self._runs(group, blocks, into):
            copied[:] = part

    def write_blocks(self, group: int, blocks: Sequence[int], content: memoryview) -> None:
        """Fills blocks with what ``read_blocks`` has copied."""
        for part, copied in self._runs(group, blocks, content):
            part[:] = copied

    def _runs(self, group: int, blocks: Sequence[int], content: memoryview) -> Iterator[tuple[Parts, Parts]]:
        """Runs of adjacent blocks, and their part of ``content``: each [layers, blocks of the run]."""
        parts = self._blocks[group]
        copied = np.frombuffer(content, parts.dtype).reshape(len(parts), len(blocks))
        start = 0
        for end in range(1, len(blocks) + 1):
            if end == len(blocks) or blocks[end] != blocks[end - 1] + 1:
                assert 0 <= blocks[start] <= blocks[end - 1] < parts.shape[1], "there is no such block"
                yield parts[:, blocks[start] : blocks[end - 1] + 1], copied[:, start:end]
                start = end


def _block(parts: Parts, index: int) -> Parts:
    """One block of [layers, blocks]: all layers."""
    assert 0 <= index < parts.shape[1], "NumPy counts a negative index from the end"
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
