"""Models that ``twofold pull`` knows by an alias, as the file that it fetches: sizes of the table, quantised.

What llama.cpp's quantiser does is a table here: a file's main format, and other formats for the tensors that it takes
to be sensitive (``llama_tensor_get_type`` in its src/llama-quant.cpp). Rows that are no multiple of 256 values take the
nearest format with groups of 32. Sizes are within 2 % of the files'.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from twofold.core.model import Formats, LayerSpec, ModelSpec
from twofold.core.tensors import EMBEDDING, HEAD, layer_weights
from twofold.core.values import FP32, ValueFormat, find_format

SUPER: Final = 256
NARROW: Final[Mapping[str, str]] = {"Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}
"""The format of rows that are no multiple of ``SUPER`` values."""
MORE_BITS: Final = frozenset({"v", "down"})
"""Matrices that Q4_K_M stores in Q6_K in the first and the last eighth of the layers and in each third between."""


@dataclass(frozen=True, slots=True)
class Pulled:
    """What an alias fetches: a row of the table, the file's quantisation, and whether it has a head of its own where
    the published configuration shares it with the embedding."""

    row: str
    quant: str = "Q4_K_M"
    own_head: bool = False


PULLED: Final[Mapping[str, Pulled]] = {
    "smollm2-135m": Pulled("smollm2-135m", "Q4_1"),
    "gemma3-270m": Pulled("gemma-3-270m"),
    "qwen2.5-coder-1.5b": Pulled("qwen2.5-1.5b", own_head=True),
    "qwen2.5-coder-0.5b": Pulled("qwen2.5-0.5b", own_head=True),
    "llama3.2-1b": Pulled("llama-3.2-1b"),
    "llama3.2-3b": Pulled("llama-3.2-3b"),
    "qwen3-0.6b": Pulled("qwen3-0.6b", "Q8_0"),
    "qwen3-1.7b": Pulled("qwen3-1.7b", "Q8_0"),
    "qwen3-4b": Pulled("qwen3-4b"),
    "qwen3-8b": Pulled("qwen3-8b"),
    "gemma3-1b": Pulled("gemma-3-1b"),
    "gemma3-4b": Pulled("gemma-3-4b"),
    "phi4-mini": Pulled("phi-4-mini"),
    "qwen2.5-coder-7b": Pulled("qwen2.5-7b"),
    "smollm2-1.7b": Pulled("smollm2-1.7b"),
}
"""By alias. Of repositories whose owners may change them, the file is that of 2026-11."""


def pulled_shape(alias: str, table: Mapping[str, ModelSpec]) -> ModelSpec:
    """The model of an alias as its file stores it."""
    found = PULLED[alias]
    shape = table[found.row]
    if found.own_head:
        shape = replace(shape, tied_head=False)
    stored = quantised(shape, found.quant)
    return replace(stored, name=f"{alias} {found.quant}", source=f"{shape.source}; the file of twofold pull {alias}")


def quantised(shape: ModelSpec, quant: str) -> ModelSpec:
    """The model in a file of that quantisation: Q4_K_M, or one whose name is that of its format."""
    mixed = quant == "Q4_K_M"
    main = "Q4_K" if mixed else quant
    last = "Q8_0" if quant == "Q8_0" else "Q6_K"
    count = len(shape.layers)
    outer = shape.formats.special
    embedding = _fitting(last if shape.tied_head else main, shape.hidden_size)
    special = ((EMBEDDING, embedding), (HEAD, _fitting(last, shape.hidden_size)))
    return replace(
        shape,
        formats=replace(shape.formats, vectors=FP32, special=(*special, *outer)),
        layers=tuple(
            _stored(layer, shape.hidden_size, main, last if mixed and _more_bits(index, count) else main)
            for index, layer in enumerate(shape.layers)
        ),
    )


def _stored(layer: LayerSpec, hidden: int, main: str, sensitive: str) -> LayerSpec:
    """The layer with each matrix in the format of its name and width."""
    special = tuple(
        (weight.name, _fitting(sensitive if weight.name in MORE_BITS else main, weight.columns))
        for weight in layer_weights(layer, hidden)
        if not weight.vector
    )
    return replace(layer, formats=Formats(find_format(main), FP32, special))


def _more_bits(index: int, count: int) -> bool:
    return index < count // 8 or index >= 7 * count // 8 or (index - count // 8) % 3 == 2


def _fitting(name: str, columns: int) -> ValueFormat:
    return find_format(NARROW.get(name, name) if columns % SUPER else name)
