"""How many: outcomes, statuses, errors, and tokens as asked against tokens as told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, get_args

from twofold.bench.load.base import Outcome
from twofold.bench.record import RequestSample

MAX_ERRORS: Final = 50
"""Different errors that a summary lists."""


@dataclass(frozen=True, slots=True)
class ErrorCount:
    outcome: Outcome
    status: int | None
    error: str
    requests: int


@dataclass(frozen=True, slots=True)
class RequestCounts:
    """Those that are measured, by what became of them.

    sent      of the whole run, measured or not
    errors    different ones, the most frequent first; at most ``MAX_ERRORS``
    finishes  of complete answers, by the server's word for why they ended
    whole     complete answers that came whole, not as events
    empty     complete answers without output
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
        return cls(
            sent=sum(1 for sample in samples if sample.started_s is not None),
            measured=len(measured),
            outcomes={outcome: outcomes[outcome] for outcome in get_args(Outcome)},
            statuses=_words(sample.status for sample in measured),
            errors=_errors(measured),
            finishes=_words(sample.answer.finish for sample in done),
            whole=sum(1 for sample in done if not sample.answer.streamed),
            empty=sum(1 for sample in done if not sample.answer.moments),
        )


@dataclass(frozen=True, slots=True)
class Exactness:
    """Tokens as a server tells them, against those that were asked for.

    told            requests whose server tells them, and that were asked for a certain number
    equal           how many of these have just that number; ``fewer`` and ``more``: the others
    mean_difference told − asked
    """

    told: int
    equal: int
    fewer: int
    more: int
    mean_difference: float | None
    max_difference: int

    @classmethod
    def of(cls, pairs: Iterable[tuple[int, int]]) -> Exactness:
        """Of pairs (asked, told)."""
        differences = [told - asked for asked, told in pairs]
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
    """Of complete answers that are measured.

    prompt         the exactness of prompts, but for those whose tokens nobody asked for: a trace's texts, later turns
    output         the exactness of answers; ``fewer`` are those that ended early
    cached_told    requests whose server tells how much of the prompt came from its cache
    cached_share   of the tokens of their prompts
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
            prompt=Exactness.of(_prompts(done)),
            output=Exactness.of(_outputs(done)),
            cached_told=len(known),
            cached_tokens=cached,
            cached_share=cached / prompts if prompts else None,
            reasoning_tokens=sum(sample.answer.reasoning_tokens or 0 for sample in done),
        )


def _prompts(done: Iterable[RequestSample]) -> Iterable[tuple[int, int]]:
    for sample in done:
        told = sample.answer.prompt_tokens
        if told is not None and sample.ask.messages is None and not sample.ask.history:
            yield sample.ask.input_tokens, told


def _outputs(done: Iterable[RequestSample]) -> Iterable[tuple[int, int]]:
    for sample in done:
        told = sample.output_tokens
        if told is not None:
            yield sample.ask.output_tokens, told


def _words(values: Iterable[object | None]) -> Mapping[str, int]:
    """The most frequent first."""
    return dict(Counter(str(value) for value in values if value is not None).most_common())


def _errors(measured: Iterable[RequestSample]) -> tuple[ErrorCount, ...]:
    found = Counter(
        (sample.outcome, sample.status, sample.error)
        for sample in measured
        if sample.outcome != "ok" and sample.error is not None
    )
    return tuple(
        ErrorCount(outcome, status, error, count)
        for (outcome, status, error), count in found.most_common(MAX_ERRORS)
        if error is not None
    )
