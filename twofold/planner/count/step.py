"""The work of one step: operator by operator, as the decoder runs them, and by the few coefficients of ``StepCost``.

With H hidden, n_q query heads of d values, S new rows of a sequence after p cached ones, window w:

    FLOPs of a matrix, a row          2 · rows · columns; of experts: the ``active`` ones
    FLOPs of attention, a sequence    4 · n_q · d · Σ_{i=1..S} min(p + i, w)
    bytes of experts, n rows          those of E · (1 − (1 − k/E)^n) experts: each row picks k of E independently
    bytes of K and V, a sequence      read min(p + S, w + S − 1) positions, written S

Latent attention is counted in the cheaper of its two equal forms (DeepSeek-V2, 2024, §2.1): absorbed, where heads work
on the latent vectors themselves, or expanded, where the keys and values of every seen position are computed again.

Simulators and planners, which count millions of steps, use coefficients:

    FLOPs       row · rows + logit_row · logit rows + Σ_windows position · attended positions
    weights     fixed + experts picked by the rows, and the head if logits are computed
    K and V     Σ_windows token · (read + written positions)

Those of latent attention are of its absorbed form, which decoding takes; ``StepCost.expanded`` gives the difference for
spans, such as prompts, that the expanded form computes at lower cost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from typing import Final

from twofold.core.model import (
    ExpertFFN,
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
    """All calls of one kind of operator, on one device. Activations are not counted: servers fuse their passes.

    arithmetic          number format of the products that ``flops`` count
    calls               in all layers
    flops               of matrix products and attention; a multiply-add is two. Of experts: the mean over devices
    weight_bytes        read from memory once a step; of experts: the expected number that rows pick
    kv_read             bytes of cached keys and values: each position that a sequence's rows see, once a step
    kv_written          bytes of keys and values
    all_reduce_bytes    size of the messages that all devices sum up, in all calls
    """

    name: str
    arithmetic: Arithmetic
    calls: int = 0
    flops: int = 0
    weight_bytes: float = 0
    kv_read: int = 0
    kv_written: int = 0
    all_reduce_bytes: int = 0

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


def step(shape: ModelSpec, spans: Sequence[SequenceRows], *, setup: Setting = PLAIN) -> Work:
    """The work of one step on one device. Raises ParameterError where the devices cannot share the model."""
    rows = sum(span.new for span in spans)
    logit_rows = sum(span.logits for span in spans)
    counter = _Counter(shape.hidden_size, rows, tuple(spans), setup)
    found: list[Operator] = []
    for count, layer in _distinct(shape, setup):
        found += (each.times(count) for each in counter.layer(layer))
    found += counter.end(shape, logit_rows)
    return Work.of(found)


@lru_cache(maxsize=256)
def _distinct(shape: ModelSpec, setup: Setting) -> tuple[tuple[int, LayerSpec], ...]:
    """Layers that are not equal, and how many there are of each."""
    setup.check(shape)
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
    setup: Setting

    @property
    def arithmetic(self) -> Arithmetic:
        """That of activations."""
        return self.setup.activations.arithmetic

    def layer(self, layer: LayerSpec) -> Iterator[Operator]:
        """Operators of one layer."""
        for weight in layer_weights(layer, self.hidden):
            yield self._bias(weight) if weight.name.endswith(".bias") else self._weight(weight, layer)
        attention = layer.attention
        if isinstance(attention, RecurrentAttention):
            yield self._recurrence(attention)
        else:
            yield self._attention(attention)
            written = self.rows * self.setup.token_bytes(attention)
            yield Operator("store_kv", self.arithmetic, 1, kv_written=written)
        if self.setup.tp > 1:
            message = self.setup.activations.nbytes(self.rows, self.hidden)
            yield Operator("all_reduce", self.arithmetic, 2, all_reduce_bytes=2 * message)

    def end(self, shape: ModelSpec, logit_rows: int) -> Iterator[Operator]:
        """The last norm and the head, for the rows whose logits are sampled; without such rows nothing is read."""
        if not logit_rows:
            return
        last = _Counter(self.hidden, logit_rows, (), self.setup)
        for weight in outer_weights(shape):
            if weight.vector:
                yield last._weight(weight, None)
            elif weight.name == (EMBEDDING if shape.tied_head else HEAD):
                yield last._matrix(weight, None, HEAD)

    def _weight(self, weight: Weight, layer: LayerSpec | None) -> Operator:
        if not weight.vector:
            return self._matrix(weight, layer, weight.name)
        rows, columns, _ = self.setup.share(weight, layer.attention if layer else None)
        return Operator(weight.name, self.arithmetic, 1, weight_bytes=weight.format.nbytes(rows, columns))

    def _bias(self, weight: Weight) -> Operator:
        """The kernel of the matrix also reads the bias and adds it, so a bias needs no separate call."""
        rows, columns, copies = self.setup.share(weight)
        name = weight.name.removesuffix(".bias")
        picked = self._picked(weight) if weight.copies > 1 else 1
        size = weight.format.nbytes(rows, columns) * copies * picked
        return Operator(name, self.setup.matrix_arithmetic(weight.format), weight_bytes=size)

    def _matrix(self, weight: Weight, layer: LayerSpec | None, name: str) -> Operator:
        rows, columns, copies = self.setup.share(weight, layer.attention if layer else None)
        size: float = weight.format.nbytes(rows, columns)
        passes = self.rows
        if weight.copies > 1:
            size *= copies * self._picked(weight)
            passes = self.rows * weight.active // self.setup.ep
        elif layer is not None and isinstance(layer.attention, LatentAttention) and name in {"k_b", "v_b"}:
            passes = sum(_latent(layer.attention, span)[0] for span in self.spans)
        return Operator(name, self.setup.matrix_arithmetic(weight.format), 1, 2 * passes * rows * columns, size)

    def _picked(self, weight: Weight) -> float:
        """The share of the experts that at least one row is expected to pick."""
        return 1 - (1 - weight.active / weight.copies) ** self.rows

    def _attention(self, attention: GroupedAttention | LatentAttention) -> Operator:
        if isinstance(attention, GroupedAttention):
            seen = sum(visible(span.cached, span.new, attention.window) for span in self.spans)
            flops = 4 * (attention.query_size // self.setup.tp) * seen
        else:
            flops = attention.heads // self.setup.tp * sum(_latent(attention, span)[1] for span in self.spans)
        read = sum(read_positions(span.cached, span.new, attention.window) for span in self.spans)
        loaded = read * self.setup.token_bytes(attention)
        return Operator("attention", self.setup.attention_arithmetic, 1, flops, kv_read=loaded)

    def _recurrence(self, attention: RecurrentAttention) -> Operator:
        """A row scales the state, reads it with its key, adds an outer product and reads it with its query; a step
        reads and writes the state of each sequence once."""
        flops = 7 * attention.state_values // self.setup.tp * self.rows
        state = self.setup.state_bytes(attention) * len(self.spans)
        return Operator("recurrence", self.arithmetic, 1, flops, kv_read=state, kv_written=state)


def _latent(attention: LatentAttention, span: SequenceRows) -> tuple[int, int]:
    """Of the cheaper form: rows that the matrices from the latent vector to keys and values multiply, and FLOPs of one
    head's attention."""
    seen = visible(span.cached, span.new, attention.window)
    absorbed = 2 * (2 * attention.kv_rank + attention.rope_dim) * seen
    expanded = 2 * (attention.nope_dim + attention.rope_dim + attention.v_dim) * seen
    again = 2 * span.cached * attention.kv_rank * (attention.nope_dim + attention.v_dim)
    return (span.new, absorbed) if absorbed <= expanded + again else (span.cached + span.new, expanded)


@dataclass(frozen=True, slots=True)
class WindowCost:
    """Of all layers with one window: FLOPs a row and position that it attends to, bytes of a token's K and V."""

    position_flops: int
    token_bytes: int


@dataclass(frozen=True, slots=True)
class LatentCost:
    """The expanded form against the absorbed one, of all layers with latent attention in one window.

    saved_flops   fewer a pair of row and seen position
    again_flops   more a cached token, whose keys and values are made again, in ``arithmetic``
    """

    window: int | None
    saved_flops: int
    again_flops: int
    arithmetic: Arithmetic


@dataclass(frozen=True, slots=True)
class ExpertCost:
    """Of all layers with such experts: bytes of all of them on one device, and how many of how many a row picks."""

    nbytes: float
    count: int
    active: int

    def picked_bytes(self, rows: float) -> float:
        """Bytes of the experts that at least one of the rows is expected to pick."""
        return float(self.nbytes * (1 - (1 - self.active / self.count) ** rows))


@dataclass(frozen=True, slots=True)
class StepCost:
    """Coefficients of a device's steps: ``fixed_bytes`` of weights in each, ``head_bytes`` where logits are wanted.

    ``windows`` are by window, None for layers that see everything.
    """

    row_flops: int
    logit_row_flops: int
    fixed_bytes: float
    head_bytes: float
    experts: tuple[ExpertCost, ...]
    windows: Mapping[int | None, WindowCost]
    latent: tuple[LatentCost, ...]
    all_reduce_row_bytes: int
    all_reduces: int
    state_bytes: int = 0

    @classmethod
    def of(cls, shape: ModelSpec, setup: Setting = PLAIN) -> StepCost:
        """Counted from two small steps, one with logits and one without."""
        silent, loud = step(shape, [SequenceRows(1, 0, 0)], setup=setup), step(shape, [SequenceRows(1)], setup=setup)
        experts = _expert_costs(shape, setup)
        matrices = silent.flops - silent.named("attention").flops
        return cls(
            row_flops=matrices,
            logit_row_flops=loud.flops - silent.flops,
            fixed_bytes=silent.weight_bytes - sum(each.picked_bytes(1) for each in experts),
            head_bytes=loud.weight_bytes - silent.weight_bytes,
            experts=experts,
            windows=_window_costs(shape, setup),
            latent=_latent_costs(shape, setup),
            all_reduce_row_bytes=silent.all_reduce_bytes,
            all_reduces=silent.all_reduces,
            state_bytes=sum(count * setup.state_bytes(layer.attention) for count, layer in shape.runs),
        )

    def weight_bytes(self, rows: float = 1, *, logits: bool = True) -> float:
        """Returns the bytes of weights that a step of ``rows`` rows reads: a mean over different picks of experts."""
        picked = sum(each.picked_bytes(rows) for each in self.experts)
        return self.fixed_bytes + picked + (self.head_bytes if logits else 0)

    def flops(
        self, rows: int, logit_rows: int, attended: Mapping[int | None, int], spans: Iterable[SequenceRows] = ()
    ) -> int:
        """FLOPs of a step; ``attended`` positions by window, summed over its rows.

        ``spans`` are those that may be cheaper expanded; rows that decode never are.
        """
        attention = sum(cost.position_flops * attended[window] for window, cost in self.windows.items())
        changed = sum(again - saved for _, again, saved in self.expanded((1, span) for span in spans))
        return self.row_flops * rows + self.logit_row_flops * logit_rows + attention + changed

    def expanded(self, spans: Iterable[tuple[int, SequenceRows]]) -> Iterator[tuple[Arithmetic, int, int]]:
        """Yields for each kind of span that is cheaper expanded, given with its number: the arithmetic, the additional
        FLOPs of the matrices, and the FLOPs that attention saves."""
        if not self.latent:
            return
        for count, span in spans:
            for each in self.latent:
                saved = each.saved_flops * visible(span.cached, span.new, each.window)
                again = each.again_flops * span.cached
                if saved > again:
                    yield each.arithmetic, count * again, count * saved

    def read_bytes(self, spans: Sequence[tuple[int, SequenceRows]]) -> int:
        """Returns the bytes of K and V that the sequences read, and of the states that they read and write."""
        return self.kv_bytes(
            {window: sum(n * read_positions(s.cached, s.new, window) for n, s in spans) for window in self.windows}
        ) + 2 * self.state_bytes * sum(n for n, _ in spans)

    def kv_bytes(self, positions: Mapping[int | None, int]) -> int:
        """Returns the bytes of K and V of these positions, given by window."""
        return sum(cost.token_bytes * positions[window] for window, cost in self.windows.items())


def _window_costs(shape: ModelSpec, setup: Setting) -> Mapping[int | None, WindowCost]:
    found: dict[int | None, WindowCost] = {}
    for count, layer in shape.runs:
        attention = layer.attention
        if isinstance(attention, RecurrentAttention):
            continue
        if isinstance(attention, GroupedAttention):
            flops = 4 * (attention.query_size // setup.tp)
        else:
            flops = 2 * (attention.heads // setup.tp) * (2 * attention.kv_rank + attention.rope_dim)
        before = found.get(attention.window, WindowCost(0, 0))
        found[attention.window] = WindowCost(
            before.position_flops + count * flops, before.token_bytes + count * setup.token_bytes(attention)
        )
    return found


def _latent_costs(shape: ModelSpec, setup: Setting) -> tuple[LatentCost, ...]:
    found: dict[tuple[int | None, Arithmetic], tuple[int, int]] = {}
    for count, layer in shape.runs:
        attention = layer.attention
        if not isinstance(attention, LatentAttention):
            continue
        values, heads = attention.nope_dim + attention.v_dim, count * (attention.heads // setup.tp)
        key = attention.window, setup.matrix_arithmetic(layer.formats.of("k_b"))
        saved, again = found.get(key, (0, 0))
        found[key] = (
            saved + 2 * heads * (2 * attention.kv_rank - values),
            again + 2 * heads * attention.kv_rank * values,
        )
    return tuple(LatentCost(window, *flops, arithmetic) for (window, arithmetic), flops in found.items())


def _expert_costs(shape: ModelSpec, setup: Setting) -> tuple[ExpertCost, ...]:
    found: dict[tuple[int, int], float] = {}
    for count, layer in shape.runs:
        if isinstance(layer.ffn, ExpertFFN):
            key = (layer.ffn.count, layer.ffn.active)
            found[key] = found.get(key, 0.0) + count * setup.expert_bytes(layer, shape.hidden_size)
    return tuple(ExpertCost(size, *key) for key, size in found.items())
