"""Steps given as sums take as long as steps given by sequences."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twofold.core.model import read_positions, visible
from twofold.planner.count.setting import Setting
from twofold.planner.count.step import SequenceRows
from twofold.planner.machines.known import find_machine
from twofold.planner.predict.constants import constants_for
from twofold.planner.predict.steps import StepPredictor, StepSize
from twofold.planner.shapes.known import resolve_shape
from twofold.planner.simulate.setting import PredictedSteps

SPANS = st.lists(
    st.tuples(st.integers(0, 6000), st.integers(1, 700), st.integers(0, 1)).map(
        lambda at: SequenceRows(at[1], at[0], at[2])
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(
        [("llama-3-8b", 1), ("llama-3-70b", 4), ("mixtral-8x7b", 2), ("gemma-3-4b", 1), ("deepseek-v3", 8)]
    ),
    st.sampled_from(["h100", "h200", "a100-80"]),
    SPANS,
)
def test_sums_predict_what_sequences_do(model: tuple[str, int], hardware: str, spans: list[SequenceRows]) -> None:
    shape, machine, setup = resolve_shape(model[0]), find_machine(hardware), Setting(tp=model[1])
    predicted = PredictedSteps(shape, machine, None, setup)
    size = StepSize(
        sum(span.new for span in spans),
        sum(span.logits for span in spans),
        len(spans),
        tuple(sum(visible(span.cached, span.new, window) for span in spans) for window in predicted.windows),
        tuple(sum(read_positions(span.cached, span.new, window) for span in spans) for window in predicted.windows),
        tuple((1, span) for span in spans),
    )
    demand = StepPredictor.of(shape, machine, setup).demand([(1, span) for span in spans])
    by = constants_for(machine, shape)
    assert predicted(size) == pytest.approx(demand.seconds(by), rel=1e-12)
    assert predicted(size) == pytest.approx(demand.parts(by).seconds, rel=1e-9)
