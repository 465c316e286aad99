"""From nodes to a program of kernel calls.

    forms     whether a result is needed as float32, as quantised activations, or as both
    buffers   a result's memory is allocated when it is computed, and reused after its last use
    barriers  only where an operation reads or overwrites what an unfinished one writes or reads

Each kind of node has a method here that chooses its kernel and the arguments.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from twofold.backends import graph
from twofold.backends.base import RunnerSizes
from twofold.backends.cpu.kernels import rows as row_kernels
from twofold.backends.cpu.kernels.attention import AttentionKernel
from twofold.backends.cpu.kernels.cache import CACHE_FIELDS, RotateSpec, rotate_kernel, store_values_kernel
from twofold.backends.cpu.kernels.embed import EMBED_FIELDS, embed_kernel
from twofold.backends.cpu.kernels.ir import Kernel
from twofold.backends.cpu.kernels.jit import Compiler
from twofold.backends.cpu.kernels.layout import PACKINGS, ActRow, ActSum, Packing
from twofold.backends.cpu.kernels.linear import FLOAT_LINEAR_FIELDS, LINEAR_FIELDS, Tiling, linear_kernel
from twofold.backends.cpu.kernels.logits import ARGMAX_FIELDS, argmax_kernel
from twofold.backends.cpu.kernels.rows import ROW_FIELDS
from twofold.backends.cpu.kernels.signature import StepFields
from twofold.backends.cpu.kernels.splits import ATTENTION_FIELDS, AttentionKernelSpec, merge_kernel
from twofold.backends.cpu.kernels.thread_pool import KernelCall, Program
from twofold.backends.cpu.logits import StepArgmax
from twofold.backends.cpu.memory import Buffer, BufferPool, KVCache
from twofold.backends.cpu.record import StepRecord
from twofold.backends.cpu.weights import PackedMatrix, WeightStore
from twofold.backends.graph import Node
from twofold.backends.kv_codes import key_factors
from twofold.core.kv_layout import INTEGER_TYPES
from twofold.core.model import RopeSpec
from twofold.models.ops import TensorRef, Wanted
from twofold.models.rope import rope_table

ATTENTION_PARTS = 64
"""Units of attention differ in length, so workers claim them nearly one by one."""
ROW_BLOCK_BYTES = 2 << 20
"""Quantised activations that are processed together: they should stay in the second-level cache."""
EVERYTHING = 1 << 30
"""A window that hides no position."""

COUNTED_BY: Final = {
    None: StepFields.ROWS,
    Wanted.LOGITS: StepFields.LOGIT_ROWS,
    Wanted.HIDDEN: StepFields.HIDDEN_ROWS,
}
"""The number of a node's rows, by its ``rows``."""
SELECTED_BY: Final[Mapping[Wanted | None, Literal[StepFields.LOGIT_LIST, StepFields.HIDDEN_LIST]]] = {
    Wanted.LOGITS: StepFields.LOGIT_LIST,
    Wanted.HIDDEN: StepFields.HIDDEN_LIST,
}
KernelChoice = tuple[str, Callable[[], Kernel]]
"""A kernel's name, and the function that generates it if its machine code is not in the cache."""


def float_bits(value: float) -> int:
    """The bits of a float32, as an 8-byte field holds them."""
    return int(struct.unpack("<I", struct.pack("<f", value))[0])


def record(names: Sequence[str], **values: int) -> NDArray[np.int64]:
    """A kernel's arguments in order; those that are not given are null."""
    unknown = values.keys() - set(names)
    assert not unknown, f"no such argument: {unknown}"
    return np.array([values.get(name, 0) for name in names], np.int64)


@dataclass(slots=True)
class OperationSchedule:
    """Operations in order, with barriers where they are needed."""

    operations: list[KernelCall] = field(default_factory=list)
    _read: set[int] = field(default_factory=set)
    _written: set[int] = field(default_factory=set)

    def add(self, operation: KernelCall, reads: set[int], writes: set[int]) -> None:
        """Appends an operation. Resources are numbers: addresses of buffers, or of a layer's cache."""
        if reads & self._written or writes & (self._written | self._read):
            self.operations[-1] = replace(self.operations[-1], barrier=True)
            self._read, self._written = set(), set()
        self.operations.append(replace(operation, barrier=False))
        self._read |= reads
        self._written |= writes

    def finish(self) -> list[KernelCall]:
        self.operations[-1] = replace(self.operations[-1], barrier=True)
        return self.operations


@dataclass(slots=True)
class _Result:
    """The buffers of a node's result, in the forms that are needed."""

    floats: Buffer | None = None
    acts: Buffer | None = None


class ProgramBuilder:
    """Builds the program of one model, whose kernels read ``record``."""

    def __init__(
        self, compiler: Compiler, weights: WeightStore, cache: KVCache, sizes: RunnerSizes, record: StepRecord
    ) -> None:
        self._compiler = compiler
        self._isa = compiler.target.isa
        self._weights = weights
        self._cache = cache
        self._sizes = sizes
        self._record = record
        self._pool = BufferPool()
        self._schedule = OperationSchedule()
        self._results: dict[Node, _Result] = {}
        self._tables: dict[RopeSpec, NDArray[np.float32]] = {}
        self._partials: dict[int, Buffer] = {}
        self._factors: dict[Node, NDArray[np.float32]] = {}
        self._as_floats: set[Node] = set()
        self._as_acts: defaultdict[Node, set[ActSum]] = defaultdict(set)
        self.kept: list[Any] = [self._pool, self._tables, self._factors]

    def build(
        self, nodes: Sequence[Node], logits: Node, hidden: Node, best: StepArgmax
    ) -> tuple[Program, Buffer, Buffer]:
        """The program, and the buffers of two nodes' results. ``best`` gets the largest of the logits."""
        assert {logits, hidden} <= set(nodes), "results are never fused into later nodes"
        self._choose_forms(nodes, results=(logits, hidden))
        self._choose_factors(nodes)
        last_use = {source: index for index, node in enumerate(nodes) for source in node.inputs()}
        for index, node in enumerate(nodes):
            self._results[node] = self._allocate(node)
            self._emit(node)
            for source in node.inputs():
                if last_use[source] == index:
                    self._release(source)
        result = self._floats(logits)
        for values in best.arguments(result.address, result.stride):
            args, writes = record(ARGMAX_FIELDS, **values), [values["ids"], values["values"]]
            self._call(("argmax", argmax_kernel), args, StepFields.LOGIT_ROWS, reads=[result.address], writes=writes)
        return Program.of(self._schedule.finish(), self._record.step), result, self._floats(hidden)

    # -- forms and buffers --------------------------------------------------------------------------------------------

    def _choose_forms(self, nodes: Sequence[Node], results: Sequence[Node]) -> None:
        self._as_floats.update(results)
        for node in nodes:
            for source in node.inputs():
                packing = self._packing(node.weight) if isinstance(node, graph.Linear) and source is node.x else None
                if packing is None:
                    self._as_floats.add(source)
                else:
                    self._as_acts[source].add(packing.act_sum)

    def _packing(self, ref: TensorRef) -> Packing | None:
        """The packing of integer weights."""
        return PACKINGS.get(self._weights.format_of(ref).name)

    def _act_row(self, node: Node) -> ActRow:
        return ActRow(node.width, frozenset(self._as_acts[node]))

    def _allocate(self, node: Node) -> _Result:
        rows = self._rows_of(node)
        both = isinstance(node, graph.Norm | graph.Gated)
        floats = node in self._as_floats or (node in self._as_acts and not both)
        return _Result(
            self._pool.take(rows, 4 * -(-node.width // 16) * 16) if floats else None,
            self._pool.take(rows, self._act_row(node).offset()) if node in self._as_acts else None,
        )

    def _rows_of(self, node: Node) -> int:
        return self._sizes.logit_rows if node.rows is Wanted.LOGITS else self._sizes.rows

    def _release(self, node: Node) -> None:
        rows, result = self._rows_of(node), self._results[node]
        for buffer in (result.floats, result.acts):
            if buffer is not None:
                self._pool.give(rows, buffer)

    def _floats(self, node: Node) -> Buffer:
        buffer = self._results[node].floats
        assert buffer is not None
        return buffer

    # -- operations ---------------------------------------------------------------------------------------------------

    def _emit(self, node: Node) -> None:
        emitters: dict[type[Node], Callable[[Any], None]] = {
            graph.Embed: self._embed,
            graph.Norm: self._norm,
            graph.Linear: self._linear,
            graph.Add: self._add,
            graph.Gated: self._gated,
            graph.Rotate: self._rotate,
            graph.StoreValues: self._store_values,
            graph.Attention: self._attention,
            graph.Select: self._select,
            graph.Softcap: self._softcap,
        }
        emitters[type(node)](node)
        result = self._results[node]
        if result.acts is not None and not isinstance(node, graph.Norm | graph.Gated):
            self._quantise(node, self._floats(node), result.acts)

    def _call(
        self,
        kernel: KernelChoice,
        args: NDArray[np.int64],
        source: int,
        *,
        reads: Sequence[int] = (),
        writes: Sequence[int],
        units: int = 1,
        quantum: int = 1,
        parts: int = 2,
    ) -> None:
        operation = KernelCall(self._compiler.named(*kernel), args, source, units, quantum, parts)
        self._schedule.add(operation, set(reads), set(writes))

    def _row_call(self, kernel: KernelChoice, node: Node, inputs: Sequence[Buffer], **values: int) -> None:
        """A kernel over rows: inputs x and y, results in the forms that are needed."""
        result = self._results[node]
        for name, buffer in zip(("x", "y"), inputs, strict=False):
            values |= {name: buffer.address, f"{name}_stride": buffer.stride}
        writes = []
        for name, stride, target in (("out", "out_stride", result.floats), ("acts", "act_stride", result.acts)):
            if target is not None and (name == "out" or isinstance(node, graph.Norm | graph.Gated)):
                values |= {name: target.address, stride: target.stride}
                writes.append(target.address)
        if result.acts is not None:
            values["sums"] = self._act_row(node).mask
        args = record(ROW_FIELDS, width=node.width, **values)
        self._call(kernel, args, COUNTED_BY[node.rows], reads=[b.address for b in inputs], writes=writes)

    def _quantise(self, node: Node, floats: Buffer, acts: Buffer) -> None:
        args = record(
            ROW_FIELDS, x=floats.address, x_stride=floats.stride, acts=acts.address, act_stride=acts.stride,
            sums=self._act_row(node).mask, width=node.width,
        )  # fmt: skip
        kernel = ("quantise", row_kernels.quantise_kernel)
        self._call(kernel, args, COUNTED_BY[node.rows], reads=[floats.address], writes=[acts.address])

    def _embed(self, node: graph.Embed) -> None:
        source, row_bytes = self._weights.raw_rows(node.table)
        form, out = self._weights.format_of(node.table), self._floats(node)
        args = record(
            EMBED_FIELDS, source=source, row_bytes=row_bytes, blocks=node.table.columns // form.block_values,
            out=out.address, out_stride=out.stride, scale=float_bits(node.scale),
        )  # fmt: skip
        kernel = (f"embed_{form.name}", lambda: embed_kernel(self._isa, form.name))
        self._call(kernel, args, COUNTED_BY[node.rows], writes=[out.address])

    def _norm(self, node: graph.Norm) -> None:
        inputs = [self._floats(node.x)] + ([self._floats(node.residual)] if node.residual else [])
        weight = self._weights.vector(node.weight)
        self._row_call(("rms_norm", row_kernels.norm_kernel), node, inputs, weight=weight, eps=float_bits(node.eps))

    def _gated(self, node: graph.Gated) -> None:
        kernel = (f"gated_{node.activation}", lambda: row_kernels.gated_kernel(node.activation))
        self._row_call(kernel, node, [self._floats(node.gate), self._floats(node.up)])

    def _add(self, node: graph.Add) -> None:
        self._row_call(("add", row_kernels.add_kernel), node, [self._floats(node.x), self._floats(node.y)])

    def _softcap(self, node: graph.Softcap) -> None:
        self._row_call(("softcap", row_kernels.softcap_kernel), node, [self._floats(node.x)], eps=float_bits(node.cap))

    def _select(self, node: graph.Select) -> None:
        wanted = SELECTED_BY[node.rows]
        kernel = (f"select_by_{wanted.name.lower()}", lambda: row_kernels.select_kernel(wanted))
        self._row_call(kernel, node, [self._floats(node.x)])

    def _linear(self, node: graph.Linear) -> None:
        matrix, out = self._weights.matrix(node.weight), self._floats(node)
        values = {
            "weights": matrix.address, "panel_bytes": matrix.panel_bytes, "out": out.address, "out_stride": out.stride,
            "row_count": int(COUNTED_BY[node.rows]),
        }  # fmt: skip
        reads = []
        if node.bias is not None:
            values["bias"] = self._weights.vector(node.bias)
        if node.residual is not None:
            values["residual"] = self._floats(node.residual).address
            reads.append(values["residual"])
        args, source = self._linear_args(node, matrix, values)
        name = matrix.format.name
        kernel = (f"linear_{name}", lambda: linear_kernel(self._isa, name))
        quantum = Tiling.of(self._isa).panels
        self._call(
            kernel, args, StepFields.ONE, units=matrix.panels, quantum=quantum,
            reads=[*reads, source], writes=[out.address],
        )  # fmt: skip

    def _linear_args(
        self, node: graph.Linear, matrix: PackedMatrix, values: dict[str, int]
    ) -> tuple[NDArray[np.int64], int]:
        """Arguments and the input's address, for packed codes or for floats."""
        if matrix.format.is_float:
            x = self._floats(node.x)
            args = record(FLOAT_LINEAR_FIELDS, x=x.address, x_stride=x.stride, columns=matrix.columns, **values)
            return args, x.address
        acts, packing = self._results[node.x].acts, PACKINGS[matrix.format.name]
        assert acts is not None
        rows = max(48, ROW_BLOCK_BYTES // acts.stride // 48 * 48)  # whole tiles of 12 and of 16 rows
        sums = self._act_row(node.x).offset(packing.act_sum)
        args = record(
            LINEAR_FIELDS, acts=acts.address, act_stride=acts.stride, act_sums=sums, chunks=matrix.columns // 32,
            row_block=rows, **values,
        )  # fmt: skip
        return args, acts.address

    # -- attention ----------------------------------------------------------------------------------------------------

    def _cache_args(self, layer: int) -> dict[str, int]:
        block = self._cache.block_of(layer)
        return {
            "cache": self._cache.layer_address(layer), "group": self._cache.group_of(layer),
            "block_bytes": block.nbytes, "head_bytes": block.head_bytes, "block_size": block.block_size,
        }  # fmt: skip

    def _choose_factors(self, nodes: Sequence[Node]) -> None:
        """Factors of keys that become integers, and of their queries, by the biases or norms of both."""
        if self._cache.dtype not in INTEGER_TYPES:
            return
        queries = {node.layer: node.q for node in nodes if isinstance(node, graph.Attention)}
        for node in nodes:
            if not isinstance(node, graph.Rotate) or node.store is None:
                continue
            query = queries[node.store]
            assert isinstance(query, graph.Rotate)
            key_sizes, query_sizes, norm = self._sizes_of(node), self._sizes_of(query), node.norm is not None
            if key_sizes is None or query_sizes is None or norm != (query.norm is not None):
                continue
            factors = key_factors(key_sizes, query_sizes, node.rope, norm=norm)
            self._factors[node] = (1 / factors).astype(np.float32)
            self._factors[query] = np.repeat(factors, query.heads // node.heads, axis=0)

    def _sizes_of(self, node: graph.Rotate) -> NDArray[np.float32] | None:
        """Weights of the norm of rotated heads, or without one the bias before: [heads, head_dim]."""
        if node.norm is not None:
            return np.tile(self._weights.floats(node.norm), (node.heads, 1))
        if not isinstance(node.x, graph.Linear) or node.x.bias is None:
            return None
        return self._weights.floats(node.x.bias).reshape(node.heads, -1)

    def _rotate(self, node: graph.Rotate) -> None:
        x = self._floats(node.x)
        spec = RotateSpec(
            node.width // node.heads, node.rope.dims, node.rope.pairs, node.norm is not None,
            "row" if node.store is None else "keys", self._cache.dtype, node in self._factors,
        )  # fmt: skip
        values = {"x": x.address, "x_stride": x.stride, "heads": node.heads, "eps": float_bits(node.eps)}
        values["table"] = self._table(node.rope).ctypes.data
        if node.norm is not None:
            values["weight"] = self._weights.vector(node.norm)
        if node in self._factors:
            values["factors"] = self._factors[node].ctypes.data
        if node.store is None:
            out = self._floats(node)
            values |= {"out": out.address, "out_stride": out.stride}
            writes = out.address
        else:
            values |= self._cache_args(node.store)
            writes = values["cache"]
        kernel = (spec.name, lambda: rotate_kernel(spec, self._isa))
        self._call(kernel, record(CACHE_FIELDS, **values), COUNTED_BY[node.rows], reads=[x.address], writes=[writes])

    def _table(self, rope: RopeSpec) -> NDArray[np.float32]:
        if rope not in self._tables:
            self._tables[rope] = np.ascontiguousarray(rope_table(rope, self._sizes.context))
        return self._tables[rope]

    def _store_values(self, node: graph.StoreValues) -> None:
        block, x = self._cache.block_of(node.layer), self._floats(node.values)
        args = record(CACHE_FIELDS, x=x.address, x_stride=x.stride, heads=node.heads, **self._cache_args(node.layer))
        kernel = (
            f"store_values_{block.head_dim}_{block.dtype}",
            lambda: store_values_kernel(block.head_dim, block.dtype, self._isa),
        )
        # Keys and values of a layer lie apart, so they are stored in any order: values are the resource address + 1.
        cache = self._cache.layer_address(node.layer)
        self._call(kernel, args, COUNTED_BY[node.rows], reads=[x.address], writes=[cache + 1])

    def _attention(self, node: graph.Attention) -> None:
        spec, out, q = node.spec, self._floats(node), self._floats(node.q)
        kernel_spec = AttentionKernelSpec(
            spec.head_dim, spec.heads // spec.kv_heads, self._cache.dtype, spec.softcap is not None
        )
        items = self._record.items[spec.heads, spec.kv_heads]
        partials = self._partial_buffer(4 * spec.heads * kernel_spec.partial_floats)
        cache = self._cache.layer_address(node.layer)
        args = record(
            ATTENTION_FIELDS,
            q=q.address, q_stride=q.stride, out=out.address, out_stride=out.stride, kv_heads=spec.kv_heads,
            scale=float_bits(spec.score_scale), window=spec.window or EVERYTHING,
            softcap=float_bits(spec.softcap or 0.0), partials=partials.address, items=items.items.ctypes.data,
            merges=items.merges.ctypes.data, **self._cache_args(node.layer),
        )  # fmt: skip
        kernel = (kernel_spec.name, lambda: AttentionKernel(kernel_spec, self._isa).generate())
        self._call(
            kernel, args, items.count_field, units=spec.kv_heads, parts=ATTENTION_PARTS,
            reads=[q.address, cache, cache + 1], writes=[out.address, partials.address],
        )  # fmt: skip
        merge = (kernel_spec.merge_name, lambda: merge_kernel(kernel_spec))
        self._call(merge, args, items.count_field + 1, units=spec.heads, reads=[partials.address], writes=[out.address])

    def _partial_buffer(self, nbytes: int) -> Buffer:
        """Slots of ``nbytes`` for the partials of a row's heads, which all layers of that size use in turn."""
        if nbytes not in self._partials:
            self._partials[nbytes] = self._pool.take(self._record.partials, nbytes)
        return self._partials[nbytes]
