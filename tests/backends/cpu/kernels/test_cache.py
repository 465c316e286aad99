"""Kernels that fill the paged cache: rotations, norms of heads, stores; where everything lands, and what stays."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.backends.cpu.kernels.harness import Field, Floats, Machine, assert_same_bits, poisoned
from tests.backends.cpu.kernels.paged import PagedLayer, loaded, of_bfloat16, shape_of, stored
from twofold.backends.cpu.kernels.cache import CACHE_FIELDS, RotateSpec, rotate_kernel, store_values_kernel
from twofold.backends.cpu.kernels.signature import StepFields
from twofold.backends.kv_codes import finite, spread
from twofold.core.kv_layout import INTEGER_TYPES, KVType
from twofold.core.model import RopePairs

HEADS, GUARD, EPS = 2, 16, 1e-5
STARTS = ((14, 4), (0, 1), (46, 3))
"""First position and rows of each sequence; rows cross tiles and blocks."""
POSITIONS = np.concatenate([np.arange(a, a + n, dtype=np.int32) for a, n in STARTS])
OWNERS = np.repeat(np.arange(len(STARTS), dtype=np.int32), [n for _, n in STARTS])
ROWS = len(POSITIONS)

SPECS = [
    RotateSpec(64, 64, "halves", False, "keys", "f16"),
    RotateSpec(64, 64, "adjacent", False, "keys", "f16"),
    RotateSpec(80, 80, "halves", True, "keys", "f32"),
    RotateSpec(80, 20, "adjacent", False, "keys", "f32"),
    RotateSpec(96, 48, "halves", True, "keys", "f16"),
    RotateSpec(128, 32, "adjacent", True, "keys", "f16"),
    RotateSpec(16, 16, "halves", False, "keys", "f32"),
    RotateSpec(256, 256, "halves", True, "keys", "f16"),
    RotateSpec(64, 64, "halves", False, "keys", "bf16"),
    RotateSpec(80, 20, "adjacent", True, "keys", "bf16"),
    RotateSpec(64, 64, "halves", False, "keys", "q8"),
    RotateSpec(80, 20, "adjacent", True, "keys", "q8"),
    RotateSpec(128, 128, "halves", True, "keys", "k8v4"),
    RotateSpec(64, 64, "adjacent", False, "keys", "q8", factors=True),
]


def row_target(spec: RotateSpec) -> RotateSpec:
    return RotateSpec(spec.head_dim, spec.rope_dims, spec.pairs, spec.norm, "row", spec.dtype, spec.factors)


class Rows:
    """Rows on their way from the projection to the cache."""

    def __init__(self, head_dim: int, rope_dims: int, dtype: KVType, block_size: int = 16, size: float = 1.0) -> None:
        rng = np.random.default_rng(5)
        self.head_dim = head_dim
        self.x = (rng.standard_normal((ROWS, HEADS, head_dim)) * size).astype(np.float32)
        self.table = rng.standard_normal((64, 2, max(2, rope_dims) // 2)).astype(np.float32)
        self.weight = rng.standard_normal(head_dim).astype(np.float32)
        self.factors = np.exp2(rng.integers(-6, 7, (HEADS, head_dim))).astype(np.float32)
        self.out = poisoned(ROWS, HEADS * head_dim + GUARD)
        self.layer = PagedLayer(shape_of(HEADS, head_dim, dtype, block_size), [a + n for a, n in STARTS])
        self.before = self.layer.elements.copy()

    def rotate(self, machine: Machine, spec: RotateSpec, cuts: tuple[int, ...] = ()) -> Floats:
        """Runs the kernel; the rows it wrote, if it is one that writes rows."""
        kernel = machine.kernel(spec, lambda: rotate_kernel(spec, machine.isa))
        for units in pairwise((0, *cuts, ROWS)):
            machine.run(kernel, self._record(), units, self._step())
        width = HEADS * self.head_dim
        assert np.isnan(self.out[:, width:]).all()
        return self.out[:, :width].reshape(ROWS, HEADS, self.head_dim).copy()

    def store(self, machine: Machine, units: tuple[int, int] = (0, ROWS)) -> None:
        dtype = self.layer.shape.dtype
        key = ("store", self.head_dim, dtype)
        kernel = machine.kernel(key, lambda: store_values_kernel(self.head_dim, dtype, machine.isa))
        machine.run(kernel, self._record(), units, self._step())

    def stored(self, *, keys: bool) -> NDArray[np.generic]:
        """The numbers in the cache where the rows belong: [row, head, head_dim]. All else must be as it was."""
        return loaded(self.elements(keys=keys), self.layer.shape.dtype, 0 if keys else 1)

    def elements(self, *, keys: bool) -> NDArray[np.generic]:
        """What the cache holds where the rows belong: [row, head, elements]. All else must be as it was."""
        part = 0 if keys else 1
        found = []
        restored = PagedLayer(self.layer.shape, [a + n for a, n in STARTS])
        np.testing.assert_array_equal(restored.elements, self.before)
        for sequence, (first, rows) in enumerate(STARTS):
            elements = self.layer.read(sequence, first + rows, part)
            found.append(elements[first:])
            before = restored.read(sequence, first + rows, part)
            before[first:] = elements[first:]
            restored.write(sequence, part, before)
        assert_same_bits(self.layer.elements, restored.elements)
        return np.concatenate(found)

    def _record(self) -> list[Field]:
        fields: dict[str, Field] = self.layer.arguments() | {
            "x": self.x,
            "x_stride": self.x.strides[0],
            "heads": HEADS,
            "weight": self.weight,
            "eps": EPS,
            "table": self.table,
            "factors": self.factors,
            "out": self.out,
            "out_stride": self.out.strides[0],
        }
        return [fields[name] for name in CACHE_FIELDS]

    def _step(self) -> dict[StepFields, Field]:
        return self.layer.step() | {StepFields.POSITIONS: POSITIONS, StepFields.ROW_SEQUENCE: OWNERS}


def rows_for(spec: RotateSpec, block_size: int = 16) -> Rows:
    return Rows(spec.head_dim, spec.rope_dims, spec.dtype, block_size)


def rotated(rows: Rows, spec: RotateSpec) -> NDArray[np.float64]:
    """Norm and rotation in float64: pairs as complex numbers."""
    x = rows.x.astype(np.float64)
    if spec.norm:
        x = x / np.sqrt((x**2).mean(-1, keepdims=True) + EPS) * rows.weight
    cos, sin = rows.table[POSITIONS].astype(np.float64).swapaxes(0, 1)
    first, second = pair_slices(spec.pairs, spec.rope_dims)
    turned = (x[..., first] + 1j * x[..., second]) * (cos + 1j * sin)[:, None]
    out = x.copy()
    out[..., first], out[..., second] = turned.real, turned.imag
    out = out * rows.factors if spec.factors else out
    return spread_in_float64(out) if spec.dtype in INTEGER_TYPES else out


def spread_in_float64(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sylvester's matrices, built by doubling, in blocks of the largest power of two that divides the head."""
    matrix = np.ones((1, 1))
    while x.shape[-1] % (2 * len(matrix)) == 0:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    spread: NDArray[np.float64] = (x.reshape(*x.shape[:-1], -1, len(matrix)) @ matrix).reshape(x.shape)
    return spread


def pair_slices(pairs: RopePairs, dims: int) -> tuple[slice, slice]:
    if pairs == "adjacent":
        return slice(0, dims, 2), slice(1, dims, 2)
    return slice(0, dims // 2), slice(dims // 2, dims)


@pytest.mark.parametrize("spec", SPECS, ids=lambda s: s.name)
def test_rotation_into_rows(machine: Machine, spec: RotateSpec) -> None:
    rows = rows_for(spec)
    out = rows.rotate(machine, row_target(spec))
    error = 1e-3 if spec.dtype in INTEGER_TYPES else 1e-5
    np.testing.assert_allclose(out, rotated(rows, spec), rtol=1e-5, atol=error)
    assert_same_bits(rows.layer.elements, rows.before)


@pytest.mark.parametrize("spec", SPECS, ids=lambda s: s.name)
@pytest.mark.parametrize("block_size", [16, 48])
def test_keys_are_the_rotated_rows_in_their_places(machine: Machine, spec: RotateSpec, block_size: int) -> None:
    rows = rows_for(spec, block_size)
    wanted = rows_for(spec).rotate(machine, row_target(spec))
    assert np.isnan(rows.rotate(machine, spec)).all()
    assert_same_bits(rows.elements(keys=True), stored(wanted, spec.dtype))


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32", "q8"])
@pytest.mark.parametrize("head_dim", [16, 80, 256])
@pytest.mark.parametrize("block_size", [16, 48])
def test_values_are_stored_in_their_places(machine: Machine, dtype: KVType, head_dim: int, block_size: int) -> None:
    rows = Rows(head_dim, 0, dtype, block_size)
    rows.store(machine)
    x = spread(rows.x) if dtype in INTEGER_TYPES else rows.x
    assert_same_bits(rows.elements(keys=False), stored(x, dtype, 1))


@pytest.mark.parametrize("dtype", ["q8", "k8v4"])
@pytest.mark.parametrize("head_dim", [32, 64, 96, 256])
@pytest.mark.parametrize("size", [1e-34, 1e-30, 1e-6, 1.0, 1e20, 1e37])
def test_values_become_the_integers_of_the_definition(
    machines: list[Machine], dtype: KVType, head_dim: int, size: float
) -> None:
    """On every instruction set, with heads of zeros, of one number, of equal numbers, and of infinite ones."""
    for machine in machines:
        rows = Rows(head_dim, 0, dtype, 48, size=size)
        rows.x[0, 0], rows.x[0, 1, 1:], rows.x[1, 0] = 0, 0, size
        rows.x[1, 1, 3] = np.inf
        rows.store(machine)
        assert_same_bits(rows.elements(keys=False), stored(spread(finite(rows.x)), dtype, 1))


@pytest.mark.parametrize("dtype", ["q8", "k8v4"])
def test_rows_are_written_again_and_in_any_order(machine: Machine, dtype: KVType) -> None:
    """What lay there before and which row comes first leave no trace: two positions of k8v4 share no byte."""
    once, again = Rows(64, 0, dtype), Rows(64, 0, dtype)
    once.store(machine)
    x = again.x.copy()
    again.x[:] = -3 * x[::-1]
    again.store(machine)
    again.x[:] = x
    for row in np.random.default_rng(1).permutation(ROWS).tolist():
        again.store(machine, (row, row + 1))
    assert_same_bits(again.layer.elements, once.layer.elements)


def test_halves_are_cached_as_finite_numbers(machines: list[Machine]) -> None:
    """Values beyond float16 become its largest, so that a hidden position still adds exactly nothing."""
    huge = np.array([65504, 65519, 65520, 1e6, 3e38, np.inf], np.float32)
    for machine in machines:
        rows = Rows(64, 64, "f16")
        rows.x[0, 0, :12] = [*huge, *-huge]
        rows.table[:] = np.array([1, 0], np.float32)[:, None]
        rows.store(machine)
        values = rows.stored(keys=False)[0, 0, :12]
        np.testing.assert_array_equal(values, [65504] * 6 + [-65504] * 6)
        rows.x[0, 0, 5], rows.x[0, 0, 11] = 1e9, -1e9
        other = Rows(64, 64, "f16")
        other.x, other.table = rows.x, rows.table
        other.rotate(machine, SPECS[0])
        np.testing.assert_array_equal(other.stored(keys=True)[0, 0, :12], [65504] * 6 + [-65504] * 6)


@pytest.mark.parametrize("spec", [SPECS[1], SPECS[2], SPECS[4], *SPECS[8:]], ids=lambda s: s.name)
def test_every_instruction_set_and_split_gives_the_same_bits(machines: list[Machine], spec: RotateSpec) -> None:
    first = rows_for(spec)
    first.rotate(machines[0], spec)
    first.store(machines[0])
    for machine in machines:
        other = rows_for(spec)
        other.rotate(machine, spec, cuts=(3, 3, 4))
        other.store(machine)
        assert_same_bits(other.layer.elements, first.layer.elements)


@pytest.mark.parametrize("size", [1e-7, 1e-4, 1.0, 1e4])
def test_every_instruction_set_rounds_halves_as_numpy_does(machines: list[Machine], size: float) -> None:
    for machine in machines:
        rows = Rows(64, 0, "f16", size=size)
        rows.store(machine)
        assert_same_bits(rows.stored(keys=False), rows.x.astype(np.float16))


def test_bfloat16_is_cached_as_finite_numbers_that_are_0_or_not_small(machines: list[Machine]) -> None:
    given = np.array([3e38, 3.4e38, np.inf, 2**-50, 2**-51, 1e-38, 1e-40, 1 + 2**-8, 1 + 3 * 2**-8], np.float32)
    largest = float(of_bfloat16(np.array(0x7F7F, np.uint16)))
    wanted = np.array([0, largest, largest, 2**-50, 0, 0, 0, 1, 1 + 2**-6], np.float32)
    wanted[0] = of_bfloat16(stored(given[:1], "bf16"))[0]
    for machine in machines:
        rows = Rows(64, 0, "bf16")
        rows.x[0, 0, :18] = [*given, *-given]
        rows.store(machine)
        values = rows.stored(keys=False)[0, 0, :18]
        np.testing.assert_array_equal(values, [*wanted, *-wanted])
