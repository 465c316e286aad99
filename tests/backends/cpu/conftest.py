"""Compilers for every instruction set this machine has; kernels are compiled once a session."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from twofold.backends.cpu.kernels.isa import TABLES, choose
from twofold.backends.cpu.kernels.jit import CodegenTarget, Compiler, host_features

ISAS = [isa.name for isa in TABLES if isa.needs <= host_features()]


@pytest.fixture(scope="session")
def compiler_for(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Compiler]:
    """The compiler of an instruction set, by its name."""
    folder = tmp_path_factory.mktemp("kernels")
    made: dict[str, Compiler] = {}

    def make(name: str) -> Compiler:
        if name not in made:
            made[name] = Compiler(CodegenTarget.of(choose(host_features(), name)), folder)
        return made[name]

    return make
