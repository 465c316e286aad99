"""Rotary embeddings from GGUF metadata: bases, and the four ways of stretching a context."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from twofold.core.errors import FormatError, UnsupportedModelError
from twofold.core.model import FactorScaling, LinearScaling, RopeScaling, RopeSpec, YarnScaling
from twofold.models.architectures import Architecture
from twofold.models.keys import Keys
from twofold.models.tensors import TensorShape

FREQUENCIES: Final = "rope_freqs.weight"
LONG_FACTORS: Final = "rope_factors_long.weight"
SHORT_FACTORS: Final = "rope_factors_short.weight"
ROPE_TENSORS: Final = frozenset({FREQUENCIES, LONG_FACTORS, SHORT_FACTORS})

ReadBytes = Callable[[str], NDArray[np.uint8]]
"""The bytes of a tensor of the model file, by its name."""

Tensors = Mapping[str, TensorShape]


def read_ropes(
    keys: Keys, architecture: Architecture, head_dim: int, tensors: Tensors, read: ReadBytes, context: int
) -> tuple[RopeSpec, RopeSpec]:
    """The rope of layers that see everything, and that of windowed layers. Scaling applies to the former only.

    ``context`` is the longest sequence that will run: LongRoPE chooses its factors by it.
    """
    dims = keys.integer("rope.dimension_count", head_dim, least=2, most=head_dim)
    if dims % 2:
        raise FormatError(f"The rope of the model rotates {dims} values of a head, which are not pairs.")
    base = keys.number("rope.freq_base", 10_000.0, least=2.0)
    scaling = _scaling(keys, dims // 2, tensors, read, context)
    everywhere = RopeSpec(dims, base, architecture.rope_pairs, scaling)
    if architecture.local_rope_base is None:
        return everywhere, everywhere
    local_base = keys.number("rope.freq_base_swa", architecture.local_rope_base, least=2.0)
    return everywhere, RopeSpec(dims, local_base, architecture.rope_pairs)


def _scaling(keys: Keys, pairs: int, tensors: Tensors, read: ReadBytes, context: int) -> RopeScaling | None:
    kind = keys.text("rope.scaling.type", "linear")
    factor = keys.number("rope.scaling.factor", keys.number("rope.scale_linear", 1.0)) or 1.0
    magnitude = keys.positive("rope.scaling.attn_factor", 1.0)
    original = keys.integer("rope.scaling.original_context_length", keys.integer("context_length"))
    if LONG_FACTORS in tensors and kind in ("linear", "longrope", "none"):
        return _longrope(keys, pairs, tensors, read, context)
    if kind == "yarn" and FREQUENCIES not in tensors:
        return _yarn(keys, factor, original, magnitude)
    if kind not in ("linear", "none"):
        raise UnsupportedModelError(
            f"Twofold does not support the rope scaling {kind!r} of this model.",
            hint="Known: linear, yarn, longrope with its factor tensors, and Llama 3's rope_freqs tensor.",
        )
    stretch = factor if kind == "linear" else 1.0
    if FREQUENCIES in tensors:
        factors = _factors(FREQUENCIES, pairs, tensors, read)
        return FactorScaling(tuple(stretch * value for value in factors), magnitude)
    return LinearScaling(stretch) if stretch != 1.0 else None


def _yarn(keys: Keys, factor: float, original: int, magnitude: float) -> YarnScaling:
    return YarnScaling(
        factor,
        original,
        beta_fast=keys.positive("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=keys.positive("rope.scaling.yarn_beta_slow", 1.0),
        extrapolation=keys.number("rope.scaling.yarn_ext_factor", 1.0),
        attention_factor=magnitude * keys.positive("rope.scaling.yarn_attn_factor", 1.0),
    )


def _longrope(keys: Keys, pairs: int, tensors: Tensors, read: ReadBytes, context: int) -> FactorScaling:
    """LongRoPE (Ding et al. 2024): long factors where a sequence can outgrow the context of pre-training."""
    original = keys.integer("rope.scaling.original_context_length", least=2)
    stretch = max(1.0, keys.integer("context_length") / original)
    magnitude = keys.positive("rope.scaling.attn_factor", math.sqrt(1 + math.log(stretch) / math.log(original)))
    name = LONG_FACTORS if context > original else SHORT_FACTORS
    return FactorScaling(_factors(name, pairs, tensors, read), magnitude)


def _factors(name: str, pairs: int, tensors: Tensors, read: ReadBytes) -> tuple[float, ...]:
    tensor = tensors.get(name)
    if tensor is not None and (tensor.rows, tensor.columns, tensor.format.name) == (1, pairs, "F32"):
        factors = read(name).view("<f4").astype(np.float64)
        if np.all(np.isfinite(factors) & (factors > 0)):
            return tuple(factors.tolist())
    raise FormatError(
        f"The tensor {name!r} must hold {pairs} positive rope factors in F32.",
        hint="The file is damaged or was made by a faulty converter.",
    )
