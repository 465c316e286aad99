"""The self-test of an instruction table: a small linear layer, whose result is known to the bit.

Activations are quantised and multiplied by weights in Q4_1, with few rows and with many. The result comes from the
numerics contract (``docs/kernels.md``) in NumPy: numbers have so few bits that float64 holds every sum exactly, and
is rounded to float32 where the contract rounds.

Started as ``python -m twofold.backends.cpu.kernels.selftest TABLE FOLDER``, it tests a table in a process of its own:
an instruction that the processor does not have ends it. If results are wrong, it prints which, and its status is WRONG.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from twofold.backends.cpu.kernels.ir import F32X16, I32X16, PTR, Kernel
from twofold.backends.cpu.kernels.isa import TABLES, Isa
from twofold.backends.cpu.kernels.jit import CodegenTarget, Compiler, as_function, refused_features
from twofold.backends.cpu.kernels.layout import CHUNK, PACKINGS, PANEL, ActRow, panel_bytes
from twofold.backends.cpu.kernels.linear import LINEAR_FIELDS, linear_kernel, linear_scratch_bytes
from twofold.backends.cpu.kernels.rows import ROW_FIELDS, quantise_kernel
from twofold.backends.cpu.kernels.signature import StepFields

FORMAT: Final = "Q4_1"
CHUNKS, PANELS = 3, 3
MANY_ROWS: Final = 20
"""More than a tile of any table, and a remainder."""
LINE: Final = 64
WRONG: Final = 3
"""Status of a process whose table is wrong."""

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]
Values = dict[str, int | Floats | Bytes]


def self_test(compiler: Compiler) -> str | None:
    """Runs the table of ``compiler``. Returns what is wrong, or None."""
    test = _Layer()
    for rows in (1, MANY_ROWS):
        if not np.array_equal(test.computed(compiler, rows).view(np.uint32), test.known(rows).view(np.uint32)):
            return f"its kernels give wrong results for {rows} rows"
    if not _pairs_are_right(compiler):
        return "its bfloat16 products are wrong"
    return None


class _Layer:
    """Random integers times powers of two, so that few bits are needed. Every group has an activation of 127."""

    def __init__(self) -> None:
        rng = np.random.default_rng(14)
        columns, outputs = CHUNKS * CHUNK, PANELS * PANEL
        self.codes = rng.integers(0, 16, (outputs, columns))
        self.scales = rng.integers(1025, 2048, (outputs, CHUNKS)).astype(np.float16) / np.float16(2048)
        self.minima = -rng.integers(1025, 2048, (outputs, CHUNKS)).astype(np.float16) / np.float16(512)
        self.acts = rng.integers(-127, 128, (MANY_ROWS, columns))
        self.acts[:, ::CHUNK] = rng.choice([-127, 127], (MANY_ROWS, CHUNKS))
        self.exponents = rng.integers(-6, 7, (MANY_ROWS, CHUNKS))

    def known(self, rows: int) -> Floats:
        """float32 [rows, outputs] by the contract."""
        acts = self.acts[:rows].reshape(rows, CHUNKS, CHUNK)
        codes = self.codes.reshape(-1, CHUNKS, CHUNK)
        act_scales = 2.0 ** self.exponents[:rows]
        acc = np.zeros((rows, len(codes)), np.float32)
        for chunk in range(CHUNKS):
            dots = (acts[:, chunk] @ codes[:, chunk].T).astype(np.float32)
            scaled = (dots * self.scales[:, chunk].astype(np.float32)).astype(np.float64)
            act_scale = act_scales[:, chunk, None]
            acc = (scaled * act_scale + acc).astype(np.float32)
            totals = acts[:, chunk].sum(axis=1)[:, None] * act_scale
            acc = (self.minima[:, chunk].astype(np.float64) * totals + acc).astype(np.float32)
        return acc

    def packed(self) -> Bytes:
        """Panels in the layout of ``layout``."""
        size, regions = panel_bytes(FORMAT, CHUNKS * CHUNK), PACKINGS[FORMAT].regions(CHUNKS * CHUNK)
        panels = _aligned(PANELS * size)
        for panel, memory in enumerate(panels.reshape(PANELS, size)):
            outputs = slice(panel * PANEL, (panel + 1) * PANEL)
            quads = self.codes[outputs].reshape(PANEL, CHUNKS, 2, CHUNK // 8, 4).astype(np.uint8)
            lines = (quads[:, :, 0] | quads[:, :, 1] << 4).transpose(1, 2, 0, 3)
            for region, numbers in (("plane0", lines), ("scales", self.scales), ("minima", self.minima)):
                values = np.ascontiguousarray(numbers if region == "plane0" else numbers[outputs].T)
                memory[regions[region] :][: values.nbytes] = values.view(np.uint8).reshape(-1)
        return panels

    def computed(self, compiler: Compiler, rows: int) -> Floats:
        """The same by the kernels."""
        columns, isa = CHUNKS * CHUNK, compiler.target.isa
        x = (self.acts[:rows] * np.repeat(2.0 ** self.exponents[:rows], CHUNK, axis=1)).astype(np.float32)
        packing = PACKINGS[FORMAT]
        layout = ActRow(columns, frozenset({packing.act_sum}))
        acts = _aligned(rows * layout.offset()).reshape(rows, -1)
        values: Values = {
            "x": x,
            "x_stride": x.strides[0],
            "acts": acts,
            "act_stride": acts.strides[0],
            "sums": layout.mask,
            "width": columns,
        }
        _call(compiler.named("quantise", quantise_kernel), ROW_FIELDS, values, rows, 1, 64)
        packed, out = self.packed(), np.zeros((rows, PANELS * PANEL), np.float32)
        values = {
            "acts": acts, "act_stride": acts.strides[0], "act_sums": layout.offset(packing.act_sum), "weights": packed,
            "panel_bytes": len(packed) // PANELS, "chunks": CHUNKS, "out": out, "out_stride": out.strides[0],
            "row_count": int(StepFields.ROWS), "row_block": MANY_ROWS,
        }  # fmt: skip
        kernel = compiler.named(f"linear_{FORMAT}", lambda: linear_kernel(isa, FORMAT))
        _call(kernel, LINEAR_FIELDS, values, PANELS, rows, linear_scratch_bytes(packing, isa, columns))
        return out


def _call(address: int, fields: tuple[str, ...], values: Values, units: int, rows: int, scratch: int) -> None:
    """One call of a kernel for all its units; arrays are given by their addresses, what is missing is null."""
    numbers = [v if isinstance(v, int) else v.ctypes.data for v in (values.get(name, 0) for name in fields)]
    args, step, memory = np.array(numbers, np.int64), np.zeros(StepFields.SIZE, np.int64), _aligned(scratch)
    step[StepFields.ROWS] = rows
    as_function(address, 5)(args.ctypes.data, step.ctypes.data, 0, units, memory.ctypes.data)


def _pairs_are_right(compiler: Compiler) -> bool:
    """Whether the table's products of bfloat16 pairs are those of float32, and rounding is to nearest even."""
    isa = compiler.target.isa
    if isa.dot2 is None or isa.narrow2 is None:
        return True
    pairs = np.arange(-16, 16, dtype=np.float32) * np.float32(1.5)
    data = (pairs.view(np.uint32) >> 16).astype(np.uint16)
    rounded = np.arange(257, 273, dtype=np.float32)
    sums, halves = np.zeros(16, np.float32), np.zeros(16, np.uint16)
    run = as_function(compiler.named("selftest_pairs", lambda: _pair_kernel(isa)), 4)
    run(data.ctypes.data, rounded.ctypes.data, sums.ctypes.data, halves.ctypes.data)
    even = np.rint(rounded / 2) * 2
    expected = (pairs.reshape(16, 2) ** 2).sum(axis=1)
    return bool((sums == expected).all() and ((halves.astype(np.uint32) << 16).view(np.float32) == even).all())


def _pair_kernel(isa: Isa) -> Kernel:
    assert isa.dot2 is not None
    assert isa.narrow2 is not None
    k = Kernel("selftest_pairs", [("pairs", PTR), ("floats", PTR), ("sums", PTR), ("halves", PTR)])
    pairs, floats, sums, halves = k.args
    factor = k.load(I32X16, pairs)
    k.store(isa.dot2(k, k.splat(F32X16, 0.0), factor, factor), sums)
    k.store(isa.narrow2(k, k.load(F32X16, floats)), halves)
    k.ret()
    return k


def _aligned(size: int) -> Bytes:
    """Zero bytes that begin at a cache line."""
    memory = np.zeros(size + LINE, np.uint8)
    start = -memory.ctypes.data % LINE
    return memory[start : start + size]


def main(table: str, folder: str) -> None:
    """Tests a table. Asks for the permission to use tiles first, which is a process's own."""
    refused_features()
    isa = next(isa for isa in TABLES if isa.name == table)
    fault = self_test(Compiler(CodegenTarget.of(isa), Path(folder)))
    if fault is not None:
        print(fault)
        sys.exit(WRONG)


if __name__ == "__main__":
    main(*sys.argv[1:])
