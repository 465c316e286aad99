"""What requests cost, against the formulas of plain prompts and answers and against numbers worked out by hand."""

from __future__ import annotations

import pytest

from tests.cost.models import SMOLLM2_135M, spec, tensors
from tests.cost.test_roofline import MACHINE
from twofold.core.kv_layout import KVLayout
from twofold.core.model import ModelSpec
from twofold.core.record import PhaseWork, SequenceRecord
from twofold.cost.model import ModelCost, MultiplyAdds
from twofold.cost.request import PhaseCost, RequestCost, phase_floor
from twofold.cost.roofline import decode_limit

WINDOWED = spec(4, 32, 64, 2, 1, 16, 100, windows=(8, 8, 8, None))
VALUE_BYTES = 2


def recorded(
    prompt: int, tokens: int, *, cached: int = 0, chunk: int = 512, window: int | None = None
) -> SequenceRecord:
    """A request alone: its prompt in chunks, then a row for each token but the last."""
    record, windows = SequenceRecord(), () if window is None else (window,)
    for start in range(cached, prompt, chunk):
        rows = min(chunk, prompt - start)
        last = int(start + rows == prompt)
        record.prefill.add_step(start, rows, step_rows=rows, logit_rows=last, seconds=0.1, windows=windows)
    for position in range(prompt, prompt + tokens - 1):
        record.decode.add_step(position, 1, step_rows=1, logit_rows=1, seconds=0.1, windows=windows)
    return record


@pytest.mark.parametrize(("model", "window"), [(SMOLLM2_135M, None), (WINDOWED, 8)])
@pytest.mark.parametrize("cached", [0, 5, 23])
@pytest.mark.parametrize("chunk", [7, 512])
def test_a_plain_request_costs_what_the_formulas_say(model: ModelSpec, window: int, cached: int, chunk: int) -> None:
    cost = ModelCost.of(model, tensors(model, "Q4_1"))
    found = RequestCost.of(recorded(30, 6, cached=cached, chunk=chunk, window=window), cost, VALUE_BYTES)
    assert found.prefill.macs == cost.prefill_macs(30 - cached, cached)
    contexts = range(31, 36)
    assert found.decode.macs == cost.step_macs(contexts)
    assert found.decode.weight_bytes + found.decode.kv_read_bytes == sum(
        cost.step_bytes([context], VALUE_BYTES) for context in contexts
    )
    assert found.decode.kv_written_bytes == 5 * KVLayout.of(model, "f16").token_bytes(len(model.layers))
    assert found.prefill.kv_written_bytes == (30 - cached) * KVLayout.of(model, "f16").token_bytes(len(model.layers))
    assert found.prefill.weight_bytes == -(-(30 - cached) // chunk) * cost.weight_bytes


def test_a_windowed_prompt_by_hand() -> None:
    """10 rows after 3 positions, in chunks of 6 and 4. Full: rows see 4 … 13; the steps read 9 and 13.

    Window 8: rows see 4 5 6 7 8 8 | 8 8 8 8 = 70; the first step reads 9 of 9, the second 11 of 13.
    """
    cost = ModelCost.of(WINDOWED, tensors(WINDOWED))
    work = recorded(13, 1, cached=3, chunk=6, window=8).prefill
    found = PhaseCost.of(work, cost, VALUE_BYTES)
    layers = 4 * (2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 64)
    attention = 2 * 32 * (85 + 3 * 70)
    assert found.macs == MultiplyAdds(0, 10 * layers + 32 * 100 + attention)
    assert found.flops == 2 * found.macs.total
    assert found.kv_read_bytes == 2 * 16 * 2 * ((9 + 13) + 3 * (9 + 11))
    assert found.kv_written_bytes == 10 * 2 * 4 * 16 * 2
    assert found.bytes == 2 * cost.weight_bytes + found.kv_read_bytes + found.kv_written_bytes


def test_a_window_that_hides_nothing_needs_no_counts() -> None:
    cost = ModelCost.of(WINDOWED, tensors(WINDOWED))
    counted, not_counted = (recorded(5, 3, window=window) for window in (8, None))
    assert RequestCost.of(counted, cost, 2) == RequestCost.of(not_counted, cost, 2)


def test_weights_are_paid_for_by_the_row() -> None:
    cost = ModelCost.of(SMOLLM2_135M, tensors(SMOLLM2_135M))
    work = PhaseWork()
    for position in (10, 11):
        work.add_step(position, 1, step_rows=8, logit_rows=1, seconds=0.1)
    assert PhaseCost.of(work, cost, VALUE_BYTES).weight_bytes == cost.weight_bytes / 4


def test_scored_prompts_pay_the_head_for_each_row() -> None:
    cost = ModelCost.of(SMOLLM2_135M, tensors(SMOLLM2_135M, "Q4_1"))
    work = PhaseWork()
    work.add_step(0, 4, step_rows=4, logit_rows=4, seconds=0.1)
    assert PhaseCost.of(work, cost, VALUE_BYTES).macs.integer == 4 * (106_168_320 + 28_311_552)


def test_the_floor_of_an_answer_is_its_limit() -> None:
    cost = ModelCost.of(SMOLLM2_135M, tensors(SMOLLM2_135M, "Q4_1"))
    floor = phase_floor(recorded(10, 5).decode, cost, MACHINE, VALUE_BYTES)
    assert floor == decode_limit(cost, MACHINE, 10, 5, value_bytes=VALUE_BYTES)


def test_the_floor_is_that_of_the_request_alone() -> None:
    """Others in its steps make a request pay less, but nothing could have been sooner done."""
    cost = ModelCost.of(SMOLLM2_135M, tensors(SMOLLM2_135M, "Q4_1"))
    alone, crowded = PhaseWork(), PhaseWork()
    alone.add_step(10, 1, step_rows=1, logit_rows=1, seconds=0.1)
    crowded.add_step(10, 1, step_rows=16, logit_rows=1, seconds=0.4)
    assert phase_floor(alone, cost, MACHINE, 2) == phase_floor(crowded, cost, MACHINE, 2)


def test_steps_that_answers_share_count_once() -> None:
    cost = ModelCost.of(SMOLLM2_135M, tensors(SMOLLM2_135M, "Q4_1"))
    together = SequenceRecord()
    for _ in range(3):
        together.decode.add_step(10, 1, step_rows=3, logit_rows=1, seconds=0.1)
    floor = phase_floor(together.decode, cost, MACHINE, 2, answers=3)
    assert floor.seconds == pytest.approx((cost.weight_bytes + 3 * cost.kv_bytes(11, 2)) / 10e9)
    unequal = PhaseWork()
    for _ in range(4):
        unequal.add_step(10, 1, step_rows=1, logit_rows=1, seconds=0.1)
    assert phase_floor(unequal, cost, MACHINE, 2, answers=3) == phase_floor(unequal, cost, MACHINE, 2)
