"""Traffic for a planner: a rate, and a few kinds of requests that represent all requests; and the SLO of a plan.

Requests are sorted by the prompt tokens that need prefill, and divided into kinds: tenths, and smaller ones at the end,
because the longest prompts determine tails. A kind is the mean of its requests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import NormalDist, fmean
from typing import Annotated, Final

from msgspec import Meta

from twofold.api.body import RequestObject
from twofold.bench.load.base import MAX_RATE, Ask, Load, check_positive
from twofold.core.errors import ParameterError
from twofold.planner.simulate.jobs import prompt_tokens

Seconds = Annotated[float, Meta(gt=0, le=1e6)]
EDGES: Final = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 1.0)
"""Shares of the requests at which kinds begin and end."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Equal requests, a ``share`` of all; ``cached`` tokens of the prompt need no prefill."""

    share: float
    prompt: int
    cached: int
    output: int

    @property
    def new(self) -> int:
        """Tokens of the prompt that need prefill."""
        return self.prompt - self.cached


@dataclass(frozen=True, slots=True)
class Traffic:
    """``rate`` requests a second, of these kinds.

    longest    maximum tokens of a request with its completion
    shortness  mean of 1 / (tokens of a completion after the first): TPOT varies most for short completions
    """

    rate: float
    kinds: tuple[Kind, ...]
    longest: int
    shortness: float

    @classmethod
    def of(cls, load: Load, rate: float | None = None) -> Traffic:
        """The requests of a load that follow from no other, at ``rate`` requests a second; None: at their own rate.

        A prompt's shared pieces are cached if an earlier prompt has the same prefix; nothing is evicted.
        Raises ParameterError if there are too few requests to have a rate, or completions of one token.
        """
        if load.describe().get("later_turns"):
            raise ParameterError(
                "Sessions of several turns are not supported by plan.", param="trace", hint="Use twofold simulate."
            )
        asks = list(load.begin())
        if rate is None:
            rate = _rate(asks)
        return cls.of_requests(check_positive("rate", rate, MAX_RATE), _requests(asks))

    @classmethod
    def of_requests(cls, rate: float, requests: Iterable[tuple[int, int, int]]) -> Traffic:
        """Traffic of requests with these (prompt, cached, output) tokens. Raises ParameterError as ``of`` does."""
        listed = sorted(requests, key=lambda each: each[0] - each[1])
        if not listed:
            raise ParameterError("There are no requests to plan for.", param="load")
        longest = max(prompt + output for prompt, _, output in listed)
        kinds = (listed[:1],) if len(set(listed)) == 1 else tuple(_groups(listed))
        count = sum(map(len, kinds))
        shortness = fmean(1 / max(1, output - 1) for _, _, output in listed)
        traffic = cls(rate, tuple(_kind(kind, len(kind) / count) for kind in kinds), longest, shortness)
        if traffic.decoded < 1:
            raise ParameterError(
                "Completions of one token have no TPOT to plan for.", param="output-tokens", hint="Use longer outputs."
            )
        return traffic

    @property
    def decoded(self) -> float:
        """Mean tokens of a completion after the first."""
        return self.mean(kind.output - 1 for kind in self.kinds)

    @property
    def context(self) -> int:
        """Mean context of a decoding row; longer completions count more, as they have more rows."""
        seen = self.mean((kind.output - 1) * (kind.prompt + kind.output / 2) for kind in self.kinds)
        return max(2, round(seen / self.decoded))

    @property
    def cached_share(self) -> float:
        """Share of all prompt tokens that are cached."""
        return self.mean(kind.cached for kind in self.kinds) / self.mean(kind.prompt for kind in self.kinds)

    def mean(self, values: Iterable[float]) -> float:
        """Mean over requests, given one value for each kind."""
        return sum(kind.share * value for kind, value in zip(self.kinds, values, strict=True))


def _rate(asks: Sequence[Ask]) -> float:
    span_s = asks[-1].due_s - asks[0].due_s if asks else 0.0
    if span_s <= 0:
        raise ParameterError("All requests arrive at once.", param="rate", hint="Give a --rate to plan for.")
    return (len(asks) - 1) / span_s


def _requests(asks: Iterable[Ask]) -> Iterable[tuple[int, int, int]]:
    seen: set[int] = set()
    for ask in asks:
        tokens = prompt_tokens(ask)
        yield tokens, min(_cached(ask, seen), tokens - 1), ask.output_tokens


def _cached(ask: Ask, seen: set[int]) -> int:
    """Tokens of the prefix that an earlier prompt has too; adds this prompt's prefixes to ``seen``."""
    cached, prefix, known = 0, 0, True
    for piece in ask.shared:
        prefix = hash((prefix, piece.key, piece.tokens))
        known = known and prefix in seen
        cached += piece.tokens if known else 0
        seen.add(prefix)
    return cached


def _groups(listed: Sequence[tuple[int, int, int]]) -> Iterable[Sequence[tuple[int, int, int]]]:
    edges = [round(edge * len(listed)) for edge in EDGES]
    for start, end in pairwise(edges):
        if end > start:
            yield listed[start:end]


def _kind(requests: Sequence[tuple[int, int, int]], share: float) -> Kind:
    prompt, cached, output = (round(fmean(column)) for column in zip(*requests, strict=True))
    return Kind(share, prompt, min(cached, prompt - 1), max(1, output))


class PlanSlo(RequestObject, kw_only=True):
    """Maximum seconds of each measure; None: no limit.

    ttft        from arrival to the first token
    tpot        mean of the tokens after the first
    e2e         from arrival to the last token
    attainment  share of the requests that must meet all limits: 0.99 is P99
    """

    ttft: Seconds | None = None
    tpot: Seconds | None = None
    e2e: Seconds | None = None
    attainment: Annotated[float, Meta(ge=0.5, le=0.9999)] = 0.9

    def __post_init__(self) -> None:
        if not 0.5 <= self.attainment < 1:
            raise ParameterError(
                f"The attainment must be from 0.5 to below 1, not {self.attainment:g}.",
                param="attainment",
                hint="For example 0.9 or 0.99.",
            )
        for name, limit in self.limits():
            if not 0 < limit < float("inf"):
                raise ParameterError(f"{name} must be a time above 0, not {limit:g} s.", param="slo")

    def limits(self) -> Iterator[tuple[str, float]]:
        """The measures with a limit."""
        limits = (("ttft", self.ttft), ("tpot", self.tpot), ("e2e", self.e2e))
        return ((name, limit) for name, limit in limits if limit is not None)

    @property
    def deviations(self) -> float:
        """Standard deviations above the mean at which a normal distribution reaches the attainment."""
        return NormalDist().inv_cdf(self.attainment)

    def __str__(self) -> str:
        texts = ((name, f"{s:g} s" if s >= 1 else f"{s * 1e3:g} ms") for name, s in self.limits())
        words = ", ".join(f"{name.upper()} ≤ {text}" for name, text in texts) or "no latency limit"
        return f"{words}, for {100 * self.attainment:.4g}% of requests"
