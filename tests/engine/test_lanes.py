"""The lanes of a run against the trace file of the same run; and time between requests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.engine.conftest import MakeLLM
from twofold.core.lanes import LaneKind
from twofold.core.params import SamplingParams
from twofold.core.report import RequestMetrics, StepReport
from twofold.observe.trace import Tracer


def traced(path: Path) -> dict[str, dict[str, int]]:
    """By request the microseconds at which its trace says that it arrived, was admitted, and so on."""
    tracks: dict[str, list[dict[str, Any]]] = {}
    for event in json.loads(path.read_text()):
        if event.get("cat") == "request":
            tracks.setdefault(event["id"], []).append(event)
    found = {}
    for events in tracks.values():
        at = {(event["name"], event["ph"]): event["ts"] for event in events}
        found[events[0]["name"]] = {
            "+": events[0]["ts"],
            "a": at["prefill", "b"],
            "f": at["first token", "n"],
            ".": at["decode", "e"],
        }
    return found


def test_lanes_of_a_run_are_those_of_its_trace(make_llm: MakeLLM, tmp_path: Path) -> None:
    llm = make_llm(seqs=2)
    engine, path = llm.engine, tmp_path / "trace.json"
    engine.scheduler.watch(engine.now())
    with Tracer(path) as tracer:
        engine.observe(tracer)
        params = [SamplingParams(max_tokens=3 + number, ignore_eos=True) for number in range(5)]
        llm.client.run([engine.request("the hello the", each) for each in params])
    lanes: dict[int, dict[str, int]] = {}
    names = {}
    for event in engine.scheduler.lanes.take():
        if event.kind is LaneKind.ARRIVE:
            names[event.number] = event.text
        lanes.setdefault(event.number, {})[event.kind] = round(event.at * 1e6)
    reported = {names[number]: {kind: times[kind] for kind in "+af."} for number, times in lanes.items()}
    assert reported == traced(path)
    assert len(reported) == 5


class Steps:
    """Keeps the reports of steps."""

    def __init__(self) -> None:
        self.reports: list[StepReport] = []

    def on_step(self, report: StepReport) -> None:
        self.reports.append(report)

    def on_request(self, report: RequestMetrics) -> None:
        """Steps suffice."""


def test_time_without_requests_is_not_the_engines_own(make_llm: MakeLLM) -> None:
    llm = make_llm()
    engine, steps = llm.engine, Steps()
    engine.observe(steps)
    params = SamplingParams(max_tokens=2, ignore_eos=True)
    llm.client.run([engine.request("hello", params)])
    ended, before = engine.now(), len(steps.reports)
    while engine.now() - ended < 0.2:
        pass
    llm.client.run([engine.request("hello", params)])
    assert steps.reports[before].started - ended >= 0.2
    assert steps.reports[before].host_s < 0.2
