"""Requests to an engine that this process drives step by step, and when their tokens came.

A token's time is when it left the engine: what a client on the same machine would see.
"""

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
    """One request, due at ``due`` on this process's clock; ``cached`` prompt tokens came from the prefix cache."""

    due: float
    times: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    cached: int = 0
    finished: bool = False


class Traffic:
    """Greedy requests over one engine. With ``text``, tokens become text too."""

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
        """One step of the engine."""
        self._engine.step()

    def _take(self, deltas: list[OutputDelta]) -> None:
        """What leaves the engine, the moment that it does."""
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
        """Ends what is left."""
        for request_id in self._open:
            self._engine.abort(request_id)
        self._open.clear()


def drive(engine: Engine, arrivals: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Runs requests ({"at": s, "prompt": ids, "count": n}, ascending) that come in when they are due.

    Gives {"ttft": s, "times": [s after the first due time], "tokens": ids, "cached": n, "end": s} for each.
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
    """Lets ``prompts`` generate for ``steps`` steps together, then a long prompt comes in until its first token.

    Gives {"before": ITLs, "during": ITLs, "ttft": s}.
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
"""Of a stream that shall generate until it is aborted."""


class StepWatch:
    """Hears how long each step of an engine took."""

    def __init__(self, llm: LLM) -> None:
        self._times: list[StepTime] = []
        llm.engine.observe(self)

    def on_step(self, report: StepReport) -> None:
        self._times.append(StepTime.of(report))

    def on_request(self, _report: RequestMetrics) -> None:
        """Nothing: streams are looked at."""

    def take(self) -> list[StepTime]:
        """The steps since the last time."""
        taken, self._times = self._times, []
        return taken


def steps(
    engine: Engine, watch: StepWatch, prompts: Sequence[Sequence[int]], count: int, *, text: bool
) -> dict[str, Any]:
    """All prompts at once: {"whole", "kernels", "steps", "decode_s", "decode_outside"}.

    ``whole`` are the seconds from the first request to the last token, ``kernels`` those of the model's forward pass.
    ``decode_s`` is the median time of a step in which every sequence generates, ``decode_outside`` the share of these
    steps that is not the model's; NaN where there was no such step.
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
