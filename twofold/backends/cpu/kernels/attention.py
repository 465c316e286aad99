"""Attention over the paged cache, for any mix of rows: one kernel for a prompt's rows and for one new token.

The matrix of scores is never stored. This is the arithmetic of one query, whatever other queries are in the batch:

    positions are divided at fixed multiples: splits of 256, chunks of 64 in a split, 16 lanes at a time
    score[t] = Σ_d q[d]·scale · k[t][d]                   one fma chain, ascending d
    for each chunk of a split, ascending:                 (m, l, o start at −1e30, 0, 0)
        m' = max(m, scores);  c = exp(m − m');  p = exp(score − m')
        l = l·c + Σ p;  o = o·c, then o = fma(p[t], v[t], o) for ascending t
    splits are merged in ascending order:  M' = max(M, m);  (L, O) = (L, O)·exp(M − M') + (l, o)·exp(m − M')
    result = O / L

    m, l, o   largest score, sum of weights, weighted sum of values of one split; M, L, O of several

With a bfloat16 cache, q·scale and p are rounded to bfloat16, and sums are made of pairs of products, the odd one first
(d + 1 before d, t + 1 before t), as AVX-512 BF16 adds them in one instruction. The weights that l adds stay float32; l
has 16 lanes until its split ends. Exponentials are powers of two, and scores are multiplied by log₂ e. That instruction
takes subnormal numbers for 0, so none may occur: p and c below 2^``LEAST_POWER`` and o·c below ``LEAST_OUTPUT`` are 0.

With integers (q8, k8v4) queries are spread as keys are (``integers``), and products are sums of integers, which are the
same in any order. Exponentials and l are those of bfloat16:

    Q[d] = round(q[d] · 32767 / max |q|);  score[t] = f32(Σ_d Q[d] · K[t][d]) · (key scale[t] · factor)
    with factor = max |q| / 32767 · scale · log₂ e / block, where ``block`` undoes the spreading
    w[t] = p[t] · value scale[t];  W[t] = round(w[t] · 32767 / max w)       in each chunk
    o = fma(f32(Σ_t W[t] · V[t]), max w / 32767, o·c)                       V of k8v4: step · code + 4 · minimum
    result = O / L, spread back

A hidden position has p = 0 exactly, and a chunk or split of hidden positions alone leaves the state as it is. So the
result does not depend on where a kernel starts and stops (Milakov & Gimelshein 2018 for the running maximum; Dao et al.
for the splits). Block tables are read from the chunk of the first visible position on. From there on their entries must
be blocks of the cache, and hidden positions in these must hold finite numbers.

Work is divided into **items**: a few adjacent rows of one sequence. A unit is an item and a KV head; all query heads
that share the KV head are computed together. A long context with few rows becomes several items, and each stores one
split's (m, l, o) for ``merge_kernel``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import reduce
from typing import Final

from twofold.backends.cpu.kernels.cache import (
    BF16_LEAST,
    TILE,
    block_of,
    element_bytes,
    load_elements,
    paired,
    table_of,
    tile_bytes,
    without_small,
)
from twofold.backends.cpu.kernels.integers import widened_scales
from twofold.backends.cpu.kernels.ir import (
    F32,
    F32X16,
    I8,
    I16X16,
    I16X32,
    I32,
    I32X16,
    I64,
    PTR,
    Kernel,
    Value,
    Var,
)
from twofold.backends.cpu.kernels.isa import Isa, bfloat16_bits
from twofold.backends.cpu.kernels.math import LOG2_E, exp, exp2_below_0, tanh
from twofold.backends.cpu.kernels.rows import NEGLIGIBLE, float_bits
from twofold.backends.cpu.kernels.signature import KERNEL_PARAMETERS, KernelArguments
from twofold.backends.cpu.kernels.splits import (
    ATTENTION_FIELDS,
    ATTENTION_POINTERS,
    AttentionKernelSpec,
    QueryStates,
    merge_state,
    store_result,
)
from twofold.core.kv_layout import MINIMUM_UNIT, VALUE_GROUP, spread_block

SPLIT: Final = 256
"""Positions of a split, which begins at a multiple of this."""
CHUNK: Final = 64
MASKED: Final = float("-inf")
LEAST_POWER: Final = math.log2(BF16_LEAST)
"""With bfloat16, lower powers of two are 0."""
LEAST_OUTPUT: Final = 2.0**-100
"""With bfloat16, smaller rescaled outputs are 0."""
SCALES_BYTES: Final = 2 * TILE
"""Bytes of the scales of a tile's keys, or of its values, which are the last of them."""
MOST: Final = 32767.0
"""The largest integer of a query, or of a chunk's weights."""
MAX_QUERIES: Final = 12
"""Queries of the largest tile; at most 16, because the factors that rescale their sums are lanes of one vector."""

ITEM_INTS: Final = 8
"""int32 fields of an item: sequence, first row, rows, position of the first row, split (−1: all), partial slot."""


@dataclass(frozen=True, slots=True)
class AttentionTiling:
    """Queries of a tile, and 16-lane vectors of scores or outputs that it sums for each of them."""

    queries: int
    vectors: int

    @staticmethod
    def of(isa: Isa) -> tuple[AttentionTiling, ...]:
        """Tiles for any number of queries, the largest first. Their sums fill the registers."""
        if isa.registers >= 32:
            sizes = ((MAX_QUERIES, 2), (6, 4), (3, 4), (2, 4), (1, 4))
            return tuple(AttentionTiling(*size) for size in sizes)
        return tuple(AttentionTiling(queries, 1) for queries in (3, 2, 1))


def scratch_floats(head_dim: int) -> int:
    """Floats of scratch of a worker: for each query its scaled values, scores, sums of weights, and two states."""
    return MAX_QUERIES * (head_dim + CHUNK + 16 + 2 * (16 + head_dim)) + 64


def _tiles(k: Kernel, positions: Value) -> Value:
    """Tiles of a chunk that hold its first ``positions`` positions."""
    return (k.smin(positions, CHUNK) + (TILE - 1)) // TILE


@dataclass(frozen=True, slots=True)
class _Item:
    """An item's fields, and the KV head of the unit."""

    sequence: Value
    first_row: Value
    rows: Value
    position: Value
    split: Value
    partial: Value
    head: Value


class AttentionKernel:
    """Generates the attention kernel of one spec."""

    def __init__(self, spec: AttentionKernelSpec, isa: Isa) -> None:
        self._spec = spec
        self._isa = isa
        self._dot2 = isa.dot2 if spec.halves else None
        self._sum_type = I32X16 if spec.integers else F32X16
        self._factor_bytes = 2 if self._dot2 is not None or spec.integers else 4
        self._tile_bytes = tile_bytes(spec.head_dim, spec.dtype)
        self._tilings = AttentionTiling.of(isa)
        self.k = k = Kernel(spec.name, KERNEL_PARAMETERS)
        self._a = KernelArguments(k, ATTENTION_FIELDS, ATTENTION_POINTERS)
        queries = self._tilings[0].queries
        self._q = k.args[4]
        self._scores = self._q + 4 * queries * spec.head_dim
        self._sums = self._scores + 4 * queries * CHUNK
        self._part = QueryStates(k, self._sums + 64 * queries, spec.head_dim)
        self._total = QueryStates(k, self._part.at(queries), spec.head_dim)
        self._lanes = k.constants(I32X16, range(16))
        self._positions = k.buffer(8 * MAX_QUERIES)
        self._gaps, self._corrections = k.buffer(64), k.buffer(64)
        k.store(k.splat(F32X16, 0.0), self._gaps)
        if spec.integers:
            self._query_factors, self._weight_factors = k.buffer(4 * MAX_QUERIES), k.buffer(4 * MAX_QUERIES)
            self._value_scales = k.buffer(4 * CHUNK)
            for tile in range(CHUNK // TILE):
                k.store(k.splat(F32X16, 0.0), self._value_scales + 64 * tile)
        self._keys, self._next_keys, self._keys_of_next_unit = (k.buffer(8 * CHUNK // TILE) for _ in range(3))

    def generate(self) -> Kernel:
        k = self.k
        heads = self._a["kv_heads"]
        for unit in k.range(k.args[2], k.args[3]):
            item = self._item(unit // heads, unit % heads)
            following = k.smin(unit + 1, k.args[3] - 1)
            self._list_first_tiles(self._item(following // heads, following % heads))
            queries = item.rows * self._spec.group
            first = k.var(I64, 0)
            for tiling in self._tilings:
                size = tiling.queries
                stop = first.get() + (queries - first.get()) // size * size
                for at in k.range(first.get(), stop, size):
                    self._tile(item, at, tiling)
                first.set(stop)
        k.ret()
        return k

    def _item(self, index: Value, head: Value) -> _Item:
        k = self.k
        at = self._a["items"] + index * (4 * ITEM_INTS)
        sequence, first_row, rows, position, split, partial = (k.load(I32, at + 4 * i).to(I64) for i in range(6))
        return _Item(sequence, first_row, rows, position, split, partial, head)

    def _tile(self, item: _Item, first: Value, tiling: AttentionTiling) -> None:
        """Attention of one tile: the item's queries from ``first`` on."""
        k, size = self.k, tiling.queries
        for i in k.range(0, size):
            row, _, column = self._place(item, first + i)
            k.store(item.position + row, self._positions + i * 8)
            self._load_query(i, (item.first_row + row) * self._a["q_stride"] + column)
            self._total.reset(i)
        begin, end = self._span(item, self._position(0), self._position(size - 1))
        for split in k.range(begin // SPLIT, (end + (SPLIT - 1)) // SPLIT):
            low = k.smax(begin, split * SPLIT)
            high = k.smin(end, split * SPLIT + SPLIT)
            self._split(item, tiling, low, high, end)
        for i in k.range(0, size):
            row, member, column = self._place(item, first + i)
            self._finish(item, i, (item.first_row + row) * self._a["out_stride"] + column, member)

    def _place(self, item: _Item, query: Value) -> tuple[Value, Value, Value]:
        """A query's row in the item, its head's number in the group, and that head's byte offset in a row."""
        row, member = query // self._spec.group, query % self._spec.group
        return row, member, (item.head * self._spec.group + member) * (4 * self._spec.head_dim)

    def _position(self, query: Value | int) -> Value:
        """The position of one of the tile's queries, which ascend."""
        return self.k.load(I64, self._positions + query * 8)

    def _load_query(self, index: Value, offset: Value) -> None:
        k = self.k
        scale = float_bits(self._a["scale"])
        if self._spec.powers and not self._spec.softcap:
            scale = scale * LOG2_E
        if self._spec.integers:
            values = [k.load(F32X16, self._a["q"] + offset + 4 * i) for i in range(0, self._spec.head_dim, 16)]
            factor = self._store_integers(values, self._q + index * (2 * self._spec.head_dim))
            k.store(factor * (scale * (1 / spread_block(self._spec.head_dim))), self._query_factors + index * 4)
            return
        scale = k.splat(F32X16, scale)
        for i in range(0, self._spec.head_dim, 16):
            target = self._q + (index * self._spec.head_dim + i) * self._factor_bytes
            scaled = k.load(F32X16, self._a["q"] + offset + 4 * i) * scale
            k.store(self._factors(without_small(k, scaled) if self._spec.halves else scaled), target)

    def _store_integers(self, values: list[Value], target: Value) -> Value:
        """Stores values as integers of 16 bits; the number that each unit is worth."""
        k = self.k
        amax = k.reduce_tree(reduce(k.fmax, map(k.abs, values)), "fmax")
        seen = amax > NEGLIGIBLE
        inverse = k.splat(F32X16, k.select(seen, k.splat(F32, MOST) / amax, k.splat(F32, 0.0)))
        for i, v in enumerate(values):
            k.store(k.round_even(v * inverse).to(I32X16).to(I16X16), target + 32 * i)
        return k.select(seen, amax * (1 / MOST), k.splat(F32, 0.0))

    def _factors(self, x: Value) -> Value:
        """Scaled queries or weights as they are multiplied: float32, rounded to bfloat16 or not, or bfloat16."""
        if not self._spec.halves:
            return x
        return bfloat16_bits(x).as_bits(F32X16) if self._isa.narrow2 is None else self._isa.narrow2(self.k, x)

    def _factor(self, at: Value, pair: Value, part: int) -> Value:
        """One of a row's adjacent factors ``pair`` and ``pair + 1`` in all lanes, or both where they are multiplied
        together: of integers those of part ``part``."""
        if self._factor_bytes == 2:
            return self.k.splat(I32X16, self.k.load(I32, at + pair * 2 + 4 * part))
        return self.k.splat(F32X16, self.k.load(F32, at + (pair + (1 - part if self._spec.halves else part)) * 4))

    def _pairs(self, at: Value, stride: int) -> list[Value]:
        """The cached numbers at ``at`` for each part of a pair; those of the second part are ``stride`` bytes later.

        Keys that are integers come as two pairs.
        """
        k, dtype = self.k, self._spec.dtype
        if self._spec.integers:
            return [k.load(I8.of(32), at + part * (2 * stride)).to(I16X32) for part in range(2)]
        if dtype == "bf16":
            pairs = k.load(I32X16, at)
            both = [(pairs & ~0xFFFF).as_bits(F32X16), (pairs << 16).as_bits(F32X16)]
            return both if self._dot2 is None else [pairs]
        return [load_elements(k, self._isa, dtype, 16, at + part * stride) for part in range(2)]

    def _add(self, total: Var, factor: Value, number: Value) -> None:
        k = self.k
        if self._spec.integers:
            total.set(self._isa.dot_pairs(k, total.get(), number, factor))
        elif self._dot2 is None:
            total.set(k.fma(factor, number, total.get()))
        else:
            total.set(self._dot2(k, total.get(), number, factor))

    def _span(self, item: _Item, first: Value, last: Value) -> tuple[Value, Value]:
        """The positions that queries at ``first`` … ``last`` see, from a whole chunk on; of a split's item its own."""
        k = self.k
        begin = k.smax(first - self._a["window"] + 1, 0) // CHUNK * CHUNK
        end = last + 1
        whole = item.split < 0
        begin = k.select(whole, begin, k.smax(begin, item.split * SPLIT))
        end = k.select(whole, end, k.smin(end, item.split * SPLIT + SPLIT))
        return begin, end

    def _finish(self, item: _Item, query: Value, out: Value, member: Value) -> None:
        """Stores a query's result, or for an item of one split its state in the partial slot."""
        k, dim = self.k, self._spec.head_dim
        whole = item.split < 0
        with k.when(whole):
            store_result(k, self._total.at(query), self._a["out"] + out, self._spec)
        with k.when(whole.equals(0)):
            slot = (item.partial * self._a["kv_heads"] + item.head) * self._spec.group + member
            target = self._a["partials"] + slot * (4 * self._spec.partial_floats)
            for i in range(0, 16 + dim, 16):
                k.store(k.load(F32X16, self._total.at(query) + 4 * i), target + 4 * i)

    # -- one split --------------------------------------------------------------------------------------------------

    def _split(self, item: _Item, tiling: AttentionTiling, low: Value, high: Value, end: Value) -> None:
        """Positions ``low`` … ``high`` of a split; the item's last split ends at ``end``."""
        k, size = self.k, tiling.queries
        for query in k.range(0, size):
            self._part.reset(query)
            if self._spec.powers:
                k.store(k.splat(F32X16, 0.0), self._sums + query * 64)
        self._list_tiles(item, low, high, self._keys)
        for start in k.range(low, high, CHUNK):
            tiles = _tiles(k, high - start)
            self._copy_list(self._keys_of_next_unit, self._next_keys)
            self._list_tiles(item, start + CHUNK, end, self._next_keys)
            self._score(tiling, tiles)
            self._hide(size, start)
            self._weigh(size)
            self._blend(tiling, tiles)
            self._copy_list(self._next_keys, self._keys)
        for query in k.range(0, size):
            if self._spec.powers:
                k.store(k.reduce_tree(k.load(F32X16, self._sums + query * 64), "add"), self._part.at(query) + 4)
            merge_state(k, self._total.at(query), self._part.at(query), self._spec)

    def _copy_list(self, source: Value, target: Value) -> None:
        for at in range(0, 8 * CHUNK // TILE, 8):
            self.k.store(self.k.load(PTR, source + at), target + at)

    def _list_first_tiles(self, item: _Item) -> None:
        """Lists the tiles that the next unit begins with, so that they are prefetched at the end of this one."""
        begin, end = self._span(item, item.position, item.position + item.rows - 1)
        self._list_tiles(item, begin, end, self._keys_of_next_unit)

    def _list_tiles(self, item: _Item, start: Value, end: Value, pointers: Value) -> None:
        """Lists the addresses of the keys of each tile of a chunk; its values are after them.

        Entries past ``end`` stay as they are.
        """
        k, a = self.k, self._a
        table = table_of(k, a["group"], item.sequence)
        for tile in k.range(0, _tiles(k, end - start)):
            position = start + tile * TILE
            block = block_of(k, table, position, a["block_size"])
            base = a["cache"] + block * a["block_bytes"] + item.head * a["head_bytes"]
            k.store(base + position % a["block_size"] // TILE * sum(self._tile_bytes), pointers + tile * 8)

    def _score(self, tiling: AttentionTiling, tiles: Value) -> None:
        """scores[query][t] for all positions of the chunk's tiles. Prefetches values and the next keys."""
        k, width = self.k, tiling.vectors
        tile = k.var(I64, 0)
        for vectors in (width, 1) if width > 1 else (1,):
            stop = tiles // vectors * vectors
            for at in k.range(tile.get(), stop, vectors):
                self._score_tiles(tiling.queries, at, vectors)
            tile.set(stop)

    def _score_tiles(self, size: int, first: Value, vectors: int) -> None:
        k, dim = self.k, self._spec.head_dim
        keys_ahead, values_ahead = (-(-size // dim) for size in self._tile_bytes)
        bases = [k.load(PTR, self._keys + (first + i) * 8) for i in range(vectors)]
        later = []
        if vectors > 1:
            later = [k.load(PTR, self._next_keys + (first + i) * 8) for i in range(vectors)]
        elif self._tilings[0].vectors > 1:  # a last chunk has few tiles
            later = [k.load(PTR, self._next_keys + i * 8) for i in range(CHUNK // TILE)]
        sums = [[k.var(self._sum_type, 0) for _ in range(vectors)] for _ in range(size)]
        line_bytes = TILE * element_bytes(self._spec.dtype)
        for pair in k.range(0, dim, 4 if self._spec.integers else 2):
            for base in bases:
                k.prefetch(base + self._tile_bytes[0] + pair * values_ahead)
            for base in later:
                k.prefetch(base + pair * keys_ahead)
            lines = [self._pairs(base + pair * line_bytes, line_bytes) for base in bases]
            for part in range(len(lines[0])):
                for query in range(size):
                    q = self._factor(self._q + query * dim * self._factor_bytes, pair, part)
                    for i in range(vectors):
                        self._add(sums[query][i], q, lines[i][part])
        for i, base in enumerate(bases):
            scale = self._scales(base, first + i) if self._spec.integers else None
            for query in range(size):
                self._store_score(query, first + i, sums[query][i].get(), scale)

    def _scales(self, keys: Value, tile: Value) -> Value:
        """The scales of a tile's keys; those of its values are kept for their weights."""
        k, (key_bytes, value_bytes) = self.k, self._tile_bytes
        last = keys + (key_bytes + value_bytes - SCALES_BYTES)
        k.store(widened_scales(k.load(I16X16, last)), self._value_scales + tile * 64)
        return widened_scales(k.load(I16X16, keys + (key_bytes - SCALES_BYTES)))

    def _store_score(self, query: int, tile: Value, score: Value, scale: Value | None) -> None:
        k = self.k
        if scale is not None:
            score = score.to(F32X16) * (scale * k.splat(F32X16, k.load(F32, self._query_factors + 4 * query)))
        if self._spec.softcap:
            cap = k.splat(F32X16, float_bits(self._a["softcap"]))
            score = tanh(k, score / cap) * (cap * LOG2_E if self._spec.powers else cap)
        k.store(score, self._score_at(query, tile))

    def _score_at(self, query: Value | int, tile: Value | int) -> Value:
        return self._scores + query * (4 * CHUNK) + tile * 64

    def _hide(self, size: int, start: Value) -> None:
        """Sets the scores of hidden positions to −inf; skipped if every query sees the whole chunk."""
        k = self.k
        first, last, window = self._position(0), self._position(size - 1), self._a["window"]
        with k.when((first < start + (CHUNK - 1)) | (start <= last - window)):
            for query in k.range(0, size):
                position = self._position(query)
                oldest = k.smax(position - window, -1)
                for tile in range(CHUNK // TILE):
                    at = k.splat(I32X16, (start + tile * TILE).to(I32)) + self._lanes
                    seen = (at <= k.splat(I32X16, position.to(I32))) & (at > k.splat(I32X16, oldest.to(I32)))
                    score = self._score_at(query, tile)
                    k.store(k.select(seen, k.load(F32X16, score), k.splat(F32X16, MASKED)), score)

    def _weigh(self, size: int) -> None:
        """Turns the scores into weights, and computes the factor that rescales each query's earlier sums."""
        k = self.k
        for query in k.range(0, size):
            state, scores = self._part.at(query), self._scores_of(query)
            top = k.fmax(k.fmax(scores[0], scores[1]), k.fmax(scores[2], scores[3]))
            old = k.load(F32, state)
            new = k.fmax(k.reduce_tree(top, "fmax"), old)
            k.store(new, state)
            k.store(old - new, self._gaps + query * 4)
        k.store(self._exp(k.load(F32X16, self._gaps)), self._corrections)
        for query in k.range(0, size):
            state, scores = self._part.at(query), self._scores_of(query)
            top16 = k.splat(F32X16, k.load(F32, state))
            weights = [self._exp(s - top16) for s in scores]
            if self._spec.integers:
                scaled = [w * k.load(F32X16, self._value_scales + 64 * i) for i, w in enumerate(weights)]
                k.store(self._store_integers(scaled, self._score_at(query, 0)), self._weight_factors + query * 4)
            else:
                for i, w in enumerate(weights):
                    k.store(self._factors(w), self._score_at(query, 0) + i * (16 * self._factor_bytes))
            total, correction = (weights[0] + weights[1]) + (weights[2] + weights[3]), self._corrections + query * 4
            if self._spec.powers:
                sums, factor = self._sums + query * 64, k.splat(F32X16, k.load(F32, correction))
                k.store(k.fma(k.load(F32X16, sums), factor, total), sums)
            else:
                total = k.reduce_tree(total, "add")
                k.store(k.fma(k.load(F32, state + 4), k.load(F32, correction), total), state + 4)

    def _exp(self, x: Value) -> Value:
        return exp2_below_0(self.k, x, LEAST_POWER) if self._spec.powers else exp(self.k, x)

    def _scores_of(self, query: Value) -> list[Value]:
        return [self.k.load(F32X16, self._score_at(query, i)) for i in range(CHUNK // TILE)]

    def _blend(self, tiling: AttentionTiling, tiles: Value) -> None:
        """Rescales the outputs and adds the weighted values of the chunk's tiles, a few vectors at a time."""
        k, dim, size, vectors = self.k, self._spec.head_dim, tiling.queries, tiling.vectors
        while (dim // 16) % vectors:
            vectors -= 1
        if self._spec.dtype == "k8v4" and vectors % 2:
            vectors = 2  # of the same bytes
        for first in k.range(0, dim, 16 * vectors):
            if self._spec.integers:
                sums = [[k.var(I32X16, 0) for _ in range(vectors)] for _ in range(size)]
            else:
                sums = [[k.var(F32X16, v) for v in self._rescaled(query, first, vectors)] for query in range(size)]
            for tile in k.range(0, tiles):
                values = k.load(PTR, self._keys + tile * 8) + self._tile_bytes[0]
                self._blend_tile(sums, values, tile, first, vectors)
            for query in range(size):
                for i, v in enumerate(self._blended(query, first, sums[query])):
                    k.store(v, self._part.out(query) + first * 4 + 64 * i)

    def _blended(self, query: int, first: Value, sums: list[Var]) -> list[Value]:
        """Outputs from value ``first`` on. Those of integers were not rescaled before the sums."""
        k, values = self.k, [each.get() for each in sums]
        if not self._spec.integers:
            return values
        factor = k.splat(F32X16, k.load(F32, self._weight_factors + 4 * query))
        before = self._rescaled(query, first, len(sums))
        return [k.fma(v.to(F32X16), factor, old) for v, old in zip(values, before, strict=True)]

    def _rescaled(self, query: int, first: Value, vectors: int) -> list[Value]:
        """Outputs from value ``first`` on, rescaled."""
        k = self.k
        wide = k.splat(F32X16, k.load(F32, self._corrections + 4 * query))
        rescaled = [k.load(F32X16, self._part.out(query) + first * 4 + 64 * i) * wide for i in range(vectors)]
        if self._spec.halves:
            return [k.select(k.abs(x) < LEAST_OUTPUT, k.splat(F32X16, 0.0), x) for x in rescaled]
        return rescaled

    def _blend_tile(self, sums: list[list[Var]], values: Value, tile: Value, first: Value, vectors: int) -> None:
        k, row_bytes = self.k, self._spec.head_dim * element_bytes(self._spec.dtype)
        column_bytes = element_bytes(self._spec.dtype) * paired(self._spec.dtype)
        for pair in k.range(0, TILE, 2):
            line = values + pair * row_bytes + first * column_bytes
            if self._spec.dtype == "k8v4":
                loaded = self._v4_pairs(values, pair, first, vectors)
            elif self._spec.integers:
                loaded = [[k.load(I8.of(32), line + 32 * i).to(I16X32)] for i in range(vectors)]
            else:
                loaded = [self._pairs(line + 16 * column_bytes * i, row_bytes) for i in range(vectors)]
            for part in range(len(loaded[0])):
                for query, row in enumerate(sums):
                    weights = self._score_at(query, 0) + tile * (TILE * self._factor_bytes)
                    weight = self._factor(weights, pair, part)
                    for i, numbers in enumerate(loaded):
                        self._add(row[i], weight, numbers[part])

    def _v4_pairs(self, values: Value, pair: Value, first: Value, vectors: int) -> list[list[Value]]:
        """Values of 4 bits from ``first`` on, of two positions: step · code + 4 · minimum."""
        k, dim = self.k, self._spec.head_dim
        codes = values + pair // 2 * dim + first
        numbers = values + TILE // 2 * dim + pair // 2 * (4 * dim // VALUE_GROUP) + first // VALUE_GROUP * 4
        found = []
        for group in range(vectors // 2):
            both = k.load(I8.of(32), codes + VALUE_GROUP * group).to(I16X32, unsigned=True)
            pairs = k.splat(I32X16, k.load(I32, numbers + 4 * group)).as_bits(I16X32)
            minimum = k.shift_right_signed(pairs & ~0xFF, 8 - (MINIMUM_UNIT.bit_length() - 1))
            found += [[part * (pairs & 0xFF) + minimum] for part in (both & 0xF, both >> 4)]
        return found
