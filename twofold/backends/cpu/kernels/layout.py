"""How quantised weights lie in memory for the kernels.

A matrix of ``rows`` outputs × ``columns`` inputs is cut into **panels** of 16 outputs. A panel holds everything about
its outputs, region after region, each in ascending k:

    codes     for each chunk of 32 k, the planes that make up a code (one 64-byte line is 4 k of 16 outputs):
                byte     8 lines   line q                    = k-quad q
                nibble   4 lines   line q, low and high half  = k-quads q and q + 4
                crumb    2 lines   line l, bits 2j, 2j+1      = k-quad l + 2·j
                bit      1 line    bit j                      = k-quad j
    scales    for each group of 16 or 32 k, 16 numbers: float16, or small integers
    minima    the same, where the format has them
    supers    for each 256 k, float16 factors of the integer scales (and minima), 16 of each

A plane of 64 bytes is one load; an output's code for k = 4q + j is byte 4·column + j of its k-quad. Every GGUF integer
format is planes + scale + minimum: value = scale · code + minimum. The packed size is the file's, but for scales that
K-quants squeeze into 6 bits (at most 4 % more).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

PANEL: Final = 16
CHUNK: Final = 32
SUPER: Final = 256

PlaneKind = Literal["byte", "nibble", "crumb", "bit"]
PLANE_BITS: Final[dict[PlaneKind, int]] = {"byte": 8, "nibble": 4, "crumb": 2, "bit": 1}

IQ4_NL_VALUES: Final = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
"""The non-uniform 4-bit code book of the IQ4_NL format."""


@dataclass(frozen=True, slots=True)
class Plane:
    """Some bits of every code; ``shift`` is where they belong."""

    kind: PlaneKind
    shift: int = 0

    @property
    def bits(self) -> int:
        return PLANE_BITS[self.kind]

    @property
    def lines(self) -> int:
        """64-byte lines of one chunk."""
        return self.bits


@dataclass(frozen=True, slots=True)
class Packing:
    """One integer format as planes, scales and minima.

    scale    "f16": one each group. "i8" / "u8": integers times the super-block's float16. "u4u4": scale and minimum
             share a byte, low half the scale.
    minimum  "offset": −offset · scale. "f16": its own number, added. "u8" / "u4u4": integers times the super-block's
             second float16, subtracted.
    lookup   if given, codes index it; 128 is added to its values to make them unsigned.
    """

    name: str
    planes: tuple[Plane, ...]
    group: int
    scale: Literal["f16", "i8", "u8", "u4u4"]
    minimum: Literal["offset", "f16", "u8", "u4u4"]
    offset: int = 0
    lookup: tuple[int, ...] | None = None

    @property
    def has_supers(self) -> bool:
        return self.scale != "f16"

    @property
    def block(self) -> int:
        """Values of one output whose numbers belong together."""
        return SUPER if self.has_supers else CHUNK

    @property
    def code_bits(self) -> int:
        """Bits of an unsigned code as it enters the dot product."""
        return 8 if self.lookup else sum(plane.bits for plane in self.planes)

    def regions(self, columns: int) -> dict[str, int]:
        """Byte offset of each region in a panel, in order; the last is ``end``, a multiple of 64."""
        sizes = {f"plane{i}": columns // CHUNK * 64 * plane.lines for i, plane in enumerate(self.planes)}
        groups = columns // self.group
        sizes["scales"] = groups * PANEL * (2 if self.scale == "f16" else 1)
        if self.minimum in {"f16", "u8"}:
            sizes["minima"] = groups * PANEL * (2 if self.minimum == "f16" else 1)
        if self.has_supers:
            sizes["supers"] = columns // SUPER * PANEL * 2
            if self.minimum != "offset":
                sizes["super_minima"] = columns // SUPER * PANEL * 2
        return _offsets(sizes)

    def panel_bytes(self, columns: int) -> int:
        return self.regions(columns)["end"]

    def packed_bytes(self, rows: int, columns: int) -> int:
        return -(-rows // PANEL) * self.panel_bytes(columns)


def _offsets(sizes: dict[str, int]) -> dict[str, int]:
    offsets, at = {}, 0
    for name, size in sizes.items():
        offsets[name] = at
        at += size
    offsets["end"] = -(-at // 64) * 64
    return offsets


NIBBLE, BYTE = Plane("nibble"), Plane("byte")
PACKINGS: Final[dict[str, Packing]] = {
    p.name: p
    for p in (
        Packing("Q4_0", (NIBBLE,), 32, "f16", "offset", 8),
        Packing("Q4_1", (NIBBLE,), 32, "f16", "f16"),
        Packing("Q5_0", (NIBBLE, Plane("bit", 4)), 32, "f16", "offset", 16),
        Packing("Q5_1", (NIBBLE, Plane("bit", 4)), 32, "f16", "f16"),
        Packing("Q8_0", (BYTE,), 32, "f16", "offset", 128),
        Packing("IQ4_NL", (NIBBLE,), 32, "f16", "offset", 128, IQ4_NL_VALUES),
        Packing("Q2_K", (Plane("crumb"),), 16, "u4u4", "u4u4"),
        Packing("Q3_K", (Plane("crumb"), Plane("bit", 2)), 16, "i8", "offset", 4),
        Packing("Q4_K", (NIBBLE,), 32, "u8", "u8"),
        Packing("Q5_K", (NIBBLE, Plane("bit", 4)), 32, "u8", "u8"),
        Packing("Q6_K", (NIBBLE, Plane("crumb", 4)), 16, "i8", "offset", 32),
    )
}
