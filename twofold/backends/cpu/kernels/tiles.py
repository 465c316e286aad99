"""What every linear kernel does around its sums: rows cut into tiles, results with bias and residual stored."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from twofold.backends.cpu.kernels.ir import F32X16, I64, Kernel, Value
from twofold.backends.cpu.kernels.layout import PANEL
from twofold.backends.cpu.kernels.signature import KernelArguments


def cover(k: Kernel, first: Value | int, last: Value, sizes: Sequence[int], tile: Callable[[Value, int], None]) -> None:
    """Cuts ``first … last`` into tiles of the given sizes, largest first, the last of them 1: tile(first, size)."""
    start = k.var(I64, first)
    for size in sizes:
        begin = start.get()
        stop = begin + (last - begin) // size * size
        for at in k.range(begin, stop, size):
            tile(at, size)
        start.set(stop)


def finish(
    k: Kernel,
    f: KernelArguments,
    sums: Callable[[int, int], Value],
    first_row: Value,
    rows: int,
    panel: Value,
    panels: int,
) -> None:
    """Stores a tile of ``rows`` × ``panels``, with bias and residual added where the call gives them.

    Fields: ``out`` and ``residual`` float32 [rows], ``out_stride`` bytes apart, and ``bias``; the last two may be null.
    """
    column = panel * (4 * PANEL)
    results = [[k.var(F32X16, sums(r, p)) for p in range(panels)] for r in range(rows)]
    with k.when(k.is_set(f["bias"])):
        for p in range(panels):
            bias = k.load(F32X16, f["bias"] + column + 64 * p)
            for r in range(rows):
                results[r][p].set(results[r][p].get() + bias)
    offsets = [(first_row + r) * f["out_stride"] + column for r in range(rows)]
    with k.when(k.is_set(f["residual"])):
        for r in range(rows):
            for p in range(panels):
                residual = k.load(F32X16, f["residual"] + offsets[r] + 64 * p)
                results[r][p].set(results[r][p].get() + residual)
    for r in range(rows):
        for p in range(panels):
            k.store(results[r][p].get(), f["out"] + offsets[r] + 64 * p)
