"""What a lever gained in a request that ended, beside what the cost model predicts for it.

    speculation   decode without drafts, by the engine's step-time model for the steps that were saved / decode
    KV store      prefill with the loaded tokens computed, as predicted, without their load / prefill as it was

A second run without the lever would be measured better; a request runs once."""

from __future__ import annotations

from dataclasses import dataclass, replace

from twofold.bench.draw.form import duration
from twofold.planner.explain.scenario import Observed, UniformScenario
from twofold.planner.explain.words import drafts_note, factor


@dataclass(frozen=True, slots=True)
class MeasuredGain:
    """``gain``: factor on the phase that the lever helps, above 1 is better; below 1 it cost time."""

    gain: float
    words: str


def measured_gain(lever: str, scenario: UniformScenario, seen: Observed | None) -> MeasuredGain | None:
    """The gain of a lever in the request; None if it was not in use, or its gain cannot be known."""
    if seen is None:
        return None
    if lever == "speculation":
        return _of_drafts(seen)
    if lever == "KV store":
        return _of_loading(scenario, seen)
    return None


def _of_drafts(seen: Observed) -> MeasuredGain | None:
    decode, drafts = seen.phases.get("decode"), seen.drafts
    if drafts is None or decode is None or not decode.actual:
        return None
    gain = (decode.actual + drafts.saved_s) / decode.actual
    return MeasuredGain(gain, f"{drafts_note(*drafts, 'draft tokens')}: decode {factor(gain)}.")


def _of_loading(scenario: UniformScenario, seen: Observed) -> MeasuredGain | None:
    prefill = seen.phases.get("prefill")
    if not seen.loaded or prefill is None or not prefill.actual:
        return None
    case = replace(scenario.case, cached=max(0, seen.cached - seen.loaded), loaded=0)
    computed = sum(each.seconds(scenario.predictor.constants) for each in scenario.predictor.prefill(case))
    as_it_was = sum(each.seconds(scenario.predictor.constants) for each in scenario.predictor.prefill(scenario.case))
    saved = computed - as_it_was
    gain = (prefill.actual + saved) / (prefill.actual + seen.load_s)
    took = f"{seen.loaded:,} tokens were loaded in {duration(seen.load_s)}"
    return MeasuredGain(
        gain, f"{took} in place of {duration(saved)} of computing, as predicted: prefill {factor(gain)}."
    )
