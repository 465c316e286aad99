"""Which models' prompts take long to prepare, because their chat templates do, and which callers exceed its limits.

A model is prepared apart from others until it was quick, and again for a while after it was slow. A caller whose
renderings exceeded the limits of a model's template several times in a row gets the same error at once for a while.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeVar

from twofold.core.errors import TemplateLimitError

T = TypeVar("T")

SLOW_S: Final = 0.25
"""Ordinary prompts take a few milliseconds."""
QUICK_RUNS: Final = 1000
"""Quick ones after a slow one until a model is no longer prepared apart."""
MAX_EXCEEDED: Final = 3
REST_S: Final = 10.0
MAX_CALLERS: Final = 1024


@dataclass(slots=True)
class _Exceeded:
    """How often in a row, the last error, and when (on the monotonic clock)."""

    times: int
    error: TemplateLimitError
    at: float


@dataclass(slots=True)
class PreparationGuard:
    """Of one model. ``apart`` is how many quick preparations are left until it is prepared among others.

    ``timed`` runs on any thread; the rest belongs to the event loop.
    """

    clock: Callable[[], float] = time.monotonic
    apart: int = 1
    _exceeded: dict[str, _Exceeded] = field(default_factory=dict)

    def check(self, caller: str) -> None:
        """Raises TemplateLimitError for a caller that exceeded the limits again and again a moment ago."""
        last = self._exceeded.get(caller)
        if last is not None and last.times >= MAX_EXCEEDED and self.clock() - last.at < REST_S:
            raise TemplateLimitError(str(last.error), hint=last.error.hint)

    def timed(self, work: Callable[[], T]) -> Callable[[], tuple[T | None, Exception | None, float]]:
        """The same work, giving its result, or its error, and the seconds it took."""

        def run() -> tuple[T | None, Exception | None, float]:
            began = self.clock()
            try:
                return work(), None, self.clock() - began
            except Exception as error:
                return None, error, self.clock() - began

        return run

    def note(self, caller: str, error: Exception | None, seconds: float) -> None:
        """Hears how a preparation ended."""
        self.apart = QUICK_RUNS if seconds > SLOW_S else max(0, self.apart - 1)
        if not isinstance(error, TemplateLimitError):
            self._exceeded.pop(caller, None)
            return
        last = self._exceeded.pop(caller, None)
        if len(self._exceeded) >= MAX_CALLERS:
            del self._exceeded[next(iter(self._exceeded))]
        short = TemplateLimitError(str(error), hint=error.hint)  # without the frames, which hold the body
        self._exceeded[caller] = _Exceeded(1 if last is None else last.times + 1, short, self.clock())
