"""Linear layers from unquantised weights (F32, F16, BF16): y = x · Wᵀ on float32 activations.

For one row and one output, whatever the tile, the thread or the company in the batch:

    acc = 0
    for k ascending: acc = fma(w[k], x[k], acc)     float32
    y = acc (+ bias) (+ residual)

Weights keep their size in memory. A panel is 16 outputs, k after k: [columns][16] values; a matrix whose rows do not
fill the last panel leaves the rest of it zero.

    a tile: ROWS rows × PANELS panels, one float32 register each

              panel 0      panel 1    …
    row 0    [16 × f32]   [16 × f32]      ← x[k] is broadcast once, used PANELS times
    row 1    [16 × f32]   [16 × f32]      ← the weights of k are widened once, used ROWS times
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from twofold.backends.cpu.kernels.ir import F16X16, F32, F32X16, I16, I32, I32X16, I64, Kernel, Value
from twofold.backends.cpu.kernels.isa import Isa
from twofold.backends.cpu.kernels.layout import PANEL
from twofold.backends.cpu.kernels.pack import PACK_FIELDS, PACK_POINTERS
from twofold.backends.cpu.kernels.signature import KERNEL_PARAMETERS, KernelArguments
from twofold.backends.cpu.kernels.tiles import cover, finish
from twofold.core.values import BY_NAME

FloatFormat = Literal["F32", "F16", "BF16"]

FLOAT_LINEAR_FIELDS: Final = (
    "x", "x_stride", "weights", "panel_bytes", "columns", "out", "out_stride", "bias", "residual", "row_count",
)  # fmt: skip
"""Arguments of a float linear kernel, 8 bytes each; as those of ``linear``, but ``x`` is float32 rows."""
POINTERS: Final = frozenset({"x", "weights", "out", "bias", "residual"})


@dataclass(frozen=True, slots=True)
class FloatTiling:
    """Rows a tile takes at a time, for ``panels`` panels and for one."""

    rows: tuple[int, ...]
    panels: int

    @staticmethod
    def of(isa: Isa) -> FloatTiling:
        if isa.registers >= 32:
            return FloatTiling((6, 4, 2, 1), 4)
        return FloatTiling((2, 1), 2)


def float_panel_bytes(name: FloatFormat, columns: int) -> int:
    """Bytes of a panel, whole cache lines."""
    return -(-columns * PANEL * BY_NAME[name].block_bytes // 64) * 64


def load_floats(k: Kernel, isa: Isa, name: FloatFormat, at: Value) -> Value:
    """Sixteen neighbouring values as float32."""
    if name == "F32":
        return k.load(F32X16, at)
    if name == "F16":
        return isa.widen(k, k.load(F16X16, at))
    return (k.load(I16.of(16), at).to(I32X16, unsigned=True) << 16).as_bits(F32X16)


def float_pack_kernel(name: FloatFormat) -> Kernel:
    """Packs panels ``begin … end``; ``blocks`` is columns. Rows past the matrix's end are left as they are (zero)."""
    k = Kernel(f"pack_{name}", KERNEL_PARAMETERS)
    f = KernelArguments(k, PACK_FIELDS, PACK_POINTERS)
    size = BY_NAME[name].block_bytes
    kind = I32 if size == 4 else I16
    for panel in k.range(k.args[2], k.args[3]):
        base = f["target"] + panel * f["panel_bytes"]
        for output in k.range(0, k.smin(f["rows"] - panel * PANEL, PANEL)):
            row = f["source"] + (panel * PANEL + output) * f["row_bytes"]
            for column in k.range(0, f["blocks"]):
                k.store(k.load(kind, row + column * size), base + (column * PANEL + output) * size)
    k.ret()
    return k


class FloatLinearKernel:
    """Generates the kernel of one format: outputs of panels ``begin … end`` for all rows of the step."""

    def __init__(self, isa: Isa, name: FloatFormat) -> None:
        self._isa = isa
        self._name: FloatFormat = name
        self._tiling = FloatTiling.of(isa)
        self.k = k = Kernel(f"linear_{name}", KERNEL_PARAMETERS)
        self._fields = KernelArguments(k, FLOAT_LINEAR_FIELDS, POINTERS)
        self._rows = k.load(I64, k.args[1] + self._fields["row_count"] * 8)

    def generate(self) -> Kernel:
        k = self.k
        cover(k, k.args[2], k.args[3], (self._tiling.panels, 1), self._all_rows)
        k.ret()
        return k

    def _all_rows(self, panel: Value, panels: int) -> None:
        cover(self.k, 0, self._rows, self._tiling.rows, lambda row, rows: self._tile(row, rows, panel, panels))

    def _tile(self, first_row: Value, rows: int, panel: Value, panels: int) -> None:
        k, f = self.k, self._fields
        line = PANEL * BY_NAME[self._name].block_bytes
        bases = [f["weights"] + (panel + p) * f["panel_bytes"] for p in range(panels)]
        inputs = [f["x"] + (first_row + r) * f["x_stride"] for r in range(rows)]
        sums = [[k.var(F32X16, 0.0) for _ in range(panels)] for _ in range(rows)]
        for column in k.range(0, f["columns"]):
            weights = [load_floats(k, self._isa, self._name, base + column * line) for base in bases]
            for x, row_sums in zip(inputs, sums, strict=True):
                value = k.splat(F32X16, k.load(F32, x + column * 4))
                for weight, total in zip(weights, row_sums, strict=True):
                    total.set(k.fma(weight, value, total.get()))
        finish(k, f, lambda r, p: sums[r][p].get(), first_row, rows, panel, panels)
