"""The decoder on NumPy against an independent float64 forward pass, for every architecture and option."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.oracle import oracle_logits
from tests.support.reference import load_reference_model, one_sequence, tables_of
from tests.support.tiny import TWO_SIZES, TinyModel, TinyOptions
from twofold.models.ops import Batch

Make = Callable[[TinyOptions], TinyModel]

TOKENS = np.random.default_rng(5).integers(0, 300, 40).astype(np.int32)
TABLE = np.random.default_rng(6).permutation(64)[:4].astype(np.int32)


def yarn(arch: str) -> tuple[tuple[str, object], ...]:
    scaling = {"type": "yarn", "factor": 4.0, "original_context_length": 128}
    return tuple((f"{arch}.rope.scaling.{key}", value) for key, value in scaling.items())


CASES = {
    "llama": TinyOptions("llama"),
    "llama untied": TinyOptions("llama", tied=False),
    "llama biases": TinyOptions("llama", bias=True),
    "llama one kv head": TinyOptions("llama", kv_heads=1),
    "llama feed-forwards of several sizes": TinyOptions("llama", layers=3, ffn=(96, 32, 160)),
    "llama 3 frequencies": TinyOptions("llama", rope_freqs=True),
    "llama linear": TinyOptions("llama", extra=(("llama.rope.scaling.factor", 4.0),)),
    "llama yarn": TinyOptions("llama", extra=yarn("llama")),  # type: ignore[arg-type]
    "llama partial rope": TinyOptions("llama", extra=(("llama.rope.dimension_count", 8),)),
    "mistral": TinyOptions("mistral", window=7),
    "qwen2": TinyOptions("qwen2", tied=False),
    "qwen2 yarn": TinyOptions("qwen2", extra=yarn("qwen2")),  # type: ignore[arg-type]
    "qwen3": TinyOptions("qwen3", head_dim=32),
    "phi3": TinyOptions("phi3", tied=False, window=9),
    "phi3 long": TinyOptions("phi3", rope_factors=True, extra=(("phi3.rope.scaling.original_context_length", 64),)),
    "gemma2": TinyOptions("gemma2", layers=3, window=5),
    "gemma2 own caps": TinyOptions(
        "gemma2", window=5, extra=(("gemma2.attn_logit_softcapping", 2.0), ("gemma2.final_logit_softcapping", 3.0))
    ),
    "gemma3": TinyOptions("gemma3", layers=7, window=6),
    "gemma3 linear": TinyOptions(
        "gemma3",
        layers=7,
        window=6,
        extra=(("gemma3.rope.scaling.type", "linear"), ("gemma3.rope.scaling.factor", 8.0)),
    ),
    "llama kv heads of several numbers": TinyOptions("llama", layers=3, kv_heads=(2, 1, 4)),
    "two head sizes": TWO_SIZES,
    "quantised": TinyOptions.wide("llama", "Q4_K", embedding_format="Q8_0"),
}


@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
def test_logits_are_the_oracles(options: TinyOptions, tiny_gguf: Make) -> None:
    tiny = tiny_gguf(options)
    _, model = load_reference_model(tiny.path)
    logits = model.run(one_sequence(TOKENS, TABLE))
    np.testing.assert_allclose(logits, oracle_logits(tiny.metadata, tiny.weights, TOKENS.tolist()), atol=1e-4)


def test_chunks_and_neighbours_change_nothing(tiny_gguf: Make) -> None:
    """Two sequences interleaved in three ragged steps give what one pass over each gives."""
    tiny = tiny_gguf(TinyOptions("gemma3", layers=7, window=6))
    spec, model = load_reference_model(tiny.path)
    first, second = TOKENS[:20], TOKENS[20:37]
    tables = np.array([[9, 2, 7], [4, 8, 1]], np.int32)
    cuts = ((0, 0), (7, 3), (8, 16), (20, 17))
    seen: tuple[list[NDArray[np.float32]], ...] = ([], [])
    for before, after in pairwise(cuts):
        counts = [after[0] - before[0], after[1] - before[1]]
        logits = model.run(ragged(first, second, before, after, tables)).copy()
        for kept, part in zip(seen, np.split(logits, [counts[0]]), strict=True):
            kept.append(part)
    for tokens, parts in zip((first, second), seen, strict=True):
        expected = oracle_logits(tiny.metadata, tiny.weights, tokens.tolist())
        np.testing.assert_allclose(np.concatenate(parts), expected, atol=1e-4)
    assert spec.layers[5].attention.window is None


def ragged(
    first: NDArray[np.int32],
    second: NDArray[np.int32],
    before: tuple[int, int],
    after: tuple[int, int],
    tables: NDArray[np.int32],
) -> Batch:
    """The rows before[i] : after[i] of both sequences, all logits asked for."""
    positions = [np.arange(a, b, dtype=np.int32) for a, b in zip(before, after, strict=True)]
    tokens = np.concatenate([first[positions[0]], second[positions[1]]])
    starts = np.cumsum([0, *map(len, positions)]).astype(np.int32)
    return Batch(tokens, np.concatenate(positions), starts, tables_of(tables), np.arange(len(tokens), dtype=np.int32))


def test_only_the_wanted_rows_have_logits(tiny_gguf: Make) -> None:
    _, model = load_reference_model(tiny_gguf(TinyOptions()).path)
    everything = one_sequence(TOKENS, TABLE)
    all_logits = model.run(everything)
    wanted = np.array([3, 39], np.int32)
    some = Batch(everything.tokens, everything.positions, everything.row_starts, everything.block_tables, wanted)
    np.testing.assert_allclose(model.run(some), all_logits[wanted], atol=1e-5)
    assert model.hidden.shape == (0, model.hidden_size)


@pytest.mark.parametrize("name", ["llama untied", "gemma3"])
def test_hidden_states_are_what_the_head_turns_into_logits(name: str, tiny_gguf: Make) -> None:
    tiny = tiny_gguf(CASES[name])
    _, model = load_reference_model(tiny.path)
    wanted = np.array([0, 7, 39], np.int32)
    logits = model.run(replace(one_sequence(TOKENS, TABLE), hidden_rows=wanted))
    head = tiny.weights["output.weight" if "output.weight" in tiny.weights else "token_embd.weight"]
    np.testing.assert_allclose(model.hidden @ head.T, logits[wanted], atol=1e-4)


def test_a_half_precision_cache_is_near(tiny_gguf: Make) -> None:
    tiny = tiny_gguf(TinyOptions())
    _, exact = load_reference_model(tiny.path)
    _, rounded = load_reference_model(tiny.path, kv_type="f16")
    batch = one_sequence(TOKENS, TABLE)
    difference = np.abs(exact.run(batch) - rounded.run(batch)).max()
    assert 0 < difference < 0.02
