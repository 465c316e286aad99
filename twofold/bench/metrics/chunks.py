"""All chunks of a run as arrays, and inter-token latency.

ITL is reported in two ways: gaps between chunks, and the ITL of tokens, which is a gap divided by the tokens of the
later chunk, once for each of them. A chunk with no tokens prolongs the gap of the next one. A chunk with an unknown
number of tokens gets an equal part of the remaining tokens of the request's usage, or 1 token without a usage. If the
usage has as many tokens as there are such chunks, each has one, and nothing is assumed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from twofold.bench.load.base import FAILURES
from twofold.bench.metrics.distribution import Floats, MeasureDistribution
from twofold.bench.record import UNKNOWN, RequestSample

_Rows: TypeAlias = npt.NDArray[np.int64]
_Mask: TypeAlias = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Chunks:
    """Arrays [chunks], in the order of samples and of time.

    owner    index of the sample
    moments  arrival time
    tokens   number of tokens; not whole if it is an equal part
    known    whether the number is known, from the chunk or from a usage of one token per chunk
    """

    owner: _Rows
    moments: Floats
    tokens: Floats
    known: _Mask

    @classmethod
    def of(cls, samples: Sequence[RequestSample]) -> Chunks:
        lengths = np.fromiter((len(sample.answer.moments) for sample in samples), np.int64, len(samples))
        owner = np.repeat(np.arange(len(samples), dtype=np.int64), lengths)
        answers, nothing = [sample.answer for sample in samples if _has(sample)], np.empty(0)
        moments = np.concatenate([nothing, *(np.frombuffer(answer.moments, np.float64) for answer in answers)])
        counts = np.concatenate([nothing, *(np.frombuffer(answer.tokens, np.int32) for answer in answers)])
        known = counts != UNKNOWN
        parts, even = _parts(samples, owner, counts, known)
        return cls(owner, moments, np.where(known, counts, parts[owner]), known | even[owner])

    def gaps(self, among: _Mask | None = None) -> tuple[Floats, Floats]:
        """Seconds from each chunk to the next of its response, and tokens of the later one; of chunks ``among``."""
        owner, moments, tokens = self.owner, self.moments, self.tokens
        if among is not None:
            owner, moments, tokens = owner[among], moments[among], tokens[among]
        same = owner[1:] == owner[:-1]
        return np.diff(moments)[same], tokens[1:][same]

    def holding(self) -> _Mask:
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
    merged            chunks read together with the next one, and so with its time
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
        """``chunks`` are those of ``samples``."""
        gaps, _ = chunks.gaps()
        broken = sum(1 for sample in samples if sample.outcome in FAILURES and _has(sample))
        token_gaps, tokens = chunks.gaps(chunks.holding())
        count = len(chunks.owner)
        return cls(
            gap_s=MeasureDistribution.of(np.append(gaps, np.full(broken, np.inf))),
            token_s=MeasureDistribution.weighted(token_gaps / tokens, tokens),
            chunk_tokens=MeasureDistribution.of(chunks.tokens),
            several_share=float((chunks.tokens > 1).sum()) / count if count else None,
            assumed_share=float((~chunks.known).sum()) / count if count else None,
            merged=sum(sample.merged for sample in samples),
            empty=sum(sample.answer.empty for sample in samples),
            pings=sum(sample.answer.pings for sample in samples),
        )


def _has(sample: RequestSample) -> bool:
    return len(sample.answer.moments) > 0


def _parts(samples: Sequence[RequestSample], owner: _Rows, counts: Floats, known: _Mask) -> tuple[Floats, _Mask]:
    """[samples] each: tokens of a chunk with an unknown number, and whether the usage has exactly one for each."""
    n = len(samples)
    usages = (sample.answer.completion_tokens for sample in samples)
    usage = np.fromiter((np.nan if tokens is None else tokens for tokens in usages), np.float64, n)
    reported = np.bincount(owner[known], weights=counts[known], minlength=n)
    silent = np.bincount(owner[~known], minlength=n)
    left = np.maximum(usage - reported, 0.0)
    return np.where(np.isnan(usage), 1.0, left / np.maximum(silent, 1)), left == silent
