"""The decoder: every model that Twofold runs, prefill and decode alike, on whatever ``Ops`` computes with.

    x      = embedding of the tokens
    x     += attention(norm(x))        for each layer
    x     += feed_forward(norm(x))
    logits = head(norm(x))             of the rows whose logits are requested
    hidden = norm(x)                   of the rows whose hidden states are requested

Differences between architectures are data: a step whose weight is absent is skipped.
"""

from __future__ import annotations

from typing import TypeVar

from twofold.core.model import GatedFFN, GroupedAttention, LayerSpec, ModelSpec
from twofold.models.bind import LayerWeights, ModelWeights
from twofold.models.ops import Ops, TensorRef, Wanted

T = TypeVar("T")


def forward(ops: Ops[T], spec: ModelSpec, weights: ModelWeights) -> tuple[T, T]:
    """Logits [logit rows, vocabulary] and hidden states [hidden rows, width] of the batch that ``ops`` works on."""
    x = ops.embed(weights.embedding, spec.embedding_scale)
    for index, (layer, layer_weights) in enumerate(zip(spec.layers, weights.layers, strict=True)):
        x = ops.add(x, _attention(ops, spec, index, layer, layer_weights, x))
        x = ops.add(x, _feed_forward(ops, spec, layer, layer_weights, x))
    selected = [ops.select(x, rows) for rows in (Wanted.LOGITS, Wanted.HIDDEN)]
    last, hidden = [ops.rms_norm(part, weights.final_norm, spec.norm_eps) for part in selected]
    logits = ops.linear(last, weights.head)
    return (logits if spec.final_softcap is None else ops.softcap(logits, spec.final_softcap)), hidden


def _attention(ops: Ops[T], spec: ModelSpec, index: int, layer: LayerSpec, weights: LayerWeights, x: T) -> T:
    attention = layer.attention
    assert isinstance(attention, GroupedAttention)
    x = ops.rms_norm(x, weights["attention_norm"], spec.norm_eps)
    q = ops.linear(x, weights["q"], weights.get("q.bias"))
    k = ops.linear(x, weights["k"], weights.get("k.bias"))
    v = ops.linear(x, weights["v"], weights.get("v.bias"))
    q = _place_heads(ops, spec, layer, weights.get("q_norm"), attention.heads, q)
    k = _place_heads(ops, spec, layer, weights.get("k_norm"), attention.kv_heads, k)
    ops.store_kv(index, k, v)
    mixed = ops.attention(index, q, attention)
    return _norm(ops, spec, ops.linear(mixed, weights["o"]), weights.get("post_attention_norm"))


def _feed_forward(ops: Ops[T], spec: ModelSpec, layer: LayerSpec, weights: LayerWeights, x: T) -> T:
    assert isinstance(layer.ffn, GatedFFN)
    x = ops.rms_norm(x, weights["ffn_norm"], spec.norm_eps)
    inner = ops.gated(ops.linear(x, weights["gate"]), ops.linear(x, weights["up"]), layer.ffn.activation)
    return _norm(ops, spec, ops.linear(inner, weights["down"]), weights.get("post_ffn_norm"))


def _place_heads(ops: Ops[T], spec: ModelSpec, layer: LayerSpec, norm: TensorRef | None, heads: int, x: T) -> T:
    """Norm and rotation of each head, where the layer has them."""
    x = x if norm is None else ops.head_norm(x, norm, spec.norm_eps, heads)
    return x if layer.rope is None else ops.rope(x, heads, layer.rope)


def _norm(ops: Ops[T], spec: ModelSpec, x: T, weight: TensorRef | None) -> T:
    return x if weight is None else ops.rms_norm(x, weight, spec.norm_eps)
