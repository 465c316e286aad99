"""What must lie in memory: parameters, bytes of weights, of keys and values; how many sequences it has room for.

bytes of K and V, a token       Σ_layers 2 · n_k · d · bytes; of latent attention (rank + rope) · bytes
bytes of K and V, a sequence    Σ_layers min(context, window), in whole blocks; of recurrent attention its state
sequences                       ⌊(share · memory − weights − activations − other) / KV(context)⌋
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from twofold.core.model import ModelSpec
from twofold.core.tensors import EMBEDDING, layer_weights, outer_weights
from twofold.planner.count.setting import PLAIN, Setting


@dataclass(frozen=True, slots=True)
class Parameters:
    """How many values a model's weights are.

    layers      matrices of all layers, experts all counted
    active      those that a row passes through: the P of 2 · P FLOPs a row
    head        of the matrix that makes logits, whether or not it is the embedding too
    embedding   of the embedding table
    vectors     norms, biases and the like
    total       of everything stored
    """

    layers: int
    active: int
    head: int
    embedding: int
    vectors: int
    total: int


def parameters(shape: ModelSpec) -> Parameters:
    """Counts a model's parameters."""
    inner = [(count, weight) for count, layer in shape.runs for weight in layer_weights(layer, shape.hidden_size)]
    outer = [(1, weight) for weight in outer_weights(shape)]
    matrices = [(count, weight) for count, weight in inner if not weight.vector]
    table = shape.vocab_size * shape.hidden_size
    return Parameters(
        layers=sum(count * weight.parameters for count, weight in matrices),
        active=sum(count * weight.active * weight.rows * weight.columns for count, weight in matrices),
        head=table,
        embedding=table,
        vectors=sum(count * weight.parameters for count, weight in inner + outer if weight.vector),
        total=sum(count * weight.parameters for count, weight in inner + outer),
    )


@lru_cache(maxsize=256)
def weight_bytes(shape: ModelSpec, how: Setting = PLAIN) -> int:
    """Bytes of all weights that one device keeps."""
    inner = (
        count * how.nbytes(weight, layer.attention)
        for count, layer in shape.runs
        for weight in layer_weights(layer, shape.hidden_size)
    )
    return round(sum(inner) + sum(how.nbytes(weight) for weight in outer_weights(shape)))


def streamed_bytes(shape: ModelSpec, how: Setting = PLAIN) -> int:
    """Bytes of weights that a step of very many rows reads: all but tables of which it looks rows up."""
    tables = {"positions"} if shape.tied_head else {"positions", EMBEDDING}
    looked_up = (how.nbytes(weight) for weight in outer_weights(shape) if weight.name in tables)
    return weight_bytes(shape, how) - round(sum(looked_up))


def kv_bytes_per_token(shape: ModelSpec, how: Setting = PLAIN) -> int:
    """Bytes that one token adds to one device's cache, in all layers: what a token costs where no window hides it."""
    return sum(count * how.token_bytes(layer.attention) for count, layer in shape.runs)


def kv_bytes(shape: ModelSpec, context: int, how: Setting = PLAIN, *, block: int = 1) -> int:
    """Bytes of keys and values of one sequence in one device's cache, in whole blocks of ``block`` positions.

    Layers with a window keep what their rows can still see; a window that begins inside a block needs one block more.
    """
    total = 0
    for count, layer in shape.runs:
        total += count * how.token_bytes(layer.attention) * _kept_positions(context, layer.attention.window, block)
        total += count * how.state_bytes(layer.attention)
    return total


def _kept_positions(context: int, window: int | None, block: int) -> int:
    whole = -(-context // block) * block
    if window is None:
        return whole
    return min(whole, -(-(window - 1) // block) * block + block if block > 1 else window)


@dataclass(frozen=True, slots=True)
class Fit:
    """What a device's memory holds, in bytes; ``sequences`` of one context, ``tokens`` where no window hides any."""

    usable: int
    weights: int
    other: int
    kv_pool: int
    kv_a_sequence: int
    sequences: int
    tokens: int

    @property
    def fits(self) -> bool:
        return self.sequences > 0


def fit(
    shape: ModelSpec,
    memory_bytes: float,
    context: int,
    how: Setting = PLAIN,
    *,
    share: float = 0.9,
    other_bytes: int = 0,
    block: int = 16,
) -> Fit:
    """How many sequences of ``context`` tokens one device has room for.

    ``share`` of the memory may be used; ``other_bytes`` go to activations, libraries and graphs. ``tokens`` counts what
    the pool holds in blocks, as engines print it. Nothing fits where the weights do not.
    """
    weights = weight_bytes(shape, how)
    usable = int(share * memory_bytes)
    pool = max(0, usable - weights - other_bytes)
    each = kv_bytes(shape, context, how, block=block)
    blocks = pool // (kv_bytes_per_token(shape, how) * block)
    return Fit(usable, weights, other_bytes, pool, each, pool // each, blocks * block)
