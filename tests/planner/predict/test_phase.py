"""What requests cost by phase and how near they came to a made-up machine's limits, worked out by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.planner.models import LLAMA_3_8B, LLAMA_3_70B, MACHINE, SMOLLM2_135M, in_file, recorded, spec, steps_of
from twofold.core.kv_layout import KVLayout
from twofold.core.model import ModelSpec, visible
from twofold.core.record import PhaseWork, SequenceRecord
from twofold.core.values import FP16
from twofold.planner.count.step import SequenceRows, StepCost
from twofold.planner.machines.machine import engine_setting
from twofold.planner.predict.phase import PhaseCost, PhaseLimit, decode_limit, phase_floor, prefill_limit, spans_limit
from twofold.planner.shapes.known import read_shape

WINDOWED = spec(4, 32, 64, 2, 1, 16, 100, windows=(8, 8, 8, None))
STEPS = steps_of(SMOLLM2_135M, "Q4_1")
COST = STEPS.cost
LAYERS, HEAD = 106_168_320, 28_311_552
"""SmolLM2's multiply-adds: 30 · (2·576·576 + 2·576·192 + 3·576·1536), and 576 · 49,152."""


def cost_of(model: ModelSpec, format: str = "F16") -> StepCost:
    return steps_of(model, format).cost


def flops(cost: StepCost, spans: list[tuple[int, SequenceRows]]) -> int:
    rows, logit_rows = (
        sum(n * value for n, value in found)
        for found in ([(n, span.new) for n, span in spans], [(n, span.logits) for n, span in spans])
    )
    seen = {w: sum(n * visible(span.cached, span.new, w) for n, span in spans) for w in cost.windows}
    return cost.flops(rows, logit_rows, seen)


def kv_bytes(cost: StepCost, context: int) -> int:
    """That a row at the end of ``context`` tokens reads."""
    return cost.read_bytes([(1, SequenceRows(1, context - 1))])


def test_keys_and_values_of_llama_3_70b() -> None:
    cost = cost_of(LLAMA_3_70B)
    assert kv_bytes(cost, 1) == KVLayout(LLAMA_3_70B, FP16).token_bytes() == 327_680
    assert kv_bytes(cost, 4096) == 4096 * 327_680


def test_products_of_llama_3_70b() -> None:
    cost = cost_of(LLAMA_3_70B)
    assert cost.row_flops == pytest.approx(2 * 68.451e9, rel=1e-4)
    assert cost.logit_row_flops == pytest.approx(2 * 1.0507e9, rel=1e-4)


@pytest.mark.parametrize(("model", "tokens"), [(LLAMA_3_70B, 104_448), (LLAMA_3_8B, 53_248)])
def test_attention_equals_the_matrices_where_published(model: ModelSpec, tokens: int) -> None:
    """S* = P / (L · n_q · d): the prompt whose attention costs as much as its matrices."""
    cost = cost_of(model)
    attention = cost.flops(0, 0, {None: visible(0, tokens, None)})
    assert attention == pytest.approx(cost.row_flops * tokens, rel=1e-4)


def test_products_of_smollm2() -> None:
    assert (COST.row_flops, COST.logit_row_flops) == (2 * LAYERS, 2 * HEAD)
    assert (STEPS.row_s, STEPS.logit_row_s) == pytest.approx((LAYERS / 1e12, HEAD / 1e12))


def test_float_and_integer_matrices_are_told_apart() -> None:
    floats = steps_of(SMOLLM2_135M, "F16")
    assert floats.cost.row_flops == COST.row_flops
    assert floats.row_s == pytest.approx(LAYERS / 1e11)
    seconds = (2 * LAYERS + HEAD + 2 * 576 * 30 * 3) / 1e11
    assert spans_limit(floats, [(1, SequenceRows(2))]).seconds == pytest.approx(
        max(seconds, floats.cost.weight_bytes() / 1e10)
    )


@pytest.mark.model
def test_bytes_of_a_step_of_smollm2s_file(default_model: Path) -> None:
    """The file is 98.4 MB, of which 1.8 MB are metadata; every tensor is read, for the head is the embedding."""
    cost = StepCost.of(read_shape(default_model), engine_setting())
    assert cost.weight_bytes() == 96_576_768
    assert kv_bytes(cost, 1000) == 1000 * 23_040
    assert cost.row_flops == 2 * LAYERS


def test_an_embedding_counts_only_where_it_is_the_head() -> None:
    table = 100 * 32 * 2
    tied, untied = (spec(1, 32, 64, 2, 1, 16, 100, tied=tied) for tied in (True, False))
    layer = 2 * (32 * 32 * 2 + 16 * 32 * 2 + 3 * 64 * 32) + 3 * 32 * 4
    assert [cost_of(model).weight_bytes() for model in (tied, untied)] == [table + layer, table + layer]


def test_prefill_of_parts_adds_up() -> None:
    cost = cost_of(spec(2, 32, 64, 2, 1, 16, 100, windows=(None, 5)))
    whole, first, second = (
        cost.flops(0, 0, {w: visible(cached, new, w) for w in (None, 5)}) for new, cached in ((20, 0), (7, 0), (13, 7))
    )
    assert first + second == whole == 4 * 32 * sum(i + min(i, 5) for i in range(1, 21))


def test_window_layers_stop_growing() -> None:
    cost = cost_of(WINDOWED)
    assert kv_bytes(cost, 100) == 2 * 16 * 2 * (3 * 8 + 100)
    assert kv_bytes(cost, 4) == 2 * 16 * 2 * 4 * 4


def test_a_step_of_a_batch_reads_weights_once() -> None:
    rows = [(1, SequenceRows(1, 9)), (1, SequenceRows(1, 29))]
    assert COST.read_bytes(rows) == 40 * 23_040
    assert flops(COST, rows) == 2 * (2 * (LAYERS + HEAD) + 2 * 576 * 30 * 40)
    limit = spans_limit(STEPS, rows, kv_read=COST.read_bytes(rows))
    assert limit == PhaseLimit((COST.weight_bytes() + 40 * 23_040) / 10e9, "memory")


def test_decode_is_bound_by_memory() -> None:
    """Two steps at contexts 11 and 12."""
    limit = decode_limit(STEPS, prompt=10, tokens=3)
    assert limit.bound == "memory"
    assert limit.seconds == pytest.approx((2 * COST.weight_bytes() + 23 * 23_040) / 10e9)


def test_a_long_prompt_is_bound_by_arithmetic() -> None:
    limit = prefill_limit(STEPS, 512)
    attention = 2 * 576 * 30 * 512 * 513 // 2
    assert limit.bound == "arithmetic"
    assert limit.seconds == pytest.approx((512 * LAYERS + HEAD) / 1e12 + attention / 1e11)


def test_a_short_prompt_is_bound_by_memory() -> None:
    assert prefill_limit(STEPS, 1) == PhaseLimit(COST.weight_bytes() / 10e9, "memory")


def test_each_chunk_reads_the_weights_again() -> None:
    once, thrice = (prefill_limit(STEPS, 3, chunk=chunk) for chunk in (3, 1))
    assert thrice.seconds == pytest.approx(3 * once.seconds)


def test_cached_tokens_cost_only_attention() -> None:
    fresh, after = prefill_limit(STEPS, 512), prefill_limit(STEPS, 512, cached=1000)
    assert after.seconds - fresh.seconds == pytest.approx(2 * 576 * 30 * 512 * 1000 / 1e11)


def test_shares() -> None:
    assert PhaseLimit(0.75, "memory").share(1.0) == 0.75
    assert PhaseLimit(0.75, "memory").share(0.0) is None
    assert decode_limit(STEPS, prompt=10, tokens=1).share(0.1) is None


@pytest.mark.parametrize(("model", "window"), [(SMOLLM2_135M, None), (WINDOWED, 8)])
@pytest.mark.parametrize("cached", [0, 5, 23])
@pytest.mark.parametrize("chunk", [7, 512])
def test_a_plain_request_costs_what_the_formulas_say(
    model: ModelSpec, window: int | None, cached: int, chunk: int
) -> None:
    cost, token = cost_of(model, "Q4_1"), KVLayout(model, FP16).token_bytes()
    record = recorded(30, 6, cached=cached, chunk=chunk, window=window)
    prefill, decode = (PhaseCost.of(work, cost) for work in (record.prefill, record.decode))
    assert prefill.flops == flops(cost, [(1, SequenceRows(30 - cached, cached))])
    assert prefill.kv_written_bytes == (30 - cached) * token
    assert prefill.weight_bytes == -(-(30 - cached) // chunk) * cost.weight_bytes()
    contexts = range(31, 36)
    assert decode.flops == flops(cost, [(1, SequenceRows(1, context - 1)) for context in contexts])
    assert decode.kv_read_bytes == sum(kv_bytes(cost, context) for context in contexts)
    assert decode.weight_bytes == 5 * cost.weight_bytes()
    assert decode.kv_written_bytes == 5 * token


def test_a_windowed_prompt_by_hand() -> None:
    """10 rows after 3 positions, in chunks of 6 and 4. Full: rows see 4 … 13; the steps read 9 and 13.

    Window 8: rows see 4 5 6 7 8 8 | 8 8 8 8 = 70; the first step reads 9 of 9, the second 11 of 13.
    """
    cost = cost_of(WINDOWED)
    found = PhaseCost.of(recorded(13, 1, cached=3, chunk=6, window=8).prefill, cost)
    layers = 4 * (2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 64)
    attention = 2 * 32 * (85 + 3 * 70)
    assert found.flops == 2 * (10 * layers + 32 * 100 + attention)
    assert found.kv_read_bytes == 2 * 16 * 2 * ((9 + 13) + 3 * (9 + 11))
    assert found.kv_written_bytes == 10 * 2 * 4 * 16 * 2
    assert found.bytes == 2 * cost.weight_bytes() + found.kv_read_bytes + found.kv_written_bytes


def test_a_window_that_hides_nothing_needs_no_counts() -> None:
    cost = cost_of(WINDOWED)
    counted, not_counted = (recorded(5, 3, window=window) for window in (8, None))
    for phase in ("prefill", "decode"):
        assert PhaseCost.of(getattr(counted, phase), cost) == PhaseCost.of(getattr(not_counted, phase), cost)


def test_weights_are_paid_for_by_the_row() -> None:
    work = PhaseWork()
    for position in (10, 11):
        work.add_step(position, 1, step_rows=8, logit_rows=1, seconds=0.1)
    assert PhaseCost.of(work, COST).weight_bytes == COST.weight_bytes() / 4


def test_scored_prompts_pay_the_head_for_each_row() -> None:
    work = PhaseWork()
    work.add_step(0, 4, step_rows=4, logit_rows=4, seconds=0.1)
    assert PhaseCost.of(work, COST).flops == 2 * (4 * (LAYERS + HEAD) + 2 * 576 * 30 * 10)


def test_keys_and_values_of_another_type_are_read_and_written_in_it() -> None:
    shape = in_file(SMOLLM2_135M)
    halves, floats = (StepCost.of(shape, engine_setting(dtype)) for dtype in ("f16", "f32"))
    work = recorded(30, 6).decode
    assert PhaseCost.of(work, floats).kv_read_bytes == 2 * PhaseCost.of(work, halves).kv_read_bytes
    assert PhaseCost.of(work, floats).kv_written_bytes == 5 * 46_080


def test_the_floor_of_an_answer_is_its_limit() -> None:
    assert phase_floor(recorded(10, 5).decode, STEPS) == decode_limit(STEPS, 10, 5)


def test_the_floor_is_that_of_the_request_alone() -> None:
    """Others in its steps make a request pay less, but nothing could have been sooner done."""
    alone, crowded = PhaseWork(), PhaseWork()
    alone.add_step(10, 1, step_rows=1, logit_rows=1, seconds=0.1)
    crowded.add_step(10, 1, step_rows=16, logit_rows=1, seconds=0.4)
    assert phase_floor(alone, STEPS) == phase_floor(crowded, STEPS)


def test_steps_that_answers_share_count_once() -> None:
    together = SequenceRecord()
    for _ in range(3):
        together.decode.add_step(10, 1, step_rows=3, logit_rows=1, seconds=0.1)
    floor = phase_floor(together.decode, STEPS, completions=3)
    assert floor.seconds == pytest.approx((COST.weight_bytes() + 3 * kv_bytes(COST, 11)) / 10e9)
    unequal = PhaseWork()
    for _ in range(4):
        unequal.add_step(10, 1, step_rows=1, logit_rows=1, seconds=0.1)
    assert phase_floor(unequal, STEPS, completions=3) == phase_floor(unequal, STEPS)
    assert MACHINE.read_speed(int(COST.weight_bytes())) == STEPS.bandwidth
