"""The summary of a run: counts, distributions, rates, goodput, and warnings about them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, get_args

import numpy as np

from twofold.bench.load.base import Outcome
from twofold.bench.metrics.distribution import MeasureDistribution, needed
from twofold.bench.metrics.goodput import MeasuredGoodput, Objectives, Verdict, mlperf
from twofold.bench.metrics.requests import (
    QUEUE_METHOD,
    Chunks,
    InterTokenLatency,
    MeasurementRule,
    RequestFigures,
    Window,
    last_time_s,
    output_tokens,
    prompt_tokens,
    request_figures,
)
from twofold.bench.record import Client, RequestSample, RunRecord, plain
from twofold.core.units import count

MAX_ERRORS: Final = 50
"""Maximum number of different errors in a summary."""

MAX_CPU: Final = 0.8
"""Maximum share of one core; above it the client may be the bottleneck."""

MAX_LAG_S: Final = 2e-3
"""Maximum P99 of the lag."""

MAX_DELAY: Final = 0.1
"""Maximum P99 of the schedule delay, as a share of P99 of TTFT."""

MAX_MERGED: Final = 0.01
"""Maximum share of chunks that have the time of the next one."""

MAX_CACHED: Final = 0.5
"""Maximum cached share of tokens in prompts that share nothing with others."""

PERCENTILES: Final = ((0.99, "P99"), (0.999, "P99.9"))
"""Percentiles that need many requests."""


@dataclass(frozen=True, slots=True)
class ErrorCount:
    outcome: Outcome
    status: int | None
    error: str | None
    requests: int


@dataclass(frozen=True, slots=True)
class RequestCounts:
    """Measured requests by outcome.

    sent      requests of the whole run, measured or not
    errors    different errors, the most frequent first; at most ``MAX_ERRORS``
    finishes  complete responses by finish reason
    whole     complete responses that were not streamed
    empty     complete responses without output
    """

    sent: int
    measured: int
    outcomes: Mapping[Outcome, int]
    statuses: Mapping[str, int]
    errors: tuple[ErrorCount, ...]
    finishes: Mapping[str, int]
    whole: int
    empty: int

    @classmethod
    def of(cls, samples: Sequence[RequestSample], measured: Sequence[RequestSample]) -> RequestCounts:
        outcomes = Counter(sample.outcome for sample in measured)
        done = [sample for sample in measured if sample.outcome == "ok"]
        failed = [sample for sample in measured if sample.outcome != "ok"]
        failures = Counter((each.outcome, each.status, each.error) for each in failed if each.error is not None)
        return cls(
            sent=sum(1 for sample in samples if sample.started_s is not None),
            measured=len(measured),
            outcomes={outcome: outcomes[outcome] for outcome in get_args(Outcome)},
            statuses=_by_frequency(sample.status for sample in measured),
            errors=tuple(ErrorCount(*failure, count) for failure, count in failures.most_common(MAX_ERRORS)),
            finishes=_by_frequency(sample.response.finish for sample in done),
            whole=sum(1 for sample in done if not sample.response.streamed),
            empty=sum(1 for sample in done if not sample.response.moments),
        )


@dataclass(frozen=True, slots=True)
class Exactness:
    """Requested tokens compared with tokens as the server counts them.

    counted         requests for which both numbers are known
    equal           requests with exactly the requested number; ``fewer`` and ``more`` are the others
    mean_difference counted − requested
    """

    counted: int
    equal: int
    fewer: int
    more: int
    mean_difference: float | None
    max_difference: int

    @classmethod
    def of(cls, pairs: Iterable[tuple[int, int]]) -> Exactness:
        """The comparison of pairs (requested, counted)."""
        differences = [counted - requested for requested, counted in pairs]
        n = len(differences)
        return cls(
            counted=n,
            equal=differences.count(0),
            fewer=sum(1 for difference in differences if difference < 0),
            more=sum(1 for difference in differences if difference > 0),
            mean_difference=sum(differences) / n if n else None,
            max_difference=max(map(abs, differences), default=0),
        )


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens of complete, measured responses.

    prompt         exactness of prompts, except texts of a trace and later turns, for which no number was requested
    output         exactness of completions; ``fewer`` are completions that ended early
    cached_told    requests for which the server reported the number of cached tokens
    cached_share   cached share of the prompt tokens of these requests
    """

    prompt: Exactness
    output: Exactness
    cached_told: int
    cached_tokens: int
    cached_share: float | None
    reasoning_tokens: int

    @classmethod
    def of(cls, measured: Sequence[RequestSample]) -> Tokens:
        done = [sample for sample in measured if sample.outcome == "ok"]
        known = [sample.response for sample in done if sample.response.cached_tokens is not None]
        cached = sum(response.cached_tokens or 0 for response in known)
        prompts = sum(response.prompt_tokens or 0 for response in known)
        return cls(
            prompt=Exactness.of(
                (sample.ask.input_tokens, sample.response.prompt_tokens)
                for sample in done
                if sample.response.prompt_tokens is not None and sample.ask.messages is None and not sample.ask.history
            ),
            output=Exactness.of(
                (sample.ask.output_tokens, sample.output_tokens) for sample in done if sample.output_tokens is not None
            ),
            cached_told=len(known),
            cached_tokens=cached,
            cached_share=cached / prompts if prompts else None,
            reasoning_tokens=sum(sample.response.reasoning_tokens or 0 for sample in done),
        )


@dataclass(frozen=True, slots=True)
class Note:
    """A warning; ``kind`` is for programs."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Throughput:
    """Rates between two times of the run."""

    from_s: float
    until_s: float
    requests_per_s: float
    input_tokens_per_s: float
    output_tokens_per_s: float
    total_tokens_per_s: float

    @classmethod
    def of(cls, window: Window, requests: int, inputs: float, outputs: float) -> Throughput | None:
        """None for an empty window."""
        length = window.length_s
        if not length:
            return None
        rates = (requests / length, inputs / length, outputs / length, (inputs + outputs) / length)
        return cls(window.from_s, window.until_s, *rates)


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates of measured requests.

    asked     requests due in the measured window
    achieved  complete responses, from the start of the window to the end of the last response. Includes the tail after
              the last arrival; other tools report this rate
    steady    everything received within the window, of any request. Has no tail, but underestimates runs that are short
              compared with their responses
    """

    asked: Throughput | None
    achieved: Throughput | None
    steady: Throughput | None

    @classmethod
    def of(cls, record: RunRecord, measured: Sequence[RequestSample], rule: MeasurementRule, chunks: Chunks) -> Rates:
        """``chunks`` are those of all samples."""
        window = due_window(record, rule)
        done = [sample for sample in measured if sample.outcome == "ok"]
        ended = [sample.ended_s for sample in record.samples if sample.outcome == "ok"]
        inside = (chunks.moments >= window.from_s) & (chunks.moments < window.until_s)
        return cls(
            Throughput.of(
                window,
                len(measured),
                sum(sample.ask.input_tokens for sample in measured),
                sum(sample.ask.output_tokens for sample in measured),
            ),
            Throughput.of(
                span(window, measured),
                len(done),
                sum(map(prompt_tokens, done)),
                sum(map(output_tokens, done)),
            ),
            Throughput.of(
                window,
                sum(window.holds(moment) for moment in ended),
                sum(prompt_tokens(sample) for sample in record.samples if window.holds(sample.first_s)),
                float(chunks.tokens[inside].sum()),
            ),
        )


@dataclass(frozen=True, slots=True)
class Concurrency:
    """Mean number of open requests over a window (John D. C. Little, "A proof for the queuing formula L = λW", 1961),
    and its maximum in the run."""

    mean: float | None
    max: int

    @classmethod
    def of(cls, samples: Sequence[RequestSample], window: Window) -> Concurrency:
        opened = [(sample.started_s, sample.ended_s) for sample in samples if sample.started_s is not None]
        last = last_time_s(samples)
        started = np.array([start for start, _ in opened], np.float64)
        ended = np.array([last if end is None else end for _, end in opened], np.float64)
        inside = np.minimum(ended, window.until_s) - np.maximum(started, window.from_s)
        steps = np.concatenate([np.full(len(ended), -1), np.full(len(started), 1)])
        order = np.argsort(np.concatenate([ended, started]), kind="stable")  # an end precedes a start at the same time
        length, highest = window.length_s, int(np.cumsum(steps[order]).max(initial=0))
        return cls(float(np.maximum(inside, 0.0).sum()) / length if length else None, highest)


def due_window(record: RunRecord, rule: MeasurementRule) -> Window:
    """The window in which measured requests are due; it ends with a run that was stopped."""
    end = min(record.duration_s, last_time_s(record.samples)) if record.interrupted else record.duration_s
    return rule.window(end)


def span(window: Window, measured: Sequence[RequestSample]) -> Window:
    """From the start of the window to the end of the last measured request."""
    return Window(window.from_s, max(window.from_s, last_time_s(measured)))


@dataclass(frozen=True, slots=True)
class Latency:
    """Distributions of requests, in seconds."""

    ttft_s: MeasureDistribution
    ttft_sent_s: MeasureDistribution
    schedule_delay_s: MeasureDistribution
    connect_s: MeasureDistribution
    queue_s: MeasureDistribution
    tpot_s: MeasureDistribution
    e2e_s: MeasureDistribution
    longest_gap_s: MeasureDistribution

    @classmethod
    def of(cls, figures: Sequence[RequestFigures]) -> Latency:
        return cls(
            *(MeasureDistribution.of(getattr(each, measure.name) for each in figures) for measure in fields(cls))
        )


@dataclass(frozen=True, slots=True)
class MeasuredWindow:
    """The rule, the window in which measured requests were due, and sentences about the figures for reports."""

    warmup_s: float
    cooldown_s: float
    from_s: float
    until_s: float
    words: str
    percentiles: str = "nearest rank: the smallest value that at least that share of the values does not exceed"
    failures: str = "infinitely slow; null is a figure without a bound, or without a value where n is 0"
    queue: str = QUEUE_METHOD

    @classmethod
    def of(cls, record: RunRecord, rule: MeasurementRule) -> MeasuredWindow:
        window = due_window(record, rule)
        words = rule.words(record.duration_s)
        return cls(rule.warmup_s, rule.cooldown_s, window.from_s, window.until_s, words)


@dataclass(frozen=True, slots=True)
class ClientUsage:
    """Resources that the client used. ``cpu_share`` is the share of one core."""

    cpu_share: float
    load: Client


@dataclass(frozen=True, slots=True)
class Summary:
    """All figures of a run. ``goodput`` is None without objectives."""

    measured: MeasuredWindow
    requests: RequestCounts
    latency: Latency
    itl: InterTokenLatency
    rates: Rates
    concurrency: Concurrency
    goodput: MeasuredGoodput | None
    mlperf: tuple[Verdict, ...]
    tokens: Tokens
    client: ClientUsage
    notes: tuple[Note, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain data: seconds, and shares from 0 to 1. ``measured.failures`` explains null."""
        document: dict[str, Any] = plain(self)
        return document


def summarise(
    record: RunRecord, rule: MeasurementRule | None = None, objectives: Objectives | None = None, *, template: int = 0
) -> Summary:
    """The summary of a run, with the figures of the requests that ``rule`` measures, by default all.

    template  number of tokens of the chat template, which all prompts begin with
    """
    rule = rule or MeasurementRule()
    measured = rule.measured(record)
    figures = request_figures(record, measured)
    window = span(due_window(record, rule), measured)
    chunks = Chunks.of(record.samples)
    measured_chunks = chunks if len(measured) == len(record.samples) else Chunks.of(measured)
    latency, itl = Latency.of(figures), InterTokenLatency.of(measured, measured_chunks)
    requests, tokens = RequestCounts.of(record.samples, measured), Tokens.of(measured)
    return Summary(
        measured=MeasuredWindow.of(record, rule),
        requests=requests,
        latency=latency,
        itl=itl,
        rates=Rates.of(record, measured, rule, chunks),
        concurrency=Concurrency.of(record.samples, window),
        goodput=None if objectives is None else MeasuredGoodput.of(figures, objectives, window.length_s),
        mlperf=mlperf(latency.ttft_s, latency.tpot_s),
        tokens=tokens,
        client=ClientUsage(cpu_share(record.client), record.client),
        notes=(
            *_run_notes(record, requests),
            *_client_notes(record.client),
            *_measure_notes(latency.ttft_s, latency.schedule_delay_s, itl, tokens),
            *_size_notes(latency.ttft_s),
            *_prompt_notes(measured, template),
        ),
    )


def _run_notes(record: RunRecord, requests: RequestCounts) -> Iterator[Note]:
    """Warnings about outcomes."""
    if not requests.measured:
        yield Note("nothing_measured", "no request was measured: warm-up and cool-down exclude all, or none became due")
    open_still = requests.outcomes["unfinished"]
    if record.interrupted:
        left = f"; {count(open_still, 'open request')} excluded" if open_still else ""
        yield Note("interrupted", f"the run was stopped early{left}")
    elif open_still:
        yield Note(
            "unfinished", f"{count(open_still, 'request')} did not finish within the drain period; counted as failed"
        )
    done = requests.outcomes["ok"]
    if requests.whole:
        yield Note(
            "whole",
            f"{requests.whole} of {done} responses arrived in one piece: their TTFT equals E2E, and they have no TPOT",
        )
    if requests.empty:
        yield Note("empty", f"{requests.empty} of {done} responses are complete but empty")


def _size_notes(ttft: MeasureDistribution) -> Iterator[Note]:
    """Warnings about percentiles of too few requests."""
    short = [(name, needed(share)) for share, name in PERCENTILES if 0 < ttft.n < needed(share)]
    if short:
        names = " and ".join(name for name, _ in short)
        verb = "are" if len(short) > 1 else "is"
        counts = " and ".join(f"{count:,}" for _, count in short)
        yield Note(
            "few_requests",
            f"{names} {verb} unreliable with {ttft.n:,} requests: a 95% confidence bound needs {counts}",
        )


def _client_notes(client: Client) -> Iterator[Note]:
    """Warnings about the client as a possible bottleneck."""
    busy = cpu_share(client)
    if busy > MAX_CPU:
        yield Note("client_busy", f"the client used {busy:.0%} of a core and may have been the bottleneck")
    if client.lag_p99_s > MAX_LAG_S:
        lag = f"{client.lag_p99_s * 1e3:.1f} ms"
        sent = "schedule delay shows how late requests were sent"
        late = sent if client.stamps == "kernel" else "timestamps may be late"
        yield Note("client_lag", f"client lag up to {lag} (P99): {late}")


def _measure_notes(
    ttft: MeasureDistribution, schedule_delay: MeasureDistribution, itl: InterTokenLatency, tokens: Tokens
) -> Iterator[Note]:
    """Warnings about single measures."""
    delay, first = schedule_delay.p99, ttft.p99
    if delay is not None and first is not None and delay > MAX_DELAY * first and delay >= 1e-3:
        yield Note(
            "schedule_delay",
            f"requests waited in the client for up to {delay:.3g} s (P99) before they were sent; TTFT includes that",
        )
    if itl.chunk_tokens.n and itl.merged > MAX_MERGED * itl.chunk_tokens.n:
        part = f"{itl.merged / itl.chunk_tokens.n:.0%} of chunks"
        yield Note("merged", f"{part} arrived together with the next one; the gaps between them count as 0")
    if itl.assumed_share:
        yield Note(
            "assumed_tokens",
            f"token counts are missing for {itl.assumed_share:.0%} of chunks; tokens were spread evenly across them",
        )
    if tokens.output.fewer:
        yield Note(
            "ended_early", f"{tokens.output.fewer} of {tokens.output.counted} responses are shorter than requested"
        )
    if tokens.prompt.counted > tokens.prompt.equal:
        wrong = tokens.prompt.counted - tokens.prompt.equal
        yield Note(
            "inexact_prompts",
            f"{wrong} of {tokens.prompt.counted} prompts differ from the requested length, by up to "
            f"{tokens.prompt.max_difference} tokens",
        )


def _prompt_notes(measured: Iterable[RequestSample], template: int = 0) -> Iterator[Note]:
    """Warnings about cached prompts that should be new. The ``template`` tokens of all prompts may be cached.

    If the server counts more tokens in every prompt than requested, the additional ones belong to the template too.
    """
    new = [
        (sample.response.prompt_tokens, sample.response.cached_tokens or 0, sample.ask.input_tokens)
        for sample in measured
        if sample.outcome == "ok"
        and sample.response.prompt_tokens
        and not (sample.ask.shared or sample.ask.history or sample.ask.messages)
    ]
    common = template + max(0, min((counted - sent for counted, _, sent in new), default=0))
    prompts = sum(max(0, counted - common) for counted, _, _ in new)
    cached = sum(max(0, found - common) for _, found, _ in new)
    if cached > MAX_CACHED * prompts:
        yield Note(
            "seen_before",
            f"{cached / prompts:.0%} of the prompt tokens after the chat template came from the server's prefix cache: "
            "it has seen these prompts before. Use another --seed, or none",
        )


def cpu_share(client: Client) -> float:
    """The share of one core that the client used."""
    return client.cpu_s / client.wall_s if client.wall_s else 0.0


def _by_frequency(values: Iterable[object | None]) -> Mapping[str, int]:
    """Counts of values, the most frequent first."""
    return dict(Counter(str(value) for value in values if value is not None).most_common())
