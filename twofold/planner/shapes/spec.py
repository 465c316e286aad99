"""From what the engine runs to a shape: a model's description and its file's tensors, each in its own format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

from twofold.core.model import Formats, ModelSpec
from twofold.core.quant import QuantFormat
from twofold.core.values import ValueFormat
from twofold.planner.shapes.weights import EMBEDDING, HEAD

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


def shape_of_spec(spec: ModelSpec, tensors: Mapping[str, Stored], source: str = "") -> ModelSpec:
    """``spec`` with the formats of its file's tensors, which go by their names there."""
    layers = (
        replace(layer, formats=tensor_formats(tensors, f"blk.{index}.")) for index, layer in enumerate(spec.layers)
    )
    return replace(spec, layers=tuple(layers), formats=outer_formats(tensors), source=source)


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
