"""What the server knows of a request once it has ended: what metrics, traces and logs are made of.

It holds sizes, times and names, and nothing that a caller or a model wrote.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from twofold.core.report import RequestMetrics


@dataclass(frozen=True, slots=True)
class AskedParams:
    """How a request was to be answered, as far as traces tell it; None where it was left open."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    n: int = 1
    stops: int = 0


@dataclass(frozen=True, slots=True)
class ServedRequest:
    """A request that ended, whatever its end.

    request_id      as told to the client: req_…
    endpoint        the route's path, such as /v1/chat/completions
    dialect         openai or anthropic
    model           the served model's own name; "" where it did not come to one
    tenant, key     whose it is, and the id of the key; "" without keys
    tier            default, flex, priority or batch
    status          HTTP status of the answer; 499 where the client went away before its end
    error           the error's code, such as unknown_parameter; its class for what the server failed; None without one
    field_name      the field of the request that the error is about, where its name is short and plain
    arrived_at      seconds since 1970
    duration_s      from there to the last byte given to the connection
    first_token_s   from there to the first token given to the connection (streams), or to the answer
    gaps_s          between deltas given to the connection, by stream
    reports         of the engine, one for each prompt; none where it did not come to that, or the answer was kept
    cache_asked     whether the response cache was to be asked; cached_answer whether it gave the answer
    limits_s        the least seconds that this machine could take for each phase ("prefill", "decode") of all reports
                    together; empty where it was not measured
    reasoning_tokens, written_tokens   of the answers; of the prompt, by seconds to live (pins of the prefix cache)
    cost            in ``currency``; None without a price
    traceparent     the caller's W3C trace context
    """

    request_id: str
    endpoint: str
    dialect: str
    model: str
    tenant: str
    key: str
    tier: str
    stream: bool
    status: int
    error: str | None
    arrived_at: float
    duration_s: float
    first_token_s: float | None = None
    gaps_s: tuple[float, ...] = ()
    reports: tuple[RequestMetrics, ...] = ()
    cached_answer: bool = False
    reasoning_tokens: int = 0
    written_tokens: dict[float, int] = field(default_factory=dict)
    cost: float | None = None
    currency: str = ""
    params: AskedParams = AskedParams()
    traceparent: str | None = None
    field_name: str | None = None
    cache_asked: bool = False
    limits_s: dict[str, float] = field(default_factory=dict)

    @property
    def prompt_tokens(self) -> int:
        return sum(report.prompt_tokens for report in self.reports)

    @property
    def cached_tokens(self) -> int:
        return sum(report.cached_tokens for report in self.reports)

    @property
    def output_tokens(self) -> int:
        return sum(report.output_tokens for report in self.reports)


class ServedObserver(Protocol):
    """Hears of every request that ended, on the event loop: it must not raise and not take long."""

    def on_served(self, served: ServedRequest) -> None: ...
