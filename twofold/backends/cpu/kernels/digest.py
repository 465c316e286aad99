"""The universal hash of a keyed digest that is as fast as memory: NH of Black et al. (UMAC, CRYPTO 1999; RFC 4418).

A chunk of CHUNK bytes is 32-bit words m, a key is words k, and pass t of PASSES has a 64-bit sum:

    h[t] = Σ_i (m[2i] + k[2i + 2t] mod 2³²) · (m[2i+1] + k[2i+1 + 2t] mod 2³²)   mod 2⁶⁴

Two different sequences of chunks have the same sums for one key of 2¹²⁸. The sums of a chunk are 32 bytes; who needs a
digest gives them to a keyed hash of the usual kind.
"""

from __future__ import annotations

from typing import Final

from twofold.backends.cpu.kernels.ir import I32X16, I64, PTR, Kernel, Value

CHUNK: Final = 1024
PASSES: Final = 4
KEY_BYTES: Final = CHUNK + 8 * (PASSES - 1)
SUM_BYTES: Final = 8 * PASSES
"""Bytes of a chunk's sums."""
LINE: Final = 64


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
