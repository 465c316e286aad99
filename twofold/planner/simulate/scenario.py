"""The scenario of a simulation: a model on replicas of a machine, their settings, and their router."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from twofold.core.errors import ParameterError
from twofold.core.model import ModelSpec
from twofold.fleet.routing.router import make_router
from twofold.planner.count.memory import kv_bytes
from twofold.planner.count.setting import PLAIN, Setting
from twofold.planner.machines.machine import Machine
from twofold.planner.predict.constants import Constants, constants_for
from twofold.planner.simulate.exact import ExactReplica
from twofold.planner.simulate.fast.replica import FastReplica
from twofold.planner.simulate.fleet import Handover, Simulated, Source, simulate
from twofold.planner.simulate.jobs import Replica
from twofold.planner.simulate.lever_steps import (
    CompressedSource,
    CompressedSteps,
    SimulatedCompression,
    SimulatedDrafts,
    SpeculativeSteps,
)
from twofold.planner.simulate.live import LiveRecording
from twofold.planner.simulate.routing import learned_step_time, log_normal_error
from twofold.planner.simulate.setting import EngineSetting, PredictedSteps, StepSeconds

MAX_REPLICAS: Final = 10_000
MAX_ERROR: Final = 10.0


@dataclass(frozen=True, slots=True)
class Split:
    """Numbers of prefill and of decode replicas. Each device sends its part of the keys and values over a link of
    ``link`` bytes a second with a latency of ``latency_s`` seconds."""

    prefill: int
    decode: int
    link: float = 50e9
    latency_s: float = 1e-3

    def __post_init__(self) -> None:
        if self.prefill < 1 or self.decode < 1:
            raise ParameterError(
                f"{self.prefill}:{self.decode} leaves a phase without a replica.",
                param="disaggregate",
                hint="For one prefill and three decode replicas, write 1:3.",
            )
        if not self.link > 0 or self.latency_s < 0:
            raise ParameterError("The link bandwidth must be above 0, and its latency at least 0.", param="link")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A model on ``replicas`` replicas or, with a ``split``, on prefill and decode replicas.

    drafts       speculative decoding; None: without
    compression  of prompts; None: without
    exact        run every step by the engine's scheduler; else time advances from event to event
    constants    of step times; None: those known for the machine and model
    error        σ of the log-normal error in each prediction of the router
    others       scenarios of other machines, whose replicas serve the same jobs
    """

    shape: ModelSpec
    machine: Machine
    setting: EngineSetting
    setup: Setting = PLAIN
    constants: Constants | None = None
    replicas: int = 1
    split: Split | None = None
    router: str = "round-robin"
    exact: bool = False
    drafts: SimulatedDrafts | None = None
    compression: SimulatedCompression | None = None
    error: float = 0.0
    others: tuple[Scenario, ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= self.replicas <= MAX_REPLICAS:
            raise ParameterError(f"There may be 1 to {MAX_REPLICAS:,} replicas, not {self.replicas}.", param="replicas")
        if not (self.error == 0 or (self.router == "predicted" and 0 < self.error <= MAX_ERROR)):
            raise ParameterError(
                f"An error of predictions must be from 0 to {MAX_ERROR:g}, and needs the router predicted.",
                param="prediction-error",
                hint="Write --router predicted --prediction-error 0.35.",
            )
        if self.split and self.exact:
            raise ParameterError(
                "Exact mode does not support disaggregation.",
                param="exact",
                hint="Remove --exact or --disaggregate.",
            )
        if self.split and self.setting.layer_kv is not None:
            raise ParameterError(
                "Layer-wise keys and values are not simulated together with disaggregation.",
                param="layer-kv",
                hint="Remove --layer-kv or --disaggregate.",
            )
        if self.split is not None and self.setting.kv_store is not None:
            raise ParameterError(
                "A KV store is not simulated together with disaggregation.",
                param="kv-store-bytes",
                hint="Remove --kv-store-bytes or --disaggregate.",
            )
        if not self.exact and self.setting.kv_store is not None and len(self.setting.groups) > 1:
            raise ParameterError(
                f"{self.shape.name} has layers with a sliding window, whose stored blocks only exact mode counts.",
                param="exact",
                hint="Add --exact, or remove --kv-store-bytes.",
            )
        if not self.exact and self.setting.tpot_target_s is not None:
            raise ParameterError(
                "The live budget needs exact mode, which simulates every step.",
                param="tpot-target-ms",
                hint="Add --exact, or remove the target.",
            )
        if not self.exact and self.setting.groups[0].window is not None:
            raise ParameterError(
                f"Every layer of {self.shape.name} has a sliding window, which needs exact mode.",
                param="exact",
                hint="Add --exact.",
            )

    def on_each(self, change: Callable[[Scenario], Scenario]) -> Scenario:
        """The scenario with a change on all machines."""
        return replace(change(self), others=tuple(map(change, self.others)))

    @property
    def all_replicas(self) -> int:
        """Replicas that take new jobs, on all machines."""
        return self.replicas + sum(other.replicas for other in self.others)

    def run(self, source: Source, recording: LiveRecording | None = None) -> Simulated:
        """Runs all jobs to their end; ``recording`` takes the steps of the first replica, in exact mode."""
        steps, split = self.steps(), self.split
        source = source if self.compression is None else CompressedSource(source, self.compression)
        first = self.make_replicas(steps, split.prefill if split else self.replicas)
        if recording is not None and isinstance(first[0], ExactReplica):
            first[0].record(recording)
        handover = None if split is None else Handover(self.make_replicas(steps, split.decode), self._travel_s)
        for other in self.others:
            first += other.make_replicas(other.steps(), other.replicas)
        router = make_router(self.router, log_normal_error(self.error) if self.error else None)
        return simulate(source, first, router, handover, delay_s=steps.first_s)

    def steps(self) -> PredictedSteps:
        """The predicted steps of the model, without drafts and compression."""
        return PredictedSteps(self.shape, self.machine, self.constants, self.setup)

    def make_replicas(self, steps: PredictedSteps, count: int) -> list[Replica]:
        """Creates ``count`` replicas."""
        seconds: StepSeconds = steps
        by = self.constants or constants_for(self.machine, self.shape)
        if self.drafts is not None:
            seconds = SpeculativeSteps(seconds, self.drafts, self.machine, by, self.setup, steps.windows)
        if self.compression is not None:
            seconds = CompressedSteps(seconds, self.compression, self.machine, by)
        if self.exact:
            return [ExactReplica(self.setting, seconds, steps.windows) for _ in range(count)]
        step_time = learned_step_time(self.setting, seconds, steps.windows) if self.router == "predicted" else None
        return [FastReplica(self.setting, seconds, steps.windows, step_time) for _ in range(count)]

    def _travel_s(self, tokens: int) -> float:
        assert self.split is not None, "keys and values are sent only between separate phases"
        return self.split.latency_s + kv_bytes(self.shape, tokens, self.setup) / self.split.link
