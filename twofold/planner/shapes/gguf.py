"""From a GGUF file to a shape: also of models that the engine does not run, from metadata and tensors alone.

Which parts a layer has is read off its tensors, for files of many architectures share their names; sizes come from the
metadata and must agree with the tensors. Models that the engine runs go through the engine's own reader, so that what
is counted is what runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

from twofold.core.errors import FormatError, UnsupportedModelError
from twofold.core.model import (
    ROUTER,
    Attention,
    ExpertFFN,
    FeedForward,
    GatedFFN,
    GroupedAttention,
    LatentAttention,
    LayerSpec,
    ModelSpec,
    PlainFFN,
    QkNorm,
)
from twofold.formats.gguf import GGUFFile, TensorInfo
from twofold.models.architectures import BY_NAME
from twofold.models.read import read_model
from twofold.models.rope_keys import ROPE_TENSORS
from twofold.planner.shapes.fields import ConfigFields
from twofold.planner.shapes.spec import FUSED, outer_formats, shape_of_spec, tensor_formats
from twofold.planner.shapes.weights import EMBEDDING, HEAD, layer_weights, outer_weights

PERIODS: Final[Mapping[str, int]] = {"gemma2": 2, "gemma3": 6, "gpt-oss": 2}
"""Which layers of an architecture see everything where the file does not say: every so many."""

Tensors = Mapping[str, TensorInfo]


def read_gguf(path: Path) -> ModelSpec:
    """The shape of a GGUF file. Raises FormatError for a damaged or incomplete one, as opening it does."""
    with GGUFFile.open(path) as file:
        return shape_of_file(file)


def shape_of_file(file: GGUFFile) -> ModelSpec:
    """The shape of an open GGUF file."""
    if file.metadata.get("general.architecture") in BY_NAME:
        try:
            spec, _ = read_model(file.metadata, file.tensors, file.data)
            return shape_of_spec(spec, file.tensors, str(file.path))
        except UnsupportedModelError:
            pass  # of a known kind, but with something that only a description can hold, such as experts
    return describe(file.metadata, file.tensors, str(file.path))


def describe(metadata: Mapping[str, object], tensors: Tensors, label: str) -> ModelSpec:
    """The shape that metadata and tensors describe, whoever runs it."""
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str):
        raise FormatError(f"{label} lacks 'general.architecture'.", hint="Name a model's own GGUF file.")
    if f"{EMBEDDING}.weight" not in tensors:
        raise FormatError(f"{label} lacks the tensor '{EMBEDDING}.weight'.", hint="Name a model's own GGUF file.")
    prefix = f"{architecture}."
    plain = {key.removeprefix(prefix): _plain(metadata[key]) for key in metadata if key.startswith(prefix)}
    fields = ConfigFields(plain, f"{label}: {architecture}", {})
    hidden, count = fields.integer("embedding_length"), fields.integer("block_count")
    layers = [_layer(fields, tensors, index, count, architecture) for index in range(count)]
    shape = ModelSpec(
        name=str(metadata.get("general.name", architecture)),
        hidden_size=hidden,
        vocab_size=tensors[f"{EMBEDDING}.weight"].rows,
        context_length=fields.integer("context_length"),
        layers=tuple(layers),
        tied_head=f"{HEAD}.weight" not in tensors,
        formats=outer_formats(tensors),
        source=label,
    )
    _check(shape, tensors)
    return shape


def _check(shape: ModelSpec, tensors: Tensors) -> None:
    """Raises an error unless the shape accounts for every value of the file."""
    layers = [weight for count, layer in shape.runs for weight in count * layer_weights(layer, shape.hidden_size)]
    expected = [*layers, *outer_weights(shape)]
    found = {name: info for name, info in tensors.items() if name not in ROPE_TENSORS}
    values, counted = sum(t.rows * t.columns for t in found.values()), sum(weight.parameters for weight in expected)
    if values == counted:
        return
    roles = {weight.name for weight in expected} | set(FUSED.values()) | {f"{ROUTER}.bias"}
    strange = next((name for name in found if _role(name) not in roles), None)
    if strange is not None:
        raise UnsupportedModelError(
            f"{shape.source}: nothing is known of the tensor {strange!r}.", hint="Use the model's config.json instead."
        )
    raise FormatError(
        f"{shape.source}: its tensors hold {values:,} values, but its metadata describe {counted:,}.",
        hint="The file is damaged, or use the model's config.json instead.",
    )


def _role(name: str) -> str:
    plain = name.removesuffix(".weight")
    return plain.split(".", 2)[2] if plain.startswith("blk.") else plain


def _layer(fields: ConfigFields, tensors: Tensors, index: int, count: int, architecture: str) -> LayerSpec:
    prefix = f"blk.{index}."
    inside = {name.removeprefix(prefix): info for name, info in tensors.items() if name.startswith(prefix)}
    if not inside:
        raise FormatError(f"{fields.label}: layer {index} has no tensors.", hint="The file is incomplete.")
    window = _window(fields, index, count, architecture)
    latent = "attn_kv_a_mqa.weight" in inside
    attention = _latent(fields, inside, index, window) if latent else _grouped(fields, inside, index, window)
    norms: Literal[1, 2, 4] = 4 if "post_ffw_norm.weight" in inside else 2 if "ffn_norm.weight" in inside else 1
    if "post_attention_norm.weight" in inside and norms == 1:
        norms = 2  # some architectures call the second norm so
    return LayerSpec(attention, _feed_forward(fields, inside, index), norms, tensor_formats(tensors, prefix))


def _grouped(fields: ConfigFields, inside: Tensors, index: int, window: int | None) -> Attention:
    heads = _of_layer(fields, "attention.head_count", index)
    kv_heads = _of_layer(fields, "attention.head_count_kv", index, heads)
    dim = fields.integer("attention.key_length", fields.integer("embedding_length") // heads)
    if fields.integer("attention.value_length", dim) != dim:
        raise UnsupportedModelError(f"{fields.label}: heads of keys and of values have different sizes.")
    norm = inside.get("attn_q_norm.weight")
    qk_norm: QkNorm | None = None if norm is None else "head" if norm.columns == dim else "all"
    return GroupedAttention(
        heads,
        kv_heads,
        dim,
        window,
        qk_norm,
        qkv_bias="attn_q.bias" in inside or "attn_qkv.bias" in inside,
        output_bias="attn_output.bias" in inside,
        sinks="attn_sinks.weight" in inside,
    )


def _latent(fields: ConfigFields, inside: Tensors, index: int, window: int | None) -> LatentAttention:
    rope, rank = fields.integer("rope.dimension_count"), fields.integer("attention.kv_lora_rank")
    key = "attention.key_length_mla" if "attention.key_length_mla" in fields else "attention.key_length"
    value = "attention.value_length_mla" if "attention.value_length_mla" in fields else "attention.value_length"
    return LatentAttention(
        _of_layer(fields, "attention.head_count", index),
        fields.integer("attention.q_lora_rank") if "attn_q_a.weight" in inside else None,
        rank,
        rope_dim=rope,
        nope_dim=fields.integer(key) - rope,
        v_dim=fields.integer(value),
        window=window,
    )


def _feed_forward(fields: ConfigFields, inside: Tensors, index: int) -> FeedForward:
    if "ffn_gate_inp.weight" not in inside:
        size = _of_layer(fields, "feed_forward_length", index)
        gated = "ffn_gate.weight" in inside or inside["ffn_up.weight"].rows == 2 * size
        return (GatedFFN if gated else PlainFFN)(size, bias="ffn_down.bias" in inside)
    shared = inside.get("ffn_down_shexp.weight")
    size_key = "expert_feed_forward_length"
    size = fields.integer(size_key) if size_key in fields else _of_layer(fields, "feed_forward_length", index)
    return ExpertFFN(
        fields.integer("expert_count"),
        fields.integer("expert_used_count"),
        size,
        shared=0 if shared is None else shared.columns,
        router_bias="exp_probs_b.bias" in inside or "ffn_gate_inp.bias" in inside,
        bias="ffn_down_exps.bias" in inside,
        shared_gate="ffn_gate_inp_shexp.weight" in inside,
    )


def _window(fields: ConfigFields, index: int, count: int, architecture: str) -> int | None:
    window = fields.integer("attention.sliding_window", 0, least=0)
    if not window:
        return None
    pattern = fields.values.get("attention.sliding_window_pattern", PERIODS.get(architecture, 0))
    if isinstance(pattern, list):
        if len(pattern) != count:
            raise fields.wrong("attention.sliding_window_pattern", pattern, f"a list of {count} flags")
        return window if pattern[index] else None
    period = pattern if isinstance(pattern, int) else 0
    return None if period > 0 and (index + 1) % period == 0 else window


def _of_layer(fields: ConfigFields, name: str, index: int, default: int | None = None) -> int:
    """A number, or a layer's own of a list of them."""
    value = fields.values.get(name)
    if not isinstance(value, list):
        return fields.integer(name, default)
    if index >= len(value) or not isinstance(value[index], int) or value[index] < 1:
        raise fields.wrong(name, value, "a positive whole number for each layer")
    return int(value[index])


def _plain(value: object) -> object:
    """Metadata without NumPy's types."""
    listed = getattr(value, "tolist", None)
    return listed() if callable(listed) else value
