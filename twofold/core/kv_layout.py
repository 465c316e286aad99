"""How many bytes keys and values take: computed only here, for engine, kernels, server and planner.

    grouped attention      heads · bytes of ``head_dim`` keys and as many values, for each position and layer
    latent attention       bytes of the latent vector and of the rotated key
    recurrent attention    nothing; each sequence has a state of fixed size
    a block                that of ``block_size`` positions, for each layer of its group; of states, that of a sequence

A value has the bits of its format; formats with scales keep them beside the values of each head and position.

    q8      codes of 8 bits, and a bfloat16 scale for each head and position
    k8v4    keys as in q8; values of 4 bits with a bfloat16 scale for each head and position, and with a scale and a
            minimum of 8 bits for each 32 of them
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, get_args

from twofold.core.errors import ParameterError
from twofold.core.model import (
    Attention,
    GroupedAttention,
    KVGroup,
    KVKind,
    ModelSpec,
    Paged,
    RecurrentAttention,
    State,
)
from twofold.core.values import BF16, FP16, FP32, VALUE_FORMATS, ValueFormat, find_format


@dataclass(frozen=True, slots=True)
class MixedFormat(ValueFormat):
    """A format of keys; values have another one."""

    values: ValueFormat = BF16


Q8: Final = ValueFormat("q8", 8, "bf16", row_bytes=2)
VALUE_GROUP: Final = 32
"""Values of a head that share a scale and a minimum in 4 bits."""
VALUE_RANGE: Final = 508
"""A head's largest value in 4 bits, in units of its scale: 127 units of minima."""
MINIMUM_UNIT: Final = 4
"""Units of the scale in one of a group's minimum."""
V4: Final = ValueFormat("v4", 4, "bf16", VALUE_GROUP, tile_bytes=2, row_bytes=2)
K8V4: Final = MixedFormat("k8v4", 8, "bf16", row_bytes=2, values=V4)

MAX_INTEGER_HEAD: Final = 512
"""Largest head whose products of 16 and 8 bits, 32,767 · 127 each, have sums below 2³¹."""
KVType = Literal["bf16", "f16", "f32", "q8", "k8v4"]
INTEGER_TYPES: Final = frozenset[str]({"q8", "k8v4"})
KV_FORMATS: Final[Mapping[str, ValueFormat]] = {"bf16": BF16, "f16": FP16, "f32": FP32, "q8": Q8, "k8v4": K8V4}
"""The formats that keys and values of the engine have, by name."""


def spread_block(head_dim: int) -> int:
    """Values of a head that are spread together before they become integers (``backends.kv_codes``)."""
    return head_dim & -head_dim


def check_kv_type(spec: ModelSpec, kv_type: KVType) -> None:
    """Raises ParameterError if keys and values of a model cannot be kept in a type, which names those that it can take.

    Integers need heads of whole vectors of 16 values, or of whole groups in 4 bits, and sums of products below 2³¹.
    """
    sizes = {layer.attention.head_dim for layer in spec.layers if isinstance(layer.attention, GroupedAttention)}
    units = {"q8": 16, "k8v4": VALUE_GROUP}
    unfit = {
        name: {size for size in sizes if name in units and (size % units[name] or size > MAX_INTEGER_HEAD)}
        for name in get_args(KVType)
    }
    if unfit[kv_type]:
        possible = [name for name, without in unfit.items() if not without]
        raise ParameterError(
            f"{spec.name}'s heads of {max(unfit[kv_type])} values cannot be cached as {kv_type}.",
            param="kv_cache_dtype",
            hint=f"Use {', '.join(possible[:-1])} or {possible[-1]}.",
        )


def find_kv_format(name: str) -> ValueFormat:
    """The format of keys and values of that name: the engine's types, or any number format.

    Raises ParameterError with the nearest known name.
    """
    return find_format(name, {**VALUE_FORMATS, **KV_FORMATS})


def key_value_formats(form: ValueFormat) -> tuple[ValueFormat, ValueFormat]:
    """The format of keys, and that of values."""
    return form, form.values if isinstance(form, MixedFormat) else form


def key_value_bytes(heads: int, head_dim: int, positions: int, form: ValueFormat) -> int:
    """Bytes of the keys and values of ``heads`` heads and ``positions`` positions in one layer."""
    return sum(heads * each.nbytes(positions, head_dim) for each in key_value_formats(form))


def position_bytes(kind: KVKind, values: ValueFormat, devices: int = 1) -> int:
    """Bytes of one position in one layer, on one of the ``devices`` that share the layer's KV heads.

    Devices beyond the number of KV heads keep copies. A latent vector has no heads: every device keeps all of it.
    """
    match kind:
        case State():
            return 0
        case Paged():
            return key_value_bytes(kind.kv_heads // min(devices, kind.kv_heads), kind.head_dim, 1, values)
    return values.nbytes(1, kind.rank) + values.nbytes(1, kind.rope_dim)


def state_bytes(attention: Attention, values: ValueFormat, devices: int = 1) -> int:
    """Bytes of one sequence's recurrent state in one layer on one device; 0 for attention without one."""
    if not isinstance(attention, RecurrentAttention):
        return 0
    return FP32.nbytes(1, attention.state_values // devices) + values.nbytes(1, attention.conv_values // devices)


@dataclass(frozen=True, slots=True)
class KVLayout:
    """The KV cache of a model on one of ``devices``, in blocks of ``block_size`` positions. All layers of a ``draft``
    model are in the blocks of the first group, which has no window then."""

    spec: ModelSpec
    values: ValueFormat
    block_size: int = 1
    devices: int = 1
    draft: ModelSpec | None = None

    def block_bytes(self, group: KVGroup) -> int:
        """Bytes of a block of the group, or of a sequence's state: those of all its layers."""
        if isinstance(group.kind, State):
            return len(group.layers) * (group.kind.nbytes // self.devices)
        draft = self._draft_bytes() if group.number == 0 and group.window is None else 0
        return self.block_size * (draft + len(group.layers) * position_bytes(group.kind, self.values, self.devices))

    def window_bytes(self, context: int) -> dict[int | None, int]:
        """Bytes of a block in each group of that window, the widest first: such groups have equally many blocks."""
        found: dict[int | None, int] = {}
        for group in self.spec.kv_groups(context):
            if not isinstance(group.kind, State):
                found[group.window] = found.get(group.window, 0) + self.block_bytes(group)
        return found

    def token_bytes(self) -> int:
        """Bytes that one token adds in all layers."""
        return self._draft_bytes() + self._position_bytes(self.spec)

    def _draft_bytes(self) -> int:
        return 0 if self.draft is None else self._position_bytes(self.draft)

    def _position_bytes(self, spec: ModelSpec) -> int:
        return sum(
            count * position_bytes(layer.attention.kept, self.values, self.devices) for count, layer in spec.runs
        )
