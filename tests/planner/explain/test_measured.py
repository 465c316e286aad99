"""For a finished request, explain shows the measured gain of each lever beside the predicted gain."""

from __future__ import annotations

import pytest

from tests.planner.explain.scenes import data, scene
from twofold.planner.explain.measured import measured_gain
from twofold.planner.explain.report import explain, lines
from twofold.planner.explain.scenario import Observed, ObservedDrafts, Phase
from twofold.planner.predict.request import Case

PHASES = {"queue": Phase("queue", 0.1), "prefill": Phase("prefill", 0.2), "decode": Phase("decode", 2.0)}
DRAFTED = Observed("r", "m", 2000, 0, 300, phases=PHASES, drafts=ObservedDrafts(500, 412, 1.5))  # type: ignore[arg-type]
LOADED = Observed("r", "m", 2000, 1536, 300, phases=PHASES, loaded=1536, load_s=0.05)  # type: ignore[arg-type]


def test_drafts() -> None:
    found = measured_gain("speculation", scene(), DRAFTED)
    assert found is not None
    assert found.gain == pytest.approx(1.75)
    assert found.words == "412 of 500 draft tokens were right; 412 steps and 1.5 s saved: decode ×1.75."


def test_drafts_that_cost_time() -> None:
    lost = Observed("r", "m", 2000, 0, 300, phases=PHASES, drafts=ObservedDrafts(10, 1, -0.02))  # type: ignore[arg-type]
    found = measured_gain("speculation", scene(), lost)
    assert found is not None
    assert found.gain < 1
    assert "20 ms lost" in found.words


def test_loaded_tokens() -> None:
    scenario = scene("qwen2.5-1.5b", "epyc-9654", Case(prompt=2000, output=300, loaded=1536))
    found = measured_gain("KV store", scenario, LOADED)
    assert found is not None
    assert found.gain > 1
    assert found.words.startswith("1,536 tokens were loaded in 50 ms in place of ")


@pytest.mark.parametrize("lever", ["speculation", "KV store", "batch"])
def test_a_request_without_a_lever_has_no_gain(lever: str) -> None:
    plain = Observed("r", "m", 2000, 0, 300, phases=PHASES)  # type: ignore[arg-type]
    assert measured_gain(lever, scene(), plain) is None
    assert measured_gain(lever, scene(), None) is None


def test_it_is_shown_beside_the_prediction() -> None:
    found = explain(scene(case=Case(prompt=2000, output=300)), DRAFTED)
    text = " ".join(" ".join(lines(found, width=400)).split())
    assert "accepted: decode ×" in text
    assert "Measured: 412 of 500 draft tokens were right" in text
    plain = {each["lever"]: each["measured"] for each in data(found)["levers"]}
    assert plain["speculation"]["gain"] == pytest.approx(1.75)
    assert plain["batch"] is None
