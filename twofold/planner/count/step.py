"""The work of one step, operator by operator: the decoder that runs, counted and not computed.

With H hidden, n_q query heads of d values, S new rows of a sequence after p cached ones, window w:

    FLOPs of a matrix, a row          2 · rows · columns; of experts: the ``active`` ones
    FLOPs of attention, a sequence    4 · n_q · d · Σ_{i=1..S} min(p + i, w)
    bytes of experts, n rows          those of E · (1 − (1 − k/E)^n) experts: each row picks k of E independently
    bytes of K and V, a sequence      read min(p + S, w + S − 1) positions, written S

Latent attention is counted in the cheaper of its two equal forms (DeepSeek-V2, 2024, §2.1): absorbed, where heads work
on the latent vectors themselves, or expanded, where the keys and values of every seen position are computed again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from typing import Final

from twofold.core.model import (
    ExpertFFN,
    GatedFFN,
    GroupedAttention,
    LatentAttention,
    LayerSpec,
    ModelSpec,
    RecurrentAttention,
    read_positions,
    visible,
)
from twofold.core.tensors import EMBEDDING, HEAD, Weight, layer_weights, outer_weights
from twofold.core.values import Arithmetic
from twofold.planner.count.setting import PLAIN, Setting


@dataclass(frozen=True, slots=True)
class Operator:
    """All calls of one kind of operator, on one device.

    arithmetic          number format of the products that ``flops`` count
    calls               in all layers
    flops               of matrix products and attention; a multiply-add is two. Of experts: the mean over devices
    weight_bytes        read from memory once a step; of experts: the expected number that rows pick
    kv_read             bytes of cached keys and values: each position that a sequence's rows see, once a step
    kv_written          bytes of keys and values
    activation_bytes    inputs read and outputs written as if no operators were fused; embedding rows looked up
    all_reduce_bytes    size of the messages that all devices sum up, in all calls
    """

    name: str
    arithmetic: Arithmetic
    calls: int = 0
    flops: int = 0
    weight_bytes: float = 0
    kv_read: int = 0
    kv_written: int = 0
    activation_bytes: int = 0
    all_reduce_bytes: int = 0

    @property
    def memory_bytes(self) -> float:
        """Weights, keys and values: what must come from memory whatever is fused."""
        return self.weight_bytes + self.kv_read + self.kv_written

    def __add__(self, other: Operator) -> Operator:
        assert (self.name, self.arithmetic) == (other.name, other.arithmetic)
        return replace(self, **{name: getattr(self, name) + getattr(other, name) for name in COUNTS})

    def times(self, count: int) -> Operator:
        """The counts of ``count`` such operators."""
        return replace(self, **{name: getattr(self, name) * count for name in COUNTS})


COUNTS: Final = tuple(field.name for field in fields(Operator) if field.name not in {"name", "arithmetic"})


@dataclass(frozen=True)
class Work:
    """Operators in the order of their first call, one for each name and arithmetic."""

    operators: tuple[Operator, ...]

    @classmethod
    def of(cls, operators: Iterable[Operator]) -> Work:
        """Joins operators of one name."""
        joined: dict[tuple[str, Arithmetic], Operator] = {}
        for each in operators:
            key = (each.name, each.arithmetic)
            joined[key] = joined[key] + each if key in joined else each
        return cls(tuple(joined.values()))

    def __add__(self, other: Work) -> Work:
        return Work.of((*self.operators, *other.operators))

    def named(self, name: str) -> Operator:
        """The operator of that name. KeyError if it is missing. A sum of several has the first one's arithmetic."""
        found = [each for each in self.operators if each.name == name]
        if not found:
            raise KeyError(name)
        first, *rest = found
        for each in rest:
            first = first + replace(each, arithmetic=first.arithmetic)
        return first

    @cached_property
    def flops(self) -> int:
        return sum(each.flops for each in self.operators)

    @cached_property
    def weight_bytes(self) -> float:
        return sum(each.weight_bytes for each in self.operators)

    @cached_property
    def kv_read(self) -> int:
        return sum(each.kv_read for each in self.operators)

    @cached_property
    def kv_written(self) -> int:
        return sum(each.kv_written for each in self.operators)

    @cached_property
    def activation_bytes(self) -> int:
        return sum(each.activation_bytes for each in self.operators)

    @cached_property
    def all_reduce_bytes(self) -> int:
        return sum(each.all_reduce_bytes for each in self.operators)

    @cached_property
    def all_reduces(self) -> int:
        """How many times the devices sum something up."""
        return sum(each.calls for each in self.operators if each.all_reduce_bytes)

    @property
    def memory_bytes(self) -> float:
        """Weights, keys and values."""
        return self.weight_bytes + self.kv_read + self.kv_written

    @property
    def intensity(self) -> float:
        """FLOPs for each byte of weights, keys and values."""
        return self.flops / self.memory_bytes

    def flops_by_arithmetic(self) -> dict[Arithmetic, int]:
        """FLOPs by the numbers that they are made in."""
        sums: dict[Arithmetic, int] = {}
        for each in self.operators:
            if each.flops:
                sums[each.arithmetic] = sums.get(each.arithmetic, 0) + each.flops
        return sums


@dataclass(frozen=True, slots=True)
class SequenceRows:
    """Rows of one sequence in a step: ``new`` tokens after ``cached`` ones, with logits of ``logits`` of them."""

    new: int
    cached: int = 0
    logits: int = 1


def prefill(shape: ModelSpec, new: int, cached: int = 0, batch: int = 1, *, how: Setting = PLAIN) -> Work:
    """``batch`` prompts of ``new`` tokens after ``cached`` ones in one step, each with the logits of its last token."""
    return step(shape, [SequenceRows(new, cached)] * batch, how=how)


def decode_step(shape: ModelSpec, contexts: Iterable[int], *, how: Setting = PLAIN) -> Work:
    """One row for each sequence; a context is what the row sees, itself included."""
    return step(shape, [SequenceRows(1, context - 1) for context in contexts], how=how)


def step(shape: ModelSpec, spans: Sequence[SequenceRows], *, how: Setting = PLAIN) -> Work:
    """The work of one step on one device. Raises ParameterError where the devices cannot share the model."""
    rows = sum(span.new for span in spans)
    logit_rows = sum(span.logits for span in spans)
    counter = _Counter(shape.hidden_size, rows, tuple(spans), how)
    found = [counter.embed(shape)]
    for count, layer in _distinct(shape, how):
        found += (each.times(count) for each in counter.layer(layer))
    found += counter.end(shape, logit_rows)
    return Work.of(found)


@lru_cache(maxsize=256)
def _distinct(shape: ModelSpec, how: Setting) -> tuple[tuple[int, LayerSpec], ...]:
    """Layers that are not equal, and how many there are of each."""
    how.check(shape)
    counts: dict[LayerSpec, int] = {}
    for count, layer in shape.runs:
        counts[layer] = counts.get(layer, 0) + count
    return tuple((count, layer) for layer, count in counts.items())


@dataclass(frozen=True, slots=True)
class _Counter:
    """Counts for the rows of one step on one device."""

    hidden: int
    rows: int
    spans: tuple[SequenceRows, ...]
    how: Setting

    def embed(self, shape: ModelSpec) -> Operator:
        table = next(weight for weight in outer_weights(shape) if weight.name == EMBEDDING)
        looked_up = table.format.nbytes(1, table.columns) * self.rows
        return self._plain(EMBEDDING, looked_up + self._values(self.hidden))

    def layer(self, layer: LayerSpec) -> Iterator[Operator]:
        """Operators of one layer."""
        for weight in layer_weights(layer, self.hidden):
            yield self._bias(weight) if weight.name.endswith(".bias") else self._weight(weight, layer)
        attention = layer.attention
        if isinstance(attention, RecurrentAttention):
            yield self._recurrence(attention)
        else:
            yield (
                self._attention(attention)
                if isinstance(attention, GroupedAttention)
                else self._latent_attention(attention)
            )
            yield self._store(layer)
            yield self._plain("rope", 2 * self._values(*_rotated(attention, self.how)), calls=2)
        if not isinstance(layer.ffn, GatedFFN | ExpertFFN):
            yield self._plain("activation", 2 * self._values(-(-layer.ffn.size // self.how.tp)))
        else:
            yield self._plain("gated", 3 * self._values(_inner_size(layer.ffn, self.how)))
        yield self._plain("add", 6 * self._values(self.hidden), calls=2)
        if self.how.tp > 1:
            message = self._values(self.hidden)
            arithmetic = self.how.activations.arithmetic
            yield Operator("all_reduce", arithmetic, 2, all_reduce_bytes=2 * message)

    def end(self, shape: ModelSpec, logit_rows: int) -> Iterator[Operator]:
        """The rows whose logits are wanted, the last norm, and the head. Nothing of them is read where none are."""
        if not logit_rows:
            return
        last = _Counter(self.hidden, logit_rows, (), self.how)
        yield last._plain("select", 2 * last._values(self.hidden))
        for weight in outer_weights(shape):
            if weight.vector:
                yield last._weight(weight, None)
            elif weight.name == (EMBEDDING if shape.tied_head else HEAD):
                yield last._matrix(weight, None, HEAD)

    def _weight(self, weight: Weight, layer: LayerSpec | None) -> Operator:
        if not weight.vector:
            return self._matrix(weight, layer, weight.name)
        rows, columns, _ = self.how.share(weight, layer.attention if layer else None)
        moved = 2 * self._values(_norm_width(weight, layer, self.how))
        if weight.name == "sinks":
            moved = 0
        arithmetic = self.how.activations.arithmetic
        return Operator(
            weight.name, arithmetic, 1, weight_bytes=weight.format.nbytes(rows, columns), activation_bytes=moved
        )

    def _bias(self, weight: Weight) -> Operator:
        """A bias is read with its matrix and added to what that gives: no call of its own."""
        rows, columns, copies = self.how.share(weight)
        name = weight.name.removesuffix(".bias")
        picked = self._picked(weight) if weight.copies > 1 else 1
        size = weight.format.nbytes(rows, columns) * copies * picked
        return Operator(name, weight.format.arithmetic, weight_bytes=size)

    def _matrix(self, weight: Weight, layer: LayerSpec | None, name: str) -> Operator:
        rows, columns, copies = self.how.share(weight, layer.attention if layer else None)
        size: float = weight.format.nbytes(rows, columns)
        passes = self.rows
        if weight.copies > 1:
            size *= copies * self._picked(weight)
            passes = self.rows * weight.active // self.how.ep
        elif layer is not None and isinstance(layer.attention, LatentAttention) and name in {"k_b", "v_b"}:
            passes = sum(_latent_passes(layer.attention, span) for span in self.spans)
        moved = self.how.activations.nbytes(passes, rows + columns)
        flops = 2 * passes * rows * columns
        return Operator(name, weight.format.arithmetic, 1, flops, size, activation_bytes=moved)

    def _picked(self, weight: Weight) -> float:
        """The share of the experts that at least one row is expected to pick."""
        return 1 - (1 - weight.active / weight.copies) ** self.rows

    def _attention(self, attention: GroupedAttention) -> Operator:
        queries = attention.query_size // self.how.tp
        attended = sum(visible(span.cached, span.new, attention.window) for span in self.spans)
        return self._attend(4 * queries * attended, 2 * queries, attention.window, self.how.token_bytes(attention))

    def _latent_attention(self, attention: LatentAttention) -> Operator:
        heads = attention.heads // self.how.tp
        flops = sum(heads * _latent_flops(attention, span) for span in self.spans)
        width = heads * (attention.nope_dim + attention.rope_dim + attention.v_dim)
        return self._attend(flops, width, attention.window, self.how.token_bytes(attention))

    def _attend(self, flops: int, width: int, window: int | None, token_bytes: int) -> Operator:
        read = sum(read_positions(span.cached, span.new, window) for span in self.spans) * token_bytes
        arithmetic = self.how.activations.arithmetic
        return Operator("attention", arithmetic, 1, flops, kv_read=read, activation_bytes=self._values(width))

    def _recurrence(self, attention: RecurrentAttention) -> Operator:
        """A row scales the state, reads it with its key, adds an outer product and reads it with its query; a step
        reads and writes the state of each sequence once."""
        flops = 7 * attention.state_values // self.how.tp * self.rows
        state = self.how.state_bytes(attention) * len(self.spans)
        moved = self._values((attention.query_size + attention.output_size) // self.how.tp)
        arithmetic = self.how.activations.arithmetic
        return Operator("recurrence", arithmetic, 1, flops, kv_read=state, kv_written=state, activation_bytes=moved)

    def _store(self, layer: LayerSpec) -> Operator:
        attention = layer.attention
        parts = self.how.kv_parts(attention)
        written = self.rows * self.how.token_bytes(attention)
        taken = self._values(attention.kv_values // parts)
        return Operator("store_kv", self.how.activations.arithmetic, 1, kv_written=written, activation_bytes=taken)

    def _plain(self, name: str, moved: int, calls: int = 1) -> Operator:
        return Operator(name, self.how.activations.arithmetic, calls, activation_bytes=moved)

    def _values(self, *widths: int) -> int:
        """Bytes of the rows' activations of these widths."""
        return self.how.activations.nbytes(self.rows, sum(widths))


def _latent_passes(attention: LatentAttention, span: SequenceRows) -> int:
    """Rows that the matrices from the latent vector to keys and values multiply."""
    return span.new if _absorbed(attention, span) else span.cached + span.new


def _latent_flops(attention: LatentAttention, span: SequenceRows) -> int:
    """FLOPs of one head's attention."""
    return (_absorbed_flops if _absorbed(attention, span) else _expanded_flops)(attention, span)


def _absorbed(attention: LatentAttention, span: SequenceRows) -> bool:
    expanded = 2 * span.cached * attention.kv_rank * (attention.nope_dim + attention.v_dim)
    return _absorbed_flops(attention, span) <= _expanded_flops(attention, span) + expanded


def _absorbed_flops(attention: LatentAttention, span: SequenceRows) -> int:
    return 2 * (2 * attention.kv_rank + attention.rope_dim) * visible(span.cached, span.new, attention.window)


def _expanded_flops(attention: LatentAttention, span: SequenceRows) -> int:
    width = attention.nope_dim + attention.rope_dim + attention.v_dim
    return 2 * width * visible(span.cached, span.new, attention.window)


def _rotated(attention: GroupedAttention | LatentAttention, how: Setting) -> tuple[int, int]:
    """Values of queries and of keys that are rotated."""
    if isinstance(attention, GroupedAttention):
        return attention.query_size // how.tp, attention.kv_size // how.kv_parts(attention)
    return attention.heads // how.tp * attention.rope_dim, attention.rope_dim


def _inner_size(ffn: GatedFFN | ExpertFFN, how: Setting) -> int:
    if isinstance(ffn, GatedFFN):
        return -(-ffn.size // how.tp)
    return ffn.active * ffn.size // how.tp + -(-ffn.shared // how.tp)


def _norm_width(weight: Weight, layer: LayerSpec | None, how: Setting) -> int:
    """Values that a norm goes over: its own, or each head's."""
    if layer is not None and isinstance(layer.attention, GroupedAttention) and layer.attention.qk_norm:
        queries, keys = _rotated(layer.attention, how)
        return {"q_norm": queries, "k_norm": keys}.get(weight.name, weight.columns)
    if layer is not None and weight.name == "state_norm":
        return layer.attention.output_size // how.tp
    return weight.columns
