"""The price of draft rows: what the cost model makes of two measured speeds, beside the steps that were measured."""

from __future__ import annotations

import pytest

from twofold.core.values import INT4
from twofold.planner.machines.machine import engine_setting, measured_machine
from twofold.planner.predict.constants import BARE, CPU
from twofold.planner.predict.speculation import check_ratio
from twofold.planner.predict.steps import StepPredictor
from twofold.planner.shapes.known import find_shape

MEASURED = {2: 1.07, 4: 1.23, 8: 1.72, 16: 3.09, 32: 5.44}
"""Steps of so many rows of Qwen2.5-Coder-1.5B, in steps of one row: two cores of a Zen 4, benchmarks/LOG.md."""
DECODE_S, PREFILL_S = 1 / 24.7, 512 / 183
"""A step of one row, and 512 rows of a prompt, on the same machine: the README's table."""


def prices(overlap: float) -> dict[int, float]:
    """Predicted prices, where bandwidth and arithmetic are those at which decode and prefill take the measured time."""
    shape, by = find_shape("qwen2.5-1.5b").stored_as(INT4), BARE.having({"overlap": overlap}, "tried")

    def steps(bandwidth: float, flops: float) -> StepPredictor:
        peaks = dict.fromkeys(("int8", "bf16", "fp32"), flops)
        return StepPredictor.of(shape, measured_machine(1 << 36, bandwidth, peaks, "cpu", "solved"), engine_setting())  # type: ignore[arg-type]

    bandwidth, flops = 50e9, 1e12
    for _ in range(200):
        found = steps(bandwidth, flops)
        bandwidth *= (found.decode(1, 256).seconds(by) / DECODE_S) ** 0.5
        flops *= (found.prefill(512).seconds(by) / PREFILL_S) ** 0.5
    found = steps(bandwidth, flops)
    assert found.decode(1, 256).seconds(by) == pytest.approx(DECODE_S, rel=1e-3)
    assert found.prefill(512).seconds(by) == pytest.approx(PREFILL_S, rel=1e-3)
    return {rows: check_ratio(found, by, 1, 268, rows - 1) for rows in MEASURED}


def test_draft_rows_cost_what_was_measured() -> None:
    """Within 6 %: where reading and multiplying added up, rows would be up to 22 % too dear, and up to 26 % too cheap
    where they wholly overlapped."""
    added, built_in, overlapped = (prices(overlap) for overlap in (0.0, float(CPU.overlap), 1.0))
    for rows, price in MEASURED.items():
        assert overlapped[rows] < price < added[rows] < 1.25 * price < 1.7 * overlapped[rows]
        assert built_in[rows] == pytest.approx(price, rel=0.06)


def test_where_they_overlap_few_rows_would_be_free() -> None:
    assert prices(1.0)[2] == pytest.approx(1.0, abs=0.01)
