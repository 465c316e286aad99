"""Parts of a stored tensor, by rows and by columns, become the same panels as a tensor that holds only that part."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from tests.backends.cpu.conftest import ISAS
from tests.support.gguf_writer import RawTensor, write_gguf
from tests.support.quantize import quantize
from twofold.backends.cpu.kernels.jit import Compiler
from twofold.backends.cpu.kernels.thread_pool import ThreadPool
from twofold.backends.cpu.weights import PackedMatrix, WeightStore
from twofold.core.values import BY_NAME
from twofold.formats.base import ModelFile, open_model
from twofold.models.ops import TensorRef

ROWS, COLUMNS = slice(16, 48), slice(512, 1024)
VALUES = np.random.default_rng(5).standard_normal((64, 1024)).astype(np.float32)


def packed_bytes(matrix: PackedMatrix) -> bytes:
    return ctypes.string_at(matrix.address, matrix.panel_bytes * matrix.panels)


@pytest.mark.parametrize("form", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_K", "Q6_K"])
def test_a_part_is_packed_like_a_tensor_of_its_own(
    tmp_path: Path, compiler_for: Callable[[str], Compiler], form: str
) -> None:
    path = tmp_path / "parts.gguf"
    parts = {"whole": VALUES, "rows": VALUES[ROWS], "columns": VALUES[:, COLUMNS], "both": VALUES[ROWS, COLUMNS]}
    quant = BY_NAME[form]
    tensors = {
        name: RawTensor(quant, each.shape, quantize(np.ascontiguousarray(each), quant)) for name, each in parts.items()
    }
    write_gguf(path, {"general.architecture": "none"}, tensors)
    compiler = compiler_for(ISAS[0])
    pool = ThreadPool(compiler, 1, 1 << 16)
    refs = {
        "rows": TensorRef("whole", 32, 1024, first_row=16),
        "columns": TensorRef("whole", 64, 512, first_column=512),
        "both": TensorRef("whole", 32, 512, 16, 512),
    }
    try:
        with open_model(path) as file:
            store = WeightStore(file, compiler, pool)
            own = {name: TensorRef(name, ref.rows, ref.columns) for name, ref in refs.items()}
            with store.packing([*refs.values(), *own.values()]):
                pass
            for name, ref in refs.items():
                assert packed_bytes(store.matrix(ref)) == packed_bytes(store.matrix(own[name])), name
    finally:
        pool.close()


def test_a_part_of_a_vector(tmp_path: Path, compiler_for: Callable[[str], Compiler]) -> None:
    path, form = tmp_path / "vector.gguf", BY_NAME["F32"]
    write_gguf(path, {"general.architecture": "none"}, {"v": RawTensor(form, (64,), VALUES[:1, :64].view(np.uint8))})
    pool = ThreadPool(compiler_for(ISAS[0]), 1, 1 << 16)
    try:
        with open_model(path) as file:
            address = WeightStore(file, compiler_for(ISAS[0]), pool).vector(TensorRef("v", 1, 16, first_column=32))
            found = np.ctypeslib.as_array((ctypes.c_float * 16).from_address(address))
            np.testing.assert_array_equal(found, VALUES[0, 32:48])
    finally:
        pool.close()


class CountedFile:
    """A model file that counts requests to read ahead."""

    def __init__(self, file: ModelFile) -> None:
        self.file, self.ahead = file, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def read_ahead(self) -> None:
        self.ahead += 1
        self.file.read_ahead()


@pytest.fixture
def two_matrices(tmp_path: Path) -> Path:
    path, form = tmp_path / "two.gguf", BY_NAME["Q8_0"]
    values = quantize(VALUES, form)
    write_gguf(
        path, {"general.architecture": "none"}, {name: RawTensor(form, VALUES.shape, values) for name in ("a", "b")}
    )
    return path


def test_matrices_are_packed_in_the_order_of_the_file(
    two_matrices: Path, compiler_for: Callable[[str], Compiler]
) -> None:
    first, second = TensorRef("a", 64, 1024), TensorRef("b", 64, 1024)
    pool = ThreadPool(compiler_for(ISAS[0]), 2, 1 << 16)
    try:
        with open_model(two_matrices) as file:
            counted = CountedFile(file)
            store = WeightStore(cast(ModelFile, counted), compiler_for(ISAS[0]), pool)
            with store.packing([second, first, second]):
                assert store.matrix(first).address < store.matrix(second).address
            with store.packing([first]):
                pass
            assert counted.ahead == 1, "the file is read once"
            assert packed_bytes(store.matrix(first)) == packed_bytes(store.matrix(second))
    finally:
        pool.close()


def test_an_error_ends_packing(two_matrices: Path, compiler_for: Callable[[str], Compiler]) -> None:
    """The pool can run and end afterwards: no operation of the program is left."""
    pool = ThreadPool(compiler_for(ISAS[0]), 2, 1 << 16)
    try:
        with open_model(two_matrices) as file:
            store = WeightStore(file, compiler_for(ISAS[0]), pool)
            with pytest.raises(KeyboardInterrupt), store.packing([TensorRef("a", 64, 1024)]):
                raise KeyboardInterrupt
            with store.packing([TensorRef("b", 64, 1024)]):
                pass
            assert any(packed_bytes(store.matrix(TensorRef("b", 64, 1024))))
    finally:
        pool.close()
