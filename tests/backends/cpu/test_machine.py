"""Probes on the machine at hand, and what is kept of them."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.backends.cpu.kernels.tile_unit import EmulatedUnit
from twofold.backends.cpu import machine as probe
from twofold.backends.cpu.kernels.ir import Kernel
from twofold.backends.cpu.kernels.isa import TABLES, Isa, choose
from twofold.backends.cpu.kernels.jit import CodegenTarget, Compiler, as_function, host_features
from twofold.backends.cpu.machine import LONGEST_AGE, MachineProbe
from twofold.core.limits import MachineLimits, ReadSpeed, best_of, probe_size
from twofold.host.machine import read_cpu

SMALL = (1 << 20, 2 << 20)
RUNNABLE = [isa for isa in TABLES if isa.needs <= host_features()]
EMULATED = EmulatedUnit().table(RUNNABLE[0])


@pytest.fixture(scope="module")
def compiler() -> Compiler:
    return Compiler(CodegenTarget.of(choose(host_features())))


@pytest.fixture(scope="module")
def limits(compiler: Compiler) -> MachineLimits:
    return MachineProbe(compiler, 2).now(SMALL)


@pytest.mark.parametrize("isa", RUNNABLE, ids=lambda isa: isa.name)
def test_the_read_probe_reads_every_byte_once(isa: Isa) -> None:
    data = np.random.default_rng(1).integers(0, 1 << 30, 2 * probe.READ_BYTES // 4, np.int32)
    sums = np.zeros(probe.PROBE_BYTES // 4, np.int32)
    _run(isa, probe.read_kernel(isa), 2, data, sums)
    assert sums.sum(dtype=np.int32) == data.sum(dtype=np.int32)


@pytest.mark.parametrize("isa", [*RUNNABLE, EMULATED], ids=lambda isa: isa.name)
def test_the_integer_probe_multiplies_as_often_as_it_says(isa: Isa) -> None:
    data = np.ones(probe.PROBE_BYTES, np.uint8)
    sums = np.zeros(probe.PROBE_BYTES // 4, np.int32)
    _run(isa, probe.int8_kernel(isa), 7, data, sums)
    began = 0 if isa.tile else 16 * sum(range(probe.accumulators(isa)))
    assert sums.sum() - began == 7 * probe.int8_macs(isa)


@pytest.mark.parametrize("isa", RUNNABLE, ids=lambda isa: isa.name)
def test_the_float_probe_multiplies_as_often_as_it_says(isa: Isa) -> None:
    data = np.ones(probe.PROBE_BYTES // 4, np.float32)
    sums = np.zeros(probe.PROBE_BYTES // 4, np.float32)
    _run(isa, probe.float_kernel(isa), 7, data, sums)
    began = 16 * sum(range(probe.accumulators(isa)))
    assert sums.sum() - began == 7 * probe.float_macs(isa)


def test_limits_are_those_of_a_computer(limits: MachineLimits) -> None:
    assert [read.size for read in limits.reads] == list(SMALL)
    assert all(1e8 < read.bytes_per_s < 1e13 for read in limits.reads)
    assert 1e7 < limits.float_macs_per_s < 1e14
    assert 1e8 < limits.int8_macs_per_s < 1e15
    assert (limits.threads, limits.cpu) == (2, read_cpu().name)


@pytest.mark.parametrize(("weights", "size"), [(1, 16), (16, 16), (17, 32), (98, 112), (5000, 512)])
def test_reading_is_measured_at_the_size_of_the_weights(weights: int, size: int) -> None:
    """A model that fits into the last cache is read faster than the sizes that are measured for everybody."""
    assert probe_size(weights << 20) == size << 20
    known = _made_up(reads=(ReadSpeed(128 << 20, 2.0),))
    assert not known.measured_at(98 << 20)
    assert best_of(known, _made_up(reads=(ReadSpeed(112 << 20, 5.0),))).read_speed(98 << 20) == 5.0


def test_less_is_read_no_slower_than_more() -> None:
    busy = _made_up(reads=(ReadSpeed(10, 1.0), ReadSpeed(20, 2.0)))
    assert busy.read_speed(5) == 2.0, "the smaller size was measured while the machine was busy"


def test_speed_is_that_of_the_working_set() -> None:
    limits = _made_up(reads=(ReadSpeed(10, 3.0), ReadSpeed(20, 2.0)))
    assert [limits.read_speed(size) for size in (1, 10, 11, 20, 500)] == [3.0, 3.0, 2.0, 2.0, 2.0]


def test_what_was_measured_is_kept_and_found(compiler: Compiler, tmp_path: Path) -> None:
    isa = compiler.target.isa
    one = MachineProbe(compiler, 1, cache=tmp_path)
    assert one.known() is None
    first = one.again(SMALL[:1], runs=1)
    assert one.known() == first
    assert MachineProbe(compiler, 2, cache=tmp_path).known() is None
    assert [path.name for path in tmp_path.iterdir()] == [f"machine-{isa.name}-1.json"]


def test_a_second_measurement_only_raises_the_limits() -> None:
    known = _made_up(reads=(ReadSpeed(10, 3.0),), int8_macs_per_s=5.0)
    now = _made_up(reads=(ReadSpeed(10, 2.0), ReadSpeed(20, 1.0)), int8_macs_per_s=6.0)
    assert best_of(known, now) == replace(known, reads=(ReadSpeed(10, 3.0), ReadSpeed(20, 1.0)), int8_macs_per_s=6.0)


@pytest.mark.parametrize(
    "change",
    [
        {"cpu": "another processor"},
        {"isa": "another"},
        {"reads": []},
        {"reads": [{"size": "x"}]},
        {"measured": (datetime.now(UTC) - LONGEST_AGE).isoformat()},
        {"measured": (datetime.now(UTC) + timedelta(days=1)).isoformat()},
        {"measured": "yesterday"},
        {"surprise": 1},
    ],
)
def test_what_does_not_fit_is_measured_anew(change: dict[str, object], compiler: Compiler, tmp_path: Path) -> None:
    one = MachineProbe(compiler, 1, cache=tmp_path)
    one.again(SMALL[:1], runs=1)
    (path,) = tmp_path.iterdir()
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    assert one.known() is None


def test_a_folder_that_cannot_be_written_keeps_nothing(compiler: Compiler, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert MachineProbe(compiler, 1, cache=blocked).again(SMALL[:1], runs=1).threads == 1


@pytest.mark.parametrize("isa", [isa for isa in RUNNABLE if isa.dot2], ids=lambda isa: isa.name)
def test_the_bfloat16_probe_multiplies_as_often_as_it_says(isa: Isa) -> None:
    data, sums = np.full(32, 0x3F80, np.uint16), np.zeros(16 * probe.accumulators(isa), np.float32)
    _run(isa, probe.pair_kernel(isa), 7, data, sums)
    began = 16 * sum(range(probe.accumulators(isa)))
    assert sums.sum() - began == 7 * 2 * probe.float_macs(isa)


def _run(isa: Isa, kernel: Kernel, turns: int, data: NDArray[Any], sums: NDArray[Any]) -> None:
    compiler = Compiler(CodegenTarget.of(isa))  # its machine code lives as long as it does
    as_function(compiler.address(kernel), 3)(turns, data.ctypes.data, sums.ctypes.data)


def _made_up(**fields: object) -> MachineLimits:
    whole: dict[str, object] = {
        "cpu": "made up", "isa": "avx2", "threads": 1, "reads": (ReadSpeed(1, 1.0),), "int8_macs_per_s": 1.0,
        "float_macs_per_s": 1.0, "measured": datetime.now(UTC).isoformat(),
    }  # fmt: skip
    return MachineLimits(**(whole | fields))  # type: ignore[arg-type]
