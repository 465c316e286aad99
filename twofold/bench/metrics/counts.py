"""Counts of outcomes, statuses and errors, and requested tokens against counted ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, get_args

from twofold.bench.load.base import Outcome
from twofold.bench.record import RequestSample

MAX_ERRORS: Final = 50
"""Maximum number of different errors in a summary."""


@dataclass(frozen=True, slots=True)
class ErrorCount:
    outcome: Outcome
    status: int | None
    error: str | None
    requests: int


@dataclass(frozen=True, slots=True)
class RequestCounts:
    """Measured requests by outcome.

    sent      requests of the whole run, measured or not
    errors    different errors, the most frequent first; at most ``MAX_ERRORS``
    finishes  complete responses by finish reason
    whole     complete responses that were not streamed
    empty     complete responses without output
    """

    sent: int
    measured: int
    outcomes: Mapping[Outcome, int]
    statuses: Mapping[str, int]
    errors: tuple[ErrorCount, ...]
    finishes: Mapping[str, int]
    whole: int
    empty: int

    @classmethod
    def of(cls, samples: Sequence[RequestSample], measured: Sequence[RequestSample]) -> RequestCounts:
        outcomes = Counter(sample.outcome for sample in measured)
        done = [sample for sample in measured if sample.outcome == "ok"]
        failed = [sample for sample in measured if sample.outcome != "ok"]
        failures = Counter((each.outcome, each.status, each.error) for each in failed if each.error is not None)
        return cls(
            sent=sum(1 for sample in samples if sample.started_s is not None),
            measured=len(measured),
            outcomes={outcome: outcomes[outcome] for outcome in get_args(Outcome)},
            statuses=_by_frequency(sample.status for sample in measured),
            errors=tuple(ErrorCount(*failure, count) for failure, count in failures.most_common(MAX_ERRORS)),
            finishes=_by_frequency(sample.answer.finish for sample in done),
            whole=sum(1 for sample in done if not sample.answer.streamed),
            empty=sum(1 for sample in done if not sample.answer.moments),
        )


@dataclass(frozen=True, slots=True)
class Exactness:
    """Tokens as the server counts them against requested ones.

    told            requests with both numbers
    equal           requests with exactly the requested number; ``fewer`` and ``more``: the others
    mean_difference counted − requested
    """

    told: int
    equal: int
    fewer: int
    more: int
    mean_difference: float | None
    max_difference: int

    @classmethod
    def of(cls, pairs: Iterable[tuple[int, int]]) -> Exactness:
        """Of pairs (requested, counted)."""
        differences = [counted - requested for requested, counted in pairs]
        n = len(differences)
        return cls(
            told=n,
            equal=differences.count(0),
            fewer=sum(1 for difference in differences if difference < 0),
            more=sum(1 for difference in differences if difference > 0),
            mean_difference=sum(differences) / n if n else None,
            max_difference=max(map(abs, differences), default=0),
        )


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens of complete, measured responses.

    prompt         exactness of prompts, except texts of a trace and later turns, whose tokens were not requested
    output         exactness of completions; ``fewer`` ended early
    cached_told    requests with a known number of cached tokens
    cached_share   cached share of the tokens of their prompts
    """

    prompt: Exactness
    output: Exactness
    cached_told: int
    cached_tokens: int
    cached_share: float | None
    reasoning_tokens: int

    @classmethod
    def of(cls, measured: Sequence[RequestSample]) -> Tokens:
        done = [sample for sample in measured if sample.outcome == "ok"]
        known = [sample.answer for sample in done if sample.answer.cached_tokens is not None]
        cached = sum(answer.cached_tokens or 0 for answer in known)
        prompts = sum(answer.prompt_tokens or 0 for answer in known)
        return cls(
            prompt=Exactness.of(
                (sample.ask.input_tokens, sample.answer.prompt_tokens)
                for sample in done
                if sample.answer.prompt_tokens is not None and sample.ask.messages is None and not sample.ask.history
            ),
            output=Exactness.of(
                (sample.ask.output_tokens, sample.output_tokens) for sample in done if sample.output_tokens is not None
            ),
            cached_told=len(known),
            cached_tokens=cached,
            cached_share=cached / prompts if prompts else None,
            reasoning_tokens=sum(sample.answer.reasoning_tokens or 0 for sample in done),
        )


def _by_frequency(values: Iterable[object | None]) -> Mapping[str, int]:
    """Counts of values, the most frequent first."""
    return dict(Counter(str(value) for value in values if value is not None).most_common())
