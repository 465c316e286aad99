"""From a GGUF file to a model description: whole for models that engines run, sizes only for any other model.

The parts of a layer are known by its tensors, whose names many architectures share; sizes are read from metadata and
must agree with the tensors. For engines the architecture's row adds properties that tensors do not show.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, Literal

import numpy as np

from twofold.core.errors import FormatError, UnsupportedModelError, did_you_mean
from twofold.core.model import (
    ExpertFFN,
    FactorScaling,
    FeedForward,
    Formats,
    GatedFFN,
    GroupedAttention,
    LatentAttention,
    LayerSpec,
    LinearScaling,
    ModelSpec,
    PlainFFN,
    QkNorm,
    RecurrentAttention,
    RopeScaling,
    RopeSpec,
    YarnScaling,
)
from twofold.core.tensors import (
    EMBEDDING,
    HEAD,
    ROPE_FACTORS,
    ROPE_LONG,
    ROPE_SHORT,
    ROPE_TENSORS,
    TOGETHER,
    StoredTensor,
    layer_and_role,
    layer_weights,
    outer_weights,
)
from twofold.core.typed_fields import FILE_HINT, INCOMPLETE_HINT, TypedFields
from twofold.core.values import ValueFormat
from twofold.formats.base import ModelFile
from twofold.models.architectures import ARCHITECTURES, BY_NAME, Architecture

MAX_LAYERS: Final = 4096

HARMLESS: Final = frozenset(
    {"attention.layer_norm_epsilon", "rope.scaling.finetuned", "tensor_data_layout", "vocab_size"}
)
"""Keys that may be ignored: other keys or the tensors' shapes have the same information."""

NEUTRAL: Final[Mapping[str, object]] = {
    "attention.causal": True,
    "attention.clamp_kqv": 0.0,
    "attention.max_alibi_bias": 0.0,
    "expert_count": 0,
    "expert_used_count": 0,
    "pooling_type": 0,
    "rope.scaling.yarn_log_multiplier": 0.0,
    "use_parallel_residual": False,
}
"""Keys that Twofold does not implement, with the value at which they do not change the result."""

Tensors = Mapping[str, StoredTensor]
"""The tensors of one layer, by role."""


def read_gguf(file: ModelFile, context_length: int | None = None) -> ModelSpec:
    """The model that engines run. ``context_length`` is the longest sequence that will run, at most the model's own.

    Raises FormatError if a key or a tensor is missing or contradicts others, UnsupportedModelError if the architecture
    or a key needs a feature that Twofold does not implement.
    """
    architecture = _architecture(file.model.values)
    fields = _fields(file, architecture.name)
    sizes = _sizes(file, fields, architecture, strict=True)
    check_runnable(sizes)
    _check_tokens(file, sizes.vocab_size)
    spec = _with_numbers(sizes, file, fields, architecture, context_length)
    _refuse_unread(fields)
    return spec


def describe_gguf(file: ModelFile) -> ModelSpec:
    """The sizes of any model. Raises FormatError or UnsupportedModelError unless they account for every value."""
    name = file.model.values.get("general.architecture")
    if not isinstance(name, str):
        raise FormatError(f"{file.path} lacks 'general.architecture'.", hint="Name a model's own GGUF file.")
    architecture = BY_NAME.get(name) or Architecture(name, windows="all")
    spec = _sizes(file, _fields(file, name), architecture, strict=False)
    _check_values(spec, file)
    return spec


def _fields(file: ModelFile, architecture: str) -> TypedFields:
    return TypedFields(file.model.values, file.path.name, prefix=f"{architecture}.", hint=FILE_HINT, per_layer=True)


def _architecture(metadata: Mapping[str, object]) -> Architecture:
    """The row that ``general.architecture`` names."""
    kind = metadata.get("general.type", "model")
    if kind != "model":
        raise UnsupportedModelError(
            f"The file holds a {kind!r}, not a model.", hint="Name the model's own GGUF file instead."
        )
    name = metadata.get("general.architecture")
    if not isinstance(name, str):
        raise FormatError("The model's metadata lacks 'general.architecture'.", hint=INCOMPLETE_HINT)
    if name not in BY_NAME:
        known = [each.name for each in ARCHITECTURES if each.runs]
        message = f"Twofold does not support the architecture {name!r}."
        raise UnsupportedModelError(message, hint=did_you_mean(name, known))
    return BY_NAME[name]


def _sizes(file: ModelFile, fields: TypedFields, architecture: Architecture, *, strict: bool) -> ModelSpec:
    """The parts of the model and their sizes. ``strict``: norms and biases are those of the architecture's row."""
    if EMBEDDING not in file.tensors:
        raise FormatError(f"The model lacks the tensor {EMBEDDING!r}.", hint=INCOMPLETE_HINT)
    count = fields.integer("block_count", most=MAX_LAYERS)
    inside = _by_layer(file, count)
    layers = []
    for index, window in enumerate(_windows(fields, architecture, count, strict=strict)):
        tensors = inside[index]
        if not tensors:
            raise FormatError(f"{fields.label}: layer {index} has no tensors.", hint=INCOMPLETE_HINT)
        attention = (
            replace(_latent(fields, tensors, index), window=window)
            if "kv_a" in tensors
            else _grouped(fields, tensors, index, window, architecture, strict)
        )
        norms = architecture.norms if strict else _norms(tensors)
        ffn = _feed_forward(fields, tensors, index)
        layers.append(LayerSpec(attention, ffn, norms, _formats(tensors)))
    return ModelSpec(
        name=str(file.model.values.get("general.name", architecture.name)),
        hidden_size=fields.integer("embedding_length"),
        vocab_size=file.tensors[EMBEDDING].rows,
        context_length=fields.integer("context_length"),
        layers=tuple(layers),
        tied_head=HEAD not in file.tensors,
        formats=_formats({name: info for name, info in file.tensors.items() if layer_and_role(name)[0] is None}),
        source=str(file.path),
        architecture=architecture.name,
    )


def _by_layer(file: ModelFile, count: int) -> list[dict[str, StoredTensor]]:
    found: list[dict[str, StoredTensor]] = [{} for _ in range(count)]
    for name, info in file.tensors.items():
        index, role = layer_and_role(name)
        if index is not None and index < count:
            found[index][role] = info
    return found


def _formats(tensors: Tensors) -> Formats:
    whole = {role: ValueFormat.of_gguf(info.format) for role, info in tensors.items()}
    parts = {part: whole[role] for role, roles in TOGETHER.items() if role in whole for part in roles}
    return Formats(special=tuple(sorted((parts | whole).items(), key=lambda item: item[0])))


def _norms(tensors: Tensors) -> Literal[1, 2, 4]:
    if "post_ffn_norm" in tensors:
        return 4
    # Some architectures call the second of their two norms post_attention_norm.
    return 2 if "ffn_norm" in tensors or "post_attention_norm" in tensors else 1


def _key(fields: TypedFields, key: str, *, windowed: bool) -> str:
    """The key of a number that layers with a window may have apart from the others."""
    own = f"{key}_swa"
    return own if windowed and own in fields else key


def _grouped(
    fields: TypedFields, tensors: Tensors, index: int, window: int | None, architecture: Architecture, strict: bool
) -> GroupedAttention:
    hidden, heads = fields.integer("embedding_length"), fields.integer("attention.head_count", layer=index)
    kv_heads = fields.integer("attention.head_count_kv", heads, layer=index)
    windowed = window is not None
    key_length = _key(fields, "attention.key_length", windowed=windowed)
    if key_length not in fields and hidden % heads:
        raise FormatError(f"A hidden size of {hidden} is not divisible by {heads} attention heads.")
    dim = fields.integer(key_length, hidden // heads)
    value_dim = fields.integer(_key(fields, "attention.value_length", windowed=windowed), dim)
    if value_dim != dim:
        raise FormatError(f"Heads of keys have {dim} values, but heads of values have {value_dim}.")
    if heads % kv_heads:
        raise FormatError(f"{heads} attention heads are not divisible by {kv_heads} KV heads.")
    if strict:
        bias = "q.bias" in tensors if architecture.qkv_bias is None else architecture.qkv_bias
        return GroupedAttention(heads, kv_heads, dim, window, architecture.qk_norm, bias)
    norm = tensors.get("q_norm")
    qk_norm: QkNorm | None = None if norm is None else "head" if norm.columns == dim else "all"
    bias = "q.bias" in tensors or "qkv.bias" in tensors
    return GroupedAttention(
        heads, kv_heads, dim, window, qk_norm, bias, output_bias="o.bias" in tensors, sinks="sinks" in tensors
    )


def _latent(fields: TypedFields, tensors: Tensors, index: int) -> LatentAttention:
    rope = fields.integer("rope.dimension_count")
    suffix = "_mla" if "attention.key_length_mla" in fields else ""
    return LatentAttention(
        fields.integer("attention.head_count", layer=index),
        fields.integer("attention.q_lora_rank") if "q_a" in tensors else None,
        fields.integer("attention.kv_lora_rank"),
        rope_dim=rope,
        nope_dim=fields.integer(f"attention.key_length{suffix}") - rope,
        v_dim=fields.integer(f"attention.value_length{suffix}"),
    )


def _feed_forward(fields: TypedFields, tensors: Tensors, index: int) -> FeedForward:
    if "router" not in tensors:
        size = fields.integer("feed_forward_length", layer=index)
        up = tensors.get("up")
        gated = "gate" in tensors or up is None or up.rows == 2 * size
        return (GatedFFN if gated else PlainFFN)(size, bias="down.bias" in tensors)
    shared, own = tensors.get("shared_down"), "expert_feed_forward_length"
    return ExpertFFN(
        fields.integer("expert_count"),
        fields.integer("expert_used_count"),
        fields.integer(own) if own in fields else fields.integer("feed_forward_length", layer=index),
        shared=0 if shared is None else shared.columns,
        router_bias="router.bias" in tensors,
        bias="expert_down.bias" in tensors,
        shared_gate="shared_router" in tensors,
    )


def _windows(fields: TypedFields, architecture: Architecture, count: int, *, strict: bool) -> Sequence[int | None]:
    """The window of each layer, None for layers that see everything."""
    key, rule = "attention.sliding_window", architecture.windows
    if rule in ("none", "late"):
        return [None] * count
    if rule == "all":
        window = fields.integer(key, 0, least=0) or None
    else:
        window = fields.integer(key, architecture.default_window)
    named = f"{key}_pattern"
    if window is None or (rule == "all" and strict) or (rule == "all" and named not in fields):
        return [window] * count
    if not hasattr(fields.values.get(fields.prefix + named), "__len__"):
        period = fields.integer(named, architecture.period)
        return [window if (index + 1) % period else None for index in range(count)]
    flags = fields.items(named)
    if len(flags) != count or not all(isinstance(flag, bool) for flag in flags):
        raise fields.wrong(named, flags, f"a list of {count} flags")
    return [window if flag else None for flag in flags]


def _with_numbers(
    sizes: ModelSpec, file: ModelFile, fields: TypedFields, architecture: Architecture, context_length: int | None
) -> ModelSpec:
    """The spec with the properties that no tensor shows: norms, scales, soft-caps, activations and rotations."""
    running = min(sizes.context_length, context_length or sizes.context_length)
    ropes = _ropes(sizes.layers, fields, architecture, file, running)
    scale = fields.number("attention.scale", 0.0) or None
    softcap = fields.number("attn_logit_softcapping", architecture.attention_softcap or 0.0) or None
    by_hidden = scale is None and len(sizes.layers) in architecture.hidden_scale_layers

    def numbered(layer: LayerSpec) -> LayerSpec:
        attention, ffn = layer.attention, layer.ffn
        assert isinstance(attention, GroupedAttention)
        assert isinstance(ffn, GatedFFN)
        own = 1 / math.sqrt(sizes.hidden_size / attention.heads) if by_hidden else scale
        return replace(
            layer,
            attention=replace(attention, scale=own, softcap=softcap),
            ffn=replace(ffn, activation=architecture.activation),
            rope=ropes[attention.window is not None, attention.head_dim],
        )

    return replace(
        sizes,
        layers=tuple(map(numbered, sizes.layers)),
        norm_eps=fields.positive("attention.layer_norm_rms_epsilon"),
        # Gemma's own code rounds this factor to the weights' type; in float32 it stays sqrt(hidden).
        embedding_scale=math.sqrt(sizes.hidden_size) if architecture.scaled_embedding else 1.0,
        final_softcap=fields.number("final_logit_softcapping", architecture.final_softcap or 0.0) or None,
    )


def _check_tokens(file: ModelFile, rows: int) -> None:
    """Raises FormatError if the tokenizer has more ids than the embedding has rows: reads would pass its end."""
    tokens = file.tokenizer.values.get("tokenizer.ggml.tokens")
    if isinstance(tokens, Sequence) and len(tokens) > rows:
        raise FormatError(f"The tokenizer knows {len(tokens)} tokens, but the embedding has only {rows} rows.")


def _refuse_unread(fields: TypedFields) -> None:
    """Raises UnsupportedModelError for the first key that was not read and could change the result."""
    for full in fields.values:
        key = full.removeprefix(fields.prefix)
        if key == full or key in fields.read or key in HARMLESS:
            continue
        value = fields.values[full]
        if key not in NEUTRAL or not bool(NEUTRAL[key] == value):
            raise UnsupportedModelError(
                f"The model's metadata {full!r} = {value!r:.80} would change the result, and Twofold does not "
                "implement it.",
                hint="Use another model, or ask for this feature with the key's name.",
            )


def _check_values(spec: ModelSpec, file: ModelFile) -> None:
    """Raises FormatError or UnsupportedModelError unless the spec accounts for every value of the file."""
    layers = [weight for count, layer in spec.runs for weight in count * layer_weights(layer, spec.hidden_size)]
    expected = [*layers, *outer_weights(spec)]
    found = {name: info for name, info in file.tensors.items() if name not in ROPE_TENSORS}
    values, counted = sum(t.rows * t.columns for t in found.values()), sum(weight.parameters for weight in expected)
    if values == counted:
        return
    roles = {weight.name for weight in expected} | set(TOGETHER)
    strange = next((info.name for name, info in found.items() if layer_and_role(name)[1] not in roles), None)
    if strange is not None:
        raise UnsupportedModelError(
            f"{spec.source}: unsupported tensor {strange!r}.", hint="Use the model's config.json instead."
        )
    raise FormatError(
        f"{spec.source}: its tensors hold {values:,} values, but its metadata describe {counted:,}.",
        hint="The file is damaged, or use the model's config.json instead.",
    )


def check_runnable(spec: ModelSpec) -> None:
    """Raises UnsupportedModelError for a model with a part that no engine computes."""
    for index, layer in enumerate(spec.layers):
        for part in _unknown_parts(layer):
            raise UnsupportedModelError(
                f"Twofold cannot run {spec.name!r}: layer {index} has {part}.",
                hint="Use a dense model. `twofold explain` and `twofold plan` count this one, too.",
            )
    if spec.learnt_positions:
        raise UnsupportedModelError(
            f"Twofold cannot run {spec.name!r}: its positions are learnt embeddings.", hint="Use another model."
        )


def _unknown_parts(layer: LayerSpec) -> Iterator[str]:
    attention, ffn = layer.attention, layer.ffn
    if isinstance(attention, LatentAttention):
        yield "latent attention"
    elif isinstance(attention, RecurrentAttention):
        yield "recurrent attention"
    else:
        if attention.sinks:
            yield "attention sinks"
        if attention.output_gate:
            yield "a gate on the output of attention"
        if attention.output_bias:
            yield "a bias on the output of attention"
        if attention.qk_norm == "all":
            yield "norms over all heads together"
    if isinstance(ffn, ExpertFFN):
        yield f"a mixture of {ffn.count} experts"
    elif not isinstance(ffn, GatedFFN):
        yield "a feed-forward without a gate"
    elif ffn.bias:
        yield "biases in its feed-forward"
    if layer.norms == 1:
        yield "attention and feed-forward side by side"


def _ropes(
    layers: Sequence[LayerSpec], fields: TypedFields, architecture: Architecture, file: ModelFile, context: int
) -> dict[tuple[bool, int], RopeSpec]:
    """The ropes of the layers, by whether they have a window and by the size of their heads.

    ``context`` is the longest sequence that will run: LongRoPE chooses its factors by it. If all layers have a window,
    or none has, the fields of the others are read, too: then none is left unread, and wrong ones are errors.
    """
    attentions = [layer.attention for layer in layers if isinstance(layer.attention, GroupedAttention)]
    kinds = {(each.window is not None, each.head_dim) for each in attentions}
    if len({windowed for windowed, _ in kinds}) == 1:
        kinds = {(windowed, head_dim) for _, head_dim in kinds for windowed in (False, True)}
    return {kind: _rope(fields, architecture, *kind, file, context) for kind in sorted(kinds)}


def _rope(
    fields: TypedFields, architecture: Architecture, windowed: bool, head_dim: int, file: ModelFile, context: int
) -> RopeSpec:
    """The rope of heads of that size. Only the others are scaled if layers with a window have a base of their own."""
    key = _key(fields, "rope.dimension_count", windowed=windowed)
    dims = fields.integer(key, head_dim, least=2, most=head_dim)
    if dims % 2:
        raise FormatError(f"The rope of the model rotates {dims} values of a head, which are not pairs.")
    if windowed and architecture.local_rope_base is not None:
        base = fields.number("rope.freq_base_swa", architecture.local_rope_base, least=2.0)
        return RopeSpec(dims, base, architecture.rope_pairs)
    base = fields.number("rope.freq_base", 10_000.0, least=2.0)
    return RopeSpec(dims, base, architecture.rope_pairs, _scaling(fields, dims // 2, file, context))


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
