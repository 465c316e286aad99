"""The summary of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from twofold.bench.metrics import notes
from twofold.bench.metrics.chunks import Chunks, InterTokenLatency
from twofold.bench.metrics.counts import RequestCounts, Tokens
from twofold.bench.metrics.distribution import MeasureDistribution
from twofold.bench.metrics.goodput import MeasuredGoodput, Objectives, Verdict, mlperf
from twofold.bench.metrics.notes import Note, cpu_share
from twofold.bench.metrics.requests import (
    METHOD,
    MeasurementRule,
    RequestFigures,
    Window,
    ended_s,
    figures_of,
    output_tokens,
    prompt_tokens,
)
from twofold.bench.record import Client, RequestSample, RunRecord, plain


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
    achieved  complete responses, from the start of the window until the last of them ended. Includes the tail after the
              last arrival; other tools report this one
    steady    everything received within the window, of any request. Has no tail, but underestimates runs that are short
              compared to their responses
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
                sum(output_tokens(sample)[0] for sample in done),
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
    """Mean of open requests over a window (John D. C. Little, "A proof for the queuing formula L = λW", 1961), and
    their maximum in the run."""

    mean: float | None
    max: int

    @classmethod
    def of(cls, samples: Sequence[RequestSample], window: Window) -> Concurrency:
        opened = [(sample.started_s, sample.ended_s) for sample in samples if sample.started_s is not None]
        last = ended_s(samples)
        started = np.array([start for start, _ in opened], np.float64)
        ended = np.array([last if end is None else end for _, end in opened], np.float64)
        inside = np.minimum(ended, window.until_s) - np.maximum(started, window.from_s)
        steps = np.concatenate([np.full(len(ended), -1), np.full(len(started), 1)])
        order = np.argsort(np.concatenate([ended, started]), kind="stable")  # an end precedes a start at the same time
        length, most = window.length_s, int(np.cumsum(steps[order]).max(initial=0))
        return cls(float(np.maximum(inside, 0.0).sum()) / length if length else None, most)


def due_window(record: RunRecord, rule: MeasurementRule) -> Window:
    """The window in which measured requests are due; it ends with a run that was stopped."""
    end = min(record.duration_s, ended_s(record.samples)) if record.interrupted else record.duration_s
    return rule.window(end)


def span(window: Window, measured: Sequence[RequestSample]) -> Window:
    """From the start of a window to the end of its last request."""
    return Window(window.from_s, max(window.from_s, ended_s(measured)))


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
    """The rule, and the window in which measured requests were due."""

    warmup_s: float
    cooldown_s: float
    from_s: float
    until_s: float
    words: str
    percentiles: str = "nearest rank: the least value that at least that share of the values does not exceed"
    failures: str = "infinitely slow; null is a figure without a bound, or without a value where n is 0"
    queue: str = METHOD

    @classmethod
    def of(cls, record: RunRecord, rule: MeasurementRule) -> MeasuredWindow:
        window = due_window(record, rule)
        words = rule.words(record.duration_s)
        return cls(rule.warmup_s, rule.cooldown_s, window.from_s, window.until_s, words)


@dataclass(frozen=True, slots=True)
class ClientUsage:
    """Resources that the client used; ``cpu_share`` is of one core."""

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
        """Plain data under the names of the fields: seconds, shares from 0 to 1;

        ``measured.failures`` explains null.
        """
        document: dict[str, Any] = plain(self)
        return document


def summarise(
    record: RunRecord, rule: MeasurementRule | None = None, objectives: Objectives | None = None, *, template: int = 0
) -> Summary:
    """Figures of the requests that ``rule`` measures, by default all.

    template  tokens at the start of all prompts, which may be cached
    """
    rule = rule or MeasurementRule()
    measured = rule.measured(record)
    figures = figures_of(measured, record)
    window = span(due_window(record, rule), measured)
    chunks = Chunks.of(record.samples)
    ours = chunks if len(measured) == len(record.samples) else Chunks.of(measured)
    latency, itl = Latency.of(figures), InterTokenLatency.of(measured, ours)
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
            *notes.run_notes(record, requests),
            *notes.client_notes(record.client),
            *notes.measure_notes(latency.ttft_s, latency.schedule_delay_s, itl, tokens),
            *notes.size_notes(latency.ttft_s),
            *notes.prompt_notes(measured, template),
        ),
    )
