"""The table of hardware: cited in every field, and with the ridges that are published."""

from __future__ import annotations

from dataclasses import replace

import pytest

from twofold.core.errors import ParameterError
from twofold.core.limits import MachineLimits, ReadSpeed
from twofold.planner.machines.known import find_machine, known_machines
from twofold.planner.machines.machine import Cited, Machine, local_machine

MIN_SOURCE = 8
every = pytest.mark.parametrize("machine", known_machines().values(), ids=lambda machine: machine.name)


@every
def test_every_figure_is_cited(machine: Machine) -> None:
    optional = (machine.link, machine.host_link, machine.watts, machine.price)
    figures = (machine.memory, machine.bandwidth, *machine.peaks.values(), *optional)
    for value in (each for each in figures if each is not None):
        assert isinstance(value, Cited)
        assert len(value.source) >= MIN_SOURCE
        assert value > 0
    assert machine.peaks


def test_a_number_without_a_source_cannot_be_made() -> None:
    with pytest.raises(ValueError, match="has no source"):
        Cited(1.0, " ")


@pytest.mark.parametrize(("name", "ridge"), [("a100-80", 153), ("h100", 295), ("h200", 206), ("b200", 292)])
def test_ridges(name: str, ridge: int) -> None:
    assert find_machine(name).ridge() == pytest.approx(ridge, abs=0.5)


@every
def test_narrower_numbers_are_no_slower(machine: Machine) -> None:
    peaks = machine.peaks
    order = [peaks[name] for name in ("fp32", "bf16", "fp8", "fp4") if name in peaks]
    assert order == sorted(order)


def test_missing_units_are_stood_in_for_by_wider_ones() -> None:
    a100 = find_machine("a100")
    assert a100.computes_in("fp8") == "bf16"
    assert a100.peak("fp4") == a100.peak("bf16") == 312e12
    assert find_machine("m2-ultra").computes_in("int8") == "fp32"
    with pytest.raises(ParameterError, match="No peak of tpu-v4 is known for fp32"):
        find_machine("tpu-v4").peak("fp32")


@pytest.mark.parametrize(
    ("name", "found"),
    [("NVIDIA A100-80GB", "a100-80"), ("a100_40gb", "a100-40"), ("GeForce RTX 4090", "rtx-4090"), ("TPU v4", "tpu-v4")],
)
def test_names_in_use(name: str, found: str) -> None:
    assert find_machine(name).name == found


def test_names_are_unambiguous() -> None:
    names = [name for machine in known_machines().values() for name in (machine.name, *machine.other_names)]
    assert len(names) == len(set(names))


def test_an_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(ParameterError, match="No machine 'h101'") as caught:
        find_machine("h101")
    assert caught.value.hint is not None
    assert "'h100'" in caught.value.hint


def test_this_machine_in_the_words_of_data_sheets() -> None:
    speeds = (ReadSpeed(1 << 20, 40e9), ReadSpeed(1 << 30, 20e9))
    limits = MachineLimits("Some CPU", "avx512", 2, speeds, 2e11, 5e10, "2026-01-01T00:00:00+00:00")
    machine = local_machine(limits, 8 << 30, working_set=1 << 29)
    assert machine.bandwidth == 20e9
    assert (machine.peak("int8"), machine.peak("bf16")) == (4e11, 1e11)
    assert "measured 2026-01-01" in machine.bandwidth.source
    pairs = local_machine(replace(limits, bf16_macs_per_s=9e10), 8 << 30, working_set=1 << 29)
    assert (pairs.peak("fp32"), pairs.peak("bf16")) == (1e11, 1.8e11)
