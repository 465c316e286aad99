"""Bit for bit the same logits: alone or in any batch, any chunking, any threads, any instruction set."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.ops.conftest import ISAS
from tests.support.cpu import cpu_model
from tests.support.reference import one_sequence
from tests.support.tiny import TinyModel, TinyOptions
from twofold.kernels.attention import SPLIT
from twofold.kernels.jit import Compiler
from twofold.ops.base import Batch
from twofold.ops.cpu.model import CpuModel, CpuOptions

Make = Callable[[TinyOptions], TinyModel]
Compilers = Callable[[str], Compiler]
Logits = NDArray[np.float32]

OPTIONS = TinyOptions.wide("gemma3", "Q4_K", layers=7, window=70, context=1024)
TABLES = np.random.default_rng(3).permutation(120).astype(np.int32).reshape(3, 40)
PROMPTS = [np.random.default_rng(i).integers(0, 300, n).astype(np.int32) for i, n in enumerate((150, 33, 300))]


def sizes(workers: int) -> CpuOptions:
    return CpuOptions(blocks=128, max_positions=1024, max_rows=512, max_logit_rows=512, workers=workers)


@pytest.fixture(scope="module")
def model(tiny_gguf: Make, compiler_for: Compilers) -> Iterator[CpuModel]:
    with cpu_model(tiny_gguf(OPTIONS).path, compiler_for(ISAS[0]), sizes(2)) as made:
        yield made


@pytest.fixture(scope="module")
def alone(model: CpuModel) -> list[Logits]:
    """Each prompt in one pass by itself."""
    return [model.run(one_sequence(p, t)).copy() for p, t in zip(PROMPTS, TABLES, strict=True)]


def ragged(parts: Sequence[tuple[int, int, int]]) -> Batch:
    """Rows ``first : end`` of each named prompt, all logits wanted."""
    tokens = np.concatenate([PROMPTS[i][first:end] for i, first, end in parts])
    positions = np.concatenate([np.arange(first, end, dtype=np.int32) for _, first, end in parts])
    starts = np.cumsum([0, *(end - first for _, first, end in parts)]).astype(np.int32)
    tables = np.ascontiguousarray(TABLES[[i for i, _, _ in parts]])
    return Batch(tokens, positions, starts, tables[None], np.arange(len(tokens), dtype=np.int32))


def run_in_steps(model: CpuModel, cuts: Sequence[Sequence[int]], order: Sequence[int]) -> list[Logits]:
    """Each prompt cut at its ``cuts``; step j runs the j-th piece of every prompt that still has one, in ``order``."""
    pieces = [list(itertools.pairwise(c)) for c in cuts]
    seen: list[list[Logits]] = [[] for _ in cuts]
    for step in range(max(map(len, pieces))):
        parts = [(i, *pieces[i][step]) for i in order if step < len(pieces[i])]
        logits = model.run(ragged(parts)).copy()
        at = 0
        for i, first, end in parts:
            seen[i].append(logits[at : at + end - first])
            at += end - first
    return [np.concatenate(s) for s in seen]


@st.composite
def any_cuts(draw: st.DrawFn) -> list[list[int]]:
    return [
        [0, *sorted(draw(st.sets(st.integers(1, len(p) - 1), max_size=6))), len(p)]
        for p in PROMPTS
    ]  # fmt: skip


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=any_cuts(), order=st.permutations(range(3)))
def test_any_chunking_in_any_company(
    model: CpuModel, alone: list[Logits], cuts: list[list[int]], order: list[int]
) -> None:
    for got, expected in zip(run_in_steps(model, cuts, order), alone, strict=True):
        assert np.array_equal(got, expected)


def test_one_token_at_a_time_past_a_split(model: CpuModel, alone: list[Logits]) -> None:
    """Rows past a split's border are computed split by split and merged; alone they are done in one piece."""
    tokens, table = PROMPTS[2], TABLES[2]
    first = SPLIT - 2
    model.run(one_sequence(tokens[:first], table))
    for position in range(first, first + 8):
        row = model.run(one_sequence(tokens[position : position + 1], table, position))
        assert np.array_equal(row[0], alone[2][position])


@pytest.mark.parametrize("workers", [1, 3])
def test_any_number_of_threads(workers: int, alone: list[Logits], tiny_gguf: Make, compiler_for: Compilers) -> None:
    with cpu_model(tiny_gguf(OPTIONS).path, compiler_for(ISAS[0]), sizes(workers)) as other:
        for tokens, table, expected in zip(PROMPTS, TABLES, alone, strict=True):
            assert np.array_equal(other.run(one_sequence(tokens, table)), expected)


@pytest.mark.parametrize("format", ["Q4_1", "Q6_K", "Q8_0", "IQ4_NL", "BF16"])
def test_any_instruction_set(format: str, tiny_gguf: Make, compiler_for: Compilers) -> None:
    tiny = tiny_gguf(TinyOptions.wide("qwen2", format, layers=1))
    tokens, results = PROMPTS[1], []
    for isa in ISAS:
        with cpu_model(tiny.path, compiler_for(isa), sizes(2)) as model:
            results.append(model.run(one_sequence(tokens, TABLES[1])).copy())
    for other in results[1:]:
        assert np.array_equal(results[0], other)
