"""Linear layers from integer weights against float64, and bit for bit against themselves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.backends.cpu.kernels.harness import Bytes, Floats, Machine, assert_same_bits
from tests.backends.cpu.kernels.matrices import GUARD, Extras, Matrix, QuantisedRows, assert_close, linear, rows_of
from twofold.backends.cpu.kernels.layout import CHUNK, PACKINGS, PANEL

Codes = NDArray[np.int32]

ROWS = (1, 2, 3, 7, 8, 11, 12, 13, 16, 17, 22, 31)
OUTPUTS = (1, 15, 16, 17, 48, 97)
COLUMNS = (32, 96, 64, 256, 512, 1536)
ON_EVERY_MACHINE = ("Q8_0", "Q3_K", "Q4_K")
"""Between them: 8-bit codes, groups of 16, super-blocks. The best machine has all formats."""


def sizes(name: str) -> list[tuple[int, int, int]]:
    """Rows, outputs, columns: every row count once, every output count and every number of columns that fits."""
    offset = list(PACKINGS).index(name)
    columns = [c for c in COLUMNS if c % PACKINGS[name].block == 0]
    return [
        (rows, OUTPUTS[(i + offset) % len(OUTPUTS)], columns[(i * 5 + offset) % len(columns)])
        for i, rows in enumerate(ROWS)
    ]


@pytest.mark.parametrize("name", PACKINGS)
def test_close_to_float64(machine: Machine, name: str) -> None:
    for rows, outputs, columns in sizes(name):
        matrix = Matrix.random(name, outputs, columns, seed=rows)
        acts = QuantisedRows.of(rows_of(rows, columns, seed=outputs))
        assert_close(linear(machine, matrix, acts), acts.values, matrix, bound=3e-6)


def read_q8_0(raw: Bytes) -> tuple[Codes, Floats, Floats]:
    blocks = raw.reshape(len(raw), -1, 34)
    scales = blocks[:, :, :2].copy().view(np.float16).astype(np.float32)[..., 0]
    return blocks[:, :, 2:].view(np.int8).astype(np.int32), scales, np.zeros_like(scales)


def read_q4_1(raw: Bytes) -> tuple[Codes, Floats, Floats]:
    blocks = raw.reshape(len(raw), -1, 20)
    numbers = blocks[:, :, :4].copy().view(np.float16).astype(np.float32)
    codes = np.concatenate([blocks[:, :, 4:] & 15, blocks[:, :, 4:] >> 4], axis=2).astype(np.int32)
    return codes, numbers[..., 0], numbers[..., 1]


@pytest.mark.parametrize(("name", "read"), [("Q8_0", read_q8_0), ("Q4_1", read_q4_1)])
def test_the_arithmetic_is_that_of_the_contract_to_the_bit(
    machine: Machine, name: str, read: Callable[[Bytes], tuple[Codes, Floats, Floats]]
) -> None:
    """The sums of a multiply-add are rounded to float64 first, which changes no float32 of these."""
    matrix = Matrix.random(name, 48, 256)
    acts = QuantisedRows.of(rows_of(19, 256, seed=1))
    act_codes = acts.data[:, :256].view(np.int8).reshape(19, -1, CHUNK).astype(np.int32)
    act_scales = acts.data[:, 256 : 256 + 32].copy().view(np.float32)
    codes, scales, minima = read(matrix.raw)
    acc = np.zeros((19, 48), np.float32)
    for group in range(256 // CHUNK):
        act_scale = act_scales[:, group, None]
        dots = (act_codes[:, group] @ codes[:, group].T).astype(np.float32)
        acc = fma(dots * scales[:, group], act_scale, acc)
        total = act_codes[:, group].sum(axis=1, keepdims=True).astype(np.float32) * act_scale
        acc = fma(minima[:, group], total, acc)
    assert_same_bits(linear(machine, matrix, acts)[:, :48].copy(), acc)


def fma(a: Floats, b: Floats, c: Floats) -> Floats:
    result: Floats = (a.astype(np.float64) * b + c).astype(np.float32)
    return result


@pytest.mark.parametrize("name", ON_EVERY_MACHINE)
def test_every_instruction_set_gives_the_same_bits(machines: list[Machine], name: str) -> None:
    for rows, outputs, columns in sizes(name)[::2]:
        matrix = Matrix.random(name, outputs, columns, seed=rows)
        acts = QuantisedRows.of(rows_of(rows, columns, seed=outputs))
        first = linear(machines[0], matrix, acts)
        for machine in machines[1:]:
            assert_same_bits(linear(machine, matrix, acts), first)


@pytest.mark.parametrize("name", ["Q4_0", "Q4_K", "Q6_K"])
def test_a_row_does_not_depend_on_its_company(machine: Machine, name: str) -> None:
    matrix = Matrix.random(name, 97, 512)
    x = rows_of(61, 512, seed=1)
    alone = np.concatenate([linear(machine, matrix, QuantisedRows.of(x[i : i + 1])) for i in range(len(x))])
    for first, last in ((0, 61), (3, 5), (10, 21), (30, 42), (2, 21)):
        for row_block in (12, 24, 1000):
            together = linear(machine, matrix, QuantisedRows.of(x[first:last]), row_block=row_block)
            assert_same_bits(together, alone[first:last])


@pytest.mark.parametrize("name", ON_EVERY_MACHINE)
def test_unpacking_panels_first_leaves_the_bits_alone(machine: Machine, name: str, kernel_cache: Path) -> None:
    matrix = Matrix.random(name, 97, 512)
    acts = QuantisedRows.of(rows_of(61, 512, seed=2))
    packed, unpacked = (Machine(replace(machine.isa, unpacks=unpacks), kernel_cache) for unpacks in (False, True))
    for row_block in (24, 1000):
        expected = linear(packed, matrix, acts, row_block=row_block)
        assert_same_bits(linear(unpacked, matrix, acts, row_block=row_block), expected)


@pytest.mark.parametrize("rows", [1, 19])
def test_units_can_be_split_anywhere(machine: Machine, rows: int) -> None:
    matrix = Matrix.random("Q5_K", 97, 256)
    acts = QuantisedRows.of(rows_of(rows, 256, seed=2))
    whole = linear(machine, matrix, acts)
    for cut in range(matrix.panels + 1):
        left, right = linear(machine, matrix, acts, (0, cut)), linear(machine, matrix, acts, (cut, matrix.panels))
        at = cut * PANEL
        assert np.isnan(left[:, at:]).all()
        assert np.isnan(right[:, :at]).all()
        assert_same_bits(np.concatenate([left[:, :at], right[:, at:]], axis=1), whole)


@pytest.mark.parametrize("rows", [1, 18])
def test_bias_and_residual_are_added_in_this_order(machine: Machine, rows: int) -> None:
    matrix = Matrix.random("Q4_1", 33, 64)
    acts = QuantisedRows.of(rows_of(rows, 64, seed=3))
    bias, residual = rows_of(1, 48, seed=4)[0], rows_of(rows, 48 + GUARD, seed=5)
    plain = linear(machine, matrix, acts)[:, :48]
    both = linear(machine, matrix, acts, extras=Extras(bias, residual))[:, :48]
    assert_same_bits(both, (plain + bias) + residual[:, :48])
    assert_same_bits(linear(machine, matrix, acts, extras=Extras(bias))[:, :48], plain + bias)
    assert_same_bits(linear(machine, matrix, acts, extras=Extras(None, residual))[:, :48], plain + residual[:, :48])


def test_extreme_codes_do_not_saturate(machines: list[Machine]) -> None:
    """Every weight code 255 against activations of ±127: the largest sums there are."""
    raw = np.full((16, 34 * 8), 0x7F, np.uint8).reshape(16, 8, 34)
    raw[:, :, :2] = np.frombuffer(np.float16(0.01).tobytes(), np.uint8)
    matrix = Matrix("Q8_0", 16, 256, raw.reshape(16, -1), np.full((16, 256), 127 * float(np.float16(0.01))))
    acts = QuantisedRows.of(np.concatenate([np.ones((1, 256)), -np.ones((1, 256))]).astype(np.float32))
    for machine in machines:
        assert_close(linear(machine, matrix, acts), acts.values, matrix, bound=3e-6)
