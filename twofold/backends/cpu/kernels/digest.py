"""The kernel of ``host.digest.universal_hash``."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from twofold.backends.cpu.kernels.ir import I32X16, I64, PTR, Kernel, Value
from twofold.backends.cpu.kernels.jit import Compiler, as_function
from twofold.host.digest import CHUNK, PASSES, SUM_BYTES, UniversalHash

LINE: Final = 64


def compiled_hash(compiler: Compiler) -> UniversalHash:
    """``UniversalHash`` as machine code."""
    run: Any = as_function(compiler.named("universal_hash", universal_hash_kernel), 4)
    run.owner = compiler  # its code lasts as long as the compiler

    def universal_hash(data: NDArray[np.uint8], key: NDArray[np.uint8]) -> NDArray[np.uint8]:
        sums = np.empty(data.size // CHUNK * SUM_BYTES, np.uint8)
        run(data.ctypes.data, data.size // CHUNK, key.ctypes.data, sums.ctypes.data)
        return sums

    return universal_hash


def universal_hash_kernel() -> Kernel:
    """``data``: chunks; ``key``: KEY_BYTES; ``sums``: SUM_BYTES of each chunk, in order. No alignment is needed."""
    k = Kernel("universal_hash", [("data", PTR), ("chunks", I64), ("key", PTR), ("sums", PTR)])
    data, chunks, key, sums = k.args
    pairs = I64.of(I32X16.lanes // 2)
    for chunk in k.range(0, chunks):
        totals = [k.var(pairs, 0) for _ in range(PASSES)]
        for line in k.range(0, CHUNK, LINE):
            words = k.load(I32X16, data + (chunk * CHUNK + line))
            for number, total in enumerate(totals):
                total.set(total.get() + _products(words + k.load(I32X16, key + (line + 8 * number))))
        for number, total in enumerate(totals):
            k.store(k.reduce_tree(total.get(), "add"), sums + (chunk * SUM_BYTES + 8 * number))
    k.ret()
    return k


def _products(words: Value) -> Value:
    """Each even word times the word after it, without a sign."""
    pairs = words.as_bits(I64.of(words.type.lanes // 2))
    return (pairs & 0xFFFFFFFF) * (pairs >> 32)
