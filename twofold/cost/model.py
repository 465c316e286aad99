"""What a model costs to run, phase by phase: bytes that must be read, multiply-adds that must be done.

With L layers, H hidden, F ffn, n_q and n_k heads of d values, V vocabulary, S new tokens after p cached ones, window w:

    multiply-adds of the layers, a token    L · (2·H·n_q·d + 2·H·n_k·d + 3·H·F)
    of the head, a row with logits          H · V
    of attention, S tokens                  Σ_layers 2 · n_q · d · Σ_{i=1..S} min(p + i, w)
    bytes of K and V, a token               2 · L · n_k · d · bytes of a value
    bytes of a step                         weights + Σ_sequences Σ_layers min(context, w) · 2 · n_k · d · bytes

Weights count as the file stores them, the head included; an embedding table counts only where it is the head too, for
a step reads a few rows of it, and rope factors do not, for they are read once at load. A multiply-add is two FLOPs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from twofold.core.model import ModelSpec
from twofold.core.quant import QuantFormat
from twofold.models.rope_keys import ROPE_TENSORS

EMBEDDING = "token_embd.weight"


class StoredTensor(Protocol):
    """What must be known of a tensor: a vector has one row."""

    @property
    def rows(self) -> int: ...

    @property
    def columns(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

    @property
    def format(self) -> QuantFormat: ...


@dataclass(frozen=True, slots=True)
class MultiplyAdds:
    """Multiply-adds by what computes them: packed integer codes, or floats."""

    integer: int
    floating: int

    def __add__(self, other: MultiplyAdds) -> MultiplyAdds:
        return MultiplyAdds(self.integer + other.integer, self.floating + other.floating)

    def times(self, count: int) -> MultiplyAdds:
        return MultiplyAdds(self.integer * count, self.floating * count)

    @property
    def total(self) -> int:
        return self.integer + self.floating


@dataclass(frozen=True, slots=True)
class ModelCost:
    """Costs of one model. ``layers`` are the multiply-adds of all layers' matrices for a row, ``head`` the head's."""

    spec: ModelSpec
    weight_bytes: int
    layers: MultiplyAdds
    head: MultiplyAdds

    @classmethod
    def of(cls, spec: ModelSpec, tensors: Mapping[str, StoredTensor]) -> ModelCost:
        """Costs of the model that ``spec`` and the tensors of its file describe."""
        head_name = EMBEDDING if spec.tied_head else "output.weight"
        read = {name: t for name, t in tensors.items() if name not in ROPE_TENSORS}
        if not spec.tied_head:
            read.pop(EMBEDDING, None)
        layers = [t for name, t in read.items() if name.startswith("blk.") and t.rows > 1]
        return cls(spec, sum(t.nbytes for t in read.values()), _matrices(layers), _matrices([tensors[head_name]]))

    def attention_macs(self, new: int, cached: int = 0) -> int:
        """Multiply-adds of attention for ``new`` tokens after ``cached`` ones."""
        return self.seen_macs(lambda window: _visible(cached, new, window))

    def seen_macs(self, attended: Callable[[int | None], int]) -> int:
        """Multiply-adds of attention where the rows of a layer with a given window attend to so many positions."""
        return 2 * self.spec.attention.query_size * self._over_layers(attended)

    def kv_bytes(self, context: int, value_bytes: int) -> int:
        """Bytes of K and V that a row at the end of ``context`` tokens reads, in all layers."""
        return self.read_bytes(lambda window: min(context, window or context), value_bytes)

    def read_bytes(self, read: Callable[[int | None], int], value_bytes: int) -> int:
        """Bytes of K and V where the steps read so many positions of a layer with a given window."""
        return 2 * self.spec.attention.kv_size * value_bytes * self._over_layers(read)

    def step_bytes(self, contexts: Iterable[int], value_bytes: int) -> int:
        """Bytes that a decode step of one row for each of these sequences must read."""
        return self.weight_bytes + sum(self.kv_bytes(context, value_bytes) for context in contexts)

    def prefill_macs(self, new: int, cached: int = 0) -> MultiplyAdds:
        """Multiply-adds of a prompt: layers and attention for each token, the head once."""
        return self.layers.times(new) + self.head + MultiplyAdds(0, self.attention_macs(new, cached))

    def step_macs(self, contexts: Iterable[int]) -> MultiplyAdds:
        """Multiply-adds of a decode step of one row for each of these sequences."""
        row = self.layers + self.head
        return sum(
            (row + MultiplyAdds(0, self.attention_macs(1, context - 1)) for context in contexts), MultiplyAdds(0, 0)
        )

    def _over_layers(self, positions: Callable[[int | None], int]) -> int:
        windows = Counter(layer.attention.window for layer in self.spec.layers)
        return sum(count * positions(window) for window, count in windows.items())


def _matrices(tensors: Iterable[StoredTensor]) -> MultiplyAdds:
    integer = floating = 0
    for tensor in tensors:
        if tensor.format.is_float:
            floating += tensor.rows * tensor.columns
        else:
            integer += tensor.rows * tensor.columns
    return MultiplyAdds(integer, floating)


def _visible(cached: int, new: int, window: int | None) -> int:
    """Σ_{i=1..new} min(cached + i, window): positions that the new rows see together."""
    growing = new if window is None else max(0, min(new, window - cached))
    full = 0 if window is None else (new - growing) * window
    return growing * cached + growing * (growing + 1) // 2 + full
