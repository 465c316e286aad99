"""What simulated replicas report to routers: step-time models from predicted steps, and errors of predictions."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random
from typing import Final

from twofold.core.model import visible
from twofold.engine.scheduler.step_time import StepShape, StepTimeModel
from twofold.planner.count.step import SequenceRows
from twofold.planner.predict.steps import StepSize
from twofold.planner.simulate.setting import EngineSetting, StepSeconds

STEPS: Final = 240
"""Steps that a model learns from."""
LONGEST: Final = 16_384
"""Most tokens of a sequence in them."""


def learned_step_time(
    setting: EngineSetting, seconds: StepSeconds, windows: tuple[int | None, ...] = (None,)
) -> StepTimeModel:
    """The model that an engine would have learned from a mix of decode steps and steps with a chunk of a prompt."""
    draw, model = Random(0), StepTimeModel(setting.step_basis)
    longest = max(2, min(LONGEST, setting.context, setting.blocks * setting.block_size))
    for number in range(STEPS):
        sequences = round(math.exp(draw.uniform(0, math.log(setting.sequences))))
        sequences = max(1, min(sequences, setting.blocks * setting.block_size // longest))
        contexts = [draw.randint(1, longest - 1) for _ in range(sequences)]
        chunk = draw.choice((setting.rows - sequences, draw.randint(1, setting.rows))) if number % 2 else 0
        chunk = max(0, min(chunk, setting.rows - sequences, longest - 1))
        start = draw.randint(0, longest - 1 - chunk)
        shape, size = _step(contexts, start, chunk, windows)
        model.observe(shape, seconds(size))
    return model


def log_normal_error(error: float) -> Callable[[float], float]:
    """Multiplies by exp(N(0, ``error``)), the same for each run."""
    draw = Random(0)
    return lambda seconds: seconds * math.exp(draw.gauss(0.0, error))


def _step(contexts: list[int], start: int, chunk: int, windows: tuple[int | None, ...]) -> tuple[StepShape, StepSize]:
    """A step of sequences that decode at these positions, and of ``chunk`` prompt rows from ``start`` on."""
    count, prompts = len(contexts), int(chunk > 0)
    attended, read = [], []
    for window in (None, *windows):
        seen = sum(min(context + 1, window or context + 1) for context in contexts)
        attended.append(seen + visible(start, chunk, window))
        read.append(seen + (min(start, window or start) + chunk if chunk else 0))
    spans = ((1, SequenceRows(chunk, start)),) if chunk > 1 else ()
    size = StepSize(count + chunk, count + prompts, count + prompts, tuple(attended[1:]), tuple(read[1:]), spans)
    return StepShape(count + chunk, count + prompts, attended[0], read[0]), size
