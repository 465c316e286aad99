"""From the file's rows to panels: each 16 outputs interleaved as ``layout`` draws it. Runs once, at load."""

from __future__ import annotations

from twofold.backends.cpu.kernels.ir import F16, Kernel, Value
from twofold.backends.cpu.kernels.layout import CHUNK, PANEL, SUPER, Packing
from twofold.backends.cpu.kernels.raw import LOW1, LOW2, LOW4, RAW, block_at
from twofold.backends.cpu.kernels.signature import KERNEL_PARAMETERS, KernelArguments
from twofold.core.values import BY_NAME

PACK_FIELDS = ("source", "row_bytes", "rows", "target", "panel_bytes", "blocks")
"""Arguments of a packing kernel, 8 bytes each: pointers, and counts of bytes, rows and blocks of a row."""
PACK_POINTERS = frozenset({"source", "target"})


def pack_kernel(packing: Packing) -> Kernel:
    """Packs panels ``begin … end``. Rows past the matrix's end are left as they are (zero)."""
    k = Kernel(f"pack_{packing.name}", KERNEL_PARAMETERS)
    f = KernelArguments(k, PACK_FIELDS, PACK_POINTERS)
    blocks = f["blocks"]
    starts = {name: (blocks * offset) for name, offset in packing.regions(packing.block).items() if name != "end"}
    if not packing.has_supers:
        starts = {name: (blocks * offset) >> 3 for name, offset in packing.regions(SUPER).items() if name != "end"}
    block_bytes = BY_NAME[packing.name].block_bytes
    for panel in k.range(k.args[2], k.args[3]):
        base = f["target"] + panel * f["panel_bytes"]
        regions = {name: base + start for name, start in starts.items()}
        last = k.smin(f["rows"] - panel * PANEL, PANEL)
        for column in k.range(0, last):
            row = f["source"] + (panel * PANEL + column) * f["row_bytes"]
            for block in k.range(0, blocks):
                _pack_block(k, packing, block_at(row, block, block_bytes), regions, block, column)
    k.ret()
    return k


def _pack_block(
    k: Kernel, packing: Packing, raw: Value, regions: dict[str, Value], block: Value, column: Value
) -> None:
    chunks = packing.block // CHUNK
    for chunk in range(chunks):
        quads = RAW[packing.name].quads(k, raw, chunk)
        index = block * chunks + chunk
        for number, plane in enumerate(packing.planes):
            line = regions[f"plane{number}"] + index * (64 * plane.lines) + column * 4
            for i, word in enumerate(_plane_words(plane.kind, plane.shift, quads)):
                k.store(word, line + 64 * i)
    _pack_numbers(k, packing, raw, regions, block, column)


def _plane_words(kind: str, shift: int, quads: list[Value]) -> list[Value]:
    """The four bytes of one output in each line of a plane."""
    if kind == "byte":
        return quads
    moved = [q >> shift for q in quads] if shift else quads
    if kind == "nibble":
        return [(moved[q] & LOW4) | (moved[q + 4] & LOW4) << 4 for q in range(4)]
    if kind == "crumb":
        return [_joined([(moved[line + 2 * j] & LOW2) << 2 * j for j in range(4)]) for line in range(2)]
    return [_joined([(moved[j] & LOW1) << j for j in range(8)])]


def _joined(words: list[Value]) -> Value:
    result = words[0]
    for word in words[1:]:
        result = result | word
    return result


def _pack_numbers(
    k: Kernel, packing: Packing, raw: Value, regions: dict[str, Value], block: Value, column: Value
) -> None:
    form = RAW[packing.name]
    scales, minima = ("supers", "super_minima") if packing.has_supers else ("scales", "minima")
    k.store(k.load(F16, raw + form.half_scale), regions[scales] + (block * PANEL + column) * 2)
    if form.half_minimum is not None:
        k.store(k.load(F16, raw + form.half_minimum), regions[minima] + (block * PANEL + column) * 2)
    if form.small is None:
        return
    groups = packing.block // packing.group
    for group in range(groups):
        scale, minimum = form.small(k, raw, group)
        at = (block * groups + group) * PANEL + column
        k.store(scale, regions["scales"] + at)
        if minimum is not None:
            k.store(minimum, regions["minima"] + at)
