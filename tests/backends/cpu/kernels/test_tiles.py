"""The tile unit: its emulation against its definition, and linear layers on it against all other instruction sets."""

from __future__ import annotations

import platform

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.backends.cpu.kernels.harness import Machine, assert_same_bits
from tests.backends.cpu.kernels.matrices import Extras, Matrix, QuantisedRows, linear, rows_of
from tests.backends.cpu.kernels.tile_unit import EmulatedUnit, TileFaultError, TileRegisters, shapes_of
from twofold.backends.cpu.kernels.inspect import Inspection, build, inspect
from twofold.backends.cpu.kernels.ir import PTR, Kernel
from twofold.backends.cpu.kernels.isa import TABLES, TILE_FEATURES, Isa, TileUnit, amx_config
from twofold.backends.cpu.kernels.jit import CodegenTarget, Compiler, as_function, host_features
from twofold.backends.cpu.kernels.layout import CHUNK, PACKINGS
from twofold.backends.cpu.kernels.linear import linear_scratch_bytes
from twofold.backends.cpu.kernels.tiles import BATCH, TILE_ROWS, tile_shapes

AMX = TABLES[0]
ROWS = (16, 17, 20, 31, 32, 33, 48, 61, 80)
OUTPUTS = (16, 17, 48, 97)


@pytest.fixture(scope="session")
def emulation() -> EmulatedUnit:
    return EmulatedUnit()


@pytest.fixture(scope="session")
def emulated(emulation: EmulatedUnit, machine: Machine) -> Machine:
    """The best instruction set of this processor, with an emulated tile unit."""
    return Machine(emulation.table(machine.isa))


@pytest.fixture(scope="session")
def vectors(machine: Machine) -> Machine:
    """The best instruction set of this processor, without tiles."""
    return next(m for m in [machine, Machine(TABLES[1])] if m.isa.tile is None)


# -- the definition ---------------------------------------------------------------------------------------------------


def one_product(unit: TileUnit, m: int, n: int, k: int, strides: tuple[int, int, int], zeroed: bool) -> Kernel:
    """memory[0] + acts · codes → memory[3]; rows are ``strides`` bytes apart."""
    kernel = Kernel("one_product", [(name, PTR) for name in ("sums", "acts", "codes", "out")])
    sums, acts, codes, out = kernel.args
    unit.configure(kernel, [(0, 0), (m, 4 * n), (0, 0), (m, 4 * k), (0, 0), (k, 4 * n)])
    unit.load(kernel, 1, sums, strides[0])
    if zeroed:
        unit.zero(kernel, 1)
    unit.load(kernel, 3, acts, strides[1])
    unit.load(kernel, 5, codes, strides[2])
    unit.multiply(kernel, 1, 3, 5)
    unit.store(kernel, 1, out, strides[0])
    unit.release(kernel)
    kernel.ret()
    return kernel


SIZE, PADDING = st.integers(1, 16), st.integers(0, 70)


def check_unit(unit: TileUnit, isa: Isa, data: st.DataObject) -> None:
    """One product with random shapes, strides and bytes, against the definition in NumPy."""
    m, n, k = (data.draw(SIZE) for _ in range(3))
    strides = (4 * n + data.draw(PADDING), 4 * k + data.draw(PADDING), 4 * n + data.draw(PADDING))
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 30)))
    sums, acts, codes, out = (rng.integers(0, 256, 16 * 160, np.uint8) for _ in range(4))
    expected, zeroed = out.copy(), data.draw(st.booleans())

    registers = TileRegisters(amx_config([(0, 0), (m, 4 * n), (0, 0), (m, 4 * k), (0, 0), (k, 4 * n)]))
    registers.load(1, sums, 0, strides[0])
    if zeroed:
        registers.zero(1)
    registers.load(3, acts, 0, strides[1])
    registers.load(5, codes, 0, strides[2])
    registers.multiply(1, 3, 5)
    registers.store(1, expected, 0, strides[0])

    compiler = Compiler(CodegenTarget.of(isa))
    run = as_function(compiler.address(one_product(unit, m, n, k, strides, zeroed)), 4)
    run(*(array.ctypes.data for array in (sums, acts, codes, out)))
    np.testing.assert_array_equal(out, expected)


@given(st.data())
@settings(max_examples=25, deadline=None)
def test_the_emulation_is_the_definition(data: st.DataObject) -> None:
    check_unit(EmulatedUnit().unit, TABLES[-1], data)


@pytest.mark.skipif(not AMX.needs <= host_features(), reason="this processor has no AMX")
@given(st.data())
@settings(max_examples=25, deadline=None)
def test_the_processor_is_the_definition(data: st.DataObject) -> None:
    assert AMX.tile is not None
    check_unit(AMX.tile, AMX, data)


def test_the_definition_in_small() -> None:
    """2 × 8 signed by 8 × 3 unsigned, with numbers that tell signs and order apart."""
    registers = TileRegisters(amx_config([(2, 12), (2, 8), (2, 12)]))
    a = np.array([[1, -2, 3, -4, 5, -6, 7, -128], [127, 0, 0, 0, 0, 0, 0, 1]], np.int8)
    b = np.arange(24, dtype=np.uint8).reshape(8, 3) * 10
    codes = b.reshape(2, 4, 3).transpose(0, 2, 1).reshape(-1)
    registers.load(1, a.reshape(-1).view(np.uint8), 0, 8)
    registers.load(2, np.ascontiguousarray(codes), 0, 12)
    registers.multiply(0, 1, 2)
    out = np.zeros(24, np.uint8)
    registers.store(0, out, 0, 12)
    np.testing.assert_array_equal(out.view("<i4").reshape(2, 3), a.astype(int) @ b.astype(int))


@pytest.mark.parametrize("group", [16, 32])
def test_the_configuration_holds_the_shapes(group: int) -> None:
    assert shapes_of(amx_config(tile_shapes(group))) == tile_shapes(group)


@pytest.mark.parametrize(
    ("at", "byte"), [(0, 2), (1, 1), (5, 1), (16, 65), (17, 1), (40, 1), (48, 17), (48, 0), (60, 1)]
)
def test_the_definition_refuses_what_processors_refuse(at: int, byte: int) -> None:
    config = bytearray(amx_config(tile_shapes(32)))
    config[at] = byte
    with pytest.raises(TileFaultError):
        shapes_of(bytes(config))


@pytest.mark.parametrize("tiles", [(0, 0, 6), (0, 4, 4), (0, 6, 4), (4, 0, 6)])
def test_products_of_other_shapes_fault(tiles: tuple[int, int, int]) -> None:
    with pytest.raises(TileFaultError):
        TileRegisters(amx_config(tile_shapes(32))).multiply(*tiles)


# -- linear layers ----------------------------------------------------------------------------------------------------


def check_same_bits(tiled: Machine, vectors: Machine, name: str) -> None:
    """Every number of rows with every width of a pass, in blocks of rows that end inside a tile, too."""
    block = PACKINGS[name].block
    chunks = [3, 1, 2, 5] if block == CHUNK else [block // CHUNK, 3 * block // CHUNK]
    for i, rows in enumerate(ROWS):
        outputs, columns = OUTPUTS[i % len(OUTPUTS)], CHUNK * chunks[i % len(chunks)]
        matrix = Matrix.random(name, outputs, columns, seed=rows)
        acts = QuantisedRows.of(rows_of(rows, columns, seed=outputs))
        extras = Extras(rows_of(1, matrix.panels * 16, seed=4)[0]) if i % 2 else None
        for row_block in (24, 1000):
            expected = linear(vectors, matrix, acts, extras=extras, row_block=row_block)
            assert_same_bits(linear(tiled, matrix, acts, extras=extras, row_block=row_block), expected)


@pytest.mark.parametrize("name", PACKINGS)
def test_tiles_give_the_same_bits(emulated: Machine, vectors: Machine, name: str) -> None:
    check_same_bits(emulated, vectors, name)


@pytest.mark.parametrize("name", PACKINGS)
@pytest.mark.skipif(not AMX.needs <= host_features(), reason="this processor has no AMX")
def test_amx_gives_the_same_bits(vectors: Machine, name: str) -> None:
    check_same_bits(Machine(AMX), vectors, name)


@pytest.mark.parametrize("name", PACKINGS)
def test_every_number_of_rows_gives_the_bits_of_a_row_alone(emulated: Machine, vectors: Machine, name: str) -> None:
    matrix, x = Matrix.random(name, 33, 256), rows_of(80, 256, seed=1)
    alone = linear(vectors, matrix, QuantisedRows.of(x))
    for rows in range(1, 81):
        assert_same_bits(linear(emulated, matrix, QuantisedRows.of(x[:rows])), alone[:rows])


def test_extreme_sums_are_exact(emulated: Machine, vectors: Machine) -> None:
    """Codes of 255 against activations of ±127: sums of a million, which must fit the conversion to float."""
    raw = np.full((16, 34 * 8), 0x7F, np.uint8).reshape(16, 8, 34)
    raw[:, :, :2] = np.frombuffer(np.float16(0.01).tobytes(), np.uint8)
    matrix = Matrix("Q8_0", 16, 256, raw.reshape(16, -1), np.full((16, 256), 127 * float(np.float16(0.01))))
    acts = QuantisedRows.of(np.repeat(np.array([[1.0], [-1.0]], np.float32), 256, axis=1).repeat(16, axis=0))
    assert_same_bits(linear(emulated, matrix, acts), linear(vectors, matrix, acts))


def test_tiles_are_configured_and_released_once_a_call(emulated: Machine, emulation: EmulatedUnit) -> None:
    """And multiply only where there are 17 rows or more, as often as there are groups, panels and tiles of rows."""
    columns, outputs = 160, 48
    matrix = Matrix.random("Q4_0", outputs, columns)
    chunks, panels = columns // CHUNK, outputs // 16
    for rows in (1, 16, 17, 31, 32, 64):
        emulation.counts[:] = 0
        linear(emulated, matrix, QuantisedRows.of(rows_of(rows, columns, seed=2)), row_block=1000)
        repeated = BATCH  # the last batch of each pass is multiplied twice
        products = rows // TILE_ROWS * panels * (chunks + repeated)
        assert emulation.counts.tolist() == ([1, products, 1] if rows > TILE_ROWS else [0, 0, 0])


@pytest.mark.parametrize("name", ["Q4_0", "Q6_K"])
def test_the_scratch_memory_is_as_large_as_it_says(emulated: Machine, name: str) -> None:
    columns = 512
    matrix = Matrix.random(name, 48, columns)
    used = linear_scratch_bytes(PACKINGS[name], emulated.isa, columns)
    linear(emulated, matrix, QuantisedRows.of(rows_of(33, columns, seed=2)))
    scratch = emulated.scratch
    assert (scratch[used:] == 0xFF).all()
    assert not (scratch[used - 64 : used] == 0xFF).all()


# -- the compiled code ------------------------------------------------------------------------------------------------


def listing(name: str) -> Inspection:
    if platform.machine() not in ("x86_64", "AMD64"):
        pytest.skip("LLVM generates code for x86 on x86 only")
    return inspect(build("linear", name, AMX), Compiler(CodegenTarget(AMX, "sapphirerapids", "")))


@pytest.mark.parametrize(("name", "groups", "spills"), [("Q4_K", 1, 8), ("Q8_0", 1, 8), ("Q6_K", 2, 26)])
def test_the_compiled_loops_hold_the_schedule(name: str, groups: int, spills: int) -> None:
    """Code for a processor with AMX is generated on any x86 machine; instructions and registers are LLVM's."""
    result = listing(name)
    whole = result.whole.histogram
    assert (whole["ldtilecfg"], whole["tilerelease"], result.whole.calls) == (1, 1, 0)
    loops = [loop for loop in result.inner_loops if loop.histogram["tdpbsud"]]
    batch = BATCH * groups
    assert sorted(loop.histogram["tdpbsud"] for loop in loops) == sorted([2 * batch, batch, 2 * groups, groups])
    for loop in loops:
        products = loop.histogram["tdpbsud"]
        assert loop.histogram["tilestored"] == loop.histogram["tilezero"] == products
        assert not loop.histogram.keys() & {"ldtilecfg", "sttilecfg", "tilerelease"}
        assert loop.histogram["vcvtdq2ps"] == 0
        assert loop.vector_spills <= spills
    # One exact conversion for each product's row, and one start of a row's dot products in both panels.
    starts = [batch, batch, groups, groups] if PACKINGS[name].offset else [0] * 4
    additions = [(p + s) * TILE_ROWS for p, s in zip([2 * batch, batch, 2 * groups, groups], starts, strict=True)]
    assert sorted(loop.histogram["vpaddd"] for loop in loops) == sorted(additions)


def test_the_tile_unit_needs_both_features() -> None:
    assert {feature for isa in TABLES if isa.tile for feature in isa.needs} >= TILE_FEATURES
    assert not any(isa.needs & TILE_FEATURES for isa in TABLES if isa.tile is None)
