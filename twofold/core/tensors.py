"""The tensors that a model has: roles, sizes, formats, how often, and how devices share them.

Roles belong to no file format: ``embedding``, ``head``, ``final_norm`` and ``positions`` occur once; the roles that
``layer_weights`` lists occur once in each layer, as ``layers.INDEX.ROLE``. Files are read by these names, and the
counts of parameters, bytes and multiply-adds are sums over this list.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal, Protocol

from twofold.core.model import (
    ExpertFFN,
    Formats,
    GatedFFN,
    GroupedAttention,
    LatentAttention,
    LayerSpec,
    ModelSpec,
    PlainFFN,
    RecurrentAttention,
)
from twofold.core.values import QuantFormat, ValueFormat

Split = Literal["none", "rows", "columns", "kv"]
"""How tensor parallelism cuts a tensor: not at all, by outputs, by inputs, or by heads of keys and values."""

EMBEDDING: Final = "embedding"
HEAD: Final = "head"
FINAL_NORM: Final = "final_norm"
ROPE_FACTORS: Final = "rope_factors"
ROPE_LONG: Final = "rope_factors_long"
ROPE_SHORT: Final = "rope_factors_short"
ROPE_TENSORS: Final = frozenset({ROPE_FACTORS, ROPE_LONG, ROPE_SHORT})
"""Divisors of rotation frequencies: read once, when a model is described."""

TOGETHER: Final[Mapping[str, tuple[str, ...]]] = {
    "qkv": ("q", "k", "v"),
    "kv_b": ("k_b", "v_b"),
    "up": ("gate", "up"),
}
"""Tensors that some files store as consecutive rows of one tensor, by the role of that tensor."""

_IN_LAYER: Final = re.compile(r"layers\.(\d{1,5})\.(.+)", re.DOTALL)


def in_layer(index: int, role: str) -> str:
    """The name of a layer's tensor."""
    return f"layers.{index}.{role}"


def layer_and_role(name: str) -> tuple[int | None, str]:
    """The layer of a tensor's name, None outside of layers, and its role."""
    found = _IN_LAYER.fullmatch(name)
    return (None, name) if found is None else (int(found[1]), found[2])


@dataclass(frozen=True, slots=True)
class Weight:
    """A tensor of ``rows`` outputs and ``columns`` inputs. A vector has one row and is not multiplied as a matrix.

    ``copies`` is the number of experts that have such a tensor; a row passes through ``active`` of them.
    """

    name: str
    rows: int
    columns: int
    format: ValueFormat
    split: Split = "none"
    vector: bool = False
    copies: int = 1
    active: int = 1

    @property
    def parameters(self) -> int:
        return self.copies * self.rows * self.columns

    @property
    def nbytes(self) -> int:
        return self.copies * self.format.nbytes(self.rows, self.columns)


@lru_cache(maxsize=1024)
def layer_weights(layer: LayerSpec, hidden: int) -> tuple[Weight, ...]:
    """All tensors of a layer."""
    maker = _Maker(layer.formats)
    norms: dict[int, tuple[str, ...]] = {
        1: ("attention_norm",),
        2: ("attention_norm", "ffn_norm"),
        4: ("attention_norm", "post_attention_norm", "ffn_norm", "post_ffn_norm"),
    }
    match layer.attention:
        case GroupedAttention() as kind:
            attention = _grouped(maker, kind, hidden)
        case LatentAttention() as kind:
            attention = _latent(maker, kind, hidden)
        case RecurrentAttention() as kind:
            attention = _recurrent(maker, kind, hidden)
    vectors = (maker.vector(name, hidden) for name in norms[layer.norms])
    return (*vectors, *attention, *_feed_forward(maker, layer.ffn, hidden))


@lru_cache(maxsize=256)
def outer_weights(shape: ModelSpec) -> tuple[Weight, ...]:
    """The tensors outside the layers: the embedding, the last norm, and the head where it is not the embedding."""
    maker = _Maker(shape.formats)
    made = [
        maker.matrix(EMBEDDING, shape.vocab_size, shape.hidden_size, "rows"),
        maker.vector(FINAL_NORM, shape.hidden_size),
    ]
    if not shape.tied_head:
        made.append(maker.matrix(HEAD, shape.vocab_size, shape.hidden_size, "rows"))
    if shape.learnt_positions:
        made.append(maker.matrix("positions", shape.learnt_positions, shape.hidden_size))
    return tuple(made)


def main_format(shape: ModelSpec) -> ValueFormat:
    """The format that most values of the layers' matrices are in."""
    values: dict[ValueFormat, int] = {}
    for count, layer in shape.runs:
        for weight in layer_weights(layer, shape.hidden_size):
            if not weight.vector:
                values[weight.format] = values.get(weight.format, 0) + count * weight.parameters
    return max(values, key=lambda each: values[each])


@dataclass(frozen=True, slots=True)
class _Maker:
    formats: Formats

    def matrix(self, name: str, rows: int, columns: int, split: Split = "none") -> Weight:
        return Weight(name, rows, columns, self.formats.of(name), split)

    def vector(self, name: str, size: int, split: Split = "none") -> Weight:
        return Weight(name, 1, size, self.formats.of(name, vector=True), split, vector=True)


def _grouped(maker: _Maker, attention: GroupedAttention, hidden: int) -> Iterator[Weight]:
    queries, kv, dim = attention.query_size, attention.kv_size, attention.head_dim
    yield maker.matrix("q", 2 * queries if attention.output_gate else queries, hidden, "rows")
    yield maker.matrix("k", kv, hidden, "kv")
    yield maker.matrix("v", kv, hidden, "kv")
    yield maker.matrix("o", hidden, queries, "columns")
    if attention.qkv_bias:
        yield maker.vector("q.bias", queries, "rows")
        yield maker.vector("k.bias", kv, "kv")
        yield maker.vector("v.bias", kv, "kv")
    if attention.output_bias:
        yield maker.vector("o.bias", hidden)
    if attention.qk_norm:
        alone = attention.qk_norm == "head"
        yield maker.vector("q_norm", dim if alone else queries, "none" if alone else "rows")
        yield maker.vector("k_norm", dim if alone else kv, "none" if alone else "kv")
    if attention.sinks:
        yield maker.vector("sinks", attention.heads, "rows")


def _latent(maker: _Maker, attention: LatentAttention, hidden: int) -> Iterator[Weight]:
    if attention.q_rank is None:
        yield maker.matrix("q", attention.query_size, hidden, "rows")
    else:
        yield maker.matrix("q_a", attention.q_rank, hidden)
        yield maker.vector("q_a_norm", attention.q_rank)
        yield maker.matrix("q_b", attention.query_size, attention.q_rank, "rows")
    yield maker.matrix("kv_a", attention.kv_values, hidden)
    yield maker.vector("kv_a_norm", attention.kv_rank)
    yield maker.matrix("k_b", attention.heads * attention.nope_dim, attention.kv_rank, "rows")
    yield maker.matrix("v_b", attention.output_size, attention.kv_rank, "rows")
    yield maker.matrix("o", hidden, attention.output_size, "columns")


def _recurrent(maker: _Maker, attention: RecurrentAttention, hidden: int) -> Iterator[Weight]:
    yield maker.matrix("state_qkv", attention.query_size, hidden, "rows")
    yield maker.matrix("state_gate", attention.output_size, hidden, "rows")
    yield maker.matrix("state_beta", attention.heads, hidden, "rows")
    yield maker.matrix("state_decay", attention.heads, hidden, "rows")
    yield maker.vector("state_decay.bias", attention.heads, "rows")
    yield maker.vector("state_rate", attention.heads, "rows")
    yield maker.matrix("conv", attention.query_size, attention.conv, "rows")
    yield maker.vector("state_norm", attention.value_dim)
    yield maker.matrix("o", hidden, attention.output_size, "columns")


def _feed_forward(maker: _Maker, ffn: GatedFFN | PlainFFN | ExpertFFN, hidden: int) -> Iterator[Weight]:
    if isinstance(ffn, ExpertFFN):
        yield from _experts(maker, ffn, hidden)
        return
    inner = ("gate", "up") if isinstance(ffn, GatedFFN) else ("up",)
    yield from (maker.matrix(name, ffn.size, hidden, "rows") for name in inner)
    yield maker.matrix("down", hidden, ffn.size, "columns")
    if ffn.bias:
        yield from (maker.vector(f"{name}.bias", ffn.size, "rows") for name in inner)
        yield maker.vector("down.bias", hidden)


def _experts(maker: _Maker, ffn: ExpertFFN, hidden: int) -> Iterator[Weight]:
    yield maker.matrix("router", ffn.count, hidden)
    if ffn.router_bias:
        yield maker.vector("router.bias", ffn.count)
    for name, rows, columns in _gated_sizes("expert", ffn.size, hidden):
        split: Split = "columns" if name.endswith("_down") else "rows"
        form = maker.formats.of(name)
        yield Weight(name, rows, columns, form, split, copies=ffn.count, active=ffn.active)
        if ffn.bias:
            form = maker.formats.of(f"{name}.bias", vector=True)
            bias_split: Split = "none" if split == "columns" else "rows"
            yield Weight(f"{name}.bias", 1, rows, form, bias_split, vector=True, copies=ffn.count, active=ffn.active)
    if ffn.shared:
        for name, rows, columns in _gated_sizes("shared", ffn.shared, hidden):
            yield maker.matrix(name, rows, columns, "columns" if name.endswith("_down") else "rows")
    if ffn.shared_gate:
        yield maker.matrix("shared_router", 1, hidden)


def _gated_sizes(kind: str, size: int, hidden: int) -> Iterator[tuple[str, int, int]]:
    yield f"{kind}_gate", size, hidden
    yield f"{kind}_up", size, hidden
    yield f"{kind}_down", hidden, size


SourceKind = Literal["gguf", "config"]
"""The kind of a source's keys: those of GGUF metadata, or those of Hugging Face configurations."""


@dataclass(frozen=True, slots=True)
class ModelSource:
    """The description of a model or of its tokenizer: values by key, and the kind of the keys."""

    kind: SourceKind
    values: Mapping[str, object]


class StoredTensor(Protocol):
    """A tensor of a file: ``rows`` × ``columns`` values, a vector in one row. ``name`` is its name in the file."""

    @property
    def name(self) -> str: ...

    @property
    def rows(self) -> int: ...

    @property
    def columns(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

    @property
    def format(self) -> QuantFormat: ...
