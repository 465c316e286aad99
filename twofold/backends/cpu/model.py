"""A model on this machine's processor: one call of machine code a step."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from twofold.backends.base import RunnerSizes
from twofold.backends.cpu.argmax import StepArgmax
from twofold.backends.cpu.batch import StepRecord
from twofold.backends.cpu.cache import KVCache
from twofold.backends.cpu.graph import Linear, Node, Recorder, fuse
from twofold.backends.cpu.kernels.attention import scratch_floats
from twofold.backends.cpu.kernels.cache import LayerBlock
from twofold.backends.cpu.kernels.jit import Compiler
from twofold.backends.cpu.kernels.layout import PACKINGS
from twofold.backends.cpu.kernels.linear import linear_scratch_bytes
from twofold.backends.cpu.kernels.row_ops import KernelRowOps
from twofold.backends.cpu.kernels.rows import LANES
from twofold.backends.cpu.kernels.split import SPLIT
from twofold.backends.cpu.kernels.thread_pool import ThreadPool
from twofold.backends.cpu.memory import Buffer
from twofold.backends.cpu.program import Capacity, ProgramBuilder
from twofold.backends.cpu.weights import WeightStore
from twofold.core.errors import UnsupportedModelError
from twofold.core.model import ModelSpec
from twofold.core.step import BlockMove
from twofold.formats.base import ModelFile
from twofold.models.ops import Batch, Forward


class CpuModel(Forward):
    """``Forward`` on CPU kernels. ``trace`` runs the model's decoder on a Recorder, ``workers`` are its threads; not
    thread-safe.

    Raises UnsupportedModelError for sizes that the kernels cannot do, ResourceError where memory does not suffice.
    """

    def __init__(
        self,
        source: ModelFile,
        spec: ModelSpec,
        trace: Callable[[Recorder], tuple[Node, Node]],
        compiler: Compiler,
        sizes: RunnerSizes,
        workers: int,
    ) -> None:
        attention = spec.attention
        _check_sizes(spec)
        self.vocab_size = spec.vocab_size
        self.hidden_size = spec.hidden_size
        self.max_rows = sizes.rows
        self.max_logit_rows = sizes.logit_rows
        recorder = Recorder()
        logit_node, hidden_node = trace(recorder)
        nodes = fuse(recorder.nodes)
        partials = UNITS_OF_PARTIALS * -(-sizes.context // SPLIT)
        self.pool = ThreadPool(compiler, workers, _scratch_bytes(nodes, source, spec, compiler))
        self.weights = WeightStore(source, compiler, self.pool)
        block = LayerBlock(attention.kv_heads, attention.head_dim, sizes.block_size, sizes.kv_type)
        self.cache = KVCache(block, spec.kv_groups(sizes.context), sizes.blocks, sizes.host_slots)
        self._record = StepRecord(
            rows=sizes.rows,
            heads=attention.heads,
            kv_heads=attention.kv_heads,
            workers=workers,
            partials=partials,
        )
        capacity = Capacity(sizes.rows, sizes.logit_rows, sizes.context, partials)
        builder = ProgramBuilder(compiler, self.weights, self.cache, capacity)
        best = StepArgmax(sizes.logit_rows, spec.vocab_size)
        self.program, logits, hidden = builder.build(nodes, logit_node, hidden_node, self._record.step, best)
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
        return self._logits[: self._logit_rows]

    def begin(self, batch: Batch) -> None:
        """``Forward.begin``."""
        self._take(batch)
        self.pool.begin(self.program)

    def finish(self) -> NDArray[np.float32]:
        """``Forward.finish``."""
        self.pool.finish()
        return self._logits[: self._logit_rows]

    def _take(self, batch: Batch) -> None:
        assert len(batch.tokens) <= self.max_rows
        assert len(batch.logit_rows) <= self.max_logit_rows
        assert len(batch.block_tables) >= len(self.cache.groups), "every KV group has its tables"
        self._record.fill(batch)
        self._logit_rows, self.hidden = len(batch.logit_rows), self._hidden[: len(batch.hidden_rows)]

    def argmax(self, logits: NDArray[np.float32], at: Sequence[int]) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """``sampling.Argmax`` of rows of the last step, found by its program already."""
        assert len(logits) <= self._logit_rows, "these are logits of another step"
        return self._best.of(at)

    def move(self, moves: Sequence[BlockMove]) -> None:
        """Moves blocks of the KV cache, one after another."""
        self.cache.move(moves)

    def close(self) -> None:
        """Ends the pool's threads."""
        self.pool.close()


UNITS_OF_PARTIALS = 8
"""Rows of the longest context that may be cut into splits in one step."""


def _check_sizes(spec: ModelSpec) -> None:
    """Raises UnsupportedModelError for unrotated keys and for sizes that the kernels' 16-lane vectors do not divide."""
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
    """The most that any kernel of the program needs of a worker's scratch."""
    isa = compiler.target.isa
    needs = [4 * scratch_floats(spec.attention.head_dim), 4 * max(spec.hidden_size, *spec.ffn_sizes) + 64]
    for node in nodes:
        if isinstance(node, Linear):
            form = source.tensors[node.weight.name].format
            if not form.is_float:
                needs.append(linear_scratch_bytes(PACKINGS[form.name], isa, node.weight.columns))
    return max(needs)
