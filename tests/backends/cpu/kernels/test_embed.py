"""Embedding lookup against the plain meaning of every format, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from tests.backends.cpu.kernels.harness import Field, Floats, Machine, assert_same_bits, poisoned
from tests.backends.cpu.kernels.matrices import Matrix
from twofold.backends.cpu.kernels.embed import embed_kernel
from twofold.backends.cpu.kernels.layout import FLOAT_FORMATS, PACKINGS
from twofold.backends.cpu.kernels.signature import StepFields
from twofold.core.values import BY_NAME

SCALE = 25.298221588134766
TOKENS = np.array([5, 0, 6, 6, 3], np.int32)


def embed(machine: Machine, matrix: Matrix, scale: float, units: tuple[int, int] = (0, len(TOKENS))) -> Floats:
    fmt = BY_NAME[matrix.name]
    kernel = machine.kernel(("embed", fmt.name), lambda: embed_kernel(machine.isa, fmt.name))
    out = poisoned(len(TOKENS), matrix.columns + 3)
    blocks = matrix.columns // fmt.block_values
    args: list[Field] = [matrix.raw, fmt.row_bytes(matrix.columns), blocks, out, out.strides[0], scale]
    machine.run(kernel, args, units, {StepFields.TOKENS: TOKENS})
    assert np.isnan(out[:, matrix.columns :]).all()
    return out[:, : matrix.columns]


@pytest.mark.parametrize("scale", [1.0, SCALE])
@pytest.mark.parametrize("name", [*PACKINGS, *FLOAT_FORMATS])
def test_rows_are_what_the_format_means(machines: list[Machine], name: str, scale: float) -> None:
    matrix = Matrix.random(name, 7, 37 if BY_NAME[name].is_float else 512)
    wanted = matrix.values[TOKENS].astype(np.float32) * np.float32(scale)
    for machine in machines:
        np.testing.assert_array_equal(embed(machine, matrix, scale), wanted)


def test_units_are_rows(machine: Machine) -> None:
    matrix = Matrix.random("Q6_K", 7, 256)
    whole, part = embed(machine, matrix, 1.0), embed(machine, matrix, 1.0, (1, 3))
    assert np.isnan(part[[0, 3, 4]]).all()
    assert_same_bits(part[1:3].copy(), whole[1:3].copy())
