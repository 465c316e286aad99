"""Probes: small groups of requests that measure the seconds of steps on this machine. Each step is a point.

Prompts are random, so that none of their tokens are cached. The first steps of a probe compute its prompts, in chunks;
each other step adds a token to each request. Cheap probes run first; a probe that exceeds the time left is skipped.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final, TypeAlias

from twofold.core.params import SamplingParams
from twofold.core.report import RequestMetrics, StepReport
from twofold.core.request import EngineRequest, RequestOptions
from twofold.core.step import StepPlan
from twofold.engine.loop import EngineClient
from twofold.planner.count.step import SequenceRows

Spans: TypeAlias = tuple[tuple[int, SequenceRows], ...]
"""Rows of a step, as (number of sequences, rows of each)."""
MAX_TOKEN: Final = 30_000
WARM_ROWS: Final = 128


@dataclass(frozen=True, slots=True)
class Probe:
    """``batch`` prompts of ``prompt`` tokens, and completions of ``output`` tokens."""

    batch: int
    prompt: int
    output: int

    @property
    def tokens(self) -> int:
        return self.batch * (self.prompt + self.output)


PROBES: Final = (
    Probe(1, 32, 16),
    Probe(1, 8, 4),
    Probe(2, 32, 12),
    Probe(1, 16, 4),
    Probe(4, 16, 12),
    Probe(1, 128, 12),
    Probe(8, 24, 12),
    Probe(1, 64, 4),
    Probe(16, 16, 10),
    Probe(1, 256, 12),
    Probe(4, 96, 12),
    Probe(24, 16, 8),
    Probe(1, 512, 12),
    Probe(8, 96, 10),
    Probe(1, 1024, 12),
    Probe(4, 384, 10),
    Probe(12, 48, 10),
    Probe(2, 768, 10),
    Probe(8, 256, 10),
)
"""Steps of 1 row to a whole chunk, batches of 1 to 24, contexts up to 1,024 tokens."""


@dataclass(frozen=True, slots=True)
class ProbePoint:
    """One step of a probe, by the probe's number: its rows, their seconds, and the engine's seconds around them."""

    probe: int
    spans: Spans
    seconds: float
    host_s: float

    @property
    def whole_s(self) -> float:
        """Seconds from the end of the step before to the end of this step."""
        return self.seconds + self.host_s


class Prober:
    """Runs probes on an engine and collects the points.

    ``stop`` is called between steps; points measured before it returns True are kept.
    """

    def __init__(self, client: EngineClient, vocabulary: int, stop: Callable[[], bool]) -> None:
        self._client, self._stop = client, stop
        self._tokens = range(min(100, vocabulary // 3), min(vocabulary, MAX_TOKEN))
        self._random, self._salts = random.Random(0), count()
        self._probe = 0
        self.points: list[ProbePoint] = []
        self._spans: Spans = ()
        client.engine.watch_plans(self._note_spans)
        client.engine.observe(self)

    def on_step(self, report: StepReport) -> None:
        """Records a step that had rows."""
        if self._spans:
            self.points.append(ProbePoint(self._probe, self._spans, report.seconds + report.moves_s, report.host_s))

    def _note_spans(self, plan: StepPlan) -> None:
        counts = Counter(SequenceRows(len(step.tokens), step.start, step.logit_rows) for step in plan.steps)
        self._spans = tuple((count, span) for span, count in counts.items())

    def on_request(self, report: RequestMetrics) -> None:
        """Requests are not recorded."""

    def run(self, probes: Sequence[Probe], budget_s: float) -> list[Probe]:
        """Runs and returns the probes that fit into ``budget_s`` seconds at the mean speed of those before."""
        self._one(Probe(2, WARM_ROWS // 2, 4))
        self.points.clear()
        began, tokens, done = time.perf_counter(), 0, list[Probe]()
        for number, probe in enumerate(probes):
            spent = time.perf_counter() - began
            if self._stop() or (tokens and spent + probe.tokens * spent / tokens > budget_s):
                continue
            self._probe = number
            self._one(probe)
            tokens += probe.tokens
            done.append(probe)
        return done

    def _one(self, probe: Probe) -> None:
        self._client.run([self._request(probe) for _ in range(probe.batch)], self._stop)

    def _request(self, probe: Probe) -> EngineRequest:
        prompt = tuple(self._random.choices(self._tokens, k=probe.prompt))
        params = SamplingParams(temperature=0, max_tokens=probe.output, ignore_eos=True)
        options = RequestOptions(cache_salt=f"probe-{next(self._salts)}", speculation=False)
        return self._client.engine.request(prompt, params, options)


def affordable(probes: Sequence[Probe], context: int, sequences: int) -> Iterator[Probe]:
    """Yields the probes that fit an engine with this context length and number of sequences."""
    for probe in probes:
        if probe.prompt + probe.output <= context and probe.batch <= sequences:
            yield probe
