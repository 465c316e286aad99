"""Fields of published configurations that the shape depends on, by the table's names of the models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final


def fields(
    kind: str, layers: int, hidden: int, heads: int, vocab: int, context: int, **more: object
) -> dict[str, object]:
    return {
        "model_type": kind,
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "vocab_size": vocab,
        "max_position_embeddings": context,
        "torch_dtype": "bfloat16",
        **more,
    }


_FP8: Final = {"quant_method": "fp8", "weight_block_size": [128, 128], "fmt": "e4m3"}
_MXFP4: Final = {
    "quant_method": "mxfp4",
    "modules_to_not_convert": [
        *("model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"),
    ],
}

CONFIGS: Final[Mapping[str, Mapping[str, object]]] = {
    "llama-3.1-8b": fields(
        "llama", 32, 4096, 32, 128_256, 131_072, num_key_value_heads=8, intermediate_size=14_336,
        tie_word_embeddings=False, architectures=["LlamaForCausalLM"],
    ),
    "mistral-7b": fields(
        "mistral", 32, 4096, 32, 32_000, 32_768, num_key_value_heads=8, intermediate_size=14_336, sliding_window=4096,
    ),
    "mistral-small-24b": fields(
        "mistral", 40, 5120, 32, 131_072, 32_768, num_key_value_heads=8, intermediate_size=32_768, head_dim=128,
        sliding_window=None,
    ),
    "mixtral-8x7b": fields(
        "mixtral", 32, 4096, 32, 32_000, 32_768, num_key_value_heads=8, intermediate_size=14_336, num_local_experts=8,
        num_experts_per_tok=2, sliding_window=None,
    ),
    "qwen2.5-7b": fields(
        "qwen2", 28, 3584, 28, 152_064, 32_768, num_key_value_heads=4, intermediate_size=18_944, sliding_window=131_072,
        use_sliding_window=False, max_window_layers=28, tie_word_embeddings=False,
    ),
    "qwen3-0.6b": fields(
        "qwen3", 28, 1024, 16, 151_936, 40_960, num_key_value_heads=8, intermediate_size=3072, head_dim=128,
        attention_bias=False, tie_word_embeddings=True, use_sliding_window=False, sliding_window=None,
    ),
    "qwen3-30b-a3b": fields(
        "qwen3_moe", 48, 2048, 32, 151_936, 40_960, num_key_value_heads=4, intermediate_size=6144, head_dim=128,
        num_experts=128, num_experts_per_tok=8, moe_intermediate_size=768, decoder_sparse_step=1, mlp_only_layers=[],
        tie_word_embeddings=False,
    ),
    "qwen3-next-80b-a3b": fields(
        "qwen3_next", 48, 2048, 16, 151_936, 262_144, num_key_value_heads=2, intermediate_size=5120, head_dim=256,
        num_experts=512, num_experts_per_tok=10, moe_intermediate_size=512, shared_expert_intermediate_size=512,
        decoder_sparse_step=1, mlp_only_layers=[], full_attention_interval=4, partial_rotary_factor=0.25,
        linear_conv_kernel_dim=4, linear_key_head_dim=128, linear_num_key_heads=16, linear_num_value_heads=32,
        linear_value_head_dim=128, tie_word_embeddings=False,
    ),
    "gemma-2-9b": fields(
        "gemma2", 42, 3584, 16, 256_000, 8192, num_key_value_heads=8, intermediate_size=14_336, head_dim=256,
        sliding_window=4096,
    ),
    "gemma-3-270m": fields(
        "gemma3_text", 18, 640, 4, 262_144, 32_768, num_key_value_heads=1, intermediate_size=2048, head_dim=256,
        sliding_window=512,
    ),
    "phi-3-mini": fields(
        "phi3", 32, 3072, 32, 32_064, 4096, num_key_value_heads=32, intermediate_size=8192, sliding_window=2047,
    ),
    "deepseek-v3": fields(
        "deepseek_v3", 61, 7168, 128, 129_280, 163_840, num_key_value_heads=128, intermediate_size=18_432,
        first_k_dense_replace=3, kv_lora_rank=512, q_lora_rank=1536, qk_nope_head_dim=128, qk_rope_head_dim=64,
        v_head_dim=128, moe_intermediate_size=2048, moe_layer_freq=1, n_routed_experts=256, n_shared_experts=1,
        num_experts_per_tok=8, quantization_config=_FP8,
    ),
    "deepseek-v2-lite": fields(
        "deepseek_v2", 27, 2048, 16, 102_400, 163_840, num_key_value_heads=16, intermediate_size=10_944,
        first_k_dense_replace=1, kv_lora_rank=512, q_lora_rank=None, qk_nope_head_dim=128, qk_rope_head_dim=64,
        v_head_dim=128, moe_intermediate_size=1408, n_routed_experts=64, n_shared_experts=2, num_experts_per_tok=6,
    ),
    "gpt-oss-20b": fields(
        "gpt_oss", 24, 2880, 64, 201_088, 131_072, num_key_value_heads=8, intermediate_size=2880, head_dim=64,
        attention_bias=True, num_local_experts=32, num_experts_per_tok=4, sliding_window=128,
        quantization_config=_MXFP4, tie_word_embeddings=False,
    ),
    "minimax-m2.5": fields(
        "minimax_m2", 62, 3072, 48, 200_064, 196_608, num_key_value_heads=8, intermediate_size=1536, head_dim=128,
        num_local_experts=256, num_experts_per_tok=8,
        quantization_config={**_FP8, "modules_to_not_convert": ["gate", "e_score_correction_bias", "lm_head"]},
    ),
}  # fmt: skip
