"""The reference backend: the decoder on float32 NumPy arrays, slow and easy to check; others are compared with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from twofold.backends.base import Backend, LoadableModel, RunnerSizes
from twofold.backends.dequantize import dequantize
from twofold.backends.drafting import DraftModel
from twofold.backends.kv_codes import bfloat16, code_8, code_v4, finite, key_factors, query_codes, spread, spread_back
from twofold.backends.runner import HostRunner
from twofold.backends.sampling.base import NumpyRows
from twofold.backends.sampling.sampler import Sampler
from twofold.core.errors import ResourceError
from twofold.core.kv_layout import INTEGER_TYPES, KVType, spread_block
from twofold.core.model import Activation, GroupedAttention, KVGroup, ModelSpec, RopeSpec
from twofold.core.step import BlockMove, MoveKind
from twofold.host.machine import read_cpu, read_memory
from twofold.models.bind import ModelWeights
from twofold.models.decoder import forward
from twofold.models.ops import Batch, Forward, TensorRef, Wanted
from twofold.models.rope import rope_table

Array: TypeAlias = NDArray[np.float32]
ROUNDED: Final[Mapping[KVType, type[np.floating]]] = {"f16": np.float16}
"""Arrays of cached values that are not float32. Those of bfloat16 are rounded before, of integers coded and decoded."""

NO_FACTORS: Final[Mapping[int, Array]] = {}


class PagedCache:
    """K and V in blocks: for each layer two arrays [blocks of its group, block_size, kv_heads · head_dim].

    ``blocks`` and ``host_slots`` count those of each group. ``group_of`` maps a layer to its group, ``kv_heads`` to its
    number of heads.
    """

    def __init__(
        self,
        groups: Sequence[KVGroup],
        blocks: Sequence[int],
        block_size: int,
        kv_type: KVType = "f32",
        host_slots: Sequence[int] = (),
    ) -> None:
        dtype = ROUNDED.get(kv_type, np.float32)
        self.block_size, kinds = block_size, [group.paged for group in groups]
        self.halves, self.integers, self.kv_type = kv_type == "bf16", kv_type in INTEGER_TYPES, kv_type
        self.kv_heads = {i: kind.kv_heads for kind, g in zip(kinds, groups, strict=True) for i in g.layers}
        shapes = [
            (2, len(group.layers), block_size, kind.kv_heads * kind.head_dim)
            for kind, group in zip(kinds, groups, strict=True)
        ]
        self._blocks = [np.zeros((n, *shape), dtype) for n, shape in zip(blocks, shapes, strict=True)]
        slots = host_slots or [0] * len(shapes)
        self._slots = [np.zeros((n, *shape), dtype) for n, shape in zip(slots, shapes, strict=True)]
        self.group_of = {layer: number for number, group in enumerate(groups) for layer in group.layers}
        self.k, self.v = (
            {
                layer: store[:, both, place]
                for group, store in zip(groups, self._blocks, strict=True)
                for place, layer in enumerate(group.layers)
            }
            for both in (0, 1)
        )

    def move(self, moves: Sequence[BlockMove]) -> None:
        """Moves blocks, one after another."""
        for move in moves:
            blocks, slots = self._blocks[move.group], self._slots[move.group]
            source = slots if move.kind is MoveKind.IN else blocks
            target = slots if move.kind is MoveKind.OUT else blocks
            target[move.target] = source[move.source]

    def block_nbytes(self, group: int) -> int:
        return int(self._blocks[group][0].nbytes)

    def read_blocks(self, group: int, blocks: Sequence[int], into: memoryview) -> None:
        store = self._blocks[group]
        np.frombuffer(into, store.dtype).reshape(len(blocks), *store.shape[1:])[:] = store[blocks]

    def write_blocks(self, group: int, blocks: Sequence[int], content: memoryview) -> None:
        store = self._blocks[group]
        store[blocks] = np.frombuffer(content, store.dtype).reshape(len(blocks), *store.shape[1:])


class NumpyOps:
    """Ops over dequantised ``weights`` (float32 [rows, columns] by tensor name) for one batch.

    Values that a kernel may round differently are float32 here; a cache rounds K and V as the kernels' does, and with
    bfloat16 attention rounds scaled queries and weights too. With integers it rounds queries, not weights. ``factors``
    are those of layers whose keys have a bias.
    """

    def __init__(
        self, weights: Mapping[str, Array], cache: PagedCache, batch: Batch, factors: Mapping[int, Array] = NO_FACTORS
    ) -> None:
        self._weights = weights
        self._cache = cache
        self._batch = batch
        self._factors = factors

    def embed(self, table: TensorRef, scale: float) -> Array:
        return self._rows(table)[self._batch.tokens] * np.float32(scale)

    def rms_norm(self, x: Array, weight: TensorRef, eps: float) -> Array:
        mean = np.mean(x * x, axis=-1, keepdims=True, dtype=np.float32)
        size: Array = np.sqrt(mean + np.float32(eps))
        scaled: Array = x / size * self._rows(weight)[0]
        return scaled

    def head_norm(self, x: Array, weight: TensorRef, eps: float, heads: int) -> Array:
        return self.rms_norm(x.reshape(len(x), heads, -1), weight, eps).reshape(x.shape)

    def linear(self, x: Array, weight: TensorRef, bias: TensorRef | None = None) -> Array:
        y = x @ self._rows(weight).T
        return y if bias is None else y + self._rows(bias)[0]

    def add(self, x: Array, y: Array) -> Array:
        return x + y

    def gated(self, gate: Array, up: Array, activation: Activation) -> Array:
        return (silu(gate) if activation == "silu" else gelu_tanh(gate)) * up

    def rope(self, x: Array, heads: int, rope: RopeSpec) -> Array:
        table = rope_table(rope, int(self._batch.positions.max()) + 1)[self._batch.positions]
        split = x.reshape(len(x), heads, -1)
        return rotate(split, table[:, None, 0], table[:, None, 1], rope).reshape(x.shape)

    def store_kv(self, layer: int, k: Array, v: Array) -> None:
        batch, size = self._batch, self._cache.block_size
        sequence = np.repeat(np.arange(len(batch.row_starts) - 1), np.diff(batch.row_starts))
        blocks = self._tables(layer)[sequence, batch.positions // size]
        if self._cache.integers:
            k_heads, v_heads = (x.reshape(len(x), self._cache.kv_heads[layer], -1) for x in (k, v))
            code = code_8 if self._cache.kv_type == "q8" else code_v4
            k = code_8(spread(finite(k_heads / self._factors.get(layer, np.float32(1))))).decoded().reshape(k.shape)
            v = code(spread(finite(v_heads))).decoded().reshape(v.shape)
        self._cache.k[layer][blocks, batch.positions % size] = self._rounded(k)
        self._cache.v[layer][blocks, batch.positions % size] = self._rounded(v)

    def attention(self, layer: int, q: Array, spec: GroupedAttention) -> Array:
        mixed = np.empty_like(q)
        for sequence, (start, stop) in enumerate(zip(self._batch.row_starts, self._batch.row_starts[1:], strict=False)):
            if start < stop:
                mixed[start:stop] = self._attend(
                    layer, sequence, q[start:stop], self._batch.positions[start:stop], spec
                )
        return mixed

    def select(self, x: Array, rows: Wanted) -> Array:
        return x[self._batch.logit_rows if rows is Wanted.LOGITS else self._batch.hidden_rows]

    def softcap(self, x: Array, cap: float) -> Array:
        return softcap(x, cap)

    def _rows(self, ref: TensorRef) -> Array:
        rows = self._weights[ref.name][ref.first_row : ref.first_row + ref.rows]
        return rows[:, ref.first_column : ref.first_column + ref.columns]

    def _tables(self, layer: int) -> NDArray[np.int32]:
        """The block tables of the layer's group: [sequences, blocks]."""
        tables: NDArray[np.int32] = self._batch.block_tables[self._cache.group_of[layer]]
        return tables

    def _attend(self, layer: int, sequence: int, q: Array, rows: NDArray[np.int32], spec: GroupedAttention) -> Array:
        """Attention of rows at positions ``rows`` of one sequence: [rows, heads · head_dim]."""
        length = int(rows[-1]) + 1
        table = self._tables(layer)[sequence]
        k, v = (self._gather(cache[layer], table, length, spec) for cache in (self._cache.k, self._cache.v))
        heads = q.reshape(len(q), spec.heads, spec.head_dim)
        if self._cache.integers:
            factors = self._factors.get(layer, np.ones((spec.kv_heads, 1), np.float32))
            spread_heads = spread(heads * np.repeat(factors, spec.heads // spec.kv_heads, axis=0))
            heads = query_codes(spread_heads) * np.float32(1 / spread_block(spec.head_dim))
        heads = heads.transpose(1, 0, 2)
        scores = self._rounded(heads * np.float32(spec.score_scale)) @ k.transpose(0, 2, 1)
        if spec.softcap is not None:
            scores = softcap(scores, spec.softcap)
        scores[:, ~_visible(rows, length, spec.window)] = -np.inf
        weights: Array = np.exp(scores - scores.max(axis=-1, keepdims=True))
        total: Array = weights.sum(axis=-1, keepdims=True, dtype=np.float32)
        mixed = self._rounded(weights) @ v / total
        return (spread_back(mixed) if self._cache.integers else mixed).transpose(1, 0, 2).reshape(q.shape)

    def _rounded(self, x: Array) -> Array:
        return bfloat16(x) if self._cache.halves else x

    def _gather(
        self, cache: NDArray[np.floating], table: NDArray[np.int32], length: int, spec: GroupedAttention
    ) -> Array:
        """Cached positions 0 … length - 1 of a sequence, a copy for each query head: [heads, length, head_dim]."""
        blocks = table[: -(-length // self._cache.block_size)]
        rows = cache[blocks].reshape(-1, spec.kv_heads, spec.head_dim)[:length].astype(np.float32)
        return np.repeat(rows.transpose(1, 0, 2), spec.heads // spec.kv_heads, axis=0)


class ReferenceModel(Forward):
    """``Forward`` on ``NumpyOps``. ``decode`` is the decoder with its weights bound."""

    cache: PagedCache

    def __init__(
        self,
        decode: Callable[[NumpyOps], tuple[Array, Array]],
        weights: Mapping[str, Array],
        cache: PagedCache,
        vocab_size: int,
        hidden_size: int,
        max_rows: int = 1024,
        factors: Mapping[int, Array] = NO_FACTORS,
    ) -> None:
        self._decode = decode
        self._factors = factors
        self._weights = weights
        self.cache = cache
        self.vocab_size, self.hidden_size = vocab_size, hidden_size
        self.max_rows = self.max_logit_rows = max_rows
        self.hidden = np.zeros((0, hidden_size), np.float32)

    def run(self, batch: Batch) -> Array:
        logits, self.hidden = self._decode(NumpyOps(self._weights, self.cache, batch, self._factors))
        return logits

    def move(self, moves: Sequence[BlockMove]) -> None:
        self.cache.move(moves)


def silu(x: Array) -> Array:
    """x · sigmoid(x), written with tanh because exp overflows."""
    sigmoid: Array = np.float32(0.5) * np.tanh(np.float32(0.5) * x) + np.float32(0.5)
    return x * sigmoid


def gelu_tanh(x: Array) -> Array:
    """GELU's tanh approximation (Hendrycks & Gimpel 2016)."""
    inner = np.float32(np.sqrt(2 / np.pi)) * (x + np.float32(0.044715) * x * x * x)
    gate: Array = np.float32(0.5) * (1 + np.tanh(inner))
    return x * gate


def softcap(x: Array, cap: float) -> Array:
    """cap · tanh(x / cap)."""
    capped: Array = np.float32(cap) * np.tanh(x / np.float32(cap))
    return capped


def rotate(x: Array, cos: Array, sin: Array, rope: RopeSpec) -> Array:
    """Rotates the pairs of the first ``rope.dims`` values of each head: x [rows, heads, head_dim]."""
    half = rope.dims // 2
    first = slice(0, rope.dims, 2) if rope.pairs == "adjacent" else slice(0, half)
    second = slice(1, rope.dims, 2) if rope.pairs == "adjacent" else slice(half, rope.dims)
    turned = x.copy()
    turned[..., first] = x[..., first] * cos - x[..., second] * sin
    turned[..., second] = x[..., second] * cos + x[..., first] * sin
    return turned


def _visible(rows: NDArray[np.int32], length: int, window: int | None) -> NDArray[np.bool_]:
    """Which of the positions 0 … length - 1 a row at each position sees: [rows, length]."""
    distance = rows[:, None] - np.arange(length)
    return (distance >= 0) & (distance < (window or length))


def factors_of(spec: ModelSpec, weights: ModelWeights, values: Mapping[str, Array]) -> dict[int, Array]:
    """``key_factors`` of each layer that has norms of its keys and queries, or else biases."""
    found = dict[int, Array]()
    for index, (layer, refs) in enumerate(zip(spec.layers, weights.layers, strict=True)):
        attention, norm = layer.attention, "k_norm" in refs
        assert isinstance(attention, GroupedAttention)
        pair = [refs.get(role) for role in (("k_norm", "q_norm") if norm else ("k.bias", "q.bias"))]
        rows = [
            values[ref.name][ref.first_row, ref.first_column :][: ref.columns].reshape(-1, attention.head_dim)
            for ref in pair
            if ref is not None
        ]
        if len(rows) == 2 and layer.rope is not None and ("q_norm" in refs) == norm:
            repeat = attention.kv_heads if norm else 1
            key, query = (np.repeat(each, repeat, axis=0) for each in rows)
            found[index] = key_factors(key, query, layer.rope, norm=norm)
    return found


@dataclass(frozen=True, slots=True)
class ReferenceBackend(Backend):
    """``Backend`` on NumPy. It has no options; weights of every format become float32. The machine's limits are not
    measured, because NumPy is far slower."""

    name: ClassVar[str] = "reference"

    @property
    def device(self) -> str:
        """``Backend.device``: the processor."""
        return read_cpu().name

    def free_memory(self) -> int:
        """``Backend.free_memory``."""
        return read_memory().available

    def load(
        self,
        model: LoadableModel,
        sizes: RunnerSizes,
        overlap: Callable[[], object],
        draft: LoadableModel | None = None,
    ) -> HostRunner:
        """``Backend.load``."""
        overlap()
        loaded = self._forward(model, sizes, model.spec.kv_groups(sizes.context))
        drafting = None
        if draft is not None:
            groups = draft.spec.kv_groups(0)
            smaller = self._forward(draft, sizes.of_draft(len(groups)), groups)
            drafting = DraftModel(smaller, Sampler(NumpyRows()), loaded.vocab_size, len(groups))
        return HostRunner(loaded, Sampler(NumpyRows()), sizes, draft=drafting)

    def _forward(self, model: LoadableModel, sizes: RunnerSizes, groups: Sequence[KVGroup]) -> ReferenceModel:
        file, spec = model.file, model.spec
        needed = 4 * sum(tensor.rows * tensor.columns for tensor in file.tensors.values())
        if needed > self.free_memory():
            raise ResourceError(
                f"The model's weights take {needed:,} bytes as float32.",
                hint="Use a smaller model, or the cpu backend, which computes with quantised weights.",
            )
        values = {name: dequantize(file.data(name), info.format, info.columns) for name, info in file.tensors.items()}
        cache = PagedCache(groups, sizes.blocks, sizes.block_size, sizes.kv_type, sizes.host_slots)
        decode = partial(forward, spec=spec, weights=model.weights)
        factors = factors_of(spec, model.weights, values) if cache.integers else NO_FACTORS
        return ReferenceModel(decode, values, cache, spec.vocab_size, spec.hidden_size, sizes.rows, factors)
