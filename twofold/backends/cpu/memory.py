"""The working memory of kernels: aligned, zeroed, and reused as soon as it is free."""

from __future__ import annotations

import mmap
from collections import defaultdict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from twofold.core.errors import ResourceError

LINE = 64


def aligned_zeros(size: int) -> tuple[int, NDArray[np.uint8]]:
    """``size`` zero bytes at a cache line's start: the address, and the array that owns them.

    Pages appear as they are touched. Where the system offers large pages they are asked for: a step walks through all
    the weights, and small pages would cost it address translations.
    """
    try:
        area = mmap.mmap(-1, size + LINE)
    except (OSError, ValueError, OverflowError) as error:
        raise ResourceError(
            f"This machine cannot provide {size / 2**20:,.0f} MiB of memory.",
            hint="Use a smaller model, a lower max_model_len, or fewer sequences.",
        ) from error
    if hasattr(mmap, "MADV_HUGEPAGE"):
        area.madvise(mmap.MADV_HUGEPAGE)
    array = np.frombuffer(area, np.uint8)
    return -(-array.ctypes.data // LINE) * LINE, array


def row_stride(row_bytes: int) -> int:
    """Bytes from row to row: whole lines, and no multiple of 1024, which would crowd rows into few cache sets."""
    stride = -(-row_bytes // LINE) * LINE
    return stride + LINE if stride % 1024 == 0 else stride


@dataclass(frozen=True, slots=True)
class Buffer:
    """Rows of activations. The pool that gave it owns its memory."""

    address: int
    stride: int


class BufferPool:
    """Hands out buffers for a fixed number of rows, and takes them back. Keep it as long as any is in use."""

    def __init__(self) -> None:
        self._owned: list[NDArray[np.uint8]] = []
        self._free: dict[tuple[int, int], list[Buffer]] = defaultdict(list)
        self.total_bytes = 0

    def take(self, rows: int, row_bytes: int) -> Buffer:
        stride = row_stride(row_bytes)
        free = self._free[rows, stride]
        if free:
            return free.pop()
        address, owner = aligned_zeros(rows * stride)
        self._owned.append(owner)
        self.total_bytes += rows * stride
        return Buffer(address, stride)

    def give(self, rows: int, buffer: Buffer) -> None:
        self._free[rows, buffer.stride].append(buffer)
