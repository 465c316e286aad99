"""Plans become arrays row by row."""

from __future__ import annotations

from array import array

from twofold.backends.batch import BatchBuilder
from twofold.core.params import SamplingParams
from twofold.core.step import DrawRequest, Logits, Pooling, SequenceStep, StepPlan

DRAW = DrawRequest(SamplingParams(), 0, 0)


def make_builder() -> BatchBuilder:
    return BatchBuilder(sequences=3, rows=10, logit_rows=6, context=20, blocks=5)


def make_step(number: int, tokens: list[int], start: int, blocks: list[int], logits: Logits) -> SequenceStep:
    return SequenceStep(number, array("i", tokens), start, (array("i", blocks),), logits, DRAW)


def test_a_mixed_batch() -> None:
    plan = StepPlan(
        (
            make_step(0, [50], 9, [4, 2, 0], Logits.LAST),
            make_step(1, [60, 61, 62], 0, [1], Logits.ALL),
            make_step(2, [70, 71], 4, [3, 6], Logits.NONE),
        )
    )
    batch = make_builder().build(plan)
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
    assert all(one.dtype == "int32" and one.flags.c_contiguous for one in arrays)


def pooled_step(number: int, rows: int, pooling: Pooling | None) -> SequenceStep:
    tokens = array("i", range(rows))
    return SequenceStep(number, tokens, 4, (array("i", [0, 1]),), Logits.NONE, pooling=pooling)


def test_hidden_states_of_all_rows_or_of_the_last() -> None:
    builder = make_builder()
    steps = (pooled_step(0, 3, "mean"), pooled_step(1, 4, "last"), pooled_step(2, 2, None))
    batch = builder.build(StepPlan(steps))
    assert batch.hidden_rows.tolist() == [0, 1, 2, 6]
    assert batch.logit_rows.tolist() == []
    assert batch.hidden_rows.dtype == "int32"
    batch = builder.build(StepPlan((pooled_step(0, 2, None), pooled_step(1, 1, "last"), pooled_step(2, 1, "mean"))))
    assert batch.hidden_rows.tolist() == [2, 3]
    assert builder.build(StepPlan((pooled_step(0, 2, None),))).hidden_rows.tolist() == []


def test_nothing_of_an_earlier_batch_shows() -> None:
    builder = make_builder()
    builder.build(StepPlan((make_step(0, list(range(10)), 0, [9, 9, 9], Logits.NONE),)))
    batch = builder.build(StepPlan((make_step(1, [5], 3, [7], Logits.NONE),)))
    assert (batch.tokens.tolist(), batch.positions.tolist(), batch.row_starts.tolist()) == ([5], [3], [0, 1])
    assert batch.logit_rows.tolist() == []
    assert batch.block_tables.shape == (1, 1, 5)
    assert batch.block_tables[0, 0, 0] == 7
