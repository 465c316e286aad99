"""What estimates need to know of earlier requests: how long completions are, and how wrong estimates were."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from twofold.core.report import RequestMetrics

MAX_OPEN: Final = 1024
"""Estimates, one for each caller and model, that wait for their request."""
DECAY: Final = 0.1
"""Weight of the newest request in the means."""


class Estimates:
    """Means by model. ``match`` tells the estimate of the request that a caller asked about last, if it sends that."""

    def __init__(self) -> None:
        self._open: OrderedDict[tuple[str, str], tuple[int, float]] = OrderedDict()
        self._lengths: dict[str, float] = {}
        self._errors: dict[str, float] = {}

    def output_tokens(self, model: str) -> float | None:
        """Mean tokens of a completion; None before the first."""
        return self._lengths.get(model)

    def error(self, model: str) -> float | None:
        """Mean of |estimated − real TTFT| / real TTFT; None before the first estimate whose request followed."""
        return self._errors.get(model)

    def expect(self, caller: str, model: str, prompt: Sequence[int], ttft_s: float) -> None:
        """Notes the estimate for a prompt."""
        self._open[caller, model] = hash(tuple(prompt)), ttft_s
        self._open.move_to_end((caller, model))
        if len(self._open) > MAX_OPEN:
            self._open.popitem(last=False)

    def match(self, caller: str, model: str, prompt: Sequence[int]) -> float | None:
        """The estimated TTFT of this prompt, once; None if the caller's last estimate was for another one."""
        noted = self._open.get((caller, model))
        if noted is None or noted[0] != hash(tuple(prompt)):
            return None
        del self._open[caller, model]
        return noted[1]

    def learn(self, model: str, reports: Sequence[RequestMetrics], estimated_s: float | None) -> None:
        """Takes a request that ended, and what its TTFT was estimated to be."""
        for report in reports:
            _move(self._lengths, model, report.output_tokens / report.completions)
        ttft_s = reports[0].ttft_s if reports else None
        if estimated_s is not None and ttft_s:
            _move(self._errors, model, abs(estimated_s - ttft_s) / ttft_s)


def _move(means: dict[str, float], model: str, value: float) -> None:
    """Moves a mean towards a value; the first value is the mean."""
    means[model] = means.get(model, value) * (1 - DECAY) + value * DECAY
