"""Matrices for the tests of linear layers: raw rows, their float64 meaning, and panels packed by the kernel."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tests.backends.cpu.kernels.harness import Bytes, Field, Floats, Machine, aligned, poisoned
from tests.support.quantize import random_rows
from twofold.backends.cpu.kernels.layout import (
    ACT_SUMS,
    CHUNK,
    PACKINGS,
    PANEL,
    ActRow,
    ActSum,
    pack_kernel,
    panel_bytes,
)
from twofold.backends.cpu.kernels.linear import linear_kernel
from twofold.backends.cpu.kernels.signature import StepFields
from twofold.backends.dequantize import dequantize
from twofold.core.values import BY_NAME

ROW_BLOCK = 24
GUARD = 16
"""Floats after the outputs of a row that no kernel may touch."""


@dataclass(frozen=True)
class Matrix:
    """``outputs`` × ``columns`` weights: ``raw`` as in a file, ``values`` what they mean."""

    name: str
    outputs: int
    columns: int
    raw: Bytes
    values: NDArray[np.float64]

    @staticmethod
    def random(name: str, outputs: int, columns: int, seed: int = 0) -> Matrix:
        fmt = BY_NAME[name]
        raw = random_rows(fmt, outputs, columns, np.random.default_rng(seed))
        return Matrix(name, outputs, columns, raw, dequantize(raw, fmt, columns).astype(np.float64))

    @property
    def panels(self) -> int:
        return -(-self.outputs // PANEL)

    def pack(self, machine: Machine) -> tuple[Bytes, int]:
        """Panels, and the bytes of one."""
        fmt = BY_NAME[self.name]
        kernel = machine.kernel(("pack", self.name), lambda: pack_kernel(self.name))
        size = panel_bytes(self.name, self.columns)
        packed = aligned(self.panels * size)
        blocks = self.columns // fmt.block_values
        units = (0, self.panels)
        machine.run(kernel, [self.raw, fmt.row_bytes(self.columns), self.outputs, packed, size, blocks], units)
        return packed, size


@dataclass(frozen=True)
class QuantisedRows:
    """Activations as the linear kernels read them, and what they mean."""

    data: Bytes
    values: NDArray[np.float64]
    layout: ActRow

    @staticmethod
    def of(x: Floats, sums: Collection[ActSum] = ACT_SUMS) -> QuantisedRows:
        rows, columns = x.shape
        groups = x.reshape(rows, -1, CHUNK)
        scales = (np.abs(groups).max(axis=-1) / np.float32(127)).astype(np.float32)
        codes = np.rint(groups / scales[..., None]).astype(np.int8)
        parts = [
            codes.reshape(rows, -1),
            scales,
            *(act_sums(codes, scales, *each) for each in ACT_SUMS if each in sums),
        ]
        data = np.concatenate([part.view(np.uint8).reshape(rows, -1) for part in parts], axis=1)
        layout = ActRow(columns, frozenset(sums))
        assert data.shape[1] == layout.offset()
        values = codes.astype(np.float64) * scales[..., None].astype(np.float64)
        return QuantisedRows(np.ascontiguousarray(data), values.reshape(rows, -1), layout)


def act_sums(codes: NDArray[np.signedinteger], scales: Floats, group: int, offset: int) -> NDArray[np.generic]:
    """The sums of groups of codes [rows, groups] that a format with this group and offset needs."""
    totals: NDArray[np.int32] = codes.reshape(len(codes), -1, group).sum(axis=-1, dtype=np.int32)
    return totals * np.int32(-offset) if offset else totals.astype(np.float32) * scales.repeat(CHUNK // group, axis=1)


@dataclass(frozen=True)
class Extras:
    """What a linear call may add: bias [panels · 16], residual [rows, panels · 16 + GUARD]."""

    bias: Floats | None = None
    residual: Floats | None = None


def linear(
    machine: Machine,
    matrix: Matrix,
    acts: QuantisedRows,
    units: tuple[int, int] | None = None,
    extras: Extras | None = None,
    row_block: int = ROW_BLOCK,
) -> Floats:
    """[rows, panels · 16 + GUARD]; NaN where the kernel wrote nothing."""
    kernel = machine.kernel(("linear", matrix.name), lambda: linear_kernel(machine.isa, matrix.name))
    packed, size = matrix.pack(machine)
    rows, extras = len(acts.data), extras or Extras()
    out = poisoned(rows, matrix.panels * PANEL + GUARD)
    tail: list[Field] = [out, out.strides[0], _or_null(extras.bias), _or_null(extras.residual), int(StepFields.ROWS)]
    sums = acts.layout.offset(PACKINGS[matrix.name].act_sum)
    machine.run(
        kernel,
        [acts.data, acts.data.shape[1], sums, packed, size, matrix.columns // CHUNK, *tail, row_block],
        units or (0, matrix.panels),
        {StepFields.ROWS: rows},
    )
    return out


def float_linear(
    machine: Machine,
    matrix: Matrix,
    x: Floats,
    units: tuple[int, int] | None = None,
    extras: Extras | None = None,
) -> Floats:
    """The same for unquantised weights."""
    kernel = machine.kernel(("linear", matrix.name), lambda: linear_kernel(machine.isa, matrix.name))
    packed, size = matrix.pack(machine)
    rows, extras = len(x), extras or Extras()
    out = poisoned(rows, matrix.panels * PANEL + GUARD)
    tail: list[Field] = [out, out.strides[0], _or_null(extras.bias), _or_null(extras.residual), int(StepFields.ROWS)]
    machine.run(
        kernel,
        [x, x.strides[0], packed, size, matrix.columns, *tail],
        units or (0, matrix.panels),
        {StepFields.ROWS: rows},
    )
    return out


def _or_null(array: Floats | None) -> Floats | int:
    return 0 if array is None else array


def rows_of(count: int, columns: int, seed: int) -> Floats:
    return np.random.default_rng(seed).standard_normal((count, columns)).astype(np.float32)


def assert_close(out: Floats, x: NDArray[np.floating], matrix: Matrix, bound: float) -> None:
    """Outputs equal x · Wᵀ to ``bound`` times Σ |x| · |w|; outputs past the matrix are 0, the guard is untouched."""
    error = np.abs(out[:, : matrix.outputs] - x @ matrix.values.T)
    size = np.abs(x) @ np.abs(matrix.values).T
    assert (error <= bound * size).all(), f"error up to {(error / size).max():.1e} of the terms' size"
    last = matrix.panels * PANEL
    assert (out[:, matrix.outputs : last] == 0).all()
    assert np.isnan(out[:, last:]).all()
