"""One request on its way through the server: who asked, what was asked, what came of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from twofold.api.answers import reasoning_tokens
from twofold.api.base import Dialect, DialectRequest, ModelFacts, ReplyHead, ServiceTier
from twofold.api.cache_points import CacheUsage
from twofold.api.openai.errors import error_code
from twofold.core.errors import ParameterError, TwofoldError, plain_name
from twofold.core.params import SamplingParams
from twofold.core.request import EngineRequest
from twofold.engine.outputs import RequestOutput
from twofold.observe.accounting.bill import Bill
from twofold.observe.served import AskedParams, ServedRequest
from twofold.planner.predict.phase import phase_floor
from twofold.planner.predict.steps import StepPredictor
from twofold.server.edge.keys import Caller
from twofold.server.edge.quotas import Quotas, QuotaUse
from twofold.server.edge.refusals import Header
from twofold.server.edge.request_id import new_reply_id
from twofold.server.pool import ByteBudget
from twofold.server.response_cache.cache import HIT_HEADER

Keep: TypeAlias = Callable[["RequestContext", Any, ReplyHead, dict[str, Any]], Awaitable[None]]
"""Keeps the reply, given as its body, to a request."""
CLIENT_GONE = 499
"""The status, in logs and metrics, of requests whose client went away; nobody gets it."""


@dataclass(slots=True)
class RequestContext:
    """Times are of the monotonic clock; ``arrived_at`` is in seconds since 1970. ``size`` is the body's, in bytes.
    ``source`` is who it comes from, for fairness: a key, or an address.

    left_out     what of the request cannot be had here, and was left out
    received     how much of the body has come, in bytes
    request_id   may be the caller's own, and may come again
    reply_id     ours and new: what the reply, and whatever is kept of it, is called
    """

    request_id: str
    endpoint: str
    dialect: Dialect
    caller: Caller
    traceparent: str | None = None
    reply_id: str = field(default_factory=new_reply_id)
    arrived: float = field(default_factory=time.monotonic)
    arrived_at: float = field(default_factory=time.time)
    size: int = 0
    received: int = 0
    model: str = ""
    tier: ServiceTier = "default"
    stream: bool = False
    left_out: Sequence[str] = ()
    replay: bool | None = None
    forced: ServiceTier | None = None
    keep: Keep | None = None
    keep_alive_s: float | None = None
    status: int = 200
    error: TwofoldError | None = None
    cut: TwofoldError | None = None
    source: str = ""
    held: list[tuple[ByteBudget, int]] = field(default_factory=list)
    task: asyncio.Task[None] | None = None
    jobs: Sequence[EngineRequest] = ()
    outputs: Sequence[RequestOutput] = ()
    facts: ModelFacts | None = None
    first_token: float | None = None
    last_delta: float | None = None
    gaps: list[float] = field(default_factory=list)
    retries: int = 0
    cache_asked: bool = False
    cached_answer: bool = False
    visit: QuotaUse | None = None
    bill: Bill | None = None
    ceilings: StepPredictor | None = None

    def begin(self, request: DialectRequest) -> None:
        self.stream = request.stream

    def told(self) -> None:
        """A delta was given to the connection."""
        now = time.monotonic()
        if self.last_delta is None:
            self.first_token = now
        else:
            self.gaps.append(now - self.last_delta)
        self.last_delta = now

    def fail(self, error: TwofoldError) -> None:
        """It ended with this error, which lets go of the frames that raised it: they hold the body."""
        error.__traceback__ = error.__context__ = error.__cause__ = None
        self.error, self.status = error, self.dialect.status(error)

    def interrupt(self, error: TwofoldError) -> None:
        """Ends it now; what streams gets ``error`` as its last event."""
        self.cut = error
        if self.task is not None:
            self.task.cancel()

    def enter(self, quotas: Quotas, announced: int = 0) -> None:
        """Takes one request, and the bytes that its body announces, of its key's share. Raises QuotaError."""
        self.visit = quotas.enter(self.caller.key_id, self.caller.quota, time.monotonic(), announced)

    def reserve(self, tokens: int) -> None:
        """Takes the most tokens that it can use from its key's share. Raises QuotaError, ParameterError."""
        if self.visit is not None:
            self.visit.reserve(tokens, tokens, time.monotonic())

    def hold(self, shares: ByteBudget, size: int) -> None:
        """Takes bytes of what callers share, until it ends. Raises BusyError."""
        shares.take(self.source, size)
        self.held.append((shares, size))

    def leave(self) -> None:
        """Gives back what it held, and what it did not use of its key's share."""
        while self.held:
            shares, size = self.held.pop()
            shares.give(self.source, size)
        if self.visit is not None:
            used = (len(output.prompt_token_ids) + output.metrics.output_tokens for output in self.outputs)
            self.visit.leave(0 if self.cached_answer else sum(used), self.received, time.monotonic())

    def headers(self) -> tuple[Header, ...]:
        """What headers say of how an answer came about, and of what its key has left."""
        marks = [HIT_HEADER] if self.cached_answer else []
        if self.left_out:
            marks.append((b"x-twofold-warning", b"omitted: " + _ascii(", ".join(self.left_out))))
        return (*marks, *(() if self.visit is None else self.visit.headers(time.monotonic())))

    def _limits(self) -> dict[str, float]:
        """The least seconds that this machine could have taken, by phase."""
        if self.ceilings is None:
            return {}
        limits = {"prefill": 0.0, "decode": 0.0}
        for report in (output.report for output in self.outputs):
            for phase, work in (("prefill", report.record.prefill), ("decode", report.record.decode)):
                if work.rows:
                    limits[phase] += phase_floor(work, self.ceilings, report.completions).seconds
        return limits

    @property
    def cache_usage(self) -> CacheUsage:
        """Tokens of the prompts that were read from the cache, written to it, and neither."""
        return sum(map(CacheUsage.of, self.outputs), CacheUsage())

    def served(self) -> ServedRequest:
        """The record of an exchange that has ended."""
        return ServedRequest(
            request_id=self.request_id,
            endpoint=self.endpoint,
            dialect=self.dialect.name,
            model=self.model,
            tenant=self.caller.tenant,
            key=self.caller.key_id,
            tier=self.tier,
            stream=self.stream,
            status=self.status,
            error=None if self.error is None else _error_name(self.error),
            field_name=_field_name(self.error),
            arrived_at=self.arrived_at,
            duration_s=time.monotonic() - self.arrived,
            first_token_s=None if self.first_token is None else self.first_token - self.arrived,
            gaps_s=tuple(self.gaps),
            reports=() if self.cached_answer else tuple(output.report for output in self.outputs),
            cached_answer=self.cached_answer,
            reasoning_tokens=0 if self.facts is None else reasoning_tokens(self.outputs, self.facts),
            written_tokens={} if self.cached_answer else self.cache_usage.written_by_seconds,
            cost=None if self.bill is None else float(self.bill.total),
            currency="" if self.bill is None else self.bill.currency,
            params=_asked(self.jobs),
            cache_asked=self.cache_asked,
            limits_s={} if self.cached_answer else self._limits(),
            traceparent=self.traceparent,
        )


def _ascii(text: str) -> bytes:
    return text.encode("ascii", "backslashreplace")


def _asked(jobs: Sequence[EngineRequest]) -> AskedParams:
    params = jobs[0].params if jobs else None
    if not isinstance(params, SamplingParams):
        return AskedParams()
    return AskedParams(
        params.max_tokens,
        params.temperature,
        params.top_p,
        params.top_k or None,
        params.seed,
        params.n,
        len(params.stop_strings),
    )


def _error_name(error: TwofoldError) -> str:
    """The error as logs and records have it: its code, or its class where the server failed."""
    return error_code(error) if error.status < 500 else type(error).__name__


def _field_name(error: TwofoldError | None) -> str | None:
    """The field that an error is about."""
    return plain_name(error.param) if isinstance(error, ParameterError) else None
