"""A model on this machine's processor: one call of machine code a step."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from twofold.backends.base import LoadableModel, RunnerSizes
from twofold.backends.cpu.kernels.attention import scratch_floats
from twofold.backends.cpu.kernels.jit import Compiler
from twofold.backends.cpu.kernels.layout import PACKINGS
from twofold.backends.cpu.kernels.linear import linear_scratch_bytes
from twofold.backends.cpu.kernels.rows import LANES
from twofold.backends.cpu.kernels.signature import StepFields
from twofold.backends.cpu.kernels.thread_pool import ThreadPool
from twofold.backends.cpu.logits import KernelRowOps, StepArgmax
from twofold.backends.cpu.memory import Buffer, KVCache
from twofold.backends.cpu.program import ProgramBuilder
from twofold.backends.cpu.record import StepRecord
from twofold.backends.cpu.team import TeamSize
from twofold.backends.cpu.weights import WeightStore
from twofold.backends.graph import Linear, Node, Recorder, fuse
from twofold.core.errors import UnsupportedModelError
from twofold.core.model import GroupedAttention, KVGroup, ModelSpec
from twofold.core.step import BlockMove
from twofold.formats.base import ModelFile
from twofold.models.ops import Batch, Forward


class CpuModel(Forward):
    """``Forward`` on CPU kernels, with ``workers`` threads. ``trace`` runs the model's decoder on a Recorder;
    ``overlap`` is called while the weights are packed. A draft model is loaded ``beside`` its target: it runs on the
    same thread pool, and keeps all positions.

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
        groups = spec.kv_groups(sizes.context if beside is None else 0)
        _check_sizes(spec, groups)
        self.vocab_size = spec.vocab_size
        self.hidden_size = spec.hidden_size
        self.max_rows = sizes.rows
        self.max_logit_rows = sizes.logit_rows
        recorder = Recorder()
        logit_node, hidden_node = trace(recorder)
        nodes = fuse(recorder.nodes)
        scratch = _scratch_bytes(nodes, source, spec, compiler)
        self.pool: ThreadPool = ThreadPool(compiler, workers, scratch) if beside is None else beside.pool
        self._team = TeamSize(workers) if beside is None else None
        self._began = self._waited = 0.0
        best = StepArgmax(sizes.logit_rows, spec.vocab_size)
        try:
            self.pool.reserve(scratch)
            self.weights = WeightStore(source, compiler, self.pool)
            self.cache = KVCache(groups, sizes.block_size, sizes.kv_type, sizes.blocks, sizes.host_slots)
            heads = [(each.heads, each.kv_heads) for each in _attentions(spec)]
            self._record = StepRecord(heads, rows=sizes.rows, context=sizes.context, workers=workers)
            builder = ProgramBuilder(compiler, self.weights, self.cache, sizes, self._record)
            with self.weights.packing(node.weight for node in nodes if isinstance(node, Linear)):
                self.program, logits, hidden = builder.build(nodes, logit_node, hidden_node, best)
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


def _attentions(spec: ModelSpec) -> list[GroupedAttention]:
    """The layers' attention, in a model that was checked."""
    return [layer.attention for layer in spec.layers if isinstance(layer.attention, GroupedAttention)]


def _check_sizes(spec: ModelSpec, groups: Sequence[KVGroup]) -> None:
    """Raises UnsupportedModelError for layers that keep something else than keys and values, for unrotated keys, and
    for sizes that are not multiples of a vector's 16 lanes."""
    head_dims = sorted({group.paged.head_dim for group in groups})
    if any(layer.rope is None for layer in spec.layers):
        raise UnsupportedModelError(
            "The CPU kernels store rotated keys only; a layer of this model has none.", hint="Use --backend reference."
        )
    sizes = {"hidden_size": [spec.hidden_size], "head_dim": head_dims, "ffn_size": sorted(spec.ffn_sizes)}
    for what, size in [(what, size) for what, found in sizes.items() for size in found]:
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
    widest = max(each.head_dim for each in _attentions(spec))
    needs = [4 * scratch_floats(widest), 4 * max(spec.hidden_size, *spec.ffn_sizes) + 64]
    for node in nodes:
        if isinstance(node, Linear):
            form = source.tensors[node.weight.name].format
            if not form.is_float:
                needs.append(linear_scratch_bytes(PACKINGS[form.name], isa, node.weight.columns))
    return max(needs)
