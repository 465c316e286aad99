"""Admission: the service tier of a request, the quotas of its key, and the room in the waiting queue.

    tier       priority   TPOT target          waits at most
    priority       -100   50 ms                       30 s
    default           0   that of the server          60 s
    flex            100   500 ms                     600 s
    batch           200   10 s                   unlimited     only for lines of batches

A settings file may change each value: a table such as ``[flex]`` with ``priority``, ``tpot_target_s`` and
``queue_limit_s``. Requests of a tier may have an order: their own priority, from 0 (first) to 49, is added to the
tier's, so no number lifts a request into a more urgent tier; waiting makes all requests more urgent (see the
scheduler). A key has a list of tiers that its requests may name; the price sheet has their prices
(``observe/billing.py``). A request without a tier gets the default one if its key has it.

A server that accepts more than it can compute completes nothing in time. So a request that does not fit, or whose first
token would come far too late (``server.outlook``), is refused at once, with a delay after which there will probably be
room.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from decimal import Decimal
from hashlib import blake2b
from types import MappingProxyType
from typing import Final

from twofold.api.base import AskedTier, ServiceTier
from twofold.core.errors import BusyError, ForbiddenError, ParameterError, TwofoldError
from twofold.core.params import SamplingParams
from twofold.core.request import MAX_PRIORITY, EngineRequest, RequestOptions
from twofold.fleet.fleet import Fleet
from twofold.host.settings import Table
from twofold.observe.metrics.requests import NO_OBJECTIVE, Objective
from twofold.server.context import RequestContext
from twofold.server.outlook import Outlook, admitted_part

MAX_OWN_PRIORITY: Final = 49
MAX_SECONDS: Final = "86400"
PLACES: Final = 6
RATE_WINDOW_S: Final = 60.0
DEFAULT_RETRY_S: Final = 5.0
MIN_RETRY_S: Final = 1.0
MAX_RETRY_S: Final = 120.0
BATCH_WAIT_S: Final = 1.0
FORECAST_S: Final = 2.0
"""How long a request waits for the engine's prediction; without one it is admitted."""
BEST_FIRST: Final[tuple[ServiceTier, ...]] = ("priority", "default", "flex", "batch")


@dataclass(frozen=True, slots=True)
class Tier:
    """A class of service. ``tpot_target_s`` None is the server's target; ``queue_limit_s`` None has no limit."""

    name: ServiceTier
    priority: int
    tpot_target_s: float | None
    queue_limit_s: float | None

    def options(self, asked: RequestOptions) -> RequestOptions:
        """The options of a request in this tier: its own TPOT target replaces the tier's; the lower queue limit holds.

        Raises ParameterError for a priority outside the tier.
        """
        if not 0 <= asked.priority <= MAX_OWN_PRIORITY:
            raise ParameterError(
                f"priority must be from 0 to {MAX_OWN_PRIORITY} within a service tier, not {asked.priority}.",
                param="priority",
                hint="Use another service_tier for a higher priority.",
            )
        limits = [seconds for seconds in (self.queue_limit_s, asked.queue_limit_s) if seconds is not None]
        return replace(
            asked,
            priority=self.priority + asked.priority,
            tpot_target_s=self.tpot_target_s if asked.tpot_target_s is None else asked.tpot_target_s,
            queue_limit_s=min(limits, default=None),
        )


STANDARD: Final[tuple[Tier, ...]] = (
    Tier("priority", -100, 0.05, 30.0),
    Tier("default", 0, None, 60.0),
    Tier("flex", 100, 0.5, 600.0),
    Tier("batch", 200, 10.0, None),
)


@dataclass(frozen=True, slots=True)
class Tiers:
    """All tiers of a server."""

    by_name: Mapping[ServiceTier, Tier]

    @classmethod
    def standard(cls) -> Tiers:
        return cls(MappingProxyType({tier.name: tier for tier in STANDARD}))

    @classmethod
    def of(cls, table: Table) -> Tiers:
        """The standard tiers with the changes of a table. Raises ParameterError for unknown names and wrong values."""
        tiers = {tier.name: _changed(tier, table.inner(tier.name)) for tier in STANDARD}
        table.close()
        return cls(MappingProxyType(tiers))

    def without_targets(self) -> Tiers:
        """The tiers for engines with a fixed token budget, which have no TPOT target."""
        return Tiers(MappingProxyType({n: replace(t, tpot_target_s=None) for n, t in self.by_name.items()}))

    def choose(self, asked: AskedTier, granted: Collection[ServiceTier]) -> Tier:
        """The tier of a request, of those granted to its key; "auto" is the default one, else the best one granted.

        Raises ForbiddenError for a tier that is not granted.
        """
        possible = [name for name in BEST_FIRST if name in granted and name != "batch"]
        if asked == "auto" and possible:
            return self.by_name["default" if "default" in possible else possible[0]]
        if asked not in possible:
            raise ForbiddenError(
                f"This key may not use the service tier {asked!r}.",
                hint=f"It may use {', '.join(possible)}." if possible else "It may only be used for batches.",
            )
        return self.by_name[asked]


def _changed(tier: Tier, table: Table | None) -> Tier:
    if table is None:
        return tier
    priority = table.whole("priority", -MAX_PRIORITY, MAX_PRIORITY - MAX_OWN_PRIORITY)
    target, limit = (_seconds(table, name) for name in ("tpot_target_s", "queue_limit_s"))
    table.close()
    return Tier(
        tier.name,
        tier.priority if priority is None else priority,
        tier.tpot_target_s if target is None else target,
        tier.queue_limit_s if limit is None else limit,
    )


def _seconds(table: Table, name: str) -> float | None:
    value: Decimal | None = table.number(name, "0.001", MAX_SECONDS, places=PLACES)
    return None if value is None else float(value)


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """Maximum number of requests, and of prompt tokens, that wait for a model; maximum seconds of a request."""

    requests: int = 128
    tokens: int = 1 << 20
    seconds: float = 600.0


class Admission:
    """Admits the requests of a server."""

    def __init__(self, tiers: Tiers, limits: QueueLimits, objectives: Mapping[str, Objective] | None = None) -> None:
        """``objectives`` of tiers: requests that would miss them by far are refused."""
        self._objectives = objectives or {}
        self._outlooks: dict[tuple[str, str], Outlook] = {}
        self._tiers = tiers
        self._limits = limits
        self._ended: deque[float] = deque(maxlen=1024)
        self._tokens: dict[str, int] = {}
        self._in_progress: dict[str, Counter[str]] = {}

    def waits(self, context: RequestContext, asked: AskedTier) -> RequestOptions:
        """How a request waits for its model: in its tier. A line of a batch is sent again after BATCH_WAIT_S, so that
        others get its slot meanwhile. Raises ForbiddenError for a tier that the key does not have."""
        tier = self._tier(context, asked)
        limit_s = BATCH_WAIT_S if tier.name == "batch" else tier.queue_limit_s
        return RequestOptions(priority=tier.priority, tenant=context.caller.tenant, queue_limit_s=limit_s)

    def _tier(self, context: RequestContext, asked: AskedTier) -> Tier:
        record = context.record
        tier = (
            self._tiers.by_name["batch"] if record.tier == "batch" else self._tiers.choose(asked, context.caller.tiers)
        )
        record.tier = tier.name
        return tier

    def tiered(
        self, context: RequestContext, asked: AskedTier, jobs: Sequence[EngineRequest]
    ) -> Sequence[EngineRequest]:
        """The jobs with the options of their tier, and with their caller's salt, so that no other tenant shares cached
        prefixes with them.

        Raises ForbiddenError for a tier that the key does not have, ParameterError for a priority outside the tier.
        """
        caller, tier = context.caller, self._tier(context, asked)
        tiered = []
        for job in jobs:
            options, longest = tier.options(job.options), self._limits.seconds
            salt = blake2b(f"{caller.cache_salt}\n{options.cache_salt}".encode(), digest_size=16).hexdigest()
            deadline = longest if options.deadline_s is None else min(options.deadline_s, longest)
            options = replace(options, tenant=caller.tenant, cache_salt=salt, deadline_s=deadline)
            tiered.append(replace(job, options=options))
        return tiered

    async def check_wait(self, context: RequestContext, jobs: Sequence[EngineRequest], model: Fleet) -> None:
        """Raises BusyError for a request whose first token would come far beyond its tier's objective. A tenant's
        first jobs are not refused."""
        tier, tenant = context.record.tier, context.caller.tenant
        objective_s = self._objectives.get(tier, NO_OBJECTIVE).ttft_s
        running = self._in_progress.get(model.name, Counter())
        part = admitted_part(model.slots, running, tenant)
        if objective_s is None or running[tenant] + len(jobs) <= part or not jobs:
            return
        outlook = self._outlooks.setdefault((model.name, tier), Outlook())
        if outlook.asks(time.monotonic()):
            with suppress(TwofoldError, TimeoutError):
                async with asyncio.timeout(FORECAST_S):
                    forecast = await model.forecast(jobs[0])
                outlook.learn(forecast, time.monotonic())
        delay_s = outlook.refuses(objective_s, time.monotonic())
        if delay_s is not None:
            raise BusyError(
                f"The first token would come far later than the {objective_s:g} s that the tier {tier} aims at.",
                retry_after_s=min(max(MIN_RETRY_S, math.ceil(delay_s)), MAX_RETRY_S),
                hint="Retry after the delay in Retry-After, or use a tier with a longer objective.",
            )

    @contextmanager
    def admit(self, context: RequestContext, jobs: Sequence[EngineRequest], model: Fleet) -> Iterator[None]:
        """Reserves the tokens that the jobs may use while they run.

        Raises QuotaError if the key's quota is used up, ParameterError if it never allows as many, BusyError if the
        waiting queue is full.
        """
        prompt = sum(len(job.token_ids) for job in jobs)
        tenants = self._in_progress.setdefault(model.name, Counter())
        tenant = context.caller.tenant
        self._check_queue(model, tenant, len(jobs), prompt)
        if context.quota is not None:
            tokens = sum(_max_tokens(job, model.facts.context) for job in jobs)
            context.quota.reserve(tokens, tokens, time.monotonic())
        waiting = self._tokens[model.name] = self._tokens.get(model.name, 0) + prompt
        assert waiting >= prompt
        tenants[tenant] += len(jobs)
        try:
            yield
        finally:
            tenants[tenant] -= len(jobs)
            if not tenants[tenant]:
                del tenants[tenant]
            self._tokens[model.name] -= prompt
            self._ended.append(time.monotonic())

    def _check_queue(self, model: Fleet, tenant: str, jobs: int, tokens: int) -> None:
        """Raises BusyError if the waiting queue is full. A tenant with less than its share is still admitted, so the
        queue is never longer than twice its limit, and no tenant keeps the others out."""
        limits, running = self._limits, self._in_progress[model.name]
        tenants, waiting_tokens = len({*running, tenant}), self._tokens.get(model.name, 0)
        fits = model.queued + jobs <= limits.requests and waiting_tokens + tokens <= limits.tokens
        fair = running[tenant] + jobs <= max(1, limits.requests // tenants)
        fair = fair and tokens <= limits.tokens // limits.requests * jobs
        if model.queued and not fits and (tenants == 1 or not fair):
            raise BusyError(
                f"{model.queued} requests are already queued.",
                retry_after_s=self._retry_after(model.queued),
                hint="Retry after the delay in Retry-After.",
            )

    def _retry_after(self, queued: int) -> float:
        """Seconds in which about half of the queue will end, by the rate at which requests ended recently."""
        now = time.monotonic()
        recent = sum(1 for ended in self._ended if now - ended < RATE_WINDOW_S)
        if recent < 2:
            return DEFAULT_RETRY_S
        span = max(now - self._ended[-recent], 1.0)
        return min(max(MIN_RETRY_S, math.ceil(queued * span / recent / 2)), MAX_RETRY_S)


def _max_tokens(job: EngineRequest, context: int) -> int:
    """Maximum number of tokens that a job can read and generate."""
    prompt = len(job.token_ids)
    if not isinstance(job.params, SamplingParams):
        return prompt
    room = max(0, context - prompt)
    longest = room if job.params.max_tokens is None else min(job.params.max_tokens, room)
    return prompt + longest * job.params.answers
