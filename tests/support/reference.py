"""The reference model over a GGUF file, for tests of everything that runs on a ``Forward``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from twofold.backends.dequantize import dequantize
from twofold.backends.reference import PagedCache, ReferenceModel, factors_of
from twofold.core.kv_layout import KVType
from twofold.core.model import ModelSpec
from twofold.formats.base import ModelFile, open_model
from twofold.formats.gguf import our_name
from twofold.models.decoder import forward
from twofold.models.ops import Batch
from twofold.models.read import read_model

Floats = NDArray[np.float32]


def dequantised(file: ModelFile) -> dict[str, Floats]:
    """All tensors of a file: float32 [rows, columns] by name."""
    return {name: dequantize(file.data(name), info.format, info.columns) for name, info in file.tensors.items()}


def load_reference_model(
    path: Path,
    blocks: int = 64,
    block_size: int = 16,
    kv_type: KVType = "f32",
    weights: Mapping[str, Floats] | None = None,
) -> tuple[ModelSpec, ReferenceModel]:
    """The decoder on NumPy for a file, with an empty cache of that many blocks and host slots for each KV group."""
    with open_model(path) as file:
        spec, bound = read_model(file)
        values = dequantised(file) if weights is None else {our_name(name): each for name, each in weights.items()}
    groups = spec.kv_groups(spec.context_length)
    counts = [blocks] * len(groups)
    cache = PagedCache(groups, counts, block_size, kv_type, counts)
    factors = factors_of(spec, bound, values)
    model = ReferenceModel(
        lambda ops: forward(ops, spec, bound), values, cache, spec.vocab_size, spec.hidden_size, factors=factors
    )
    return spec, model


def one_sequence(tokens: NDArray[np.int32], table: NDArray[np.int32], start: int = 0) -> Batch:
    """A batch of one sequence's ``tokens`` from position ``start``, which asks for all logits and hidden states."""
    rows = np.arange(len(tokens), dtype=np.int32)
    ends = np.array([0, len(tokens)], np.int32)
    return Batch(tokens.astype(np.int32), rows + start, ends, tables_of(table[None]), rows, rows)


def tables_of(tables: NDArray[np.int32]) -> NDArray[np.int32]:
    """Block tables [sequences, blocks] for the first KV group, and in other orders for two more."""
    return np.stack([tables, tables[:, ::-1], np.roll(tables, 1, axis=1)]).astype(np.int32)
