"""From a Hugging Face ``config.json`` to the sizes of a model; of vision and audio models only the language part.

The format of the weights is read from ``quantization_config`` and ``dtype``. Quantisers do not change embeddings, head,
norms, biases and routers, nor the modules in a list. If such a list differs from layer to layer, the layer in the
middle decides for all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from twofold.core.errors import (
    FormatError,
    ModelNotFoundError,
    ResourceError,
    UnsupportedModelError,
    describe_name,
    did_you_mean,
)
from twofold.core.model import (
    Attention,
    ExpertFFN,
    FeedForward,
    Formats,
    GatedFFN,
    GroupedAttention,
    LatentAttention,
    LayerSpec,
    ModelSpec,
    RecurrentAttention,
)
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
from twofold.models.architectures import BY_KIND, Architecture

MAX_BYTES: Final = 16 << 20
MAX_LAYERS: Final = 4096

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

NEVER_QUANTISED: Final = ("router", "shared_router")
"""Matrices that are never quantised, whatever the list of modules contains."""

MAX_PATTERN: Final = 256


def read_config_file(path: Path) -> ModelSpec:
    """The sizes that a config.json describes; ``path`` is the file or its folder. The formats may also be in ModelOpt's
    ``hf_quant_config.json`` beside it.

    Raises FormatError naming the field that is missing or wrong, UnsupportedModelError for an unknown kind of model,
    ModelNotFoundError if there is no file.
    """
    file = path / "config.json" if path.is_dir() else path
    values = _load(file)
    beside = file.with_name("hf_quant_config.json")
    if "quantization_config" not in values and beside.is_file():
        values = {**values, "quantization_config": _load(beside).get("quantization")}
    return read_config(values, name=file.parent.resolve().name, label=str(file))


def _load(file: Path) -> Mapping[str, object]:
    try:
        if file.stat().st_size > MAX_BYTES:
            raise FormatError(f"{file} is larger than any configuration.", hint="Name a model's config.json.")
        values = json.loads(file.read_bytes())
    except FileNotFoundError as error:
        raise ModelNotFoundError(f"There is no file {file}.", hint="Name a config.json or its folder.") from error
    except OSError as error:
        raise ResourceError(f"{file} cannot be read: {error.strerror}.", hint="Check its permissions.") from error
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{file} is not JSON.", hint="Name a model's config.json.") from error
    if not isinstance(values, Mapping):
        raise FormatError(f"{file} is not a JSON object.", hint="Name a model's config.json.")
    return values


def read_config(values: Mapping[str, object], *, name: str | None = None, label: str = "config.json") -> ModelSpec:
    """The sizes that a configuration describes. ``label`` names it in errors; ``name`` is the model's."""
    inner = values.get("text_config")
    text = {**values, **inner} if isinstance(inner, Mapping) else values
    architecture = _architecture(text, label)
    fields = TypedFields(text, label, architecture.defaults)
    outer, inner = _formats(fields)
    count = fields.integer("num_hidden_layers", most=MAX_LAYERS)
    recurrent = _recurrent_layers(fields, architecture, count)
    windows = _windows(fields, architecture, count)
    experts = [_has_experts(fields, architecture, index) for index in range(count)]
    kinds: dict[tuple[Attention, bool], LayerSpec] = {}
    layers = []
    for index, (window, state, mixed) in enumerate(zip(windows, recurrent, experts, strict=True)):
        attention = _recurrent(fields) if state else _attention(fields, architecture, window, index)
        if (attention, mixed) not in kinds:
            ffn = _feed_forward(fields, architecture, experts=mixed)
            kinds[attention, mixed] = LayerSpec(attention, ffn, architecture.norms, inner)
        layers.append(kinds[attention, mixed])
    return ModelSpec(
        name=_name(values, name or architecture.kinds[0]),
        hidden_size=fields.integer("hidden_size"),
        vocab_size=fields.integer("vocab_size"),
        context_length=fields.integer("max_position_embeddings"),
        layers=tuple(layers),
        tied_head=fields.flag("tie_word_embeddings", False),
        formats=outer,
        source=label,
    )


def _architecture(values: Mapping[str, object], label: str) -> Architecture:
    kind = values.get("model_type")
    architectures = values.get("architectures")
    first = architectures[0] if isinstance(architectures, list) and architectures else None
    if kind is None and isinstance(first, str):
        kind = _kind_of(first)
    if kind is None:
        raise FormatError(f"{label} lacks the field 'model_type'.", hint="Use the config.json of a language model.")
    architecture = BY_KIND.get(kind) if isinstance(kind, str) else None
    if architecture is None:
        raise UnsupportedModelError(
            f"{label}: the model type {describe_name(kind)} is not supported (field 'model_type').",
            hint=did_you_mean(str(kind), BY_KIND),
        )
    return architecture


def _kind_of(name: str) -> str:
    """The ``model_type`` of a class, such as ``qwen3_moe`` of ``Qwen3MoeForCausalLM``; ``name`` itself if unknown."""
    plain = name.removesuffix("ForCausalLM").lower()
    return next((kind for kind in BY_KIND if plain in (kind.replace("_", ""), kind.removesuffix("_text"))), name)


def _name(values: Mapping[str, object], fallback: str) -> str:
    given = values.get("_name_or_path")
    last = given.rstrip("/").rsplit("/", 1)[-1] if isinstance(given, str) else ""
    return last or fallback


def _attention(fields: TypedFields, architecture: Architecture, window: int | None, index: int) -> Attention:
    heads = fields.integer("num_attention_heads", layer=index)
    if architecture.latent:
        return _latent(fields, heads)
    hidden = fields.integer("hidden_size")
    kv_heads = fields.integer("num_key_value_heads", heads, layer=index)
    if "head_dim" not in fields and hidden % heads:
        raise fields.wrong("hidden_size", hidden, f"whole heads ({heads} of them), or 'head_dim' given")
    if heads % kv_heads:
        raise fields.wrong("num_key_value_heads", kv_heads, f"a divisor of {heads} (num_attention_heads)")
    bias = fields.flag("attention_bias", False)
    return GroupedAttention(
        heads,
        kv_heads,
        fields.integer("head_dim", hidden // heads, layer=index),
        window,
        architecture.qk_norm,
        bias if architecture.qkv_bias is None else architecture.qkv_bias,
        bias if architecture.output_bias is None else architecture.output_bias,
        architecture.sinks,
        output_gate=architecture.recurrent,
    )


def _recurrent(fields: TypedFields) -> RecurrentAttention:
    heads, key_heads = fields.integer("linear_num_value_heads"), fields.integer("linear_num_key_heads")
    if heads % key_heads:
        raise fields.wrong("linear_num_key_heads", key_heads, f"a divisor of {heads} (linear_num_value_heads)")
    return RecurrentAttention(
        heads,
        key_heads,
        key_dim=fields.integer("linear_key_head_dim"),
        value_dim=fields.integer("linear_value_head_dim"),
        conv=fields.integer("linear_conv_kernel_dim"),
    )


def _recurrent_layers(fields: TypedFields, architecture: Architecture, count: int) -> list[bool]:
    """Whether each layer is recurrent. Raises FormatError if all are: at least one must have keys and values."""
    if not architecture.recurrent:
        return [False] * count
    kinds = _layer_types(fields, count)
    period = fields.integer("full_attention_interval", architecture.period)
    found = [kind == "linear_attention" for kind in kinds] or [(index + 1) % period > 0 for index in range(count)]
    if all(found):
        raise fields.wrong("layer_types", kinds, "a list with at least one 'full_attention'")
    return found


def _layer_types(fields: TypedFields, count: int) -> list[object]:
    """Returns the field ``layer_types``, or an empty list if the file lacks it."""
    kinds = fields.items("layer_types")
    if kinds and len(kinds) != count:
        raise fields.wrong("layer_types", kinds, f"one kind for each of the {count} layers")
    return list(kinds)


def _latent(fields: TypedFields, heads: int) -> LatentAttention:
    return LatentAttention(
        heads,
        fields.integer("q_lora_rank") if "q_lora_rank" in fields else None,
        fields.integer("kv_lora_rank"),
        rope_dim=fields.integer("qk_rope_head_dim"),
        nope_dim=fields.integer("qk_nope_head_dim"),
        v_dim=fields.integer("v_head_dim"),
    )


def _windows(fields: TypedFields, architecture: Architecture, count: int) -> list[int | None]:
    """The window of each layer; None for layers that see everything."""
    off = architecture.windows == "none" or not fields.flag("use_sliding_window", architecture.windows != "late")
    if off or "sliding_window" not in fields:
        return [None] * count
    window = fields.integer("sliding_window")
    kinds = _layer_types(fields, count)
    if kinds:
        return [window if kind == "sliding_attention" else None for kind in kinds]
    if architecture.windows == "all":
        return [window] * count
    if architecture.windows == "late":
        first = fields.integer("max_window_layers", count, least=0)
        return [window if index >= first else None for index in range(count)]
    period = fields.integer("sliding_window_pattern", architecture.period)
    return [window if (index + 1) % period else None for index in range(count)]


def _feed_forward(fields: TypedFields, architecture: Architecture, *, experts: bool) -> FeedForward:
    if not experts:
        return GatedFFN(fields.integer("intermediate_size"), bias=fields.flag("mlp_bias", False))
    names = ("n_routed_experts", "num_local_experts", "num_experts")
    count = next((fields.integer(name) for name in names if name in fields), None) or fields.integer(names[-1])
    active = fields.integer("num_experts_per_tok")
    if active > count:
        raise fields.wrong("num_experts_per_tok", active, f"at most {count}, the number of experts")
    size = fields.integer("moe_intermediate_size" if "moe_intermediate_size" in fields else "intermediate_size")
    shared = fields.integer("n_shared_experts", 0, least=0) * size
    shared += fields.integer("shared_expert_intermediate_size", 0, least=0)
    return ExpertFFN(
        count,
        active,
        size,
        shared,
        router_bias=architecture.router_bias,
        bias=architecture.expert_bias,
        shared_gate=architecture.shared_gate and shared > 0,
    )


def _has_experts(fields: TypedFields, architecture: Architecture, index: int) -> bool:
    match architecture.experts:
        case "none":
            return False
        case "all":
            return True
        case "step":
            every = fields.integer("decoder_sparse_step", 1)
            return index not in fields.items("mlp_only_layers") and (index + 1) % every == 0
        case "first_dense":
            first = fields.integer("first_k_dense_replace", 0, least=0)
            return index >= first and index % fields.integer("moe_layer_freq", 1) == 0


def _formats(fields: TypedFields) -> tuple[Formats, Formats]:
    """Formats of the weights outside and inside of the layers. Raises UnsupportedModelError for an unknown method of
    quantisation."""
    plain = _dtype(fields)
    kept = Formats(plain, plain)
    part = fields.part("quantization_config")
    if part is None:
        return kept, kept
    form = _format(part)
    patterns = _patterns(part)
    layer = fields.integer("num_hidden_layers") // 2
    special = [(name, plain) for name in NEVER_QUANTISED]
    special += [
        (name, plain)
        for name, module in MODULES.items()
        if any(_matches(pattern, f"model.layers.{layer}.{module}") for pattern in patterns)
    ]
    return kept, replace(kept, matrices=form, special=tuple(special))


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
    """Values for which there is one scale; -1: a whole row."""
    return part.integer("group_size", 128, least=-1)


def _integers(bits: int, group: int) -> ValueFormat:
    """Weight-only codes with one 16-bit scale for each group."""
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
    """A pattern as globs. In regular expressions only ``.*``, escapes and one choice of words are supported."""
    if not pattern.startswith("re:"):
        return [pattern]
    glob = pattern.removeprefix("re:").replace("\\.", "\0").replace(".*", "*").replace("\0", ".").strip("^$")
    before, opened, rest = glob.partition("(")
    choices, closed, after = rest.partition(")")
    return [before + each + after for each in choices.split("|")] if opened and closed else [glob]


def _matches(pattern: str, module: str) -> bool:
    """Whether a pattern names the module, a module that contains it, or the last parts of its name."""
    if "*" not in pattern:
        return f".{pattern}." in f".{module}."
    parts = module.split(".")
    return any(fnmatchcase(".".join(parts[:stop]), pattern) for stop in range(1, len(parts) + 1))
