"""Sizes of well-known models with experts. ``source`` is the Hugging Face repository whose config.json says so.

DeepSeek's and MiniMax's layers that predict further tokens are not counted: a server may leave them out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from twofold.core.model import ExpertFFN, Formats, GatedFFN, GroupedAttention, LatentAttention, LayerSpec, ModelSpec
from twofold.core.values import FP8_BLOCK, FP32, INT4, MXFP4, grouped

K: Final = 1024

_EXPERT_MATRICES: Final = ("expert_gate", "expert_up", "expert_down")


def sparse_models() -> Iterator[ModelSpec]:
    """Every model with experts of the table, in the formats that its makers publish."""
    yield from _mixtrals()
    yield from _qwens()
    yield from _latents()
    yield from _gpts()
    yield _minimax()


def _mixtrals() -> Iterator[ModelSpec]:
    for size, layers, hidden, ffn, heads, context in (
        ("8x7b", 32, 4096, 14_336, 32, 32),
        ("8x22b", 56, 6144, 16_384, 48, 64),
    ):
        layer = LayerSpec(GroupedAttention(heads, 8, 128), ExpertFFN(8, 2, ffn))
        source = f"mistralai/Mixtral-{size.replace('b', 'B')}-v0.1"
        yield ModelSpec(f"mixtral-{size}", hidden, 32_000, context * K, (layer,) * layers, source=source)


def _qwens() -> Iterator[ModelSpec]:
    for name, layers, hidden, heads, kv_heads, experts, size, context in (
        ("30b-a3b", 48, 2048, 32, 4, 128, 768, 40),
        ("235b-a22b", 94, 4096, 64, 4, 128, 1536, 40),
        ("coder-480b-a35b", 62, 6144, 96, 8, 160, 2560, 256),
    ):
        layer = LayerSpec(GroupedAttention(heads, kv_heads, 128, qk_norm="head"), ExpertFFN(experts, 8, size))
        source = f"Qwen/Qwen3-{name.upper().replace('CODER', 'Coder')}"
        yield ModelSpec(f"qwen3-{name}", hidden, 151_936, context * K, (layer,) * layers, source=source)


def _latents() -> Iterator[ModelSpec]:
    kept = (("router", Formats().matrices), ("router.bias", FP32))
    block = Formats(FP8_BLOCK, special=kept)
    attention = LatentAttention(128, 1536, 512, rope_dim=64, nope_dim=128, v_dim=128)
    v3 = [LayerSpec(attention, GatedFFN(18_432), formats=block)] * 3
    v3 += [LayerSpec(attention, ExpertFFN(256, 8, 2048, shared=2048, router_bias=True), formats=block)] * 58
    yield ModelSpec("deepseek-v3", 7168, 129_280, 160 * K, tuple(v3), source="deepseek-ai/DeepSeek-V3")

    lite = LatentAttention(16, None, 512, rope_dim=64, nope_dim=128, v_dim=128)
    v2 = [LayerSpec(lite, GatedFFN(10_944))] + [LayerSpec(lite, ExpertFFN(64, 6, 1408, shared=2 * 1408))] * 26
    yield ModelSpec("deepseek-v2-lite", 2048, 102_400, 160 * K, tuple(v2), source="deepseek-ai/DeepSeek-V2-Lite")

    four = grouped(INT4, 32)
    formats = Formats(special=(*((name, four) for name in _EXPERT_MATRICES), ("router.bias", FP32)))
    attention = LatentAttention(64, 1536, 512, rope_dim=64, nope_dim=128, v_dim=128)
    kimi = [LayerSpec(attention, GatedFFN(18_432), formats=formats)]
    kimi += [LayerSpec(attention, ExpertFFN(384, 8, 2048, shared=2048, router_bias=True), formats=formats)] * 60
    yield ModelSpec("kimi-k2", 7168, 163_840, 256 * K, tuple(kimi), source="moonshotai/Kimi-K2.5")


def _gpts() -> Iterator[ModelSpec]:
    formats = Formats(special=tuple((name, MXFP4) for name in _EXPERT_MATRICES))
    for size, layers, experts in (("20b", 24, 32), ("120b", 36, 128)):
        ffn = ExpertFFN(experts, 4, 2880, router_bias=True, bias=True)
        made = [
            LayerSpec(
                GroupedAttention(64, 8, 64, None if index % 2 else 128, qkv_bias=True, output_bias=True, sinks=True),
                ffn,
                formats=formats,
            )
            for index in range(layers)
        ]
        yield ModelSpec(f"gpt-oss-{size}", 2880, 201_088, 128 * K, tuple(made), source=f"openai/gpt-oss-{size}")


def _minimax() -> ModelSpec:
    kept = (("router", FP32), ("router.bias", FP32))
    ffn = ExpertFFN(256, 8, 1536, router_bias=True)
    layer = LayerSpec(GroupedAttention(48, 8, 128, qk_norm="all"), ffn, formats=Formats(FP8_BLOCK, special=kept))
    return ModelSpec("minimax-m2.5", 3072, 200_064, 192 * K, (layer,) * 62, source="MiniMaxAI/MiniMax-M2.5")
