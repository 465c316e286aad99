"""What was measured, a row for each case. All times are seconds.

A row's ``seconds`` is what ``Ceilings.limit`` is the limit of: of a prompt until its first token, or of one step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Self, TypeAlias

from twofold.bench.phases.cases import Case, Decode, Mixed, Prefill, Prefix
from twofold.bench.phases.steps import StepTime


@dataclass(frozen=True, slots=True)
class Spread:
    """A figure over rounds."""

    median: float
    least: float
    most: float
    rounds: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        """Of at least one round."""
        return cls(median(values), min(values), max(values), len(values))


def percentile(values: Iterable[float], share: float) -> float:
    """Nearest rank: the least value that at least this share of the values does not exceed. Of at least one value."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


@dataclass(frozen=True, slots=True)
class StartTimes:
    """``load_s`` without ``compile_s``; ``first_token_s`` of the first prompt of all, of ``tokens`` tokens."""

    load_s: float
    compile_s: float
    first_token_s: float
    tokens: int


@dataclass(frozen=True, slots=True)
class PrefillRow:
    """``steps`` a prompt, ``step`` their mean."""

    case: Prefill
    seconds: Spread
    steps: int
    step: StepTime

    @property
    def tok_s(self) -> float:
        """Prompt tokens a second."""
        return self.case.tokens / self.seconds.median


@dataclass(frozen=True, slots=True)
class PrefixRow:
    """``seconds`` with ``cached`` tokens found, ``miss`` of a prompt of that length before them, without any."""

    case: Prefix
    seconds: Spread
    miss: Spread
    cached: int
    step: StepTime

    @property
    def tok_s(self) -> float:
        """Prompt tokens a second, cached ones included."""
        return self.case.tokens / self.seconds.median


@dataclass(frozen=True, slots=True)
class DecodeRow:
    """``seconds`` are medians of the steps of a round, ``p99_s`` is of all ``steps``."""

    case: Decode
    seconds: Spread
    p99_s: float
    steps: int
    step: StepTime

    @property
    def tok_s(self) -> float:
        """Tokens a second of all sequences."""
        return self.case.batch / self.seconds.median


@dataclass(frozen=True, slots=True)
class MixedRow:
    """``seconds`` are means of the ``steps`` that computed a prompt beside those who generate; ``alone`` is the median
    of the steps before, without a prompt; ``ttft`` is the prompt's.
    """

    case: Mixed
    seconds: Spread
    alone: Spread
    ttft: Spread
    steps: int
    step: StepTime

    @property
    def tok_s(self) -> float:
        """Tokens a second, of the prompt and of those who generate."""
        return self.case.tokens / self.steps / self.seconds.median + self.case.batch / self.seconds.median

    @property
    def slower(self) -> float:
        """How many times longer a step takes for those who generate."""
        return self.seconds.median / self.alone.median


Row: TypeAlias = PrefillRow | PrefixRow | DecodeRow | MixedRow


@dataclass(frozen=True, slots=True)
class SkippedCase:
    """A case that cannot be measured here, and why."""

    case: Case
    why: str
