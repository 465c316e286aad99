"""From a GGUF file's metadata and tensors to a model description and its bound weights."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from twofold.core.errors import FormatError
from twofold.core.model import GatedFFN, GroupedAttention, LayerSpec, ModelSpec
from twofold.models.architectures import Architecture, find_architecture
from twofold.models.bind import ModelWeights, bind
from twofold.models.keys import Keys
from twofold.models.rope_keys import ReadBytes, read_ropes
from twofold.models.tensors import TensorShape

MOST_LAYERS: Final = 4096
EMBEDDING: Final = "token_embd.weight"


def read_model(
    metadata: Mapping[str, object],
    tensors: Mapping[str, TensorShape],
    read_bytes: ReadBytes,
    context_length: int | None = None,
) -> tuple[ModelSpec, ModelWeights]:
    """The model that a GGUF file describes.

    ``read_bytes`` gives the bytes of a tensor by name; only rope factors are read through it.
    ``context_length`` is the longest sequence that will run, at most (and by default) the model's own context.

    Raises FormatError where something needed is missing or contradictory, and UnsupportedModelError where the
    architecture, a metadata key or a tensor asks for something that Twofold does not implement.
    """
    architecture = find_architecture(metadata)
    keys = Keys(metadata, architecture.name)
    spec = _read_spec(metadata, keys, architecture, tensors, read_bytes, context_length)
    keys.refuse_unread()
    return spec, bind(spec, tensors, fused=architecture.fused)


def _read_spec(
    metadata: Mapping[str, object],
    keys: Keys,
    architecture: Architecture,
    tensors: Mapping[str, TensorShape],
    read_bytes: ReadBytes,
    context_length: int | None,
) -> ModelSpec:
    context = keys.integer("context_length")
    hidden, heads = keys.integer("embedding_length"), keys.integer("attention.head_count")
    count = keys.integer("block_count", most=MOST_LAYERS)
    head_dim = _read_head_dim(keys, hidden, heads)
    kv_heads = _read_kv_heads(keys, heads)
    running = min(context, context_length or context)
    ropes = read_ropes(keys, architecture, head_dim, tensors, read_bytes, running)
    hidden_scale = 1 / math.sqrt(hidden / heads) if count in architecture.hidden_scale_layers else None
    attention = GroupedAttention(
        heads,
        kv_heads,
        head_dim,
        qk_norm="head" if architecture.qk_norm else None,
        qkv_bias=_has_bias(architecture, tensors),
        scale=keys.number("attention.scale", 0.0) or hidden_scale,
        softcap=_read_softcap(keys, "attn_logit_softcapping", architecture.attention_softcap),
    )
    ffn = GatedFFN(keys.integer("feed_forward_length"), activation=architecture.activation)
    layers = (
        LayerSpec(
            replace(attention, window=window),
            ffn,
            norms=4 if architecture.post_norms else 2,
            rope=ropes[window is not None],
        )
        for window in _read_windows(keys, architecture, count)
    )
    return ModelSpec(
        architecture=architecture.name,
        name=str(metadata.get("general.name", architecture.name)),
        vocab_size=_read_vocab_size(metadata, tensors),
        hidden_size=hidden,
        context_length=context,
        layers=tuple(layers),
        tied_head="output.weight" not in tensors,
        norm_eps=keys.positive("attention.layer_norm_rms_epsilon"),
        # Gemma's own code rounds this factor to the weights' type; in float32 it stays sqrt(hidden).
        embedding_scale=math.sqrt(hidden) if architecture.scaled_embedding else 1.0,
        final_softcap=_read_softcap(keys, "final_logit_softcapping", architecture.final_softcap),
    )


def _read_head_dim(keys: Keys, hidden: int, heads: int) -> int:
    """Values of a head: as given, or the hidden size shared out."""
    if "attention.key_length" not in keys and hidden % heads:
        raise FormatError(f"A hidden size of {hidden} cannot be shared out to {heads} attention heads.")
    head_dim = keys.integer("attention.key_length", hidden // heads)
    value_dim = keys.integer("attention.value_length", head_dim)
    if value_dim != head_dim:
        raise FormatError(f"Heads of keys have {head_dim} values, but heads of values have {value_dim}")
    return head_dim


def _read_kv_heads(keys: Keys, heads: int) -> int:
    kv_heads = keys.integer("attention.head_count_kv", heads)
    if heads % kv_heads:
        raise FormatError(f"{heads} attention heads cannot share {kv_heads} heads of keys and values equally.")
    return kv_heads


def _read_windows(keys: Keys, architecture: Architecture, layers: int) -> Sequence[int | None]:
    """The window of each layer, None for layers that see everything."""
    if architecture.windows == "none":
        return [None] * layers
    optional = architecture.windows == "all"
    default = 0 if optional else architecture.default_window
    window = keys.integer("attention.sliding_window", default, least=0 if optional else 1) or None
    if optional:
        return [window] * layers
    pattern = keys.pattern("attention.sliding_window_pattern", layers) or architecture.window_period
    flags = pattern if isinstance(pattern, tuple) else [(index + 1) % pattern != 0 for index in range(layers)]
    return [window if flag else None for flag in flags]


def _read_softcap(keys: Keys, key: str, default: float | None) -> float | None:
    """A soft-cap; none where it is absent or zero."""
    return keys.number(key, default or 0.0) or None


def _has_bias(architecture: Architecture, tensors: Mapping[str, TensorShape]) -> bool:
    if architecture.qkv_bias == "optional":
        return "blk.0.attn_q.bias" in tensors
    return architecture.qkv_bias == "always"


def _read_vocab_size(metadata: Mapping[str, object], tensors: Mapping[str, TensorShape]) -> int:
    """Rows of the embedding. A tokenizer that makes other ids would read past its end."""
    if EMBEDDING not in tensors:
        raise FormatError(
            f"The model lacks the tensor {EMBEDDING!r}.", hint="The file is incomplete: convert or download it again."
        )
    rows = tensors[EMBEDDING].rows
    tokens = metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, Sequence) and len(tokens) > rows:
        raise FormatError(f"The tokenizer knows {len(tokens)} tokens, but the embedding has only {rows} rows.")
    return rows
