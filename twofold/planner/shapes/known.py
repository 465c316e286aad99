"""Models by name: a file, a folder, an alias of a model in the cache, or a row of the table of well-known models.

A row has the fields of a published configuration that determine sizes, and its source: the Hugging Face repository of
the configuration, or a paper. DeepSeek's and MiniMax's layers for multi-token prediction are not counted, since servers
may omit them. Gemma and Mistral Small are counted without their vision towers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Final

from twofold.core.errors import ModelNotFoundError, TwofoldError, closest_match
from twofold.core.model import Formats, GatedFFN, GroupedAttention, LayerSpec, ModelSpec, PlainFFN
from twofold.core.values import FP8_BLOCK, FP32, INT4, MXFP4, find_format, grouped
from twofold.models.config import read_config, read_config_file
from twofold.planner.shapes.aliases import PULLED, pulled_shape

K: Final = 1024
Row = tuple[str, str, int, int, int, int, int, int, int, Mapping[str, object]]
"""Name, source, layers, hidden size, heads, KV heads, values in the feed-forward, vocabulary, context, other fields."""

NONE: Final[Mapping[str, object]] = {}
TIED: Final[dict[str, object]] = {"tie_word_embeddings": True}
HEADS_OF_128: Final[dict[str, object]] = {"head_dim": 128}
LATENT: Final[dict[str, object]] = {
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
}


def routed(count: int, active: int, **more: object) -> dict[str, object]:
    """Fields of a model with ``count`` experts, ``active`` of them for each token."""
    return {"num_experts": count, "num_experts_per_tok": active, **more}


ROWS: Final[Mapping[str, tuple[Row, ...]]] = {
    "llama": (
        ("llama-2-7b", "meta-llama/Llama-2-7b-hf", 32, 4096, 32, 32, 11_008, 32_000, 4 * K, NONE),
        ("llama-2-13b", "meta-llama/Llama-2-13b-hf", 40, 5120, 40, 40, 13_824, 32_000, 4 * K, NONE),
        ("llama-2-70b", "meta-llama/Llama-2-70b-hf", 80, 8192, 64, 8, 28_672, 32_000, 4 * K, NONE),
        ("llama-3-8b", "meta-llama/Meta-Llama-3-8B", 32, 4096, 32, 8, 14_336, 128_256, 8 * K, NONE),
        ("llama-3-70b", "meta-llama/Meta-Llama-3-70B", 80, 8192, 64, 8, 28_672, 128_256, 8 * K, NONE),
        ("llama-3.1-8b", "meta-llama/Meta-Llama-3.1-8B", 32, 4096, 32, 8, 14_336, 128_256, 128 * K, NONE),
        ("llama-3.1-70b", "meta-llama/Meta-Llama-3.1-70B", 80, 8192, 64, 8, 28_672, 128_256, 128 * K, NONE),
        ("llama-3.1-405b", "meta-llama/Llama-3.1-405B", 126, 16_384, 128, 8, 53_248, 128_256, 128 * K, NONE),
        ("llama-3.2-1b", "meta-llama/Llama-3.2-1B", 16, 2048, 32, 8, 8192, 128_256, 128 * K, TIED),
        ("llama-3.2-3b", "meta-llama/Llama-3.2-3B", 28, 3072, 24, 8, 8192, 128_256, 128 * K, TIED),
        ("smollm2-135m", "HuggingFaceTB/SmolLM2-135M", 30, 576, 9, 3, 1536, 49_152, 8 * K, TIED),
        ("smollm2-360m", "HuggingFaceTB/SmolLM2-360M", 32, 960, 15, 5, 2560, 49_152, 8 * K, TIED),
        ("smollm2-1.7b", "HuggingFaceTB/SmolLM2-1.7B", 24, 2048, 32, 32, 8192, 49_152, 8 * K, TIED),
    ),
    "mistral": (
        ("mistral-7b", "mistralai/Mistral-7B-v0.1", 32, 4096, 32, 8, 14_336, 32_000, 32 * K, {"sliding_window": 4096}),
        ("mistral-7b-v3", "mistralai/Mistral-7B-v0.3", 32, 4096, 32, 8, 14_336, 32_768, 32 * K, NONE),
        ("mistral-small-24b", "mistralai/Mistral-Small-24B-Base-2501", 40, 5120, 32, 8, 32_768, 131_072, 32 * K,
         HEADS_OF_128),
    ),
    "mixtral": (
        ("mixtral-8x7b", "mistralai/Mixtral-8x7B-v0.1", 32, 4096, 32, 8, 14_336, 32_000, 32 * K, routed(8, 2)),
        ("mixtral-8x22b", "mistralai/Mixtral-8x22B-v0.1", 56, 6144, 48, 8, 16_384, 32_000, 64 * K, routed(8, 2)),
    ),
    "qwen2": (
        ("qwen2.5-0.5b", "Qwen/Qwen2.5-0.5B", 24, 896, 14, 2, 4864, 151_936, 32 * K, TIED),
        ("qwen2.5-1.5b", "Qwen/Qwen2.5-1.5B", 28, 1536, 12, 2, 8960, 151_936, 32 * K, TIED),
        ("qwen2.5-3b", "Qwen/Qwen2.5-3B", 36, 2048, 16, 2, 11_008, 151_936, 32 * K, TIED),
        ("qwen2.5-7b", "Qwen/Qwen2.5-7B", 28, 3584, 28, 4, 18_944, 152_064, 32 * K, NONE),
        ("qwen2.5-14b", "Qwen/Qwen2.5-14B", 48, 5120, 40, 8, 13_824, 152_064, 32 * K, NONE),
        ("qwen2.5-32b", "Qwen/Qwen2.5-32B", 64, 5120, 40, 8, 27_648, 152_064, 32 * K, NONE),
        ("qwen2.5-72b", "Qwen/Qwen2.5-72B", 80, 8192, 64, 8, 29_568, 152_064, 32 * K, NONE),
    ),
    "qwen3": (
        ("qwen3-0.6b", "Qwen/Qwen3-0.6B", 28, 1024, 16, 8, 3072, 151_936, 40 * K, HEADS_OF_128 | TIED),
        ("qwen3-1.7b", "Qwen/Qwen3-1.7B", 28, 2048, 16, 8, 6144, 151_936, 40 * K, HEADS_OF_128 | TIED),
        ("qwen3-4b", "Qwen/Qwen3-4B", 36, 2560, 32, 8, 9728, 151_936, 40 * K, HEADS_OF_128 | TIED),
        ("qwen3-8b", "Qwen/Qwen3-8B", 36, 4096, 32, 8, 12_288, 151_936, 40 * K, HEADS_OF_128),
        ("qwen3-14b", "Qwen/Qwen3-14B", 40, 5120, 40, 8, 17_408, 151_936, 40 * K, HEADS_OF_128),
        ("qwen3-32b", "Qwen/Qwen3-32B", 64, 5120, 64, 8, 25_600, 151_936, 40 * K, HEADS_OF_128),
    ),
    "qwen3_moe": (
        ("qwen3-30b-a3b", "Qwen/Qwen3-30B-A3B", 48, 2048, 32, 4, 768, 151_936, 40 * K, routed(128, 8, head_dim=128)),
        ("qwen3-235b-a22b", "Qwen/Qwen3-235B-A22B", 94, 4096, 64, 4, 1536, 151_936, 40 * K,
         routed(128, 8, head_dim=128)),
        ("qwen3-coder-480b-a35b", "Qwen/Qwen3-Coder-480B-A35B", 62, 6144, 96, 8, 2560, 151_936, 256 * K,
         routed(160, 8, head_dim=128)),
    ),
    "qwen3_next": (
        ("qwen3-next-80b-a3b", "Qwen/Qwen3-Next-80B-A3B-Instruct", 48, 2048, 16, 2, 5120, 151_936, 256 * K,
         routed(512, 10, moe_intermediate_size=512, shared_expert_intermediate_size=512, head_dim=256)),
    ),
    "gemma2": (
        ("gemma-2-2b", "google/gemma-2-2b-it", 26, 2304, 8, 4, 9216, 256_000, 8 * K, NONE),
        ("gemma-2-9b", "google/gemma-2-9b-it", 42, 3584, 16, 8, 14_336, 256_000, 8 * K, NONE),
        ("gemma-2-27b", "google/gemma-2-27b-it", 46, 4608, 32, 16, 36_864, 256_000, 8 * K, HEADS_OF_128),
    ),
    "gemma3_text": (
        ("gemma-3-270m", "google/gemma-3-270m-it", 18, 640, 4, 1, 2048, 262_144, 32 * K, {"sliding_window": 512}),
        ("gemma-3-1b", "google/gemma-3-1b-it", 26, 1152, 4, 1, 6912, 262_144, 32 * K, {"sliding_window": 512}),
        ("gemma-3-4b", "google/gemma-3-4b-it", 34, 2560, 8, 4, 10_240, 262_208, 128 * K, {"sliding_window": 1024}),
        ("gemma-3-12b", "google/gemma-3-12b-it", 48, 3840, 16, 8, 15_360, 262_208, 128 * K, {"sliding_window": 1024}),
        ("gemma-3-27b", "google/gemma-3-27b-it", 62, 5376, 32, 16, 21_504, 262_208, 128 * K,
         HEADS_OF_128 | {"sliding_window": 1024}),
    ),
    "phi3": (
        ("phi-3-mini", "microsoft/Phi-3-mini-4k-instruct", 32, 3072, 32, 32, 8192, 32_064, 4 * K,
         {"sliding_window": 2047}),
        ("phi-4-mini", "microsoft/Phi-4-mini-instruct", 32, 3072, 24, 8, 8192, 200_064, 128 * K, TIED),
        ("phi-4", "microsoft/phi-4", 40, 5120, 40, 10, 17_920, 100_352, 16 * K, NONE),
    ),
    "deepseek_v3": (
        ("deepseek-v3", "deepseek-ai/DeepSeek-V3", 61, 7168, 128, 128, 18_432, 129_280, 160 * K,
         LATENT | routed(256, 8, moe_intermediate_size=2048, n_shared_experts=1,
         first_k_dense_replace=3, q_lora_rank=1536)),
    ),
    "deepseek_v2": (
        ("deepseek-v2-lite", "deepseek-ai/DeepSeek-V2-Lite", 27, 2048, 16, 16, 10_944, 102_400, 160 * K,
         LATENT | routed(64, 6, moe_intermediate_size=1408, n_shared_experts=2, first_k_dense_replace=1)),
    ),
    "kimi_k2": (
        ("kimi-k2", "moonshotai/Kimi-K2.5", 61, 7168, 64, 64, 18_432, 163_840, 256 * K,
         LATENT | routed(384, 8, moe_intermediate_size=2048, n_shared_experts=1,
         first_k_dense_replace=1, q_lora_rank=1536)),
    ),
    "gpt_oss": (
        ("gpt-oss-20b", "openai/gpt-oss-20b", 24, 2880, 64, 8, 2880, 201_088, 128 * K, routed(32, 4)),
        ("gpt-oss-120b", "openai/gpt-oss-120b", 36, 2880, 64, 8, 2880, 201_088, 128 * K, routed(128, 4)),
    ),
    "minimax_m2": (
        ("minimax-m2.5", "MiniMaxAI/MiniMax-M2.5", 62, 3072, 48, 8, 1536, 200_064, 192 * K,
         routed(256, 8, head_dim=128)),
    ),
}  # fmt: skip
"""Rows by ``model_type``."""

_EXPERT_MATRICES: Final = ("expert_gate", "expert_up", "expert_down")
FORMATS: Final[Mapping[str, Formats]] = {
    "deepseek-v3": Formats(FP8_BLOCK, special=(("router", Formats().matrices), ("router.bias", FP32))),
    "kimi-k2": Formats(special=(*((name, grouped(INT4, 32)) for name in _EXPERT_MATRICES), ("router.bias", FP32))),
    "gpt-oss-20b": Formats(special=tuple((name, MXFP4) for name in _EXPERT_MATRICES)),
    "gpt-oss-120b": Formats(special=tuple((name, MXFP4) for name in _EXPERT_MATRICES)),
    "minimax-m2.5": Formats(FP8_BLOCK, special=(("router", FP32), ("router.bias", FP32))),
}
"""Formats of the layers, by name, for models that are not published in bf16."""

OTHER_NAMES: Mapping[str, str] = {
    "meta-llama-3-8b": "llama-3-8b",
    "meta-llama-3-70b": "llama-3-70b",
    "meta-llama-3.1-8b": "llama-3.1-8b",
    "meta-llama-3.1-70b": "llama-3.1-70b",
    "meta-llama-3.1-405b": "llama-3.1-405b",
    "llama-3.3-70b": "llama-3.1-70b",
    "llama-2-7b-hf": "llama-2-7b",
    "llama-2-13b-hf": "llama-2-13b",
    "llama-2-70b-hf": "llama-2-70b",
    "mistral-7b-v0.1": "mistral-7b",
    "mistral-7b-v0.3": "mistral-7b-v3",
    "mistral-small-24b-2501": "mistral-small-24b",
    "mixtral-8x7b-v0.1": "mixtral-8x7b",
    "mixtral-8x22b-v0.1": "mixtral-8x22b",
    "deepseek-r1": "deepseek-v3",
    "deepseek-v3-0324": "deepseek-v3",
    "phi-3-mini-4k": "phi-3-mini",
    "phi-3-mini-128k": "phi-3-mini",
    "kimi-k2.5": "kimi-k2",
    "qwen3-coder-next": "qwen3-next-80b-a3b",
}
"""Other names of these models, and of models with the same sizes."""

SUFFIXES = ("-instruct", "-chat", "-it", "-base", "-pt", "-thinking", "-2507")
"""Endings of names that do not affect sizes."""


@lru_cache(maxsize=1)
def known_shapes() -> Mapping[str, ModelSpec]:
    """All models of the table, by name."""
    read = (_read(kind, row) for kind, rows in ROWS.items() for row in rows)
    return {shape.name: shape for shape in (*read, *_without_configuration())}


def _read(kind: str, row: Row) -> ModelSpec:
    name, source, layers, hidden, heads, kv_heads, ffn, vocab, context, more = row
    config = {
        "model_type": kind,
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": ffn,
        "vocab_size": vocab,
        "max_position_embeddings": context,
        **more,
    }
    spec = read_config(config, name=name, label=source)
    if name not in FORMATS:
        return spec
    stored = [(count, replace(layer, formats=FORMATS[name])) for count, layer in spec.runs]
    return replace(spec, layers=tuple(layer for count, layer in stored for _ in range(count)))


def _without_configuration() -> Iterator[ModelSpec]:
    """Models that only papers describe, or whose configurations `read_config` does not support."""
    mpt = LayerSpec(GroupedAttention(32, 32, 128), PlainFFN(16_384))
    yield ModelSpec("mpt-7b", 4096, 50_432, 2 * K, (mpt,) * 32, tied_head=True, source="mosaicml/mpt-7b")
    # 13B as in "Transformer Inference Arithmetic" (Chen 2022): 40 layers of 5,120, a feed-forward of four times that.
    gpt, source = LayerSpec(GroupedAttention(40, 40, 128), PlainFFN(20_480)), "kipp.ly/transformer-inference-arithmetic"
    yield ModelSpec("gpt-13b", 5120, 51_200, 2 * K, (gpt,) * 40, tied_head=True, source=source)
    palm, source = LayerSpec(GroupedAttention(48, 1, 256), GatedFFN(73_728), norms=1), "Chowdhery et al. 2022, table 1"
    yield ModelSpec("palm-540b", 18_432, 256_000, 2 * K, (palm,) * 118, tied_head=True, source=source)


def find_shape(name: str) -> ModelSpec:
    """The known model of that name, such as ``llama-3-70b`` or ``meta-llama/Llama-3.1-8B-Instruct``.

    Case, the organisation before a slash, and endings such as ``-instruct`` do not matter.
    Raises ModelNotFoundError with the closest name.
    """
    shapes = known_shapes()
    plain = name.strip().lower().replace("_", "-").rsplit("/", 1)[-1]
    while True:
        plain = OTHER_NAMES.get(plain, plain)
        if plain in shapes:
            return shapes[plain]
        ending = next((suffix for suffix in SUFFIXES if plain.endswith(suffix)), None)
        if ending is None:
            break
        plain = plain.removesuffix(ending)
    close = closest_match(plain, (*shapes, *OTHER_NAMES))
    raise ModelNotFoundError(
        f"No model {name!r:.80} is in the table of known models.",
        hint=(f"The closest is {close!r}. " if close else "")
        + "For any other model, name a GGUF file, a config.json or its folder.",
    )


def resolve_shape(name: str, weights: str | None = None) -> ModelSpec:
    """The shape of a GGUF file, a config.json or its folder, an alias's file in the cache, or ``named_shape``.

    A file's shape is named after the file or the alias. ``weights`` replaces the format of its matrices. Raises
    ModelNotFoundError with the closest name, FormatError for a damaged file, ParameterError for an unknown format.
    """
    path = Path(name).expanduser()
    file = model_file(name)
    if file is not None:
        shape = replace(read_shape(file), name=name if name in PULLED else path.stem)
    elif path.suffix == ".json" or (path / "config.json").is_file():
        shape = read_config_file(path)
    else:
        return named_shape(name, weights)
    return shape if weights is None else shape.stored_as(find_format(weights))


def named_shape(name: str, weights: str | None = None) -> ModelSpec:
    """What ``twofold pull`` fetches for an alias, or a known model; with ``weights``, its matrices in that format.

    Raises ModelNotFoundError with the closest name, ParameterError for an unknown format.
    """
    if weights is None:
        return pulled_shape(name, known_shapes()) if name in PULLED else find_shape(name)
    shape = replace(find_shape(PULLED[name].row), name=name) if name in PULLED else find_shape(name)
    return shape.stored_as(find_format(weights))


def read_shape(path: Path) -> ModelSpec:
    """The shape of a model file. Raises the errors of ``open_model`` and ``describe_model``."""
    # Imported here because it loads NumPy, which takes longer than the rest of this module.
    from twofold.formats.base import open_model  # noqa: PLC0415
    from twofold.models.read import describe_model  # noqa: PLC0415

    with open_model(path) as file:
        return describe_model(file)


def model_file(name: str) -> Path | None:
    """A path that ends in .gguf, or an alias's file in the cache; None for other names or without a cached file."""
    path = Path(name).expanduser()
    if path.suffix == ".gguf":
        return path
    if name not in PULLED:
        return None
    from twofold.formats.fetch.sources import locate  # noqa: PLC0415 - start-up time
    from twofold.host.paths import CacheFolders  # noqa: PLC0415

    try:
        return locate(name, cache=CacheFolders.of().models).path
    except (TwofoldError, OSError):
        return None
