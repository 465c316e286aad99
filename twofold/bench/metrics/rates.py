"""Requests and tokens a second, and how many requests were open.

asked     what became due in the window of the rule
achieved  answers that are complete, over the time from the start of that window until the last of them ended. It holds
          the tail in which no requests come any more; other tools tell this one
steady    all that was answered within the window of the rule, whichever request it belongs to. It holds no tail, but in
          a run that is short against its answers it misses what they began with
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from twofold.bench.metrics.chunks import Chunks
from twofold.bench.metrics.distribution import Floats
from twofold.bench.metrics.queue import prompt_tokens
from twofold.bench.metrics.requests import output_tokens
from twofold.bench.metrics.rule import MeasurementRule, Window, ended_s
from twofold.bench.record import RequestSample, RunRecord


@dataclass(frozen=True, slots=True)
class Throughput:
    """Between two moments of the run."""

    from_s: float
    until_s: float
    requests_per_s: float
    input_tokens_per_s: float
    output_tokens_per_s: float
    total_tokens_per_s: float

    @classmethod
    def of(cls, window: Window, requests: int, inputs: float, outputs: float) -> Throughput | None:
        """None where the window is empty."""
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
        """``chunks`` are those of all samples of ``record``."""
        window = due_window(record, rule)
        achieved = _achieved(span(window, measured), measured)
        return cls(_asked(window, measured), achieved, _steady(window, record, chunks))


@dataclass(frozen=True, slots=True)
class Concurrency:
    """Requests that were open, of all that were sent: mean over a window (which is what Little's law says), and most.

    John D. C. Little, "A proof for the queuing formula L = λW", 1961.
    """

    mean: float | None
    max: int

    @classmethod
    def of(cls, samples: Sequence[RequestSample], window: Window) -> Concurrency:
        started, ended = _opened(samples)
        inside = np.minimum(ended, window.until_s) - np.maximum(started, window.from_s)
        length = window.length_s
        return cls(float(np.maximum(inside, 0.0).sum()) / length if length else None, _max_open(started, ended))


def due_window(record: RunRecord, rule: MeasurementRule) -> Window:
    """In which what is measured is due; of a run that was stopped, no longer than it lasted."""
    end = min(record.duration_s, ended_s(record.samples)) if record.interrupted else record.duration_s
    return rule.window(end)


def span(window: Window, measured: Sequence[RequestSample]) -> Window:
    """From the start of a window until the last of its requests ended."""
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
    """A prompt counts when its answer begins, output when it comes, a request when its answer is complete."""
    outputs = chunks.tokens[(chunks.moments >= window.from_s) & (chunks.moments < window.until_s)].sum()
    inputs = sum(prompt_tokens(sample) for sample in record.samples if _within(sample.first_s, window))
    done = sum(1 for sample in record.samples if sample.outcome == "ok" and _within(sample.ended_s, window))
    return Throughput.of(window, done, inputs, float(outputs))


def _within(moment: float | None, window: Window) -> bool:
    return moment is not None and window.from_s <= moment < window.until_s


def _opened(samples: Sequence[RequestSample]) -> tuple[Floats, Floats]:
    """When each request was opened and ended; those that never ended did with the run."""
    opened = [(sample.started_s, sample.ended_s) for sample in samples if sample.started_s is not None]
    last = ended_s(samples)
    started = np.array([start for start, _ in opened], np.float64)
    return started, np.array([last if end is None else end for _, end in opened], np.float64)


def _max_open(started: Floats, ended: Floats) -> int:
    """An end makes room for the start at the same moment."""
    moments = np.concatenate([ended, started])
    steps = np.concatenate([np.full(len(ended), -1), np.full(len(started), 1)])
    open_now = np.cumsum(steps[np.argsort(moments, kind="stable")])
    return int(open_now.max(initial=0))
