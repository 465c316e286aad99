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

Work comes as **items**: some adjacent rows of one sequence. A unit is an item and a KV head; all query heads that share
the KV head are done together. A long context with few rows becomes several items, each leaving one split's (m, l, o)
for ``merge_kernel``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from twofold.kernels.cache import KV_BYTES, TILE, KVType, load_elements
from twofold.kernels.ir import Kernel, Value, Var
from twofold.kernels.isa import Isa
from twofold.kernels.math import exp, tanh
from twofold.kernels.rows import float_bits
from twofold.kernels.signature import KERNEL_PARAMETERS, Arguments, Step, step_count, step_pointer
from twofold.kernels.types import F32, F32X16, I32, I32X16, I64, PTR

CHUNK: Final = 64
SPLIT: Final = 256
NOTHING: Final = -1e30
MASKED: Final = float("-inf")

ITEM_INTS: Final = 8
"""int32 fields of an item: sequence, first row, rows, its first row's position, split (−1: all), partial slot."""
MERGE_INTS: Final = 4
"""int32 fields of a merge: row, first partial slot, partials."""

ATTENTION_FIELDS: Final = (
    "q", "q_stride", "out", "out_stride", "cache", "block_bytes", "head_bytes", "block_size", "kv_heads", "scale",
    "window", "softcap", "partials",
)  # fmt: skip
ATTENTION_POINTERS: Final = frozenset({"q", "out", "cache", "partials"})


@dataclass(frozen=True, slots=True)
class AttentionKernelSpec:
    """What distinguishes attention kernels. ``group`` query heads share a KV head."""

    head_dim: int
    group: int
    dtype: KVType
    softcap: bool

    @property
    def name(self) -> str:
        cap = "_softcap" if self.softcap else ""
        return f"attention_d{self.head_dim}_g{self.group}_{self.dtype}{cap}"

    @property
    def partial_floats(self) -> int:
        """Floats of one query head's partial: m, l (a line of their own), o."""
        return 16 + self.head_dim


@dataclass(frozen=True, slots=True)
class AttentionTiling:
    """Queries a tile takes at once, 16-position vectors of scores, 16-value vectors of outputs."""

    queries: tuple[int, ...]
    score_vectors: int
    out_vectors: int

    @staticmethod
    def of(isa: Isa) -> AttentionTiling:
        if isa.registers >= 32:
            return AttentionTiling((6, 3, 2, 1), 4, 4)
        return AttentionTiling((3, 2, 1), 1, 1)


def scratch_floats(head_dim: int) -> int:
    """Floats of scratch a worker needs: scaled queries, scores, and two outputs with their m and l for six queries."""
    return 6 * (head_dim + CHUNK + 2 * (16 + head_dim)) + 64


class _State:
    """m, l and o of the queries of a tile, in scratch: a line for m and l, then the outputs."""

    def __init__(self, k: Kernel, base: Value, head_dim: int) -> None:
        self._k = k
        self._base = base
        self._bytes = 4 * (16 + head_dim)

    def at(self, query: int) -> Value:
        return self._base + query * self._bytes

    def out(self, query: int) -> Value:
        return self.at(query) + 64

    def reset(self, query: int, head_dim: int) -> None:
        k = self._k
        k.store(k.splat(F32, NOTHING), self.at(query))
        k.store(k.splat(F32, 0.0), self.at(query) + 4)
        for i in range(0, head_dim, 16):
            k.store(k.splat(F32X16, 0.0), self.out(query) + 4 * i)


def merge_state(k: Kernel, total: Value, part: Value, head_dim: int) -> None:
    """(M, L, O) at ``total`` ← merged with (m, l, o) at ``part``."""
    old, new = k.load(F32, total), k.load(F32, part)
    top = k.fmax(old, new)
    keep, take = exp(k, old - top), exp(k, new - top)
    k.store(top, total)
    k.store(k.fma(k.load(F32, part + 4), take, k.load(F32, total + 4) * keep), total + 4)
    keep16, take16 = k.splat(F32X16, keep), k.splat(F32X16, take)
    for i in range(0, head_dim, 16):
        at = 64 + 4 * i
        k.store(k.fma(k.load(F32X16, part + at), take16, k.load(F32X16, total + at) * keep16), total + at)


def store_result(k: Kernel, total: Value, out: Value, head_dim: int) -> None:
    """out = O / L."""
    weight = k.splat(F32X16, k.load(F32, total + 4))
    for i in range(0, head_dim, 16):
        k.store(k.load(F32X16, total + 64 + 4 * i) / weight, out + 4 * i)


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
        self._tiling = AttentionTiling.of(isa)
        self.k = k = Kernel(spec.name, KERNEL_PARAMETERS)
        self._a = Arguments(k, ATTENTION_FIELDS, ATTENTION_POINTERS)
        queries = max(self._tiling.queries)
        self._q = k.args[4]
        self._scores = self._q + 4 * queries * spec.head_dim
        self._part = _State(k, self._scores + 4 * queries * CHUNK, spec.head_dim)
        self._total = _State(k, self._part.at(queries), spec.head_dim)
        self._lanes = k.constants(I32X16, range(16))

    def generate(self) -> Kernel:
        k = self.k
        heads = self._a["kv_heads"]
        for unit in k.range(k.args[2], k.args[3]):
            item = self._item(unit // heads, unit % heads)
            queries = item.rows * self._spec.group
            first = k.var(I64, 0)
            for size in self._tiling.queries:
                stop = first.get() + (queries - first.get()) // size * size
                for at in k.range(first.get(), stop, size):
                    self._tile(item, at, size)
                first.set(stop)
        k.ret()
        return k

    def _item(self, index: Value, head: Value) -> _Item:
        k = self.k
        at = step_pointer(k, Step.ITEM_LIST) + index * (4 * ITEM_INTS)
        sequence, first_row, rows, position, split, partial = (k.load(I32, at + 4 * i).to(I64) for i in range(6))
        return _Item(sequence, first_row, rows, position, split, partial, head)

    def _tile(self, item: _Item, first: Value, size: int) -> None:
        """Attention of ``size`` queries: query ``first + i`` is row (first + i) / group, head (first + i) % group."""
        k, dim, group = self.k, self._spec.head_dim, self._spec.group
        rows = [(first + i) // group for i in range(size)]
        columns = [(item.head * group + (first + i) % group) * (4 * dim) for i in range(size)]
        positions = [item.position + row for row in rows]
        for i in range(size):
            self._load_query(i, (item.first_row + rows[i]) * self._a["q_stride"] + columns[i])
            self._total.reset(i, dim)
        begin, end = self._span(item, positions)
        for split in k.range(begin // SPLIT, (end + (SPLIT - 1)) // SPLIT):
            low = k.smax(begin, split * SPLIT)
            high = k.smin(end, split * SPLIT + SPLIT)
            self._split(item, positions, low, high)
        for i in range(size):
            out = (item.first_row + rows[i]) * self._a["out_stride"] + columns[i]
            self._finish(item, i, out, (first + i) % group)

    def _load_query(self, index: int, offset: Value) -> None:
        k = self.k
        scale = k.splat(F32X16, float_bits(self._a["scale"]))
        for i in range(0, self._spec.head_dim, 16):
            target = self._q + 4 * (index * self._spec.head_dim + i)
            k.store(k.load(F32X16, self._a["q"] + offset + 4 * i) * scale, target)

    def _span(self, item: _Item, positions: list[Value]) -> tuple[Value, Value]:
        """The positions that the tile's queries can see, from a whole chunk on: all of them, or one split's."""
        k = self.k
        begin = k.smax(positions[0] - self._a["window"] + 1, 0) // CHUNK * CHUNK
        end = positions[-1] + 1
        whole = item.split < 0
        begin = k.select(whole, begin, k.smax(begin, item.split * SPLIT))
        end = k.select(whole, end, k.smin(end, item.split * SPLIT + SPLIT))
        return begin, end

    def _finish(self, item: _Item, query: int, out: Value, member: Value) -> None:
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

    def _split(self, item: _Item, positions: list[Value], low: Value, high: Value) -> None:
        k, dim = self.k, self._spec.head_dim
        for query in range(len(positions)):
            self._part.reset(query, dim)
        for start in k.range(low, high, CHUNK):
            tiles = (k.smin(high - start, CHUNK) + (TILE - 1)) // TILE
            keys = self._tile_pointers(item, start, tiles)
            next_tiles = (k.smin(high - start - CHUNK, CHUNK) + (TILE - 1)) // TILE
            self._score(len(positions), keys, tiles, self._tile_pointers(item, start + CHUNK, next_tiles, keys))
            self._weigh(positions, start, tiles)
            self._blend(len(positions), keys, tiles)
        for query in range(len(positions)):
            merge_state(k, self._total.at(query), self._part.at(query), dim)

    def _tile_pointers(self, item: _Item, start: Value, tiles: Value, default: Value | None = None) -> Value:
        """A list of where the keys of each 16 positions begin, in a buffer; the values lie ``head_bytes / 2`` on.

        Past ``tiles`` the list is as ``default``, or left open.
        """
        k, a = self.k, self._a
        pointers = k.buffer(8 * CHUNK // TILE)
        if default is not None:
            for at in range(0, 8 * CHUNK // TILE, 8):
                k.store(k.load(PTR, default + at), pointers + at)
        row = step_pointer(k, Step.TABLES) + item.sequence * step_count(k, Step.TABLE_STRIDE) * 4
        tile_bytes = TILE * self._spec.head_dim * KV_BYTES[self._spec.dtype]
        for tile in k.range(0, tiles):
            position = start + tile * TILE
            block = k.load(I32, row + position // a["block_size"] * 4).to(I64)
            base = a["cache"] + block * a["block_bytes"] + item.head * a["head_bytes"]
            k.store(base + position % a["block_size"] // TILE * tile_bytes, pointers + tile * 8)
        return pointers

    def _score(self, size: int, keys: Value, tiles: Value, coming: Value) -> None:
        """scores[query][t] for all positions of the chunk's tiles. Keys of the ``coming`` tiles are asked for."""
        k, width = self.k, self._tiling.score_vectors
        tile = k.var(I64, 0)
        for vectors in (width, 1) if width > 1 else (1,):
            stop = tiles // vectors * vectors
            for at in k.range(tile.get(), stop, vectors):
                self._score_tiles(size, keys, at, vectors, coming)
            tile.set(stop)

    def _score_tiles(self, size: int, keys: Value, first: Value, vectors: int, coming: Value) -> None:
        k, dim, line_bytes = self.k, self._spec.head_dim, TILE * KV_BYTES[self._spec.dtype]
        bases = [k.load(PTR, keys + (first + i) * 8) for i in range(vectors)]
        later = [base + (self._a["head_bytes"] >> 1) for base in bases]
        later += [k.load(PTR, coming + 8 * i) for i in range(vectors)] if vectors > 1 else []
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

    def _score_at(self, query: int, tile: Value | int) -> Value:
        base = self._scores + 4 * CHUNK * query
        return base + (tile * 64 if isinstance(tile, Value) else 64 * tile)

    def _weigh(self, positions: list[Value], start: Value, tiles: Value) -> None:
        """Masks the scores, turns them into weights, and rescales what was summed before."""
        k, dim = self.k, self._spec.head_dim
        for query, position in enumerate(positions):
            state = self._part.at(query)
            scores = [self._visible(query, i, position, start, tiles) for i in range(CHUNK // TILE)]
            top = k.fmax(k.fmax(scores[0], scores[1]), k.fmax(scores[2], scores[3]))
            old = k.load(F32, state)
            new = k.fmax(k.reduce_tree(top, "fmax"), old)
            correction = exp(k, old - new)
            weights = [exp(k, s - k.splat(F32X16, new)) for s in scores]
            for i, w in enumerate(weights):
                k.store(w, self._score_at(query, i))
            total = k.reduce_tree((weights[0] + weights[1]) + (weights[2] + weights[3]), "add")
            k.store(new, state)
            k.store(k.fma(k.load(F32, state + 4), correction, total), state + 4)
            wide = k.splat(F32X16, correction)
            for i in range(0, dim, 16):
                at = self._part.out(query) + 4 * i
                k.store(k.load(F32X16, at) * wide, at)

    def _visible(self, query: int, tile: int, position: Value, start: Value, tiles: Value) -> Value:
        """The scores of one 16-lane tile, −inf where the query may not see or nothing was computed."""
        k = self.k
        at = k.splat(I32X16, (start + tile * TILE).to(I32)) + self._lanes
        last = k.smin(position, start + tiles * TILE - 1)
        first = position - self._a["window"]
        seen = (at <= k.splat(I32X16, last.to(I32))) & (at > k.splat(I32X16, k.smax(first, -1).to(I32)))
        return k.select(seen, k.load(F32X16, self._score_at(query, tile)), k.splat(F32X16, MASKED))

    def _blend(self, size: int, keys: Value, tiles: Value) -> None:
        """Adds the weighted values of the chunk's tiles to the outputs, a few 16-value vectors at a time."""
        k, dim = self.k, self._spec.head_dim
        vectors = self._tiling.out_vectors
        while (dim // 16) % vectors:
            vectors -= 1
        for first in k.range(0, dim, 16 * vectors):
            sums = [
                [k.var(F32X16, k.load(F32X16, self._part.out(query) + first * 4 + 64 * i)) for i in range(vectors)]
                for query in range(size)
            ]
            for tile in k.range(0, tiles):
                values = k.load(PTR, keys + tile * 8) + (self._a["head_bytes"] >> 1)
                self._blend_tile(sums, values, tile, first, vectors)
            for query in range(size):
                for i in range(vectors):
                    k.store(sums[query][i].get(), self._part.out(query) + first * 4 + 64 * i)

    def _blend_tile(self, sums: list[list[Var]], values: Value, tile: Value, first: Value, vectors: int) -> None:
        k, size_bytes = self.k, KV_BYTES[self._spec.dtype]
        for t in k.range(0, TILE):
            line = values + (t * self._spec.head_dim + first) * size_bytes
            loaded = [
                load_elements(k, self._isa, self._spec.dtype, 16, line + 16 * size_bytes * i) for i in range(vectors)
            ]
            for query, row in enumerate(sums):
                weight = k.splat(F32X16, k.load(F32, self._scores + 4 * CHUNK * query + tile * 64 + t * 4))
                for i, value in enumerate(loaded):
                    row[i].set(k.fma(weight, value, row[i].get()))


def merge_kernel(spec: AttentionKernelSpec) -> Kernel:
    """Joins the partials of rows whose splits were done apart. A unit is a merge and a query head."""
    k = Kernel(f"merge_d{spec.head_dim}_g{spec.group}", KERNEL_PARAMETERS)
    a = Arguments(k, ATTENTION_FIELDS, ATTENTION_POINTERS)
    heads = a["kv_heads"] * spec.group
    total = _State(k, k.args[4], spec.head_dim)
    for unit in k.range(k.args[2], k.args[3]):
        head = unit % heads
        at = step_pointer(k, Step.MERGE_LIST) + unit // heads * (4 * MERGE_INTS)
        row, first, count = (k.load(I32, at + 4 * i).to(I64) for i in range(3))
        total.reset(0, spec.head_dim)
        for index in k.range(first, first + count):
            part = a["partials"] + (index * heads + head) * (4 * spec.partial_floats)
            merge_state(k, total.at(0), part, spec.head_dim)
        store_result(k, total.at(0), a["out"] + row * a["out_stride"] + head * (4 * spec.head_dim), spec.head_dim)
    k.ret()
    return k
