"""A configuration under some traffic: one replica in steady load, and any number of them.

With B sequences decoding at a mean context, t(B) seconds of such a step, X seconds that a prompt adds to the steps of
its chunks (a chunk's step less t(B)), O mean tokens of a completion after the first, λ requests a second:

    TPOT = t(B) / (1 − λ·X)             a token waits for its step, and for the prompts that arrive during it
    B    = λ · O · TPOT                 Little's law
    λ(B) = B / (O · t(B) + B · X)       both together

Prompts queue for the rows of steps, one after the other. With t_c seconds of a step with a full chunk, a prompt's X
seconds beside decoding take X · t_c / (t_c − t(B)), the service time of the queue. Step times are those of ``predict``;
the formulas are those of SARATHI (Agrawal et al. 2023) in steady state."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from twofold.core.errors import ParameterError
from twofold.planner.count.memory import ReplicaMemory
from twofold.planner.count.step import SequenceRows
from twofold.planner.plan.plan import CapacityPlan, Configuration, Count, Estimate, PlanRefusal
from twofold.planner.plan.traffic import Kind, PlanSlo, Traffic
from twofold.planner.predict.constants import Constants, Errors
from twofold.planner.predict.queueing import Queue, quantile
from twofold.planner.predict.request import ENTRY_STEPS
from twofold.planner.predict.steps import StepPredictor
from twofold.planner.simulate.scenario import Split

BATCHES: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
"""Loads at which a replica is evaluated; values between them are interpolated."""
FULL: Final = 0.97
"""Maximum utilization by prompts: above it their queue grows too long."""
MIN_FIXED_SHARE: Final = 0.1
"""Assumed minimum share of a step that does not grow with the sequences; it bounds their variance."""
TINY: Final = 1e-9
"""Minimum seconds that a chunk adds to a step, against division by zero; also a relative tolerance."""
LINK: Final = Split(1, 1)
"""Has the simulator's default link between prefill and decode replicas."""
LOGIT_ROWS: Final = 256
"""Rows with logits in a step, for the memory of activations."""
ROOM_DEVIATIONS: Final = 2.0
"""Standard deviations above the mean number of sequences that must fit in memory, so that requests do not wait long."""
MARGIN_DEVIATIONS: Final = 4.0
"""Standard deviations above the mean of the batch limit, so that few requests wait for a slot."""


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """A replica at ``rate`` requests a second, with ``batch`` decoding sequences on average.

    step_s     seconds of a decode-only step
    token_s    mean TPOT, including the delay by prompts
    slope_s    seconds that one more sequence adds to ``step_s``
    queue      the queue of prompts
    kind_s     for each kind of request, seconds of its prompt's steps; empty for a decode replica
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
        """Variance of the number of sequences, with Poisson arrivals.

        It is their mean divided by the share of a step that does not grow with them: more sequences make slower steps,
        and so stay longer (linear noise approximation of a birth and death process).
        """
        grows = self.slope_s * self.batch / self.step_s
        return self.batch / max(MIN_FIXED_SHARE, 1 - grows)

    def toward(self, other: ReplicaState, rate: float) -> ReplicaState:
        """Interpolates between this state and another, at ``rate`` requests a second."""
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
class LoadCurve:
    """States of a replica by ascending rate, the first one idle."""

    states: tuple[ReplicaState, ...]

    @property
    def max_rate(self) -> float:
        """The highest rate that the replica can sustain."""
        return self.states[-1].rate

    def at(self, rate: float) -> ReplicaState | None:
        """The replica's state at that rate; None if it cannot sustain the rate."""
        if rate > self.max_rate:
            return None
        place = max(1, bisect_left(self.states, rate, key=lambda state: state.rate))
        return self.states[place - 1].toward(self.states[place], rate)


@dataclass(frozen=True)
class StepModel:
    """Seconds of one configuration's steps; ``draft``: predicts steps of the draft model, if there is one."""

    configuration: Configuration
    traffic: Traffic
    constants: Constants
    steps: StepPredictor
    draft: StepPredictor | None = None

    @classmethod
    def of(cls, configuration: Configuration, traffic: Traffic, constants: Constants) -> StepModel:
        """Raises ParameterError if the devices cannot share the model, or have no link."""
        machine, setup, speculation = configuration.machine, configuration.setup, configuration.speculation
        steps = StepPredictor.of(configuration.shape, machine, setup)
        draft = speculation.draft if speculation else None
        return cls(configuration, traffic, constants, steps, StepPredictor.of(draft, machine, setup) if draft else None)

    def step_s(self, *spans: tuple[int, SequenceRows]) -> float:
        """Seconds of one step."""
        return self.steps.demand(spans).seconds(self.constants)

    def decode_s(self, batch: int) -> float:
        """Seconds in which each sequence gets a token: a step, divided by its tokens if there is speculation."""
        step_s = self.step_s((batch, self._row()))
        if self.draft is not None:
            draft_s = self.draft.decode(batch, self.traffic.context).seconds(self.constants)
            step_s += self.configuration.drafts * draft_s
        return step_s / self._tokens

    def slope_s(self, batch: int, step_s: float) -> float:
        """Seconds that one more sequence adds to ``step_s``, the seconds of a step with ``batch`` sequences."""
        return self.decode_s(batch + 1) - step_s if batch else 0.0

    def floor_s(self) -> float:
        """Minimum seconds of a token on this machine: the floor of a step with one sequence."""
        return self.steps.demand([(1, self._row())]).floor / self._tokens

    def prompt_floor_s(self, kind: Kind) -> float:
        """Minimum seconds of a first token."""
        return self.steps.prefill(kind.new, kind.cached).floor

    def chunks(self, kind: Kind, rows: int) -> Iterator[tuple[float, SequenceRows]]:
        """The steps of a prompt in chunks of ``rows`` rows, as (number of steps, rows).

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
        """Number and seconds of a prompt's steps, in which ``beside`` sequences decode."""
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


def mixed_curve(model: StepModel, max_batch: int) -> LoadCurve:
    """The curve of a replica of both phases, up to ``max_batch`` sequences."""
    states: list[ReplicaState] = []
    for batch in _batches(max_batch):
        state = _mixed_state(model, batch)
        if state is not None:
            states.append(state)
        if state is None or state.queue.busy >= FULL * (1 - TINY):
            break
    return LoadCurve(_rising(states))


def decode_curve(model: StepModel, max_batch: int) -> LoadCurve:
    """The curve of a replica that only decodes."""
    return LoadCurve(_rising([_decoding_state(model, batch) for batch in _batches(max_batch)]))


def _batches(max_batch: int) -> tuple[int, ...]:
    return (0, *(batch for batch in BATCHES if batch < max_batch), max_batch)


def _rising(states: list[ReplicaState]) -> tuple[ReplicaState, ...]:
    """States up to the highest rate: more sequences only lower it."""
    kept = states[:1]
    for state in states[1:]:
        if state.rate <= kept[-1].rate:
            break
        kept.append(state)
    return tuple(kept)


def _decoding_state(model: StepModel, batch: int) -> ReplicaState:
    step_s = model.decode_s(max(1, batch))
    rate = batch / (model.traffic.decoded * step_s)
    return ReplicaState(batch, rate, step_s, step_s, model.slope_s(batch, step_s), Queue(rate, 0.0, 0.0), ())


def _mixed_state(model: StepModel, batch: int) -> ReplicaState | None:
    """The state with ``batch`` sequences, or with fewer if prompts reach ``FULL`` before; None if no rows are left for
    prompts."""
    configuration, traffic = model.configuration, model.traffic
    rows = configuration.chunk - batch * (1 + configuration.drafts)
    if rows < 1:
        return None
    alone_s = model.step_s((batch, model._row())) if batch else 0.0
    prompts = [model.prompt_s(kind, rows, batch) for kind in traffic.kinds]
    added = [seconds - steps * alone_s for steps, seconds in prompts]
    mean = traffic.mean(added)
    step_s = model.decode_s(max(1, batch))
    full_s = model.full_s(rows, batch)
    stretch = full_s / max(full_s - alone_s, TINY)
    rate = min(batch / (traffic.decoded * step_s + batch * mean), FULL / (mean * stretch))
    queue = Queue(rate, mean * stretch, traffic.mean(each**2 for each in added) * stretch**2)
    token_s = step_s / (1 - rate * mean)
    running = min(batch, rate * traffic.decoded * token_s)
    slope_s = model.slope_s(batch, step_s)
    return ReplicaState(running, rate, step_s, token_s, slope_s, queue, tuple(seconds for _, seconds in prompts))


@dataclass(frozen=True)
class Candidate:
    """A configuration for some traffic and limits. Raises ParameterError if its devices cannot share the model.

    errors   of predictions for its model and machine
    price    dollars of a device's hour; None if unknown
    """

    configuration: Configuration
    traffic: Traffic
    slo: PlanSlo
    constants: Constants
    errors: Errors
    price: float | None

    def __post_init__(self) -> None:
        self.model  # noqa: B018 - raises for devices that cannot share the model

    @cached_property
    def model(self) -> StepModel:
        return StepModel.of(self.configuration, self.traffic, self.constants)

    @cached_property
    def memory(self) -> ReplicaMemory:
        c = self.configuration
        draft = c.speculation.draft if c.speculation else None
        return ReplicaMemory(c.shape, c.machine.memory, c.setup, c.chunk, LOGIT_ROWS, draft)

    @cached_property
    def sequences(self) -> int:
        """Sequences of mean length that fit into a replica."""
        return self.memory.sequences(self.traffic.context)

    @cached_property
    def curve(self) -> LoadCurve:
        """The load curve of a replica of both phases, or of a decode replica."""
        max_batch = max(1, min(self.sequences, BATCHES[-1]))
        return (decode_curve if self.configuration.split else mixed_curve)(self.model, max_batch)

    @cached_property
    def slowest(self) -> Kind:
        """The kind with the longest prompts within the attainment."""
        share = 0.0
        for kind in self.traffic.kinds:
            share += kind.share
            if share >= self.slo.attainment:
                break
        return kind

    def refusal(self) -> PlanRefusal | None:
        """The hardest bound that the configuration exceeds with any number of replicas, or None."""
        return self._below_floor() or self._no_room() or self._slow_alone()

    def state(self, count: Count) -> tuple[ReplicaState, Queue, tuple[float, ...]] | None:
        """A decoding replica's state, the queue of prompts, and seconds of each kind's prompt without its wait.

        None if these replicas cannot sustain the load, or have no room for its sequences.
        """
        state = self.curve.at(self.traffic.rate / (count.decode or count.both))
        if state is None or self.busy_batch(state, max(ROOM_DEVIATIONS, self.slo.deviations)) > self.sequences:
            return None
        if not self.configuration.split:
            return state, state.queue, state.kind_s
        queue = self._prefill_queue(count.prefill)
        return None if queue.busy >= 1 else (state, queue, self.prompt_s)

    def plan(self, count: Count) -> CapacityPlan | None:
        """Returns the plan with these replicas, or None if they are too few."""
        found = self.state(count)
        if found is None:
            return None
        state, queue, prompts = found
        ttft, tpot = self._ttft(state, queue, prompts), self._tpot(state, queue)
        e2e = self._e2e(ttft, tpot)
        hourly = None if self.price is None else self.price * count.replicas * self.configuration.tp
        tokens = 3600 * self.traffic.rate * self.traffic.mean(kind.output for kind in self.traffic.kinds)
        return CapacityPlan(
            self.configuration,
            count,
            ttft,
            tpot,
            e2e,
            state.batch,
            self._batch_limit(state, 0.0 if self.configuration.split else self.traffic.mean(prompts)),
            self.memory.room(),
            self.memory.token_bytes(),
            self.sequences,
            queue.busy if self.configuration.split else state.prompt_share,
            hourly,
            None if hourly is None else hourly / tokens * 1e6,
            self.sure({"ttft": ttft, "tpot": tpot, "e2e": e2e}),
        )

    def meets(self, plan: CapacityPlan) -> bool:
        """Whether a plan meets the limits, by its estimates."""
        return all(plan.estimates()[name].at <= limit for name, limit in self.slo.limits())

    @staticmethod
    def busy_batch(state: ReplicaState, deviations: float) -> float:
        """Running sequences at a busy time: their mean and ``deviations`` standard deviations."""
        return state.batch + deviations * math.sqrt(state.variance)

    def _batch_limit(self, state: ReplicaState, prompt_s: float) -> int:
        """Slots for the sequences of a busy time, and for prompts, whose prefill takes ``prompt_s`` seconds."""
        return min(self.sequences, 1 + math.ceil(self.busy_batch(state, MARGIN_DEVIATIONS) + state.rate * prompt_s))

    def _ttft(self, state: ReplicaState, queue: Queue, prompts: tuple[float, ...]) -> Estimate:
        fixed, kinds = self._before_queue_s(state), self.traffic.kinds
        after = [(kind.share, seconds) for kind, seconds in zip(kinds, prompts, strict=True)]
        mean = fixed + queue.mean_wait + self.traffic.mean(prompts)
        at = fixed + quantile(self.slo.attainment, queue, after)
        return Estimate(mean, at, self.model.prompt_floor_s(self.slowest), self.errors.ttft)

    def _before_queue_s(self, state: ReplicaState) -> float:
        """Seconds before a prompt queues: outside of steps, and for the running step."""
        entry = 0.0 if self.configuration.split else ENTRY_STEPS * min(1.0, state.batch) * state.step_s
        return float(self.constants.t_first) + entry

    def _tpot(self, state: ReplicaState, queue: Queue) -> Estimate:
        """TPOT, which varies with the number of sequences and with the prompts that arrive during a completion."""
        crowd = (state.slope_s * state.token_s / state.step_s) ** 2 * state.variance
        square = 0.0 if self.configuration.split else queue.square
        prompts = queue.rate * state.token_s * square * self.traffic.shortness
        mean = state.token_s + (self._moved_s / self.traffic.decoded if self.configuration.split else 0.0)
        at = mean + self.slo.deviations * math.sqrt(crowd + prompts)
        return Estimate(mean, at, self.model.floor_s(), self.errors.tpot)

    def _e2e(self, ttft: Estimate, tpot: Estimate) -> Estimate:
        longest = max(kind.output for kind in self.traffic.kinds) - 1
        decoded = self.traffic.decoded
        error = None if ttft.error is None or tpot.error is None else max(ttft.error, tpot.error)
        return Estimate(
            ttft.mean + decoded * tpot.mean,
            ttft.at + longest * tpot.at,
            ttft.floor + decoded * tpot.floor,
            error,
        )

    @cached_property
    def prompt_s(self) -> tuple[float, ...]:
        """Seconds of each kind's prompt on a prefill replica."""
        chunk = self.configuration.chunk
        return tuple(self.model.prompt_s(kind, max(chunk, kind.new))[1] for kind in self.traffic.kinds)

    @cached_property
    def _moved_s(self) -> float:
        """Mean seconds in which keys and values are sent to the decode replica, after the first token."""
        sent = self.traffic.mean(self.memory.sequence_bytes(kind.prompt) for kind in self.traffic.kinds)
        return LINK.latency_s + sent / LINK.link

    def _prefill_queue(self, replicas: int) -> Queue:
        """The queue of one prefill replica with random routing; better routing shortens waits."""
        seconds = self.prompt_s
        mean, square = self.traffic.mean(seconds), self.traffic.mean(each**2 for each in seconds)
        return Queue(self.traffic.rate / replicas, mean, square)

    def sure(self, estimates: Mapping[str, Estimate]) -> bool | None:
        """Whether limits are met at the upper ends of the error bands; None if an error is unknown."""
        ends = [(estimates[name].band, limit) for name, limit in self.slo.limits()]
        if any(band is None for band, _ in ends):
            return None
        return all(band is not None and band[1] <= limit for band, limit in ends)

    def _below_floor(self) -> PlanRefusal | None:
        floors: dict[str, Callable[[], float]] = {
            "tpot": self.model.floor_s,
            "ttft": lambda: self.model.prompt_floor_s(self.slowest),
            "e2e": lambda: self.model.prompt_floor_s(self.slowest) + self.traffic.decoded * self.model.floor_s(),
        }
        for name, limit in self.slo.limits():
            floor = floors[name]()
            if floor > limit:
                why = f"the floor of {name.upper()} is {floor * 1e3:,.1f} ms, set by {self._floor_reason(name)}"
                return PlanRefusal(self.configuration, "floor", why, name, floor, limit)
        return None

    def _floor_reason(self, name: str) -> str:
        c = self.configuration
        if name == "tpot":
            read = self.model.steps.cost.weight_bytes(1) * c.tp / 1e9
            return f"{read:,.1f} GB of weights at {c.tp} × {c.machine.bandwidth / 1e12:,.2f} TB/s"
        return f"a prompt of {self.slowest.new:,} tokens at the peak of {c.tp} {c.machine.name}"

    def _no_room(self) -> PlanRefusal | None:
        room = self.memory.room()
        if room.kv >= self.memory.sequence_bytes(self.traffic.longest):
            return None
        c = self.configuration
        if room.kv <= 0:
            why = (
                f"{room.weights / 1e9:,.1f} GB of weights on each device leave no room for keys and values in "
                f"{(room.memory - room.reserve) / 1e9:,.1f} GB"
            )
        else:
            why = (
                f"{room.kv / 1e9:,.1f} GB are left for keys and values, and a request of {self.traffic.longest:,} "
                f"tokens needs {self.memory.sequence_bytes(self.traffic.longest) / 1e9:,.1f} GB"
            )
        return PlanRefusal(c, "memory", why)

    def _slow_alone(self) -> PlanRefusal | None:
        """Whether even an idle replica misses a limit."""
        c = self.configuration
        alone = {"tpot": self.model.decode_s(1), "ttft": self._alone_s()}
        if c.split:
            alone["tpot"] += self._moved_s / self.traffic.decoded
        alone["e2e"] = alone["ttft"] + self.traffic.decoded * alone["tpot"]
        for name, limit in self.slo.limits():
            if alone[name] > limit:
                why = f"{name.upper()} is {alone[name] * 1e3:,.1f} ms on an idle replica"
                return PlanRefusal(c, "alone", why, name, alone[name], limit)
        return None

    def _alone_s(self) -> float:
        """TTFT of the longest prompt within the attainment, on an idle replica."""
        c = self.configuration
        if c.split:
            return float(self.constants.t_first) + self.prompt_s[self.traffic.kinds.index(self.slowest)]
        return float(self.constants.t_first) + self.model.prompt_s(self.slowest, c.chunk)[1]


def candidates(
    configurations: Iterator[Configuration],
    traffic: Traffic,
    slo: PlanSlo,
    facts: Callable[[Configuration], tuple[Constants, Errors, float | None]],
) -> Iterator[Candidate | PlanRefusal]:
    """A candidate for each configuration, or a refusal if its devices cannot share the model."""
    for configuration in configurations:
        try:
            yield Candidate(configuration, traffic, slo, *facts(configuration))
        except ParameterError as error:
            yield PlanRefusal(configuration, "shape", str(error))
