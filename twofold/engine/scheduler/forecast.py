"""What a request would meet if it arrived now: cached tokens, the work before it, and the seconds of its phases.

    queue    the steps of the prompt rows before its own, beside the sequences that generate now
    prefill  the steps of its own rows
    TPOT     a step of the generating sequences with one more row

The hub of a fleet knows the work of its replicas (``predict``): a request's own rows fill the last step of those before
it. An engine looks at itself and changes nothing (``QueueAhead``). The rows before a request's own are those of running
prompts and of waiting sequences that are more urgent, in steps as large as the budget allows now. Without a free slot,
the queue also has the tokens until one is free, and the whole completions of those that wait for the same slot.
Sequences that will end, arrive or share prefixes meanwhile are not foreseen, so the caller should measure the error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from heapq import heapify, heapreplace
from operator import add
from typing import Final, NamedTuple

from twofold.core.forecast import Forecast
from twofold.engine.scheduler.budget import Budget, StepLimits
from twofold.engine.scheduler.sequence import Sequence
from twofold.engine.scheduler.step_time import StepShape, StepTimeModel

FOLLOWING: Final = 31


class EngineWork(NamedTuple):
    """The work of an engine: the ``decode`` step of its generating sequences, and its ``pending`` prompt rows, summed
    as if they were one step, of which a step takes at most ``chunk``. ``running`` sequences run, ``queued`` could not
    in the last step."""

    decode: StepShape = StepShape()
    pending: StepShape = StepShape()
    chunk: int = 1
    running: int = 0
    queued: int = 0


class WorkAhead(NamedTuple):
    """The work before a request.

    decode     the next step of the generating sequences
    pending    prompt rows not computed yet, summed as if they were one step
    rows       most rows of a step
    busy_s     seconds until the current step ends
    """

    decode: StepShape
    pending: StepShape
    rows: int
    step_time: StepTimeModel
    busy_s: float = 0.0


class RoutePrediction(NamedTuple):
    """Seconds that a request would wait for other prompts, compute its own, and take for each later token."""

    queue_s: float
    prefill_s: float
    tpot_s: float

    @property
    def ttft_s(self) -> float:
        return self.queue_s + self.prefill_s


def predict(work: WorkAhead, tokens: int, cached: int, unknown: StepTimeModel | None = None) -> RoutePrediction:
    """Predicts a prompt of ``tokens`` tokens of which ``cached`` are cached. ``unknown`` predicts where too few steps
    have run."""
    model = work.step_time if work.step_time.ready or unknown is None else unknown
    decode, pending, chunk = work.decode, work.pending, max(1, work.rows - work.decode.rows)
    queue_s = work.busy_s + _steps_s(model, decode, pending, chunk)
    ttft_s = work.busy_s + _steps_s(model, decode, pending.plus(cached, tokens - cached, 1), chunk)
    return RoutePrediction(queue_s, ttft_s - queue_s, _step_s(model, decode.plus(tokens, 1, 1)))


def _steps_s(model: StepTimeModel, decode: StepShape, pending: StepShape, chunk: int) -> float:
    """Seconds of the steps that compute ``pending`` rows in equal parts of at most ``chunk``, beside ``decode`` rows.
    A part reads what its prompt has so far: on average, half of its positions."""
    if not pending.rows:
        return 0.0
    steps = math.ceil(pending.rows / chunk)
    rows, logit_rows, attended, read = (math.ceil(total / steps) for total in pending)
    part = StepShape(rows, logit_rows, attended, max(read, attended // rows + rows // 2))
    return steps * _step_s(model, StepShape(*map(add, decode, part)))


def _step_s(model: StepTimeModel, shape: StepShape) -> float:
    seconds = model.predict(shape)
    assert seconds is not None, "the model predicts"
    return seconds


@dataclass(frozen=True, slots=True)
class QueueAhead:
    """The sequences before a request, and how steps are planned. ``share``: of its limit, that a completion usually
    reaches."""

    limits: StepLimits
    budget: Budget
    step_time: StepTimeModel
    running: Collection[Sequence]
    waiting: Collection[Sequence]
    share: float

    def forecast(self, tokens: int, cached: int, now: float) -> Forecast:
        """The forecast for a prompt of so many tokens, of which ``cached`` are in the cache."""
        decoding, decode = self._decoding()
        ahead = len(self.waiting)
        tpot_s = self.step_time.predict(decode.plus(tokens, 1, 1))
        if tpot_s is None:
            return Forecast(cached, ahead, len(self.running))
        prompts = [sequence for sequence in (*self.running, *self.waiting) if not sequence.decodes]
        joining = min(len(prompts), self.limits.sequences - len(decoding)) // 2  # generate for half of the time
        beside = decode
        for sequence in prompts[:joining]:
            beside = beside.plus_row(sequence.known)
        queue_s = self._seconds(beside, decoding, self._pending(lambda sequence: sequence.computed), now)
        prefill_s = self._seconds(decode, decoding, StepShape().plus(cached, tokens - cached, 1), now)
        slots = enumerate(self._slots(decoding))
        queues_s = tuple(queue_s + tpot_s * left + number * prefill_s for number, left in slots)
        error = self.step_time.error
        return Forecast(cached, ahead, len(self.running), queues_s[0], prefill_s, tpot_s, error, queues_s)

    def work(self, cached: Callable[[Sequence], int], now: float) -> EngineWork:
        """The work of the engine; ``cached`` returns the cached tokens of a waiting sequence."""
        (decoding, decode), pending = self._decoding(), self._pending(cached)
        chunk = max(1, self.limits.rows - decode.rows)
        if decode.rows:
            middle = pending.attended // pending.rows if pending.rows else 0
            chunk = self._chunk(decoding, decode, middle, chunk, now)
        return EngineWork(decode, pending, chunk, len(self.running), len(self.waiting))

    def _decoding(self) -> tuple[Collection[Sequence], StepShape]:
        """The generating sequences, and the shape of their next step."""
        decoding = [sequence for sequence in self.running if sequence.decodes]
        rows = len(decoding)
        seen = sum(sequence.computed for sequence in decoding) + rows
        return decoding, StepShape(rows, rows, seen, seen)

    def _chunk(self, decoding: Collection[Sequence], decode: StepShape, start: int, most: int, now: float) -> int:
        """The rows, at most ``most``, that a prompt computed up to ``start`` gets in a step."""
        allowance = self.budget.allowance(decoding, decode, self.share, now)
        return max(1, self.budget.rows(decode, decode, allowance, start, most))

    def _pending(self, cached: Callable[[Sequence], int]) -> StepShape:
        """The prompt rows not computed yet; ``cached`` returns the cached tokens of a waiting sequence."""
        pending = StepShape()
        for sequence in self.running:
            if not sequence.decodes:
                pending = pending.plus(sequence.computed, sequence.pending, 1)
        for sequence in self.waiting:
            start = min(cached(sequence), sequence.known - 1)
            pending = pending.plus(start, sequence.known - start, 1)
        return pending

    def _seconds(self, decode: StepShape, decoding: Collection[Sequence], pending: StepShape, now: float) -> float:
        """Seconds of the steps that compute ``pending`` prompt rows beside the generating sequences."""
        if not pending.rows:
            return 0.0
        middle, most = pending.attended // pending.rows, max(1, min(pending.rows, self.limits.rows - decode.rows))
        chunk = self._chunk(decoding, decode, middle, most, now) if decoding or not decode.rows else 1
        if chunk < pending.rows:  # more steps: what was lent now is gained again, so at least what the targets allow
            chunk = max(chunk, self.budget.rows(decode, decode, self.budget.sustained(decoding), middle, most))
        return _steps_s(self.step_time, decode, pending, chunk)

    def _slots(self, decoding: Collection[Sequence]) -> list[float]:
        """Tokens until a slot is free for a request, and for the FOLLOWING ones. Those that wait take slots first."""
        limits = [sequence.limit - sequence.prompt_length for sequence in (*self.running, *self.waiting)]
        usual = self.share * sum(limits) / max(1, len(limits))
        slots = [0.0] * (self.limits.sequences - len(self.running)) + list(map(self._left, decoding))
        slots += [usual] * (self.limits.sequences - len(slots))
        heapify(slots)
        taken = [heapreplace(slots, slots[0] + max(usual, 1.0)) for _ in range(len(self.waiting) + 1 + FOLLOWING)]
        return taken[len(self.waiting) :]

    def _left(self, sequence: Sequence) -> float:
        """Tokens that a completion will probably still have."""
        return max(self.share * (sequence.limit - sequence.prompt_length) - sequence.generated, 1.0)
