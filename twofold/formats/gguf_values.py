"""The metadata values of GGUF files, and a cursor that never leaves the file.

Layout: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Numbers are little-endian; a string is a u64 length
and UTF-8 bytes; an array is a u32 element type, a u64 count and its elements.

Each length and count is compared, in Python integers, with the rest of the file before it is used, so a hostile header
costs neither memory nor time. Arrays are skipped while the header is read, and decoded on first use.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, NoReturn, TypeAlias

import numpy as np
from numpy.typing import NDArray

from twofold.core.errors import FormatError

MetadataValue: TypeAlias = "bool | int | float | str | NDArray[Any] | list[str] | list[MetadataValue]"
"""A decoded value. An array of numbers is a NumPy array of the file's type, an array of strings is a list."""

DAMAGED_HINT: Final = "The file is damaged or incomplete: download it again."
MAX_NESTING: Final = 8
MAX_STRINGS: Final = 1 << 22
"""Maximum number of strings in one header's arrays; the largest known vocabularies with merges have under a million."""
MAX_ARRAYS: Final = 1 << 16
"""Maximum number of arrays inside of arrays in one header."""

STRING: Final = 8
ARRAY: Final = 9
BOOL: Final = 7
U32: Final = struct.Struct("<I")
U64: Final = struct.Struct("<Q")


class _Scalar(NamedTuple):
    layout: struct.Struct
    dtype: np.dtype[Any]


_CODES: Final = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", BOOL: "B", 10: "Q", 11: "q", 12: "d"}
_SCALARS: Final = {
    kind: _Scalar(struct.Struct(f"<{code}"), np.dtype({"Q": "<u8", "q": "<i8"}.get(code, f"<{code}")))
    for kind, code in _CODES.items()
}


@dataclass(frozen=True, slots=True)
class ArrayRef:
    """An array that was checked and skipped: ``count`` elements of ``kind`` in the bytes ``start`` … ``stop``."""

    key: str
    kind: int
    count: int
    start: int
    stop: int


class Cursor:
    """Reads a mapped file from front to back. Raises FormatError, with the file's name, for malformed data."""

    def __init__(self, mapped: mmap.mmap, label: str, position: int = 0) -> None:
        self.position = position
        self._mapped = mapped
        self._label = label
        self._end = len(mapped)
        self._left = {STRING: MAX_STRINGS, ARRAY: MAX_ARRAYS}

    def fail(self, message: str) -> NoReturn:
        raise FormatError(f"{self._label}: {message}.", hint=DAMAGED_HINT)

    def take(self, size: int, what: str) -> int:
        """Moves past ``size`` bytes. Returns their offset."""
        start = self.position
        if size > self._end - start:
            self.fail(f"{what} needs {size} bytes at offset {start}, but the file ends at {self._end}")
        self.position = start + size
        return start

    def number(self, layout: struct.Struct, what: str) -> Any:
        return layout.unpack_from(self._mapped, self.take(layout.size, what))[0]

    def text(self, what: str, limit: int | None = None) -> str:
        length: int = self.number(U64, f"the length of {what}")
        if limit is not None and length > limit:
            self.fail(f"{what} is {length} bytes long; at most {limit} are allowed")
        start = self.take(length, what)
        try:
            return str(self._mapped[start : self.position], "utf-8")
        except UnicodeDecodeError:
            self.fail(f"{what} at offset {start} is not UTF-8")

    def value(self, kind: int, key: str) -> MetadataValue | ArrayRef:
        """The value of ``key``; an array is checked and skipped."""
        if kind == ARRAY:
            return self._skip_array(key, depth=1)
        return self._plain(kind, key)

    def elements(self, ref: ArrayRef) -> MetadataValue:
        """Decodes an array that ``value`` skipped."""
        if ref.kind in _SCALARS:
            return self._numbers(ref)
        if ref.kind == STRING:
            return self._strings(ref)
        self.position = ref.start
        return [self.elements(self._skip_array(ref.key, depth=1)) for _ in range(ref.count)]

    def _plain(self, kind: int, key: str) -> bool | int | float | str:
        if kind == STRING:
            return self.text(f"the value of {key!r}")
        scalar = _SCALARS.get(kind)
        if scalar is None:
            self.fail(f"{key!r} has the unknown value type {kind}")
        number: int | float = self.number(scalar.layout, f"the value of {key!r}")
        if kind != BOOL:
            return number
        if number not in (0, 1):
            self.fail(f"{key!r} is a boolean, but holds the byte {number}")
        return number == 1

    def _skip_array(self, key: str, depth: int) -> ArrayRef:
        if depth > MAX_NESTING:
            self.fail(f"{key!r} nests arrays more than {MAX_NESTING} deep")
        kind: int = self.number(U32, f"the element type of {key!r}")
        count: int = self.number(U64, f"the length of {key!r}")
        start = self.position
        if kind in _SCALARS:
            self.take(count * _SCALARS[kind].layout.size, f"{key!r} ({count} elements)")
        elif kind in (STRING, ARRAY):
            self._skip_elements(key, kind, count, depth)
        else:
            self.fail(f"{key!r} has the unknown element type {kind}")
        return ArrayRef(key, kind, count, start, self.position)

    def _skip_elements(self, key: str, kind: int, count: int, depth: int) -> None:
        least = U64.size if kind == STRING else U32.size + U64.size
        if count * least > self._end - self.position:
            self.fail(f"{key!r} claims {count} elements at offset {self.position}, more than the file can hold")
        self._left[kind] -= count
        if self._left[kind] < 0:
            self.fail(f"{key!r} has {count} elements, too many for a model's metadata")
        if kind == STRING:
            self._skip_strings(key, count)
            return
        for _ in range(count):
            self._skip_array(key, depth + 1)

    def _skip_strings(self, key: str, count: int) -> None:
        # The strings of a vocabulary pass through this loop, so it does nothing else.
        position, mapped, unpack = self.position, self._mapped, U64.unpack_from
        last = self._end - U64.size
        for index in range(count):
            if position > last:
                self.fail(f"string {index} of {key!r} lies beyond the end of the file at {self._end}")
            position += 8 + unpack(mapped, position)[0]
        self.position = self._end + 1 if position > self._end else position
        self.take(0, f"the last string of {key!r}")

    def _strings(self, ref: ArrayRef) -> list[str]:
        blob, unpack, position = self._mapped[ref.start : ref.stop], U64.unpack_from, 0
        strings: list[str] = []
        try:
            for _ in range(ref.count):
                start = position + 8
                position = start + unpack(blob, position)[0]
                strings.append(blob[start:position].decode())
        except UnicodeDecodeError:
            self.fail(f"string {len(strings)} of {ref.key!r} is not UTF-8")
        self.position = ref.stop
        return strings

    def _numbers(self, ref: ArrayRef) -> NDArray[Any]:
        # The slice is a copy: the array outlives the mapping, and the file does not align it.
        raw = np.frombuffer(self._mapped[ref.start : ref.stop], dtype=_SCALARS[ref.kind].dtype)
        self.position = ref.stop
        if ref.kind != BOOL:
            return raw
        if bool((raw > 1).any()):
            self.fail(f"{ref.key!r} is an array of booleans, but holds other bytes than 0 and 1")
        return raw.astype(np.bool_)
