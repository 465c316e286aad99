"""Changes the number of a model's replicas with its traffic: asks how many its last requests need, and scales.

The event loop collects the requests; a process at low priority simulates them (``fleet.scale``). A model's next
decision waits BUSY times the processor time of the last one, so its decisions take at most 5 % of a core.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Final

import msgspec

from twofold.core.clock import MonotonicClock
from twofold.core.errors import TwofoldError
from twofold.core.params import SamplingParams
from twofold.core.step_basis import PLAIN
from twofold.core.units import count
from twofold.fleet.fleet import Fleet
from twofold.fleet.scale import (
    MAX_REQUESTS,
    QUIET_S,
    EngineLimits,
    PastRequest,
    ScaleDecision,
    ScaleForecast,
    ScaleQuestion,
    ScaleRange,
    ScaleRule,
    forecast,
)
from twofold.observe.metrics.instruments import Instruments
from twofold.observe.metrics.requests import NO_OBJECTIVE, Objective
from twofold.observe.served import ServedRequest
from twofold.server.models.registry import ModelRegistry, ServedModel
from twofold.server.planning.process import PlannerProcess

log = logging.getLogger("twofold.serve")
WINDOW_S: Final = 300.0
"""Age of the requests that count."""
CHECK_S: Final = 10.0
"""Least seconds between two decisions about a model."""
BUSY: Final = 20
OUTPUT: Final = 128
"""Tokens that an open request is expected to get while none has ended, unless it asks for fewer."""

Ask = Callable[[ScaleQuestion], Awaitable[ScaleForecast]]


def on_process(planner: PlannerProcess) -> Ask:
    """Lets the planner's process simulate."""

    async def ask(question: ScaleQuestion) -> ScaleForecast:
        found = await planner.run("", "scale", msgspec.to_builtins(question))
        return msgspec.json.decode(found, type=ScaleForecast)

    return ask


@dataclass(slots=True)
class _Traffic:
    """A model's requests that ended, each with whether it met its objective (None: it has none), and its rule."""

    rule: ScaleRule
    ended: deque[tuple[PastRequest, bool | None]] = field(default_factory=lambda: deque(maxlen=2 * MAX_REQUESTS))
    next_s: float = 0.0


class Autoscaler:
    """``ServedObserver``: scales all loaded models of a registry. Times are seconds; ``check_s`` is the pause between
    two looks at the models, and the others are those of the constants and of ``ScaleRule``."""

    def __init__(
        self,
        registry: ModelRegistry,
        bounds: ScaleRange,
        objectives: Mapping[str, Objective],
        ask: Ask,
        instruments: Instruments,
        *,
        check_s: float = CHECK_S,
        window_s: float = WINDOW_S,
        quiet_s: float = QUIET_S,
    ) -> None:
        self._registry, self._bounds, self._objectives, self._ask = registry, bounds, dict(objectives), ask
        self._check_s, self._window_s, self._quiet_s = check_s, window_s, quiet_s
        self._now = MonotonicClock().now  # the clock of arrivals
        self._models: dict[str, _Traffic] = {}
        gauge = instruments.gauge
        self._wanted = gauge("twofold:autoscale_replicas", "Replicas that the last decision wants.", "model_name")
        self._share = gauge(
            "twofold:autoscale_attainment",
            "Share of the last minutes' requests that would meet their objective, by number of replicas.",
            *("model_name", "replicas"),
        )
        self._shown: dict[str, set[str]] = {}

    def on_served(self, served: ServedRequest) -> None:
        objective = self._objectives.get(served.tier, NO_OBJECTIVE)
        met = not objective.missed(served) if objective.limits else None
        arrival = self._now() - served.duration_s
        for report in served.reports:
            sizes = (report.prompt_tokens, report.cached_tokens, report.output_tokens)
            for each in _sequences(arrival, *sizes, report.completions, served.tier):
                self._traffic(served.model).ended.append((each, met))

    async def run(self) -> None:
        """Decides about each model again and again, until it is cancelled."""
        await asyncio.gather(*map(self._run, self._registry.models))

    async def _run(self, model: ServedModel) -> None:
        while True:
            try:
                await self.check(model)
            except Exception:  # a fault of ours must not end all later decisions
                log.exception("autoscale of %s failed", model.names[0])
            await asyncio.sleep(self._check_s)

    async def check(self, model: ServedModel) -> None:
        """Decides about a model and scales it, if it is loaded and due."""
        name, fleet = model.names[0], model.worker
        traffic = self._traffic(name)
        if fleet is None or fleet.state != "ready" or self._now() < traffic.next_s:
            return
        asked, measured = self._question(fleet, traffic), self._measured(traffic)
        found: ScaleForecast | None = None
        wanted, reason, problem = fleet.lifecycle.size, "the times of steps are not known yet", None
        if asked is not None:
            try:
                found = await self._ask(asked) if asked.requests else forecast(asked)
                wanted, reason = traffic.rule.decide(asked, found, self._now())
            except TwofoldError as error:
                reason, problem = "the simulation failed", str(error)
        traffic.next_s = self._now() + BUSY * (0.0 if found is None else found.seconds)
        if asked is not None and fleet.lifecycle.size != asked.present:
            return  # another change came first, such as `twofold fleet scale`
        decision = ScaleDecision(
            wanted=wanted,
            present=fleet.lifecycle.size,
            minimum=self._bounds.minimum,
            maximum=self._bounds.maximum,
            reason=reason,
            forecast=found,
            measured=measured,
            at=time.time(),
            problem=problem,
        )
        await self._follow(name, fleet, decision)

    async def _follow(self, name: str, fleet: Fleet, decision: ScaleDecision) -> None:
        """Shows a decision, and scales the fleet."""
        before, fleet.decision = fleet.decision, decision
        self._wanted.set(decision.wanted, name)
        shares = {} if decision.forecast is None else {str(n): s for n, s in decision.forecast.attainment.items()}
        for gone in self._shown.get(name, set()) - set(shares):
            self._share.drop(name, gone)
        self._shown[name] = set(shares)
        for replicas, share in shares.items():
            self._share.set(share, name, replicas)
        if before is None or before.wanted != decision.wanted:
            log.info("autoscale of %s: %s wanted: %s", name, count(decision.wanted, "replica"), decision.reason)
        if decision.wanted != decision.present:
            try:
                await self._registry.scale(name, decision.wanted)
            except TwofoldError as error:
                decision = fleet.decision = msgspec.structs.replace(decision, problem=str(error))
        if decision.problem is None and fleet.lifecycle.problem is not None:
            decision = fleet.decision = msgspec.structs.replace(decision, problem=fleet.lifecycle.problem)
        if decision.problem is not None and (before is None or before.problem != decision.problem):
            log.warning("autoscale of %s is not done: %s", name, decision.problem)

    def _traffic(self, name: str) -> _Traffic:
        if name not in self._models:
            self._models[name] = _Traffic(ScaleRule(self._quiet_s))
        return self._models[name]

    def _measured(self, traffic: _Traffic) -> float | None:
        """The share of the ended requests of the window that met their objective; None without any."""
        since = self._now() - self._window_s
        met = [met for each, met in traffic.ended if met is not None and each.arrival_s >= since]
        return fmean(met) if met else None

    def _question(self, fleet: Fleet, traffic: _Traffic) -> ScaleQuestion | None:
        """How many replicas the requests of the window need, open ones included; None while steps are not known."""
        since, known = self._now() - self._window_s, [each for each, _ in traffic.ended]
        requests = [each for each in known if each.arrival_s >= since]
        requests += [each for each in _open(fleet, requests) if each.arrival_s >= since]
        engine = _limits(fleet)
        if engine is None:
            if requests:
                return None
            engine = EngineLimits(1, 1, 1, 1, (), PLAIN)  # of which nothing is asked
        bounds = self._bounds
        return ScaleQuestion(
            tuple(sorted(requests)[-MAX_REQUESTS - 1 :]),
            engine,
            self._objectives,
            bounds.attainment,
            bounds.minimum,
            bounds.maximum,
            fleet.lifecycle.size,
            fleet.router.name,
        )


def _open(fleet: Fleet, ended: list[PastRequest]) -> Iterator[PastRequest]:
    """The requests in progress, which are expected to get as many tokens as those that ended."""
    usual = round(fmean(each.output for each in ended)) if ended else OUTPUT
    for stream in fleet.requests.streams.values():
        request, choice, record = stream.request, stream.route.choice, stream.reader.record
        params, tier = request.params, "default" if record is None else record.tier
        sampled = isinstance(params, SamplingParams)
        most = params.max_tokens if isinstance(params, SamplingParams) and params.max_tokens else usual
        output = max(stream.delivered.tokens, min(most, usual)) if sampled else 1
        cached = 0 if choice is None else choice.cached or 0
        many = request.completions
        yield from _sequences(request.arrived, len(request.token_ids), cached, output * many, many, tier)


def _sequences(
    arrival_s: float, prompt: int, cached: int, output: int, completions: int, tier: str
) -> Iterator[PastRequest]:
    """A request as one for each of its completions; all but the first share the prompt."""
    each = -(-output // completions)
    for number in range(completions if prompt else 0):
        yield PastRequest(arrival_s, prompt, prompt - 1 if number else cached, max(1, each), tier)


def _limits(fleet: Fleet) -> EngineLimits | None:
    """The engine of a replica, with the mean weights of all step-time models; None before there are any."""
    loads = [each.load for each in fleet.lifecycle.own if each.load is not None and each.load.step_time.ready]
    if not loads:
        return None
    facts = fleet.ready.engine
    weights = tuple(map(fmean, zip(*(load.step_time.weights for load in loads), strict=True)))
    widest = facts.groups[0]
    blocks = widest.blocks if widest.window is None else facts.slots * -(-fleet.ready.context // facts.block_size)
    basis = facts.step_basis
    return EngineLimits(facts.slots, facts.rows, facts.block_size, blocks, weights, basis, facts.tpot_target_s)
