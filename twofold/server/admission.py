"""Who may run now: the tier that a request gets, its key's quotas, and the length of the line.

A server that takes more than it can do serves nobody in time, so what does not fit is refused at once, and told when
to come again: about when the requests before it will be done.
"""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Final

from twofold.api.base import DialectRequest
from twofold.core.errors import BusyError
from twofold.core.params import SamplingParams
from twofold.core.request import EngineRequest, RequestOptions
from twofold.server.base import ServedModel
from twofold.server.exchange import RequestContext
from twofold.server.tiers import Tier, Tiers

RATE_WINDOW_S: Final = 60.0
DEFAULT_RETRY_S: Final = 5.0
MIN_RETRY_S: Final = 1.0
MAX_RETRY_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """Most requests, and tokens of their prompts, that may wait for a model; longest that a request may take."""

    requests: int = 128
    tokens: int = 1 << 20
    seconds: float = 600.0


@dataclass(frozen=True, slots=True)
class Share:
    """What a tenant has of a model: its prompts under way, and how many tenants have any, itself included."""

    under_way: int
    tenants: int


class Admission:
    """Lets requests of a server in."""

    def __init__(self, tiers: Tiers, limits: QueueLimits) -> None:
        self._tiers = tiers
        self._limits = limits
        self._ended: deque[float] = deque(maxlen=1024)
        self._tokens: dict[str, int] = {}
        self._under_way: dict[str, Counter[str]] = {}

    def tiered(
        self, exchange: RequestContext, request: DialectRequest, jobs: Sequence[EngineRequest]
    ) -> Sequence[EngineRequest]:
        """The jobs as their tier and their caller have them. Raises ForbiddenError for a tier that the key may not
        have, ParameterError for a priority outside of it."""
        if exchange.forced is None:
            tier = self._tiers.choose(request.tier, exchange.caller.tiers)
        else:
            tier = self._tiers[exchange.forced]
        exchange.tier = tier.name
        return [replace(job, options=self._options(exchange, tier, job.options)) for job in jobs]

    @contextmanager
    def admit(self, exchange: RequestContext, jobs: Sequence[EngineRequest], model: ServedModel) -> Iterator[None]:
        """Lets the jobs run. Raises QuotaError where the key's share is used up, BusyError where the line is full."""
        prompt = sum(len(job.token_ids) for job in jobs)
        tenants = self._under_way.setdefault(model.name, Counter())
        tenant = exchange.caller.tenant
        self._check_line(model, len(jobs), prompt, Share(tenants[tenant], len({*tenants, tenant})))
        exchange.reserve(sum(_most_tokens(job, model.facts.context) for job in jobs))
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

    def _options(self, exchange: RequestContext, tier: Tier, asked: RequestOptions) -> RequestOptions:
        """What the caller asked for, in its tier; caches are the tenant's own."""
        salt = blake2b(f"{exchange.caller.cache_salt}\n{asked.cache_salt}".encode(), digest_size=16).hexdigest()
        deadline = self._limits.seconds if asked.deadline_s is None else min(asked.deadline_s, self._limits.seconds)
        return replace(tier.options(asked), tenant=exchange.caller.tenant, cache_salt=salt, deadline_s=deadline)

    def _check_line(self, model: ServedModel, jobs: int, tokens: int, share: Share) -> None:
        """Where the line is full, a tenant still gets in that has less than its share of it: so the line is never
        longer than twice its limit, and nobody fills it for others."""
        full = model.queued + jobs > self._limits.requests and model.queued
        full = full or (model.queued and self._tokens.get(model.name, 0) + tokens > self._limits.tokens)
        fair = share.under_way + jobs <= max(1, self._limits.requests // share.tenants)
        fair = fair and tokens <= self._limits.tokens // self._limits.requests * jobs
        if full and (share.tenants == 1 or not fair):
            raise BusyError(
                f"{model.queued} requests are already queued.",
                retry_after_s=self._retry_after(model.queued),
                hint="Retry after the delay in Retry-After.",
            )

    def _retry_after(self, queued: int) -> float:
        """About how long those who wait will take, by how many ended recently."""
        now = time.monotonic()
        lately = sum(1 for ended in self._ended if now - ended < RATE_WINDOW_S)
        if lately < 2:
            return DEFAULT_RETRY_S
        span = max(now - self._ended[-lately], 1.0)
        return min(max(MIN_RETRY_S, math.ceil(queued * span / lately / 2)), MAX_RETRY_S)


def _most_tokens(job: EngineRequest, context: int) -> int:
    """The most tokens that a job can read and draw."""
    prompt = len(job.token_ids)
    if not isinstance(job.params, SamplingParams):
        return prompt
    room = max(0, context - prompt)
    longest = room if job.params.max_tokens is None else min(job.params.max_tokens, room)
    return prompt + longest * job.params.answers
