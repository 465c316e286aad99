"""Writes GGUF files for tests, byte by byte as the specification says."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from twofold.core.values import QuantFormat
from twofold.formats.gguf import GGML_TYPES

MetadataItem = bool | int | float | str | Sequence[str] | NDArray[np.generic]

ALIGNMENT: Final = 32
TYPE_NUMBERS: Final = {name: number for number, name in GGML_TYPES.items()}
BOOL, STRING, ARRAY = 7, 8, 9
ARRAY_TYPES: Final[Mapping[str, int]] = {
    "uint8": 0,
    "int8": 1,
    "uint16": 2,
    "int16": 3,
    "uint32": 4,
    "int32": 5,
    "float32": 6,
    "bool": BOOL,
    "uint64": 10,
    "int64": 11,
    "float64": 12,
}


@dataclass(frozen=True, slots=True)
class RawTensor:
    """A tensor's format, shape (rows then columns, or just columns) and raw bytes."""

    format: QuantFormat
    shape: tuple[int, ...]
    data: NDArray[np.uint8]


def write_gguf(path: Path, metadata: Mapping[str, MetadataItem], tensors: Mapping[str, RawTensor]) -> None:
    """A version 3 file. Python ints become uint32, floats float32, lists arrays of strings."""
    path.write_bytes(gguf_bytes(metadata, tensors))


def gguf_bytes(metadata: Mapping[str, MetadataItem], tensors: Mapping[str, RawTensor]) -> bytes:
    """The whole file that ``write_gguf`` writes."""
    head = [struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(metadata))]
    head += [_text(key) + _typed(value) for key, value in metadata.items()]
    offset, body = 0, []
    for name, tensor in tensors.items():
        raw = tensor.data.tobytes()
        head.append(_describe(name, tensor, offset))
        body.append(raw + bytes(-len(raw) % ALIGNMENT))
        offset += len(body[-1])
    header = b"".join(head)
    return header + bytes(-len(header) % ALIGNMENT) + b"".join(body)


def _describe(name: str, tensor: RawTensor, offset: int) -> bytes:
    dimensions = struct.pack(f"<I{len(tensor.shape)}Q", len(tensor.shape), *reversed(tensor.shape))
    return _text(name) + dimensions + struct.pack("<IQ", TYPE_NUMBERS[tensor.format.name], offset)


def _text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def _typed(value: MetadataItem) -> bytes:
    match value:
        case bool():
            return struct.pack("<I?", BOOL, value)
        case int():
            return struct.pack("<II", ARRAY_TYPES["uint32"], value)
        case float():
            return struct.pack("<If", ARRAY_TYPES["float32"], value)
        case str():
            return struct.pack("<I", STRING) + _text(value)
        case np.ndarray():
            kind = ARRAY_TYPES[value.dtype.name]
            return struct.pack("<IIQ", ARRAY, kind, len(value)) + value.tobytes()
        case _:
            return struct.pack("<IIQ", ARRAY, STRING, len(value)) + b"".join(_text(item) for item in value)
