"""Parameters, bytes of weights and of keys and values, and what the memory of a device has room for.

    bytes of K and V, a token       Σ_layers 2 · n_k · d · bytes; of latent attention (rank + rope) · bytes
    bytes of K and V, a sequence    Σ_layers min(context, window), in whole blocks; of recurrent attention its state
    sequences                       ⌊(share · memory − weights − draft model − activations) / KV(context)⌋

Activations are the most that a step needs at once: the residual stream and its copy, the widest of a layer's parts, and
logits in float32. The share of the memory that is not used is the reserve for libraries, graphs and fragmentation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from twofold.core.model import ExpertFFN, GatedFFN, GroupedAttention, LayerSpec, ModelSpec
from twofold.core.tensors import EMBEDDING, layer_weights, outer_weights
from twofold.planner.count.setting import PLAIN, Setting

MEMORY_SHARE: Final = 0.9
"""Of the memory of a device that servers use by default."""
BLOCK: Final = 16
LOGIT_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class Parameters:
    """Numbers of values of a model's weights.

    layers      matrices of all layers, with all experts
    active      those that a row passes through: the P of 2 · P FLOPs a row
    head        of the matrix that makes logits, which may be the embedding too
    total       of everything stored
    """

    layers: int
    active: int
    head: int
    total: int


def parameters(shape: ModelSpec) -> Parameters:
    """Counts a model's parameters."""
    inner = [(count, weight) for count, layer in shape.runs for weight in layer_weights(layer, shape.hidden_size)]
    outer = [(1, weight) for weight in outer_weights(shape)]
    matrices = [(count, weight) for count, weight in inner if not weight.vector]
    return Parameters(
        layers=sum(count * weight.parameters for count, weight in matrices),
        active=sum(count * weight.active * weight.rows * weight.columns for count, weight in matrices),
        head=shape.vocab_size * shape.hidden_size,
        total=sum(count * weight.parameters for count, weight in inner + outer),
    )


@lru_cache(maxsize=256)
def weight_bytes(shape: ModelSpec, setup: Setting = PLAIN) -> int:
    """Bytes of all weights on one device."""
    inner = (
        count * setup.nbytes(weight, layer.attention)
        for count, layer in shape.runs
        for weight in layer_weights(layer, shape.hidden_size)
    )
    return round(sum(inner) + sum(setup.nbytes(weight) for weight in outer_weights(shape)))


def streamed_bytes(shape: ModelSpec, setup: Setting = PLAIN) -> int:
    """Bytes of weights that a step of very many rows reads: all but the tables in which rows are looked up."""
    tables = {"positions"} if shape.tied_head else {"positions", EMBEDDING}
    looked_up = (setup.nbytes(weight) for weight in outer_weights(shape) if weight.name in tables)
    return weight_bytes(shape, setup) - round(sum(looked_up))


def kv_bytes_per_token(shape: ModelSpec, setup: Setting = PLAIN) -> int:
    """Bytes that one token adds to one device's cache, in all layers, where no window hides it."""
    return sum(count * setup.token_bytes(layer.attention) for count, layer in shape.runs)


def kv_bytes(shape: ModelSpec, context: int, setup: Setting = PLAIN, *, block: int = 1) -> int:
    """Bytes of keys and values of one sequence in one device's cache, in whole blocks of ``block`` positions.

    Layers with a window keep the positions that rows can still see; a window may begin inside a block.
    """
    total = 0
    for count, layer in shape.runs:
        total += count * setup.token_bytes(layer.attention) * _kept_positions(context, layer.attention.window, block)
        total += count * setup.state_bytes(layer.attention)
    return total


def _kept_positions(context: int, window: int | None, block: int) -> int:
    whole = -(-context // block) * block
    if window is None:
        return whole
    return min(whole, -(-(window - 1) // block) * block + block if block > 1 else window)


def activation_bytes(shape: ModelSpec, setup: Setting, rows: int, logit_rows: int) -> int:
    """Most bytes of activations that one device needs at once in a step of ``rows``."""
    widest = max(_width(layer, setup) for _, layer in shape.runs)
    logits = LOGIT_BYTES * logit_rows * -(-shape.vocab_size // setup.tp)
    return setup.activations.nbytes(rows, 2 * shape.hidden_size + widest) + logits


def _width(layer: LayerSpec, setup: Setting) -> int:
    """Values of a row in the widest part of a layer: attention with its inputs and output, or the feed-forward."""
    attention, ffn = layer.attention, layer.ffn
    made = attention.query_size if isinstance(attention, GroupedAttention) else attention.output_size
    around = (attention.query_size + made) // setup.tp + attention.kv_values // setup.kv_parts(attention)
    if isinstance(ffn, ExpertFFN):
        return max(around, 2 * (ffn.active * ffn.size + ffn.shared) // setup.tp)
    return max(around, (2 if isinstance(ffn, GatedFFN) else 1) * ffn.size // setup.tp)


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Bytes of one device. ``kv`` is left for keys and values; below 0 it is what is missing."""

    memory: int
    reserve: int
    weights: int
    draft: int
    activations: int
    kv: int

    @property
    def usable(self) -> int:
        return self.memory - self.reserve

    def lines(self) -> Iterator[tuple[str, int]]:
        """Name and bytes of each part; a draft model's only where there is one."""
        yield "weights", self.weights
        if self.draft:
            yield "draft model", self.draft
        yield "activations", self.activations
        yield "keys and values", max(0, self.kv)
        yield "reserve", self.reserve


@dataclass(frozen=True, slots=True)
class ReplicaMemory:
    """The memory of ``setup.tp`` devices, of ``memory`` bytes each, that hold one copy of a model.

    rows, logit_rows    most of a step; 0 leaves activations out of the account
    draft               the model that guesses tokens, on the same devices
    share               of the memory that may be used
    """

    shape: ModelSpec
    memory: float
    setup: Setting = PLAIN
    rows: int = 0
    logit_rows: int = 0
    draft: ModelSpec | None = None
    share: float = MEMORY_SHARE

    def room(self) -> DeviceMemory:
        """The account of each device."""
        memory = int(self.memory)
        usable = int(self.share * memory)
        weights = weight_bytes(self.shape, self.setup)
        draft = weight_bytes(self.draft, self.setup) if self.draft else 0
        live = activation_bytes(self.shape, self.setup, self.rows, self.logit_rows)
        return DeviceMemory(memory, memory - usable, weights, draft, live, usable - weights - draft - live)

    def sequence_bytes(self, context: int) -> int:
        """Bytes of one sequence's keys and values on each device, in whole blocks."""
        return sum(kv_bytes(each, context, self.setup, block=BLOCK) for each in self._models())

    def token_bytes(self) -> int:
        """Bytes that each token adds on each device, where no window hides any."""
        return sum(kv_bytes_per_token(each, self.setup) for each in self._models())

    def sequences(self, context: int) -> int:
        """How many sequences of ``context`` tokens there is room for."""
        return max(0, self.room().kv) // self.sequence_bytes(context)

    def longest(self, sequences: int, most: int) -> int:
        """The longest context of ``sequences`` at once, in whole blocks and at most ``most``; 0 if no block fits."""
        pool = self.room().kv // sequences
        low, high = 0, -(-most // BLOCK)
        while low < high:
            middle = (low + high + 1) // 2
            if self.sequence_bytes(middle * BLOCK) <= pool:
                low = middle
            else:
                high = middle - 1
        return min(low * BLOCK, most)

    def _models(self) -> tuple[ModelSpec, ...]:
        return (self.shape, self.draft) if self.draft else (self.shape,)
