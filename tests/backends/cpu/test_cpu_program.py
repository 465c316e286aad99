"""From a traced decoder to a program: what is joined, where barriers stand, who owns which buffer."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.backends.cpu.conftest import ISAS
from tests.support.cpu import cpu_model, cpu_sizes
from tests.support.tiny import TWO_SIZES, TinyModel, TinyOptions
from twofold.backends import graph
from twofold.backends.cpu.kernels.attention import SPLIT
from twofold.backends.cpu.kernels.jit import Compiler
from twofold.backends.cpu.kernels.signature import StepFields
from twofold.backends.cpu.kernels.thread_pool import KernelCall, ThreadPool
from twofold.backends.cpu.logits import StepArgmax
from twofold.backends.cpu.memory import LINE, BufferPool, KVCache, row_stride
from twofold.backends.cpu.program import OperationSchedule, ProgramBuilder
from twofold.backends.cpu.record import StepRecord
from twofold.backends.cpu.weights import WeightStore
from twofold.backends.graph import Node, Recorder, fuse
from twofold.core.model import GroupedAttention, RopeSpec
from twofold.formats.base import open_model
from twofold.models.decoder import forward
from twofold.models.ops import Batch, TensorRef
from twofold.models.read import read_model

Make = Callable[[TinyOptions], TinyModel]
Compilers = Callable[[str], Compiler]

SIZES = cpu_sizes(64, 512, 64, 8)
LLAMA_LAYER_OPERATIONS, LLAMA_LAYER_BARRIERS = 16, 11
"""What one layer of a llama costs. Lower is better: change them only downwards."""

WIDTH = 64
ROPE = RopeSpec(16, 10_000.0, "halves")
TABLE, SQUARE, VECTOR = TensorRef("t", 300, WIDTH), TensorRef("w", WIDTH, WIDTH), TensorRef("v", 1, WIDTH)


# -- joining ----------------------------------------------------------------------------------------------------------


def kinds(nodes: list[Node]) -> list[str]:
    return [type(node).__name__ for node in nodes]


def test_a_sum_with_a_linear_or_a_norm_is_one_node() -> None:
    ops = Recorder()
    x = ops.embed(TABLE, 1.0)
    y = ops.add(x, ops.linear(x, SQUARE))
    z = ops.add(ops.rms_norm(y, VECTOR, 1e-5), y)
    ops.linear(z, SQUARE)
    nodes = fuse(ops.nodes)
    assert kinds(nodes) == ["Embed", "Linear", "Norm", "Linear"]
    _, linear, norm, last = nodes
    assert isinstance(linear, graph.Linear)
    assert isinstance(norm, graph.Norm)
    assert isinstance(last, graph.Linear)
    assert linear.residual is x
    assert norm.x is linear
    assert norm.residual is linear
    assert last.x is norm


def test_a_result_that_others_use_is_not_joined() -> None:
    ops = Recorder()
    x = ops.embed(TABLE, 1.0)
    y = ops.linear(x, SQUARE)
    ops.gated(ops.add(x, y), y, "silu")
    z = ops.linear(x, SQUARE)
    ops.add(z, z)
    assert kinds(fuse(ops.nodes)) == ["Embed", "Linear", "Add", "Gated", "Linear", "Add"]


def test_a_linear_takes_one_residual() -> None:
    ops = Recorder()
    x = ops.embed(TABLE, 1.0)
    ops.add(x, ops.add(x, ops.linear(x, SQUARE)))
    assert kinds(fuse(ops.nodes)) == ["Embed", "Linear", "Add"]


def test_a_residual_is_there_before_it_is_added() -> None:
    """Joined into the linear, the sum would be computed before the gate that it reads."""
    ops = Recorder()
    x = ops.embed(TABLE, 1.0)
    y = ops.linear(x, SQUARE)
    ops.add(y, ops.gated(x, x, "silu"))
    nodes = fuse(ops.nodes)
    assert kinds(nodes) == ["Embed", "Linear", "Gated", "Add"]
    assert_inputs_come_first(nodes)


def test_norm_rotation_and_store_are_joined() -> None:
    ops = Recorder()
    x = ops.embed(TABLE, 1.0)
    q = ops.rope(ops.head_norm(x, VECTOR, 1e-6, 4), 4, ROPE)
    k, v = ops.rope(x, 4, ROPE), ops.linear(x, SQUARE)
    ops.store_kv(3, k, v)
    ops.attention(3, q, GroupedAttention(4, 4, 16))
    nodes = fuse(ops.nodes)
    assert kinds(nodes) == ["Embed", "Rotate", "Rotate", "Linear", "StoreValues", "Attention"]
    _, query, key, value, store, attention = nodes
    assert isinstance(query, graph.Rotate)
    assert (query.x, query.norm, query.eps, query.store) == (x, VECTOR, 1e-6, None)
    assert isinstance(key, graph.Rotate)
    assert (key.x, key.norm, key.store) == (x, None, 3)
    assert isinstance(store, graph.StoreValues)
    assert (store.values, store.layer, store.heads) == (value, 3, 4)
    assert isinstance(attention, graph.Attention)
    assert attention.q is query


def assert_inputs_come_first(nodes: list[Node]) -> None:
    seen: set[Node] = set()
    for node in nodes:
        assert set(node.inputs()) <= seen
        seen.add(node)


# -- barriers ---------------------------------------------------------------------------------------------------------


def schedule(*accesses: tuple[set[int], set[int]]) -> list[bool]:
    """Whether a barrier follows each operation, given what it reads and writes."""
    made = OperationSchedule()
    for reads, writes in accesses:
        made.add(KernelCall(0, np.zeros(1, np.int64), StepFields.ROWS), reads, writes)
    return [operation.barrier for operation in made.finish()]


@pytest.mark.parametrize(
    "then", [({1}, {2}), ({2}, {0}), ({2}, {1})], ids=["read after write", "write after read", "write after write"]
)
def test_a_hazard_is_a_barrier(then: tuple[set[int], set[int]]) -> None:
    assert schedule(({0}, {1}), then) == [True, True]


def test_independent_operations_need_no_barrier() -> None:
    assert schedule(({0}, {1}), ({0}, {2}), ({0, 3}, {4})) == [False, False, True]


def test_a_barrier_stands_before_the_first_that_needs_it() -> None:
    assert schedule(({0}, {1}), ({0}, {2}), ({1}, {3}), ({2}, {4}), ({3}, {5})) == [False, True, False, True, True]


RESOURCES = st.sets(st.integers(0, 5), max_size=3)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(RESOURCES, RESOURCES), min_size=1, max_size=12))
def test_nothing_between_two_barriers_depends_on_another(accesses: list[tuple[set[int], set[int]]]) -> None:
    phase: list[tuple[set[int], set[int]]] = []
    for (reads, writes), barrier in zip(accesses, schedule(*accesses), strict=True):
        for other_reads, other_writes in phase:
            assert not writes & (other_reads | other_writes)
            assert not reads & other_writes
        phase = [] if barrier else [*phase, (reads, writes)]


# -- buffers ----------------------------------------------------------------------------------------------------------


def test_a_buffer_comes_back_only_when_given_back() -> None:
    pool = BufferPool()
    first, second = pool.take(4, 100), pool.take(4, 100)
    assert first.address != second.address
    pool.give(4, first)
    assert pool.take(8, 100).address not in {first.address, second.address}
    assert pool.take(4, 100) == first
    assert sum(area.size - LINE for area in pool._owned) == (4 + 4 + 8) * row_stride(100)


def test_rows_begin_at_lines_and_are_not_crowded() -> None:
    for size in range(4, 9000, 52):
        assert size <= row_stride(size) <= size + 127
        assert row_stride(size) % 64 == 0
        assert row_stride(size) % 1024


ALL_KINDS = {
    "llama": TinyOptions.wide("llama", "Q4_1", layers=3),
    "gemma2": TinyOptions("gemma2", layers=3, window=20),
    "gemma3": TinyOptions.wide("gemma3", "Q4_K", layers=3, window=20),
    "phi3": TinyOptions("phi3", layers=3),
    "two head sizes": TWO_SIZES,
}


class Traced:
    """A tiny model's program, with the nodes and buffers it was made of, and what each operation says it touches."""

    def __init__(self, path: Path, compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[KernelCall, set[int], set[int]]] = []
        add = OperationSchedule.add

        def remember(schedule: OperationSchedule, operation: KernelCall, reads: set[int], writes: set[int]) -> None:
            self.calls.append((operation, reads, writes))
            add(schedule, operation, reads, writes)

        monkeypatch.setattr(OperationSchedule, "add", remember)
        recorder, pool = Recorder(), ThreadPool(compiler, 1, 1 << 16)
        with open_model(path) as file:
            spec, weights = read_model(file)
            self.logits, self.hidden = forward(recorder, spec, weights)
            self.nodes = fuse(recorder.nodes)
            groups = spec.kv_groups(64)
            cache = KVCache(groups, 16, "f16", [4] * len(groups))
            store = WeightStore(file, compiler, pool)
            heads = [
                (a.heads, a.kv_heads)
                for layer in spec.layers
                for a in [layer.attention]
                if isinstance(a, GroupedAttention)
            ]
            record = StepRecord(heads, rows=8, context=64, workers=1)
            self.items = {each.count_field for each in record.items.values()}
            self.builder = ProgramBuilder(compiler, store, cache, cpu_sizes(4, 64, 8, 4), record)
            best = StepArgmax(4, spec.vocab_size)
            with store.packing(node.weight for node in self.nodes if isinstance(node, graph.Linear)):
                self.program, *self.results = self.builder.build(self.nodes, self.logits, self.hidden, best)
            self.caches = {cache.layer_address(i) for i in range(len(spec.layers))}
        pool.close()

    def buffers(self, node: Node) -> set[int]:
        result = self.builder._results[node]
        return {buffer.address for buffer in (result.floats, result.acts) if buffer is not None}


@pytest.fixture(params=ALL_KINDS)
def traced(
    request: pytest.FixtureRequest, tiny_gguf: Make, compiler_for: Compilers, monkeypatch: pytest.MonkeyPatch
) -> Traced:
    return Traced(tiny_gguf(ALL_KINDS[request.param]).path, compiler_for(ISAS[0]), monkeypatch)


def test_nodes_are_computed_before_they_are_used(traced: Traced) -> None:
    assert_inputs_come_first(traced.nodes)


def test_a_live_buffer_is_never_handed_out(traced: Traced) -> None:
    last_use = {source: i for i, node in enumerate(traced.nodes) for source in node.inputs()}
    last_use |= {traced.logits: len(traced.nodes), traced.hidden: len(traced.nodes)}
    reused = 0
    for index, node in enumerate(traced.nodes):
        earlier = traced.nodes[:index]
        live = [other for other in earlier if last_use.get(other, -1) >= index]
        own = traced.buffers(node)
        for other in live:
            assert own.isdisjoint(traced.buffers(other))
        reused += any(own & traced.buffers(other) for other in earlier)
    assert reused > 10
    for node, buffer in zip((traced.logits, traced.hidden), traced.results, strict=True):
        assert {buffer.address} <= traced.buffers(node)


def test_operations_say_what_they_touch(traced: Traced) -> None:
    """Every buffer and cache among an operation's arguments is one that it says it reads or writes.

    A layer's keys go by the cache's address, its values by the next number: attention reads both.
    """
    known = traced.caches.union(*map(traced.buffers, traced.nodes))
    for operation, reads, writes in traced.calls:
        if operation.source - 1 in traced.items:
            continue  # It shares the arguments of the attention before it.
        named = set(operation.args.tolist()) & known
        said = {address & ~1 for address in reads | writes}
        assert named == said & known
        if operation.source in traced.items:
            keys = named & traced.caches
            assert keys | {address + 1 for address in keys} <= reads


def test_values_are_written_before_they_are_read(traced: Traced) -> None:
    written: set[int] = set()
    for _, reads, writes in traced.calls:
        assert reads <= written | writes
        written |= writes


def test_a_llama_layer_is_few_operations_and_barriers(tiny_gguf: Make, compiler_for: Compilers) -> None:
    counts = []
    for layers in (1, 2, 3):
        tiny = tiny_gguf(TinyOptions.wide("llama", "Q4_1", layers=layers))
        with cpu_model(tiny.path, compiler_for(ISAS[0]), SIZES) as model:
            operations = model.program.operations
            counts.append((len(operations), sum(operation.barrier for operation in operations)))
    assert {(b[0] - a[0], b[1] - a[1]) for a, b in pairwise(counts)} == {(LLAMA_LAYER_OPERATIONS, LLAMA_LAYER_BARRIERS)}


# -- steps ------------------------------------------------------------------------------------------------------------


def batch_of(*parts: tuple[int, int]) -> Batch:
    """First position and rows of each sequence; the last row of each wants logits."""
    starts = np.cumsum([0, *(rows for _, rows in parts)]).astype(np.int32)
    positions = np.concatenate([np.arange(first, first + rows, dtype=np.int32) for first, rows in parts])
    tables = np.zeros((2, len(parts), 40), np.int32)
    return Batch(np.zeros(len(positions), np.int32), positions, starts, tables, starts[1:] - 1)


class Filled:
    """A record of 8 query heads on 2 KV heads, and of 4 on one; two workers and 16 partials; filled with a batch."""

    def __init__(self, *parts: tuple[int, int]) -> None:
        record = StepRecord([(8, 2), (4, 1), (8, 2)], rows=64, context=2 * SPLIT, workers=2)
        batch = batch_of(*parts)
        record.fill(batch)
        self.step = record.step
        (self.items, self.merges), (self.items_of_one, self.merges_of_one) = (
            (each.items[:items, :6].tolist(), each.merges[:merges, :3].tolist())
            for each in record.items.values()
            for items, merges in [record.step[each.count_field : each.count_field + 2]]
        )
        self.owners = self._ints(StepFields.ROW_SEQUENCE, 1, len(batch.tokens))[0].tolist()

    def _ints(self, field: StepFields, rows: int, columns: int) -> NDArray[np.int32]:
        raw = (ctypes.c_int32 * (rows * columns)).from_address(int(self.step[field]))
        return np.array(raw, np.int32).reshape(rows, columns)


def test_a_mixed_batch_is_items_and_merges() -> None:
    filled = Filled((0, 7), (700, 1), (255, 1))
    assert filled.owners == [0] * 7 + [1, 2]
    assert filled.step[[StepFields.ONE, StepFields.ROWS, StepFields.LOGIT_ROWS, StepFields.HIDDEN_ROWS]].tolist() == [
        1,
        9,
        3,
        0,
    ]
    assert filled.step[[StepFields.TABLE_STRIDE, StepFields.GROUP_STRIDE]].tolist() == [40, 120]
    assert filled.items == [
        [0, 0, 3, 0, -1, 0],
        [0, 3, 3, 3, -1, 0],
        [0, 6, 1, 6, -1, 0],
        [1, 7, 1, 700, 0, 0],
        [1, 7, 1, 700, 1, 1],
        [1, 7, 1, 700, 2, 2],
        [2, 8, 1, 255, -1, 0],
    ]
    assert filled.merges == filled.merges_of_one == [[7, 0, 3]]
    assert filled.items_of_one == filled.items


def test_with_enough_sequences_none_is_split() -> None:
    filled = Filled((700, 1), (700, 1), (700, 1), (700, 1))
    assert filled.merges == []
    assert filled.items == [[i, i, 1, 700, -1, 0] for i in range(4)]


def test_with_partials_used_up_rows_stay_whole() -> None:
    filled = Filled((256 * 9, 1), (256 * 6, 1), (256 * 5, 1))
    assert filled.merges == [[0, 0, 10], [2, 10, 6]]
    assert [item for item in filled.items if item[4] < 0] == [[1, 1, 1, 256 * 6, -1, 0]]
