"""Compilers shared by all kernel tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.backends.cpu.kernels.harness import Machine
from twofold.backends.cpu.kernels.isa import TABLES
from twofold.backends.cpu.kernels.jit import host_features


@pytest.fixture(scope="session")
def machines(kernel_cache: Path) -> list[Machine]:
    """One for every instruction set that this processor has, best first."""
    return [Machine(isa, kernel_cache) for isa in TABLES if isa.needs <= host_features()]


@pytest.fixture(scope="session")
def machine(machines: list[Machine]) -> Machine:
    """The best instruction set of this processor."""
    return machines[0]
