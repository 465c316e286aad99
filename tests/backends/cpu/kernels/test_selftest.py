"""The self-test of instruction tables: right ones pass, and each kind of wrong one is noticed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.backends.cpu.kernels.harness import Machine
from tests.backends.cpu.kernels.tile_unit import EmulatedUnit
from twofold.backends.cpu.kernels.ir import Kernel, Value
from twofold.backends.cpu.kernels.isa import Isa
from twofold.backends.cpu.kernels.jit import CodegenTarget, Compiler
from twofold.backends.cpu.kernels.selftest import self_test


def fault(isa: Isa) -> str | None:
    return self_test(Compiler(CodegenTarget.of(isa)))


def test_every_table_of_this_machine_passes(machines: list[Machine]) -> None:
    for machine in machines:
        assert self_test(machine.compiler) is None, machine.isa.name


def test_tiles_pass(machine: Machine) -> None:
    emulation = EmulatedUnit()
    assert fault(emulation.table(machine.isa)) is None
    assert emulation.counts[1] > 0


def test_wrong_integer_products_are_noticed(machine: Machine) -> None:
    def dot4(k: Kernel, acc: Value, codes: Value, acts: Value, bits: int) -> Value:
        return machine.isa.dot4(k, acc, codes & 7, acts, bits)

    assert fault(replace(machine.isa, dot4=dot4)) == "its kernels give wrong results for 1 rows"


def test_a_scale_that_is_off_by_its_last_bit_is_noticed(machine: Machine) -> None:
    def widen(k: Kernel, h: Value) -> Value:
        return machine.isa.widen(k, h) * (1 + 2.0**-23)

    assert fault(replace(machine.isa, widen=widen)) == "its kernels give wrong results for 1 rows"


@pytest.mark.parametrize("what", ["zero", "multiply", "store"])
def test_wrong_tiles_are_noticed(machine: Machine, what: str) -> None:
    """Even if few rows, which use no tiles, are right."""
    right = EmulatedUnit().table(machine.isa)
    assert right.tile is not None
    nothing: Callable[..., None] = lambda *_: None  # noqa: E731
    wrong = replace(right, tile=replace(right.tile, **{what: nothing}))
    assert fault(wrong) == "its kernels give wrong results for 20 rows"


def test_wrong_pairs_are_noticed(machine: Machine) -> None:
    isa = machine.isa
    if isa.dot2 is None:
        pytest.skip("this processor multiplies no bfloat16 pairs")
    assert fault(replace(isa, dot2=lambda _k, acc, _a, _b: acc)) == "its bfloat16 products are wrong"
