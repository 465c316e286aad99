"""exp, log, tanh and the gates against float64 NumPy, and the same bits from every instruction set."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.backends.cpu.kernels.harness import Floats, Machine, assert_same_bits, poisoned
from twofold.backends.cpu.kernels import math as formulas
from twofold.backends.cpu.kernels.ir import F32, F32X16, PTR, Kernel, Type, Value
from twofold.backends.cpu.kernels.signature import KERNEL_PARAMETERS

Formula = Callable[[Kernel, Value], Value]
Real = NDArray[np.float64]

SPECIAL = np.array(
    [0.0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 88.72283, 88.72284, -87.33654, -87.34, -1e30, 1e30, 1e-45, 2e-38, -3],
    np.float32,
)  # fmt: skip


def elementwise(formula: Formula, kind: Type) -> Kernel:
    k = Kernel("elementwise", KERNEL_PARAMETERS)
    x, y = k.field(PTR, k.args[0], 0), k.field(PTR, k.args[0], 1)
    for i in k.range(k.args[2], k.args[3]):
        at = i * (4 * kind.lanes)
        k.store(formula(k, k.load(kind, x + at)), y + at)
    k.ret()
    return k


def apply(machine: Machine, formula: Formula, x: Floats, kind: Type = F32X16) -> Floats:
    kernel = machine.kernel((formula, kind), lambda: elementwise(formula, kind))
    y = poisoned(len(x))
    machine.run(kernel, [x, y], (0, len(x) // kind.lanes))
    return y


def silu(x: Real) -> Real:
    gated: Real = x / (1 + np.exp(-x))
    return gated


def gelu_tanh(x: Real) -> Real:
    gated: Real = x / (1 + np.exp(-2 * np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    return gated


def spread(low: float, high: float, seed: int) -> Floats:
    """A fine grid and random numbers between ``low`` and ``high``."""
    rng = np.random.default_rng(seed)
    return np.concatenate([np.linspace(low, high, 1 << 15), rng.uniform(low, high, 1 << 15)]).astype(np.float32)


CASES = [
    (formulas.exp, np.exp, spread(-87.3, 88.7, 1), 1.1),
    (formulas.exp, np.exp, spread(-1, 1, 2), 1.1),
    (formulas.log, np.log, np.exp(spread(-87, 88, 3)), 0.9),
    (formulas.log, np.log, spread(0.5, 2, 4), 0.9),
    (formulas.tanh, np.tanh, spread(-10, 10, 5), 2.5),
    (formulas.tanh, np.tanh, np.exp(spread(-80, 0, 6)), 2.5),
    (formulas.silu, silu, spread(-80, 30, 7), 2.5),
    (formulas.gelu_tanh, gelu_tanh, spread(-1, 20, 8), 3.0),
]


@pytest.mark.parametrize(("formula", "meaning", "x", "ulps"), CASES, ids=lambda v: getattr(v, "__name__", ""))
def test_close_to_the_true_value(
    machine: Machine, formula: Formula, meaning: Callable[[Real], Real], x: Floats, ulps: float
) -> None:
    true = meaning(x.astype(np.float64))
    unit = np.spacing(np.abs(true).astype(np.float32)).astype(np.float64)
    errors = np.abs(apply(machine, formula, x) - true) / unit
    assert errors.max() <= ulps, f"{errors.max():.2f} units at {x[errors.argmax()]!r}"


@pytest.mark.parametrize("lowest", [-50.0, -125.0])
def test_powers_of_two_below_0(machines: list[Machine], lowest: float) -> None:
    def formula(k: Kernel, x: Value) -> Value:
        return formulas.exp2_below_0(k, x, lowest)

    x = np.concatenate([spread(lowest, 0, 9), spread(-1, 0, 10)])
    first, *others = [apply(machine, formula, x) for machine in machines]
    np.testing.assert_allclose(first, np.exp2(x.astype(np.float64)), rtol=4e-6)
    for other in others:
        assert_same_bits(other, first)
    below = np.full(16, np.nextafter(np.float32(lowest), np.float32(-np.inf)))
    below[:4] = [0, -0.0, -np.inf, -1e30]
    np.testing.assert_array_equal(apply(machines[0], formula, below), [1, 1, *[0] * 14])


def test_gelu_far_below_zero_is_close_in_absolute_terms(machine: Machine) -> None:
    x = spread(-10, 0, 9)
    np.testing.assert_allclose(
        apply(machine, formulas.gelu_tanh, x), gelu_tanh(x.astype(np.float64)), rtol=0, atol=1e-6
    )


@pytest.mark.parametrize("formula", [formulas.exp, formulas.log, formulas.tanh, formulas.silu, formulas.gelu_tanh])
def test_every_instruction_set_and_width_gives_the_same_bits(machines: list[Machine], formula: Formula) -> None:
    x = np.concatenate([SPECIAL[~np.isnan(SPECIAL)], spread(-100, 100, 10), spread(-1, 1, 11)])
    first = apply(machines[0], formula, x)
    for machine in machines:
        result = apply(machine, formula, x)
        numbers = ~np.isnan(first)  # the sign of a NaN is the processor's own choice
        np.testing.assert_array_equal(np.isnan(result), ~numbers)
        assert_same_bits(result[numbers], first[numbers])
    few = x[:512].copy()
    np.testing.assert_array_equal(apply(machines[0], formula, few, F32), first[:512])


def special(machine: Machine, formula: Formula) -> dict[float, float]:
    results = apply(machine, formula, SPECIAL)
    assert np.isnan(results[np.isnan(SPECIAL)]).all()
    return {float(x): float(y) for x, y in zip(SPECIAL, results, strict=True) if not np.isnan(x)}


def test_exp_at_the_edges(machines: list[Machine]) -> None:
    for machine in machines:
        y = special(machine, formulas.exp)
        assert y[0.0] == 1.0
        assert y[-np.inf] == 0.0
        assert y[float(np.float32(-1e30))] == 0.0
        assert y[float(np.float32(-87.34))] == 0.0
        assert y[float(np.float32(-87.33654))] >= 2.0**-126
        assert y[float(np.float32(88.72283))] < np.inf
        assert y[float(np.float32(88.72284))] == np.inf
        assert y[np.inf] == np.inf


def test_log_at_the_edges(machines: list[Machine]) -> None:
    for machine in machines:
        y = special(machine, formulas.log)
        assert y[0.0] == -np.inf
        assert y[1.0] == 0.0
        assert y[np.inf] == np.inf
        assert np.isnan(y[-1.0])
        assert np.isnan(y[-np.inf])
        assert y[float(np.float32(1e-45))] == pytest.approx(-103.27893)


def test_tanh_is_odd_and_bounded(machine: Machine) -> None:
    x = spread(0, 100, 12)
    y = apply(machine, formulas.tanh, x)
    assert y.max() == 1.0
    assert_same_bits(apply(machine, formulas.tanh, -x), -y)
    assert_same_bits(apply(machine, formulas.tanh, SPECIAL[:2].repeat(8)), SPECIAL[:2].repeat(8))


def test_gates_vanish_far_below_zero_and_pass_far_above(machine: Machine) -> None:
    x = np.array([-1e30, -200, 200, 1e30] * 4, np.float32)
    for gate in (formulas.silu, formulas.gelu_tanh):
        np.testing.assert_array_equal(apply(machine, gate, x), np.where(x < 0, 0, x))
