"""Requests with given times."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import msgspec

from twofold.bench.load.base import Ask, Outcome
from twofold.bench.record import Client, RecordedResponse, RequestSample, RunRecord

QUIET = Client(wall_s=0.0, cpu_s=0.0, lag_p50_s=0.0, lag_p99_s=0.0, stamps="kernel", events=0)


def sample(
    due: float = 0.0,
    moments: Sequence[float] = (),
    *,
    index: int = 0,
    started: float | None = None,
    ended: float | None = None,
    outcome: Outcome = "ok",
    tokens: Sequence[int] | None = None,
    usage: int | None = None,
    asked: tuple[int, int] = (8, 4),
    response: dict[str, Any] | None = None,
    **rest: Any,
) -> RequestSample:
    """A request due and started at ``due``, with chunks of one token at ``moments``, that ended with the last."""
    told = [1] * len(moments) if tokens is None else list(tokens)
    texts = ["a"] * len(moments)
    reply = RecordedResponse(array("d", moments), array("i", told), texts, completion_tokens=usage)
    for name, value in (response or {}).items():
        setattr(reply, name, value)
    made = RequestSample(Ask(index, due, *asked), reply, outcome, started_s=due if started is None else started, **rest)
    made.ended_s = ended if ended is not None or not moments else moments[-1]
    return made


def record(samples: Sequence[RequestSample], duration: float, *, interrupted: bool = False, **client: Any) -> RunRecord:
    load = msgspec.structs.replace(QUIET, **client)
    return RunRecord({"kind": "test"}, tuple(samples), duration, load, began_unix=0.0, interrupted=interrupted)


def steady(n: int, gap: float, latency: float, *, tokens: int = 4, itl: float = 0.1) -> list[RequestSample]:
    """``n`` requests, one each ``gap`` seconds, whose first token takes ``latency``."""
    starts = [at * gap for at in range(n)]
    return [
        sample(due, [due + latency + itl * token for token in range(tokens)], index=at, usage=tokens)
        for at, due in enumerate(starts)
    ]
