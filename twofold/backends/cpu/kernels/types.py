"""The types of LLVM that kernels use, and how constants of them are written."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Type:
    """An LLVM first-class type: a scalar, or a vector of ``lanes`` of them."""

    scalar: str
    lanes: int = 1

    def __str__(self) -> str:
        return self.scalar if self.lanes == 1 else f"<{self.lanes} x {self.scalar}>"

    @property
    def is_float(self) -> bool:
        return self.scalar in FLOAT_BITS

    @property
    def bits(self) -> int:
        """Bits of one lane."""
        return 64 if self.scalar == "ptr" else FLOAT_BITS.get(self.scalar) or int(self.scalar[1:])

    @property
    def mangled(self) -> str:
        """The type's spelling in the name of an overloaded intrinsic."""
        letter = f"f{self.bits}" if self.is_float else self.scalar
        return letter if self.lanes == 1 else f"v{self.lanes}{letter}"

    def of(self, lanes: int) -> Type:
        return Type(self.scalar, lanes)


FLOAT_BITS: Final = {"half": 16, "float": 32, "double": 64}
VOID, PTR, I1, I8, I16, I32, I64 = (Type(s) for s in ("void", "ptr", "i1", "i8", "i16", "i32", "i64"))
F16, F32, F64 = Type("half"), Type("float"), Type("double")
F32X16, I32X16, I8X64, I16X32, F16X16, I8X16 = F32.of(16), I32.of(16), I8.of(64), I16.of(32), F16.of(16), I8.of(16)


def literal(kind: Type, value: float) -> str:
    """The text of a constant of the scalar type ``kind``; floats are given by their exact bits."""
    if not kind.is_float:
        return str(int(value))
    if kind.scalar == "half":
        return f"0xH{struct.unpack('<H', struct.pack('<e', value))[0]:04X}"
    if kind.scalar == "float":
        value = struct.unpack("<f", struct.pack("<f", value))[0]
    return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"
