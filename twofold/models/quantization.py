"""How the weights of a Hugging Face model are stored, from ``quantization_config`` and ``dtype``.

Quantisers leave embeddings, head, norms, biases and routers as they are, and what a list of modules names. Where such
a list differs from layer to layer, the layer in the middle speaks for all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Final

from twofold.core.errors import UnsupportedModelError, describe_name, did_you_mean
from twofold.core.model import Formats
from twofold.core.typed_fields import TypedFields
from twofold.core.values import (
    BF16,
    FP8,
    FP8_BLOCK,
    FP16,
    FP32,
    INT4,
    INT8,
    MXFP4,
    NF4,
    NVFP4,
    W8A8,
    ValueFormat,
    grouped,
)

DTYPES: Final[Mapping[str, ValueFormat]] = {"bfloat16": BF16, "float16": FP16, "float32": FP32}

MODULES: Final[Mapping[str, str]] = {
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "q_a": "self_attn.q_a_proj",
    "q_b": "self_attn.q_b_proj",
    "kv_a": "self_attn.kv_a_proj_with_mqa",
    "k_b": "self_attn.kv_b_proj",
    "v_b": "self_attn.kv_b_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
    "expert_gate": "mlp.experts.0.gate_proj",
    "expert_up": "mlp.experts.0.up_proj",
    "expert_down": "mlp.experts.0.down_proj",
    "shared_gate": "mlp.shared_experts.gate_proj",
    "shared_up": "mlp.shared_experts.up_proj",
    "shared_down": "mlp.shared_experts.down_proj",
}
"""The module of each tensor inside a layer."""

NEVER: Final = ("router", "shared_router")
"""Matrices that are never quantised, whatever the list of modules contains."""

MAX_PATTERN: Final = 256


@dataclass(frozen=True, slots=True)
class ModelFormats:
    """Formats outside and inside of the layers."""

    outer: Formats
    inner: Formats


def read_formats(fields: TypedFields) -> ModelFormats:
    """The formats of a configuration's weights. Raises UnsupportedModelError for an unknown kind of quantisation."""
    plain = _dtype(fields)
    kept = Formats(plain, plain)
    part = fields.part("quantization_config")
    if part is None:
        return ModelFormats(kept, kept)
    form = _format(part)
    patterns = _patterns(part)
    layer = fields.integer("num_hidden_layers") // 2
    special = [(name, plain) for name in NEVER]
    special += [(name, plain) for name, module in MODULES.items() if _kept(patterns, f"model.layers.{layer}.{module}")]
    return ModelFormats(kept, replace(kept, matrices=form, special=tuple(special)))


def _dtype(fields: TypedFields) -> ValueFormat:
    name = fields.text("dtype" if "dtype" in fields else "torch_dtype", "bfloat16").removeprefix("torch.")
    if name not in DTYPES:
        raise fields.wrong("torch_dtype", name, f"one of {', '.join(DTYPES)}")
    return DTYPES[name]


def _format(part: TypedFields) -> ValueFormat:
    method = part.text("quant_method", "modelopt" if "quant_algo" in part else None)
    match method:
        case "fp8" | "fbgemm_fp8":
            return FP8_BLOCK if part.items("weight_block_size") else FP8
        case "gptq" | "awq":
            return _integers(part.integer("bits", 4), _group(part))
        case "mxfp4":
            return MXFP4
        case "bitsandbytes":
            return NF4 if part.flag("load_in_4bit", False) else INT8
        case "modelopt":
            return _modelopt(part)
        case "compressed-tensors":
            return _compressed(part)
    known = ("fp8", "gptq", "awq", "mxfp4", "bitsandbytes", "modelopt", "compressed-tensors")
    raise UnsupportedModelError(
        f"{part.label}: the quantization {describe_name(method)} is not supported (field 'quant_method').",
        hint=did_you_mean(method, known),
    )


def _group(part: TypedFields) -> int:
    """Values of a group; -1 is a whole row."""
    return part.integer("group_size", 128, least=-1)


def _integers(bits: int, group: int) -> ValueFormat:
    """Weight-only codes with one 16-bit scale a group."""
    return grouped(replace(INT4, name=f"int{bits}", bits=bits), group)


def _modelopt(part: TypedFields) -> ValueFormat:
    algorithms = {"FP8": FP8, "NVFP4": NVFP4, "W4A16_AWQ": INT4, "INT8_SQ": W8A8}
    name = part.text("quant_algo")
    if name not in algorithms:
        raise part.wrong("quant_algo", name, f"one of {', '.join(algorithms)}")
    return algorithms[name]


def _compressed(part: TypedFields) -> ValueFormat:
    groups = part.part("config_groups")
    first = None if groups is None else next((groups.part(name) for name in groups.values), None)
    weights = None if first is None else first.part("weights")
    if first is None or weights is None:
        raise part.wrong("config_groups", None, "a group with 'weights'")
    bits, activations = weights.integer("num_bits"), "input_activations" in first
    if weights.text("type", "int") == "float":
        return FP8 if bits == 8 else NVFP4
    if bits == 8 and activations:
        return W8A8
    return _integers(bits, _group(weights) if weights.text("strategy", "channel") == "group" else -1)


def _patterns(part: TypedFields) -> Sequence[str]:
    names = ("modules_to_not_convert", "ignore", "ignored_layers", "exclude_modules", "llm_int8_skip_modules")
    found = [each for name in names for each in part.items(name)]
    return [pattern for each in found if isinstance(each, str) for pattern in _spelled(each[:MAX_PATTERN])]


def _spelled(pattern: str) -> list[str]:
    """A pattern as globs: of regular expressions only ``.*``, escapes and one choice of words are understood."""
    if not pattern.startswith("re:"):
        return [pattern]
    glob = pattern.removeprefix("re:").replace("\\.", "\0").replace(".*", "*").replace("\0", ".").strip("^$")
    before, opened, rest = glob.partition("(")
    choices, closed, after = rest.partition(")")
    return [before + each + after for each in choices.split("|")] if opened and closed else [glob]


def _kept(patterns: Sequence[str], module: str) -> bool:
    return any(_matches(pattern, module) for pattern in patterns)


def _matches(pattern: str, module: str) -> bool:
    """Whether a pattern names the module, one of those that it is in, or its last parts."""
    parts = module.split(".")
    inside = [".".join(parts[start:stop]) for start in range(len(parts)) for stop in range(start + 1, len(parts) + 1)]
    whole = (each for each in inside if each == pattern)
    if "*" not in pattern:
        return next(whole, None) is not None
    return any(fnmatchcase(".".join(parts[:stop]), pattern) for stop in range(1, len(parts) + 1))
