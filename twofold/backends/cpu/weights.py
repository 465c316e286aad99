"""The weights as the kernels read them: packed into panels at load, straight from the file's mapping.

The pool packs all matrices in one program, in the order of the file, while the system reads the file ahead of it.
Afterwards the file's pages are dropped; only rows of embeddings are read from it later, when their tokens occur.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import wait
from contextlib import contextmanager
from dataclasses import dataclass
from operator import mul

import numpy as np
from numpy.typing import NDArray

from twofold.backends.cpu.kernels.jit import Compiler
from twofold.backends.cpu.kernels.layout import PANEL, pack_kernel, panel_bytes
from twofold.backends.cpu.kernels.signature import StepFields
from twofold.backends.cpu.kernels.thread_pool import KernelCall, Program, ThreadPool
from twofold.backends.cpu.memory import aligned_zeros
from twofold.backends.dequantize import dequantize
from twofold.core.background import in_background
from twofold.core.errors import UnsupportedModelError
from twofold.core.values import QuantFormat
from twofold.formats.base import ModelFile
from twofold.models.ops import TensorRef


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """A matrix in panels at ``address``."""

    format: QuantFormat
    address: int
    panel_bytes: int
    panels: int
    columns: int


class WeightStore:
    """All weights of a model, each packed once. Keep it as long as programs use its addresses."""

    def __init__(self, source: ModelFile, compiler: Compiler, pool: ThreadPool) -> None:
        self._source = source
        self._compiler = compiler
        self._pool = pool
        self._matrices: dict[TensorRef, PackedMatrix] = {}
        self._vectors: dict[TensorRef, NDArray[np.float32]] = {}
        self._owned: list[NDArray[np.uint8]] = []

    def format_of(self, ref: TensorRef) -> QuantFormat:
        return self._source.tensors[ref.name].format

    def raw_rows(self, ref: TensorRef) -> tuple[int, int]:
        """Address of the matrix's first value in the file's mapping, and bytes from row to row."""
        stored, data = self._source.tensors[ref.name], self._source.data(ref.name)
        self._owned.append(data)
        row_bytes = stored.format.row_bytes(stored.columns)
        return data.ctypes.data + ref.first_row * row_bytes + stored.format.row_bytes(ref.first_column), row_bytes

    def matrix(self, ref: TensorRef) -> PackedMatrix:
        """A matrix that ``packing`` was given; its address is known before it is packed."""
        return self._matrices[ref]

    def vector(self, ref: TensorRef) -> int:
        """Address of a vector as float32, padded with zeros to whole lines."""
        if ref not in self._vectors:
            values = self.floats(ref)
            padded = np.zeros(-(-len(values) // PANEL) * PANEL, np.float32)
            padded[: len(values)] = values
            self._vectors[ref] = padded
        return self._vectors[ref].ctypes.data

    @contextmanager
    def packing(self, refs: Iterable[TensorRef]) -> Iterator[None]:
        """Packs matrices on all threads of the pool while the caller does something else; it must not use the pool.

        All are packed when the context ends without an error. Each may be named more than once.
        """
        program = self._pack_program(refs)
        if program is None:
            yield
            return
        ahead = in_background(self._source.read_ahead)
        packed = in_background(lambda: self._pool.run(program))
        try:
            yield
            packed.result()
        except BaseException:
            program.step[StepFields.ONE] = 0  # operations that have not begun have no units, so it ends soon
            wait([packed])
            raise
        ahead.result()

    def _pack_program(self, refs: Iterable[TensorRef]) -> Program | None:
        """Allocates the panels of matrices that have none. Returns the program that packs them, or None without any."""
        new = [ref for ref in dict.fromkeys(refs) if ref not in self._matrices]
        wanted = sorted(new, key=lambda ref: self.raw_rows(ref)[0])
        sizes = [panel_bytes(self.format_of(ref).name, ref.columns) for ref in wanted]
        counts = [-(-ref.rows // PANEL) for ref in wanted]
        address, owner = aligned_zeros(sum(map(mul, sizes, counts)))
        self._owned.append(owner)
        operations = []
        for ref, size, count in zip(wanted, sizes, counts, strict=True):
            matrix = PackedMatrix(self.format_of(ref), address, size, count, ref.columns)
            self._matrices[ref] = matrix
            operations.append(self._pack_operation(ref, matrix, last=ref is wanted[-1]))
            address += size * count
        step = np.zeros(StepFields.SIZE, np.int64)
        step[StepFields.ONE] = 1
        return Program.of(operations, step) if operations else None

    def _pack_operation(self, ref: TensorRef, matrix: PackedMatrix, *, last: bool) -> KernelCall:
        form = matrix.format
        source, row_bytes = self.raw_rows(ref)
        units = ref.columns // form.block_values
        args = (source, row_bytes, ref.rows, matrix.address, matrix.panel_bytes, units)
        kernel = self._compiler.named(f"pack_{form.name}", lambda: pack_kernel(form.name))
        return KernelCall(kernel, np.array(args, np.int64), StepFields.ONE, matrix.panels, barrier=last)

    def floats(self, ref: TensorRef) -> NDArray[np.float32]:
        """A vector as float32."""
        stored = self._source.tensors[ref.name]
        form = stored.format
        if not form.is_float:
            raise UnsupportedModelError(
                f"The vector {ref.name} is stored as {form.name}; vectors must be F32, F16 or BF16.",
                hint="Convert the model again with a current converter.",
            )
        row: NDArray[np.float32] = dequantize(self._source.data(ref.name), form, stored.columns)[ref.first_row]
        return row[ref.first_column : ref.first_column + ref.columns]
