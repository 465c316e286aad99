"""Requests and tokens a second, and open requests.

asked     requests due in the measured window
achieved  complete responses, from the start of the window until the last of them ended. Includes the tail after the
          last arrival; other tools report this one
steady    everything received within the window, of any request. Has no tail, but underestimates runs that are short
          compared to their responses
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from twofold.bench.metrics.chunks import Chunks
from twofold.bench.metrics.distribution import Floats
from twofold.bench.metrics.requests import MeasurementRule, Window, ended_s, output_tokens, prompt_tokens
from twofold.bench.record import RequestSample, RunRecord


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
    asked: Throughput | None
    achieved: Throughput | None
    steady: Throughput | None

    @classmethod
    def of(cls, record: RunRecord, measured: Sequence[RequestSample], rule: MeasurementRule, chunks: Chunks) -> Rates:
        """``chunks`` are those of all samples."""
        window = due_window(record, rule)
        achieved = _achieved(span(window, measured), measured)
        return cls(_asked(window, measured), achieved, _steady(window, record, chunks))


@dataclass(frozen=True, slots=True)
class Concurrency:
    """Mean of open requests over a window (John D. C. Little, "A proof for the queuing formula L = λW", 1961), and
    their maximum in the run."""

    mean: float | None
    max: int

    @classmethod
    def of(cls, samples: Sequence[RequestSample], window: Window) -> Concurrency:
        started, ended = _opened(samples)
        inside = np.minimum(ended, window.until_s) - np.maximum(started, window.from_s)
        length = window.length_s
        return cls(float(np.maximum(inside, 0.0).sum()) / length if length else None, _max_open(started, ended))


def due_window(record: RunRecord, rule: MeasurementRule) -> Window:
    """The window in which measured requests are due; it ends with a run that was stopped."""
    end = min(record.duration_s, ended_s(record.samples)) if record.interrupted else record.duration_s
    return rule.window(end)


def span(window: Window, measured: Sequence[RequestSample]) -> Window:
    """From the start of a window to the end of its last request."""
    return Window(window.from_s, max(window.from_s, ended_s(measured)))


def _asked(window: Window, measured: Sequence[RequestSample]) -> Throughput | None:
    inputs = sum(sample.ask.input_tokens for sample in measured)
    outputs = sum(sample.ask.output_tokens for sample in measured)
    return Throughput.of(window, len(measured), inputs, outputs)


def _achieved(window: Window, measured: Sequence[RequestSample]) -> Throughput | None:
    done = [sample for sample in measured if sample.outcome == "ok"]
    inputs, outputs = sum(map(prompt_tokens, done)), sum(output_tokens(sample)[0] for sample in done)
    return Throughput.of(window, len(done), inputs, outputs)


def _steady(window: Window, record: RunRecord, chunks: Chunks) -> Throughput | None:
    """A prompt counts at the first output, output at its arrival, a request at the end of its response."""
    outputs = chunks.tokens[(chunks.moments >= window.from_s) & (chunks.moments < window.until_s)].sum()
    inputs = sum(prompt_tokens(sample) for sample in record.samples if _within(sample.first_s, window))
    done = sum(1 for sample in record.samples if sample.outcome == "ok" and _within(sample.ended_s, window))
    return Throughput.of(window, done, inputs, float(outputs))


def _within(moment: float | None, window: Window) -> bool:
    return moment is not None and window.from_s <= moment < window.until_s


def _opened(samples: Sequence[RequestSample]) -> tuple[Floats, Floats]:
    """Start and end of each request; those still open ended with the run."""
    opened = [(sample.started_s, sample.ended_s) for sample in samples if sample.started_s is not None]
    last = ended_s(samples)
    started = np.array([start for start, _ in opened], np.float64)
    return started, np.array([last if end is None else end for _, end in opened], np.float64)


def _max_open(started: Floats, ended: Floats) -> int:
    """The maximum of open requests; an end precedes a start at the same time."""
    moments = np.concatenate([ended, started])
    steps = np.concatenate([np.full(len(ended), -1), np.full(len(started), 1)])
    open_now = np.cumsum(steps[np.argsort(moments, kind="stable")])
    return int(open_now.max(initial=0))
