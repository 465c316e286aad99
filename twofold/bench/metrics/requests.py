"""The rule that selects measured requests, the figures of one request, and inter-token latency.

    TTFT            first − due          time until a user sees output
    TTFT from send  first − started      part of the server
    schedule delay  started − due        part of the client: it was slow, or the maximum of open requests was reached
    TPOT            (last − first) / (n − 1)
    E2E             last − due

n is the number of tokens in the server's usage, or else the sum over its chunks if all have counts, or else the number
of chunks. Failed requests are infinitely slow in every figure that needs the completion, even if the completion
started; so are requests that were still open after the drain period. If the run was stopped, open requests have only
the figures that were known by then. A figure is None if it does not exist, such as TPOT of a response with one chunk or
without a stream.

ITL is reported in two ways: gaps between chunks, and the ITL of tokens, which is a gap divided by the tokens of the
chunk that ends it, counted once for each of these tokens. A chunk with no tokens extends the gap of the next chunk. A
chunk with an unknown number of tokens gets an equal part of the remaining tokens of the request's usage, or 1 token
without a usage. If the usage leaves exactly one token for each such chunk, the number counts as known.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from twofold.bench.load.base import FAILURES, Outcome
from twofold.bench.metrics.distribution import Floats, MeasureDistribution
from twofold.bench.record import UNKNOWN, RequestSample, RunRecord
from twofold.core.errors import ParameterError

MIN_SAMPLES: Final = 20
"""Minimum number of responses for an ``Envelope``."""

QUEUE_METHOD: Final = "TTFT from send, less the convex lower envelope of TTFT over the tokens to prefill in this run"

_Point: TypeAlias = tuple[int, float]
_Rows: TypeAlias = npt.NDArray[np.int64]
_Mask: TypeAlias = npt.NDArray[np.bool_]


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
    """Measures requests due in [warm-up, duration − cool-down), or from warm-up on if there is no cool-down.

    Due times decide, since a selection by end times would exclude slow requests. Raises ParameterError.
    """

    warmup_s: float = 0.0
    cooldown_s: float = 0.0

    def __post_init__(self) -> None:
        for name, value in (("warmup", self.warmup_s), ("cooldown", self.cooldown_s)):
            if not 0 <= value < math.inf:
                raise ParameterError(f"{name} must be 0 seconds or more, not {value}.", param=name)

    def window(self, duration_s: float) -> Window:
        """The window in which measured requests are due; it may be empty."""
        return Window(self.warmup_s, max(self.warmup_s, duration_s - self.cooldown_s))

    def measured(self, record: RunRecord) -> tuple[RequestSample, ...]:
        """The measured requests of a run."""
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
        return f"only requests due {' and '.join(part for part in (start, end) if part)} are measured"


@dataclass(frozen=True, slots=True)
class Envelope:
    """The minimum time to the first output by tokens to prefill. It estimates the queue time of requests from outside.

    TTFT from send without a queue grows at least linearly with the prompt, so the fastest requests of a run bound it:
    the envelope is the largest convex, nondecreasing function below all points (tokens to prefill, TTFT from send). The
    queue time of a request is its excess above the envelope. Tokens that the server reports as cached are not
    prefilled. If every request was queued, the estimates are too low by the shortest queue time.

    tokens, seconds  corners, ascending; the function is constant outside of them
    """

    tokens: tuple[int, ...]
    seconds: tuple[float, ...]

    @classmethod
    def of(cls, samples: Iterable[RequestSample]) -> Envelope | None:
        """The envelope of complete responses; None for fewer than ``MIN_SAMPLES``."""
        points = [point for point in map(_point, samples) if point is not None]
        if len(points) < MIN_SAMPLES:
            return None
        fastest: dict[int, float] = {}
        for tokens, seconds in points:
            fastest[tokens] = min(seconds, fastest.get(tokens, seconds))
        ascending = sorted(fastest.items())
        start = min(range(len(ascending)), key=lambda at: ascending[at][1])  # a shorter prompt takes at most as long
        corners = _hull(ascending[start:])
        return cls(tuple(tokens for tokens, _ in corners), tuple(seconds for _, seconds in corners))

    def at(self, tokens: int) -> float:
        """Minimum seconds to the first output with that many tokens to prefill."""
        after = bisect_right(self.tokens, tokens)
        if after in (0, len(self.tokens)):
            return self.seconds[0 if after == 0 else -1]
        left, right = self.tokens[after - 1], self.tokens[after]
        part = (tokens - left) / (right - left)
        return self.seconds[after - 1] + part * (self.seconds[after] - self.seconds[after - 1])

    def queue(self, sample: RequestSample) -> float | None:
        """Estimated queue time of a request in seconds; None if its response is incomplete or not streamed."""
        point = _point(sample)
        return None if point is None else max(0.0, point[1] - self.at(point[0]))


@dataclass(frozen=True, slots=True)
class RequestFigures:
    """The figures of one request in seconds; infinite for a failure, None if they do not exist.

    longest_gap_s  between two chunks
    queue_s        estimated queue time; see ``Envelope``
    open_s         time from its due time to the stop of the run, if it was open then
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
        """``stopped_s`` is when the run was stopped; None if it was not."""
        due, moments, complete = sample.ask.due_s, sample.response.moments, sample.outcome == "ok"
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
    """The figures of ``samples`` of a run, by default of all. The envelope is of all requests of the run."""
    envelope = Envelope.of(record.samples)
    stopped = max(last_time_s(record.samples), record.client.wall_s) if record.interrupted else None
    chosen = record.samples if samples is None else samples
    return tuple(RequestFigures.of(sample, envelope, stopped) for sample in chosen)


def output_tokens(sample: RequestSample) -> int:
    """Tokens of a completion as the server reports them, or else one per chunk."""
    counted = sample.output_tokens
    return len(sample.response.moments) if counted is None else counted


def prompt_tokens(sample: RequestSample) -> int:
    """Tokens of a prompt as the server counts them, or else as requested."""
    counted = sample.response.prompt_tokens
    return sample.ask.input_tokens if counted is None else counted


def _point(sample: RequestSample) -> _Point | None:
    """Tokens to prefill, and TTFT from send; None without a streamed, complete response."""
    if sample.outcome != "ok" or sample.started_s is None or sample.first_s is None or not sample.response.streamed:
        return None
    cached = sample.response.cached_tokens or 0
    return max(0, prompt_tokens(sample) - cached), sample.first_s - sample.started_s


def _hull(points: list[_Point]) -> list[_Point]:
    """Lower convex hull of points with ascending x (A. M. Andrew, 1979)."""
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


@dataclass(frozen=True, slots=True)
class Chunks:
    """Arrays [chunks], in the order of samples and of time.

    owner    index of the sample
    moments  arrival time
    tokens   number of tokens; not whole if it is an equal part
    known    whether the number is known, from the chunk or from a usage that leaves one token for each unknown chunk
    """

    owner: _Rows
    moments: Floats
    tokens: Floats
    known: _Mask

    @classmethod
    def of(cls, samples: Sequence[RequestSample]) -> Chunks:
        lengths = np.fromiter((len(sample.response.moments) for sample in samples), np.int64, len(samples))
        owner = np.repeat(np.arange(len(samples), dtype=np.int64), lengths)
        responses, nothing = [sample.response for sample in samples if _has_output(sample)], np.empty(0)
        moments = np.concatenate([nothing, *(np.frombuffer(response.moments, np.float64) for response in responses)])
        counts = np.concatenate([nothing, *(np.frombuffer(response.tokens, np.int32) for response in responses)])
        known = counts != UNKNOWN
        parts, even = _parts(samples, owner, counts, known)
        return cls(owner, moments, np.where(known, counts, parts[owner]), known | even[owner])

    def gaps(self, among: _Mask | None = None) -> tuple[Floats, Floats]:
        """Seconds between successive chunks of a response, and tokens of the later one. ``among`` selects chunks."""
        owner, moments, tokens = self.owner, self.moments, self.tokens
        if among is not None:
            owner, moments, tokens = owner[among], moments[among], tokens[among]
        same = owner[1:] == owner[:-1]
        return np.diff(moments)[same], tokens[1:][same]

    def with_tokens(self) -> _Mask:
        """Chunks with tokens, and the first chunk of each response."""
        first = np.ones(len(self.owner), np.bool_)
        first[1:] = self.owner[1:] != self.owner[:-1]
        return first | (self.tokens > 0)


@dataclass(frozen=True, slots=True)
class InterTokenLatency:
    """ITL of measured requests.

    gap_s             gaps between chunks; a failed response with output adds an infinite one
    token_s           ITL of tokens; n counts those after the first chunk of each response
    chunk_tokens      tokens of chunks
    several_share     share of chunks with more than one token
    assumed_share     share of chunks with an unknown number of tokens
    merged            chunks that were read together with the next one, and so have its time
    empty, pings      events without output, and keep-alives
    """

    gap_s: MeasureDistribution
    token_s: MeasureDistribution
    chunk_tokens: MeasureDistribution
    several_share: float | None
    assumed_share: float | None
    merged: int
    empty: int
    pings: int

    @classmethod
    def of(cls, samples: Sequence[RequestSample], chunks: Chunks) -> InterTokenLatency:
        """``chunks`` are the chunks of ``samples``."""
        gaps, _ = chunks.gaps()
        broken = sum(1 for sample in samples if sample.outcome in FAILURES and _has_output(sample))
        token_gaps, tokens = chunks.gaps(chunks.with_tokens())
        count = len(chunks.owner)
        return cls(
            gap_s=MeasureDistribution.of(np.append(gaps, np.full(broken, np.inf))),
            token_s=MeasureDistribution.weighted(token_gaps / tokens, tokens),
            chunk_tokens=MeasureDistribution.of(chunks.tokens),
            several_share=float((chunks.tokens > 1).sum()) / count if count else None,
            assumed_share=float((~chunks.known).sum()) / count if count else None,
            merged=sum(sample.merged for sample in samples),
            empty=sum(sample.response.empty for sample in samples),
            pings=sum(sample.response.pings for sample in samples),
        )


def _has_output(sample: RequestSample) -> bool:
    return len(sample.response.moments) > 0


def _parts(samples: Sequence[RequestSample], owner: _Rows, counts: Floats, known: _Mask) -> tuple[Floats, _Mask]:
    """[samples] each: tokens of a chunk with an unknown number, and whether the usage leaves exactly 1 for each."""
    n = len(samples)
    usages = (sample.response.completion_tokens for sample in samples)
    usage = np.fromiter((np.nan if tokens is None else tokens for tokens in usages), np.float64, n)
    reported = np.bincount(owner[known], weights=counts[known], minlength=n)
    silent = np.bincount(owner[~known], minlength=n)
    left = np.maximum(usage - reported, 0.0)
    return np.where(np.isnan(usage), 1.0, left / np.maximum(silent, 1)), left == silent
