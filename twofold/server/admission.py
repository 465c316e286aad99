"""Admission: which tier a request gets, whether its key's quotas allow it, and whether the waiting queue has room.

A server that accepts more than it can compute completes nothing in time. So what does not fit is refused at once, with
the delay after which the requests before it will probably be done.
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

from twofold.api.base import AskedTier
from twofold.core.errors import BusyError
from twofold.core.params import SamplingParams
from twofold.core.request import EngineRequest
from twofold.server.base import ServedModel
from twofold.server.context import RequestContext
from twofold.server.tiers import Tiers

RATE_WINDOW_S: Final = 60.0
DEFAULT_RETRY_S: Final = 5.0
MIN_RETRY_S: Final = 1.0
MAX_RETRY_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """Most requests, and most prompt tokens, that may wait for a model; most seconds that a request may take."""

    requests: int = 128
    tokens: int = 1 << 20
    seconds: float = 600.0


class Admission:
    """Admits the requests of a server."""

    def __init__(self, tiers: Tiers, limits: QueueLimits) -> None:
        self._tiers = tiers
        self._limits = limits
        self._ended: deque[float] = deque(maxlen=1024)
        self._tokens: dict[str, int] = {}
        self._in_progress: dict[str, Counter[str]] = {}

    def tiered(
        self, context: RequestContext, asked: AskedTier, jobs: Sequence[EngineRequest]
    ) -> Sequence[EngineRequest]:
        """The jobs with the options of their tier and their caller: cached prefixes are shared within a tenant only.

        Raises ForbiddenError for a tier that the key does not have, ParameterError for a priority outside of it.
        """
        record, caller = context.record, context.caller
        tier = self._tiers["batch"] if record.tier == "batch" else self._tiers.choose(asked, caller.tiers)
        record.tier = tier.name
        tiered = []
        for job in jobs:
            options, longest = tier.options(job.options), self._limits.seconds
            salt = blake2b(f"{caller.cache_salt}\n{options.cache_salt}".encode(), digest_size=16).hexdigest()
            deadline = longest if options.deadline_s is None else min(options.deadline_s, longest)
            options = replace(options, tenant=caller.tenant, cache_salt=salt, deadline_s=deadline)
            tiered.append(replace(job, options=options))
        return tiered

    @contextmanager
    def admit(self, context: RequestContext, jobs: Sequence[EngineRequest], model: ServedModel) -> Iterator[None]:
        """Reserves what the jobs may use while they run.

        Raises QuotaError if the key's quota is used up, ParameterError if it never allows as much, BusyError if the
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

    def _check_queue(self, model: ServedModel, tenant: str, jobs: int, tokens: int) -> None:
        """Raises BusyError if the waiting queue is full. A tenant with less than its share is still admitted, so the
        queue is never longer than twice its limit, and no tenant fills it for the others."""
        limits, running = self._limits, self._in_progress[model.name]
        tenants = len({*running, tenant})
        full = model.queued + jobs > limits.requests and model.queued
        full = full or (model.queued and self._tokens.get(model.name, 0) + tokens > limits.tokens)
        fair = running[tenant] + jobs <= max(1, limits.requests // tenants)
        fair = fair and tokens <= limits.tokens // limits.requests * jobs
        if full and (tenants == 1 or not fair):
            raise BusyError(
                f"{model.queued} requests are already queued.",
                retry_after_s=self._retry_after(model.queued),
                hint="Retry after the delay in Retry-After.",
            )

    def _retry_after(self, queued: int) -> float:
        """About how many seconds the queue will take, by the rate at which requests ended recently."""
        now = time.monotonic()
        recent = sum(1 for ended in self._ended if now - ended < RATE_WINDOW_S)
        if recent < 2:
            return DEFAULT_RETRY_S
        span = max(now - self._ended[-recent], 1.0)
        return min(max(MIN_RETRY_S, math.ceil(queued * span / recent / 2)), MAX_RETRY_S)


def _max_tokens(job: EngineRequest, context: int) -> int:
    """Most tokens that a job can read and generate."""
    prompt = len(job.token_ids)
    if not isinstance(job.params, SamplingParams):
        return prompt
    room = max(0, context - prompt)
    longest = room if job.params.max_tokens is None else min(job.params.max_tokens, room)
    return prompt + longest * job.params.answers
