"""What becomes of traffic on so many replicas of a configuration: times, memory, reasons, or what forbids it."""

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
"""A split as the simulator has it, for how fast keys and values travel."""
LOGIT_ROWS: Final = 256
"""Logits of a step that memory is set aside for."""
ROOM_DEVIATIONS: Final = 2.0
"""How far above the mean there must be room for, whatever share is asked for: who finds none waits very long."""
MARGIN_DEVIATIONS: Final = 4.0
"""How far above the mean the batch limit is, so that nearly nobody waits for a place."""


@dataclass(frozen=True)
class Candidate:
    """A configuration for some traffic and limits."""

    configuration: Configuration
    traffic: Traffic
    slo: Slo
    constants: Constants
    errors: Errors
    price: float | None
    model: Model

    @classmethod
    def of(
        cls,
        configuration: Configuration,
        traffic: Traffic,
        slo: Slo,
        constants: Constants,
        errors: Errors,
        price: float | None,
    ) -> Candidate:
        """Raises ParameterError where its devices cannot share the model."""
        model = Model.of(configuration, traffic, constants)
        return cls(configuration, traffic, slo, constants, errors, price, model)

    @cached_property
    def memory(self) -> ReplicaMemory:
        c = self.configuration
        draft = c.speculation.draft if c.speculation else None
        return ReplicaMemory(c.shape, c.machine.memory, c.how, c.chunk, LOGIT_ROWS, draft)

    @cached_property
    def sequences(self) -> int:
        """Of mean length that fit into a replica."""
        return self.memory.sequences(self.traffic.context)

    @cached_property
    def curve(self) -> Curve:
        """Of a replica that does both, or only decodes."""
        most = max(1, min(self.sequences, BATCHES[-1]))
        return (decoding if self.configuration.split else mixed)(self.model, most)

    @cached_property
    def slowest(self) -> Kind:
        """The prompt that the asked share of the requests is not longer than."""
        share = 0.0
        for kind in self.traffic.kinds:
            share += kind.share
            if share >= self.slo.attainment:
                break
        return kind

    def refusal(self) -> PlanRefusal | None:
        """What forbids it at any number of replicas: the hardest bound."""
        return self._below_floor() or self._no_room() or self._slow_alone()

    def state(self, count: Count) -> tuple[ReplicaState, Queue, tuple[float, ...]] | None:
        """A decoding replica's state, the queue of prompts, and seconds of each kind's prompt once it is its turn.

        None where it is too much for so many, or more sequences than there is room for.
        """
        state = self.curve.at(self.traffic.rate / (count.decode or count.both))
        if state is None or self.crowd(state, max(ROOM_DEVIATIONS, self.slo.deviations)) > self.sequences:
            return None
        if not self.configuration.split:
            return state, state.queue, state.kind_s
        queue = self._prefill_queue(count.prefill)
        return None if queue.busy >= 1 else (state, queue, self.prompt_s)

    def plan(self, count: Count) -> CapacityPlan | None:
        """What so many replicas give; None where that is too few."""
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
        """Whether a plan keeps the limits, by its estimates."""
        return all(plan.estimates()[name].at <= limit for name, limit in self.slo.limits())

    @staticmethod
    def crowd(state: ReplicaState, deviations: float) -> float:
        """Sequences that are there at a busy moment."""
        return state.batch + deviations * math.sqrt(state.variance)

    def _batch_limit(self, state: ReplicaState, prompt_s: float) -> int:
        """Room for a crowd, and for those whose prompts are computed, which take so many seconds."""
        return min(self.sequences, 1 + math.ceil(self.crowd(state, MARGIN_DEVIATIONS) + state.rate * prompt_s))

    def _ttft(self, state: ReplicaState, queue: Queue, prompts: tuple[float, ...]) -> Estimate:
        fixed, kinds = self._entry(state), self.traffic.kinds
        after = [(kind.share, seconds) for kind, seconds in zip(kinds, prompts, strict=True)]
        mean = fixed + queue.mean_wait + self.traffic.mean(prompts)
        at = fixed + quantile(self.slo.attainment, queue, after)
        return Estimate(mean, at, self.model.prompt_floor_s(self.slowest), self.errors.ttft)

    def _entry(self, state: ReplicaState) -> float:
        """Seconds before a prompt may queue: outside of steps, and for the step that runs."""
        if self.configuration.split:
            return float(self.constants.t_first)
        there = min(1.0, state.batch)
        return float(self.constants.t_first) + ENTRY_STEPS * there * state.step_s

    def _tpot(self, state: ReplicaState, queue: Queue) -> Estimate:
        """Its spread is that of the number of sequences, and of the prompts that come during an answer."""
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
        """Mean seconds between the first token and the second in which keys and values go to another replica."""
        sent = self.traffic.mean(self.memory.sequence_bytes(kind.prompt) for kind in self.traffic.kinds)
        return ONE_EACH.latency_s + sent / ONE_EACH.link

    def _prefill_queue(self, replicas: int) -> Queue:
        """Of one prefill replica, to which requests are sent by chance: what is routed better waits less."""
        seconds = self.prompt_s
        mean, square = self.traffic.mean(seconds), self.traffic.mean(each**2 for each in seconds)
        return Queue(self.traffic.rate / replicas, mean, square)

    def sure(self, estimates: Mapping[str, Estimate]) -> bool | None:
        """Whether limits are kept at the bad ends of the error bands too; None where an error is unknown."""
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
        """An idle replica is the fastest there is."""
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
        """The first token of a prompt as long as the asked share has, with nobody else there."""
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
    """Those whose devices can share the model, and why others cannot."""
    for configuration in configurations:
        try:
            yield Candidate.of(configuration, traffic, slo, *facts(configuration))
        except ParameterError as error:
            yield PlanRefusal(configuration, "shape", str(error))
