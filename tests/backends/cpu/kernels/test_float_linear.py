"""Linear layers from float weights: exactly the documented sum, k ascending, one fused multiply-add at a time."""

from __future__ import annotations

import numpy as np
import pytest

from tests.backends.cpu.kernels.harness import Machine, assert_same_bits
from tests.backends.cpu.kernels.matrices import GUARD, Extras, Matrix, assert_close, float_linear, rows_of
from twofold.backends.cpu.kernels.layout import FLOAT_FORMATS, PANEL

SIZES = [(1, 97, 1), (2, 64, 3), (3, 1, 33), (5, 15, 17), (6, 17, 64), (7, 80, 100), (13, 129, 31), (31, 48, 7)]
"""Rows, outputs, columns."""


@pytest.mark.parametrize("name", FLOAT_FORMATS)
def test_close_to_float64(machine: Machine, name: str) -> None:
    for rows, outputs, columns in SIZES:
        matrix, x = Matrix.random(name, outputs, columns), rows_of(rows, columns, seed=rows)
        assert_close(float_linear(machine, matrix, x), x.astype(np.float64), matrix, bound=1e-6)


def test_the_sum_runs_over_ascending_k_with_one_rounding_each(machine: Machine) -> None:
    """A float64 product of float32 numbers is exact, and so are these sums of small integers, until rounded."""
    matrix, x = Matrix.random("F32", 17, 40), rows_of(3, 40, seed=1)
    weights = np.round(matrix.values * 64) / 64
    exact = Matrix("F32", 17, 40, weights.astype(np.float32).view(np.uint8), weights)
    x = np.round(x * 64) / 64 * np.float32(2) ** np.arange(-20, 20, dtype=np.float32)
    acc = np.zeros((3, 17), np.float32)
    for k in range(40):
        acc = (x[:, k, None].astype(np.float64) * weights[None, :, k] + acc).astype(np.float32)
    assert_same_bits(float_linear(machine, exact, x)[:, :17].copy(), acc)


@pytest.mark.parametrize("name", FLOAT_FORMATS)
def test_every_instruction_set_gives_the_same_bits(machines: list[Machine], name: str) -> None:
    for rows, outputs, columns in SIZES:
        matrix, x = Matrix.random(name, outputs, columns), rows_of(rows, columns, seed=rows)
        first = float_linear(machines[0], matrix, x)
        for machine in machines[1:]:
            assert_same_bits(float_linear(machine, matrix, x), first)


def test_company_and_units_change_nothing(machine: Machine) -> None:
    matrix, x = Matrix.random("BF16", 97, 70), rows_of(13, 70, seed=2)
    whole = float_linear(machine, matrix, x)
    for rows in (1, 2, 5, 6, 12):
        assert_same_bits(float_linear(machine, matrix, x[:rows]), whole[:rows])
    for cut in range(matrix.panels + 1):
        left = float_linear(machine, matrix, x, (0, cut))
        right = float_linear(machine, matrix, x, (cut, matrix.panels))
        at = cut * PANEL
        assert np.isnan(left[:, at:]).all()
        assert_same_bits(np.concatenate([left[:, :at], right[:, at:]], axis=1), whole)


def test_bias_and_residual(machine: Machine) -> None:
    matrix, x = Matrix.random("F16", 30, 20), rows_of(7, 20, seed=3)
    bias, residual = rows_of(1, 32, seed=4)[0], rows_of(7, 32 + GUARD, seed=5)
    plain = float_linear(machine, matrix, x)[:, :32]
    both = float_linear(machine, matrix, x, extras=Extras(bias, residual))[:, :32]
    assert_same_bits(both, (plain + bias) + residual[:, :32])


def test_half_precision_weights_are_widened_exactly(machines: list[Machine]) -> None:
    """Every finite float16, subnormals and −0 included, times 1."""
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    halves = halves[np.isfinite(halves)]
    column = halves[:, None].copy()
    matrix = Matrix("F16", len(halves), 1, column.view(np.uint8), column.astype(np.float64))
    for machine in machines:
        out = float_linear(machine, matrix, np.ones((1, 1), np.float32))
        np.testing.assert_array_equal(out[0, : len(halves)], halves.astype(np.float32))
