"""Sizes of well-known dense models. ``source`` is the Hugging Face repository whose config.json says so, or a paper."""

from __future__ import annotations

from collections.abc import Iterator

from twofold.core.model import GatedFFN, GroupedAttention, LayerSpec, ModelSpec, PlainFFN, QkNorm

K = 1024


def dense_models() -> Iterator[ModelSpec]:
    """Every dense model of the table."""
    yield from _llamas()
    yield from _mistrals()
    yield from _qwens()
    yield from _gemmas()
    yield from _others()


def dense(
    name: str,
    source: str,
    layers: int,
    hidden: int,
    ffn: int,
    heads: int,
    kv_heads: int,
    vocab: int,
    context: int,
    *,
    head_dim: int | None = None,
    tied: bool = False,
    window: int | None = None,
    qk_norm: QkNorm | None = None,
    qkv_bias: bool = False,
) -> ModelSpec:
    """A model of equal layers: grouped attention and a gated feed-forward."""
    dim = head_dim or hidden // heads
    attention = GroupedAttention(heads, kv_heads, dim, window, qk_norm, qkv_bias)
    layer = LayerSpec(attention, GatedFFN(ffn))
    return ModelSpec(name, hidden, vocab, context, (layer,) * layers, tied, source=source)


def _llamas() -> Iterator[ModelSpec]:
    yield dense("llama-2-7b", "meta-llama/Llama-2-7b-hf", 32, 4096, 11_008, 32, 32, 32_000, 4 * K)
    yield dense("llama-2-13b", "meta-llama/Llama-2-13b-hf", 40, 5120, 13_824, 40, 40, 32_000, 4 * K)
    yield dense("llama-2-70b", "meta-llama/Llama-2-70b-hf", 80, 8192, 28_672, 64, 8, 32_000, 4 * K)
    for version, context in (("3", 8 * K), ("3.1", 128 * K)):
        repository = f"meta-llama/Meta-Llama-{version}"
        yield dense(f"llama-{version}-8b", f"{repository}-8B", 32, 4096, 14_336, 32, 8, 128_256, context)
        yield dense(f"llama-{version}-70b", f"{repository}-70B", 80, 8192, 28_672, 64, 8, 128_256, context)
    yield dense("llama-3.1-405b", "meta-llama/Llama-3.1-405B", 126, 16_384, 53_248, 128, 8, 128_256, 128 * K)
    yield dense("llama-3.2-1b", "meta-llama/Llama-3.2-1B", 16, 2048, 8192, 32, 8, 128_256, 128 * K, tied=True)
    yield dense("llama-3.2-3b", "meta-llama/Llama-3.2-3B", 28, 3072, 8192, 24, 8, 128_256, 128 * K, tied=True)


def _mistrals() -> Iterator[ModelSpec]:
    yield dense("mistral-7b", "mistralai/Mistral-7B-v0.1", 32, 4096, 14_336, 32, 8, 32_000, 32 * K, window=4096)
    yield dense("mistral-7b-v3", "mistralai/Mistral-7B-v0.3", 32, 4096, 14_336, 32, 8, 32_768, 32 * K)
    yield dense(
        "mistral-small-24b", "mistralai/Mistral-Small-24B-Base-2501", 40, 5120, 32_768, 32, 8, 131_072, 32 * K,
        head_dim=128,
    )  # fmt: skip


def _qwens() -> Iterator[ModelSpec]:
    old = (
        ("0.5b", 24, 896, 4864, 14, 2, 151_936, True), ("1.5b", 28, 1536, 8960, 12, 2, 151_936, True),
        ("3b", 36, 2048, 11_008, 16, 2, 151_936, True), ("7b", 28, 3584, 18_944, 28, 4, 152_064, False),
        ("14b", 48, 5120, 13_824, 40, 8, 152_064, False), ("32b", 64, 5120, 27_648, 40, 8, 152_064, False),
        ("72b", 80, 8192, 29_568, 64, 8, 152_064, False),
    )  # fmt: skip
    for size, layers, hidden, ffn, heads, kv_heads, vocab, tied in old:
        source = f"Qwen/Qwen2.5-{size.upper()}"
        sizes = (layers, hidden, ffn, heads, kv_heads, vocab)
        yield dense(f"qwen2.5-{size}", source, *sizes, 32 * K, tied=tied, qkv_bias=True)
    new = (
        ("0.6b", 28, 1024, 3072, 16, True), ("1.7b", 28, 2048, 6144, 16, True), ("4b", 36, 2560, 9728, 32, True),
        ("8b", 36, 4096, 12_288, 32, False), ("14b", 40, 5120, 17_408, 40, False), ("32b", 64, 5120, 25_600, 64, False),
    )  # fmt: skip
    for size, layers, hidden, ffn, heads, tied in new:
        source = f"Qwen/Qwen3-{size.upper()}"
        sizes = (layers, hidden, ffn, heads, 8, 151_936)
        yield dense(f"qwen3-{size}", source, *sizes, 40 * K, head_dim=128, tied=tied, qk_norm="head")


def _gemmas() -> Iterator[ModelSpec]:
    second = (
        ("2b", 26, 2304, 9216, 8, 4, 256), ("9b", 42, 3584, 14_336, 16, 8, 256), ("27b", 46, 4608, 36_864, 32, 16, 128),
    )  # fmt: skip
    for size, layers, hidden, ffn, heads, kv_heads, dim in second:
        attention = GroupedAttention(heads, kv_heads, dim)
        yield _gemma(f"gemma-2-{size}", layers, hidden, ffn, attention, 4096, 2, 256_000, 8 * K)
    third = (
        ("270m", 18, 640, 2048, 4, 1, 256, 512, 262_144, 32), ("1b", 26, 1152, 6912, 4, 1, 256, 512, 262_144, 32),
        ("4b", 34, 2560, 10_240, 8, 4, 256, 1024, 262_208, 128),
        ("12b", 48, 3840, 15_360, 16, 8, 256, 1024, 262_208, 128),
        ("27b", 62, 5376, 21_504, 32, 16, 128, 1024, 262_208, 128),
    )  # fmt: skip
    for size, layers, hidden, ffn, heads, kv_heads, dim, window, vocab, context in third:
        attention = GroupedAttention(heads, kv_heads, dim, qk_norm="head")
        yield _gemma(f"gemma-3-{size}", layers, hidden, ffn, attention, window, 6, vocab, context * K)


def _gemma(
    name: str,
    layers: int,
    hidden: int,
    ffn: int,
    everywhere: GroupedAttention,
    window: int,
    period: int,
    vocab: int,
    context: int,
) -> ModelSpec:
    """Every ``period``-th layer sees everything, the others a window. Texts only: no vision tower is counted."""
    here = GroupedAttention(everywhere.heads, everywhere.kv_heads, everywhere.head_dim, window, everywhere.qk_norm)
    made = [
        LayerSpec(everywhere if (index + 1) % period == 0 else here, GatedFFN(ffn), norms=4) for index in range(layers)
    ]
    return ModelSpec(name, hidden, vocab, context, tuple(made), tied_head=True, source=f"google/{name}-it")


def _others() -> Iterator[ModelSpec]:
    yield dense("phi-3-mini", "microsoft/Phi-3-mini-4k-instruct", 32, 3072, 8192, 32, 32, 32_064, 4 * K, window=2047)
    yield dense("phi-4", "microsoft/phi-4", 40, 5120, 17_920, 40, 10, 100_352, 16 * K)
    smol = (("135m", 30, 576, 1536, 9, 3), ("360m", 32, 960, 2560, 15, 5), ("1.7b", 24, 2048, 8192, 32, 32))
    for size, layers, hidden, ffn, heads, kv_heads in smol:
        source = f"HuggingFaceTB/SmolLM2-{size.upper()}"
        yield dense(f"smollm2-{size}", source, layers, hidden, ffn, heads, kv_heads, 49_152, 8 * K, tied=True)
    mpt = LayerSpec(GroupedAttention(32, 32, 128), PlainFFN(16_384))
    yield ModelSpec("mpt-7b", 4096, 50_432, 2 * K, (mpt,) * 32, tied_head=True, source="mosaicml/mpt-7b")
    # 13B as in "Transformer Inference Arithmetic" (Chen 2022): 40 layers of 5,120, a feed-forward of four times that.
    gpt = LayerSpec(GroupedAttention(40, 40, 128), PlainFFN(20_480))
    yield ModelSpec(
        "gpt-13b", 5120, 51_200, 2 * K, (gpt,) * 40, tied_head=True, source="kipp.ly/transformer-inference-arithmetic"
    )
    palm = LayerSpec(GroupedAttention(48, 1, 256), GatedFFN(73_728), norms=1)
    yield ModelSpec(
        "palm-540b", 18_432, 256_000, 2 * K, (palm,) * 118, tied_head=True, source="Chowdhery et al. 2022, table 1"
    )
