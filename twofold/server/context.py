"""A request in progress: its record, and the resources that it holds until it ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from twofold.api.base import Dialect
from twofold.api.names import declared_name
from twofold.api.openai.errors import error_code
from twofold.core.errors import ParameterError, TwofoldError
from twofold.observe.served import ServedRequest
from twofold.planner.predict.steps import StepPredictor
from twofold.planner.price.catalog import ApiModel
from twofold.server.edge.keys import Caller
from twofold.server.edge.quotas import QuotaUse
from twofold.server.edge.refusals import Header, RawResponse, error_response
from twofold.server.pool import ByteBudget
from twofold.server.response_cache import HIT_HEADER

CLIENT_GONE: Final = 499
"""The status, in logs and metrics, of a request whose client disconnected; it is never sent."""


@dataclass(slots=True, eq=False)
class RequestContext:
    """A request in progress. The server fills ``record`` until it ends; then observers read it.

    source        the caller whose share of threads and memory it takes: the id of its key, or its address
    size          bytes of its body, by which work on it is scheduled
    arrived       seconds on the monotonic clock
    store         its choice for the response cache: True stores a sampled completion, False skips the cache
    keep_alive_s  seconds that its model stays loaded without use, if its caller may choose them
    omitted       ignored fields of its body, for a header
    notes         sentences about what was done otherwise than asked, for the same header
    quota         its part of its key's quota; None if the key has no limits
    received      bytes of its body so far
    held          bytes that it holds of budgets shared by all callers
    task          sends the reply; ``cut`` is the error that ends it early
    steps         predicts steps of its model on this machine; None until the machine was measured
    estimated_ttft_s   its estimated TTFT, if its caller asked for an estimate just before
    references    models of other providers at whose prices the record gives its cost
    scored_tokens tokens that were read to compress its prompt; they count for its quota
    last_delta    when the last delta was given to the connection, in seconds on the monotonic clock
    """

    record: ServedRequest
    dialect: Dialect
    caller: Caller
    source: str
    size: int = 0
    arrived: float = field(default_factory=time.monotonic)
    store: bool | None = None
    keep_alive_s: float | None = None
    omitted: Sequence[str] = ()
    notes: list[str] = field(default_factory=list)
    quota: QuotaUse | None = None
    received: int = 0
    held: list[tuple[ByteBudget, int]] = field(default_factory=list)
    task: asyncio.Task[None] | None = None
    cut: TwofoldError | None = None
    steps: StepPredictor | None = None
    last_delta: float | None = None
    scored_tokens: int = 0
    estimated_ttft_s: float | None = None
    references: Sequence[ApiModel] = ()

    @property
    def tenant(self) -> str:
        return self.caller.tenant

    def delta_sent(self) -> None:
        """Notes when a delta was given to the connection."""
        now, last = time.monotonic(), self.last_delta
        if last is None:
            self.record.first_token_s = now - self.arrived
        else:
            self.record.gaps_s.append(now - last)
        self.last_delta = now

    def fail(self, error: TwofoldError) -> None:
        """Records the error that ended it, and drops the traceback, whose frames hold the body."""
        error.__traceback__ = error.__context__ = error.__cause__ = None
        self.record.status = self.dialect.status(error)
        self.record.error = error_code(error) if error.status < 500 else type(error).__name__
        self.record.field_name = declared_name(error.param) if isinstance(error, ParameterError) else None

    def interrupt(self, error: TwofoldError) -> None:
        """Ends it now; a stream gets ``error`` as its last event."""
        self.cut = error
        if self.task is not None:
            self.task.cancel()

    def refused(self, error: TwofoldError) -> RawResponse:
        """Records the error that ended it; returns the response for the case that none has begun."""
        self.fail(error)
        return error_response(self.dialect, error, self.record.request_id, self.reply_headers())

    def hold(self, budget: ByteBudget, size: int) -> None:
        """Takes bytes of a budget until the request ends. Raises BusyError."""
        budget.take(self.source, size)
        self.held.append((budget, size))

    def leave(self) -> None:
        """Returns the held bytes, and the unused part of its key's quota."""
        while self.held:
            budget, size = self.held.pop()
            budget.give(self.source, size)
        if self.quota is not None:
            used = self.record.prompt_tokens + self.record.output_tokens + self.scored_tokens
            self.quota.leave(used, self.received, time.monotonic())

    def note(self, text: str) -> None:
        """Adds a text to its warnings, once."""
        if text not in self.notes:
            self.notes.append(text)

    def reply_headers(self) -> tuple[Header, ...]:
        """Headers of its response: a hit of the response cache, warnings, and the rest of its key's quota."""
        marks = [HIT_HEADER] if self.record.cached_answer else []
        if (report := self.record.compression) is not None:
            applied = "applied" if report.verdict.applied else "declined"
            counts = f"{applied}; tokens={report.tokens_before}, {report.tokens_after}"
            marks.append((b"x-twofold-compression", counts.encode()))
        warnings = [*(["omitted: " + ", ".join(self.omitted)] if self.omitted else ()), *self.notes]
        if warnings:
            marks.append((b"x-twofold-warning", "; ".join(warnings).encode("ascii", "backslashreplace")))
        return (*marks, *(() if self.quota is None else self.quota.account.headers(time.monotonic())))
