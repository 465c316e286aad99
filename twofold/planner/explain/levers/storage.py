"""Levers on how numbers are stored and multiplied: weights, keys and values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from twofold.core.values import FP8, INT4, INT8, VALUE_FORMATS, W8A8, ValueFormat
from twofold.planner.explain.levers.base import Assumptions, Effect, Lever, LeverRefusal, Turn
from twofold.planner.explain.scenario import UniformScenario
from twofold.planner.explain.words import size
from twofold.planner.predict.request import Prediction

ENOUGH: Final = 0.97
"""What stays larger than that share of what it was is as small already."""


def storage_levers() -> Iterator[Lever]:
    """Weights of 8 and 4 bits, products of 8 bits, keys and values of 8 and 4 bits."""
    yield Lever("weights INT8", ("decode",), "almost no quality; the weights must be converted", _weights(INT8, "q8_0"))
    yield Lever(
        "weights INT4",
        ("decode",),
        "some quality, more in small models",
        _weights(INT4, "q4_0"),
    )
    yield Lever(
        "8-bit arithmetic",
        ("prefill", "decode", "stalls"),
        "a little quality, since activations are quantized too; needs calibrated scales",
        _narrow_arithmetic,
    )
    yield Lever("KV INT8", ("decode", "queue"), "almost no quality", _kv(INT8))
    yield Lever("KV INT4", ("decode", "queue"), "quality of long contexts", _kv(INT4))


def _weights(wide: ValueFormat, packed: str) -> Turn:
    """Multiplied as wide numbers, as GPUs do; or in GGUF's ``packed`` format, whose codes processors multiply."""

    def turn(scenario: UniformScenario, _now: Prediction, _given: Assumptions) -> Effect | LeverRefusal:
        codes = scenario.predictor.machine.kind == "cpu" or scenario.weights.arithmetic == "int8"
        form = VALUE_FORMATS[packed] if codes else wide
        changed = scenario.having(shape=scenario.shape.stored_as(form))
        before, after = scenario.weight_bytes, changed.weight_bytes
        if after > ENOUGH * before:
            return LeverRefusal(
                "in use", f"The weights are {scenario.weights.name}, which is not larger than {form.name}."
            )
        return Effect(f"{scenario.weights.name} → {form.name}, {size(before)} → {size(after)} per device", changed)

    return turn


def _narrow_arithmetic(scenario: UniformScenario, _now: Prediction, _given: Assumptions) -> Effect | LeverRefusal:
    machine = scenario.predictor.machine
    form = next((each for each in (FP8, W8A8) if each.arithmetic in machine.peaks), None)
    if form is None:
        return LeverRefusal("cannot", f"{machine.name} has no 8-bit matrix units.")
    current = scenario.weights
    if machine.peak(current.arithmetic) >= machine.peak(form.arithmetic):
        real = machine.computes_in(current.arithmetic)
        return LeverRefusal("in use", f"{current.name} weights are already multiplied in {real}.")
    changed = scenario.having(shape=scenario.shape.stored_as(form))
    if not changed.sequences:
        return LeverRefusal(
            "cannot", f"Weights grow to {size(changed.weight_bytes)} per device and no longer fit into {machine.name}."
        )
    faster = machine.peak(form.arithmetic) / machine.peak(current.arithmetic)
    real = machine.computes_in(current.arithmetic)
    what = f"matrix products in {form.arithmetic}, with {faster:.3g} times the peak of {real}"
    worse = changed.weight_bytes > scenario.weight_bytes
    why = f"Weights grow to {size(changed.weight_bytes)} per device." if worse else ""
    return Effect(what, changed, why)


def _kv(form: ValueFormat) -> Turn:
    def turn(scenario: UniformScenario, _now: Prediction, _given: Assumptions) -> Effect | LeverRefusal:
        changed = scenario.having(how=replace(scenario.how, kv=form))
        context = scenario.halfway
        before, after = scenario.kv_bytes(context), changed.kv_bytes(context)
        if after > ENOUGH * before:
            return LeverRefusal(
                "in use", f"The KV cache is {scenario.how.kv.name}, which is not larger than {form.name}."
            )
        then, now = scenario.sequences, changed.sequences
        return Effect(
            f"{scenario.how.kv.name} → {form.name}, {size(before)} → {size(after)} per sequence and device",
            changed,
            f"{now:,} such sequences fit in memory instead of {then:,}." if now > then else "",
        )

    return turn
