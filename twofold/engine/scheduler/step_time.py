"""How long a step will take, learned from earlier steps.

The model is linear in few features of a step's shape, none with a negative weight; the backend says which
(``StepBasis``). In a shape, ``attended`` counts pairs of a row and a position that it sees, and ``read`` the cached
positions, which are read once for all rows of a sequence.

Weights are fitted by recursive least squares on relative errors, in the form of a Kalman filter (Kalman 1960) whose
weights drift: all together with the speed of the machine, which every step measures, and each alone a little, up to a
bound. So the model adapts to changes, and thousands of steps of one kind do not erase the knowledge from others. The
influence of an outlier is limited (Huber 1964): other programs use the machine, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import log
from operator import mul
from statistics import median
from typing import Final, NamedTuple, Self

from twofold.core.model import visible
from twofold.core.step import StepOutcome, StepPlan
from twofold.core.step_basis import StepBasis

MIN_STEPS: Final = 6
"""Number of steps before the first prediction. Their median sets the scale of the weights, since the very first one
also waits for weights from the disk and for memory."""
SPEED_DRIFT: Final = 0.01
"""Change of the machine's speed from step to step, as a share."""
WEIGHT_DRIFT: Final = 1e-4
"""Variance that a weight gains from step to step, as a share of its initial variance, above which it does not grow."""
MIN_SECONDS: Final = 1e-6
CLIP: Final = 2.5
"""A larger error counts as this many times the usual error."""
CLIP_FLOOR: Final = 0.05
USUAL_DECAY: Final = 0.05


class StepShape(NamedTuple):
    """The quantities that the time of a step depends on: rows, rows with logits, Σ positions that rows see, Σ positions
    that sequences read."""

    rows: int = 0
    logit_rows: int = 0
    attended: int = 0
    read: int = 0

    def plus(self, start: int, rows: int, logit_rows: int = 0) -> StepShape:
        """The shape with ``rows`` more rows of a sequence, from position ``start`` on."""
        return StepShape(
            self.rows + rows,
            self.logit_rows + logit_rows,
            self.attended + visible(start, rows),
            self.read + start + rows,
        )

    def plus_row(self, position: int) -> StepShape:
        """The shape with one more row, with logits, of a sequence whose rows before ``position`` are in the shape."""
        return StepShape(self.rows + 1, self.logit_rows + 1, self.attended + position + 1, self.read + 1)


class StepTimeModel:
    """Predicts the seconds of a step. ``error`` is the recent mean of |predicted − actual| / actual; None at first.

    ``samples`` are steps that were measured before, with their seconds: with them, even the first step is predicted.
    They do not count in ``error``.
    """

    def __init__(self, basis: StepBasis, samples: Iterable[tuple[StepShape, float]] = ()) -> None:
        self.basis = basis
        self._weights: list[float] = list(basis.weights)
        self._covariance: list[list[float]] = []
        self._max_variance: list[float] = []
        self._steps = 0
        self._first: list[tuple[StepShape, float]] = []
        self._usual = 0.25
        self.error: float | None = None
        for shape, seconds in samples:
            self.observe(shape, seconds)
        self.error = None

    @classmethod
    def of_weights(cls, basis: StepBasis, weights: Sequence[float] | None = None) -> Self:
        """A model that predicts with the ``weights`` of another one, by default those before the first step."""
        model = cls(basis)
        if weights is not None and len(weights) != len(model._weights):
            raise ValueError(f"this step-time model has {len(model._weights)} weights, not {len(weights)}")
        model._weights, model._steps = list(weights or model._weights), MIN_STEPS
        return model

    @property
    def ready(self) -> bool:
        """Whether enough steps were seen to predict."""
        return self._steps >= MIN_STEPS

    @property
    def weights(self) -> tuple[float, ...]:
        """Seconds for each feature of the basis."""
        return tuple(self._weights)

    def predict(self, shape: StepShape) -> float | None:
        """Seconds that a step of this shape will take; None before enough steps were seen."""
        return self._seconds(shape) if self.ready else None

    def observe(self, shape: StepShape, seconds: float) -> None:
        """Learns from a step that ran. A step without rows or without time is ignored."""
        if not shape.rows or seconds <= 0:
            return
        self._steps += 1
        if self._steps > MIN_STEPS:
            error = abs(self._seconds(shape) - seconds) / seconds
            self.error = error if self.error is None else self.error + USUAL_DECAY * (error - self.error)
            self._learn([feature / seconds for feature in self.basis.features(*shape)])
            return
        self._first.append((shape, seconds))
        if self._steps == MIN_STEPS:
            self._begin()

    def _seconds(self, shape: StepShape) -> float:
        fixed, row, low_row, logit_row, pair, position, *more = self._weights
        rows, logit_rows, pairs, read = shape
        low_rows = rows if rows < self.basis.knee else self.basis.knee
        seconds = fixed + row * rows + low_row * low_rows + logit_row * logit_rows + pair * pairs + position * read
        return seconds + more[0] * self.basis.distinct(rows) if more else seconds

    def _begin(self) -> None:
        """Sets the scale and learns from the first steps, those farthest from it first: the others correct them."""
        scale = median(seconds / self._seconds(shape) for shape, seconds in self._first)
        self._set_scale(scale)
        for shape, seconds in sorted(self._first, key=lambda each: -abs(log(self._seconds(each[0]) / each[1]))):
            self._learn([feature / seconds for feature in self.basis.features(*shape)])
        self._first.clear()

    def _set_scale(self, scale: float) -> None:
        self._weights = [weight * scale for weight in self._weights]
        size = range(len(self._weights))
        self._max_variance = [weight * weight for weight in self._weights]
        self._covariance = [[self._max_variance[i] if i == j else 0.0 for j in size] for i in size]

    def _learn(self, x: list[float]) -> None:
        """One update of the filter; ``x`` are the features divided by the seconds, so that the target is 1."""
        self._drift()
        error = 1.0 - sum(map(mul, self._weights, x))
        bound = max(CLIP * self._usual, CLIP_FLOOR)
        self._usual += USUAL_DECAY * (min(abs(error), 2 * bound) - self._usual)
        gains = [sum(map(mul, row, x)) for row in self._covariance]
        certainty = 1 / (self._usual * self._usual + sum(map(mul, gains, x)))
        pull = max(-bound, min(bound, error)) * certainty
        for i, gain in enumerate(gains):
            self._weights[i] = max(self._weights[i] + gain * pull, MIN_SECONDS if i == 0 else 0.0)
            scaled = gain * certainty
            self._covariance[i] = [
                value - scaled * other for value, other in zip(self._covariance[i], gains, strict=True)
            ]

    def _drift(self) -> None:
        """Adds the uncertainty since the last step: of the machine's speed, and a little of each weight."""
        for i, (row, weight) in enumerate(zip(self._covariance, self._weights, strict=True)):
            speed = SPEED_DRIFT * SPEED_DRIFT * weight
            row[:] = [value + speed * other for value, other in zip(row, self._weights, strict=True)]
            if row[i] < self._max_variance[i]:
                row[i] += WEIGHT_DRIFT * self._max_variance[i]


@dataclass(frozen=True, slots=True)
class StepWork:
    """A step that ran: shape, seconds, predicted seconds, the seconds by which prompts delayed generating rows, the
    seconds that it would have taken without drafts, and the rows of generated tokens. Only ``seconds`` and
    ``predicted_s`` include the draft model."""

    shape: StepShape
    seconds: float
    predicted_s: float | None
    prefill_s: float
    plain_s: float
    answer_rows: int

    @classmethod
    def measure(cls, plan: StepPlan, outcome: StepOutcome, model: StepTimeModel) -> StepWork:
        rows = logit_rows = pairs = read = 0
        decode, drafts = [0, 0, 0, 0], [0, 0, 0, 0]
        for step in plan.steps:
            count, start = len(step.tokens), step.start
            logits = step.logit_rows
            if step.decode and step.samples:
                decode[0] += count
                decode[1] += logits
                decode[2] += visible(start, count)
                decode[3] += start + count
            if step.drafts:
                drafts[0] += step.drafts
                drafts[1] += step.drafts
                drafts[2] += visible(step.end - step.drafts, step.drafts)
                drafts[3] += step.drafts
            rows += count
            logit_rows += logits
            pairs += visible(start, count)
            read += start + count
        shape, seconds = StepShape(rows, logit_rows, pairs, read), outcome.seconds
        plain_s = forward_s = seconds - sum(outcome.draft_s)
        if drafts[0]:
            with_drafts = model.predict(shape)
            without = model.predict(StepShape(*(own - less for own, less in zip(shape, drafts, strict=True))))
            plain_s = forward_s * without / with_drafts if without and with_drafts else forward_s
        prefill_s = _prefill_seconds(shape, StepShape(*decode), outcome, model)
        return cls(shape, seconds, plan.predicted_s, prefill_s, plain_s, plan.decode_rows)


def _prefill_seconds(shape: StepShape, decode: StepShape, outcome: StepOutcome, model: StepTimeModel) -> float:
    """Seconds that generating sequences lost to prompt rows: actual · (1 − predicted without them / predicted)."""
    if not decode.rows or decode.rows == shape.rows:
        return 0.0
    alone, together = model.predict(decode), model.predict(shape)
    if alone is None or not together:
        return 0.0
    return outcome.seconds * max(1 - alone / together, 0.0)
