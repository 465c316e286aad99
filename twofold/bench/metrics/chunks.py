"""All chunks of a run as arrays, and the latency between them.

ITL is told in two ways. A gap is the time between two chunks as it is, whatever the later one holds. A token's ITL is
the gap divided by the tokens of the later chunk, once for each of them; a chunk that says it holds none only prolongs
the gap of the next. A chunk whose server does not tell its tokens is given an equal part of those that the request's
usage has left, or 1 token where there is no usage. Where the usage has as many tokens as there are such chunks, each
holds one, and nothing is assumed.
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
    """[chunks] each, in the order of the samples and of time within one.

    owner    place of its sample
    moments  when it came
    tokens   how many it holds, which is not whole where it is an equal part
    told     whether the server says so, of this chunk or by a usage that has one token for each
    """

    owner: _Rows
    moments: Floats
    tokens: Floats
    told: _Mask

    @classmethod
    def of(cls, samples: Sequence[RequestSample]) -> Chunks:
        lengths = np.fromiter((len(sample.answer.moments) for sample in samples), np.int64, len(samples))
        owner = np.repeat(np.arange(len(samples), dtype=np.int64), lengths)
        moments = _joined([np.frombuffer(sample.answer.moments, np.float64) for sample in samples if _has(sample)])
        said = _joined([np.frombuffer(sample.answer.tokens, np.int32) for sample in samples if _has(sample)])
        told = said != UNKNOWN
        parts, even = _parts(samples, owner, said, told)
        return cls(owner, moments, np.where(told, said, parts[owner]), told | even[owner])

    def gaps(self, among: _Mask | None = None) -> tuple[Floats, Floats]:
        """Seconds from each chunk to the next of its answer, and tokens of the later; of the chunks ``among``."""
        owner, moments, tokens = self.owner, self.moments, self.tokens
        if among is not None:
            owner, moments, tokens = owner[among], moments[among], tokens[among]
        same = owner[1:] == owner[:-1]
        return np.diff(moments)[same], tokens[1:][same]

    def holding(self) -> _Mask:
        """Chunks with tokens, and the first of each answer."""
        first = np.ones(len(self.owner), np.bool_)
        first[1:] = self.owner[1:] != self.owner[:-1]
        return first | (self.tokens > 0)


@dataclass(frozen=True, slots=True)
class InterTokenLatency:
    """ITL of the requests that are measured.

    gap_s             between chunks as they came; an answer that broke off adds one that is infinite
    token_s           of tokens; n counts those after the first chunk of each answer
    chunk_tokens      tokens of chunks
    several_share     of chunks with more than one token
    assumed_share     of chunks whose tokens the server does not tell
    merged            chunks that were read together with the next and so share its moment
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
            assumed_share=float((~chunks.told).sum()) / count if count else None,
            merged=sum(sample.merged for sample in samples),
            empty=sum(sample.answer.empty for sample in samples),
            pings=sum(sample.answer.pings for sample in samples),
        )


def _has(sample: RequestSample) -> bool:
    return len(sample.answer.moments) > 0


def _joined(parts: list[npt.NDArray[np.float64]] | list[npt.NDArray[np.int32]]) -> npt.NDArray[np.float64]:
    return np.concatenate([*parts, np.empty(0)])


def _parts(samples: Sequence[RequestSample], owner: _Rows, said: Floats, told: _Mask) -> tuple[Floats, _Mask]:
    """[samples] each: tokens of a chunk that does not tell its own, and whether the usage has just one for it."""
    n = len(samples)
    usage = np.fromiter((_usage(sample) for sample in samples), np.float64, n)
    known = np.bincount(owner[told], weights=said[told], minlength=n)
    silent = np.bincount(owner[~told], minlength=n)
    left = np.maximum(usage - known, 0.0)
    return np.where(np.isnan(usage), 1.0, left / np.maximum(silent, 1)), left == silent


def _usage(sample: RequestSample) -> float:
    told = sample.answer.completion_tokens
    return float("nan") if told is None else float(told)
