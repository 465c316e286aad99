"""Model descriptions from metadata: the supported keys, and that no other key is ignored silently."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.support.described import Described, Shape, describe
from tests.support.tiny import TWO_SIZES, TinyOptions
from twofold.core.errors import FormatError, UnsupportedModelError
from twofold.core.model import (
    FactorScaling,
    GatedFFN,
    GroupedAttention,
    LinearScaling,
    ModelSpec,
    Paged,
    RopeScaling,
    RopeSpec,
    YarnScaling,
)
from twofold.core.values import BY_NAME
from twofold.models.architectures import ARCHITECTURES
from twofold.models.gguf import HARMLESS, NEUTRAL
from twofold.models.ops import TensorRef

REQUIRED = (
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "attention.head_count",
    "attention.layer_norm_rms_epsilon",
)


def tiny(architecture: str = "llama", **options: object) -> Described:
    window = 8 if architecture.startswith("gemma") else None
    return describe(TinyOptions(architecture, **({"window": window} | options)))  # type: ignore[arg-type]


def windows(spec: ModelSpec) -> list[int | None]:
    return [layer.attention.window for layer in spec.layers]


def attention_of(spec: ModelSpec, layer: int = 0) -> GroupedAttention:
    attention = spec.layers[layer].attention
    assert isinstance(attention, GroupedAttention)
    return attention


def scaling(spec: ModelSpec) -> RopeScaling | None:
    rope = spec.layers[0].rope
    return None if rope is None else rope.scaling


@pytest.mark.parametrize("architecture", [a.name for a in ARCHITECTURES if a.runs])
def test_every_architecture_of_the_table_is_read(architecture: str) -> None:
    spec, weights = tiny(architecture).read()
    assert (spec.architecture, spec.vocab_size, spec.hidden_size, attention_of(spec).heads) == (
        architecture,
        300,
        64,
        4,
    )
    assert len(spec.layers) == len(weights.layers) == 2
    assert ("q.bias" in weights.layers[0]) == (architecture == "qwen2")
    assert ("q_norm" in weights.layers[0]) == (architecture in {"qwen3", "gemma3"})
    assert ("post_ffn_norm" in weights.layers[0]) == architecture.startswith("gemma")


def test_gemma_3() -> None:
    model = tiny("gemma3", layers=7).set("rope.scaling.type", "linear").set("rope.scaling.factor", 8.0)
    spec = model.spec()
    assert windows(spec) == [8, 8, 8, 8, 8, None, 8]
    assert spec.layers[0].rope == RopeSpec(16, 10_000.0, "halves")
    assert spec.layers[5].rope == RopeSpec(16, 1_000_000.0, "halves", LinearScaling(8.0))
    assert spec.layers[0].ffn == GatedFFN(96, activation="gelu_tanh")
    assert (spec.embedding_scale, attention_of(spec).score_scale) == (8.0, 0.25)
    assert (attention_of(spec).softcap, spec.final_softcap) == (None, None)


def test_gemma_2() -> None:
    spec = tiny("gemma2", layers=3).spec()
    assert windows(spec) == [8, None, 8]
    assert (attention_of(spec).softcap, spec.final_softcap) == (50.0, 30.0)
    assert tiny("gemma2").set("attention.sliding_window", None).spec().layers[0].attention.window == 4096


@pytest.mark.parametrize("pattern", [3, np.array([True, True, False, True]), [True, True, False, True]])
def test_a_window_pattern_of_the_files_own(pattern: object) -> None:
    spec = tiny("gemma3", layers=4).set("attention.sliding_window_pattern", pattern).spec()
    assert windows(spec) == [8, 8, None, 8]


def test_large_gemmas_scale_attention_by_the_hidden_size() -> None:
    spec = tiny("gemma3", layers=62, hidden=32).spec()
    assert attention_of(spec).score_scale == pytest.approx((32 / 4) ** -0.5)


def test_an_attention_scale_of_the_files_own() -> None:
    assert attention_of(tiny().set("attention.scale", 0.5).spec()).score_scale == 0.5


def test_a_window_for_all_layers() -> None:
    assert windows(tiny("mistral", window=9).spec()) == [9, 9]
    assert windows(tiny("phi3", window=0).spec()) == [None, None]


def test_phi_3_slices_its_fused_tensors() -> None:
    _, weights = tiny("phi3").read()
    layer = weights.layers[1]
    assert [layer[role] for role in "qkv"] == [
        TensorRef("layers.1.qkv", 64, 64),
        TensorRef("layers.1.qkv", 32, 64, 64),
        TensorRef("layers.1.qkv", 32, 64, 96),
    ]
    assert (layer["gate"].first_row, layer["up"].first_row, layer["up"].rows) == (0, 96, 96)


def test_tied_and_untied_heads() -> None:
    spec, weights = tiny(tied=True).read()
    assert spec.tied_head
    assert weights.head == weights.embedding
    spec, weights = tiny(tied=False).read()
    assert not spec.tied_head
    assert weights.head.name == "head"


def test_llama_3s_frequencies_and_linear_scaling_multiply() -> None:
    found = scaling(tiny(rope_freqs=True).set("rope.scaling.factor", 2.0).spec())
    assert isinstance(found, FactorScaling)
    np.testing.assert_allclose(found.factors, np.linspace(2, 16, 8))


def test_yarn_with_its_own_betas() -> None:
    model = tiny("qwen2").set("rope.scaling.type", "yarn").set("rope.scaling.factor", 4.0)
    model.set("rope.scaling.original_context_length", 128).set("rope.scaling.yarn_beta_fast", 16.0)
    assert scaling(model.spec()) == YarnScaling(4.0, 128, beta_fast=16.0)


def test_longrope_chooses_by_the_context_that_runs() -> None:
    model = tiny("phi3", rope_factors=True).set("rope.scaling.original_context_length", 64)
    model.data["rope_factors_short.weight"] = np.ones(8, np.float32).view(np.uint8)
    long, short = (scaling(model.spec(context)) for context in (None, 64))
    assert isinstance(long, FactorScaling)
    assert isinstance(short, FactorScaling)
    assert long.factors[-1] == 8.0
    assert short.factors == (1.0,) * 8
    assert long.magnitude == short.magnitude == pytest.approx(math.sqrt(1 + math.log(512 / 64) / math.log(64)))


@pytest.mark.parametrize("key", REQUIRED)
def test_a_missing_key_is_named(key: str) -> None:
    with pytest.raises(FormatError, match=f"lacks the field 'llama.{key}'"):
        tiny().set(key, None).spec()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("block_count", 0),
        ("block_count", 2**31),
        ("block_count", "2"),
        ("context_length", -1),
        ("embedding_length", 64.0),
        ("embedding_length", True),
        ("attention.head_count", []),
        ("attention.layer_norm_rms_epsilon", math.nan),
        ("attention.layer_norm_rms_epsilon", 0.0),
        ("attention.layer_norm_rms_epsilon", "small"),
        ("rope.freq_base", 1.0),
        ("rope.dimension_count", 32),
        ("rope.scaling.type", 3),
        ("attn_logit_softcapping", -1.0),
    ],
)
def test_impossible_values_name_their_key(key: str, value: object) -> None:
    with pytest.raises(FormatError, match=f"'llama.{key}'"):
        tiny().set(key, value).spec()


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("attention.head_count_kv", 3, "4 attention heads are not divisible by 3"),
        ("attention.key_length", 8, "keys have 8 values, but heads of values have 16"),
        ("rope.dimension_count", 7, "rotates 7 values"),
    ],
)
def test_contradictions_are_format_errors(key: str, value: object, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        tiny().set(key, value).spec()


def test_a_pattern_of_windows_needs_a_window() -> None:
    for value in (0, None):
        with pytest.raises(FormatError, match="sliding_window"):
            tiny("gemma3").set("attention.sliding_window", value).spec()


def test_heads_that_do_not_divide_the_hidden_size() -> None:
    with pytest.raises(FormatError, match="is not divisible by 5 attention heads"):
        tiny().set("attention.key_length", None).set("attention.head_count", 5).spec()


def test_a_pattern_of_the_wrong_length() -> None:
    with pytest.raises(FormatError, match="sliding_window_pattern"):
        tiny("gemma3").set("attention.sliding_window_pattern", [True]).spec()


@pytest.mark.parametrize(
    ("key", "value"),
    [("expert_count", 8), ("logit_scale", 0.5), ("attention.causal", False), ("rope.freq_base_swa", 1e4), ("new", 1)],
)
def test_a_key_that_would_change_the_result_is_named_with_its_value(key: str, value: object) -> None:
    with pytest.raises(UnsupportedModelError, match=rf"'llama\.{key}' = {value}") as caught:
        tiny().set(key, value).spec()
    assert caught.value.hint


def test_windows_where_the_architecture_has_none() -> None:
    with pytest.raises(UnsupportedModelError, match=r"'qwen2\.attention\.sliding_window' = 8"):
        tiny("qwen2").set("attention.sliding_window", 8).spec()


def test_keys_that_change_nothing_are_accepted() -> None:
    model = tiny()
    for key, value in dict.fromkeys(HARMLESS, 1).items() | NEUTRAL.items():
        model.set(key, value)
    model.metadata["mradermacher.quantized_by"] = "someone"
    assert model.spec() == tiny().spec()


def test_lists_of_equal_numbers_count_as_that_number() -> None:
    assert attention_of(tiny().set("attention.head_count_kv", np.array([2, 2])).spec()).kv_heads == 2


def test_layers_may_have_other_numbers_of_heads() -> None:
    spec = tiny(kv_heads=(2, 4)).spec()
    assert [attention_of(spec, layer).kv_heads for layer in (0, 1)] == [2, 4]


def test_layers_with_a_window_may_have_heads_of_another_size() -> None:
    spec = describe(TWO_SIZES).spec()
    kept = [layer.attention.kept for layer in spec.layers]
    assert kept == [Paged(24, 2, 32), Paged(None, 1, 64)] * 2
    assert [layer.rope for layer in spec.layers] == [
        RopeSpec(32, 10_000.0, "halves"),
        RopeSpec(64, 1_000_000.0, "halves"),
    ] * 2
    assert [attention_of(spec, layer).score_scale for layer in (0, 1)] == [1 / math.sqrt(32), 1 / 8]


def test_a_head_size_for_windows_without_one_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match=r"'llama\.attention\.key_length_swa' = 32"):
        tiny().set("attention.key_length_swa", 32).spec()


def test_heads_of_values_are_those_of_keys_in_windows_too() -> None:
    with pytest.raises(FormatError, match="Heads of keys have 32 values, but heads of values have 64"):
        describe(TWO_SIZES).set("attention.value_length_swa", None).spec()


def test_rotations_are_no_longer_than_the_heads_of_a_window() -> None:
    with pytest.raises(FormatError, match=r"rope\.dimension_count' is 64, but must be between 2 and 32"):
        describe(TWO_SIZES).set("rope.dimension_count_swa", None).spec()


def test_unknown_architectures_get_the_nearest_known_name() -> None:
    model = tiny()
    model.metadata["general.architecture"] = "gema3"
    with pytest.raises(UnsupportedModelError, match="'gema3'") as caught:
        model.spec()
    assert "'gemma3'" in str(caught.value.hint)


def test_files_that_are_not_models() -> None:
    model = tiny()
    model.metadata["general.type"] = "adapter"
    with pytest.raises(UnsupportedModelError, match="adapter"):
        model.spec()
    with pytest.raises(FormatError, match=r"general\.architecture"):
        Described("llama", {}, {}, {}).spec()


def test_unknown_rope_scalings_are_named() -> None:
    with pytest.raises(UnsupportedModelError, match="'dynamic'"):
        tiny().set("rope.scaling.type", "dynamic").spec()
    with pytest.raises(UnsupportedModelError, match="'longrope'"):
        tiny("phi3").set("rope.scaling.type", "longrope").spec()


@pytest.mark.parametrize("factors", [[1.0] * 7, [1.0] * 7 + [0.0], [1.0] * 7 + [math.inf]])
def test_rope_factors_must_be_positive_and_complete(factors: list[float]) -> None:
    model = tiny(rope_freqs=True)
    model.tensors["rope_freqs.weight"] = Shape(1, len(factors))
    model.data["rope_freqs.weight"] = np.array(factors, np.float32).view(np.uint8)
    with pytest.raises(FormatError, match="rope_factors"):
        model.spec()


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("token_embd.weight", "embedding"),
        ("output_norm.weight", "final_norm"),
        ("blk.1.ffn_down.weight", "layers.1.down"),
    ],
)
def test_a_missing_tensor_is_named(name: str, ours: str) -> None:
    model = tiny()
    del model.tensors[name]
    with pytest.raises(FormatError, match=f"'{ours}'"):
        model.read()


def test_a_tensor_of_the_wrong_shape_is_named() -> None:
    model = tiny()
    model.tensors["blk.0.attn_k.weight"] = Shape(33, 64)
    with pytest.raises(FormatError, match=r"attn_k\.weight' has shape 33 × 64, but the metadata ask for 32 × 64"):
        model.read()


def test_a_quantised_vector_is_refused() -> None:
    model = tiny()
    model.tensors["blk.0.attn_norm.weight"] = Shape(1, 64, BY_NAME["Q8_0"])
    with pytest.raises(UnsupportedModelError, match="Q8_0"):
        model.read()


@pytest.mark.parametrize("name", ["blk.0.attn_output.bias", "blk.2.attn_q.weight", "v.patch_embd.weight"])
def test_an_unexpected_tensor_is_named(name: str) -> None:
    model = tiny()
    model.tensors[name] = Shape(1, 64)
    with pytest.raises(UnsupportedModelError, match=name):
        model.read()


def test_more_tokens_than_embedding_rows() -> None:
    model = tiny()
    model.metadata["tokenizer.ggml.tokens"] = ["x"] * 301
    with pytest.raises(FormatError, match="301 tokens"):
        model.read()


def test_a_huge_layer_count_fails_at_the_first_missing_tensor() -> None:
    with pytest.raises(FormatError, match="layer 2 has no tensors"):
        tiny().set("block_count", 4096).read()
