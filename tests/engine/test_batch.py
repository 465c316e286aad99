"""Steps become arrays row by row; what is kept of sequences from step to step."""

from __future__ import annotations

from array import array
from typing import Any

from twofold.backends.base import RunnerSizes
from twofold.backends.runner import BatchBuilder
from twofold.core.params import SamplingParams
from twofold.core.step import SAMPLED, Pooling, SamplingSpec, SequenceStart, SequenceStep, StepInput, TableChange

START = SequenceStart(SamplingSpec(SamplingParams(), 0, 4))


def make_builder() -> BatchBuilder:
    sizes = RunnerSizes(
        context=20, sequences=3, rows=10, logit_rows=6, block_size=4, blocks=(15,), host_slots=(0,), kv_type="f32"
    )
    return BatchBuilder(sizes)


def make_step(
    number: int, tokens: list[int], start: int, blocks: list[int], begin: SequenceStart | None = START, **more: Any
) -> SequenceStep:
    changes = (TableChange(0, 0, array("i", blocks)),) if blocks else ()
    return SequenceStep(number, array("i", tokens), start, changes, begin=begin, **more)


def test_a_mixed_batch() -> None:
    step = StepInput(
        (
            make_step(0, [50], 9, [4, 2, 0], samples=1),
            make_step(1, [60, 61, 62], 0, [1], samples=1, scored=array("i", [61, 62])),
            make_step(2, [70, 71], 4, [3, 6]),
        )
    )
    batch = make_builder().build(step)
    assert batch.tokens.tolist() == [50, 60, 61, 62, 70, 71]
    assert batch.positions.tolist() == [9, 0, 1, 2, 4, 5]
    assert batch.row_starts.tolist() == [0, 1, 4, 6]
    assert batch.logit_rows.tolist() == [0, 1, 2, 3]
    assert [row[:width].tolist() for row, width in zip(batch.block_tables[0], (3, 1, 2), strict=True)] == [
        [4, 2, 0],
        [1],
        [3, 6],
    ]
    arrays = (batch.tokens, batch.positions, batch.row_starts, batch.block_tables, batch.logit_rows)
    assert all(one.dtype == "int32" for one in arrays)


def pooled_step(number: int, rows: int, pooling: Pooling | None) -> SequenceStep:
    return make_step(number, list(range(rows)), 4, [0, 1], pooling=pooling)


def test_hidden_states_of_all_rows_or_of_the_last() -> None:
    builder = make_builder()
    steps = (pooled_step(0, 3, "mean"), pooled_step(1, 4, "last"), pooled_step(2, 2, None))
    batch = builder.build(StepInput(steps))
    assert batch.hidden_rows.tolist() == [0, 1, 2, 6]
    assert batch.logit_rows.tolist() == []
    assert batch.hidden_rows.dtype == "int32"
    batch = builder.build(StepInput((pooled_step(0, 2, None), pooled_step(1, 1, "last"), pooled_step(2, 1, "mean"))))
    assert batch.hidden_rows.tolist() == [2, 3]
    assert builder.build(StepInput((pooled_step(0, 2, None),))).hidden_rows.tolist() == []


def test_a_batch_has_no_data_of_earlier_ones() -> None:
    builder = make_builder()
    builder.build(StepInput((make_step(0, list(range(10)), 0, [9, 9, 9]),)))
    batch = builder.build(StepInput((make_step(1, [5], 3, [7]),)))
    assert (batch.tokens.tolist(), batch.positions.tolist(), batch.row_starts.tolist()) == ([5], [3], [0, 1])
    assert batch.logit_rows.tolist() == []
    assert batch.block_tables.shape == (1, 1, 5)
    assert batch.block_tables[0, 0, 0] == 7


def test_tables_are_kept_and_changed() -> None:
    builder = make_builder()
    builder.build(StepInput((make_step(0, [1], 0, [4]), make_step(1, [1], 0, [6]))))
    second = StepInput((make_step(1, [2], 1, [], None), make_step(0, [2], 4, [], None)))
    assert builder.build(second).block_tables[0, :, 0].tolist() == [6, 4]
    more = SequenceStep(0, array("i", [3]), 5, (TableChange(0, 1, array("i", [8, 9])),))
    assert builder.build(StepInput((more,))).block_tables[0, 0, :3].tolist() == [4, 8, 9]
    again = SequenceStep(0, array("i", [3]), 6, (TableChange(0, 1, array("i", [5])),))
    assert builder.build(StepInput((again,))).block_tables[0, 0, :2].tolist() == [4, 5]


def test_slots_of_ended_sequences_are_reused() -> None:
    builder = make_builder()
    for first in range(0, 30, 3):
        steps = tuple(make_step(number, [1], 0, [number]) for number in range(first, first + 3))
        batch = builder.build(StepInput(steps, ended=tuple(range(first - 3, first))))
        assert batch.block_tables[0, :, 0].tolist() == [first, first + 1, first + 2]
    assert builder.build(StepInput((make_step(29, [1], 0, [7]),))).block_tables[0, 0, 0] == 7


def test_a_token_that_was_not_known_when_the_step_was_planned() -> None:
    builder = make_builder()
    penalties = SequenceStart(SamplingSpec(SamplingParams(presence_penalty=1.0), 0, 2), array("i", [40]))
    builder.build(StepInput((make_step(0, [50], 1, [4], penalties, samples=1),)))
    (kept,) = builder.sequences
    assert kept.tokens == array("i", [40, 50])
    kept.last = 77
    batch = builder.build(StepInput((make_step(0, [SAMPLED, 3], 2, [], None, samples=2, drafts=1),)))
    assert batch.tokens.tolist() == [77, 3]
    assert kept.tokens == array("i", [40, 50, 77, 3])
    builder.build(StepInput((make_step(0, [9], 3, [], None, samples=1),)))
    assert kept.tokens == array("i", [40, 50, 77, 9])
