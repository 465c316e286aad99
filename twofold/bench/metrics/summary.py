"""The summary of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from twofold.bench.metrics import notes
from twofold.bench.metrics.chunks import Chunks, InterTokenLatency
from twofold.bench.metrics.counts import RequestCounts, Tokens
from twofold.bench.metrics.distribution import MeasureDistribution
from twofold.bench.metrics.goodput import MeasuredGoodput, Objectives, Verdict, mlperf
from twofold.bench.metrics.notes import Note, cpu_share
from twofold.bench.metrics.rates import Concurrency, Rates, due_window, span
from twofold.bench.metrics.requests import METHOD, MeasurementRule, RequestFigures, figures_of
from twofold.bench.record import Client, RunRecord, plain


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
