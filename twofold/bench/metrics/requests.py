"""The figures of one request.

    TTFT            first − due          what who asked waited
    TTFT from send  first − started      what the server can do about it
    schedule delay  started − due        what the client, or the cap on open requests, adds
    TPOT            (last − first) / (n − 1)
    E2E             last − due

n is the number of tokens that the server's usage tells, else that its chunks do, else the number of chunks. A request
that failed is infinitely slow in all that counts its answer, also where it began to answer. So is one that was still
open when the time to drain was over; but when someone stopped the run, what was open has only the figures that were
known by then. None is no value: an answer of one chunk has no TPOT, nor has one that came whole.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from twofold.bench.load.base import FAILURES, Outcome
from twofold.bench.metrics.queue import Envelope
from twofold.bench.metrics.rule import ended_s
from twofold.bench.record import RequestSample, RunRecord


@dataclass(frozen=True, slots=True)
class RequestFigures:
    """Seconds; infinite for a failure, None for no value.

    longest_gap_s  between two chunks
    queue_s        estimate of what TTFT from send has beyond prefill; see ``queue``
    open_s         of a request that was open when someone stopped the run: how long it had been due
    output_tokens  n of above; ``tokens_told`` says whether the server told it
    """

    index: int
    due_s: float
    outcome: Outcome
    ttft_s: float | None
    ttft_sent_s: float | None
    schedule_delay_s: float | None
    connect_s: float | None
    tpot_s: float | None
    e2e_s: float | None
    longest_gap_s: float | None
    queue_s: float | None
    open_s: float | None
    output_tokens: int
    tokens_told: bool
    chunks: int

    @classmethod
    def of(
        cls, sample: RequestSample, envelope: Envelope | None = None, stopped_s: float | None = None
    ) -> RequestFigures:
        """``stopped_s``: when someone stopped the run, if anyone did."""
        due, answer = sample.ask.due_s, sample.answer
        missing = absent(sample, stopped_s is not None)
        first = None if sample.outcome in FAILURES else sample.first_s
        tokens, told = output_tokens(sample)
        return cls(
            index=sample.ask.index,
            due_s=due,
            outcome=sample.outcome,
            ttft_s=missing if first is None else first - due,
            ttft_sent_s=missing if first is None or sample.started_s is None else first - sample.started_s,
            schedule_delay_s=missing if sample.started_s is None else sample.started_s - due,
            connect_s=sample.connect_s,
            tpot_s=_tpot(sample, tokens) if sample.outcome == "ok" else missing,
            e2e_s=_e2e(sample) if sample.outcome == "ok" else missing,
            longest_gap_s=_longest_gap(sample) if sample.outcome == "ok" else missing,
            queue_s=None if envelope is None else envelope.queue(sample),
            open_s=stopped_s - due if stopped_s is not None and sample.outcome == "unfinished" else None,
            output_tokens=tokens,
            tokens_told=told,
            chunks=len(answer.moments),
        )


def request_figures(record: RunRecord) -> tuple[RequestFigures, ...]:
    """Of every request of a run, in its order; also of those that no rule measures."""
    return figures_of(record.samples, record)


def figures_of(samples: Sequence[RequestSample], record: RunRecord) -> tuple[RequestFigures, ...]:
    """Of some requests of ``record``; all of its requests tell how long a prompt takes."""
    envelope = Envelope.of(record.samples)
    stopped = max(ended_s(record.samples), record.client.wall_s) if record.interrupted else None
    return tuple(RequestFigures.of(sample, envelope, stopped) for sample in samples)


def absent(sample: RequestSample, stopped: bool) -> float | None:
    """What a figure is that a request did not come to: infinite, or no value where it could still have."""
    if sample.outcome in FAILURES:
        return math.inf
    return math.inf if sample.outcome == "unfinished" and not stopped else None


def output_tokens(sample: RequestSample) -> tuple[int, bool]:
    """Tokens of an answer, and whether the server told them; else one for each chunk."""
    told = sample.output_tokens
    return (len(sample.answer.moments), False) if told is None else (told, True)


def _tpot(sample: RequestSample, tokens: int) -> float | None:
    moments = sample.answer.moments
    if len(moments) < 2 or tokens < 2:
        return None
    return (moments[-1] - moments[0]) / (tokens - 1)


def _e2e(sample: RequestSample) -> float | None:
    """An answer without output ends when its reply does."""
    end = sample.ended_s if sample.last_s is None else sample.last_s
    return None if end is None else end - sample.ask.due_s


def _longest_gap(sample: RequestSample) -> float | None:
    if len(sample.answer.moments) < 2:
        return None
    return float(np.diff(np.frombuffer(sample.answer.moments, np.float64)).max())
