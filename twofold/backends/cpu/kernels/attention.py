"""Attention over the paged cache, for any mix of rows: one kernel for a prompt's rows and for one new token.

The scores are never held whole. For one query, whatever the company:

    positions are cut at fixed places: splits of 256, chunks of 64 in a split, 16 lanes at a time
    score[t] = Σ_d q[d]·scale · k[t][d]                   one fma chain, ascending d
    for each chunk of a split, ascending:                 (m, l, o start at −1e30, 0, 0)
        m' = max(m, scores);  c = exp(m − m');  p = exp(score − m')
        l = l·c + Σ p;  o = o·c, then o = fma(p[t], v[t], o) for ascending t
    splits are merged in ascending order:  M' = max(M, m);  (L, O) = (L, O)·exp(M − M') + (l, o)·exp(m − M')
    result = O / L

A position that the query may not see has p = 0 exactly, and a chunk or split of nothing but those changes nothing, so
where a kernel starts and stops is free (Milakov & Gimelshein 2018 for the running maximum; Dao et al. for the splits).
Of a block table nothing is read before the chunk of the first position that a window leaves visible; entries from there
on must be blocks of the cache, and what is hidden in them must be finite numbers, nothing more.

Work comes as **items**: some adjacent rows of one sequence. A unit is an item and a KV head; all query heads that share
the KV head are done together. A long context with few rows becomes several items, each leaving one split's (m, l, o)
for ``split.merge_kernel``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from twofold.backends.cpu.kernels.cache import TILE, block_of, element_bytes, load_elements, table_of
from twofold.backends.cpu.kernels.ir import F32, F32X16, I32, I32X16, I64, PTR, Kernel, Value, Var
from twofold.backends.cpu.kernels.isa import Isa
from twofold.backends.cpu.kernels.math import exp, tanh
from twofold.backends.cpu.kernels.rows import float_bits
from twofold.backends.cpu.kernels.signature import KERNEL_PARAMETERS, KernelArguments, StepFields, step_pointer
from twofold.backends.cpu.kernels.split import (
    ATTENTION_FIELDS,
    ATTENTION_POINTERS,
    SPLIT,
    AttentionKernelSpec,
    QueryStates,
    merge_state,
    store_result,
)
from twofold.core.model import ATTENTION_CHUNK

CHUNK: Final = ATTENTION_CHUNK
MASKED: Final = float("-inf")
MAX_QUERIES: Final = 12
"""Queries of the largest tile. No more than 16: what rescales their sums is computed in the lanes of one vector."""

ITEM_INTS: Final = 8
"""int32 fields of an item: sequence, first row, rows, its first row's position, split (−1: all), partial slot."""


@dataclass(frozen=True, slots=True)
class AttentionTiling:
    """Queries that a tile takes at once, and 16-lane vectors of scores or outputs that it sums for each of them."""

    queries: int
    vectors: int

    @staticmethod
    def of(isa: Isa) -> tuple[AttentionTiling, ...]:
        """Tiles for any number of queries, the best first. They fill the registers with sums."""
        if isa.registers >= 32:
            sizes = ((MAX_QUERIES, 2), (6, 4), (3, 4), (2, 4), (1, 4))
            return tuple(AttentionTiling(*size) for size in sizes)
        return tuple(AttentionTiling(queries, 1) for queries in (3, 2, 1))


def scratch_floats(head_dim: int) -> int:
    """Floats of scratch a worker needs: scaled queries, scores, and two outputs with their m and l, for each query."""
    return MAX_QUERIES * (head_dim + CHUNK + 2 * (16 + head_dim)) + 64


def _tiles(k: Kernel, positions: Value) -> Value:
    """Returns how many tiles of a chunk ``positions`` positions begin."""
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
        self._tilings = AttentionTiling.of(isa)
        self.k = k = Kernel(spec.name, KERNEL_PARAMETERS)
        self._a = KernelArguments(k, ATTENTION_FIELDS, ATTENTION_POINTERS)
        queries = self._tilings[0].queries
        self._q = k.args[4]
        self._scores = self._q + 4 * queries * spec.head_dim
        self._part = QueryStates(k, self._scores + 4 * queries * CHUNK, spec.head_dim)
        self._total = QueryStates(k, self._part.at(queries), spec.head_dim)
        self._lanes = k.constants(I32X16, range(16))
        self._positions = k.buffer(8 * MAX_QUERIES)
        self._gaps, self._corrections = k.buffer(64), k.buffer(64)
        k.store(k.splat(F32X16, 0.0), self._gaps)
        self._keys, self._coming = k.buffer(8 * CHUNK // TILE), k.buffer(8 * CHUNK // TILE)

    def generate(self) -> Kernel:
        k = self.k
        heads = self._a["kv_heads"]
        for unit in k.range(k.args[2], k.args[3]):
            item = self._item(unit // heads, unit % heads)
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
        at = step_pointer(k, StepFields.ITEM_LIST) + index * (4 * ITEM_INTS)
        sequence, first_row, rows, position, split, partial = (k.load(I32, at + 4 * i).to(I64) for i in range(6))
        return _Item(sequence, first_row, rows, position, split, partial, head)

    def _tile(self, item: _Item, first: Value, tiling: AttentionTiling) -> None:
        """Attention of the item's queries from ``first`` on, as many as the tile takes."""
        k, dim, size = self.k, self._spec.head_dim, tiling.queries
        for i in k.range(0, size):
            row, _, column = self._place(item, first + i)
            k.store(item.position + row, self._positions + i * 8)
            self._load_query(i, (item.first_row + row) * self._a["q_stride"] + column)
            self._total.reset(i, dim)
        begin, end = self._span(item, self._position(0), self._position(size - 1))
        for split in k.range(begin // SPLIT, (end + (SPLIT - 1)) // SPLIT):
            low = k.smax(begin, split * SPLIT)
            high = k.smin(end, split * SPLIT + SPLIT)
            self._split(item, tiling, low, high)
        for i in k.range(0, size):
            row, member, column = self._place(item, first + i)
            self._finish(item, i, (item.first_row + row) * self._a["out_stride"] + column, member)

    def _place(self, item: _Item, query: Value) -> tuple[Value, Value, Value]:
        """A query's row in the item, which of the KV head's query heads it is, and where that begins in a row."""
        row, member = query // self._spec.group, query % self._spec.group
        return row, member, (item.head * self._spec.group + member) * (4 * self._spec.head_dim)

    def _position(self, query: Value | int) -> Value:
        """The position of one of the tile's queries; they ascend."""
        return self.k.load(I64, self._positions + query * 8)

    def _load_query(self, index: Value, offset: Value) -> None:
        k = self.k
        scale = k.splat(F32X16, float_bits(self._a["scale"]))
        for i in range(0, self._spec.head_dim, 16):
            target = self._q + (index * self._spec.head_dim + i) * 4
            k.store(k.load(F32X16, self._a["q"] + offset + 4 * i) * scale, target)

    def _span(self, item: _Item, first: Value, last: Value) -> tuple[Value, Value]:
        """What queries at positions ``first`` … ``last`` can see, from a whole chunk on: all of it, or one split's."""
        k = self.k
        begin = k.smax(first - self._a["window"] + 1, 0) // CHUNK * CHUNK
        end = last + 1
        whole = item.split < 0
        begin = k.select(whole, begin, k.smax(begin, item.split * SPLIT))
        end = k.select(whole, end, k.smin(end, item.split * SPLIT + SPLIT))
        return begin, end

    def _finish(self, item: _Item, query: Value, out: Value, member: Value) -> None:
        """The result of a whole query, or its state into the partial slot."""
        k, dim = self.k, self._spec.head_dim
        whole = item.split < 0
        with k.when(whole):
            store_result(k, self._total.at(query), self._a["out"] + out, dim)
        with k.when(whole.equals(0)):
            slot = (item.partial * self._a["kv_heads"] + item.head) * self._spec.group + member
            target = self._a["partials"] + slot * (4 * self._spec.partial_floats)
            for i in range(0, 16 + dim, 16):
                k.store(k.load(F32X16, self._total.at(query) + 4 * i), target + 4 * i)

    # -- one split --------------------------------------------------------------------------------------------------

    def _split(self, item: _Item, tiling: AttentionTiling, low: Value, high: Value) -> None:
        k, dim, size = self.k, self._spec.head_dim, tiling.queries
        for query in k.range(0, size):
            self._part.reset(query, dim)
        self._list_tiles(item, low, high, self._keys)
        for start in k.range(low, high, CHUNK):
            tiles = _tiles(k, high - start)
            self._copy_list(self._keys, self._coming)
            self._list_tiles(item, start + CHUNK, high, self._coming)
            self._score(tiling, tiles)
            self._hide(size, start)
            self._weigh(size)
            self._blend(tiling, tiles)
            self._copy_list(self._coming, self._keys)
        for query in k.range(0, size):
            merge_state(k, self._total.at(query), self._part.at(query), dim)

    def _copy_list(self, source: Value, target: Value) -> None:
        for at in range(0, 8 * CHUNK // TILE, 8):
            self.k.store(self.k.load(PTR, source + at), target + at)

    def _list_tiles(self, item: _Item, start: Value, end: Value, pointers: Value) -> None:
        """Lists where the keys of each 16 positions of a chunk begin; the values lie ``head_bytes / 2`` on.

        Past ``end`` the list stays as it is.
        """
        k, a = self.k, self._a
        table = table_of(k, a["group"], item.sequence)
        tile_bytes = TILE * self._spec.head_dim * element_bytes(self._spec.dtype)
        for tile in k.range(0, _tiles(k, end - start)):
            position = start + tile * TILE
            block = block_of(k, table, position, a["block_size"])
            base = a["cache"] + block * a["block_bytes"] + item.head * a["head_bytes"]
            k.store(base + position % a["block_size"] // TILE * tile_bytes, pointers + tile * 8)

    def _score(self, tiling: AttentionTiling, tiles: Value) -> None:
        """scores[query][t] for all positions of the chunk's tiles. Keys of the coming tiles are asked for."""
        k, width = self.k, tiling.vectors
        tile = k.var(I64, 0)
        for vectors in (width, 1) if width > 1 else (1,):
            stop = tiles // vectors * vectors
            for at in k.range(tile.get(), stop, vectors):
                self._score_tiles(tiling.queries, at, vectors)
            tile.set(stop)

    def _score_tiles(self, size: int, first: Value, vectors: int) -> None:
        k, dim, line_bytes = self.k, self._spec.head_dim, TILE * element_bytes(self._spec.dtype)
        bases = [k.load(PTR, self._keys + (first + i) * 8) for i in range(vectors)]
        later = [base + (self._a["head_bytes"] >> 1) for base in bases]
        later += [k.load(PTR, self._coming + (first + i) * 8) for i in range(vectors)] if vectors > 1 else []
        sums = [[k.var(F32X16, 0.0) for _ in range(vectors)] for _ in range(size)]
        for pair in k.range(0, dim, 2):
            for base in later:
                k.prefetch(base + pair * line_bytes)
            for d in (pair, pair + 1):
                lines = [load_elements(k, self._isa, self._spec.dtype, 16, b + d * line_bytes) for b in bases]
                for query in range(size):
                    q = k.splat(F32X16, k.load(F32, self._q + d * 4 + 4 * query * dim))
                    for i in range(vectors):
                        sums[query][i].set(k.fma(q, lines[i], sums[query][i].get()))
        for query in range(size):
            for i in range(vectors):
                self._store_score(query, first + i, sums[query][i].get())

    def _store_score(self, query: int, tile: Value, score: Value) -> None:
        k = self.k
        if self._spec.softcap:
            cap = k.splat(F32X16, float_bits(self._a["softcap"]))
            score = tanh(k, score / cap) * cap
        k.store(score, self._score_at(query, tile))

    def _score_at(self, query: Value | int, tile: Value | int) -> Value:
        return self._scores + query * (4 * CHUNK) + tile * 64

    def _hide(self, size: int, start: Value) -> None:
        """Scores become −inf where a query may not see; chunks that all of the queries see whole are left alone."""
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
        """Turns the scores into weights, and finds what each query's earlier sums are to be multiplied by."""
        k = self.k
        for query in k.range(0, size):
            state, scores = self._part.at(query), self._scores_of(query)
            top = k.fmax(k.fmax(scores[0], scores[1]), k.fmax(scores[2], scores[3]))
            old = k.load(F32, state)
            new = k.fmax(k.reduce_tree(top, "fmax"), old)
            k.store(new, state)
            k.store(old - new, self._gaps + query * 4)
        k.store(exp(k, k.load(F32X16, self._gaps)), self._corrections)
        for query in k.range(0, size):
            state, scores = self._part.at(query), self._scores_of(query)
            top16 = k.splat(F32X16, k.load(F32, state))
            weights = [exp(k, s - top16) for s in scores]
            for i, w in enumerate(weights):
                k.store(w, self._score_at(query, i))
            total = k.reduce_tree((weights[0] + weights[1]) + (weights[2] + weights[3]), "add")
            k.store(k.fma(k.load(F32, state + 4), k.load(F32, self._corrections + query * 4), total), state + 4)

    def _scores_of(self, query: Value) -> list[Value]:
        return [self.k.load(F32X16, self._score_at(query, i)) for i in range(CHUNK // TILE)]

    def _blend(self, tiling: AttentionTiling, tiles: Value) -> None:
        """Rescales the outputs and adds the weighted values of the chunk's tiles, a few 16-value vectors at a time."""
        k, dim, size, vectors = self.k, self._spec.head_dim, tiling.queries, tiling.vectors
        while (dim // 16) % vectors:
            vectors -= 1
        for first in k.range(0, dim, 16 * vectors):
            sums = [[k.var(F32X16, v) for v in self._rescaled(query, first, vectors)] for query in range(size)]
            for tile in k.range(0, tiles):
                values = k.load(PTR, self._keys + tile * 8) + (self._a["head_bytes"] >> 1)
                self._blend_tile(sums, values, tile, first, vectors)
            for query in range(size):
                for i in range(vectors):
                    k.store(sums[query][i].get(), self._part.out(query) + first * 4 + 64 * i)

    def _rescaled(self, query: int, first: Value, vectors: int) -> list[Value]:
        """Outputs from value ``first`` on, times the query's correction."""
        k = self.k
        wide = k.splat(F32X16, k.load(F32, self._corrections + 4 * query))
        return [k.load(F32X16, self._part.out(query) + first * 4 + 64 * i) * wide for i in range(vectors)]

    def _blend_tile(self, sums: list[list[Var]], values: Value, tile: Value, first: Value, vectors: int) -> None:
        k, size_bytes = self.k, element_bytes(self._spec.dtype)
        for t in k.range(0, TILE):
            line = values + (t * self._spec.head_dim + first) * size_bytes
            loaded = [
                load_elements(k, self._isa, self._spec.dtype, 16, line + 16 * size_bytes * i) for i in range(vectors)
            ]
            for query, row in enumerate(sums):
                weight = k.splat(F32X16, k.load(F32, self._scores + 4 * CHUNK * query + tile * 64 + t * 4))
                for i, value in enumerate(loaded):
                    row[i].set(k.fma(weight, value, row[i].get()))
