"""Which requests are measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from twofold.bench.record import RequestSample, RunRecord
from twofold.core.errors import ParameterError


@dataclass(frozen=True, slots=True)
class Window:
    """Seconds of the run: from ``from_s`` on, and before ``until_s``."""

    from_s: float
    until_s: float

    @property
    def length_s(self) -> float:
        return max(0.0, self.until_s - self.from_s)


@dataclass(frozen=True, slots=True)
class MeasurementRule:
    """Requests are measured that are due in [warm-up, duration − cool-down); with no cool-down, to the very last.

    By when a request was due, not by when it ended: a choice by its end would leave out just the slow ones.
    """

    warmup_s: float = 0.0
    cooldown_s: float = 0.0

    def __post_init__(self) -> None:
        for name, value in (("warmup", self.warmup_s), ("cooldown", self.cooldown_s)):
            if not 0 <= value < math.inf:
                raise ParameterError(f"{name} must be 0 seconds or more, not {value}", param=name)

    def window(self, duration_s: float) -> Window:
        """When what is measured is due; empty where warm-up and cool-down leave nothing."""
        return Window(self.warmup_s, max(self.warmup_s, duration_s - self.cooldown_s))

    def measured(self, record: RunRecord) -> tuple[RequestSample, ...]:
        window = self.window(record.duration_s)
        end = window.until_s if self.cooldown_s else math.inf
        return tuple(sample for sample in record.samples if window.from_s <= sample.ask.due_s < end)

    def words(self, duration_s: float) -> str:
        """The rule as a report states it."""
        if not self.warmup_s and not self.cooldown_s:
            return "every request is measured"
        window = self.window(duration_s)
        start = f"from {window.from_s:g} s on" if self.warmup_s else ""
        end = f"before {window.until_s:g} s" if self.cooldown_s else ""
        return f"measured are the requests that were due {' and '.join(part for part in (start, end) if part)}"


def ended_s(samples: Sequence[RequestSample]) -> float:
    """When the last that is known of some requests happened; 0 where nothing did."""
    return max((_known_s(sample) for sample in samples), default=0.0)


def _known_s(sample: RequestSample) -> float:
    for moment in (sample.ended_s, sample.last_s, sample.sent_s, sample.started_s):
        if moment is not None:
            return moment
    return 0.0
