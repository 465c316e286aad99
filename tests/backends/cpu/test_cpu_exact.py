"""Bit for bit the same logits and hidden states: alone or in any batch, any chunking, any threads, any instruction set,
any blocks.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.backends.cpu.conftest import EMULATED, ISAS
from tests.support.cpu import cpu_model, cpu_sizes
from tests.support.reference import one_sequence, tables_of
from tests.support.tiny import TinyModel, TinyOptions
from twofold.backends.base import RunnerSizes
from twofold.backends.cpu.kernels.attention import SPLIT
from twofold.backends.cpu.kernels.jit import Compiler
from twofold.backends.cpu.model import CpuModel
from twofold.core.kv_layout import KVType
from twofold.core.step import BlockMove, MoveKind
from twofold.models.ops import Batch

Make = Callable[[TinyOptions], TinyModel]
Compilers = Callable[[str], Compiler]
Values = NDArray[np.float32]

WINDOW = 70
OPTIONS = TinyOptions.wide("gemma3", "Q4_K", layers=7, window=WINDOW, context=1024)
TABLES = np.random.default_rng(3).permutation(120).astype(np.int32).reshape(3, 40)
PROMPTS = [np.random.default_rng(i).integers(0, 300, n).astype(np.int32) for i, n in enumerate((150, 33, 300))]


SIZES = cpu_sizes(128, 1024, 512, 512, slots=32)
KV_TYPES = ("bf16", "q8", "k8v4")


@pytest.fixture(scope="module", params=KV_TYPES)
def sizes(request: pytest.FixtureRequest) -> RunnerSizes:
    """With each type of keys and values that attention computes in its own way."""
    return replace(SIZES, kv_type=request.param)


@pytest.fixture(scope="module")
def model(sizes: RunnerSizes, tiny_gguf: Make, compiler_for: Compilers) -> Iterator[CpuModel]:
    with cpu_model(tiny_gguf(OPTIONS).path, compiler_for(ISAS[0]), sizes) as made:
        yield made


@pytest.fixture(scope="module")
def alone(model: CpuModel) -> list[Values]:
    """Each prompt in one pass by itself."""
    return [outputs(model, one_sequence(p, t)) for p, t in zip(PROMPTS, TABLES, strict=True)]


def outputs(model: CpuModel, batch: Batch) -> Values:
    """Logits and hidden states side by side, for batches that ask both of the same rows."""
    return np.hstack([model.run(batch), model.hidden])


def ragged(parts: Sequence[tuple[int, int, int]]) -> Batch:
    """Rows ``first : end`` of each named prompt, all logits and hidden states wanted."""
    tokens = np.concatenate([PROMPTS[i][first:end] for i, first, end in parts])
    positions = np.concatenate([np.arange(first, end, dtype=np.int32) for _, first, end in parts])
    starts = np.cumsum([0, *(end - first for _, first, end in parts)]).astype(np.int32)
    tables = np.ascontiguousarray(TABLES[[i for i, _, _ in parts]])
    rows = np.arange(len(tokens), dtype=np.int32)
    return Batch(tokens, positions, starts, tables_of(tables), rows, rows)


def run_in_steps(model: CpuModel, cuts: Sequence[Sequence[int]], order: Sequence[int]) -> list[Values]:
    """Each prompt cut at its ``cuts``; step j runs the j-th piece of every prompt that still has one, in ``order``."""
    pieces = [list(itertools.pairwise(c)) for c in cuts]
    seen: list[list[Values]] = [[] for _ in cuts]
    for step in range(max(map(len, pieces))):
        parts = [(i, *pieces[i][step]) for i in order if step < len(pieces[i])]
        values, at = outputs(model, ragged(parts)), 0
        for i, first, end in parts:
            seen[i].append(values[at : at + end - first])
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
    model: CpuModel, alone: list[Values], cuts: list[list[int]], order: list[int]
) -> None:
    for got, expected in zip(run_in_steps(model, cuts, order), alone, strict=True):
        assert np.array_equal(got, expected)


def test_one_token_at_a_time_past_a_split(model: CpuModel, alone: list[Values]) -> None:
    """Rows past a split's border are computed split by split and merged; alone they are done in one piece."""
    tokens, table = PROMPTS[2], TABLES[2]
    first = SPLIT - 2
    model.run(one_sequence(tokens[:first], table))
    for position in range(first, first + 8):
        row = outputs(model, one_sequence(tokens[position : position + 1], table, position))
        assert np.array_equal(row[0], alone[2][position])


def test_rows_that_are_computed_again_leave_no_trace(model: CpuModel, alone: list[Values]) -> None:
    """Rejected drafts: other tokens at the next positions, then the right ones in their place."""
    tokens, table = PROMPTS[2], TABLES[2]
    model.run(one_sequence(tokens[:150], table))
    for first in range(150, 290, 35):
        model.run(one_sequence((tokens[first : first + 9] + 7) % 300, table, first))
        batch = one_sequence(tokens[first : first + 35], table, first)
        assert np.array_equal(outputs(model, batch), alone[2][first : first + 35])


def test_hidden_states_of_some_rows_without_logits(model: CpuModel, alone: list[Values]) -> None:
    """Others' rows may want logits in the same step."""
    batch, wanted = ragged([(1, 0, 33), (0, 0, 150)]), np.array([5, 32, 33, 182], np.int32)
    logits = model.run(replace(batch, logit_rows=np.array([182], np.int32), hidden_rows=wanted))
    assert np.array_equal(model.hidden, np.vstack([alone[1][[5, 32]], alone[0][[0, 149]]])[:, model.vocab_size :])
    assert np.array_equal(logits[0], alone[0][149, : model.vocab_size])
    model.run(replace(batch, hidden_rows=np.zeros(0, np.int32)))
    assert model.hidden.shape == (0, model.hidden_size)


@pytest.mark.parametrize("cuts", [(0, 300), (0, 130, 131, 260, 300), (0, 64, 128, 200, 298, 299, 300)])
def test_what_a_window_has_passed_is_not_read(model: CpuModel, alone: list[Values], cuts: Sequence[int]) -> None:
    """Entries of the window's group that no row sees any more name blocks of garbage: the same bits."""
    assert [group.window for group in model.cache.groups] == [None, WINDOW]
    garbage = spoil(model, group=1, block=127)
    for first, end in itertools.pairwise(cuts):
        batch = one_sequence(PROMPTS[2][first:end], TABLES[2], first)
        batch.block_tables[1, 0, : max(0, first - WINDOW + 1) // 16] = garbage
        assert np.array_equal(outputs(model, batch), alone[2][first:end])


def test_what_a_window_shows_is_read(model: CpuModel, alone: list[Values]) -> None:
    """The test above would see a block too many."""
    garbage = spoil(model, group=1, block=127)
    model.run(one_sequence(PROMPTS[2][:200], TABLES[2]))
    batch = one_sequence(PROMPTS[2][200:], TABLES[2], 200)
    batch.block_tables[1, 0, : (200 - WINDOW + 1) // 16 + 1] = garbage
    assert not np.array_equal(outputs(model, batch), alone[2][200:])


def spoil(model: CpuModel, group: int, block: int) -> int:
    """Fills a block of a group with large finite numbers of both signs."""
    parts = model.cache._blocks[group]
    size = parts.dtype.itemsize // 2
    values = np.random.default_rng(9).uniform(-60000, 60000, (len(parts), size)).astype(np.float16)
    parts[:, block] = values.view(parts.dtype)[:, 0]
    return block


def test_moved_blocks_are_the_same(model: CpuModel, alone: list[Values]) -> None:
    """After half a prompt its blocks go out, others take their place, and it comes back elsewhere."""
    batch = one_sequence(PROMPTS[2][:200], TABLES[2])
    model.run(batch)
    held = batch.block_tables[:2, 0, :13].tolist()
    free = [[b for b in range(128) if b not in blocks] for blocks in held]
    moves = [BlockMove(MoveKind.COPY, g, held[g][i], free[g][i]) for g in (0, 1) for i in range(5)]
    moves += [BlockMove(MoveKind.OUT, g, held[g][i], 2 * i) for g in (0, 1) for i in range(5, 13)]
    model.move(moves)
    for group, blocks in enumerate(held):
        for block in blocks:
            spoil(model, group, block)
    model.move([BlockMove(MoveKind.IN, g, 2 * i, free[g][i]) for g in (0, 1) for i in range(5, 13)])
    rest = one_sequence(PROMPTS[2][200:], TABLES[2], 200)
    rest.block_tables[:2, 0] = [blocks[:40] for blocks in free]
    assert np.array_equal(outputs(model, rest), alone[2][200:])


@pytest.mark.parametrize("workers", [1, 3])
def test_any_number_of_threads(
    workers: int, sizes: RunnerSizes, alone: list[Values], tiny_gguf: Make, compiler_for: Compilers
) -> None:
    with cpu_model(tiny_gguf(OPTIONS).path, compiler_for(ISAS[0]), sizes, workers) as other:
        for tokens, table, expected in zip(PROMPTS, TABLES, alone, strict=True):
            assert np.array_equal(outputs(other, one_sequence(tokens, table)), expected)


@pytest.mark.parametrize("format", ["Q4_1", "Q6_K", "Q8_0", "IQ4_NL", "BF16"])
def test_any_instruction_set(format: str, tiny_gguf: Make, compiler_for: Compilers) -> None:
    assert_same_on_every_set(tiny_gguf(TinyOptions.wide("qwen2", format, layers=1)), SIZES, compiler_for)


@pytest.mark.parametrize("kv_type", ["q8", "k8v4"])
@pytest.mark.parametrize("architecture", ["qwen2", "gemma2"])
def test_any_instruction_set_with_integers(
    architecture: str, kv_type: KVType, tiny_gguf: Make, compiler_for: Compilers
) -> None:
    tiny = tiny_gguf(TinyOptions(architecture, layers=2, head_dim=64, window=20 if architecture == "gemma2" else None))
    assert_same_on_every_set(tiny, replace(SIZES, kv_type=kv_type), compiler_for)


def assert_same_on_every_set(tiny: TinyModel, sizes: RunnerSizes, compiler_for: Compilers) -> None:
    tokens, results = PROMPTS[1], []
    for isa in (*ISAS, EMULATED):
        with cpu_model(tiny.path, compiler_for(isa), sizes) as model:
            results.append(outputs(model, one_sequence(tokens, TABLES[1])))
    for other in results[1:]:
        assert np.array_equal(results[0], other)
