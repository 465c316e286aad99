"""The record of a request, from which metrics, traces, logs, bills and sums are made.

It has sizes, times and names, and no text that a caller or a model wrote.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final, Literal, Protocol, Self

from twofold.core.params import RequestParams, SamplingParams
from twofold.core.record import Repetition
from twofold.core.report import RequestMetrics
from twofold.engine.compress import CompressionReport
from twofold.observe.billing import Bill


@dataclass(frozen=True, slots=True)
class AskedParams:
    """The sampling parameters of a request that traces and metrics show; None if they were not given."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    n: int = 1

    @classmethod
    def of(cls, params: RequestParams) -> Self:
        if not isinstance(params, SamplingParams):
            return cls()
        return cls(params.max_tokens, params.temperature, params.top_p, params.top_k or None, params.seed, params.n)


@dataclass(frozen=True, slots=True)
class FetchedBlocks:
    """What a prompt fetched from the replica ``source``: blocks of ``nbytes`` bytes together, in so many seconds."""

    source: int
    blocks: int
    tokens: int
    nbytes: int
    seconds: float


MoveCause = Literal["drained", "silent", "crashed", "ended", "handover"]
"""Why a request left its replica. ``ended``: from outside, not by a fault; ``handover``: to end sooner."""


@dataclass(frozen=True, slots=True)
class ServedMove:
    """The replica that continued a request, and why the one before could not."""

    replica: int
    cause: MoveCause


@dataclass(frozen=True, slots=True)
class ServedHandover:
    """Where a request continued after ``tokens`` tokens, so that one replica prefills and another one decodes.

    replica  None: it stayed where it was, because the best other replica gained nothing
    gain_s   predicted seconds by which that ends it sooner
    nbytes   of its blocks that were transferred, ``early`` of them before the first token, the others in ``seconds``
    """

    replica: int | None
    tokens: int
    gain_s: float
    nbytes: int = 0
    seconds: float = 0.0
    early: int = 0


@dataclass(frozen=True, slots=True)
class ServedRoute:
    """Where a prompt went first.

    cached       cached tokens of it there, as far as the hub knew; None from routers that use no caches
    predicted_s  predicted TTFT, from the arrival; None from routers that predict nothing
    error        (predicted − measured) / measured TTFT, unless the prompt went on elsewhere; None without both
    fetched      the blocks that it fetched from another replica; None without any
    moves        where it continued, in order
    handover     None if no replica is for decode, or it ended before
    """

    replica: int
    reason: str
    cached: int | None
    predicted_s: float | None
    error: float | None
    fetched: FetchedBlocks | None = None
    moves: tuple[ServedMove, ...] = ()
    handover: ServedHandover | None = None


OWN_ID: Final = re.compile(r"req_[0-9a-f]{16,64}(-compress)?")


def log_id(request_id: str) -> str:
    """The id of a request for logs: the server's own as it is; of a caller's the first 16 digits of its SHA-256."""
    own = OWN_ID.fullmatch(request_id)
    return request_id if own else f"sha256:{sha256(request_id.encode()).hexdigest()[:16]}"


@dataclass(slots=True)
class ServedRequest:
    """A request. The server fills its record while it is in progress, and observers read it after the end.

    request_id      id in the response's header: req_…, or the caller's own
    endpoint        path of the route, such as /v1/chat/completions
    dialect         openai, anthropic or ollama
    model           the served model's own name; "" if no model was reached
    tenant, key     tenant and id of the caller's key; "" without keys
    tier            default, flex, priority or batch
    status          HTTP status of the response; 499 if the client disconnected before its end
    error           code of the error, such as unknown_parameter; its class for 5xx; None without an error
    field_name      the field of the request that the error is about, as far as requests declare it
    path            if no route matches: what routes know of the path, such as /v1/files/…
    arrived_at      time of arrival, in seconds since 1970
    duration_s      seconds from arrival to the last byte given to the connection
    first_token_s   seconds from arrival to the first token given to the connection (streams), or to the completion
    gaps_s          seconds between deltas given to the connection (streams)
    reports         the engine's, one for each prompt; empty if none ran, or if the response cache had the completion
    cache_asked     whether the response cache was asked; ``cached_answer``: whether it had the completion
    limits_s        the shortest seconds in which this machine could compute each phase ("prefill", "decode") of all
                    prompts; empty if the machine was not measured
    reasoning_tokens, written_tokens   of completions; of prompts, by seconds to live (pins of the prefix cache)
    bill            None if the model has no price
    retries         how often it was sent to the next process of its model, because one ended
    routes          where each prompt went, if its model has several replicas
    compression     what compression of the prompt did; None if it was not asked for
    reference_bills the cost at the prices of other providers' models, by model, as far as the request asked for it
    traceparent     the caller's W3C trace context
    """

    request_id: str
    endpoint: str
    dialect: str
    tenant: str
    key: str
    arrived_at: float
    model: str = ""
    tier: str = "default"
    stream: bool = False
    status: int = 200
    error: str | None = None
    duration_s: float = 0.0
    first_token_s: float | None = None
    gaps_s: list[float] = field(default_factory=list)
    reports: tuple[RequestMetrics, ...] = ()
    cached_answer: bool = False
    reasoning_tokens: int = 0
    written_tokens: dict[float, int] = field(default_factory=dict)
    bill: Bill | None = None
    retries: int = 0
    routes: tuple[ServedRoute, ...] = ()
    params: AskedParams = AskedParams()
    traceparent: str | None = None
    field_name: str | None = None
    path: str | None = None
    cache_asked: bool = False
    limits_s: dict[str, float] = field(default_factory=dict)
    compression: CompressionReport | None = None
    reference_bills: dict[str, Bill] = field(default_factory=dict)

    @property
    def cost(self) -> float | None:
        """The bill's total in ``currency``; None without a bill."""
        return None if self.bill is None else float(self.bill.total)

    @property
    def currency(self) -> str:
        return "" if self.bill is None else self.bill.currency

    @property
    def repeats(self) -> Repetition | None:
        """The longest repetition in its completions."""
        return Repetition.longest(report.repeats for report in self.reports)

    @property
    def prompt_tokens(self) -> int:
        return sum(report.prompt_tokens for report in self.reports)

    @property
    def cached_tokens(self) -> int:
        return sum(report.cached_tokens for report in self.reports)

    @property
    def output_tokens(self) -> int:
        return sum(report.output_tokens for report in self.reports)

    @property
    def ttft_s(self) -> float | None:
        """Seconds to the first token: given to the connection for a stream, else made by the engine."""
        if self.stream or not self.reports:
            return self.first_token_s
        return min((ttft for report in self.reports if (ttft := report.ttft_s) is not None), default=None)

    @property
    def tpots_s(self) -> list[float]:
        """The TPOT of each prompt that has one, as the engine made its tokens."""
        return [tpot for report in self.reports if (tpot := report.tpot_s) is not None]

    @property
    def tpot_s(self) -> float | None:
        """The longest TPOT of the prompts."""
        return max(self.tpots_s, default=None)

    @property
    def phases_s(self) -> dict[str, float]:
        """Seconds of each phase of all prompts, if ``limits_s`` has the phase."""
        took = {
            "prefill": sum(report.prefill_s for report in self.reports),
            "decode": sum(report.decode_s for report in self.reports),
        }
        return {phase: seconds for phase, seconds in took.items() if seconds > 0 and phase in self.limits_s}


class ServedObserver(Protocol):
    """Gets every request that ended, on the event loop: it must neither raise nor take long."""

    def on_served(self, served: ServedRequest) -> None: ...
