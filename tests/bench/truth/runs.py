"""Sends a load of scripts to the stub, and pairs the records of the stub with those of the client.

The stub notes the moments right before and right after it hands a chunk to the kernel. A measured moment is true where
it lies between them; else its error is the distance. Both are bounds of every figure that is made of moments.
"""

from __future__ import annotations

import itertools
import math
import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from tests.bench.stub.live import LiveStub
from tests.bench.stub.script import Script
from tests.bench.stub.truth import Truth
from twofold.bench.client.loop import ClientOptions, LoadClient
from twofold.bench.client.target import ServerTarget
from twofold.bench.endpoints.endpoint import ApiEndpoint, EndpointOptions
from twofold.bench.load.base import Ask, EndedRequest, PromptMessage
from twofold.bench.record import RequestSample, RunRecord

CLOSE_S: Final = 0.002
"""What the issue allows."""
TRIES: Final = 5
TEMPLATE_TOKENS: Final = 5
"""What the stub counts for a chat of one message, beside its words."""


@dataclass(frozen=True, slots=True)
class Scripted:
    """A load of requests with scripts."""

    asks: tuple[Ask, ...]
    max_open: int | None = None

    def describe(self) -> Mapping[str, Any]:
        return {"kind": "scripted"}

    def begin(self) -> Iterator[Ask]:
        return iter(self.asks)

    def follow(self, sample: EndedRequest, now_s: float) -> Ask | None:
        del sample, now_s
        return None


@dataclass(frozen=True, slots=True)
class Play:
    """One request: its script, its due time, and its number of output tokens."""

    script: Script
    due_s: float = 0.0
    output_tokens: int = 8
    input_tokens: int = 12


@dataclass(frozen=True, slots=True)
class Bounds:
    """An interval in seconds that contains the true value."""

    least: float
    most: float

    def error(self, measured: float) -> float:
        """The distance of a figure from the interval."""
        return max(0.0, self.least - measured, measured - self.most)

    @property
    def middle(self) -> float:
        return (self.least + self.most) / 2


@dataclass(frozen=True, slots=True)
class Row:
    """A request as recorded by the client and by the stub; ``truth`` is on the clock of the run."""

    play: Play
    sample: RequestSample
    truth: Truth

    def chunk(self, place: int) -> Bounds:
        """When a chunk left."""
        return Bounds(self.truth.before[place], self.truth.after[place])

    @property
    def first(self) -> Bounds:
        return self.chunk(0)

    @property
    def last(self) -> Bounds:
        return self.chunk(-1)

    @property
    def gaps(self) -> list[Bounds]:
        chunks = [self.chunk(place) for place in range(len(self.truth.before))]
        return [between(before, after) for before, after in itertools.pairwise(chunks)]


@dataclass(frozen=True, slots=True)
class Run:
    record: RunRecord
    rows: tuple[Row, ...]


def between(before: Bounds, after: Bounds) -> Bounds:
    """The interval of the time from one moment to another."""
    return Bounds(after.least - before.most, after.most - before.least)


def since(moment: float, until: Bounds) -> Bounds:
    return between(Bounds(moment, moment), until)


def share(bounds: Bounds, parts: int) -> Bounds:
    return Bounds(bounds.least / parts, bounds.most / parts)


def percentile(values: Sequence[float], of_hundred: float) -> float:
    """The smallest value that at least that share of the values does not exceed."""
    return sorted(values)[max(0, math.ceil(len(values) * of_hundred / 100 - 1e-9) - 1)]


def percentile_bounds(values: Sequence[Bounds], of_hundred: float) -> Bounds:
    """A percentile rises with every value, so its bounds are those of the bounds."""
    least = percentile([value.least for value in values], of_hundred)
    return Bounds(least, percentile([value.most for value in values], of_hundred))


def play(
    stub: LiveStub,
    plays: Sequence[Play],
    *,
    endpoint: str = "chat",
    max_open: int | None = None,
    options: EndpointOptions | None = None,
    client: ClientOptions | None = None,
) -> Run:
    """Sends these requests, in the order in which they are due; their scripts are told apart by their places."""
    plays = sorted(plays, key=lambda each: each.due_s)
    scripts = [replace(each.script, id=f"{index}") for index, each in enumerate(plays)]
    asks = tuple(
        Ask(index, each.due_s, each.input_tokens, each.output_tokens, fields=script.fields)
        for index, (each, script) in enumerate(zip(plays, scripts, strict=True))
    )
    spoken = ApiEndpoint(endpoint, options or EndpointOptions("stub"), _prompt)
    with LoadClient(ServerTarget.of(stub.url), spoken, client) as sender:
        record = sender.run(Scripted(asks, max_open))
    began = record.began_unix - _wall_ahead()
    samples = {sample.ask.index: sample for sample in record.samples}
    truths = {key: _shifted(truth, began) for key, truth in stub.truths().items()}
    rows = [Row(each, samples[index], truths[str(index)]) for index, each in enumerate(plays) if str(index) in truths]
    return Run(record, tuple(rows))


def at_best(check: Callable[[], None], tries: int = TRIES) -> None:
    """Repeats a check of times until it passes, at most a few times, since the machine may be busy."""
    for left in reversed(range(tries)):
        try:
            check()
            break
        except AssertionError:
            if not left:
                raise


def _prompt(ask: Ask) -> tuple[PromptMessage, ...]:
    return (PromptMessage("user", "w " * (ask.input_tokens - TEMPLATE_TOKENS)),)


def _shifted(truth: Truth, began: float) -> Truth:
    """On the clock of a run that began at that moment."""
    before, after = (array("d", (at - began for at in moments)) for moments in (truth.before, truth.after))
    ended = None if truth.ended is None else truth.ended - began
    arrived, taken = truth.arrived - began, truth.taken - began
    return replace(truth, arrived=arrived, taken=taken, before=before, after=after, ended=ended)


def _wall_ahead() -> float:
    """The wall clock less the monotonic one: the tightest of some looks."""
    looks = []
    for _ in range(20):
        before = time.perf_counter()
        wall = time.time()
        after = time.perf_counter()
        looks.append((after - before, wall - (before + after) / 2))
    return min(looks)[1]
