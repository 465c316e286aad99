"""The GGUF reader against the `gguf` package: small files that it writes, and the default model."""

import os
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from twofold.core.errors import FormatError, ModelNotFoundError, UnsupportedModelError
from twofold.core.values import BY_NAME
from twofold.formats.gguf import AHEAD_BYTES, GGML_TYPES, GGUFFile, our_name

Fill = Callable[[gguf.GGUFWriter], None]


def write(path: Path, fill: Fill) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    fill(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_scalars(writer: gguf.GGUFWriter) -> None:
    writer.add_uint8("t.u8", 255)
    writer.add_int8("t.i8", -128)
    writer.add_uint16("t.u16", 65_535)
    writer.add_int16("t.i16", -32_768)
    writer.add_uint32("t.u32", 2**32 - 1)
    writer.add_int32("t.i32", -(2**31))
    writer.add_uint64("t.u64", 2**64 - 1)
    writer.add_int64("t.i64", -(2**63))
    writer.add_float32("t.f32", 0.25)
    writer.add_float64("t.f64", 0.1)
    writer.add_bool("t.yes", True)
    writer.add_bool("t.no", False)
    writer.add_string("t.text", "früh 🎂")


def test_every_scalar_type_keeps_its_value(tmp_path: Path) -> None:
    with GGUFFile.open(write(tmp_path / "a.gguf", add_scalars)) as file:
        found = {key: value for key, value in file.metadata.items() if key.startswith("t.")}
    assert found == {
        "t.u8": 255,
        "t.i8": -128,
        "t.u16": 65_535,
        "t.i16": -32_768,
        "t.u32": 2**32 - 1,
        "t.i32": -(2**31),
        "t.u64": 2**64 - 1,
        "t.i64": -(2**63),
        "t.f32": 0.25,
        "t.f64": 0.1,
        "t.yes": True,
        "t.no": False,
        "t.text": "früh 🎂",
    }
    assert found["t.yes"] is True


def test_arrays(tmp_path: Path) -> None:
    def fill(writer: gguf.GGUFWriter) -> None:
        writer.add_array("a.strings", ["<s>", "", "é", "▁the"])
        writer.add_array("a.floats", [0.5, -1.0])
        writer.add_array("a.ints", [-1, 2, 3])
        writer.add_array("a.bools", [True, False, True])
        writer.add_array("a.nested", [[1, 2], [3]])
        writer.add_array("a.deep", [[["x"], ["y", "z"]], [["w"]]])

    with GGUFFile.open(write(tmp_path / "a.gguf", fill)) as file:
        metadata = file.metadata
        assert metadata["a.strings"] == ["<s>", "", "é", "▁the"]
        assert np.array_equal(metadata["a.floats"], np.array([0.5, -1.0], np.float32))  # type: ignore[arg-type]
        assert np.array_equal(metadata["a.ints"], np.array([-1, 2, 3], np.int32))  # type: ignore[arg-type]
        bools = metadata["a.bools"]
        assert isinstance(bools, np.ndarray)
        assert bools.dtype == np.bool_
        assert bools.tolist() == [True, False, True]
        assert [list(inner) for inner in metadata["a.nested"]] == [[1, 2], [3]]  # type: ignore[arg-type,union-attr]
        assert metadata["a.deep"] == [[["x"], ["y", "z"]], [["w"]]]
        assert metadata["a.strings"] is metadata["a.strings"], "decoded once"


def test_decoded_arrays_outlive_the_file(tmp_path: Path) -> None:
    path = write(tmp_path / "a.gguf", lambda writer: writer.add_array("a.ints", [1, 2, 3]))
    with GGUFFile.open(path) as file:
        ints = file.metadata["a.ints"]
    assert isinstance(ints, np.ndarray)
    assert ints.tolist() == [1, 2, 3]


@pytest.mark.parametrize("name", sorted(BY_NAME))
def test_every_format_has_the_size_that_gguf_gives_it(name: str) -> None:
    block_values, block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    ours = BY_NAME[name]
    assert (ours.block_values, ours.block_bytes) == (block_values, block_bytes)
    assert GGML_TYPES[int(gguf.GGMLQuantizationType[name])] == ours.name


def test_tensors_of_one_to_four_dimensions(tmp_path: Path) -> None:
    arrays: dict[str, NDArray[Any]] = {
        "vector": np.arange(7, dtype=np.float32),
        "matrix": np.arange(12, dtype=np.float16).reshape(3, 4),
        "cube": np.arange(24, dtype=np.float32).reshape(2, 3, 4),
        "four": np.arange(48, dtype=np.float32).reshape(2, 2, 3, 4),
    }

    def fill(writer: gguf.GGUFWriter) -> None:
        for name, array in arrays.items():
            writer.add_tensor(name, array)

    with GGUFFile.open(write(tmp_path / "a.gguf", fill)) as file:
        assert list(file.tensors) == list(arrays)
        for name, array in arrays.items():
            info = file.tensors[name]
            assert info.shape == array.shape[::-1]
            assert (info.columns, info.rows) == (array.shape[-1], array.size // array.shape[-1])
            assert file.data(name).tobytes() == array.tobytes()


def test_alignment_of_the_file_is_used(tmp_path: Path) -> None:
    def fill(writer: gguf.GGUFWriter) -> None:
        writer.add_custom_alignment(512)
        writer.add_tensor("one", np.ones(3, np.float32))
        writer.add_tensor("two", np.full(5, 2, np.float32))

    with GGUFFile.open(write(tmp_path / "a.gguf", fill)) as file:
        assert all(info.offset % 512 == 0 for info in file.tensors.values())
        assert file.data("two").view(np.float32).tolist() == [2.0] * 5


def test_data_is_a_read_only_view_that_outlives_close(tmp_path: Path) -> None:
    path = write(tmp_path / "a.gguf", lambda writer: writer.add_tensor("t", np.arange(4, dtype=np.float32)))
    file = GGUFFile.open(path)
    view = file.data("t")
    file.close()
    assert not view.flags.writeable
    assert view.view(np.float32).tolist() == [0, 1, 2, 3]


def test_released_pages_come_back(tmp_path: Path) -> None:
    values = np.arange(100_000, dtype=np.float32)
    path = write(tmp_path / "a.gguf", lambda writer: writer.add_tensor("t", values))
    with GGUFFile.open(path) as file:
        view = file.data("t").view(np.float32)
        assert np.array_equal(view, values)
        file.release()
        assert np.array_equal(view, values)
        with pytest.raises(KeyError):
            file.data("nothing")


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="the system has no such request")
def test_every_byte_is_read_ahead_once_and_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.zeros(3 * AHEAD_BYTES // 4, np.float32)
    path = write(tmp_path / "a.gguf", lambda writer: writer.add_tensor("t", values))
    asked: list[int] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda _file, start, size, _advice: asked.extend((start, start + size)))
    with GGUFFile.open(path) as file:
        file.read_ahead()
        assert asked[0] == 0
        assert asked[1:-1:2] == asked[2::2]
        assert asked[-1] - AHEAD_BYTES < file.nbytes <= asked[-1]
        path.unlink()
        file.read_ahead()  # a mere wish: a file that is gone by now is no error


def split_in_two(folder: Path, count: int = 2) -> list[Path]:
    paths = []
    for number in (1, 2):

        def fill(writer: gguf.GGUFWriter, number: int = number) -> None:
            writer.add_uint16("split.no", number - 1)
            writer.add_uint16("split.count", count)
            writer.add_int32("split.tensors.count", 2)
            writer.add_tensor(f"t{number}", np.full(4, number, np.float32))

        paths.append(write(folder / f"m-{number:05}-of-{count:05}.gguf", fill))
    return paths


@pytest.mark.parametrize("named", [0, 1])
def test_a_split_model_opens_from_any_part(tmp_path: Path, named: int) -> None:
    with GGUFFile.open(split_in_two(tmp_path)[named]) as file:
        assert list(file.tensors) == ["t1", "t2"]
        assert [file.data(name).view(np.float32)[0] for name in file.tensors] == [1, 2]
        assert file.path.name == "m-00001-of-00002.gguf"
        assert file.nbytes == sum(path.stat().st_size for path in tmp_path.iterdir())


def test_a_split_model_without_its_second_part(tmp_path: Path) -> None:
    first, second = split_in_two(tmp_path)
    second.unlink()
    with pytest.raises(ModelNotFoundError, match="m-00002-of-00002"):
        GGUFFile.open(first)


def test_the_error_of_a_renamed_part_gives_its_name(tmp_path: Path) -> None:
    first, _ = split_in_two(tmp_path)
    with pytest.raises(UnsupportedModelError, match=r"NAME-00001-of-00002\.gguf"):
        GGUFFile.open(first.rename(tmp_path / "model.gguf"))


@pytest.mark.parametrize("key", ["split.no", "split.count", "split.tensors.count"])
def test_a_part_of_another_model_is_named(tmp_path: Path, key: str) -> None:
    first, second = split_in_two(tmp_path)

    def fill(writer: gguf.GGUFWriter) -> None:
        for name, value in {"split.no": 1, "split.count": 2, "split.tensors.count": 2, key: 3}.items():
            writer.add_uint32(name, value)
        writer.add_tensor("t2", np.zeros(4, np.float32))

    write(second, fill)
    with pytest.raises(FormatError, match=f"m-00002-of-00002.gguf is a part of another model: its {key} is 3"):
        GGUFFile.open(first)


def test_a_part_that_repeats_a_tensor(tmp_path: Path) -> None:
    first, second = split_in_two(tmp_path)
    write(second, lambda writer: writer.add_tensor("t1", np.zeros(4, np.float32)))
    with pytest.raises(FormatError, match="'t1' is also in another part"):
        GGUFFile.open(first)


SCALARS = {
    "add_uint32": st.integers(0, 2**32 - 1),
    "add_int64": st.integers(-(2**63), 2**63 - 1),
    "add_float64": st.floats(allow_nan=False),
    "add_bool": st.booleans(),
    "add_string": st.text(min_size=1, max_size=20),  # the writer leaves empty strings out
    "add_array": st.one_of(
        st.lists(st.text(max_size=8), min_size=1, max_size=9),
        st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=9),
        st.lists(st.booleans(), min_size=1, max_size=9),
    ),
}
ENTRY = st.sampled_from(sorted(SCALARS)).flatmap(lambda method: st.tuples(st.just(method), SCALARS[method]))
KEYS = st.text("abcdefgh._", min_size=1, max_size=12)


@settings(max_examples=40, deadline=None)
@given(entries=st.dictionaries(KEYS, ENTRY, max_size=6), columns=st.lists(st.integers(1, 40), max_size=4))
def test_files_written_by_gguf_are_read_back(
    tmp_path_factory: pytest.TempPathFactory, entries: dict[str, tuple[str, object]], columns: list[int]
) -> None:
    def fill(writer: gguf.GGUFWriter) -> None:
        for key, (method, value) in entries.items():
            getattr(writer, method)("x." + key, value)
        for index, size in enumerate(columns):
            writer.add_tensor(f"t{index}", np.full((2, size), index, np.float32))

    path = write(tmp_path_factory.mktemp("gguf") / "a.gguf", fill)
    with GGUFFile.open(path) as file:
        for key, (_, value) in entries.items():
            found = file.metadata["x." + key]
            assert (found.tolist() if isinstance(found, np.ndarray) else found) == value
        for index, size in enumerate(columns):
            assert file.data(f"t{index}").view(np.float32).tolist() == [float(index)] * (2 * size)


def test_a_vocabulary_of_262144_tokens_is_fast(tmp_path: Path) -> None:
    tokens = [f"tok{i}".encode() for i in range(262_144)]
    body = b"".join(struct.pack("<Q", len(token)) + token for token in tokens)
    key = b"tokenizer.ggml.tokens"
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", len(key)) + key
    path = tmp_path / "a.gguf"
    path.write_bytes(head + struct.pack("<IIQ", 9, 8, len(tokens)) + body)

    def read_once() -> float:
        start = time.thread_time()
        with GGUFFile.open(path) as file:
            assert len(file.metadata["tokenizer.ggml.tokens"]) == len(tokens)  # type: ignore[arg-type]
        return time.thread_time() - start

    # Measured at 0.12 s; the bound only catches a return to seconds on a busy machine.
    assert min(read_once() for _ in range(3)) < 0.6


@pytest.mark.model
def test_the_default_model_against_the_gguf_package(default_model: Path) -> None:
    compare_with_package(default_model)


def compare_with_package(path: Path) -> None:
    raw = path.read_bytes()[:64]
    oracle = gguf.GGUFReader(path)
    with GGUFFile.open(path) as file:
        assert raw.startswith(b"GGUF")
        assert set(file.metadata) == {key for key in oracle.fields if not key.startswith("GGUF.")}
        for key in file.metadata:
            if not key.startswith("tokenizer.ggml.merges"):
                compare_value(file.metadata[key], oracle.fields[key])
        infos = list(file.tensors.values())
        assert [info.name for info in infos] == [tensor.name for tensor in oracle.tensors]
        assert list(file.tensors) == [our_name(info.name) for info in infos]
        for info, tensor in zip(infos, oracle.tensors, strict=True):
            assert info.shape == tuple(tensor.shape.tolist())
            assert info.format is BY_NAME[GGML_TYPES[int(tensor.tensor_type)]]
            assert (info.offset, info.nbytes) == (tensor.data_offset, tensor.n_bytes)
        assert file.data(list(file.tensors)[-1]).tobytes() == oracle.tensors[-1].data.tobytes()


def compare_value(ours: object, field: gguf.ReaderField) -> None:
    theirs = field.contents()
    if isinstance(ours, np.ndarray):
        assert ours.tolist() == theirs
    else:
        assert ours == theirs
