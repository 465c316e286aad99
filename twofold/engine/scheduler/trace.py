"""Writes down the steps of a request that asks for its timeline."""

from __future__ import annotations

from twofold.core.step import SequenceStep
from twofold.core.timeline import RequestSteps
from twofold.engine.scheduler.step_time import StepShape, StepTimeModel, StepWork


class RequestTrace:
    """The ``steps`` of a request so far. All its sequences write to the same trace."""

    def __init__(self) -> None:
        self.steps = RequestSteps()
        self._own = StepShape()

    def add(
        self, number: int, at_s: float, step: SequenceStep, work: StepWork, model: StepTimeModel, prompt: int
    ) -> None:
        """Adds the rows of a sequence with ``prompt`` prompt tokens in step ``number``, which ended ``at_s`` seconds
        after the request's arrival."""
        steps, rows = self.steps, len(step.tokens)
        if not steps.number or steps.number[-1] != number:
            self._own = StepShape()
            steps.number.append(number)
            steps.ended_s.append(at_s)
            steps.seconds.append(work.seconds)
            steps.prompt_rows.append(work.shape.rows - work.answer_rows)
            steps.answer_rows.append(work.answer_rows)
            steps.own_prompt_rows.append(0)
            steps.own_answer_rows.append(0)
            steps.alone_s.append(None)
        (steps.own_answer_rows if step.start >= prompt else steps.own_prompt_rows)[-1] += rows
        self._own = self._own.plus(step.start, rows, step.logit_rows)
        alone, together = model.predict(self._own), model.predict(work.shape)
        if alone is not None and together:
            steps.alone_s[-1] = work.seconds * min(1.0, alone / together)
