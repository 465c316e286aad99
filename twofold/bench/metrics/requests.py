"""The rule that selects measured requests, and the figures of one request.

    TTFT            first − due          the time a user waits
    TTFT from send  first − started      the server's part
    schedule delay  started − due        added by the client, or by the maximum of open requests
    TPOT            (last − first) / (n − 1)
    E2E             last − due

n is the number of tokens in the server's usage, or else of its chunks, or else the number of chunks. Failed requests
are infinitely slow in everything that needs the completion, even if it started, and so are requests still open after
the drain period. If the run was stopped, open requests have only the figures known by then. None is no value: a
response of one chunk has no TPOT, nor has one that was not streamed.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from twofold.bench.load.base import FAILURES, Outcome
from twofold.bench.record import RequestSample, RunRecord
from twofold.core.errors import ParameterError

FEWEST: Final = 20
"""Minimum number of responses for an envelope."""

METHOD: Final = "TTFT from send, less the convex lower envelope of TTFT over the tokens to prefill in this run"

_Point: TypeAlias = tuple[int, float]


@dataclass(frozen=True, slots=True)
class Window:
    """The interval [``from_s``, ``until_s``) of a run."""

    from_s: float
    until_s: float

    @property
    def length_s(self) -> float:
        return max(0.0, self.until_s - self.from_s)

    def holds(self, moment: float | None) -> bool:
        return moment is not None and self.from_s <= moment < self.until_s


@dataclass(frozen=True, slots=True)
class MeasurementRule:
    """Measures requests due in [warm-up, duration − cool-down), or without an end if there is no cool-down.

    Due times decide, since a choice by end times would exclude slow requests.
    """

    warmup_s: float = 0.0
    cooldown_s: float = 0.0

    def __post_init__(self) -> None:
        for name, value in (("warmup", self.warmup_s), ("cooldown", self.cooldown_s)):
            if not 0 <= value < math.inf:
                raise ParameterError(f"{name} must be 0 seconds or more, not {value}", param=name)

    def window(self, duration_s: float) -> Window:
        """The window in which measured requests are due; it may be empty."""
        return Window(self.warmup_s, max(self.warmup_s, duration_s - self.cooldown_s))

    def measured(self, record: RunRecord) -> tuple[RequestSample, ...]:
        window = self.window(record.duration_s)
        end = window.until_s if self.cooldown_s else math.inf
        return tuple(sample for sample in record.samples if window.from_s <= sample.ask.due_s < end)

    def words(self, duration_s: float) -> str:
        """The rule in a sentence for reports."""
        if not self.warmup_s and not self.cooldown_s:
            return "every request is measured"
        window = self.window(duration_s)
        start = f"from {window.from_s:g} s on" if self.warmup_s else ""
        end = f"before {window.until_s:g} s" if self.cooldown_s else ""
        return f"measured are the requests that were due {' and '.join(part for part in (start, end) if part)}"


@dataclass(frozen=True, slots=True)
class Envelope:
    """The least time to the first output by tokens to prefill, to estimate the queue time of requests from outside.

    TTFT from send without a queue grows at least linearly with the prompt, so the fastest requests of the run bound it:
    the envelope is the greatest convex, nondecreasing function below all measured (tokens to prefill, TTFT from send).
    The excess of a request is its queue time. Tokens that the server reports as cached are not prefilled. If every
    request was queued, the estimate is too low by the shortest queue time.

    tokens, seconds  corners, ascending; constant outside of them
    """

    tokens: tuple[int, ...]
    seconds: tuple[float, ...]

    @classmethod
    def of(cls, samples: Iterable[RequestSample]) -> Envelope | None:
        """The envelope of complete responses; None for fewer than ``FEWEST``."""
        points = [point for point in map(_point, samples) if point is not None]
        if len(points) < FEWEST:
            return None
        fastest: dict[int, float] = {}
        for tokens, seconds in points:
            fastest[tokens] = min(seconds, fastest.get(tokens, seconds))
        ascending = sorted(fastest.items())
        start = min(range(len(ascending)), key=lambda at: ascending[at][1])  # a shorter prompt takes at most as long
        corners = _hull(ascending[start:])
        return cls(tuple(tokens for tokens, _ in corners), tuple(seconds for _, seconds in corners))

    def at(self, tokens: int) -> float:
        """Least seconds to the first output with that many tokens to prefill."""
        after = bisect_right(self.tokens, tokens)
        if after in (0, len(self.tokens)):
            return self.seconds[0 if after == 0 else -1]
        left, right = self.tokens[after - 1], self.tokens[after]
        part = (tokens - left) / (right - left)
        return self.seconds[after - 1] + part * (self.seconds[after] - self.seconds[after - 1])

    def queue(self, sample: RequestSample) -> float | None:
        """Seconds that a request waited beyond its prefill; None if its response is incomplete."""
        point = _point(sample)
        return None if point is None else max(0.0, point[1] - self.at(point[0]))


@dataclass(frozen=True, slots=True)
class RequestFigures:
    """Seconds; infinite for a failure, None for no value.

    longest_gap_s  between two chunks
    queue_s        estimate of TTFT from send beyond prefill; see ``Envelope``
    open_s         time since it was due, of a request that was open when the run was stopped
    output_tokens  n as defined above
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
    chunks: int

    @classmethod
    def of(
        cls, sample: RequestSample, envelope: Envelope | None = None, stopped_s: float | None = None
    ) -> RequestFigures:
        """``stopped_s`` is when the run was stopped, if it was."""
        due, moments, complete = sample.ask.due_s, sample.answer.moments, sample.outcome == "ok"
        failed = sample.outcome in FAILURES or (sample.outcome == "unfinished" and stopped_s is None)
        missing = math.inf if failed else None
        first = None if sample.outcome in FAILURES else sample.first_s
        last = sample.ended_s if sample.last_s is None else sample.last_s  # without output, the end of the response
        tokens = output_tokens(sample)
        gaps = np.diff(np.frombuffer(moments, np.float64))
        tpot = (moments[-1] - moments[0]) / (tokens - 1) if len(gaps) and tokens > 1 else None
        return cls(
            index=sample.ask.index,
            due_s=due,
            outcome=sample.outcome,
            ttft_s=missing if first is None else first - due,
            ttft_sent_s=missing if first is None or sample.started_s is None else first - sample.started_s,
            schedule_delay_s=missing if sample.started_s is None else sample.started_s - due,
            connect_s=sample.connect_s,
            tpot_s=tpot if complete else missing,
            e2e_s=(None if last is None else last - due) if complete else missing,
            longest_gap_s=(float(gaps.max()) if len(gaps) else None) if complete else missing,
            queue_s=None if envelope is None else envelope.queue(sample),
            open_s=stopped_s - due if stopped_s is not None and sample.outcome == "unfinished" else None,
            output_tokens=tokens,
            chunks=len(moments),
        )


def request_figures(record: RunRecord, samples: Sequence[RequestSample] | None = None) -> tuple[RequestFigures, ...]:
    """The figures of ``samples`` of a run, by default of all; the envelope is that of all its requests."""
    envelope = Envelope.of(record.samples)
    stopped = max(last_time_s(record.samples), record.client.wall_s) if record.interrupted else None
    chosen = record.samples if samples is None else samples
    return tuple(RequestFigures.of(sample, envelope, stopped) for sample in chosen)


def output_tokens(sample: RequestSample) -> int:
    """Tokens of a completion as the server reports them, or else one per chunk."""
    counted = sample.output_tokens
    return len(sample.answer.moments) if counted is None else counted


def prompt_tokens(sample: RequestSample) -> int:
    """As the server counts them, or else as requested."""
    counted = sample.answer.prompt_tokens
    return sample.ask.input_tokens if counted is None else counted


def _point(sample: RequestSample) -> _Point | None:
    """Tokens to prefill and TTFT from send; None without a streamed, complete response."""
    if sample.outcome != "ok" or sample.started_s is None or sample.first_s is None or not sample.answer.streamed:
        return None
    cached = sample.answer.cached_tokens or 0
    return max(0, prompt_tokens(sample) - cached), sample.first_s - sample.started_s


def _hull(points: list[_Point]) -> list[_Point]:
    """Lower convex hull of points that ascend in length (A. M. Andrew, 1979)."""
    hull: list[_Point] = []
    for x, y in points:
        while len(hull) >= 2:
            (x0, y0), (x1, y1) = hull[-2:]
            if (y1 - y0) * (x - x0) < (y - y0) * (x1 - x0):  # the middle point is below the line
                break
            hull.pop()
        hull.append((x, y))
    return hull


def last_time_s(samples: Sequence[RequestSample]) -> float:
    """The last known time of requests; 0 without any."""
    times = ((sample.ended_s, sample.last_s, sample.sent_s, sample.started_s) for sample in samples)
    return max((next((moment for moment in each if moment is not None), 0.0) for each in times), default=0.0)
