"""The kernel cache: hits, damage, hostile folders, disks that refuse; and every intrinsic of every instruction set."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.backends.cpu.kernels.harness import Machine, assert_same_bits
from twofold.backends.cpu.kernels.ir import F32, F32X16, I8X64, I32, I32X16, PTR, Kernel
from twofold.backends.cpu.kernels.isa import TABLES, Isa, choose, tuned
from twofold.backends.cpu.kernels.jit import CodegenTarget, Compiler, as_function, host_features
from twofold.core.errors import ParameterError, ResourceError

LANES = 16


@pytest.fixture
def target(machine: Machine) -> CodegenTarget:
    return machine.compiler.target


def doubling(factor: float = 2.0) -> Kernel:
    k = Kernel("doubling", [("x", PTR)])
    (x,) = k.args
    k.store(k.load(F32, x) * factor, x)
    k.ret()
    return k


def works(compiler: Compiler, factor: float = 2.0) -> bool:
    x = np.array([21.0], np.float32)
    as_function(compiler.address(doubling(factor)), 1)(x.ctypes.data)
    return bool(x[0] == 21 * factor)


def test_a_second_compiler_loads_what_the_first_wrote(target: CodegenTarget, tmp_path: Path) -> None:
    first, second = Compiler(target, tmp_path / "k"), Compiler(target, tmp_path / "k")
    assert works(first)
    assert works(second)
    assert (first.compiled, first.loaded) == (1, 0)
    assert (second.compiled, second.loaded) == (0, 1)


def test_one_compiler_compiles_a_text_once(target: CodegenTarget) -> None:
    compiler = Compiler(target)
    assert compiler.address(doubling()) == compiler.address(doubling())
    assert compiler.compiled == 1


def test_another_text_or_processor_is_another_entry(target: CodegenTarget, tmp_path: Path) -> None:
    works(Compiler(target, tmp_path), 2.0)
    works(Compiler(target, tmp_path), 3.0)
    works(Compiler(CodegenTarget(target.isa, "generic", ""), tmp_path), 2.0)
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize(
    "damage",
    [
        lambda entry: entry[:0],
        lambda entry: entry[:20],
        lambda entry: entry[:-1],
        lambda entry: entry[: len(entry) // 2],
        lambda entry: entry[:100] + bytes([entry[100] ^ 1]) + entry[101:],
        lambda entry: bytes([entry[0] ^ 1]) + entry[1:],
    ],
    ids=["empty", "digest cut", "last byte cut", "half", "a code bit", "a digest bit"],
)
def test_a_damaged_entry_is_compiled_anew_and_mended(
    target: CodegenTarget, tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    works(Compiler(target, tmp_path))
    (entry,) = tmp_path.iterdir()
    whole = entry.read_bytes()
    entry.write_bytes(damage(whole))
    compiler = Compiler(target, tmp_path)
    assert works(compiler)
    assert compiler.compiled == 1
    assert entry.read_bytes() == whole


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
def test_a_folder_that_others_may_write_to_is_refused(target: CodegenTarget, tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    with pytest.raises(ResourceError, match="written by other users") as error:
        Compiler(target, tmp_path)
    assert "chmod 700" in (error.value.hint or "")


def test_a_new_folder_is_for_its_owner_only(target: CodegenTarget, tmp_path: Path) -> None:
    works(Compiler(target, tmp_path / "new" / "folder"))
    assert (tmp_path / "new" / "folder").stat().st_mode & 0o777 == 0o700


def test_without_a_usable_folder_kernels_work_and_nothing_is_kept(target: CodegenTarget, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("in the way")
    compiler = Compiler(target, file / "kernels")
    assert works(compiler)
    assert compiler.cache is None


def test_a_disk_that_refuses_to_write_is_no_error(
    target: CodegenTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_args: object, **_kwargs: object) -> tuple[int, str]:
        raise OSError("read-only file system")

    monkeypatch.setattr("tempfile.mkstemp", refuse)
    assert works(Compiler(target, tmp_path))
    assert not list(tmp_path.iterdir())


def test_a_folder_that_vanishes_is_no_error(target: CodegenTarget, tmp_path: Path) -> None:
    compiler = Compiler(target, tmp_path / "k")
    (tmp_path / "k").rmdir()
    assert works(compiler)


def test_concurrent_writers_leave_one_whole_entry(target: CodegenTarget, tmp_path: Path) -> None:
    compilers = [Compiler(target, tmp_path) for _ in range(4)]
    results: list[bool] = []
    threads = [threading.Thread(target=lambda c=c: results.append(works(c))) for c in compilers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 4
    assert len(list(tmp_path.iterdir())) == 1
    late = Compiler(target, tmp_path)
    assert works(late)
    assert late.loaded == 1


# -- instruction tables ------------------------------------------------------------------------------------------------


def every_operation(isa: Isa) -> Kernel:
    """codes, acts, halves → dots, looked up bytes, widened and narrowed numbers: 64 bytes each."""
    k = Kernel("every_operation", [("codes", PTR), ("act", PTR), ("floats", PTR), ("out", PTR)])
    codes_at, act_at, floats_at, out = k.args
    codes, act, floats = k.load(I8X64, codes_at), k.load(I32, act_at), k.load(F32X16, floats_at)
    for i, bits in enumerate((4, 6, 8)):
        masked = codes & (-1 if bits == 8 else (1 << bits) - 1)
        k.store(isa.dot4(k, k.splat(I32X16, 7), masked, act, bits), out + 64 * i)
    k.store(isa.look_up(k, TABLE, codes & 15), out + 192)
    narrowed = isa.narrow(k, floats)
    k.store(narrowed, out + 256)
    k.store(isa.widen(k, narrowed), out + 320)
    k.store(isa.widen(k, isa.narrow(k, k.extract(floats, 3))), out + 384)
    isa.pause(k)
    k.ret()
    return k


TABLE = tuple(range(240, 0, -15))
EDGES = [0.0, -0.0, 1, -1, 65504, -65504, 2**-14, 2**-24, 2**-25, 1.5 * 2**-24, 2**-26, 1 + 2**-11, 1 + 3 * 2**-11]


@pytest.fixture(params=[t.name for t in TABLES])
def each_machine(request: pytest.FixtureRequest, machines: list[Machine]) -> Machine:
    machine = next((m for m in machines if m.isa.name == request.param), None)
    if machine is None:
        pytest.skip(f"this processor has no {request.param}")
    return machine


def test_every_operation_is_what_it_says(each_machine: Machine) -> None:
    call = as_function(each_machine.compiler.address(every_operation(each_machine.isa)), 4)
    rng = np.random.default_rng(0)
    for _ in range(100):
        codes = rng.integers(0, 256, 64).astype(np.uint8)
        acts = rng.choice(np.array([-127, 127, 0, 1, -77], np.int8), 4)
        floats = np.concatenate([EDGES, rng.standard_normal(3) * 10.0 ** rng.integers(-6, 4)]).astype(np.float32)
        out = np.full(448, 0xFF, np.uint8)
        call(codes.ctypes.data, acts.ctypes.data, floats.ctypes.data, out.ctypes.data)
        for i, bits in enumerate((4, 6, 8)):
            masked = (codes & ((1 << bits) - 1)).astype(np.int32).reshape(16, 4)
            np.testing.assert_array_equal(out[64 * i : 64 * i + 64].view(np.int32), 7 + masked @ acts.astype(np.int32))
        np.testing.assert_array_equal(out[192:256], np.array(TABLE, np.uint8)[codes & 15])
        halves = floats.astype(np.float16)
        assert_same_bits(out[256:288].view(np.float16), halves)
        assert_same_bits(out[320:384].view(np.float32), halves.astype(np.float32))
        assert out[384:388].view(np.float32)[0] == np.float32(halves[3])


def test_the_best_table_is_chosen() -> None:
    assert choose(frozenset()).name == "portable"
    for isa in TABLES:
        assert choose(isa.needs).name == isa.name
        assert choose(frozenset().union(*(t.needs for t in TABLES)), isa.name) is isa


def test_only_some_processors_take_all_rows_from_packed_panels() -> None:
    by_name = {isa.name: isa for isa in TABLES}
    assert not tuned(by_name["avx512"], "znver4").unpacks
    assert tuned(by_name["avx512"], "emeraldrapids").unpacks
    assert tuned(by_name["avx2"], "znver4").unpacks


def test_an_unknown_table_names_the_nearest() -> None:
    with pytest.raises(ParameterError) as error:
        choose(host_features(), "avx51")
    assert "avx512" in (error.value.hint or "")


def test_a_table_the_machine_lacks_says_what_is_missing() -> None:
    with pytest.raises(ParameterError, match="avx512vnni"):
        choose(frozenset({"avx2", "fma"}), "avx512")
