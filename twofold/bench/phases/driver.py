"""Requests to an engine that is driven step by step, and how long its steps took."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import count
from typing import Final

from twofold.bench.phases.steps import StepTime
from twofold.core.params import SamplingParams
from twofold.core.report import RequestMetrics, StepReport
from twofold.core.request import RequestOptions
from twofold.engine.loop import EngineClient

MAX_TOKEN: Final = 30_000
FIRST_TOKEN: Final = 100
"""Lower ids are often special; in a small vocabulary at most its first third is."""


class StopError(Exception):
    """Somebody wants no more; what was under way is aborted."""


class Driver:
    """Greedy requests to one engine. ``stop`` is asked between steps.

    Prompts of different salts share nothing in the cache. Tokens become text, as they do for every client.
    """

    def __init__(self, client: EngineClient, vocabulary: int, stop: Callable[[], bool]) -> None:
        self._client = client
        self._engine = client.engine
        self._tokens = range(min(FIRST_TOKEN, vocabulary // 3), min(vocabulary, MAX_TOKEN))
        self._stop = stop
        self._salts = count()
        self._open: set[str] = set()
        self._last: StepTime | None = None
        self._reports: dict[str, RequestMetrics] = {}
        self._engine.observe(self)

    def on_step(self, report: StepReport) -> None:
        """Hears of a step."""
        self._last = StepTime.of(report)

    def on_request(self, report: RequestMetrics) -> None:
        """Hears of the end of a request."""
        self._open.discard(report.request_id)
        self._reports[report.request_id] = report

    def prompt(self, tokens: int, seed: int) -> list[int]:
        """Random ids; longer prompts of a seed begin with shorter ones."""
        return random.Random(seed).choices(self._tokens, k=tokens)

    def new_salt(self) -> str:
        """One that nothing is cached under."""
        return f"once-{next(self._salts)}"

    def add(self, prompt: Sequence[int], tokens: int, salt: str) -> str:
        """Queues a request for so many ``tokens`` and returns its id."""
        params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
        request_id = self._engine.add(self._engine.request(tuple(prompt), params, RequestOptions(cache_salt=salt)))
        self._open.add(request_id)
        return request_id

    @property
    def open_requests(self) -> int:
        return len(self._open)

    def is_open(self, request_id: str) -> bool:
        return request_id in self._open

    def turn(self) -> StepTime | None:
        """One turn of the engine's loop; its step, if it computed one. Raises StopError, and what ends a request."""
        if self._stop():
            self.abort()
            raise StopError
        self._last = None
        for delta in self._client.turn():
            if delta.error is not None:
                raise delta.error
        return self._last

    def finish(self, request_id: str) -> tuple[RequestMetrics, list[StepTime]]:
        """Runs until the request has ended; its report, and the steps until then."""
        steps = []
        while self.is_open(request_id):
            step = self.turn()
            if step is not None:
                steps.append(step)
        return self._reports.pop(request_id), steps

    def alone(self, prompt: Sequence[int], salt: str) -> tuple[RequestMetrics, list[StepTime]]:
        """Runs a prompt to its first token."""
        return self.finish(self.add(prompt, 1, salt))

    def abort(self) -> None:
        """Ends all that is under way."""
        for request_id in list(self._open):
            self._engine.abort(request_id)
        self._reports.clear()
