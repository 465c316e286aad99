"""Compilers for every instruction set this machine has, with the machine code of earlier runs where nothing changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.backends.cpu.kernels.tile_unit import EmulatedUnit
from twofold.backends.cpu.kernels.isa import TABLES, choose
from twofold.backends.cpu.kernels.jit import CodegenTarget, Compiler, host_features
from twofold.host.paths import CacheFolders

ISAS = [isa.name for isa in TABLES if isa.needs <= host_features()]
EMULATED = "emulated"
"""The best of these with an emulated tile unit."""


@pytest.fixture(scope="session")
def kernel_cache() -> Path:
    """Code is found by the text or the generators it was made of: tests of compilation have folders of their own."""
    return CacheFolders.of().create().kernels


@pytest.fixture(scope="session")
def compiler_for(kernel_cache: Path) -> Callable[[str], Compiler]:
    """The compiler of an instruction set, by its name."""
    made: dict[str, Compiler] = {}
    emulated = EmulatedUnit().table(choose(host_features()))

    def make(name: str) -> Compiler:
        if name == EMULATED and name not in made:
            made[name] = Compiler(CodegenTarget.of(emulated))
        elif name not in made:
            made[name] = Compiler(CodegenTarget.of(choose(host_features(), name)), kernel_cache)
        return made[name]

    return make
