"""The weights as the kernels read them: packed into panels at load, straight from the file's mapping.

Matrices are packed by the pool, all in one program. Afterwards the file's pages are dropped; only embedding rows are
still read from it, as their tokens come up.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from twofold.backends.cpu.kernels.embed import FLOAT_FORMATS
from twofold.backends.cpu.kernels.float_linear import FloatFormat, float_pack_kernel, float_panel_bytes
from twofold.backends.cpu.kernels.ir import Kernel
from twofold.backends.cpu.kernels.jit import Compiler
from twofold.backends.cpu.kernels.layout import PACKINGS, PANEL
from twofold.backends.cpu.kernels.pack import pack_kernel
from twofold.backends.cpu.kernels.signature import StepFields
from twofold.backends.cpu.kernels.thread_pool import KernelCall, Program, ThreadPool
from twofold.backends.cpu.memory import aligned_zeros
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
        self.packed_bytes = 0

    def format_of(self, ref: TensorRef) -> QuantFormat:
        return self._source.tensors[ref.name].format

    def raw_rows(self, ref: TensorRef) -> tuple[int, int]:
        """Address of the matrix's first value in the file's mapping, and bytes from row to row."""
        stored, data = self._source.tensors[ref.name], self._source.data(ref.name)
        self._owned.append(data)
        row_bytes = stored.format.row_bytes(stored.columns)
        return data.ctypes.data + ref.first_row * row_bytes + stored.format.row_bytes(ref.first_column), row_bytes

    def matrix(self, ref: TensorRef) -> PackedMatrix:
        """A matrix that ``pack`` was given."""
        return self._matrices[ref]

    def vector(self, ref: TensorRef) -> int:
        """Address of a vector as float32, padded with zeros to whole lines."""
        if ref not in self._vectors:
            values = self._floats(ref)
            padded = np.zeros(-(-len(values) // PANEL) * PANEL, np.float32)
            padded[: len(values)] = values
            self._vectors[ref] = padded
        return self._vectors[ref].ctypes.data

    def pack(self, refs: Iterable[TensorRef]) -> None:
        """Packs matrices, in parallel. Each may be named more than once."""
        wanted = [ref for ref in dict.fromkeys(refs) if ref not in self._matrices]
        sizes = [self._panel_bytes(ref) * panel_count(ref) for ref in wanted]
        address, owner = aligned_zeros(sum(sizes))
        self._owned.append(owner)
        self.packed_bytes += sum(sizes)
        operations = []
        for index, (ref, size) in enumerate(zip(wanted, sizes, strict=True)):
            matrix = PackedMatrix(self.format_of(ref), address, self._panel_bytes(ref), panel_count(ref), ref.columns)
            self._matrices[ref] = matrix
            operations.append(self._pack_operation(ref, matrix, last=index == len(wanted) - 1))
            address += size
        if operations:
            step = np.zeros(StepFields.SIZE, np.int64)
            step[StepFields.ONE] = 1
            self._pool.run(Program.of(operations, step))

    def _panel_bytes(self, ref: TensorRef) -> int:
        form = self.format_of(ref)
        if form.is_float:
            return float_panel_bytes(cast(FloatFormat, form.name), ref.columns)
        return PACKINGS[form.name].panel_bytes(ref.columns)

    def _pack_operation(self, ref: TensorRef, matrix: PackedMatrix, *, last: bool) -> KernelCall:
        form = matrix.format
        source, row_bytes = self.raw_rows(ref)
        units = ref.columns if form.is_float else ref.columns // PACKINGS[form.name].block
        args = (source, row_bytes, ref.rows, matrix.address, matrix.panel_bytes, units)
        kernel = self._compiler.named(f"pack_{form.name}", lambda: _pack_kernel(form.name))
        return KernelCall(kernel, np.array(args, np.int64), StepFields.ONE, matrix.panels, barrier=last)

    def _floats(self, ref: TensorRef) -> NDArray[np.float32]:
        form, data = self.format_of(ref), self._source.data(ref.name)
        if form.name not in FLOAT_FORMATS:
            raise UnsupportedModelError(
                f"The vector {ref.name} is stored as {form.name}; vectors must be F32, F16 or BF16.",
                hint="Convert the model again with a current converter.",
            )
        row: NDArray[np.float32] = as_float32(form, data).reshape(-1, self._source.tensors[ref.name].columns)[
            ref.first_row
        ]
        return row[ref.first_column : ref.first_column + ref.columns]


def _pack_kernel(name: str) -> Kernel:
    return pack_kernel(PACKINGS[name]) if name in PACKINGS else float_pack_kernel(cast(FloatFormat, name))


def panel_count(ref: TensorRef) -> int:
    return -(-ref.rows // PANEL)


def as_float32(form: QuantFormat, data: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Values of a float tensor."""
    if form.name == "F32":
        return data.view(np.float32)
    if form.name == "F16":
        return data.view(np.float16).astype(np.float32)
    return (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
