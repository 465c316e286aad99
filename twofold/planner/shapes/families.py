"""What the kinds of models in Hugging Face configurations are like, as data: one row for each ``model_type``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from twofold.core.model import QkNorm

Windows = Literal["none", "all", "late", "pattern"]
"""Layers that see a window: none, all, those from ``max_window_layers`` on, or all but each ``period``-th."""
ExpertRule = Literal["none", "all", "step", "first_dense"]
"""Layers with experts: none, all, by ``decoder_sparse_step`` and ``mlp_only_layers``, or after some dense ones."""


@dataclass(frozen=True, slots=True)
class ModelFamily:
    """A ``model_type``: what its layers are made of where the configuration itself does not say.

    ``qkv_bias`` and ``output_bias`` None: as the field ``attention_bias`` says. ``defaults`` are those of the
    configuration's class for fields that files leave out. ``router_bias`` where a bias corrects the router's choice.
    """

    name: str
    qkv_bias: bool | None = None
    output_bias: bool | None = None
    qk_norm: QkNorm | None = None
    norms: Literal[2, 4] = 2
    windows: Windows = "none"
    period: int = 1
    experts: ExpertRule = "none"
    latent: bool = False
    router_bias: bool = False
    expert_bias: bool = False
    sinks: bool = False
    shared_gate: bool = False
    defaults: Mapping[str, object] = field(default_factory=dict)


_GEMMA: Final = {"tie_word_embeddings": True, "head_dim": 256}
_LATENT: Final = {"tie_word_embeddings": False, "moe_layer_freq": 1, "first_k_dense_replace": 0}

FAMILIES: Final[tuple[ModelFamily, ...]] = (
    ModelFamily("llama"),
    ModelFamily("mistral", qkv_bias=False, output_bias=False, windows="all", defaults={"num_key_value_heads": 8}),
    ModelFamily("mixtral", qkv_bias=False, output_bias=False, windows="all", experts="all"),
    ModelFamily("qwen2", qkv_bias=True, output_bias=False, windows="late"),
    ModelFamily("qwen2_moe", qkv_bias=True, output_bias=False, windows="late", experts="step", shared_gate=True),
    ModelFamily("qwen3", qk_norm="head", windows="late"),
    ModelFamily("qwen3_moe", qk_norm="head", windows="late", experts="step"),
    ModelFamily("phi3", qkv_bias=False, output_bias=False, windows="all"),
    ModelFamily("gemma", defaults=_GEMMA),
    ModelFamily(
        "gemma2",
        norms=4,
        windows="pattern",
        period=2,
        defaults={**_GEMMA, "vocab_size": 256_000, "sliding_window": 4096},
    ),
    ModelFamily(
        "gemma3_text",
        qk_norm="head",
        norms=4,
        windows="pattern",
        period=6,
        defaults={
            **_GEMMA,
            "vocab_size": 262_208,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "sliding_window": 4096,
            "max_position_embeddings": 131_072,
        },
    ),
    ModelFamily("deepseek_v2", latent=True, experts="first_dense", defaults=_LATENT),
    ModelFamily("deepseek_v3", latent=True, experts="first_dense", router_bias=True, defaults=_LATENT),
    ModelFamily("kimi_k2", latent=True, experts="first_dense", router_bias=True, defaults=_LATENT),
    ModelFamily(
        "gpt_oss",
        windows="pattern",
        period=2,
        experts="all",
        router_bias=True,
        expert_bias=True,
        sinks=True,
        defaults={"attention_bias": True, "sliding_window": 128, "head_dim": 64},
    ),
    ModelFamily("minimax_m2", qkv_bias=False, output_bias=False, qk_norm="all", experts="all", router_bias=True),
)

ARCHITECTURES: Final[Mapping[str, str]] = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "MixtralForCausalLM": "mixtral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen2MoeForCausalLM": "qwen2_moe",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3_moe",
    "Phi3ForCausalLM": "phi3",
    "GemmaForCausalLM": "gemma",
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3_text",
    "DeepseekV2ForCausalLM": "deepseek_v2",
    "DeepseekV3ForCausalLM": "deepseek_v3",
    "GptOssForCausalLM": "gpt_oss",
    "MiniMaxM2ForCausalLM": "minimax_m2",
}
"""For configurations without ``model_type``."""

SAME_TEXT: Final[Mapping[str, str]] = {
    "qwen3_vl_text": "qwen3",
    "qwen3_vl_moe_text": "qwen3_moe",
    "qwen2_5_vl_text": "qwen2",
    "smollm3": "llama",
    "mimo": "qwen2",
}
"""Kinds of models whose language part has the sizes and tensors of another."""

BY_NAME: Final[Mapping[str, ModelFamily]] = {family.name: family for family in FAMILIES}
