"""Metrics of requests that ended: tokens, times by phase, cost, and how they ended.

Latencies are only of requests that an engine ran; requests completed from the response cache are counted, not timed.
Totals of tokens grow when a request ends, by its usage; ``twofold:rows_total`` grows with each step.

Goodput counts the requests that meet the latency objective of their tier (DistServe: Zhong et al., OSDI 2024). A
request misses it if one of its times is longer, or if the server fails with a 5xx, which includes refusals under
overload. Errors of the caller (4xx, an exceeded quota, a disconnect) are not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, TypeAlias

from twofold.core.errors import ParameterError
from twofold.core.record import WaitReason
from twofold.core.report import RequestMetrics
from twofold.observe.metrics.engine import ENGINE, MODEL
from twofold.observe.metrics.instruments import (
    COMPLETIONS,
    FIRST_TOKEN_SECONDS,
    PREEMPTIONS,
    REQUEST_SECONDS,
    TOKEN_SECONDS,
    TOKENS,
    Instruments,
    LabelValues,
)
from twofold.observe.metrics.recent import MAX_TENANTS, Recent
from twofold.observe.served import ServedRequest

TIERS: Final = ("default", "flex", "priority", "batch")
FAILED: Final = "failed"
"""The measure that counts as missed if the server failed."""
MAX_ENDPOINTS: Final = 64
MAX_ERRORS: Final = 64
REFUSALS: Final = {"BusyError": "busy", "QuotaError": "quota"}
"""Why a request was not admitted: the server was full, or the caller's quota was used up."""
REASONS: Final = ("stop", "length", "abort", "deadline", "repetition", "error")
STALLS: Final = {cause: cause.name.lower() for cause in WaitReason}

Bounds: TypeAlias = Sequence[float]
OF_REPORTS: Final[Mapping[str, tuple[str, Bounds, Callable[[RequestMetrics], float | None]]]] = {
    "request_prompt_tokens": ("Tokens of a prompt.", TOKENS, lambda one: one.prompt_tokens),
    "request_generation_tokens": ("Tokens of the completions of a prompt.", TOKENS, lambda one: one.output_tokens),
    "request_max_num_generation_tokens": (
        "Tokens of a completion; of several completions of one prompt, their mean.",
        TOKENS,
        lambda one: one.output_tokens / one.completions,
    ),
    "request_prefill_kv_computed_tokens": ("Prompt tokens that were not cached.", TOKENS, lambda one: one.fresh_tokens),
    "request_num_preemptions": ("Preemptions of a request.", PREEMPTIONS, lambda one: one.record.preemptions),
    "request_queue_time_seconds": ("Seconds from arrival to admission.", REQUEST_SECONDS, lambda one: one.queue_s),
    "request_prefill_time_seconds": (
        "Seconds from admission to the first token.",
        REQUEST_SECONDS,
        lambda one: None if one.first_scheduled is None else one.prefill_s,
    ),
    "request_decode_time_seconds": (
        "Seconds from the first token to the last.",
        REQUEST_SECONDS,
        lambda one: None if one.first_scheduled is None else one.decode_s,
    ),
    "request_inference_time_seconds": (
        "Seconds from admission to the last token.",
        REQUEST_SECONDS,
        lambda one: None if one.first_scheduled is None else one.prefill_s + one.decode_s,
    ),
    "request_time_per_output_token_seconds": (
        "Seconds per token after the first.",
        TOKEN_SECONDS,
        lambda one: one.tpot_s,
    ),
}
"""vLLM's histograms over the reports of requests, one for each prompt; a value None is not observed."""
OF_REQUESTS: Final[Mapping[str, tuple[str, Bounds, Callable[[ServedRequest], float | None]]]] = {
    "request_params_max_tokens": ("max_tokens of requests that set it.", TOKENS, lambda one: one.params.max_tokens),
    "request_params_n": ("Requested completions.", COMPLETIONS, lambda one: one.params.n),
    "time_to_first_token_seconds": ("Seconds to the first token.", FIRST_TOKEN_SECONDS, lambda one: one.ttft_s),
    "e2e_request_latency_seconds": (
        "Seconds from the first byte of a request to the last byte of its reply.",
        REQUEST_SECONDS,
        lambda one: one.duration_s,
    ),
}
"""vLLM's histograms over requests; a value None is not observed."""
TOTALS: Final[Mapping[str, tuple[str, Callable[[ServedRequest], float]]]] = {
    "vllm:prompt_tokens": ("Prompt tokens, cached ones included.", lambda one: one.prompt_tokens),
    "vllm:generation_tokens": ("Tokens of completions.", lambda one: one.output_tokens),
    "vllm:prompt_tokens_cached": ("Prompt tokens from the prefix cache.", lambda one: one.cached_tokens),
    "twofold:reasoning_tokens": ("Reasoning tokens of completions.", lambda one: one.reasoning_tokens),
}
"""Counters of a model's tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """Maximum seconds to the first token, per token after it, and to the end; None: no limit."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None

    def __post_init__(self) -> None:
        for name in ("ttft_s", "tpot_s", "e2e_s"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ParameterError(f"{name} must be a number of seconds above 0, not {value!r:.60}.", param=name)

    @property
    def limits(self) -> dict[str, float]:
        """The limits by measure."""
        limits = {"ttft": self.ttft_s, "tpot": self.tpot_s, "e2e": self.e2e_s}
        return {measure: limit for measure, limit in limits.items() if limit is not None}

    def missed(self, served: ServedRequest) -> list[str]:
        """The measures that exceed their limits; a request that lacks a measure does not miss it."""
        taken = {"ttft": served.ttft_s, "tpot": served.tpot_s, "e2e": served.duration_s}
        return [measure for measure, limit in self.limits.items() if (taken[measure] or 0.0) > limit]


NO_OBJECTIVE: Final = Objective()
DEFAULT_OBJECTIVES: Final[Mapping[str, Objective]] = MappingProxyType(
    {
        "default": Objective(ttft_s=2.0, tpot_s=0.2),
        "flex": Objective(ttft_s=30.0, tpot_s=1.0),
        "priority": Objective(ttft_s=1.0, tpot_s=0.1),
        "batch": NO_OBJECTIVE,
    }
)
"""Objectives for models of a size that a CPU can run. Batches have none."""

ERRORS: Final = (0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 5.0)
"""Bounds of relative errors."""


class RequestMetricsObserver:
    """``ServedObserver``: counts requests that ended, on the event loop.

    Requests for unknown models create no series with a model's name. Tenants beyond MAX_TENANTS are counted together.
    """

    def __init__(self, instruments: Instruments, recent: Recent, objectives: Mapping[str, Objective]) -> None:
        if unknown := set(objectives) - set(TIERS):
            raise ParameterError(f"There is no service tier {min(unknown)!r:.60}.", param="objectives")
        self._recent = recent
        self._objectives = objectives
        self._models: set[str] = set()
        self._endpoints, self._kinds = LabelValues(MAX_ENDPOINTS), LabelValues(MAX_ERRORS)
        self._tenants = LabelValues(MAX_TENANTS)
        self._count_requests(instruments)
        self._measure_models(instruments)

    def _count_requests(self, instruments: Instruments) -> None:
        counter = instruments.counter
        self._requests = counter(
            "twofold:http_requests", "Requests that ended; 499: the client disconnected.", "endpoint", "status"
        )
        self._errors = counter("twofold:request_errors", "Errors by kind.", "dialect", "error")
        self._cost = counter("twofold:cost", "Cost, by the configured prices.", *MODEL, "tenant", "tier", "currency")
        self._tenant_tokens = counter(
            "twofold:tenant_tokens", "Tokens by tenant: fresh and cached prompt tokens, output.", "tenant", "kind"
        )
        self._tenant_requests = counter("twofold:tenant_requests", "Requests by tenant.", "tenant", "tier")
        self._met = counter("twofold:slo_met", "Requests that met their tier's objective.", "tier")
        self._missed = counter("twofold:slo_missed", "Requests that missed it.", "tier")
        self._causes = counter(
            "twofold:slo_missed_by", "Misses by measure; a request may miss several.", "tier", "measure"
        )
        limits = instruments.gauge("twofold:slo_seconds", "The objectives: max seconds.", "tier", "measure")
        for tier in TIERS:
            self._met.add(0, tier)
            self._missed.add(0, tier)
            for measure, limit in self._objectives.get(tier, NO_OBJECTIVE).limits.items():
                limits.set(limit, tier, measure)

    def _measure_models(self, instruments: Instruments) -> None:
        counter, histogram = instruments.counter, instruments.histogram
        self._ended = counter("vllm:request_success", "Completions by how they ended.", *MODEL, "finished_reason")
        self._refused = counter("vllm:admission_rejections", "Requests that were not admitted.", "model_name", "reason")
        self._cache = counter(
            "twofold:response_cache_requests", "Requests that looked into the response cache.", *MODEL, "result"
        )
        self._totals = [(counter(name, text, *MODEL), value) for name, (text, value) in TOTALS.items()]
        self._source = counter("vllm:prompt_tokens_by_source", "Prompt tokens by source.", *MODEL, "source")
        self._of_reports = [
            (histogram(f"vllm:{name}", text, bounds, *MODEL), value)
            for name, (text, bounds, value) in OF_REPORTS.items()
        ]
        self._of_requests = [
            (histogram(f"vllm:{name}", text, bounds, *MODEL), value)
            for name, (text, bounds, value) in OF_REQUESTS.items()
        ]
        self._gaps = histogram(
            "vllm:inter_token_latency_seconds", "Seconds between tokens of a stream.", TOKEN_SECONDS, *MODEL
        )
        self._route_errors = histogram(
            "twofold:route_prediction_error",
            "Error of the TTFT that the router predicted, |predicted - measured| / measured, by the chosen replica.",
            ERRORS,
            *MODEL,
        )
        self._fetched = counter(
            "twofold:fetched_bytes", "Bytes of keys and values fetched from other replicas, by the chosen one.", *MODEL
        )
        self._took = counter("twofold:phase_seconds", "Seconds of requests whose limit is known.", *MODEL, "phase")
        self._limit = counter(
            "twofold:phase_limit_seconds", "The least seconds possible on this machine.", *MODEL, "phase"
        )
        self._stalls = counter("twofold:stall_seconds", "Seconds in which requests did not advance.", *MODEL, "cause")

    def add_model(self, model: str) -> None:
        """Starts a model's counters at 0, so that their first increase is visible."""
        if model in self._models:
            return
        self._models.add(model)
        for reason in REASONS:
            self._ended.add(0, model, ENGINE, reason)
        for result in ("hit", "miss"):
            self._cache.add(0, model, ENGINE, result)
        for reason in set(REFUSALS.values()):
            self._refused.add(0, model, reason)
        for counter, _ in self._totals:
            counter.add(0, model, ENGINE)

    def on_served(self, served: ServedRequest) -> None:
        self._requests.add(1, self._endpoints.of(served.endpoint), str(served.status))
        if served.error:
            self._errors.add(1, served.dialect, self._kinds.of(served.error))
        tenant, cached = self._tenants.of(served.tenant), served.cached_tokens
        self._tenant_requests.add(1, tenant, served.tier)
        self._tenant_tokens.add(served.prompt_tokens - cached, tenant, "fresh")
        self._tenant_tokens.add(cached, tenant, "cached")
        self._tenant_tokens.add(served.output_tokens, tenant, "output")
        if served.cost is not None:
            self._cost.add(served.cost, served.model, ENGINE, tenant, served.tier, served.currency)
        completed = served.status < 400 and bool(served.reports or served.cached_answer)
        if completed or served.status >= 500:
            objective = self._objectives.get(served.tier, NO_OBJECTIVE)
            missed = objective.missed(served) if completed else [FAILED]
            (self._missed if missed else self._met).add(1, served.tier)
            if completed or served.model in self._models:
                self._recent.on_outcome(served, met=not missed)
            for measure in missed:
                self._causes.add(1, served.tier, measure)
        if served.reports or served.cached_answer:
            self.add_model(served.model)
        if served.model in self._models:
            self._count_end(served)
        if served.reports:
            self._measure(served)
            self._recent.on_served(served)

    def _count_end(self, served: ServedRequest) -> None:
        """Counts how the request of a known model ended."""
        refusal = REFUSALS.get(served.error or "")
        if refusal is not None:
            self._refused.add(1, served.model, refusal)
        elif served.status >= 500:
            self._ended.add(1, served.model, ENGINE, "error")
        for report in served.reports:
            for reason in report.finish_reasons:
                self._ended.add(1, served.model, ENGINE, reason)
        if served.cache_asked:
            self._cache.add(1, served.model, ENGINE, "hit" if served.cached_answer else "miss")

    def _measure(self, served: ServedRequest) -> None:
        """Counts tokens and latencies of a request that an engine ran, and the shortest times it could have taken."""
        labels = (served.model, ENGINE)
        for counter, total in self._totals:
            counter.add(total(served), *labels)
        self._source.add(served.prompt_tokens - served.cached_tokens, *labels, "local_compute")
        self._source.add(served.cached_tokens, *labels, "local_cache_hit")
        for histogram, of_request in self._of_requests:
            if (value := of_request(served)) is not None:
                histogram.observe(value, *labels)
        if served.gaps_s:
            self._gaps.observe_all(served.gaps_s, *labels)
        for route in served.routes:
            if route.error is not None:
                self._route_errors.observe(abs(route.error), served.model, str(route.replica))
            if route.fetched is not None:
                self._fetched.add(route.fetched.nbytes, served.model, str(route.replica))
        for report in served.reports:
            for histogram, of_report in self._of_reports:
                if (value := of_report(report)) is not None:
                    histogram.observe(value, *labels)
            for cause, seconds in report.record.stalls.items():
                self._stalls.add(seconds, *labels, STALLS[cause])
        for phase, seconds in served.phases_s.items():
            self._took.add(seconds, *labels, phase)
            self._limit.add(served.limits_s[phase], *labels, phase)
