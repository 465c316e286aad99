"""Explanations as text, as data and as a picture."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import pairwise
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest

from tests.planner.explain.scenes import ALONE, PLAIN, data, scene
from tests.planner.explain.test_sources import RUN, read
from twofold.bench.draw.chart import Dots, Label
from twofold.bench.draw.svg import svg
from twofold.bench.draw.terminal import plot
from twofold.core.errors import ParameterError
from twofold.planner.explain.levers import LEVERS
from twofold.planner.explain.picture import roofline, roofline_points
from twofold.planner.explain.report import explain, lines, requests_like
from twofold.planner.explain.scenario import waterfall
from twofold.planner.machines.known import find_machine
from twofold.planner.predict.constants import BARE, EFFICIENT
from twofold.planner.predict.request import Case


def starting(text: list[str], word: str) -> str:
    return next(line for line in text if line.startswith(word))


@pytest.mark.parametrize("width", [80, 120])
def test_a_hypothetical_in_lines(width: int) -> None:
    text = list(lines(explain(scene("llama-3-70b", tp=4, by=EFFICIENT)), width=width))
    assert text[0] == (
        "llama-3-70b (bf16, KV bf16) on 4 × h100: 2,000 prompt tokens, 300 output tokens, concurrency 16"
    )
    decode = starting(text, "decode")
    assert "4.23 s" in decode
    assert "3.35 s" in decode
    assert "79.2%" in decode
    assert starting(text, "total").split()[1:] == ["6.14", "s", "3.42", "s", "55.8%"]
    assert "Levers, ranked by end-to-end latency" in text
    assert max(len(line) for line in text[1:]) <= max(width, 116)
    for each in LEVERS:
        assert any(line.startswith(f"  {each.name} ") for line in text), each.name


def test_only_the_first_levers_are_described_in_full() -> None:
    text = list(lines(explain(scene()), levers=2))
    assert sum(line.startswith(("  shorter output", "  tensor parallelism")) for line in text) == 2
    assert any(line.strip().startswith("Smaller gains: ") for line in text)


def test_one_output_token_has_no_time_per_token() -> None:
    one = scene().having(case=Case(prompt=512, output=1))
    told = explain(one)
    text = list(lines(told))
    assert starting(text, "TTFT ").split(" · ")[1].endswith("tokens/s per device")
    assert ["E2E", "TTFT", "tok/s"] in [line.split() for line in text]
    found = data(told)["figures"]
    assert (found["tpot"], found["gap"]) == (None, None)
    for goal in ("tpot", "gap"):
        with pytest.raises(ParameterError, match="one output token has no") as caught:
            explain(one, goal=goal)
        assert caught.value.param == "goal"
    two = explain(scene().having(case=Case(prompt=512, output=2)))
    assert "TPOT" in starting(list(lines(two)), "TTFT ")
    assert data(two)["figures"]["tpot"] > 0


def test_bars_follow_each_other() -> None:
    text = list(lines(explain(scene(by=EFFICIENT))))
    bars = [starting(text, name)[9:33] for name in ("queue", "prefill", "decode", "stalls")]
    filled = [[i for i, cell in enumerate(bar) if cell != " "] for bar in bars]
    assert all(filled)
    assert filled[0][0] == 0
    assert filled[3][-1] == 23
    for above, below in pairwise(filled):
        assert below[0] - above[-1] in {0, 1}


def test_measured_beside_predicted_in_lines() -> None:
    seen = read(RUN)
    scenario = scene(case=requests_like(seen))
    text = list(lines(explain(scenario, seen)))
    assert text[0] == "twofold run: 41 prompt tokens (3 cached), 38 output tokens"
    assert starting(text, "queue").split()[2:5] == ["100", "ms", "0"]
    assert any("Predicted for llama-3-8b" in line for line in text)
    alone = list(lines(explain(None, seen)))
    assert alone[-1] == "Name its model and its machine (--model, --hardware) for predictions and levers."
    assert "memory; 37 rows in 37 steps" in starting(alone, "decode")


def test_a_measured_decode_of_one_token_has_no_parts() -> None:
    seen = replace(read(RUN), output=1)
    text = list(lines(explain(scene(case=requests_like(seen)), seen)))
    assert "750 ms" in starting(text, "decode")


def finite(value: Any) -> bool:
    if isinstance(value, dict):
        return all(finite(each) for each in value.values())
    if isinstance(value, list):
        return all(finite(each) for each in value)
    return not isinstance(value, float) or math.isfinite(value)


def test_as_data() -> None:
    found = explain(scene())
    plain = data(found)
    assert json.loads(json.dumps(plain)) == json.loads(msgspec.json.encode(found.document))
    assert finite(plain)
    assert plain["schema"] == "twofold.explain/1"
    assert [phase["name"] for phase in plain["phases"]] == ["queue", "prefill", "decode", "stalls"]
    assert plain["seconds"] == pytest.approx(sum(phase["seconds"] for phase in plain["phases"]))
    assert plain["scenario"]["constants"]["eta_c"]["source"]
    assert {each["lever"] for each in plain["levers"]} == {each.name for each in LEVERS}
    assert [each["name"] for each in plain["roofline"]] == ["prefill", "decode"]


def test_what_was_seen_as_data() -> None:
    plain = data(explain(None, read(RUN)))
    assert plain["scenario"] is None
    assert plain["predicted_s"] is None
    assert plain["phases"][2]["actual_s"] == 0.75
    assert plain["phases"][2]["prediction_error"] == pytest.approx(0.9 / 0.75 - 1)


def test_phases_lie_under_their_roof() -> None:
    """With what data sheets promise, one of them touches it."""
    scenario = scene(case=Case(prompt=4000, output=300), by=BARE)
    machine = scenario.predictor.machine
    prefill, decode = roofline_points(scenario, waterfall(scenario))
    assert prefill.intensity > machine.ridge() > decode.intensity
    assert prefill.speed == pytest.approx(machine.peak("bf16"), rel=0.05)
    assert decode.speed == pytest.approx(decode.intensity * machine.bandwidth, rel=0.01)
    assert decode.speed <= decode.intensity * machine.bandwidth * (1 + 1e-9)


def test_a_phase_that_was_not_there_has_no_dot() -> None:
    scenario = scene(case=Case(prompt=100, output=1))
    assert [each.name for each in roofline_points(scenario, waterfall(scenario))] == ["prefill"]


@pytest.mark.parametrize("case", [ALONE, PLAIN, replace(PLAIN, chunk=512, cached=100)])
def test_the_picture(case: Case) -> None:
    scenario = scene(case=case)
    chart = roofline(scenario, waterfall(scenario))
    assert [mark.label for mark in chart.marks if isinstance(mark, Dots)][1:] == ["prefill", "decode"]
    words = [mark.text for mark in chart.marks if isinstance(mark, Label)]
    assert {"3.35 TB/s", "batch 1", "prefill", "decode"} <= set(words), "lines and points are named where they are"
    picture = ElementTree.fromstring(svg(chart, standalone=True))
    assert float(picture.attrib["width"]) > 640, "a picture of its own has a size, and a margin"
    assert "ridge 295" in svg(chart)
    drawn = plot(chart, width=80)
    assert "1 bf16 989 TFLOP/s" in drawn
    assert max(len(line) for line in drawn.splitlines()) <= 90


def test_a_model_that_does_not_fit_has_a_hint_with_ways_that_do() -> None:
    with pytest.raises(ParameterError, match="does not fit into h100") as caught:
        scene("llama-3-70b", case=ALONE)
    assert caught.value.hint == "It fits with --weights int8 (72.7 GB), --weights int4 (39.5 GB) or --tp 2."
    with pytest.raises(ParameterError) as caught:
        scene("deepseek-v3", find_machine("l4").name, case=ALONE)
    assert "--tp" in (caught.value.hint or "")
