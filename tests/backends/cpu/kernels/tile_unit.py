"""A tile unit by its definition, twice: in NumPy, and as ordinary code for machines that have none.

Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2: LDTILECFG, TILEZERO, TILELOADD,
TILESTORED, TDPBSUD. Palette 1 has eight registers of up to 16 rows × 64 bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tests.backends.cpu.kernels.harness import Bytes
from twofold.backends.cpu.kernels.ir import I8, I8X64, I32, PTR, Kernel, Value
from twofold.backends.cpu.kernels.isa import Isa, TileShape, TileUnit, amx_config, dot4_portable

REGISTERS, ROWS, ROW_BYTES = 8, 16, 64
REGISTER_BYTES = ROWS * ROW_BYTES


class TileFaultError(Exception):
    """The processor would raise #UD or #GP."""


def shapes_of(config: bytes) -> list[TileShape]:
    """The shapes that LDTILECFG takes from 64 bytes. Raises TileFaultError for what it refuses."""
    if len(config) != 64 or config[0] != 1 or any(config[1:16]) or any(config[32:48]) or any(config[56:]):
        raise TileFaultError("palette 1, row 0 and zeros in reserved bytes")
    widths = np.frombuffer(config[16:32], "<u2").tolist()
    shapes = list(zip(config[48:56], widths, strict=True))
    if any(rows > ROWS or width > ROW_BYTES or bool(rows) != bool(width) for rows, width in shapes):
        raise TileFaultError("a register of this palette is smaller")
    return shapes


def check_product(shapes: Sequence[TileShape], sums: int, acts: int, codes: int) -> None:
    """Raises TileFaultError for registers that TDPBSUD refuses."""
    (m, n), (rows, k), (quads, width) = shapes[sums], shapes[acts], shapes[codes]
    if len({sums, acts, codes}) < 3 or 0 in (m, n, k) or n % 4 or k % 4 or (rows, quads, width) != (m, k // 4, n):
        raise TileFaultError(f"{shapes[sums]} += {shapes[acts]} · {shapes[codes]}")


class TileRegisters:
    """The registers in NumPy: ``tiles`` is uint8 [8, 16, 64]."""

    def __init__(self, config: bytes) -> None:
        self.shapes = shapes_of(config)
        self.tiles = np.zeros((REGISTERS, ROWS, ROW_BYTES), np.uint8)

    def zero(self, tile: int) -> None:
        self.tiles[tile] = 0

    def load(self, tile: int, memory: Bytes, at: int, stride: int) -> None:
        rows, width = self.shapes[tile]
        self.tiles[tile] = 0
        for row in range(rows):
            self.tiles[tile, row, :width] = memory[at + row * stride :][:width]

    def store(self, tile: int, memory: Bytes, at: int, stride: int) -> None:
        rows, width = self.shapes[tile]
        for row in range(rows):
            memory[at + row * stride :][:width] = self.tiles[tile, row, :width]

    def multiply(self, sums: int, acts: int, codes: int) -> None:
        check_product(self.shapes, sums, acts, codes)
        (m, n), (_, k) = self.shapes[sums], self.shapes[acts]
        a = self.tiles[acts, :m, :k].view(np.int8).astype(np.int64)
        c = self.tiles[codes, : k // 4, :n].reshape(k // 4, n // 4, 4).transpose(0, 2, 1).reshape(k, n // 4)
        old = self.tiles[sums, :m, :n].view("<i4").astype(np.int64)
        self.tiles[sums] = 0
        self.tiles[sums, :m, :n] = (old + a @ c.astype(np.int64)).astype("<i4").view(np.uint8)


class EmulatedUnit:
    """The registers as memory on a kernel's stack; ``counts`` says what ran: configured, multiplied, released.

    The registers' content after ``release`` is garbage.
    """

    def __init__(self) -> None:
        self.counts = np.zeros(3, np.int64)
        self._kernels: dict[Kernel, tuple[Value, list[TileShape]]] = {}
        self.unit = TileUnit(self._configure, self._zero, self._load, self._multiply, self._store, self._release)

    def table(self, base: Isa) -> Isa:
        """``base`` with this tile unit."""
        return replace(base, name="emulated", tile=self.unit, unpacks=True)

    def _count(self, k: Kernel, what: int) -> None:
        k.fetch_add(Value(k, PTR, f"inttoptr (i64 {self.counts.ctypes.data + 8 * what} to ptr)"), 1)

    def _fill(self, k: Kernel, byte: int) -> None:
        area, _ = self._kernels[k]
        for line in k.range(0, REGISTERS * REGISTER_BYTES, 64):
            k.store(k.splat(I8X64, byte), area + line)

    def _configure(self, k: Kernel, shapes: Sequence[TileShape]) -> None:
        area = self._kernels[k][0] if k in self._kernels else k.buffer(REGISTERS * REGISTER_BYTES)
        self._kernels[k] = area, shapes_of(amx_config(shapes))
        self._fill(k, 0)
        self._count(k, 0)

    def _at(self, k: Kernel, tile: int) -> tuple[Value, TileShape]:
        area, shapes = self._kernels[k]
        return area + tile * REGISTER_BYTES, shapes[tile]

    def _zero(self, k: Kernel, tile: int) -> None:
        at, _ = self._at(k, tile)
        for line in k.range(0, REGISTER_BYTES, 64):
            k.store(k.splat(I8X64, 0), at + line)

    def _load(self, k: Kernel, tile: int, at: Value, stride: Value | int) -> None:
        self._zero(k, tile)
        register, (rows, width) = self._at(k, tile)
        for row in k.range(0, rows):
            k.store(k.load(I8.of(width), at + row * stride), register + row * ROW_BYTES)

    def _store(self, k: Kernel, tile: int, at: Value, stride: Value | int) -> None:
        register, (rows, width) = self._at(k, tile)
        for row in k.range(0, rows):
            k.store(k.load(I8.of(width), register + row * ROW_BYTES), at + row * stride)

    def _multiply(self, k: Kernel, sums: int, acts: int, codes: int) -> None:
        check_product(self._kernels[k][1], sums, acts, codes)
        self._count(k, 1)
        (total, (m, n)), (left, (_, depth)), (right, _) = (self._at(k, tile) for tile in (sums, acts, codes))
        for row in k.range(0, m):
            at = total + row * ROW_BYTES
            acc = k.load(I32.of(n // 4), at)
            for quad in range(depth // 4):
                act = k.load(I32, left + row * ROW_BYTES + 4 * quad)
                acc = dot4_portable(k, acc, k.load(I8.of(n), right + quad * ROW_BYTES), act, 8)
            k.store(acc, at)

    def _release(self, k: Kernel) -> None:
        self._fill(k, 0x5A)
        self._count(k, 2)
