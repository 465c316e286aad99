"""What a lever gained in a request that ended, beside what the cost model predicts for it.

    speculation   decode without drafts, by the engine's step-time model for the steps that were saved / decode
    KV store      prefill with the loaded tokens computed, as predicted, without their load / prefill as it was

A second run without the lever would be measured better; a request runs once. ``benchmark`` says what the engine's
benchmarks measured of a lever, whose figures and conditions are in docs/levers.md."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from twofold.api.body import ReplyObject
from twofold.bench.draw.form import duration
from twofold.planner.explain.scenario import Observed, UniformScenario
from twofold.planner.explain.words import drafts_note, factor
from twofold.planner.predict.speculation import ACCEPTANCE, TextClass

MACHINE: Final = "on two Zen 4 cores"
BENCHMARKS: Final[Mapping[str, str]] = {
    "KV q8": "1.96× the sessions (SmolLM2) and 2.00× (Qwen2.5-Coder-1.5B); decode steps after 8,000 tokens in 0.78 "
    f"and 0.89 of the time {MACHINE}",
    "KV k8v4": "2.49× the sessions (SmolLM2) and 2.53× (Qwen2.5-Coder-1.5B); decode steps after 8,000 tokens in 0.71 "
    f"and 0.87 of the time {MACHINE}",
    "KV store": "the first token of a prompt of 4,096 tokens after a restart in 0.079 s instead of 25.6 s "
    f"(Qwen2.5-Coder-1.5B {MACHINE})",
    "prompt compression": "18 of 18 planted facts in half the tokens (SmolLM2 as scorer), and not the time it saves",
}


class MeasuredGain(ReplyObject):
    """``gain``: factor on the phase that the lever helps, above 1 is better; below 1 it cost time."""

    gain: float
    words: str


def measured_gain(lever: str, scenario: UniformScenario, observed: Observed | None) -> MeasuredGain | None:
    """The gain of a lever in the request; None if it was not in use, or its gain cannot be known."""
    if observed is None:
        return None
    if lever == "speculation":
        return _of_drafts(observed)
    if lever == "KV store":
        return _of_loading(scenario, observed)
    return None


def _of_drafts(observed: Observed) -> MeasuredGain | None:
    decode, drafts = observed.phases.get("decode"), observed.drafts
    if drafts is None or decode is None or not decode.actual:
        return None
    gain = (decode.actual + drafts.saved_s) / decode.actual
    return MeasuredGain(gain, f"{drafts_note(*drafts, 'draft tokens')}: decode {factor(gain)}.")


def _of_loading(scenario: UniformScenario, observed: Observed) -> MeasuredGain | None:
    prefill = observed.phases.get("prefill")
    if not observed.loaded or prefill is None or not prefill.actual:
        return None
    case = replace(scenario.case, cached=max(0, observed.cached - observed.loaded), loaded=0)
    computed = sum(each.seconds(scenario.predictor.constants) for each in scenario.predictor.prefill(case))
    as_it_was = sum(each.seconds(scenario.predictor.constants) for each in scenario.predictor.prefill(scenario.case))
    saved = computed - as_it_was
    gain = (prefill.actual + saved) / (prefill.actual + observed.load_s)
    took = f"{observed.loaded:,} tokens were loaded in {duration(observed.load_s)}"
    return MeasuredGain(
        gain, f"{took} in place of {duration(saved)} of computing, as predicted: prefill {factor(gain)}."
    )


def benchmark(lever: str, text: TextClass | None) -> str:
    """What the engine's benchmarks measured of a lever, for that class of text; "" if nothing was measured."""
    if lever in {"speculation", "draft model"} and text is not None:
        known = ACCEPTANCE[text]
        gain = known.lookup_gain if lever == "speculation" else known.model_gain
        models = "Qwen2.5-Coder-1.5B" if lever == "speculation" else "Qwen2.5-Coder 0.5B for 1.5B"
        return f"decode {factor(gain)} for {text} ({models}, one stream {MACHINE})" if gain else ""
    return BENCHMARKS.get(lever, "")
