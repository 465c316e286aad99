"""Runs an engine step by step in this process and records when it delivers each token."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.figures import median
from twofold import LLM, SamplingParams
from twofold.bench.phases.report import StepTime
from twofold.core.report import RequestMetrics, StepReport
from twofold.core.request import EngineRequest
from twofold.engine.engine import Engine
from twofold.engine.outputs import OutputDelta


@dataclass(slots=True)
class Stream:
    """One request, due at ``due`` seconds of ``perf_counter``; ``cached`` is its prompt tokens in the prefix cache."""

    due: float
    times: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    cached: int = 0
    finished: bool = False


class Traffic:
    """Greedy requests to one engine, detokenised with ``text``."""

    def __init__(self, engine: Engine, *, text: bool = False) -> None:
        self._engine = engine
        self._text = text
        self._open: dict[str, Stream] = {}
        engine.deliver_to(self._take)

    @property
    def has_work(self) -> bool:
        return bool(self._open)

    def add(self, prompt: Sequence[int], count: int, due: float | None = None) -> Stream:
        """Queues a request for ``count`` tokens."""
        params = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True, detokenize=self._text)
        stream = Stream(time.perf_counter() if due is None else due)
        self._open[self._engine.add(EngineRequest(tuple(prompt), params))] = stream
        return stream

    def turn(self) -> None:
        """Runs one step of the engine."""
        self._engine.step()

    def _take(self, deltas: list[OutputDelta]) -> None:
        """Records deltas when the engine delivers them."""
        now = time.perf_counter()
        for delta in deltas:
            stream = self._open[delta.request_id]
            stream.times += [now] * len(delta.token_ids)
            stream.tokens += delta.token_ids
            if delta.request is not None:
                stream.finished, stream.cached = True, delta.request.metrics.cached_tokens
                del self._open[delta.request_id]

    def finish(self) -> None:
        while self._open:
            self.turn()

    def abort(self) -> None:
        """Aborts all unfinished requests."""
        for request_id in self._open:
            self._engine.abort(request_id)
        self._open.clear()


def drive(engine: Engine, arrivals: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Runs requests ({"at": s, "prompt": ids, "count": n}, ascending by "at"), each added when it is due.

    Returns {"ttft": s, "times": [s since the start], "tokens": ids, "cached": n} for each.
    """
    traffic = Traffic(engine)
    began = time.perf_counter()
    streams: list[Stream] = []
    while len(streams) < len(arrivals) or traffic.has_work:
        while len(streams) < len(arrivals) and began + arrivals[len(streams)]["at"] <= time.perf_counter():
            arrival = arrivals[len(streams)]
            streams.append(traffic.add(arrival["prompt"], arrival["count"], began + arrival["at"]))
        if traffic.has_work:
            traffic.turn()
        else:
            time.sleep(max(0.0, began + arrivals[len(streams)]["at"] - time.perf_counter()))
    return [
        {
            "ttft": stream.times[0] - stream.due,
            "times": [moment - began for moment in stream.times],
            "tokens": stream.tokens,
            "cached": stream.cached,
        }
        for stream in streams
    ]


def interfere(engine: Engine, prompts: Sequence[Sequence[int]], late: Sequence[int], steps: int) -> dict[str, Any]:
    """Generates for ``prompts`` for ``steps`` steps, then adds the prompt ``late`` and runs until its first token.

    Returns {"before": ITLs, "during": ITLs, "ttft": s}.
    """
    traffic = Traffic(engine)
    streams = [traffic.add(prompt, MAX_TOKENS) for prompt in prompts]
    while min(len(stream.times) for stream in streams) < steps + 1:
        traffic.turn()
    together, began = max(stream.times[0] for stream in streams), time.perf_counter()
    newcomer = traffic.add(late, 1)
    while not newcomer.finished:
        traffic.turn()
    traffic.abort()
    pairs = [pair for stream in streams for pair in zip(stream.times, stream.times[1:], strict=False)]
    return {
        "before": [end - start for start, end in pairs if start >= together and end <= began],
        "during": [end - start for start, end in pairs if end > began],
        "ttft": newcomer.times[0] - newcomer.due,
    }


MAX_TOKENS = 4_000
"""Token limit of a stream that generates until it is aborted."""


class StepWatch:
    """Records the time of each step of an engine."""

    def __init__(self, llm: LLM) -> None:
        self._times: list[StepTime] = []
        llm.engine.observe(self)

    def on_step(self, report: StepReport) -> None:
        self._times.append(StepTime.of(report))

    def on_request(self, _report: RequestMetrics) -> None:
        """Ignored: ``Stream`` records requests."""

    def take(self) -> list[StepTime]:
        """The steps since the last call."""
        taken, self._times = self._times, []
        return taken


def steps(
    engine: Engine, watch: StepWatch, prompts: Sequence[Sequence[int]], count: int, *, text: bool
) -> dict[str, Any]:
    """Runs simultaneous prompts: {"whole", "kernels", "steps", "decode_s", "decode_outside"}.

    ``whole`` is the seconds from the first request to the last token, ``kernels`` those of the forward passes,
    ``steps`` their count. ``decode_s`` is the median seconds of a step in which every sequence generates,
    ``decode_outside`` the share of such steps outside the forward pass; both are NaN without such a step.
    """
    traffic = Traffic(engine, text=text)
    watch.take()
    began = time.perf_counter()
    for prompt in prompts:
        traffic.add(prompt, count)
    traffic.finish()
    whole = time.perf_counter() - began
    times = watch.take()
    decoding = [step for step in times if step.decode_rows == len(prompts)]
    return {
        "whole": whole,
        "kernels": sum(step.model_s for step in times),
        "steps": len(times),
        "decode_s": median(step.seconds for step in decoding),
        "decode_outside": StepTime.mean(decoding).outside if decoding else math.nan,
    }
