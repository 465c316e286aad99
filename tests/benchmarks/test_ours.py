"""The engine under measurement, and the least time it can take, on a tiny model."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.ours import Ours
from benchmarks.setting import Setting
from tests.support.tiny import TinyModel, TinyOptions
from twofold.bench.phases.cases import Case, Decode, Prefill
from twofold.core.limits import MachineLimits, ReadSpeed

MACHINE = MachineLimits("cpu", "avx2", 1, (ReadSpeed(1 << 20, 1e9),), 1e9, 1e9, "2026-01-01T00:00:00+00:00")


@pytest.fixture
def path(tiny_gguf: Callable[[TinyOptions], TinyModel]) -> Path:
    return tiny_gguf(TinyOptions(context=128)).path


def test_every_step_is_counted_once(path: Path) -> None:
    ours = Ours()
    ours.load(str(path), threads=1, context=64, streams=2)
    with ours.llm:
        for _ in range(2):  # a second time finds nothing of the first
            found = ours.steps([[1, 2, 3], [4, 5, 6]], count=5, text=True)
            assert found["steps"] == 5, "one step computes both prompts and draws their first tokens"
            assert 0 < found["kernels"] < found["whole"]
            assert 0 < found["decode_outside"] < 1
        assert math.isnan(ours.steps([[1, 2, 3]], count=1)["decode_s"]), "no step only generates"


def test_floors_are_those_of_the_phases(path: Path) -> None:
    setting = Setting.of("tiny", path, MACHINE, 1, quick=True)
    alone = setting.floor(Prefill(32)) + 7 * setting.floor(Decode(1, 32, 8))
    assert setting.serve_floor(1, 32, 8) == pytest.approx(alone)
    assert setting.serve_floor(4, 32, 8) < 4 * alone, "streams share what a step reads"


def test_cases_are_measured_in_their_order(path: Path) -> None:
    setting = Setting.of("tiny", path, MACHINE, 1, quick=True)
    cases: list[Case] = [Decode(1, 8, 4), Prefill(16)]
    assert [row.case for row in setting.measure(cases, 2)] == cases
