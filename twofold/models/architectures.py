"""The architectures, as data: one row for each, by which GGUF files and Hugging Face configurations are read.

Conventions of GGUF files that the table relies on: weights of Gemma's norms already include the added 1; the rows of
Llama's Q and K are permuted so that rotated pairs are adjacent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from twofold.core.model import Activation, QkNorm, RopePairs

Windows = Literal["none", "all", "late", "pattern"]
"""Layers that see only the sliding window, if the file gives one: none, all, those from ``max_window_layers`` on
(late), or all except every ``period``-th (pattern)."""
ExpertRule = Literal["none", "all", "step", "first_dense"]
"""Layers with experts: none, all, by ``decoder_sparse_step`` and ``mlp_only_layers``, or all after some dense ones."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """The properties of an architecture's models that files do not give.

    name                 ``general.architecture`` of GGUF files; empty if they use another row's name
    kinds                values of ``model_type`` in Hugging Face configurations
    qkv_bias, output_bias  None: as given by the tensors, or by the field ``attention_bias``
    recurrent            all layers are recurrent except every ``period``-th, whose attention has an output gate
    local_rope_base      the rope base of layers with a window, if it differs
    hidden_scale_layers  models with these numbers of layers scale q·k by (hidden / heads)^-½ instead of head_dim^-½
    experts … shared_gate  for configurations only: GGUF files show these by their tensors
    defaults             the defaults of the configuration's class, for fields that files omit
    """

    name: str
    kinds: tuple[str, ...] = ()
    rope_pairs: RopePairs = "halves"
    activation: Activation = "silu"
    qkv_bias: bool | None = None
    output_bias: bool | None = None
    qk_norm: QkNorm | None = None
    norms: Literal[2, 4] = 2
    scaled_embedding: bool = False
    windows: Windows = "none"
    period: int = 0
    default_window: int | None = None
    local_rope_base: float | None = None
    attention_softcap: float | None = None
    final_softcap: float | None = None
    hidden_scale_layers: frozenset[int] = frozenset()
    latent: bool = False
    recurrent: bool = False
    experts: ExpertRule = "none"
    router_bias: bool = False
    expert_bias: bool = False
    sinks: bool = False
    shared_gate: bool = False
    defaults: Mapping[str, object] = field(default_factory=dict)

    @property
    def runs(self) -> bool:
        """Whether engines run its models (``models.gguf``)."""
        return bool(self.name) and self.experts == "none" and not self.latent and not self.recurrent


_GEMMA: Final = {"tie_word_embeddings": True, "head_dim": 256}
_LATENT: Final = {"tie_word_embeddings": False, "moe_layer_freq": 1, "first_k_dense_replace": 0}

ARCHITECTURES: Final[tuple[Architecture, ...]] = (
    Architecture("llama", rope_pairs="adjacent", windows="all"),  # Mistral's and Mixtral's GGUF files, too
    Architecture("", ("llama", "smollm3"), rope_pairs="adjacent"),
    Architecture(
        "mistral",
        ("mistral",),
        rope_pairs="adjacent",
        qkv_bias=False,
        output_bias=False,
        windows="all",
        defaults={"num_key_value_heads": 8},
    ),
    Architecture("", ("mixtral",), qkv_bias=False, output_bias=False, windows="all", experts="all"),
    Architecture("qwen2", ("qwen2", "qwen2_5_vl_text", "mimo"), qkv_bias=True, output_bias=False, windows="late"),
    Architecture(
        "qwen2moe",
        ("qwen2_moe",),
        qkv_bias=True,
        output_bias=False,
        windows="late",
        experts="step",
        shared_gate=True,
    ),
    Architecture("qwen3", ("qwen3", "qwen3_vl_text"), qk_norm="head", windows="late"),
    Architecture("qwen3moe", ("qwen3_moe", "qwen3_vl_moe_text"), qk_norm="head", windows="late", experts="step"),
    Architecture(
        "qwen3next",
        ("qwen3_next",),
        output_bias=False,
        qkv_bias=False,
        qk_norm="head",
        recurrent=True,
        period=4,
        experts="step",
        shared_gate=True,
        defaults={
            "linear_num_value_heads": 32,
            "linear_num_key_heads": 16,
            "linear_key_head_dim": 128,
            "linear_value_head_dim": 128,
            "linear_conv_kernel_dim": 4,
        },
    ),
    Architecture("phi3", ("phi3",), qkv_bias=False, output_bias=False, windows="all"),
    Architecture("", ("gemma",), activation="gelu_tanh", scaled_embedding=True, defaults=_GEMMA),
    Architecture(
        "gemma2",
        ("gemma2",),
        activation="gelu_tanh",
        norms=4,
        scaled_embedding=True,
        windows="pattern",
        period=2,
        default_window=4096,
        attention_softcap=50.0,
        final_softcap=30.0,
        hidden_scale_layers=frozenset({46}),
        defaults={**_GEMMA, "vocab_size": 256_000, "sliding_window": 4096},
    ),
    Architecture(
        "gemma3",
        ("gemma3_text",),
        activation="gelu_tanh",
        qk_norm="head",
        norms=4,
        scaled_embedding=True,
        windows="pattern",
        period=6,
        local_rope_base=10_000.0,
        hidden_scale_layers=frozenset({62}),
        defaults={
            **_GEMMA,
            "vocab_size": 262_208,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "sliding_window": 4096,
            "max_position_embeddings": 131_072,
        },
    ),
    Architecture("deepseek2", ("deepseek_v2",), latent=True, experts="first_dense", defaults=_LATENT),
    Architecture(
        "", ("deepseek_v3", "kimi_k2"), latent=True, experts="first_dense", router_bias=True, defaults=_LATENT
    ),
    Architecture(
        "gpt-oss",
        ("gpt_oss",),
        windows="pattern",
        period=2,
        default_window=128,
        experts="all",
        router_bias=True,
        expert_bias=True,
        sinks=True,
        defaults={"attention_bias": True, "sliding_window": 128, "head_dim": 64},
    ),
    Architecture(
        "minimax-m2",
        ("minimax_m2",),
        qkv_bias=False,
        output_bias=False,
        qk_norm="all",
        experts="all",
        router_bias=True,
    ),
)

BY_NAME: Final[Mapping[str, Architecture]] = {each.name: each for each in ARCHITECTURES if each.name}
BY_KIND: Final[Mapping[str, Architecture]] = {kind: each for each in ARCHITECTURES for kind in each.kinds}
