"""All levers: changes that may make requests faster or cheaper, each with its effect on a scenario."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from twofold.bench.draw.form import duration, share
from twofold.core.errors import ParameterError
from twofold.core.model import Attention, GroupedAttention, ModelSpec, RecurrentAttention
from twofold.core.values import FP8, INT4, INT8, VALUE_FORMATS, W8A8, ValueFormat
from twofold.planner.count.crossover import knee_rows
from twofold.planner.count.memory import kv_bytes_per_token, parameters
from twofold.planner.explain.lever import (
    ENOUGH,
    ApplyLever,
    Assumptions,
    Effect,
    Lever,
    LeverRefusal,
)
from twofold.planner.explain.scenario import UniformScenario, retimed
from twofold.planner.explain.serving_levers import SERVING_LEVERS
from twofold.planner.explain.words import scaled, size
from twofold.planner.predict.queueing import Queue
from twofold.planner.predict.request import Prediction
from twofold.planner.shapes.known import known_shapes

GROUP: Final = 8
"""Query heads for each head of keys and values, as in most current models (Ainslie et al. 2023)."""
WINDOW: Final = 1024
WINDOWED: Final = 6
"""As in Gemma 3: five of six layers have a window of 1,024 positions."""
LARGEST_SHARE: Final = 0.6
"""Maximum share of a model's active parameters that a smaller model has."""
_SIZE: Final = re.compile(r"[-_ ]\d+(\.\d+)?[bm]\b.*$", re.IGNORECASE)
CHUNK: Final = 512
"""Rows of a step: the default of engines."""
SCORE_BYTES: Final = 2
SCORE_PASSES: Final = 4
"""Scores are written, read by the softmax, written as probabilities and read again (Dao et al. 2022, algorithm 0)."""


def _with_attention(shape: ModelSpec, change: Callable[[int, Attention], Attention]) -> ModelSpec:
    """The shape with ``change`` applied to the attention of each layer, given the layer's number."""
    changed = (replace(layer, attention=change(i, layer.attention)) for i, layer in enumerate(shape.layers))
    return replace(shape, layers=tuple(changed))


def _grouped_heads(scenario: UniformScenario, _now: Prediction, _given: Assumptions) -> Effect | LeverRefusal:
    kinds = [layer.attention for _, layer in scenario.shape.runs]
    grouped = [each for each in kinds if isinstance(each, GroupedAttention)]
    if not grouped:
        return LeverRefusal("in use", "Its latent attention has an even smaller KV cache.")
    before = kv_bytes_per_token(scenario.shape, scenario.setup)
    shared = max(each.heads // each.kv_heads for each in grouped)
    if shared > 1:
        without = scenario.having(shape=_with_attention(scenario.shape, lambda _, kind: _with_groups(kind, 1, 1)))
        larger = kv_bytes_per_token(without.shape, without.setup) / before
        why = f"{shared} query heads share a KV head; without it the KV cache would be {larger:.3g} times as large"
        if not without.sequences:
            return LeverRefusal("in use", f"{why}, and no such sequence would fit.")
        return LeverRefusal("in use", f"{why}.", Effect("a KV head for each query head", without))
    tp = scenario.setup.tp
    changed = scenario.having(shape=_with_attention(scenario.shape, lambda _, kind: _with_groups(kind, GROUP, tp)))
    after = kv_bytes_per_token(changed.shape, changed.setup)
    return Effect(f"{size(before)} → {size(after)} of KV cache per token and device", changed)


def _with_groups(kind: Attention, group: int, tp: int) -> Attention:
    """Attention with at most ``group`` query heads for each KV head, and KV heads that ``tp`` devices can share."""
    if not isinstance(kind, GroupedAttention):
        return kind
    even = [each for each in range(1, group + 1) if kind.heads % each == 0]
    largest = max((each for each in even if (kind.heads // each) % tp == 0), default=1)
    return replace(kind, kv_heads=kind.heads // largest)


def _with_window(kind: Attention, window: int | None) -> Attention:
    return kind if isinstance(kind, RecurrentAttention) else replace(kind, window=window)


def _window(scenario: UniformScenario, _now: Prediction, _given: Assumptions) -> Effect | LeverRefusal:
    windows = {layer.attention.window for _, layer in scenario.shape.runs} - {None}
    if windows:
        without = scenario.having(shape=_with_attention(scenario.shape, lambda _, kind: _with_window(kind, None)))
        before, after = without.kv_bytes(scenario.case.halfway), scenario.kv_bytes(scenario.case.halfway)
        width = min(window for window in windows if window is not None)
        why = f"Layers attend to {width:,} positions: {size(after)} of KV cache per sequence instead of {size(before)}."
        if not without.sequences:
            return LeverRefusal("in use", why)
        return LeverRefusal("in use", why, Effect("no windows", without))
    if scenario.case.halfway <= WINDOW:
        return LeverRefusal(
            "cannot", f"A context of {scenario.case.halfway:,} tokens is no longer than a window of {WINDOW:,}."
        )
    changed = scenario.having(
        shape=_with_attention(
            scenario.shape, lambda i, kind: kind if i % WINDOWED == WINDOWED - 1 else _with_window(kind, WINDOW)
        )
    )
    before, after = scenario.kv_bytes(scenario.case.halfway), changed.kv_bytes(scenario.case.halfway)
    return Effect(
        f"{WINDOWED - 1} of {WINDOWED} layers attend to {WINDOW:,} positions",
        changed,
        f"KV cache per sequence and device: {size(before)} → {size(after)}.",
    )


def _family(name: str) -> str:
    return _SIZE.sub("", name).lower().replace("-", "")


def _smaller_model(scenario: UniformScenario, _now: Prediction, _given: Assumptions) -> Effect | LeverRefusal:
    """The largest model of the same family with at most 0.6 of the parameters, or else of any family."""
    current = scenario.shape
    active, stem = parameters(current).active, _family(current.name)
    smaller = {
        name: own.active
        for name, shape in known_shapes().items()
        if (own := parameters(shape)).active <= LARGEST_SHARE * active and shape.context_length >= scenario.case.halfway
    }
    family = {name: size for name, size in smaller.items() if _family(name) == stem}
    found = family or smaller
    if not found:
        return LeverRefusal("cannot", "No known model is much smaller and supports this context length.")
    name = max(found, key=lambda each: found[each])
    try:
        changed = scenario.having(shape=known_shapes()[name].stored_as(scenario.weights))
        changed.setup.check(changed.shape)
    except ParameterError:
        return LeverRefusal("cannot", f"{name} cannot be split across this many devices.")
    why = f"{scaled(active).strip()} → {scaled(found[name]).strip()} active parameters in the layers."
    return Effect(f"{current.name} → {name}", changed, why)


def _weights(wide: ValueFormat, packed: str) -> ApplyLever:
    """Weights in ``wide``, which GPUs convert before multiplying; on CPUs in GGUF's ``packed``, multiplied as codes."""

    def apply(scenario: UniformScenario, _now: Prediction, _given: Assumptions) -> Effect | LeverRefusal:
        codes = scenario.predictor.machine.kind == "cpu" or scenario.weights.arithmetic == "int8"
        form = VALUE_FORMATS[packed] if codes else wide
        changed = scenario.having(shape=scenario.shape.stored_as(form))
        before, after = scenario.weight_bytes, changed.weight_bytes
        if after > ENOUGH * before:
            return LeverRefusal(
                "in use", f"The weights are {scenario.weights.name}, which is not larger than {form.name}."
            )
        return Effect(f"{scenario.weights.name} → {form.name}, {size(before)} → {size(after)} per device", changed)

    return apply


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


def _larger_batch(scenario: UniformScenario, now: Prediction, _given: Assumptions) -> Effect | LeverRefusal:
    room, open_now = scenario.sequences, scenario.case.concurrency
    if now.batch >= room:
        return LeverRefusal("cannot", f"{room:,} such sequences fit in memory, and as many are running.")
    more = min(2 * open_now, room)
    by, machine = scenario.predictor.constants, scenario.predictor.machine
    knee = knee_rows(machine, scenario.weights, compute_efficiency=by.eta_c, memory_efficiency=by.eta_m)
    bound = "Rows share one read of the weights" if more < knee else "Matrix products are limited by arithmetic"
    return Effect(
        f"concurrency {open_now} → {more}",
        scenario.having(case=replace(scenario.case, concurrency=more)),
        f"{bound} (up to {knee:,.0f} rows). {room:,} sequences fit in memory.",
    )


def _smaller_batch(scenario: UniformScenario, _now: Prediction, _given: Assumptions) -> Effect | LeverRefusal:
    open_now = scenario.case.concurrency
    if open_now == 1:
        return LeverRefusal("cannot", "Concurrency is 1.")
    fewer = open_now // 2
    return Effect(f"concurrency {open_now} → {fewer}", scenario.having(case=replace(scenario.case, concurrency=fewer)))


def _chunked_prefill(scenario: UniformScenario, now: Prediction, _given: Assumptions) -> Effect | LeverRefusal:
    case = scenario.case
    whole = scenario.having(case=replace(case, chunk=None))
    if case.chunk is not None and case.chunk < scenario.case.fresh:
        then, is_now = whole.longest_gap(now.batch), scenario.longest_gap(now.batch)
        why = f"No step computes more than {case.chunk:,} rows: the longest gap is {duration(is_now)}"
        why += f", and {duration(then)} with whole prompts." if now.batch > 1 else "."
        return LeverRefusal("in use", why, Effect("whole prompts in one step", whole))
    if now.batch == 1:
        return LeverRefusal("cannot", "Concurrency is 1: no other request waits for its prefill.")
    if scenario.case.fresh <= CHUNK:
        return LeverRefusal("cannot", f"{scenario.case.fresh:,} prompt tokens fit in one chunk of {CHUNK}.")
    changed = scenario.having(case=replace(case, chunk=CHUNK))
    gap = f"{duration(scenario.longest_gap(now.batch))} → {duration(changed.longest_gap(now.batch))}"
    return Effect(f"{scenario.case.fresh:,} → {CHUNK} rows a step", changed, f"Longest gap between two tokens: {gap}.")


def _shard(scenario: UniformScenario, now: Prediction, _given: Assumptions) -> Effect | LeverRefusal:
    before = scenario.setup.tp
    try:
        changed = scenario.having(setup=replace(scenario.setup, tp=2 * before))
        after = changed.prediction
    except ParameterError as error:
        return LeverRefusal("cannot", str(error))
    links = after.decode.links / after.decode.seconds
    why = f"Each device reads half as much; communication is {share(round(links, 3))} of a decode step."
    if after.tpot > now.tpot:
        why = f"Communication and overhead cost more than is saved. {why}"
    return Effect(f"{before} → {2 * before} devices", changed, why)


def _disaggregate(scenario: UniformScenario, now: Prediction, given: Assumptions) -> Effect | LeverRefusal:
    """Prefill on separate machines, as in Splitwise (Patel et al. 2024) and DistServe (Zhong et al. 2024).

    Prompts arrive there at random, and queue for machines that are busy for the assumed share of the time.
    """
    machine = scenario.predictor.machine
    link = machine.host_link or machine.link
    if now.batch == 1:
        return LeverRefusal("cannot", "Concurrency is 1: no other prompt is in the same steps.")
    if link is None:
        return LeverRefusal("cannot", f"The network bandwidth of {machine.name} is not known.")
    moved = scenario.kv_bytes(scenario.case.prompt)
    first = float(scenario.predictor.constants.t_first)
    prefill_s = now.prefill.seconds
    wait = Queue(given.busy / prefill_s, prefill_s, prefill_s**2).mean_wait
    ttft = first + wait + prefill_s + moved / link
    after = retimed(now, ttft=ttft, tpot=now.tpot - now.interference, interference=0.0)
    prefilling = now.batch / (after.e2e - after.queue) * prefill_s / given.busy
    devices = scenario.setup.tp * (1 + prefilling)
    why = (
        f"{size(moved)} of KV cache per prompt and device take {duration(moved / link)} at {scaled(link)}B/s. "
        f"Each decode machine needs {prefilling:.2f} prefill machines."
    )
    return Effect("prefill on separate machines", scenario, why, after, devices)


def _flash_attention(scenario: UniformScenario, now: Prediction, _given: Assumptions) -> LeverRefusal:
    """Always in use: the cost model counts no memory traffic of attention scores."""
    case = scenario.case
    pairs = sum(rows.new * (rows.cached + rows.new) for rows in case.chunks())
    heads = sum(
        number * layer.attention.heads
        for number, layer in scenario.shape.runs
        if not isinstance(layer.attention, RecurrentAttention)
    )
    moved = SCORE_PASSES * SCORE_BYTES * heads // scenario.setup.tp * pairs
    machine, by = scenario.predictor.machine, scenario.predictor.constants
    extra = moved / (machine.bandwidth * by.eta_k)
    longer = 1 + extra / now.prefill.seconds
    without = retimed(
        now,
        ttft=now.ttft - now.queue + extra,
        tpot=now.tpot + (now.batch - 1) / case.output * extra,
    )
    why = (
        f"Without it {size(moved)} of attention scores per device would go through memory, and prefill would take "
        f"{longer:.2f} times as long."
    )
    if longer < 1.05:
        why += f" At {case.prompt:,} tokens attention is only a small part of prefill."
    return LeverRefusal("in use", why, Effect("scores through memory", scenario, "", without))


def _shorter_output(scenario: UniformScenario, _now: Prediction, _given: Assumptions) -> Effect | LeverRefusal:
    if not scenario.further:
        return LeverRefusal("cannot", "The output has one token.")
    half = scenario.case.output // 2
    return Effect(
        f"{scenario.case.output:,} → {half:,} tokens", scenario.having(case=replace(scenario.case, output=half))
    )


def _streaming(scenario: UniformScenario, now: Prediction, _given: Assumptions) -> Effect | LeverRefusal:
    if not scenario.further:
        return LeverRefusal("cannot", "The output has one token.")
    why = f"Text appears after {duration(now.ttft)} instead of {duration(now.e2e)}."
    return Effect("tokens are sent as they are generated", scenario, why, felt=True)


LEVERS: Final = (
    *SERVING_LEVERS,
    Lever("batch", ("queue",), "a higher TPOT, and memory for the KV cache of each sequence", _larger_batch),
    Lever("smaller batch", ("decode", "stalls"), "throughput, thus money", _smaller_batch),
    Lever(
        "chunked prefill",
        ("stalls",),
        "a slightly higher TTFT of the prompt itself; mean TPOT does not change",
        _chunked_prefill,
    ),
    Lever("tensor parallelism", ("prefill", "decode"), "twice the devices, and communication in each layer", _shard),
    Lever("disaggregation", ("stalls",), "machines for prefill, and transfers of the KV cache", _disaggregate),
    Lever("weights INT8", ("decode",), "almost no quality; the weights must be converted", _weights(INT8, "q8_0")),
    Lever("weights INT4", ("decode",), "some quality, more in small models", _weights(INT4, "q4_0")),
    Lever(
        "8-bit arithmetic",
        ("prefill", "decode", "stalls"),
        "a little quality, since activations are quantized too; needs calibrated scales",
        _narrow_arithmetic,
    ),
    Lever("flash attention", ("prefill",), "nothing", _flash_attention),
    Lever("shorter output", ("decode", "stalls"), "content of the completion", _shorter_output),
    Lever("streaming", ("decode",), "nothing; a proxy in between must not buffer", _streaming),
    # These need another model.
    Lever(
        "GQA",
        ("decode", "queue"),
        "a model trained with it (converting one takes 5% of its training), and a little quality",
        _grouped_heads,
    ),
    Lever("window", ("decode", "prefill", "queue"), "a model trained with it, and recall of distant context", _window),
    Lever("smaller model", ("prefill", "decode", "stalls"), "quality", _smaller_model),
)
"""All levers: on how requests run together, formats, prompts and completions, and the model."""
