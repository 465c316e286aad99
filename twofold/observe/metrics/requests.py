"""What requests tell when they end: tokens, times by phase, money, and how they ended.

Latencies are of requests that an engine answered; those that the response cache answered are counted, not timed. Totals
of tokens grow when a request ends, by what its usage says; ``twofold:rows_total`` grows step by step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from twofold.core.record import WaitReason
from twofold.core.report import RequestMetrics
from twofold.observe.metrics.engine import ENGINE, MODEL
from twofold.observe.metrics.goodput import GoodputMetrics, Objective
from twofold.observe.metrics.instruments import (
    ANSWERS,
    FIRST_TOKEN_SECONDS,
    PREEMPTIONS,
    REQUEST_SECONDS,
    TOKEN_SECONDS,
    Counter,
    Histogram,
    Instruments,
    Names,
    token_bounds,
)
from twofold.observe.metrics.recent import Recent
from twofold.observe.metrics.timing import Timing, phase_seconds, tpot_s
from twofold.observe.served import ServedRequest

MAX_TENANTS: Final = 100
MAX_ENDPOINTS: Final = 64
MAX_ERRORS: Final = 64
REFUSALS: Final = {"BusyError": "busy", "QuotaError": "quota"}
"""Why a request was not admitted: the server was full, or the caller's share was used up."""
REASONS: Final = ("stop", "length", "abort", "deadline", "error")
STALLS: Final = {cause: cause.name.lower() for cause in WaitReason}


class RequestMetricsObserver:
    """``ServedObserver``: counts a request when it ended, on the event loop."""

    def __init__(self, instruments: Instruments, recent: Recent, objectives: Mapping[str, Objective]) -> None:
        self._http = _Http(instruments)
        self._tokens = _Tokens(instruments)
        self._times = _Times(instruments)
        self._phases = _Phases(instruments)
        self._tenants = _Tenants(instruments)
        self._goodput = GoodputMetrics(instruments, objectives)
        self._recent = recent
        self._models: set[str] = set()

    def know(self, model: str) -> None:
        """Makes a model's counters begin at 0, so that their first growth is seen."""
        if model not in self._models:
            self._models.add(model)
            self._http.know(model)
            self._tokens.know(model)

    def on_answer(self, endpoint: str, status: int) -> None:
        self._http.answer(endpoint, status)

    def on_served(self, served: ServedRequest) -> None:
        timing = Timing.of(served)
        self._http.take(served)
        self._tenants.take(served)
        self._goodput.judge(served, timing)
        if served.reports or served.cached_answer:
            self.know(served.model)
        if served.model not in self._models:
            return  # nobody may make series by asking for models that there are not
        self._http.end(served)
        if served.reports:
            self._tokens.take(served)
            self._times.take(served, timing)
            self._phases.take(served)
            self._recent.take(served, timing)


class _Http:
    """Requests by where they went and how they ended."""

    def __init__(self, instruments: Instruments) -> None:
        self._endpoints, self._kinds = Names(MAX_ENDPOINTS), Names(MAX_ERRORS)
        self._requests = instruments.counter(
            "twofold:http_requests", "Requests that ended; 499: the client went away.", "endpoint", "status"
        )
        self._errors = instruments.counter("twofold:request_errors", "Errors by kind.", "dialect", "error")
        self._ended = instruments.counter(
            "vllm:request_success", "Answers by how they ended.", *MODEL, "finished_reason"
        )
        self._refused = instruments.counter(
            "vllm:admission_rejections", "Requests that were not admitted.", "model_name", "reason"
        )
        self._cache = instruments.counter(
            "twofold:response_cache_requests", "Requests for which the response cache was asked.", *MODEL, "result"
        )

    def know(self, model: str) -> None:
        for reason in REASONS:
            self._ended.add(0, model, ENGINE, reason)
        for result in ("hit", "miss"):
            self._cache.add(0, model, ENGINE, result)
        for reason in set(REFUSALS.values()):
            self._refused.add(0, model, reason)

    def answer(self, endpoint: str, status: int) -> None:
        self._requests.add(1, self._endpoints.of(endpoint), str(status))

    def take(self, served: ServedRequest) -> None:
        self.answer(served.endpoint, served.status)
        if served.error:
            self._errors.add(1, served.dialect, self._kinds.of(served.error))

    def end(self, served: ServedRequest) -> None:
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


class _Tokens:
    """Tokens in and out."""

    def __init__(self, instruments: Instruments) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return instruments.counter(name, text, *MODEL, *labels)

        def histogram(name: str, text: str, bounds: Sequence[float]) -> Histogram:
            return instruments.histogram(name, text, bounds, *MODEL)

        bounds = token_bounds()
        self._prompt = counter("vllm:prompt_tokens", "Prompt tokens, cached ones included.")
        self._output = counter("vllm:generation_tokens", "Tokens of answers.")
        self._cached = counter("vllm:prompt_tokens_cached", "Prompt tokens that came from the prefix cache.")
        self._source = counter("vllm:prompt_tokens_by_source", "Prompt tokens by where they came from.", "source")
        self._reasoning = counter("twofold:reasoning_tokens", "Tokens of answers that were thinking.")
        self._prompts = histogram("vllm:request_prompt_tokens", "Tokens of a prompt.", bounds)
        self._outputs = histogram("vllm:request_generation_tokens", "Tokens of the answers to a prompt.", bounds)
        self._longest = histogram(
            "vllm:request_max_num_generation_tokens", "Tokens of an answer; of several to a prompt, their mean.", bounds
        )
        self._computed = histogram(
            "vllm:request_prefill_kv_computed_tokens", "Prompt tokens that were not cached.", bounds
        )
        self._most = histogram("vllm:request_params_max_tokens", "max_tokens, where it was given.", bounds)
        self._answers = histogram("vllm:request_params_n", "Answers that were asked for.", ANSWERS)
        self._preempted = histogram("vllm:request_num_preemptions", "Preemptions of a request.", PREEMPTIONS)
        self._known = (self._prompt, self._output, self._cached, self._reasoning)

    def know(self, model: str) -> None:
        for counter in self._known:
            counter.add(0, model, ENGINE)

    def take(self, served: ServedRequest) -> None:
        labels = (served.model, ENGINE)
        self._reasoning.add(served.reasoning_tokens, *labels)
        self._answers.observe(served.params.n, *labels)
        if served.params.max_tokens is not None:
            self._most.observe(served.params.max_tokens, *labels)
        for report in served.reports:
            self._count(report, labels)
            self._distribute(report, labels)

    def _count(self, report: RequestMetrics, labels: tuple[str, ...]) -> None:
        self._prompt.add(report.prompt_tokens, *labels)
        self._output.add(report.output_tokens, *labels)
        self._cached.add(report.cached_tokens, *labels)
        self._source.add(report.prompt_tokens - report.cached_tokens, *labels, "local_compute")
        self._source.add(report.cached_tokens, *labels, "local_cache_hit")

    def _distribute(self, report: RequestMetrics, labels: tuple[str, ...]) -> None:
        self._prompts.observe(report.prompt_tokens, *labels)
        self._outputs.observe(report.output_tokens, *labels)
        self._longest.observe(report.output_tokens / report.completions, *labels)
        self._computed.observe(report.prompt_tokens - report.cached_tokens, *labels)
        self._preempted.observe(report.record.preemptions, *labels)


class _Times:
    """Latencies as vLLM measures them."""

    def __init__(self, instruments: Instruments) -> None:
        def seconds(name: str, text: str, bounds: Sequence[float] = REQUEST_SECONDS) -> Histogram:
            return instruments.histogram(f"vllm:{name}_seconds", text, bounds, *MODEL)

        self._first = seconds("time_to_first_token", "Seconds to the first token.", FIRST_TOKEN_SECONDS)
        self._gaps = seconds("inter_token_latency", "Seconds between tokens of a stream.", TOKEN_SECONDS)
        self._each = seconds("request_time_per_output_token", "Seconds for each token after the first.", TOKEN_SECONDS)
        self._whole = seconds("e2e_request_latency", "Seconds from the first byte of a request to the last one back.")
        self._queue = seconds("request_queue_time", "Seconds from arrival to admission.")
        self._inference = seconds("request_inference_time", "Seconds from admission to the last token.")
        self._prefill = seconds("request_prefill_time", "Seconds from admission to the first token.")
        self._decode = seconds("request_decode_time", "Seconds from the first token to the last.")

    def take(self, served: ServedRequest, timing: Timing) -> None:
        labels = (served.model, ENGINE)
        self._whole.observe(timing.e2e_s, *labels)
        if timing.ttft_s is not None:
            self._first.observe(timing.ttft_s, *labels)
        if served.gaps_s:
            self._gaps.observe_all(served.gaps_s, *labels)
        for report in served.reports:
            self._phases(report, labels)

    def _phases(self, report: RequestMetrics, labels: tuple[str, ...]) -> None:
        self._queue.observe(report.queue_s, *labels)
        if report.admitted is None:
            return
        self._prefill.observe(report.prefill_s, *labels)
        self._decode.observe(report.decode_s, *labels)
        self._inference.observe(report.prefill_s + report.decode_s, *labels)
        each = tpot_s(report)
        if each is not None:
            self._each.observe(each, *labels)


class _Phases:
    """Where time went, beside the least that it could have taken."""

    def __init__(self, instruments: Instruments) -> None:
        self._took = instruments.counter(
            "twofold:phase_seconds", "Seconds of requests whose limit is known.", *MODEL, "phase"
        )
        self._limit = instruments.counter(
            "twofold:phase_limit_seconds", "The least seconds that this machine could have taken.", *MODEL, "phase"
        )
        self._stalls = instruments.counter(
            "twofold:stall_seconds", "Seconds in which requests did not advance, by cause.", *MODEL, "cause"
        )

    def take(self, served: ServedRequest) -> None:
        labels = (served.model, ENGINE)
        for phase, seconds in phase_seconds(served).items():
            self._took.add(seconds, *labels, phase)
            self._limit.add(served.limits_s[phase], *labels, phase)
        for report in served.reports:
            for cause, seconds in report.record.stalls.items():
                self._stalls.add(seconds, *labels, STALLS[cause])


class _Tenants:
    """Tokens and money by whose they are. Tenants beyond MAX_TENANTS are counted together."""

    def __init__(self, instruments: Instruments) -> None:
        self._names = Names(MAX_TENANTS)
        self._cost = instruments.counter(
            "twofold:cost", "Money, by the configured prices.", *MODEL, "tenant", "tier", "currency"
        )
        self._tokens = instruments.counter(
            "twofold:tenant_tokens", "Tokens by tenant: fresh and cached ones of prompts, output.", "tenant", "kind"
        )
        self._requests = instruments.counter("twofold:tenant_requests", "Requests by tenant.", "tenant", "tier")

    def take(self, served: ServedRequest) -> None:
        tenant = self._names.of(served.tenant)
        self._requests.add(1, tenant, served.tier)
        self._tokens.add(served.prompt_tokens - served.cached_tokens, tenant, "fresh")
        self._tokens.add(served.cached_tokens, tenant, "cached")
        self._tokens.add(served.output_tokens, tenant, "output")
        if served.cost is not None:
            self._cost.add(served.cost, served.model, ENGINE, tenant, served.tier, served.currency)
