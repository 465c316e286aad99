"""Rotary embeddings from GGUF metadata: bases, and the four ways of stretching a context."""

from __future__ import annotations

import math

import numpy as np

from twofold.core.errors import FormatError, UnsupportedModelError
from twofold.core.model import FactorScaling, LinearScaling, RopeScaling, RopeSpec, YarnScaling
from twofold.core.tensors import ROPE_FACTORS, ROPE_LONG, ROPE_SHORT
from twofold.core.typed_fields import FILE_HINT, TypedFields
from twofold.formats.base import ModelFile
from twofold.models.architectures import Architecture


def read_ropes(
    fields: TypedFields, architecture: Architecture, head_dim: int, file: ModelFile, context: int
) -> tuple[RopeSpec, RopeSpec]:
    """The rope of layers that see everything, and that of windowed layers. Scaling applies to the former only.

    ``context`` is the longest sequence that will run: LongRoPE chooses its factors by it.
    """
    dims = fields.integer("rope.dimension_count", head_dim, least=2, most=head_dim)
    if dims % 2:
        raise FormatError(f"The rope of the model rotates {dims} values of a head, which are not pairs.")
    base = fields.number("rope.freq_base", 10_000.0, least=2.0)
    scaling = _scaling(fields, dims // 2, file, context)
    everywhere = RopeSpec(dims, base, architecture.rope_pairs, scaling)
    if architecture.local_rope_base is None:
        return everywhere, everywhere
    local_base = fields.number("rope.freq_base_swa", architecture.local_rope_base, least=2.0)
    return everywhere, RopeSpec(dims, local_base, architecture.rope_pairs)


def _scaling(fields: TypedFields, pairs: int, file: ModelFile, context: int) -> RopeScaling | None:
    kind = fields.text("rope.scaling.type", "linear")
    factor = fields.number("rope.scaling.factor", fields.number("rope.scale_linear", 1.0)) or 1.0
    magnitude = fields.positive("rope.scaling.attn_factor", 1.0)
    original = fields.integer("rope.scaling.original_context_length", fields.integer("context_length"))
    if ROPE_LONG in file.tensors and kind in ("linear", "longrope", "none"):
        return _longrope(fields, pairs, file, context)
    if kind == "yarn" and ROPE_FACTORS not in file.tensors:
        return _yarn(fields, factor, original, magnitude)
    if kind not in ("linear", "none"):
        raise UnsupportedModelError(
            f"Twofold does not support the rope scaling {kind!r} of this model.",
            hint="Known: linear, yarn, longrope with its factor tensors, and Llama 3's rope_freqs tensor.",
        )
    stretch = factor if kind == "linear" else 1.0
    if ROPE_FACTORS in file.tensors:
        factors = _factors(ROPE_FACTORS, pairs, file)
        return FactorScaling(tuple(stretch * value for value in factors), magnitude)
    return LinearScaling(stretch) if stretch != 1.0 else None


def _yarn(fields: TypedFields, factor: float, original: int, magnitude: float) -> YarnScaling:
    return YarnScaling(
        factor,
        original,
        beta_fast=fields.positive("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=fields.positive("rope.scaling.yarn_beta_slow", 1.0),
        extrapolation=fields.number("rope.scaling.yarn_ext_factor", 1.0),
        attention_factor=magnitude * fields.positive("rope.scaling.yarn_attn_factor", 1.0),
    )


def _longrope(fields: TypedFields, pairs: int, file: ModelFile, context: int) -> FactorScaling:
    """LongRoPE (Ding et al. 2024): long factors where a sequence can outgrow the context of pre-training."""
    original = fields.integer("rope.scaling.original_context_length", least=2)
    stretch = max(1.0, fields.integer("context_length") / original)
    magnitude = fields.positive("rope.scaling.attn_factor", math.sqrt(1 + math.log(stretch) / math.log(original)))
    name = ROPE_LONG if context > original else ROPE_SHORT
    return FactorScaling(_factors(name, pairs, file), magnitude)


def _factors(name: str, pairs: int, file: ModelFile) -> tuple[float, ...]:
    tensor = file.tensors.get(name)
    if tensor is not None and (tensor.rows, tensor.columns, tensor.format.name) == (1, pairs, "F32"):
        factors = file.data(name).view("<f4").astype(np.float64)
        if np.all(np.isfinite(factors) & (factors > 0)):
            return tuple(factors.tolist())
    raise FormatError(f"The tensor {name!r} must hold {pairs} positive rope factors in F32.", hint=FILE_HINT)
