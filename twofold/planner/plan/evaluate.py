"""A configuration under some traffic, with any number of replicas: times, memory, or the bound that it exceeds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from twofold.core.errors import ParameterError
from twofold.planner.count.memory import ReplicaMemory
from twofold.planner.plan.choices import Configuration
from twofold.planner.plan.plan import CapacityPlan, Count, Estimate, PlanRefusal
from twofold.planner.plan.replica import BATCHES, Curve, Model, ReplicaState, decoding, mixed
from twofold.planner.plan.traffic import Kind, Slo, Traffic
from twofold.planner.predict.constants import Constants
from twofold.planner.predict.errors import Errors
from twofold.planner.predict.queueing import Queue, quantile
from twofold.planner.predict.request import ENTRY_STEPS
from twofold.planner.simulate.scenario import Split

ONE_EACH: Final = Split(1, 1)
"""The simulator's link between prefill and decode replicas."""
LOGIT_ROWS: Final = 256
"""Logits of a step that memory is set aside for."""
ROOM_DEVIATIONS: Final = 2.0
"""Least deviations above the mean for which there must be room: without it requests wait very long."""
MARGIN_DEVIATIONS: Final = 4.0
"""Deviations above the mean at which the batch limit is, so that few requests wait for a slot."""


@dataclass(frozen=True)
class Candidate:
    """A configuration for some traffic and limits. Raises ParameterError if its devices cannot share the model."""

    configuration: Configuration
    traffic: Traffic
    slo: Slo
    constants: Constants
    errors: Errors
    price: float | None

    def __post_init__(self) -> None:
        self.model  # noqa: B018 - raises for devices that cannot share the model

    @cached_property
    def model(self) -> Model:
        return Model.of(self.configuration, self.traffic, self.constants)

    @cached_property
    def memory(self) -> ReplicaMemory:
        c = self.configuration
        draft = c.speculation.draft if c.speculation else None
        return ReplicaMemory(c.shape, c.machine.memory, c.how, c.chunk, LOGIT_ROWS, draft)

    @cached_property
    def sequences(self) -> int:
        """Sequences of mean length that fit into a replica."""
        return self.memory.sequences(self.traffic.context)

    @cached_property
    def curve(self) -> Curve:
        """Of a replica of both phases, or one that only decodes."""
        most = max(1, min(self.sequences, BATCHES[-1]))
        return (decoding if self.configuration.split else mixed)(self.model, most)

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
        """The hardest bound that it exceeds with any number of replicas, or None."""
        return self._below_floor() or self._no_room() or self._slow_alone()

    def state(self, count: Count) -> tuple[ReplicaState, Queue, tuple[float, ...]] | None:
        """A decoding replica's state, the queue of prompts, and seconds of each kind's prompt without its wait.

        None if these replicas cannot sustain the load, or cannot hold its sequences.
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
        """Running sequences at a busy time."""
        return state.batch + deviations * math.sqrt(state.variance)

    def _batch_limit(self, state: ReplicaState, prompt_s: float) -> int:
        """Slots for a busy time, and for prompts in prefill, which takes ``prompt_s``."""
        return min(self.sequences, 1 + math.ceil(self.busy_batch(state, MARGIN_DEVIATIONS) + state.rate * prompt_s))

    def _ttft(self, state: ReplicaState, queue: Queue, prompts: tuple[float, ...]) -> Estimate:
        fixed, kinds = self._entry(state), self.traffic.kinds
        after = [(kind.share, seconds) for kind, seconds in zip(kinds, prompts, strict=True)]
        mean = fixed + queue.mean_wait + self.traffic.mean(prompts)
        at = fixed + quantile(self.slo.attainment, queue, after)
        return Estimate(mean, at, self.model.prompt_floor_s(self.slowest), self.errors.ttft)

    def _entry(self, state: ReplicaState) -> float:
        """Seconds before a prompt queues: outside of steps, and for the running step."""
        if self.configuration.split:
            return float(self.constants.t_first)
        there = min(1.0, state.batch)
        return float(self.constants.t_first) + ENTRY_STEPS * there * state.step_s

    def _tpot(self, state: ReplicaState, queue: Queue) -> Estimate:
        """Varies with the number of sequences, and with the prompts that arrive during a completion."""
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
        return ONE_EACH.latency_s + sent / ONE_EACH.link

    def _prefill_queue(self, replicas: int) -> Queue:
        """Of one prefill replica with random routing; better routing waits less."""
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
                why = f"the floor of {name.upper()} is {floor * 1e3:,.1f} ms: {self._floor_reason(name)}"
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
        """No replica is faster than an idle one."""
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
    slo: Slo,
    facts: Callable[[Configuration], tuple[Constants, Errors, float | None]],
) -> Iterator[Candidate | PlanRefusal]:
    """A candidate for each configuration, or why its devices cannot share the model."""
    for configuration in configurations:
        try:
            yield Candidate(configuration, traffic, slo, *facts(configuration))
        except ParameterError as error:
            yield PlanRefusal(configuration, "shape", str(error))
