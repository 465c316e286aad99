"""From what the engine runs to a shape: a model's description and its file's tensors, each in its own format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from twofold.core.model import LayerSpec, ModelSpec
from twofold.core.quant import QuantFormat
from twofold.core.values import ValueFormat
from twofold.cost.shapes.model import Formats, Gated, Grouped, LayerShape, ModelShape, runs
from twofold.cost.shapes.weights import EMBEDDING, HEAD

FUSED: Mapping[str, str] = {
    "attn_q": "attn_qkv",
    "attn_k": "attn_qkv",
    "attn_v": "attn_qkv",
    "ffn_gate": "ffn_up",
    "attn_k_b": "attn_kv_b",
    "attn_v_b": "attn_kv_b",
}
"""Tensors that some files keep together with others, and under which name."""


class Stored(Protocol):
    """What must be known of a tensor."""

    @property
    def format(self) -> QuantFormat: ...


def shape_of_spec(spec: ModelSpec, tensors: Mapping[str, Stored], source: str = "") -> ModelShape:
    """The shape of a model that the engine runs; ``tensors`` are those of its file, by their names there."""
    layers = [_layer(spec, layer, tensor_formats(tensors, f"blk.{index}.")) for index, layer in enumerate(spec.layers)]
    return ModelShape(
        spec.name,
        spec.hidden_size,
        spec.vocab_size,
        spec.context_length,
        runs(layers),
        spec.tied_head,
        outer_formats(tensors),
        source,
    )


def outer_formats(tensors: Mapping[str, Stored]) -> Formats:
    """Formats of the tensors outside the layers."""
    names = (EMBEDDING, HEAD, "output_norm")
    return _formats({name: tensors[f"{name}.weight"].format for name in names if f"{name}.weight" in tensors})


def tensor_formats(tensors: Mapping[str, Stored], prefix: str) -> Formats:
    """Formats of the tensors whose names begin with ``prefix``, by the rest of their names."""
    inside = {
        name.removeprefix(prefix).removesuffix(".weight"): tensor.format
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }
    parts = {name: inside[whole] for name, whole in FUSED.items() if name not in inside and whole in inside}
    return _formats(inside | parts)


def _formats(found: Mapping[str, QuantFormat]) -> Formats:
    return Formats(special=tuple(sorted((name, ValueFormat.of_gguf(quant)) for name, quant in found.items())))


def _layer(spec: ModelSpec, layer: LayerSpec, formats: Formats) -> LayerShape:
    attention = Grouped(
        spec.heads,
        spec.kv_heads,
        spec.head_dim,
        layer.window,
        "head" if spec.qk_norm else None,
        spec.qkv_bias,
    )
    return LayerShape(attention, Gated(spec.ffn_size), 4 if spec.post_norms else 2, formats)
