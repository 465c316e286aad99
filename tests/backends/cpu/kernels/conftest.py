"""Compilers shared by all kernel tests: a kernel is compiled once a session for each instruction set."""

from __future__ import annotations

import pytest

from tests.backends.cpu.kernels.harness import Machine
from twofold.backends.cpu.kernels.isa import TABLES
from twofold.backends.cpu.kernels.jit import host_features


@pytest.fixture(scope="session")
def machines() -> list[Machine]:
    """One for every instruction set that this processor has, best first."""
    return [Machine(isa) for isa in TABLES if isa.needs <= host_features()]


@pytest.fixture(scope="session")
def machine(machines: list[Machine]) -> Machine:
    """The best instruction set of this processor."""
    return machines[0]
