"""Damaged and hostile GGUF files: always a clear error, quickly, without much memory."""

import contextlib
import os
import struct
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twofold.core.errors import FormatError, ModelError, ModelNotFoundError, ResourceError, UnsupportedModelError
from twofold.formats.gguf import GGUFFile

U32, F32, BOOL, STRING, ARRAY = 4, 6, 7, 8, 9
HUGE = 2**64 - 1


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def pair(key: bytes, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def array(kind: int, count: int, body: bytes) -> bytes:
    return struct.pack("<IQ", kind, count) + body


def tensor(name: bytes, shape: tuple[int, ...], ggml_type: int = 0, offset: int = 0) -> bytes:
    dims = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return text(name) + dims + struct.pack("<IQ", ggml_type, offset)


def build(pairs: list[bytes], tensors: list[bytes], data: bytes = b"", version: int = 3, alignment: int = 32) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(pairs)) + b"".join(pairs + tensors)
    return head + bytes(-len(head) % alignment) + data if tensors else head


TINY = build(
    [
        pair(b"general.architecture", STRING, text(b"llama")),
        pair(b"n", U32, struct.pack("<I", 7)),
        pair(b"flag", BOOL, b"\x01"),
        pair(b"words", ARRAY, array(STRING, 2, text(b"ab") + text(b"c"))),
        pair(b"rows", ARRAY, array(ARRAY, 1, array(F32, 1, struct.pack("<f", 1.5)))),
        pair(b"flags", ARRAY, array(BOOL, 2, b"\x00\x01")),
    ],
    [tensor(b"a", (4,)), tensor(b"b", (32, 2), ggml_type=8, offset=32)],
    np.arange(4, dtype=np.float32).tobytes() + bytes(16) + bytes(68),
)


def read_all(path: Path) -> None:
    """Reads everything that can be asked for."""
    with GGUFFile.open(path) as file:
        dict(file.metadata.items())
        for name in file.tensors:
            assert file.data(name).nbytes == file.tensors[name].nbytes


def refused(tmp_path: Path, content: bytes, kind: type[ModelError] = FormatError) -> str:
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    start = time.thread_time()
    with pytest.raises(kind) as caught:
        read_all(path)
    assert time.thread_time() - start < 1.0
    assert caught.value.hint
    return str(caught.value)


def test_the_tiny_file_is_good(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(TINY)
    read_all(path)


def test_truncated_at_every_byte(tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    for size in range(len(TINY)):
        path.write_bytes(TINY[:size])
        with pytest.raises(FormatError):
            read_all(path)


@pytest.mark.parametrize("flip", [0x01, 0x80, 0xFF], ids=hex)
def test_every_byte_flipped(tmp_path: Path, flip: int) -> None:
    path = tmp_path / "flipped.gguf"
    good = 0
    for index in range(len(TINY)):
        path.write_bytes(TINY[:index] + bytes([TINY[index] ^ flip]) + TINY[index + 1 :])
        try:
            read_all(path)
        except (FormatError, UnsupportedModelError):
            continue
        good += 1
    assert good >= 100, "flips inside the data change nothing that is checked"


@settings(max_examples=150, deadline=None)
@given(edits=st.lists(st.tuples(st.integers(0, len(TINY) - 1), st.binary(min_size=1, max_size=8)), max_size=6))
def test_overwritten_anywhere(tmp_path_factory: pytest.TempPathFactory, edits: list[tuple[int, bytes]]) -> None:
    content = bytearray(TINY)
    for index, patch in edits:
        content[index : index + len(patch)] = patch
    path = tmp_path_factory.mktemp("edit") / "a.gguf"
    path.write_bytes(content)
    with contextlib.suppress(FormatError, UnsupportedModelError):
        read_all(path)


@settings(max_examples=60, deadline=None)
@given(tail=st.binary(max_size=200))
def test_anything_after_the_magic(tmp_path_factory: pytest.TempPathFactory, tail: bytes) -> None:
    path = tmp_path_factory.mktemp("noise") / "a.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<I", 3) + tail)
    with pytest.raises((FormatError, UnsupportedModelError)):
        read_all(path)


@pytest.mark.parametrize("count", [1000, 2**32, 2**63, HUGE])
@pytest.mark.parametrize("kind", [U32, BOOL, STRING, ARRAY])
def test_a_claimed_array_length_costs_nothing(tmp_path: Path, kind: int, count: int) -> None:
    content = build([pair(b"k", ARRAY, array(kind, count, bytes(512)))], [])
    tracemalloc.start()
    message = refused(tmp_path, content)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "'k'" in message
    assert peak < 1 << 20


@pytest.mark.parametrize("length", [1000, 2**32, 2**63 - 1, HUGE])
def test_a_claimed_string_length_costs_nothing(tmp_path: Path, length: int) -> None:
    value = struct.pack("<Q", length) + b"x"
    assert "'k'" in refused(tmp_path, build([pair(b"k", STRING, value)], []))
    assert "'k'" in refused(tmp_path, build([pair(b"k", ARRAY, array(STRING, 1, value))], []))
    two = array(STRING, 2, value + bytes(16))
    assert "'k'" in refused(tmp_path, build([pair(b"k", ARRAY, two)], []))
    assert "metadata key 0" in refused(tmp_path, b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + value)


def test_arrays_within_arrays_are_bounded(tmp_path: Path) -> None:
    nested = array(U32, 0, b"")
    for _ in range(20):
        nested = array(ARRAY, 1, nested)
    assert "deep" in refused(tmp_path, build([pair(b"k", ARRAY, nested)], []))
    many = array(ARRAY, 100_000, array(U32, 0, b"") * 100_000)
    assert "too many" in refused(tmp_path, build([pair(b"k", ARRAY, many)], []))


def test_a_file_of_millions_of_empty_strings_is_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "sparse.gguf"
    path.write_bytes(build([pair(b"k", ARRAY, array(STRING, 2**27, b""))], []))
    os.truncate(path, 2**31)
    start = time.thread_time()
    with pytest.raises(FormatError, match="too many"):
        read_all(path)
    assert time.thread_time() - start < 1.0


@pytest.mark.parametrize("counts", [(HUGE, 0), (0, HUGE), (70_000, 0), (0, 70_000)])
def test_claimed_counts(tmp_path: Path, counts: tuple[int, int]) -> None:
    assert "at most" in refused(tmp_path, b"GGUF" + struct.pack("<IQQ", 3, *counts) + bytes(4096))


@pytest.mark.parametrize(
    ("shape", "ggml_type"),
    [
        ((HUGE,), 0),
        ((2**63, 2), 0),
        ((2**32, 2**32), 0),
        ((2**62, 2**62, 2**62, 2**62), 0),
        ((2**62 + 32, 4), 8),
        ((100,), 0),
    ],
)
def test_a_shape_whose_product_is_beyond_the_file(tmp_path: Path, shape: tuple[int, ...], ggml_type: int) -> None:
    assert "'t'" in refused(tmp_path, build([], [tensor(b"t", shape, ggml_type)], bytes(64)))


@pytest.mark.parametrize(
    ("info", "expected"),
    [
        (tensor(b"t", ()), "0 dimensions"),
        (tensor(b"t", (1,) * 5), "5 dimensions"),
        (tensor(b"t", (4, 0)), "no values"),
        (tensor(b"t", (0,)), "no values"),
        (tensor(b"t", (4,), offset=16), "multiple of 32"),
        (tensor(b"t", (4,), offset=64), "ends at byte"),
        (tensor(b"t", (4,), offset=HUGE - 31), "ends at byte"),
        (tensor(b"t", (33,), ggml_type=8), "whole Q8_0 blocks of 32"),
        (tensor(b"t" * 1025, (4,)), "at most 1024"),
        (tensor(b"\xff", (4,)), "not UTF-8"),
    ],
)
def test_an_impossible_tensor(tmp_path: Path, info: bytes, expected: str) -> None:
    assert expected in refused(tmp_path, build([], [info], bytes(64)))


def test_names_that_appear_twice_and_tensors_that_overlap(tmp_path: Path) -> None:
    key = pair(b"k", U32, bytes(4))
    assert "'k' appears twice" in refused(tmp_path, build([key, key], []))
    twice = [tensor(b"t", (4,)), tensor(b"t", (4,), offset=32)]
    assert "'t' appears twice" in refused(tmp_path, build([], twice, bytes(64)))
    overlapping = [tensor(b"a", (9,)), tensor(b"b", (4,), offset=32)]
    assert "'a' and 'b' overlap" in refused(tmp_path, build([], overlapping, bytes(64)))


@pytest.mark.parametrize("alignment", [0, 1, 4, 24, 33, 2**31])
def test_an_impossible_alignment(tmp_path: Path, alignment: int) -> None:
    key = pair(b"general.alignment", U32, struct.pack("<I", alignment))
    assert "power of two" in refused(tmp_path, build([key], [tensor(b"t", (4,))], bytes(64)))


def test_an_alignment_of_another_type(tmp_path: Path) -> None:
    key = pair(b"general.alignment", STRING, text(b"32"))
    assert "general.alignment" in refused(tmp_path, build([key], []))


def test_unknown_types(tmp_path: Path) -> None:
    assert "value type 13" in refused(tmp_path, build([pair(b"k", 13, bytes(8))], []))
    assert "element type 77" in refused(tmp_path, build([pair(b"k", ARRAY, array(77, 1, bytes(8)))], []))
    assert "holds the byte 2" in refused(tmp_path, build([pair(b"k", BOOL, b"\x02")], []))
    assert "'k'" in refused(tmp_path, build([pair(b"k", ARRAY, array(BOOL, 1, b"\x02"))], []))
    assert "not UTF-8" in refused(tmp_path, build([pair(b"k", STRING, text(b"\xff"))], []))
    assert "string 1 of 'k'" in refused(
        tmp_path, build([pair(b"k", ARRAY, array(STRING, 2, text(b"a") + text(b"\xff")))], [])
    )


@pytest.mark.parametrize(("ggml_type", "name"), [(23, "IQ4_XS"), (39, "MXFP4"), (999, "number 999")])
def test_an_unsupported_tensor_type_names_tensor_and_type(tmp_path: Path, ggml_type: int, name: str) -> None:
    message = refused(tmp_path, build([], [tensor(b"blk.0.x", (256,), ggml_type)], bytes(999)), UnsupportedModelError)
    assert "'blk.0.x'" in message
    assert name in message


def test_versions_and_byte_order(tmp_path: Path) -> None:
    for version in (0, 1, 4):
        assert f"version {version}" in refused(tmp_path, build([], [], version=version), UnsupportedModelError)
    big = b"GGUF" + struct.pack(">IQQ", 3, 0, 0)
    assert "big-endian" in refused(tmp_path, big, UnsupportedModelError)
    path = tmp_path / "two.gguf"
    path.write_bytes(build([], [], version=2))
    with GGUFFile.open(path) as file:
        assert file.version == 2


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "is empty"),
        (b"GG", "not a GGUF file"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS"),
        (b"<!doctype html>", "web page"),
        (b"PK\x03\x04rest", "zip archive"),
        (bytes(100), "not a GGUF file"),
    ],
)
def test_files_that_are_something_else(tmp_path: Path, content: bytes, expected: str) -> None:
    assert expected in refused(tmp_path, content)


def test_a_file_from_before_gguf(tmp_path: Path) -> None:
    assert "before GGUF" in refused(tmp_path, b"tjgg" + bytes(60), UnsupportedModelError)


def test_paths_that_are_not_regular_files(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError):
        GGUFFile.open(tmp_path / "none.gguf")
    with pytest.raises(FormatError, match="not a regular file"):
        GGUFFile.open(tmp_path)
    pipe = tmp_path / "pipe.gguf"
    os.mkfifo(pipe)
    with pytest.raises(FormatError, match="not a regular file"):
        GGUFFile.open(pipe)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission(tmp_path: Path) -> None:
    path = tmp_path / "secret.gguf"
    path.write_bytes(TINY)
    path.chmod(0)
    with pytest.raises(ResourceError):
        GGUFFile.open(path)
