"""Refuses models that can be described but not run, with an error that names the part."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from twofold.core.errors import UnsupportedModelError
from twofold.core.model import (
    ExpertFFN,
    GatedFFN,
    GroupedAttention,
    LatentAttention,
    LayerSpec,
    ModelSpec,
    RecurrentAttention,
)


def check_runnable(spec: ModelSpec) -> None:
    """Raises UnsupportedModelError for a model with a part that no engine computes."""
    for index, layer in enumerate(spec.layers):
        for part in _unknown_parts(layer):
            raise UnsupportedModelError(
                f"Twofold cannot run {spec.name!r}: layer {index} has {part}.",
                hint="Use a dense model. `twofold explain` and `twofold plan` count this one all the same.",
            )
        assert isinstance(layer.attention, GroupedAttention)
        if replace(layer.attention, window=None) != replace(spec.attention, window=None):
            raise UnsupportedModelError(
                f"Twofold cannot run {spec.name!r}: layer {index} has other attention heads than layer 0.",
                hint="Layers may differ in windows and feed-forward sizes, not in attention heads.",
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
