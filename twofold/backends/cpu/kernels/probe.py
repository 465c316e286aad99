"""Kernels that measure what a machine can do at most: read memory, multiply bytes, multiply floats.

They do what the real kernels spend their time on, and nothing else, so a real kernel cannot be faster. Each takes the
number of turns of its loop, and writes its sums where they keep the compiler from leaving the work out.
"""

from __future__ import annotations

from typing import Final

from twofold.backends.cpu.kernels.ir import F32X16, I8X64, I32, I32X16, I64, PTR, Kernel
from twofold.backends.cpu.kernels.isa import Isa

READ_BYTES: Final = 512
"""Bytes a turn of ``read_kernel`` reads."""
LINE: Final = 64
PROBE_BYTES: Final = 2048
"""Bytes that ``int8_kernel`` and ``float_kernel`` need at ``data``."""
_CODE_LINES: Final = 8


def accumulators(isa: Isa) -> int:
    """Sums that run side by side: enough to hide an instruction's latency, few enough to stay in registers."""
    return isa.registers // 2


def int8_macs(isa: Isa) -> int:
    """Multiply-adds of a turn of ``int8_kernel``: four in each of 16 lanes."""
    return 64 * accumulators(isa)


def float_macs(isa: Isa) -> int:
    """Multiply-adds of a turn of ``float_kernel``."""
    return 16 * accumulators(isa)


def read_kernel(isa: Isa) -> Kernel:
    """Reads ``turns`` · READ_BYTES bytes from ``data`` on, once and in order; 64 bytes at a time."""
    k = Kernel("probe_read", [("turns", I64), ("data", PTR), ("out", PTR)])
    turns, data, out = k.args
    sums = [k.var(I32X16, 0) for _ in range(min(READ_BYTES // LINE, accumulators(isa)))]
    for turn in k.range(0, turns):
        at = data + turn * READ_BYTES
        for line in range(READ_BYTES // LINE):
            total = sums[line % len(sums)]
            total.set(total.get() + k.load(I32X16, at + line * LINE))
    for index, total in enumerate(sums):
        k.store(total.get(), out + index * LINE)
    k.ret()
    return k


def int8_kernel(isa: Isa) -> Kernel:
    """Adds products of unsigned and signed bytes as the linear kernels do, from codes in the first-level cache.

    The codes differ from turn to turn, or a compiler could take products of earlier turns.
    """
    k = Kernel("probe_int8", [("turns", I64), ("data", PTR), ("out", PTR)])
    turns, data, out = k.args
    sums = [k.var(I32X16, index) for index in range(accumulators(isa))]
    acts = k.load(I32, data)
    for turn in k.range(0, turns):
        at = data + (turn & (_CODE_LINES - 1)) * LINE
        for index, total in enumerate(sums):
            total.set(isa.dot4(k, total.get(), k.load(I8X64, at + index * LINE), acts, 4))
    for index, total in enumerate(sums):
        k.store(total.get(), out + index * LINE)
    k.ret()
    return k


def float_kernel(isa: Isa) -> Kernel:
    """Adds float32 products, fused."""
    k = Kernel("probe_float", [("turns", I64), ("data", PTR), ("out", PTR)])
    turns, data, out = k.args
    sums = [k.var(F32X16, float(index)) for index in range(accumulators(isa))]
    factor = k.load(F32X16, data)
    for _turn in k.range(0, turns):
        for total in sums:
            total.set(k.fma(factor, factor, total.get()))
    for index, total in enumerate(sums):
        k.store(total.get(), out + index * LINE)
    k.ret()
    return k
