"""Single operators held to Vidur's profiles: fitted on one half, tested on the other, both ways."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.planner.predict.gemm import FITTED, Gemm, GemmConstants
from tests.planner.predict.served import half
from tests.planner.predict.vidur import PROFILES, all_reduces, gemms
from twofold.planner.calibrate.run import mean_error, search
from twofold.planner.machines.known import find_machine

pytestmark = pytest.mark.data

START = {"eta_m": 0.9, "eta_c": 0.75, "t_start": 5e-6, "tail": 0.2, "sharpness": 3.0}
MAX_ERROR = 0.08


@pytest.mark.parametrize("side", [False, True])
@pytest.mark.parametrize("machine", PROFILES)
def test_products_within_8_percent(test_data: Path, machine: str, side: bool) -> None:
    """Five constants a machine; fitted on every fourth shape of one half, for the sake of time."""
    found = list(gemms(test_data, machine).items())
    fitted, held_out = ([pair for pair in found if half(repr(pair[0])) is wanted] for wanted in (side, not side))
    values = search(lambda values: error(fitted[::4], machine, GemmConstants(**values)), START)
    held = error(held_out, machine, GemmConstants(**values))
    print(f"\n{machine}: {len(held_out)} shapes, {held:.2%}; {values}")
    assert held <= MAX_ERROR


@pytest.mark.parametrize("machine", PROFILES)
def test_the_constants_that_are_built_in(test_data: Path, machine: str) -> None:
    assert error(list(gemms(test_data, machine).items()), machine, FITTED[machine]) <= MAX_ERROR


def test_no_product_is_faster_than_light(test_data: Path) -> None:
    """Bytes count half: so small a matrix may stay in the cache from one run of a profile to the next."""
    for name in PROFILES:
        machine = find_machine(name)
        for gemm, seconds in gemms(test_data, name).items():
            assert seconds > 2 * gemm.rows * gemm.outputs * gemm.inputs / machine.peak("fp16")
            assert seconds > gemm.nbytes / machine.bandwidth / 2


@pytest.mark.parametrize("devices", [2, 4, 8])
def test_all_reduce_is_a_start_and_a_bandwidth(test_data: Path, devices: int) -> None:
    """α from 17 to 39 µs with NCCL, as published; two constants, fitted on half."""
    link = find_machine("h100").link
    assert link is not None
    found = [(size, seconds) for count, size, seconds in all_reduces(test_data) if count == devices]

    def seconds(size: int, values: dict[str, float]) -> float:
        return values["t_ar"] + 2 * (devices - 1) / devices * size / (link * values["eta_l"])

    values = search(
        lambda values: mean_error((seconds(size, values), measured) for size, measured in found[::4]),
        {"t_ar": 2e-5, "eta_l": 0.8},
    )
    held_out = mean_error((seconds(size, values), measured) for size, measured in found[1::2])
    print(f"\n{devices} devices: {held_out:.1%}; {values}")
    assert 17e-6 <= values["t_ar"] <= 39e-6
    assert held_out <= 0.15


def error(pairs: list[tuple[Gemm, float]], machine: str, by: GemmConstants) -> float:
    known = find_machine(machine)
    return mean_error((by.seconds(gemm, known), seconds) for gemm, seconds in pairs)
