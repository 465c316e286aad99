"""Records and documents of a benchmark of a simple simulated server."""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence

from twofold.bench.load.base import Ask, Outcome, Shared
from twofold.bench.metrics.goodput import Objectives
from twofold.bench.metrics.requests import MeasurementRule
from twofold.bench.metrics.summary import summarise
from twofold.bench.record import Client, RecordedResponse, RequestSample, RunRecord
from twofold.bench.report.document import SCHEMA, ClientMachine, Document, Target, run_of

OBJECTIVES = Objectives(ttft=0.5, tpot=0.05)
HOSTILE = '=HYPERLINK("http://evil.example")<script>alert(1)</script>'
MACHINE = ClientMachine(processor="p", cores=2, usable_threads=2, memory_bytes=8 << 30, system="s", python="3.11")


def response(first_s: float, gaps: Sequence[float], *, tokens: int = 1) -> RecordedResponse:
    moments = array("d", [first_s])
    for gap in gaps:
        moments.append(moments[-1] + gap)
    n = len(moments)
    return RecordedResponse(moments, array("i", [tokens] * n), [], prompt_tokens=64, done=True)


def completed(index: int, due_s: float, *, ttft_s: float = 0.1, gaps: Sequence[float] = (0.02, 0.03)) -> RequestSample:
    given = response(due_s + ttft_s, gaps)
    given.completion_tokens, given.cached_tokens, given.finish = len(given.moments), 16, "length"
    ask = Ask(index, due_s, 64, len(given.moments), shared=(Shared(0, 16),))
    last = given.moments[-1]
    return RequestSample(
        ask, given, "ok", due_s + 0.001, due_s + 0.002, last + 0.001, 0.0005, 200, request_id=f"r{index}"
    )


def failed(index: int, due_s: float, outcome: Outcome = "refused", error: str = HOSTILE) -> RequestSample:
    ended = None if outcome == "unfinished" else due_s + 0.01
    return RequestSample(
        Ask(index, due_s, 64, 3), RecordedResponse(), outcome, due_s, due_s, ended, status=429, error=error
    )


def record(samples: Sequence[RequestSample], *, duration_s: float = 10.0, interrupted: bool = False) -> RunRecord:
    client = Client(wall_s=duration_s, cpu_s=1.0, lag_p50_s=1e-4, lag_p99_s=1e-3, stamps="kernel", events=100)
    return RunRecord({"kind": "open", "rate": 2.0}, tuple(samples), duration_s, client, 1.7e9, interrupted)


def mixed(requests: int = 40, *, rate: float = 4.0, seed: int = 0) -> RunRecord:
    """Requests of which every tenth is refused and the others succeed."""
    drawn = random.Random(seed)
    samples = [
        failed(index, index / rate)
        if index % 10 == 9
        else completed(index, index / rate, ttft_s=drawn.uniform(0.05, 0.6), gaps=[drawn.uniform(0.01, 0.06)] * 5)
        for index in range(requests)
    ]
    return record(samples, duration_s=requests / rate)


def document(
    *records: RunRecord, rule: MeasurementRule | None = None, chunks: bool = True, model: str = "a/model"
) -> Document:
    rule = rule or MeasurementRule()
    return Document(
        schema=SCHEMA,
        version="1.2.3",
        command="serve",
        settings={"rate": 4.0, "slo": "ttft=500ms"},
        target=Target(url="http://127.0.0.1:8000/v1", endpoint="chat", model=model, server="a server"),
        machine=MACHINE,
        runs=[run_of(each, rule, summarise(each, rule, OBJECTIVES).to_json(), chunks=chunks) for each in records],
    )
