"""A model on this machine's processor: one call of machine code a step."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from itertools import pairwise
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from twofold.backends.base import LoadableModel, RunnerSizes
from twofold.backends.cpu.kernels.attention import ITEM_INTS, SPLIT, scratch_floats
from twofold.backends.cpu.kernels.cache import LayerBlock
from twofold.backends.cpu.kernels.jit import Compiler
from twofold.backends.cpu.kernels.layout import PACKINGS
from twofold.backends.cpu.kernels.linear import linear_scratch_bytes
from twofold.backends.cpu.kernels.rows import LANES
from twofold.backends.cpu.kernels.signature import StepFields
from twofold.backends.cpu.kernels.splits import MERGE_INTS
from twofold.backends.cpu.kernels.thread_pool import ThreadPool
from twofold.backends.cpu.logits import KernelRowOps, StepArgmax
from twofold.backends.cpu.memory import Buffer, KVCache
from twofold.backends.cpu.program import ProgramBuilder
from twofold.backends.cpu.team import TeamSize
from twofold.backends.cpu.weights import WeightStore
from twofold.backends.graph import Linear, Node, Recorder, fuse
from twofold.core.errors import UnsupportedModelError
from twofold.core.model import ModelSpec
from twofold.core.step import BlockMove
from twofold.formats.base import ModelFile
from twofold.models.ops import Batch, Forward

ITEM_QUERIES = (12, 48)
"""Limits of the query heads times rows of one attention item. Large items fill tiles and reuse keys and values; small
items give every worker one."""
UNITS_PER_WORKER = 4
"""With fewer units of attention for each worker, long contexts are divided into splits."""
MAX_SPLIT_ROWS = 8
"""Rows of the longest context that may be divided into splits in one step."""


class StepRecord:
    """The record that all kernels of a step read: numbers of rows, addresses, and the items of attention."""

    def __init__(self, *, rows: int, heads: int, kv_heads: int, workers: int, partials: int) -> None:
        self._item_rows = tuple(max(1, queries // (heads // kv_heads)) for queries in ITEM_QUERIES)
        self._enough_items = -(-UNITS_PER_WORKER * workers // kv_heads)
        self._partials = partials
        lists = np.zeros((5, rows), np.int32)
        self._tokens, self._positions, self._row_sequence, self._logit_rows, self._hidden_rows = lists
        self._items = np.zeros((rows + partials, ITEM_INTS), np.int32)
        self._merges = np.zeros((partials, MERGE_INTS), np.int32)
        self._tables: NDArray[np.int32] | None = None
        self.step = np.zeros(StepFields.SIZE, np.int64)
        self.step[StepFields.ONE] = 1
        self.step[StepFields.TOKENS] = self._tokens.ctypes.data
        self.step[StepFields.POSITIONS] = self._positions.ctypes.data
        self.step[StepFields.LOGIT_LIST] = self._logit_rows.ctypes.data
        self.step[StepFields.HIDDEN_LIST] = self._hidden_rows.ctypes.data
        self.step[StepFields.ROW_SEQUENCE] = self._row_sequence.ctypes.data
        self.step[StepFields.ITEM_LIST] = self._items.ctypes.data
        self.step[StepFields.MERGE_LIST] = self._merges.ctypes.data

    def fill(self, batch: Batch) -> None:
        """Describes ``batch`` for the kernels."""
        step, rows, wanted, hidden = self.step, len(batch.tokens), len(batch.logit_rows), len(batch.hidden_rows)
        self._tokens[:rows] = batch.tokens
        self._positions[:rows] = batch.positions
        self._logit_rows[:wanted] = batch.logit_rows
        self._hidden_rows[:hidden] = batch.hidden_rows
        step[StepFields.ROWS], step[StepFields.LOGIT_ROWS], step[StepFields.HIDDEN_ROWS] = rows, wanted, hidden
        self._take_tables(batch.block_tables)
        step[StepFields.ITEMS], step[StepFields.MERGES] = self._fill_items(batch)

    def _take_tables(self, tables: NDArray[np.int32]) -> None:
        """Sets the address of the tables, which are too large to copy; keeps them until the next step."""
        group_bytes, table_bytes, entry_bytes = tables.strides
        assert tables.dtype == np.int32
        assert entry_bytes == 4
        self._tables = tables
        self.step[StepFields.TABLES] = tables.__array_interface__["data"][0]
        self.step[StepFields.TABLE_STRIDE] = table_bytes // 4
        self.step[StepFields.GROUP_STRIDE] = group_bytes // 4

    def _fill_items(self, batch: Batch) -> tuple[int, int]:
        """Lists items and merges. Returns the number of each."""
        starts = batch.row_starts.tolist()
        positions = batch.positions
        items: list[tuple[int, int, int, int, int, int]] = []
        merges: list[tuple[int, int, int, int]] = []
        partial = 0
        few = len(starts) - 1 < self._enough_items
        fewest, most = self._item_rows
        rows = min(max(len(positions) // self._enough_items, fewest), most)
        for sequence, (first, end) in enumerate(pairwise(starts)):
            self._row_sequence[first:end] = sequence
            position = int(positions[first])
            splits = position // SPLIT + 1
            if few and end - first == 1 and 1 < splits <= self._partials - partial:
                items += [(sequence, first, 1, position, split, partial + split) for split in range(splits)]
                merges.append((first, partial, splits, 0))
                partial += splits
                continue
            for row in range(first, end, rows):
                items.append((sequence, row, min(rows, end - row), position + row - first, -1, 0))
        self._items[: len(items), :6] = items
        if merges:
            self._merges[: len(merges)] = merges
        return len(items), len(merges)


class CpuModel(Forward):
    """``Forward`` on CPU kernels, with ``workers`` threads. ``trace`` runs the model's decoder on a Recorder;
    ``overlap`` is called while the weights are packed. A draft model is loaded ``beside`` its target: it runs on the
    same thread pool, and all its layers are in one KV group.

    Not thread-safe. Raises UnsupportedModelError for sizes that the kernels do not support, ResourceError if memory
    does not suffice.
    """

    cache: KVCache

    def __init__(
        self,
        model: LoadableModel,
        trace: Callable[[Recorder], tuple[Node, Node]],
        compiler: Compiler,
        sizes: RunnerSizes,
        workers: int,
        overlap: Callable[[], object] = lambda: None,
        beside: CpuModel | None = None,
    ) -> None:
        source, spec = model.file, model.spec
        attention = spec.attention
        _check_sizes(spec)
        self.vocab_size = spec.vocab_size
        self.hidden_size = spec.hidden_size
        self.max_rows = sizes.rows
        self.max_logit_rows = sizes.logit_rows
        recorder = Recorder()
        logit_node, hidden_node = trace(recorder)
        nodes = fuse(recorder.nodes)
        partials = MAX_SPLIT_ROWS * -(-sizes.context // SPLIT)
        scratch = _scratch_bytes(nodes, source, spec, compiler)
        self.pool: ThreadPool = ThreadPool(compiler, workers, scratch) if beside is None else beside.pool
        self._team = TeamSize(workers) if beside is None else None
        self._began = self._waited = 0.0
        best = StepArgmax(sizes.logit_rows, spec.vocab_size)
        try:
            self.pool.reserve(scratch)
            self.weights = WeightStore(source, compiler, self.pool)
            block = LayerBlock(attention.kv_heads, attention.head_dim, sizes.block_size, sizes.kv_type)
            groups = spec.kv_groups(sizes.context) if beside is None else [spec.one_group()]
            self.cache = KVCache(block, groups, sizes.blocks, sizes.host_slots)
            self._record = StepRecord(
                rows=sizes.rows,
                heads=attention.heads,
                kv_heads=attention.kv_heads,
                workers=workers,
                partials=partials,
            )
            builder = ProgramBuilder(compiler, self.weights, self.cache, sizes, partials)
            with self.weights.packing(node.weight for node in nodes if isinstance(node, Linear)):
                self.program, logits, hidden = builder.build(nodes, logit_node, hidden_node, self._record.step, best)
                overlap()
        except BaseException:
            self.pool.close()
            raise
        self._logits = _float_rows(logits, sizes.logit_rows)[:, : self.vocab_size]
        self._hidden = _float_rows(hidden, sizes.rows)[:, : self.hidden_size]
        self.hidden = self._hidden[:0]
        self._logit_rows = 0
        self._best = best
        self.rows = KernelRowOps(compiler)
        self._kept = builder.kept
        source.release()

    def run(self, batch: Batch) -> NDArray[np.float32]:
        """``Forward.run``."""
        self._take(batch)
        self.pool.run(self.program)
        return self._result()

    def begin(self, batch: Batch) -> None:
        """``Forward.begin``."""
        self._take(batch)
        self.pool.begin(self.program)

    def finish(self) -> NDArray[np.float32]:
        """``Forward.finish``."""
        self.pool.finish()
        return self._result()

    def _result(self) -> NDArray[np.float32]:
        """The logits of the step that has ended. Its cost chooses the size of the next step's team; a draft model runs
        with the team of its target."""
        pool, team = self.pool, self._team
        if team is not None:
            rows = int(self._record.step[StepFields.ROWS])
            team.observe(pool.size, rows, perf_counter() - self._began, pool.waited - self._waited)
            if team.size != pool.size:
                pool.resize(team.size)
        return self._logits[: self._logit_rows]

    def _take(self, batch: Batch) -> None:
        self._began, self._waited = perf_counter(), self.pool.waited
        assert len(batch.tokens) <= self.max_rows
        assert len(batch.logit_rows) <= self.max_logit_rows
        assert len(batch.block_tables) >= len(self.cache.groups), "every KV group has its tables"
        self._record.fill(batch)
        self._logit_rows, self.hidden = len(batch.logit_rows), self._hidden[: len(batch.hidden_rows)]

    def argmax(self, logits: NDArray[np.float32], at: Sequence[int]) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """``sampling.Argmax`` of rows of the last step, whose program has found it."""
        assert len(logits) <= self._logit_rows, "these are logits of another step"
        return self._best.of(at)

    def move(self, moves: Sequence[BlockMove]) -> None:
        """Moves blocks of the KV cache, one after another."""
        self.cache.move(moves)

    def provide_blocks(self, blocks: Sequence[int]) -> None:
        """``Forward.provide_blocks``."""
        self.cache.provide(blocks)

    def close(self) -> None:
        """Ends the pool's threads."""
        self.pool.close()


def _check_sizes(spec: ModelSpec) -> None:
    """Raises UnsupportedModelError for unrotated keys, and for sizes that are not multiples of a vector's 16 lanes."""
    if any(layer.rope is None for layer in spec.layers):
        raise UnsupportedModelError(
            "The CPU kernels store rotated keys only; a layer of this model has none.", hint="Use --backend reference."
        )
    sizes = [("hidden_size", spec.hidden_size), ("head_dim", spec.attention.head_dim)]
    for what, size in [*sizes, *(("ffn_size", size) for size in sorted(spec.ffn_sizes))]:
        if size % LANES:
            raise UnsupportedModelError(
                f"The model's {what} is {size}; the CPU kernels need a multiple of {LANES}.",
                hint="No published model of a supported architecture has such a size: check the file.",
            )


def _float_rows(buffer: Buffer, rows: int) -> NDArray[np.float32]:
    """A buffer as an array: float32 [rows, stride / 4]."""
    raw = (ctypes.c_uint8 * (rows * buffer.stride)).from_address(buffer.address)
    return np.ctypeslib.as_array(raw).view(np.float32).reshape(rows, buffer.stride // 4)


def _scratch_bytes(nodes: list[Node], source: ModelFile, spec: ModelSpec, compiler: Compiler) -> int:
    """Bytes of scratch of a worker: the largest need among the program's kernels."""
    isa = compiler.target.isa
    needs = [4 * scratch_floats(spec.attention.head_dim), 4 * max(spec.hidden_size, *spec.ffn_sizes) + 64]
    for node in nodes:
        if isinstance(node, Linear):
            form = source.tensors[node.weight.name].format
            if not form.is_float:
                needs.append(linear_scratch_bytes(PACKINGS[form.name], isa, node.weight.columns))
    return max(needs)
