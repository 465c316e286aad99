"""Calls kernels on NumPy arrays whose unwritten bytes are NaN."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from twofold.backends.cpu.kernels.ir import Kernel
from twofold.backends.cpu.kernels.isa import Isa
from twofold.backends.cpu.kernels.jit import CodegenTarget, Compiler, as_function
from twofold.backends.cpu.kernels.signature import StepFields

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]
Field = int | float | NDArray[np.generic]

SCRATCH_BYTES = 1 << 17


class Machine:
    """An instruction set, its compiler, and its kernels by a key of the test's choice."""

    def __init__(self, isa: Isa, cache: Path | None = None) -> None:
        self.isa = isa
        self.compiler = Compiler(CodegenTarget.of(isa), cache)
        self._kernels: dict[Hashable, Kernel] = {}
        self._addresses: dict[Kernel, int] = {}

    def kernel(self, key: Hashable, make: Callable[[], Kernel]) -> Kernel:
        if key not in self._kernels:
            self._kernels[key] = make()
        return self._kernels[key]

    def run(
        self, kernel: Kernel, args: list[Field], units: tuple[int, int], step: dict[StepFields, Field] | None = None
    ) -> None:
        """Runs units ``begin … end``; arrays are passed by address, floats by the bits of a float32."""
        record = np.array([_field(a) for a in args], np.int64)
        counts = np.zeros(StepFields.SIZE, np.int64)
        counts[StepFields.ONE] = 1
        for name, value in (step or {}).items():
            counts[name] = _field(value)
        self.scratch.fill(0xFF)
        if kernel not in self._addresses:
            self._addresses[kernel] = self.compiler.address(kernel)
        call = as_function(self._addresses[kernel], 5)
        call(record.ctypes.data, counts.ctypes.data, *units, self.scratch.ctypes.data)

    @cached_property
    def scratch(self) -> Bytes:
        return aligned(SCRATCH_BYTES)


def _field(value: Field) -> int:
    if isinstance(value, np.ndarray):
        return value.ctypes.data
    if isinstance(value, float):
        return int(np.float32(value).view(np.uint32))
    return value


def aligned(size: int) -> Bytes:
    """Zero bytes that begin at a cache line."""
    memory = np.zeros(size + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + size]


def poisoned(*shape: int) -> Floats:
    """NaN everywhere: what a kernel leaves out shows."""
    return np.full(shape, np.nan, np.float32)


def assert_same_bits(a: NDArray[np.generic], b: NDArray[np.generic]) -> None:
    assert a.dtype == b.dtype
    np.testing.assert_array_equal(a.view(np.uint8), b.view(np.uint8))
