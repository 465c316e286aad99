"""The rule that selects measured requests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from twofold.bench.record import RequestSample, RunRecord
from twofold.core.errors import ParameterError


@dataclass(frozen=True, slots=True)
class Window:
    """The interval [``from_s``, ``until_s``) of a run."""

    from_s: float
    until_s: float

    @property
    def length_s(self) -> float:
        return max(0.0, self.until_s - self.from_s)


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


def ended_s(samples: Sequence[RequestSample]) -> float:
    """The last known time of requests; 0 without any."""
    return max((_last_known_s(sample) for sample in samples), default=0.0)


def _last_known_s(sample: RequestSample) -> float:
    for moment in (sample.ended_s, sample.last_s, sample.sent_s, sample.started_s):
        if moment is not None:
            return moment
    return 0.0
