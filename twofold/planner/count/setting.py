"""How a model is served, as far as counts depend on it: devices, and how keys, values and activations are stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from twofold.core.errors import ParameterError
from twofold.core.kv_layout import position_bytes, state_bytes
from twofold.core.model import Attention, GroupedAttention, LayerSpec, ModelSpec, RecurrentAttention
from twofold.core.tensors import Weight, layer_weights
from twofold.core.values import BF16, Arithmetic, ValueFormat


@dataclass(frozen=True, slots=True)
class Setting:
    """``tp`` devices share every layer (Megatron's split: heads, feed-forward columns, vocabulary).

    Where devices outnumber KV heads each keeps a copy of one; latent vectors are kept by every device. ``ep`` of the
    ``tp`` parts of an expert layer are whole experts: 1 cuts each expert into ``tp``, ``tp`` gives each device its own.
    ``attention`` is the arithmetic of attention; None: that of activations.
    """

    tp: int = 1
    ep: int = 1
    kv: ValueFormat = BF16
    activations: ValueFormat = BF16
    attention: Arithmetic | None = None

    def __post_init__(self) -> None:
        if self.tp < 1:
            raise ParameterError(f"tp must be at least 1, not {self.tp}.", param="tp")
        if self.ep < 1 or self.tp % self.ep:
            raise ParameterError(
                f"{self.tp} devices cannot be {self.ep} parts of experts.",
                param="ep",
                hint="Both must be positive, and ep must divide tp.",
            )

    def check(self, shape: ModelSpec) -> None:
        """Raises ParameterError where the heads cannot be shared out to ``tp`` devices equally."""
        for _, layer in shape.runs:
            heads = layer.attention.heads
            kv_heads = heads
            if isinstance(layer.attention, GroupedAttention):
                kv_heads = layer.attention.kv_heads
            elif isinstance(layer.attention, RecurrentAttention):
                heads = kv_heads = layer.attention.key_heads
            whole = kv_heads % self.tp == 0 or self.tp % kv_heads == 0
            if heads % self.tp or not whole:
                raise ParameterError(
                    f"{shape.name}: {heads} attention heads and {kv_heads} KV heads cannot be split across "
                    f"{self.tp} devices.",
                    param="tp",
                    hint=f"Use a number that divides {heads}.",
                )

    @property
    def attention_arithmetic(self) -> Arithmetic:
        return self.attention or self.activations.arithmetic

    def matrix_arithmetic(self, weights: ValueFormat) -> Arithmetic:
        """That of the weights, but float32 for 16-bit floats that multiply float32 activations."""
        own, other = weights.arithmetic, self.activations.arithmetic
        return other if other == "fp32" and own in ("bf16", "fp16") else own

    def kv_parts(self, attention: Attention) -> int:
        """In how many parts the keys and values are cut; devices beyond that keep copies."""
        return min(self.tp, attention.kv_heads) if isinstance(attention, GroupedAttention) else 1

    def share(self, weight: Weight, attention: Attention | None = None) -> tuple[int, int, float]:
        """What one device keeps of a tensor: rows, columns and copies (a mean where experts do not divide)."""
        rows, columns, parts = weight.rows, weight.columns, self.tp
        if weight.copies > 1:
            parts //= self.ep
        copies = weight.copies / self.ep if weight.copies > 1 else 1
        if weight.split == "kv" and attention is not None:
            parts = self.kv_parts(attention)
        if weight.split == "none":
            return rows, columns, copies
        if weight.split == "columns" or weight.vector:
            return rows, -(-columns // parts), copies
        return -(-rows // parts), columns, copies

    def nbytes(self, weight: Weight, attention: Attention | None = None) -> float:
        """Bytes that one device keeps of a tensor."""
        rows, columns, copies = self.share(weight, attention)
        return copies * weight.format.nbytes(rows, columns)

    def expert_bytes(self, layer: LayerSpec, hidden: int) -> float:
        """Bytes of all experts of a layer that one device keeps."""
        return sum(self.nbytes(weight) for weight in layer_weights(layer, hidden) if weight.copies > 1)

    def token_bytes(self, attention: Attention) -> int:
        """Bytes that one token adds in one layer's cache of one device."""
        return position_bytes(attention.kept, self.kv, self.tp)

    def state_bytes(self, attention: Attention) -> int:
        """Bytes of one sequence's recurrent state in one layer on one device."""
        return state_bytes(attention, self.activations, self.tp)


PLAIN: Final = Setting()
"""One device, everything in bf16."""
