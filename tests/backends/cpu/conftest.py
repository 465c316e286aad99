"""Compilers for every instruction set this machine has; kernels are compiled once a session."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.backends.cpu.kernels.tile_unit import EmulatedUnit
from twofold.backends.cpu.kernels.isa import TABLES, choose
from twofold.backends.cpu.kernels.jit import CodegenTarget, Compiler, host_features

ISAS = [isa.name for isa in TABLES if isa.needs <= host_features()]
EMULATED = "emulated"
"""The best of these with an emulated tile unit."""


@pytest.fixture(scope="session")
def compiler_for(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Compiler]:
    """The compiler of an instruction set, by its name."""
    folder = tmp_path_factory.mktemp("kernels")
    made: dict[str, Compiler] = {}
    emulated = EmulatedUnit().table(choose(host_features()))

    def make(name: str) -> Compiler:
        if name == EMULATED and name not in made:
            made[name] = Compiler(CodegenTarget.of(emulated))
        elif name not in made:
            made[name] = Compiler(CodegenTarget.of(choose(host_features(), name)), folder)
        return made[name]

    return make
