"""Reading a packed panel in a kernel: codes by k-quad, scales and minima by group (see ``layout``)."""

from __future__ import annotations

from dataclasses import dataclass

from twofold.backends.cpu.kernels.ir import F16X16, F32X16, I8X16, I8X64, I16X32, I32X16, Kernel, Value
from twofold.backends.cpu.kernels.isa import Isa
from twofold.backends.cpu.kernels.layout import CHUNK, PANEL, SUPER, Packing, Plane


@dataclass(frozen=True, slots=True)
class Numbers:
    """Scale and minimum of one group, 16 outputs each, float32."""

    scale: Value
    minimum: Value


class PackedPanel:
    """A panel in its packed form, at ``base``; ``chunks`` is columns / 32 as the kernel knows it."""

    def __init__(self, k: Kernel, isa: Isa, packing: Packing, base: Value, chunks: Value) -> None:
        self._k = k
        self._isa = isa
        self._packing = packing
        self._starts = _region_starts(packing, base, chunks)

    def code(self, chunk: Value, quad: int) -> Value:
        """A k-quad of a chunk as unsigned bytes, lane 4·output + j. Loads what it needs: few registers stay in use."""
        code: Value | None = None
        for index, plane in enumerate(self._packing.planes):
            part = _plane_quad(self._k, plane, self._starts[f"plane{index}"] + chunk * (64 * plane.lines), quad)
            code = part if code is None else code | part
        assert code is not None
        return self._look_up(code) if self._packing.lookup else code

    def prefetch(self, chunk: Value, ahead: Value | int) -> None:
        """Asks for the lines of a chunk ``ahead`` bytes on."""
        for index, plane in enumerate(self._packing.planes):
            line = self._starts[f"plane{index}"] + chunk * (64 * plane.lines) + ahead
            for i in range(plane.lines):
                self._k.prefetch(line + 64 * i)
        for region in ("scales", "minima"):
            if region in self._starts:
                bytes_a_chunk = PANEL * CHUNK // self._packing.group * (2 if self._packing.scale == "f16" else 1)
                self._k.prefetch(self._starts[region] + chunk * bytes_a_chunk + ahead)

    def _look_up(self, codes: Value) -> Value:
        assert self._packing.lookup is not None
        return self._isa.look_up(self._k, tuple(v + 128 for v in self._packing.lookup), codes)

    def numbers(self, chunk: Value, part: int) -> Numbers:
        """Scale and minimum of group ``part`` of a chunk (part 1 exists where groups are of 16)."""
        packing, k = self._packing, self._k
        group = chunk if packing.group == CHUNK else chunk * 2 + part
        scale = self._scale(group, chunk)
        if packing.minimum == "offset":
            return Numbers(scale, scale * k.splat(F32X16, float(-packing.offset)))
        if packing.minimum == "f16":
            return Numbers(scale, self._half("minima", group))
        region = "minima" if packing.minimum == "u8" else "scales"
        small = self._small(region, group, high=packing.minimum == "u4u4")
        return Numbers(scale, -(small * self._half("super_minima", self._super(chunk))))

    def _scale(self, group: Value, chunk: Value) -> Value:
        if self._packing.scale == "f16":
            return self._half("scales", group)
        return self._small("scales", group, high=False) * self._half("supers", self._super(chunk))

    def _super(self, chunk: Value) -> Value:
        return chunk >> (SUPER // CHUNK).bit_length() - 1

    def _half(self, region: str, index: Value) -> Value:
        return self._isa.widen(self._k, self._k.load(F16X16, self._starts[region] + index * (2 * PANEL)))

    def _small(self, region: str, group: Value, *, high: bool) -> Value:
        small = self._k.load(I8X16, self._starts[region] + group * PANEL)
        if self._packing.scale == "u4u4":
            small = small >> 4 if high else small & 15
        signed = region == "scales" and self._packing.scale == "i8"
        return small.to(I32X16, unsigned=not signed).to(F32X16)


class UnpackedPanels:
    """Neighbouring panels after ``unpack``, at ``base``: for each chunk, codes as bytes, then numbers as float32.

    k-quad 0 of every panel, k-quad 1 of every panel, …; then for each group: the scales of every panel, the minima.
    """

    def __init__(self, k: Kernel, packing: Packing, panels: int, base: Value) -> None:
        self._k = k
        self._groups = CHUNK // packing.group
        self._panels = panels
        self._base = base

    @property
    def chunk_bytes(self) -> int:
        return unpacked_chunk_bytes(self._groups, self._panels)

    def code(self, chunk: Value, quad: int, panel: int) -> Value:
        return self._k.load(I8X64, self._code_at(chunk, quad, panel))

    def numbers(self, chunk: Value, part: int, panel: int) -> Numbers:
        at = self._numbers_at(chunk, part, panel)
        return Numbers(self._k.load(F32X16, at), self._k.load(F32X16, at + 64 * self._panels))

    def unpack(self, chunk: Value, panel: int, packed: PackedPanel) -> None:
        for quad in range(CHUNK // 4):
            self._k.store(packed.code(chunk, quad), self._code_at(chunk, quad, panel))
        for part in range(self._groups):
            numbers = packed.numbers(chunk, part)
            at = self._numbers_at(chunk, part, panel)
            self._k.store(numbers.scale, at)
            self._k.store(numbers.minimum, at + 64 * self._panels)

    def _code_at(self, chunk: Value, quad: int, panel: int) -> Value:
        return self._base + chunk * self.chunk_bytes + 64 * (quad * self._panels + panel)

    def _numbers_at(self, chunk: Value, part: int, panel: int) -> Value:
        return self._base + chunk * self.chunk_bytes + 64 * self._panels * (8 + 2 * part) + 64 * panel


def unpacked_chunk_bytes(groups: int, panels: int) -> int:
    """Bytes of one unpacked chunk of ``panels`` panels with ``groups`` groups of scale and minimum."""
    return 64 * panels * (8 + 2 * groups)


def _region_starts(packing: Packing, base: Value, chunks: Value) -> dict[str, Value]:
    """Where each region begins, for any number of columns: every region is linear in it."""
    per_super = packing.regions(SUPER)
    return {name: base + ((chunks * offset) >> 3) for name, offset in per_super.items() if name != "end"}


def _plane_quad(k: Kernel, plane: Plane, lines: Value, quad: int) -> Value:
    """The plane's bits of a k-quad, moved to where they belong in the code."""
    line = k.load(I8X64, lines + 64 * (quad % plane.lines))
    if plane.kind == "byte":
        return line
    return _bits(line, quad // plane.lines * plane.bits, plane.bits, plane.shift)


def _bits(line: Value, first: int, count: int, to: int) -> Value:
    """Bits ``first … first + count`` of every byte, moved to bit ``to``; shifted as 16-bit lanes, then masked."""
    wide = line.as_bits(I16X32)
    if first > to:
        wide = wide >> first - to
    elif to > first:
        wide = wide << to - first
    mask = ((1 << count) - 1) << to
    return wide.as_bits(I8X64) & (mask if mask < 128 else mask - 256)
