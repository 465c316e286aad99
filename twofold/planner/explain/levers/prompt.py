"""Levers on prompts and answers: prefix cache, offload, compression, flash attention; streaming, shorter answers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from twofold.bench.draw.form import duration
from twofold.core.model import RecurrentAttention
from twofold.planner.explain.levers.base import Assumptions, Effect, Lever, LeverRefusal
from twofold.planner.explain.scenario import UniformScenario, retimed
from twofold.planner.explain.words import scaled, size
from twofold.planner.predict.request import Prediction

SCORE_BYTES: Final = 2
SCORE_PASSES: Final = 4
"""Scores are written, read by the softmax, written as probabilities and read again (Dao et al. 2022, algorithm 0)."""


def prompt_levers() -> Iterator[Lever]:
    """Those that change what is asked and answered, or how a prompt is computed."""
    yield Lever(
        "prefix cache", ("prefill", "stalls"), "memory for the cached blocks; prompts must share a prefix", _cache
    )
    yield Lever("offload", ("prefill", "stalls"), "host memory, and a transfer at each hit", _offload)
    yield Lever(
        "prompt compression",
        ("prefill", "stalls"),
        "quality, the compressor's time, and prefix-cache hits",
        _squeeze,
    )
    yield Lever("flash attention", ("prefill",), "nothing", _flash)
    yield Lever("shorter output", ("decode", "stalls"), "content of the answer", _shorter)
    yield Lever("streaming", ("decode",), "nothing; a proxy in between must not buffer", _stream)


def _cached(scenario: UniformScenario, given: Assumptions) -> tuple[int, UniformScenario]:
    more = int(scenario.fresh * given.shared)
    case = replace(scenario.case, cached=scenario.case.cached + more)
    return more, scenario.having(case=case)


def _cache(scenario: UniformScenario, now: Prediction, given: Assumptions) -> Effect | LeverRefusal:
    more, changed = _cached(scenario, given)
    if not more:
        return LeverRefusal("cannot", "Only one prompt token is computed, which is the minimum.")
    saved = now.prefill.seconds - changed.prediction.prefill.seconds
    had = f"{scenario.case.cached:,} tokens are cached already. " if scenario.case.cached else ""
    kept = scenario.kv_bytes(changed.case.cached)
    return Effect(
        f"{more:,} of {scenario.fresh:,} fresh tokens from the cache",
        changed,
        f"{had}{duration(saved)} of prefill per prompt is saved; the cache takes {size(kept)} per device.",
    )


def _offload(scenario: UniformScenario, now: Prediction, given: Assumptions) -> Effect | LeverRefusal:
    link = scenario.predictor.machine.host_link
    if link is None:
        return LeverRefusal(
            "cannot", f"The bandwidth between {scenario.predictor.machine.name} and host memory is not known."
        )
    more, changed = _cached(scenario, given)
    if not more:
        return LeverRefusal("cannot", "Only one prompt token is computed, which is the minimum.")
    moved = scenario.kv_bytes(changed.case.cached) - scenario.kv_bytes(scenario.case.cached)
    found = changed.prediction
    after = retimed(found, ttft=found.ttft - found.queue + moved / link, tpot=found.tpot)
    computed = now.prefill.seconds - found.prefill.seconds
    verdict = "faster" if moved / link < computed else "slower"
    return Effect(
        f"{more:,} of {scenario.fresh:,} fresh tokens back from host memory",
        changed,
        f"Reading {size(moved)} per device at {scaled(link)}B/s takes {duration(moved / link)}, {verdict} than "
        f"computing them ({duration(computed)}). Only for prefixes that do not fit in device memory.",
        after,
    )


def _squeeze(scenario: UniformScenario, _now: Prediction, given: Assumptions) -> Effect | LeverRefusal:
    left = max(1, round(scenario.fresh * given.keeps))
    if left == scenario.fresh:
        return LeverRefusal("cannot", "Only one prompt token is computed, which is the minimum.")
    changed = scenario.having(case=replace(scenario.case, prompt=scenario.case.cached + left))
    cached = "The cached part is not compressed, since a compressed prompt would not match the cache." * bool(
        scenario.case.cached
    )
    return Effect(f"{scenario.fresh:,} → {left:,} fresh tokens", changed, cached)


def _flash(scenario: UniformScenario, now: Prediction, _given: Assumptions) -> LeverRefusal:
    """It is what the cost model counts: scores that never leave the chip."""
    case, chunk = scenario.case, scenario.case.chunk or scenario.fresh
    ends = [min(start + chunk, case.prompt) for start in range(case.cached, case.prompt, chunk)]
    starts = [case.cached, *ends[:-1]]
    pairs = sum((end - start) * end for start, end in zip(starts, ends, strict=True))
    heads = sum(
        count * layer.attention.heads
        for count, layer in scenario.shape.runs
        if not isinstance(layer.attention, RecurrentAttention)
    )
    moved = SCORE_PASSES * SCORE_BYTES * heads // scenario.how.tp * pairs
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


def _shorter(scenario: UniformScenario, _now: Prediction, _given: Assumptions) -> Effect | LeverRefusal:
    if not scenario.further:
        return LeverRefusal("cannot", "The output has one token.")
    half = scenario.case.output // 2
    return Effect(
        f"{scenario.case.output:,} → {half:,} tokens", scenario.having(case=replace(scenario.case, output=half))
    )


def _stream(scenario: UniformScenario, now: Prediction, _given: Assumptions) -> Effect | LeverRefusal:
    if not scenario.further:
        return LeverRefusal("cannot", "The output has one token.")
    why = f"Text appears after {duration(now.ttft)} instead of {duration(now.e2e)}."
    return Effect("tokens are sent as they are generated", scenario, why, felt=now.e2e / now.ttft)
