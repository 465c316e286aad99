"""One replica under steady load: the rate that it can sustain, and its times.

With B sequences decoding at a mean context, t(B) seconds of such a step, X seconds that a prompt adds to the steps of
its chunks (a chunk's step less t(B)), O mean tokens of a completion after the first, λ requests a second:

    TPOT = t(B) / (1 − λ·X)             a token waits for its step, and for the prompts that arrive during it
    B    = λ · O · TPOT                 Little's law
    λ(B) = B / (O · t(B) + B · X)       both together

Prompts queue for the rows of steps, one after the other. Work of X seconds takes X · t_c / (t_c − t(B)) beside
decoding, t_c being the step of a full chunk: that is the service time of the queue. The step model is that of
``predict``; the forms are those of SARATHI (Agrawal et al. 2023) in steady state."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from twofold.planner.count.step import SequenceRows
from twofold.planner.plan.choices import Configuration
from twofold.planner.plan.traffic import Kind, Traffic
from twofold.planner.predict.constants import Constants
from twofold.planner.predict.queueing import Queue
from twofold.planner.predict.steps import StepPredictor

BATCHES: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
"""Loads at which a replica is evaluated; values between them are interpolated."""
FULL: Final = 0.97
"""Most of the time that prompts may take: beyond it queues are endless."""
MIN_PULL: Final = 0.1
"""Least pull of the number of sequences to its mean: that of the batch limit."""
NOTHING: Final = 1e-9
"""Seconds that no chunk is below."""


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """A replica at ``rate`` requests a second.

    step_s     seconds of a step of decoding alone
    token_s    mean TPOT, with prompts in between
    slope_s    what one more sequence adds to ``step_s``
    queue      of prompts
    kind_s     seconds of the own steps of each kind's prompt
    """

    batch: float
    rate: float
    step_s: float
    token_s: float
    slope_s: float
    queue: Queue
    kind_s: tuple[float, ...]

    @property
    def prompt_share(self) -> float:
        """Share of the time that prompts take beside decoding."""
        return 1 - self.step_s / self.token_s

    @property
    def variance(self) -> float:
        """Of the number of sequences, with Poisson arrivals.

        Their mean over the share of a step that does not grow with them: more sequences make slower steps, and so stay
        longer (linear noise approximation of a birth and death process).
        """
        grows = self.slope_s * self.batch / self.step_s
        return self.batch / max(MIN_PULL, 1 - grows)

    def toward(self, other: ReplicaState, rate: float) -> ReplicaState:
        """Interpolates between two states."""
        part = (rate - self.rate) / (other.rate - self.rate)

        def between(low: float, high: float) -> float:
            return low + part * (high - low)

        ours, theirs = self.queue, other.queue
        return ReplicaState(
            between(self.batch, other.batch),
            rate,
            between(self.step_s, other.step_s),
            between(self.token_s, other.token_s),
            between(self.slope_s, other.slope_s),
            Queue(rate, between(ours.mean, theirs.mean), between(ours.square, theirs.square)),
            tuple(between(*pair) for pair in zip(self.kind_s, other.kind_s, strict=True)),
        )


@dataclass(frozen=True, slots=True)
class Curve:
    """States of a replica by ascending rate, the first one idle."""

    states: tuple[ReplicaState, ...]

    @property
    def most(self) -> float:
        """The highest rate that it can sustain."""
        return self.states[-1].rate

    def at(self, rate: float) -> ReplicaState | None:
        """Its state at that rate; None if it cannot sustain it."""
        if rate > self.most:
            return None
        place = max(1, bisect_left(self.states, rate, key=lambda state: state.rate))
        return self.states[place - 1].toward(self.states[place], rate)


@dataclass(frozen=True)
class Model:
    """Seconds of the steps of one configuration; ``draft``: steps of the draft model, if there is one."""

    configuration: Configuration
    traffic: Traffic
    constants: Constants
    steps: StepPredictor
    draft: StepPredictor | None = None

    @classmethod
    def of(cls, configuration: Configuration, traffic: Traffic, constants: Constants) -> Model:
        """Raises ParameterError where the devices cannot share the model, or have no link."""
        machine, how, speculation = configuration.machine, configuration.how, configuration.speculation
        steps = StepPredictor.of(configuration.shape, machine, how)
        guessing = speculation.draft if speculation else None
        return cls(
            configuration, traffic, constants, steps, StepPredictor.of(guessing, machine, how) if guessing else None
        )

    def step_s(self, *spans: tuple[int, SequenceRows]) -> float:
        """Seconds of one step."""
        return self.steps.demand(spans).seconds(self.constants)

    def decode_s(self, batch: int) -> float:
        """Seconds in which each sequence gets a token: a step, or with speculation its share of one."""
        return self._decoded(self.step_s((batch, self._row())), batch) / self._tokens

    def slope_s(self, batch: int, step_s: float) -> float:
        """Seconds that one more sequence adds to ``step_s``, that of ``batch`` sequences."""
        return self.decode_s(batch + 1) - step_s if batch else 0.0

    def floor_s(self) -> float:
        """Least seconds of a token on this machine: the bytes of one sequence's step."""
        return self.steps.demand([(1, self._row())]).floor / self._tokens

    def prompt_floor_s(self, kind: Kind) -> float:
        """Least seconds of a first token."""
        return self.steps.prefill(kind.new, kind.cached).floor

    def chunks(self, kind: Kind, rows: int) -> Iterator[tuple[float, SequenceRows]]:
        """The steps of a prompt in chunks of ``rows``, with their numbers.

        The work of full chunks is linear in the positions that they see, so the first and the last represent all.
        """
        full, rest = divmod(kind.new, rows)
        if not rest:
            full, rest = full - 1, rows
        if full:
            last = kind.cached + (full - 1) * rows
            yield full / 2, SequenceRows(rows, kind.cached, 0)
            yield full / 2, SequenceRows(rows, last, 0)
        yield 1, SequenceRows(rest, kind.cached + full * rows, 1)

    def prompt_s(self, kind: Kind, rows: int, beside: int = 0) -> tuple[float, float]:
        """Number and seconds of a prompt's own steps, in which ``beside`` sequences decode."""
        others = [(beside, self._row())] if beside else []
        count = seconds = 0.0
        for times, span in self.chunks(kind, rows):
            count += times
            seconds += times * self.step_s(*others, (1, span))
        return count, seconds

    def full_s(self, rows: int, beside: int) -> float:
        """Seconds of a step with a full chunk, halfway through a mean prompt."""
        kinds = self.traffic.kinds
        seen = self.traffic.mean((kind.prompt + kind.cached) / 2 for kind in kinds)
        others = [(beside, self._row())] if beside else []
        return self.step_s(*others, (1, SequenceRows(rows, max(0, round(seen - rows / 2)), 0)))

    @property
    def _tokens(self) -> float:
        speculation = self.configuration.speculation
        return speculation.tokens if speculation else 1.0

    def _row(self) -> SequenceRows:
        """The rows of a decoding sequence in a step: one, and one for each draft token."""
        new = 1 + self.configuration.drafts
        return SequenceRows(new, max(0, self.traffic.context - 1), new)

    def _decoded(self, step_s: float, batch: int) -> float:
        """A step with the drafts before it."""
        if self.draft is None:
            return step_s
        guess = self.draft.decode(batch, self.traffic.context).seconds(self.constants)
        return step_s + self.configuration.drafts * guess


def mixed(model: Model, max_batch: int) -> Curve:
    """The curve of a replica of both phases, up to ``max_batch`` sequences."""
    states: list[ReplicaState] = []
    for batch in _batches(max_batch):
        state = _mixed_state(model, batch)
        if state is not None:
            states.append(state)
        if state is None or state.queue.busy >= FULL * (1 - NOTHING):
            break
    return Curve(_rising(states))


def decoding(model: Model, max_batch: int) -> Curve:
    """The curve of a replica that only decodes."""
    return Curve(_rising([_decoding_state(model, batch) for batch in _batches(max_batch)]))


def _batches(most: int) -> tuple[int, ...]:
    return (0, *(batch for batch in BATCHES if batch < most), most)


def _rising(states: list[ReplicaState]) -> tuple[ReplicaState, ...]:
    """States up to the highest rate; more sequences would only lower it."""
    kept = states[:1]
    for state in states[1:]:
        if state.rate <= kept[-1].rate:
            break
        kept.append(state)
    return tuple(kept)


def _decoding_state(model: Model, batch: int) -> ReplicaState:
    step_s = model.decode_s(max(1, batch))
    rate = batch / (model.traffic.decoded * step_s)
    return ReplicaState(batch, rate, step_s, step_s, model.slope_s(batch, step_s), Queue(rate, 0.0, 0.0), ())


def _mixed_state(model: Model, batch: int) -> ReplicaState | None:
    """The state with ``batch`` sequences, or fewer if prompts would queue without end; None if no rows are left for
    prompts."""
    configuration, traffic = model.configuration, model.traffic
    rows = configuration.chunk - batch * (1 + configuration.drafts)
    if rows < 1:
        return None
    alone_s = model.step_s((batch, model._row())) if batch else 0.0
    own = [model.prompt_s(kind, rows, batch) for kind in traffic.kinds]
    added = [seconds - steps * alone_s for steps, seconds in own]
    mean = traffic.mean(added)
    step_s = model.decode_s(max(1, batch))
    full_s = model.full_s(rows, batch)
    stretch = full_s / max(full_s - alone_s, NOTHING)
    rate = min(batch / (traffic.decoded * step_s + batch * mean), FULL / (mean * stretch))
    queue = Queue(rate, mean * stretch, traffic.mean(each**2 for each in added) * stretch**2)
    token_s = step_s / (1 - rate * mean)
    there = min(batch, rate * traffic.decoded * token_s)
    slope_s = model.slope_s(batch, step_s)
    return ReplicaState(there, rate, step_s, token_s, slope_s, queue, tuple(seconds for _, seconds in own))
