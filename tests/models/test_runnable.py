"""Engines refuse what they cannot compute with one error that names it; the planner counts it all the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.planner.shapes.test_gguf import ATTENTION, EXPERTS, HEADS, NORMS, ROUTED, write
from twofold.core.errors import UnsupportedModelError
from twofold.core.model import (
    ExpertFFN,
    GatedFFN,
    GroupedAttention,
    LatentAttention,
    LayerSpec,
    ModelSpec,
    PlainFFN,
    RecurrentAttention,
)
from twofold.formats.base import open_model
from twofold.models.gguf import check_runnable
from twofold.models.read import describe_model, read_model

ATTENDING = GroupedAttention(4, 2, 16)
LAYER = LayerSpec(ATTENDING, GatedFFN(96))
MODEL = ModelSpec("known", 64, 300, 512, (LAYER, replace(LAYER, attention=replace(ATTENDING, window=8))))


def test_a_dense_model_runs() -> None:
    check_runnable(MODEL)


def test_windows_heads_and_feed_forward_sizes_may_differ() -> None:
    other = replace(LAYER, ffn=GatedFFN(80), attention=replace(ATTENDING, kv_heads=1, head_dim=32, window=8))
    check_runnable(replace(MODEL, layers=(LAYER, other)))


@pytest.mark.parametrize(
    ("layer", "part"),
    [
        (replace(LAYER, attention=LatentAttention(4, None, 32, 16, 16, 16)), "latent attention"),
        (replace(LAYER, attention=RecurrentAttention(4, 2, 16, 16, 4)), "recurrent attention"),
        (replace(LAYER, attention=replace(ATTENDING, output_gate=True)), "a gate on the output"),
        (replace(LAYER, attention=replace(ATTENDING, sinks=True)), "attention sinks"),
        (replace(LAYER, attention=replace(ATTENDING, output_bias=True)), "bias on the output"),
        (replace(LAYER, attention=replace(ATTENDING, qk_norm="all")), "norms over all heads"),
        (replace(LAYER, ffn=ExpertFFN(8, 2, 32)), "mixture of 8 experts"),
        (replace(LAYER, ffn=PlainFFN(96)), "without a gate"),
        (replace(LAYER, ffn=GatedFFN(96, bias=True)), "biases in its feed-forward"),
        (replace(LAYER, norms=1), "side by side"),
    ],
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else "",
)
def test_errors_name_the_part_that_no_engine_computes(layer: LayerSpec, part: str) -> None:
    with pytest.raises(UnsupportedModelError, match=f"cannot run 'known': layer 1 .*{part}") as caught:
        check_runnable(replace(MODEL, layers=(LAYER, layer)))
    assert caught.value.hint


def test_learnt_positions() -> None:
    with pytest.raises(UnsupportedModelError, match="learnt"):
        check_runnable(replace(MODEL, learnt_positions=512))


@pytest.mark.parametrize("architecture", ["qwen3moe", "llama"])
def test_a_file_with_experts(tmp_path: Path, architecture: str) -> None:
    path = tmp_path / "moe.gguf"
    norms = {"attn_q_norm.weight": (16,), "attn_k_norm.weight": (16,)} if architecture == "qwen3moe" else {}
    write(path, architecture, {**HEADS, **ROUTED}, [{**NORMS, **ATTENTION, **norms, **EXPERTS}] * 2, "F16")
    with open_model(path) as file:
        assert describe_model(file).has_experts
        with pytest.raises(UnsupportedModelError, match="layer 0 has a mixture of 8 experts"):
            read_model(file)
