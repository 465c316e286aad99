"""Levers that plans leave out: their figures are those of the formulas, and nothing chooses them silently."""

from __future__ import annotations

import json

import pytest

from tests.planner.plan.support import FACTS, choices, steady
from twofold.cli.plan import TrafficOptions, plan
from twofold.core.values import BF16
from twofold.planner.count.step import SequenceRows
from twofold.planner.explain.serving_levers import scorer_for
from twofold.planner.plan.offers import offers
from twofold.planner.plan.plan import CapacityPlan
from twofold.planner.plan.search import search
from twofold.planner.plan.traffic import PlanSlo, Traffic
from twofold.planner.predict.constants import constants_for
from twofold.planner.predict.request import Case, Predictor
from twofold.planner.predict.steps import StepPredictor


def planned(model: str, machine: str, traffic: Traffic, slo: PlanSlo) -> CapacityPlan:
    asked = choices(model, machine, tp=(1,), weights=(None,), kv=(BF16,), chunks=(2048,), split=False)
    return search(asked, traffic, slo, FACTS).plans[0]


def test_compression_by_hand() -> None:
    """Half of 8,000 prompt tokens are computed, after the smallest model has computed all of them with their logits."""
    traffic = steady(0.2, 8_000, 100)
    found = planned("llama-3-70b", "b200", traffic, PlanSlo(ttft=10.0, tpot=1.0))
    (offer,) = (each for each in offers(found, traffic) if each.lever == "prompt compression")
    machine, shape = found.configuration.machine, found.configuration.shape
    by, batch = constants_for(machine, shape), max(1, round(found.batch))
    whole, half = (
        Predictor(shape, machine, by).predict(Case(prompt=p, output=100, concurrency=batch, chunk=2_048))
        for p in (8_000, 4_000)
    )
    assert offer.after is not None
    assert offer.before.ttft == pytest.approx(whole.ttft)
    assert half.ttft < offer.after.ttft < whole.ttft
    scorer = scorer_for(shape)
    steps = StepPredictor.of(scorer, machine)
    spans = [
        SequenceRows(min(2_048, 8_000 - start), start, min(2_048, 8_000 - start)) for start in range(0, 8_000, 2_048)
    ]
    cost = sum(steps.demand([(1, span)]).seconds(by) for span in spans)
    assert offer.after.ttft == pytest.approx(half.ttft - half.queue + cost, rel=1e-6)
    assert "needs your consent" in offer.words


def test_compression_is_refused_where_scoring_costs_as_much() -> None:
    """The smallest known model has no smaller one to score for it."""
    traffic = steady(1.0, 500, 100)
    found = planned("smollm2-135m", "l4", traffic, PlanSlo(ttft=10.0, tpot=1.0))
    (offer,) = (each for each in offers(found, traffic) if each.lever == "prompt compression")
    assert offer.after is None
    assert offer.words.startswith("prompt compression: does not pay. Scoring 500 tokens")


def test_layer_wise_keys_and_values_need_a_shortage_and_a_link() -> None:
    """A plan has room for its sequences, so no prompt waits for memory; a CPU has one memory."""
    for machine, why in (("h100", "no prompt waits for it"), ("epyc-9654", "one memory with its host")):
        traffic = steady(0.05, 500, 50)
        found = planned("llama-3-8b", machine, traffic, PlanSlo(ttft=60.0, tpot=2.0))
        (offer,) = (each for each in offers(found, traffic) if each.lever == "LayerKV")
        assert offer.after is None
        assert why in offer.why


def test_the_command_lists_them_apart_from_its_choices(capsys: pytest.CaptureFixture[str]) -> None:
    traffic = TrafficOptions(rate=1.0)
    plan(model="llama-3-70b", hardware="h100", simulate=False, traffic=traffic)
    text = capsys.readouterr().out
    assert "Levers that need your decision, for the mean request:" in text
    assert "  prompt compression, 1,024 → 512 fresh tokens: TTFT" in text
    assert "  LayerKV: does not pay." in text
    plan(model="llama-3-70b", hardware="h100", simulate=False, traffic=traffic, json=True)
    document = json.loads(capsys.readouterr().out)
    compression = next(each for each in document["offers"] if each["lever"] == "prompt compression")
    assert compression["after"]["ttft_s"] < compression["before"]["ttft_s"]
    assert all("compress" not in json.dumps(each) for each in document["plans"])
