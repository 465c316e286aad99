"""What lies in a device's memory, line by line, and what it leaves room for.

    memory = reserve + weights + draft + activations + keys and values

The reserve is what the server does not take: libraries, graphs, fragments. Activations are the most that live at once
in a step of so many rows: the residual stream and its copy, the widest of a layer's parts, and logits in float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from twofold.core.model import ExpertFFN, GatedFFN, GroupedAttention, LayerSpec, ModelSpec
from twofold.planner.count.memory import kv_bytes, kv_bytes_per_token, weight_bytes
from twofold.planner.count.setting import PLAIN, Setting
from twofold.planner.machines.machine import Machine

MEMORY_SHARE: Final = 0.9
BLOCK: Final = 16
LOGIT_BYTES: Final = 4


def activation_bytes(shape: ModelSpec, how: Setting, rows: int, logit_rows: int) -> int:
    """Most bytes of one device's activations that live at once in a step of ``rows``."""
    widest = max(_width(layer, how) for _, layer in shape.runs)
    logits = LOGIT_BYTES * logit_rows * -(-shape.vocab_size // how.tp)
    return how.activations.nbytes(rows, 2 * shape.hidden_size + widest) + logits


def _width(layer: LayerSpec, how: Setting) -> int:
    """Values of a row in the widest part of a layer: queries, keys, values and what attention makes, or what is
    between the matrices of the feed-forward."""
    attention, ffn = layer.attention, layer.ffn
    made = attention.query_size if isinstance(attention, GroupedAttention) else attention.output_size
    around = (attention.query_size + made) // how.tp + attention.kv_values // how.kv_parts(attention)
    if isinstance(ffn, ExpertFFN):
        return max(around, 2 * (ffn.active * ffn.size + ffn.shared) // how.tp)
    return max(around, (2 if isinstance(ffn, GatedFFN) else 1) * ffn.size // how.tp)


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Bytes of one device. ``kv`` is what is left for keys and values; below 0, what is missing already."""

    memory: int
    reserve: int
    weights: int
    draft: int
    activations: int
    kv: int

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
    """The memory of ``how.tp`` machines that serve a model together, in steps of at most ``rows``."""

    shape: ModelSpec
    machine: Machine
    how: Setting = PLAIN
    rows: int = 2048
    logit_rows: int = 256
    draft: ModelSpec | None = None
    share: float = MEMORY_SHARE

    def room(self) -> DeviceMemory:
        """What is where on each device."""
        memory = int(self.machine.memory)
        usable = int(self.share * memory)
        weights = weight_bytes(self.shape, self.how)
        draft = weight_bytes(self.draft, self.how) if self.draft else 0
        live = activation_bytes(self.shape, self.how, self.rows, self.logit_rows)
        return DeviceMemory(memory, memory - usable, weights, draft, live, usable - weights - draft - live)

    def sequence_bytes(self, context: int) -> int:
        """Of one sequence's keys and values on each device, in whole blocks."""
        own = kv_bytes(self.shape, context, self.how, block=BLOCK)
        return own + (kv_bytes(self.draft, context, self.how, block=BLOCK) if self.draft else 0)

    def token_bytes(self) -> int:
        """That each token adds on each device, where no window hides any."""
        own = kv_bytes_per_token(self.shape, self.how)
        return own + (kv_bytes_per_token(self.draft, self.how) if self.draft else 0)

    def sequences(self, context: int) -> int:
        """How many sequences of so many tokens there is room for."""
        return max(0, self.room().kv) // self.sequence_bytes(context)

    def longest(self, sequences: int, most: int) -> int:
        """The longest context of so many sequences at once, in whole blocks and at most ``most``; 0 where none fits."""
        pool = self.room().kv // sequences
        low, high = 0, -(-most // BLOCK)
        while low < high:
            middle = (low + high + 1) // 2
            if self.sequence_bytes(middle * BLOCK) <= pool:
                low = middle
            else:
                high = middle - 1
        return min(low * BLOCK, most)
