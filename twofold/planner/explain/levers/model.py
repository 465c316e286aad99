"""Levers on the model: fewer heads of keys and values, windows, fewer parameters."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from twofold.core.errors import ParameterError
from twofold.core.model import Attention, GroupedAttention, ModelSpec, RecurrentAttention
from twofold.core.values import FP8, INT4, INT8, VALUE_FORMATS, W8A8, ValueFormat
from twofold.planner.count.memory import kv_bytes_per_token, parameters
from twofold.planner.explain.levers.base import Assumptions, Effect, Lever, LeverRefusal, Turn
from twofold.planner.explain.scenario import UniformScenario
from twofold.planner.explain.words import scaled, size
from twofold.planner.predict.request import Prediction
from twofold.planner.shapes.known import known_shapes

GROUP: Final = 8
"""Query heads for each head of keys and values, as in most models of today (Ainslie et al. 2023)."""
WINDOW: Final = 1024
WINDOWED: Final = 6
"""Gemma 3's window, in positions: five of six layers have it."""
LARGEST_SHARE: Final = 0.6
_SIZE: Final = re.compile(r"[-_ ]\d+(\.\d+)?[bm]\b.*$", re.IGNORECASE)


def _attending(shape: ModelSpec, change: Callable[[int, Attention], Attention]) -> ModelSpec:
    """The shape with another attention in each layer, by its number."""
    changed = (replace(layer, attention=change(i, layer.attention)) for i, layer in enumerate(shape.layers))
    return replace(shape, layers=tuple(changed))


def _group(scenario: UniformScenario, _now: Prediction, _given: Assumptions) -> Effect | LeverRefusal:
    kinds = [layer.attention for _, layer in scenario.shape.runs]
    grouped = [each for each in kinds if isinstance(each, GroupedAttention)]
    if not grouped:
        return LeverRefusal("in use", "Its latent attention has an even smaller KV cache.")
    before = kv_bytes_per_token(scenario.shape, scenario.how)
    shared = max(each.heads // each.kv_heads for each in grouped)
    if shared > 1:
        without = scenario.having(shape=_attending(scenario.shape, lambda _, kind: _heads(kind, 1, 1)))
        larger = kv_bytes_per_token(without.shape, without.how) / before
        why = f"{shared} query heads share a KV head; without it the KV cache would be {larger:.3g} times as large"
        if not without.sequences:
            return LeverRefusal("in use", f"{why}, and no such sequence would fit.")
        return LeverRefusal("in use", f"{why}.", Effect("a KV head for each query head", without))
    tp = scenario.how.tp
    changed = scenario.having(shape=_attending(scenario.shape, lambda _, kind: _heads(kind, GROUP, tp)))
    after = kv_bytes_per_token(changed.shape, changed.how)
    return Effect(f"{size(before)} → {size(after)} of KV cache per token and device", changed)


def _heads(kind: Attention, group: int, tp: int) -> Attention:
    """With at most ``group`` query heads for each head of keys and values, which ``tp`` devices can share."""
    if not isinstance(kind, GroupedAttention):
        return kind
    even = [each for each in range(1, group + 1) if kind.heads % each == 0]
    most = max((each for each in even if (kind.heads // each) % tp == 0), default=1)
    return replace(kind, kv_heads=kind.heads // most)


def _windowed(kind: Attention, window: int | None) -> Attention:
    return kind if isinstance(kind, RecurrentAttention) else replace(kind, window=window)


def _window(scenario: UniformScenario, _now: Prediction, _given: Assumptions) -> Effect | LeverRefusal:
    windows = {layer.attention.window for _, layer in scenario.shape.runs} - {None}
    if windows:
        without = scenario.having(shape=_attending(scenario.shape, lambda _, kind: _windowed(kind, None)))
        before, after = without.kv_bytes(scenario.case.halfway), scenario.kv_bytes(scenario.case.halfway)
        least = min(window for window in windows if window is not None)
        why = f"Layers attend to {least:,} positions: {size(after)} of KV cache per sequence instead of {size(before)}."
        if not without.sequences:
            return LeverRefusal("in use", why)
        return LeverRefusal("in use", why, Effect("no windows", without))
    if scenario.case.halfway <= WINDOW:
        return LeverRefusal(
            "cannot", f"A context of {scenario.case.halfway:,} tokens is no longer than a window of {WINDOW:,}."
        )
    changed = scenario.having(
        shape=_attending(
            scenario.shape, lambda i, kind: kind if i % WINDOWED == WINDOWED - 1 else _windowed(kind, WINDOW)
        )
    )
    before, after = scenario.kv_bytes(scenario.case.halfway), changed.kv_bytes(scenario.case.halfway)
    return Effect(
        f"{WINDOWED - 1} of {WINDOWED} layers attend to {WINDOW:,} positions",
        changed,
        f"KV cache per sequence and device: {size(before)} → {size(after)}.",
    )


def _smaller(scenario: UniformScenario, _now: Prediction, _given: Assumptions) -> Effect | LeverRefusal:
    """The largest of the same family with at most 0.6 of the parameters; of all where the family has none."""
    mine = scenario.shape
    active, stem = parameters(mine).active, _SIZE.sub("", mine.name).lower()
    smaller = {
        name: own.active
        for name, shape in known_shapes().items()
        if (own := parameters(shape)).active <= LARGEST_SHARE * active and shape.context_length >= scenario.case.halfway
    }
    family = {name: size for name, size in smaller.items() if _SIZE.sub("", name) == stem}
    found = family or smaller
    if not found:
        return LeverRefusal("cannot", "No known model is much smaller and supports this context length.")
    name = max(found, key=lambda each: found[each])
    try:
        changed = scenario.having(shape=known_shapes()[name].stored_as(scenario.weights))
        changed.how.check(changed.shape)
    except ParameterError:
        return LeverRefusal("cannot", f"{name} cannot be split across this many devices.")
    why = f"{scaled(active).strip()} → {scaled(found[name]).strip()} active parameters in the layers."
    return Effect(f"{mine.name} → {name}", changed, why)


ENOUGH: Final = 0.97
"""What stays larger than that share of what it was is as small already."""


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
        context = scenario.case.halfway
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


MODELS: Final = (
    Lever(
        "GQA",
        ("decode", "queue"),
        "a model trained with it (converting one takes 5% of its training), and a little quality",
        _group,
    ),
    Lever(
        "window",
        ("decode", "prefill", "queue"),
        "a model trained with it, and recall of distant context",
        _window,
    ),
    Lever("smaller model", ("prefill", "decode", "stalls"), "quality", _smaller),
)
"""They need another model."""


STORAGE: Final = (
    Lever("weights INT8", ("decode",), "almost no quality; the weights must be converted", _weights(INT8, "q8_0")),
    Lever(
        "weights INT4",
        ("decode",),
        "some quality, more in small models",
        _weights(INT4, "q4_0"),
    ),
    Lever(
        "8-bit arithmetic",
        ("prefill", "decode", "stalls"),
        "a little quality, since activations are quantized too; needs calibrated scales",
        _narrow_arithmetic,
    ),
    Lever("KV INT8", ("decode", "queue"), "almost no quality", _kv(INT8)),
    Lever("KV INT4", ("decode", "queue"), "quality of long contexts", _kv(INT4)),
)
"""Formats of weights, products, keys and values."""
