"""Tiny synthetic models as GGUF files: every architecture, every tensor format, a tokenizer and a chat template."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tests.support.gguf_writer import MetadataItem, RawTensor, write_gguf
from tests.support.quantize import quantize
from tests.support.vocabulary import CHAT_TEMPLATE, tokenizer_metadata
from twofold.backends.dequantize import dequantize
from twofold.core.values import BY_NAME

Floats = NDArray[np.float32]

GEMMAS: Final = frozenset({"gemma2", "gemma3"})


@dataclass(frozen=True, slots=True)
class TinyOptions:
    """What a tiny model is like. ``format`` is that of matrices; vectors are F32.

    ``embedding_format`` differs where it is given. Formats of 256-value blocks need hidden, ffn and heads · head_dim
    in multiples of 256: ``TinyOptions.wide`` makes such a model. None as ``chat_template`` makes a base model.
    ``ffn`` and ``kv_heads`` are one number for all layers, or one for each. ``windowed`` says which layers have the
    window, where that is not the architecture's rule; their heads have ``window_head_dim`` values, if given. ``extra``
    metadata come last and may replace others. Of the tokens that are allowed, the first of ``favours`` is the most
    likely by far, but after the first of ``then`` the second; the tables must not be tied.
    """

    architecture: str = "llama"
    format: str = "F32"
    embedding_format: str | None = None
    layers: int = 2
    hidden: int = 64
    heads: int = 4
    kv_heads: int | tuple[int, ...] = 2
    head_dim: int = 16
    ffn: int | tuple[int, ...] = 96
    vocab: int = 300
    context: int = 512
    tied: bool = True
    bias: bool = False
    window: int | None = None
    windowed: tuple[bool, ...] = ()
    window_head_dim: int | None = None
    rope_freqs: bool = False
    rope_factors: bool = False
    seed: int = 0
    chat_template: str | None = CHAT_TEMPLATE
    extra: tuple[tuple[str, MetadataItem], ...] = ()
    favours: tuple[int, ...] = ()
    then: tuple[int, int] = (0, 0)

    @classmethod
    def wide(cls, architecture: str = "llama", format: str = "Q4_K", **options: object) -> TinyOptions:
        """Sizes that whole blocks of 256 values fill."""
        sizes = {"hidden": 256, "heads": 4, "kv_heads": 2, "head_dim": 64, "ffn": 512}
        return cls(architecture, format, **(sizes | options))  # type: ignore[arg-type]

    def heads_of(self, layer: int) -> tuple[int, int]:
        """The number of KV heads of a layer, and the values of each head."""
        own = self.window_head_dim if self.windowed and self.windowed[layer] else None
        return of_layer(self.kv_heads, layer), own or self.head_dim

    @property
    def has_bias(self) -> bool:
        return self.bias or self.architecture == "qwen2"

    @property
    def has_qk_norm(self) -> bool:
        return self.architecture in {"qwen3", "gemma3"}


TWO_SIZES: Final = TinyOptions(
    "gemma3",
    layers=4,
    kv_heads=(2, 1, 2, 1),
    head_dim=64,
    window=24,
    windowed=(True, False, True, False),
    window_head_dim=32,
)
"""Layers of 2 KV heads of 32 values, which see a window, and of 1 KV head of 64 values, which see everything."""


def of_layer(number: int | tuple[int, ...], layer: int) -> int:
    """The number of one layer."""
    return number if isinstance(number, int) else number[layer]


def _item(number: int | tuple[int, ...]) -> MetadataItem:
    return number if isinstance(number, int) else np.array(number, np.uint32)


@dataclass(frozen=True, slots=True)
class TinyModel:
    """A written file, its metadata, and the values its tensors decode to: float32 [rows, columns] by name."""

    path: Path
    options: TinyOptions
    metadata: Mapping[str, MetadataItem]
    weights: Mapping[str, Floats]


def write_tiny(path: Path, options: TinyOptions) -> TinyModel:
    """Writes a model of random weights; the same options give the same bytes."""
    metadata = tiny_metadata(options)
    raw = tiny_tensors(options)
    write_gguf(path, metadata, raw)
    weights = {name: dequantize(t.data, t.format, t.shape[-1]) for name, t in raw.items()}
    return TinyModel(path, options, metadata, weights)


def write_tiny_parts(folder: Path, options: TinyOptions) -> tuple[Path, Path]:
    """Writes the model of ``write_tiny`` in two parts, whose metadata is in the first."""
    raw = list(tiny_tensors(options).items())
    named = (folder / "tiny-00001-of-00002.gguf", folder / "tiny-00002-of-00002.gguf")
    for number, path in enumerate(named):
        split = {"split.no": number, "split.count": 2, "split.tensors.count": len(raw)}
        half = raw[: len(raw) // 2] if number == 0 else raw[len(raw) // 2 :]
        write_gguf(path, split if number else tiny_metadata(options) | split, dict(half))
    return named


def tiny_metadata(options: TinyOptions) -> dict[str, MetadataItem]:
    """Metadata as converters write them: general, the architecture's own, tokenizer."""
    arch = options.architecture
    own: dict[str, MetadataItem] = {
        "block_count": options.layers,
        "context_length": options.context,
        "embedding_length": options.hidden,
        "feed_forward_length": _item(options.ffn),
        "attention.head_count": options.heads,
        "attention.head_count_kv": _item(options.kv_heads),
        "attention.key_length": options.head_dim,
        "attention.value_length": options.head_dim,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": 1_000_000.0 if arch == "gemma3" else 10_000.0,
        "rope.dimension_count": options.head_dim,
    }
    if options.window is not None:
        own["attention.sliding_window"] = options.window
    if options.windowed:
        own["attention.sliding_window_pattern"] = np.array(options.windowed)
    if options.window_head_dim is not None:
        for key in ("attention.key_length_swa", "attention.value_length_swa", "rope.dimension_count_swa"):
            own[key] = options.window_head_dim
    head: dict[str, MetadataItem] = {"general.architecture": arch, "general.name": f"tiny {arch}"}
    named = {f"{arch}.{key}": value for key, value in own.items()}
    template = {} if options.chat_template is None else {"tokenizer.chat_template": options.chat_template}
    return head | named | tokenizer_metadata(options.vocab) | template | dict(options.extra)


def tiny_tensors(options: TinyOptions) -> dict[str, RawTensor]:
    """Random tensors of the names and shapes that the architecture has."""
    rng = np.random.default_rng(options.seed)
    tensors = {}
    for name, shape in _shapes(options):
        embedding = name == "token_embd.weight"
        fmt = BY_NAME[(options.embedding_format if embedding else None) or options.format]
        values = _values(rng, name, shape)
        if options.favours:
            _favour(name, values, options)
        fmt = fmt if len(shape) == 2 else BY_NAME["F32"]
        tensors[name] = RawTensor(fmt, shape, quantize(values.reshape(-1, shape[-1]), fmt))
    return tensors


def _values(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> Floats:
    """Sizes that keep activations near one and logits apart."""
    if name.startswith("rope_"):
        return np.linspace(1, 8, shape[-1], dtype=np.float32)
    normal = rng.standard_normal(shape)
    if len(shape) == 1:
        return (0.1 * normal + (0 if name.endswith(".bias") else 1)).astype(np.float32)
    spread = 3 if name in {"token_embd.weight", "output.weight"} else 1
    return (normal * spread / math.sqrt(shape[1])).astype(np.float32)


def _favour(name: str, values: Floats, options: TinyOptions) -> None:
    """Makes the first channel of all activations a constant, and the second one that of the first of ``then`` alone.
    They add to the logits of favoured tokens only."""
    assert not options.tied, "its embeddings are constant there"
    before, after = options.then
    if name == "token_embd.weight":
        values[:, :2] = 5, 0
        values[before, 1] = 5
    elif name == "output.weight":
        values[:, :2] = 0
        values[list(options.favours), 0] = 50 * np.arange(len(options.favours), 0, -1)
        values[after, 1] = 100 * len(options.favours)
    elif name.endswith(("attn_output.weight", "ffn_down.weight")):
        values[:2] = 0


def _shapes(options: TinyOptions) -> Iterator[tuple[str, tuple[int, ...]]]:
    table = (options.vocab, options.hidden)
    yield "token_embd.weight", table
    yield "output_norm.weight", (options.hidden,)
    if not options.tied:
        yield "output.weight", table
    if options.rope_freqs:
        yield "rope_freqs.weight", (options.head_dim // 2,)
    if options.rope_factors:
        yield "rope_factors_long.weight", (options.head_dim // 2,)
        yield "rope_factors_short.weight", (options.head_dim // 2,)
    for layer in range(options.layers):
        for name, shape in _layer_shapes(options, layer):
            yield f"blk.{layer}.{name}", shape


def _layer_shapes(options: TinyOptions, layer: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, ffn, (kv_heads, head_dim) = options.hidden, of_layer(options.ffn, layer), options.heads_of(layer)
    sizes = {"q": options.heads * head_dim, "k": kv_heads * head_dim, "v": kv_heads * head_dim}
    yield from (("attn_norm.weight", (hidden,)), ("ffn_norm.weight", (hidden,)))
    if options.architecture == "phi3":
        yield from (("attn_qkv.weight", (sum(sizes.values()), hidden)), ("ffn_up.weight", (2 * ffn, hidden)))
    else:
        yield from ((f"attn_{part}.weight", (size, hidden)) for part, size in sizes.items())
        yield from (("ffn_gate.weight", (ffn, hidden)), ("ffn_up.weight", (ffn, hidden)))
    yield from (("attn_output.weight", (hidden, sizes["q"])), ("ffn_down.weight", (hidden, ffn)))
    if options.has_bias:
        yield from ((f"attn_{part}.bias", (size,)) for part, size in sizes.items())
    if options.has_qk_norm:
        yield from (("attn_q_norm.weight", (head_dim,)), ("attn_k_norm.weight", (head_dim,)))
    if options.architecture in GEMMAS:
        yield from (("post_attention_norm.weight", (hidden,)), ("post_ffw_norm.weight", (hidden,)))
