"""The table of models against the totals that their makers publish, parameter for parameter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from twofold.core.errors import ModelNotFoundError
from twofold.core.model import (
    ExpertFFN,
    Formats,
    GatedFFN,
    GroupedAttention,
    LatentAttention,
    LayerSpec,
    RecurrentAttention,
)
from twofold.planner.count.memory import parameters, weight_bytes
from twofold.planner.shapes.known import OTHER_NAMES, find_shape, known_shapes

PUBLISHED = {
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "mistral-7b": 7_241_732_096,
    "mistral-7b-v3": 7_248_023_552,
    "mistral-small-24b": 23_572_403_200,
    "mixtral-8x7b": 46_702_792_704,
    "mixtral-8x22b": 140_620_634_112,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "qwen3-coder-480b-a35b": 480_154_875_392,
    "qwen3-next-80b-a3b": 79_674_391_296,
    "gemma-2-2b": 2_614_341_888,
    "gemma-2-9b": 9_241_705_984,
    "gemma-2-27b": 27_227_128_320,
    "gemma-3-270m": 268_098_176,
    "gemma-3-1b": 999_885_952,
    "phi-3-mini": 3_821_079_552,
    "phi-4": 14_659_507_200,
    "smollm2-135m": 134_515_008,
    "smollm2-360m": 361_821_120,
    "smollm2-1.7b": 1_711_376_384,
    "mpt-7b": 6_649_286_656,
    "gpt-oss-20b": 20_914_757_184,
    "gpt-oss-120b": 116_829_156_672,
    "deepseek-v2-lite": 15_706_484_224,
    "deepseek-v3": 671_026_419_200,
}
"""Values in the published safetensors files; of DeepSeek-V3 without the layer that predicts a second token, of
Qwen3-Next those of Qwen3-Coder-Next, which has equal layers and no such layer."""

VISION = {
    "gemma-3-4b": (4_300_079_472, 2560),
    "gemma-3-12b": (12_187_325_040, 3840),
    "gemma-3-27b": (27_432_406_640, 5376),
}
"""Published totals with a vision tower, and the hidden size that its projection leads to."""

ACTIVE = {
    "mixtral-8x7b": (12.9e9, 2),
    "mixtral-8x22b": (39.1e9, 1),
    "qwen3-30b-a3b": (3.3e9, 2),
    "qwen3-235b-a22b": (22e9, 2),
    "deepseek-v3": (37e9, 1),
    "gpt-oss-120b": (5.1e9, 1),
    "gpt-oss-20b": (3.6e9, 1),
    "minimax-m2.5": (10e9, 0),
    "kimi-k2": (32e9, 1),
}
"""Active parameters in the makers' words, and how many of head and embedding they count."""

ABOUT = {"palm-540b": 540.35e9, "gpt-13b": 12.85e9, "phi-4-mini": 3.84e9, "kimi-k2": 1.026e12, "minimax-m2.5": 228.7e9}


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_those_published(name: str) -> None:
    assert parameters(find_shape(name)).total == PUBLISHED[name]


@pytest.mark.parametrize("name", VISION)
def test_what_is_left_is_the_vision_tower(name: str) -> None:
    """SigLIP 400M has 416,866,032 values; its projection 1,152 a hidden value, and a norm."""
    total, hidden = VISION[name]
    assert parameters(find_shape(name)).total == total - 416_866_032 - 1152 * (hidden + 1)


@pytest.mark.parametrize("name", ACTIVE)
def test_active_parameters(name: str) -> None:
    counted, (published, tables) = parameters(find_shape(name)), ACTIVE[name]
    assert counted.active + tables * counted.head == pytest.approx(published, rel=0.02)


@pytest.mark.parametrize("name", ABOUT)
def test_parameters_of_models_without_a_published_sum(name: str) -> None:
    assert parameters(find_shape(name)).total == pytest.approx(ABOUT[name], rel=2e-3)


def test_published_file_sizes() -> None:
    """gpt-oss-120b: 60.8 GiB in MXFP4; Llama 3.1 405B: 811.7 GB in bf16."""
    assert weight_bytes(find_shape("gpt-oss-120b")) / 2**30 == pytest.approx(60.8, abs=0.05)
    assert weight_bytes(find_shape("llama-3.1-405b")) == 2 * 405_853_388_800


def test_every_model_is_held_against_something() -> None:
    assert set(known_shapes()) == {*PUBLISHED, *VISION, *ABOUT}


HEAD_NORMS = GroupedAttention(4, 1, 256, qk_norm="head")
LATENT = LatentAttention(128, 1536, 512, rope_dim=64, nope_dim=128, v_dim=128)
SINKS = GroupedAttention(64, 8, 64, qkv_bias=True, output_bias=True, sinks=True)
NEXT = ExpertFFN(512, 10, 512, 512, shared_gate=True)
LAYERS: Mapping[str, tuple[tuple[int, LayerSpec], ...]] = {
    "llama-3.1-8b": ((32, LayerSpec(GroupedAttention(32, 8, 128), GatedFFN(14_336))),),
    "mistral-7b": ((32, LayerSpec(GroupedAttention(32, 8, 128, 4096), GatedFFN(14_336))),),
    "mixtral-8x7b": ((32, LayerSpec(GroupedAttention(32, 8, 128), ExpertFFN(8, 2, 14_336))),),
    "qwen2.5-7b": ((28, LayerSpec(GroupedAttention(28, 4, 128, qkv_bias=True), GatedFFN(18_944))),),
    "qwen3-32b": ((64, LayerSpec(GroupedAttention(64, 8, 128, qk_norm="head"), GatedFFN(25_600))),),
    "qwen3-30b-a3b": ((48, LayerSpec(GroupedAttention(32, 4, 128, qk_norm="head"), ExpertFFN(128, 8, 768))),),
    "qwen3-next-80b-a3b": (
        (3, LayerSpec(RecurrentAttention(32, 16, 128, 128, 4), NEXT)),
        (1, LayerSpec(GroupedAttention(16, 2, 256, qk_norm="head", output_gate=True), NEXT)),
    )
    * 12,
    "phi-3-mini": ((32, LayerSpec(GroupedAttention(32, 32, 96, 2047), GatedFFN(8192))),),
    "gemma-2-2b": (
        (1, LayerSpec(GroupedAttention(8, 4, 256, 4096), GatedFFN(9216), 4)),
        (1, LayerSpec(GroupedAttention(8, 4, 256), GatedFFN(9216), 4)),
    )
    * 13,
    "gemma-3-270m": (
        (5, LayerSpec(replace(HEAD_NORMS, window=512), GatedFFN(2048), 4)),
        (1, LayerSpec(HEAD_NORMS, GatedFFN(2048), 4)),
    )
    * 3,
    "deepseek-v3": (
        (3, LayerSpec(LATENT, GatedFFN(18_432))),
        (58, LayerSpec(LATENT, ExpertFFN(256, 8, 2048, shared=2048, router_bias=True))),
    ),
    "gpt-oss-20b": (
        (1, LayerSpec(replace(SINKS, window=128), ExpertFFN(32, 4, 2880, router_bias=True, bias=True))),
        (1, LayerSpec(SINKS, ExpertFFN(32, 4, 2880, router_bias=True, bias=True))),
    )
    * 12,
    "minimax-m2.5": (
        (62, LayerSpec(GroupedAttention(48, 8, 128, qk_norm="all"), ExpertFFN(256, 8, 1536, router_bias=True))),
    ),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_of_each_kind(name: str) -> None:
    runs = find_shape(name).runs
    assert tuple((count, replace(layer, formats=Formats())) for count, layer in runs) == LAYERS[name]


@pytest.mark.parametrize(
    ("name", "tensor", "form"),
    [
        ("deepseek-v3", "q_b", "fp8-block"),
        ("deepseek-v3", "router", "bf16"),
        ("deepseek-v3", "router.bias", "fp32"),
        ("kimi-k2", "expert_up", "int4-g32"),
        ("kimi-k2", "o", "bf16"),
        ("gpt-oss-120b", "expert_down", "mxfp4"),
        ("gpt-oss-120b", "q", "bf16"),
        ("minimax-m2.5", "expert_gate", "fp8-block"),
        ("llama-3-8b", "gate", "bf16"),
    ],
)
def test_published_formats(name: str, tensor: str, form: str) -> None:
    assert find_shape(name).layers[-1].formats.of(tensor).name == form


def test_every_model_names_its_source() -> None:
    for shape in known_shapes().values():
        assert shape.source, shape.name
        assert shape.has_experts == any(isinstance(layer.ffn, ExpertFFN) for _, layer in shape.runs)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("Qwen/Qwen3-235B-A22B-Instruct-2507", "qwen3-235b-a22b"),
        ("google/gemma-3-270m-it", "gemma-3-270m"),
        ("deepseek-ai/DeepSeek-R1", "deepseek-v3"),
        ("Mistral_7B_Instruct", "mistral-7b"),
        ("openai/gpt-oss-120b", "gpt-oss-120b"),
    ],
)
def test_names_in_use(name: str, found: str) -> None:
    assert find_shape(name).name == found


def test_other_names_lead_somewhere() -> None:
    assert set(OTHER_NAMES.values()) <= set(known_shapes())


def test_an_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(ModelNotFoundError, match="No model 'llama-3-71b'") as caught:
        find_shape("llama-3-71b")
    assert caught.value.hint is not None
    assert "'llama-3-70b'" in caught.value.hint
