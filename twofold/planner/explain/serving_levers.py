"""Levers of the server alone, which need no other model or machine: drafts, keys and values in fewer bytes, prompts
from a cache or a store, layer-wise keys and values, and shorter prompts."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from twofold.bench.draw.form import duration, share
from twofold.core.errors import ParameterError
from twofold.core.kv_layout import K8V4, Q8
from twofold.core.model import ModelSpec
from twofold.core.units import count
from twofold.core.values import ValueFormat
from twofold.planner.count.memory import parameters
from twofold.planner.count.step import SequenceRows
from twofold.planner.explain.lever import ENOUGH, ApplyLever, Assumptions, Effect, Lever, LeverRefusal
from twofold.planner.explain.scenario import UniformScenario, retimed
from twofold.planner.explain.words import factor, scaled, size
from twofold.planner.predict.request import DIGEST, Prediction
from twofold.planner.predict.speculation import ACCEPTANCE, best_turn, check_ratio, draft_ratio, min_acceptance
from twofold.planner.predict.steps import StepPredictor
from twofold.planner.shapes.known import known_shapes

DRAFT_SHARE: Final = 0.4
"""Maximum share of a model's active parameters that a draft model or a scorer has."""
ONE_FRESH: Final = LeverRefusal("cannot", "Only one prompt token is computed, which is the minimum.")


def draft_for(model: ModelSpec) -> ModelSpec | None:
    """The smallest known model of the same maker and vocabulary, if it is much smaller."""
    most = DRAFT_SHARE * parameters(model).active
    maker = model.name.lower().split("-", maxsplit=1)[0].rstrip("0123456789.")
    fitting = {
        parameters(each).active: each
        for name, each in known_shapes().items()
        if each.vocab_size == model.vocab_size and name.startswith(maker) and parameters(each).active <= most
    }
    return fitting[min(fitting)] if fitting else None


def scorer_for(model: ModelSpec) -> ModelSpec:
    """The smallest known model, or the model itself if that is not much smaller: a scorer reads text."""
    smallest = min(known_shapes().values(), key=lambda each: parameters(each).active)
    return smallest if parameters(smallest).active <= DRAFT_SHARE * parameters(model).active else model


def _lookup(scenario: UniformScenario, now: Prediction, given: Assumptions) -> Effect | LeverRefusal:
    """Drafts that are looked up in the text: drafting costs nothing."""
    acceptance = given.acceptance or float(ACCEPTANCE[given.text].lookup)
    return _drafts(scenario, now, given, acceptance, given.draft or 0.0, f"looked up in the text ({given.text})")


def _draft_model(scenario: UniformScenario, now: Prediction, given: Assumptions) -> Effect | LeverRefusal:
    draft = draft_for(scenario.shape)
    if draft is None:
        return LeverRefusal("cannot", "No known model with this vocabulary is much smaller.")
    acceptance = given.acceptance or float(ACCEPTANCE[given.text].model)
    try:
        draft = draft.stored_as(scenario.weights)
        steps, by = scenario.predictor.steps, scenario.predictor.constants
        cost = draft_ratio(steps, draft, by, now.batch, scenario.case.halfway) if given.draft is None else given.draft
    except ParameterError as error:
        return LeverRefusal("cannot", str(error))
    return _drafts(scenario, now, given, acceptance, cost, f"of {draft.name} ({given.text})")


def _drafts(
    scenario: UniformScenario, now: Prediction, given: Assumptions, acceptance: float, cost: float, source: str
) -> Effect | LeverRefusal:
    if not scenario.further:
        return LeverRefusal("cannot", "The only output token comes from prefill.")
    steps, by, context = scenario.predictor.steps, scenario.predictor.constants, scenario.case.halfway
    found = best_turn(steps, by, now.batch, context, acceptance, draft=cost, most=given.max_drafted)
    needed = max(0.0, min_acceptance(cost, check_ratio(steps, by, now.batch, context, 1)))
    if not found.drafts:
        limit = f"a draft token pays off above {share(needed)}" if needed < 1 else "no draft token pays off"
        return LeverRefusal("cannot", f"{share(acceptance)} of drafts {source} are right, and {limit}: none is made.")
    after = retimed(
        now,
        ttft=now.ttft - now.queue + cost * now.prefill.seconds,
        tpot=(now.tpot - now.interference) / found.speed + now.interference,
    )
    why = f"Verifying {count(found.drafts, 'draft token')} takes {found.check:.2f} steps. "
    why += f"Pays off above an acceptance rate of {share(needed)}."
    each = f", each at {share(cost)} of a step" if cost else ""
    what = f"{count(found.drafts, 'draft token')} per step {source}, {share(acceptance)} accepted{each}"
    return Effect(f"{what}: decode {factor(found.speed)}", scenario, why, after)


def _kv_format(form: ValueFormat) -> ApplyLever:
    def apply(scenario: UniformScenario, _now: Prediction, _given: Assumptions) -> Effect | LeverRefusal:
        changed = scenario.having(setup=replace(scenario.setup, kv=form))
        context = scenario.case.halfway
        before, after = scenario.kv_bytes(context), changed.kv_bytes(context)
        if after > ENOUGH * before:
            return LeverRefusal(
                "in use", f"The KV cache is {scenario.setup.kv.name}, which is not larger than {form.name}."
            )
        then, now = scenario.sequences, changed.sequences
        return Effect(
            f"{scenario.setup.kv.name} → {form.name}, {size(before)} → {size(after)} per sequence and device",
            changed,
            f"{now:,} such sequences fit in memory instead of {then:,}." if now > then else "",
        )

    return apply


def _findable(scenario: UniformScenario, given: Assumptions) -> int:
    return int(scenario.case.fresh * given.shared)


def _cache(scenario: UniformScenario, now: Prediction, given: Assumptions) -> Effect | LeverRefusal:
    case, more = scenario.case, _findable(scenario, given)
    if not more:
        return ONE_FRESH
    changed = scenario.having(case=replace(case, cached=case.cached + more))
    saved = now.prefill.seconds - changed.prediction.prefill.seconds
    had = f"{case.cached:,} tokens are cached already. " if case.cached else ""
    kept = scenario.kv_bytes(changed.case.cached)
    return Effect(
        f"{more:,} of {case.fresh:,} fresh tokens from the cache",
        changed,
        f"{had}{duration(saved)} of prefill per prompt is saved; the cache takes {size(kept)} per device.",
    )


def _store(scenario: UniformScenario, now: Prediction, given: Assumptions) -> Effect | LeverRefusal:
    """The prefix cache on disk: what it saves after a restart, and where the memory has forgotten."""
    case, more = scenario.case, _findable(scenario, given)
    if not more:
        return ONE_FRESH
    changed = scenario.having(case=replace(case, loaded=case.loaded + more))
    load_s = changed.prediction.load - now.load
    saved = now.prefill.seconds - changed.prediction.prefill.seconds
    disk = scenario.predictor.machine.disk
    moved = load_s / (1 / disk + 1 / DIGEST)
    words = f"loading {size(moved)} at {scaled(disk)}B/s, verified at {scaled(DIGEST)}B/s, takes {duration(load_s)}"
    if load_s >= saved:
        return LeverRefusal("cannot", f"{words[0].upper()}{words[1:]}, and computing it {duration(saved)}.")
    return Effect(
        f"{more:,} of {case.fresh:,} fresh tokens from a store on disk",
        changed,
        f"After a restart {words} instead of {duration(saved)}.",
    )


def _offload(scenario: UniformScenario, now: Prediction, given: Assumptions) -> Effect | LeverRefusal:
    case, link = scenario.case, scenario.predictor.machine.host_link
    if link is None:
        return LeverRefusal(
            "cannot", f"The bandwidth between {scenario.predictor.machine.name} and host memory is not known."
        )
    more = _findable(scenario, given)
    if not more:
        return ONE_FRESH
    changed = scenario.having(case=replace(case, cached=case.cached + more))
    moved = scenario.kv_bytes(changed.case.cached) - scenario.kv_bytes(case.cached)
    found = changed.prediction
    after = retimed(found, ttft=found.ttft - found.queue + moved / link, tpot=found.tpot)
    computed = now.prefill.seconds - found.prefill.seconds
    verdict = "faster" if moved / link < computed else "slower"
    return Effect(
        f"{more:,} of {case.fresh:,} fresh tokens back from host memory",
        changed,
        f"Reading {size(moved)} per device at {scaled(link)}B/s takes {duration(moved / link)}, {verdict} than "
        f"computing them ({duration(computed)}). Only for prefixes that do not fit in device memory.",
        after,
    )


def _layer_kv(scenario: UniformScenario, now: Prediction, _given: Assumptions) -> Effect | LeverRefusal:
    """Xiong et al. 2024: the first token no longer waits for memory. The second does, for as long: TPOT pays for it."""
    machine = scenario.predictor.machine
    if machine.host_link is None:
        return LeverRefusal(
            "cannot", f"{machine.name} has one memory with its host: moving keys and values frees none."
        )
    if not now.queue:
        return LeverRefusal("cannot", "All open requests fit in memory: no prompt waits for it.")
    if not scenario.further:
        return LeverRefusal("cannot", "The output has one token, after which its memory is free.")
    moved = scenario.kv_bytes(scenario.case.prompt) / machine.host_link
    late = max(0.0, moved - now.prefill.seconds)
    wait = now.queue / scenario.further
    after = replace(
        now, ttft=now.ttft - now.queue + late, tpot=now.tpot + wait, interference=now.interference + wait, queue=0.0
    )
    return Effect(
        "prompts computed layer by layer, with their keys and values in host memory",
        scenario,
        f"The wait of {duration(now.queue)} for memory follows the first token instead of preceding it; moving the "
        f"keys and values of a prompt takes {duration(moved)} each way.",
        after,
        felt=True,
    )


def _compress(scenario: UniformScenario, now: Prediction, given: Assumptions) -> Effect | LeverRefusal:
    """Every fresh token is scored once, by a model on the same devices, before the shorter prompt is computed."""
    case = scenario.case
    left = max(1, round(case.fresh * given.keeps))
    if left == case.fresh:
        return ONE_FRESH
    scorer = given.scorer or scorer_for(scenario.shape)
    changed = scenario.having(case=replace(case, prompt=case.cached + case.loaded + left))
    cost = _scoring_s(scenario, scorer)
    saved = now.prefill.seconds - changed.prediction.prefill.seconds
    words = f"scoring {case.fresh:,} tokens by {scorer.name} takes {duration(cost)}"
    if cost >= saved:
        return LeverRefusal(
            "cannot", f"{words[0].upper()}{words[1:]}, and the shorter prompt saves {duration(saved)} of prefill."
        )
    found = changed.prediction
    after = retimed(found, ttft=found.ttft - found.queue + cost, tpot=found.tpot)
    why = f"{words[0].upper()}{words[1:]}, of {duration(saved)} saved."
    if case.cached:
        why += " The cached part is not compressed, since a compressed prompt would not match the cache."
    return Effect(f"{case.fresh:,} → {left:,} fresh tokens", changed, why, after)


def _scoring_s(scenario: UniformScenario, scorer: ModelSpec) -> float:
    """Seconds in which the scorer, on one device, computes the fresh tokens with logits for each."""
    predictor = scenario.predictor
    own = scenario.shape == scorer
    setup = predictor.setup if own else replace(predictor.setup, tp=1, ep=1)
    steps = predictor.steps if own else StepPredictor.of(scorer, predictor.machine, setup)
    chunk = scenario.case.chunk or scenario.case.fresh
    spans = (
        SequenceRows(min(chunk, scenario.case.fresh - start), start, min(chunk, scenario.case.fresh - start))
        for start in range(0, scenario.case.fresh, chunk)
    )
    return sum(steps.demand([(1, span)]).seconds(predictor.constants) for span in spans)


SERVING_LEVERS: Final = (
    Lever("speculation", ("decode",), "computing rejected tokens", _lookup),
    Lever("draft model", ("decode",), "memory for the draft model, and computing rejected tokens", _draft_model),
    Lever("KV q8", ("decode", "queue"), "almost no quality", _kv_format(Q8)),
    Lever("KV k8v4", ("decode", "queue"), "a little quality", _kv_format(K8V4)),
    Lever("prefix cache", ("prefill", "stalls"), "memory for the cached blocks; prompts must share a prefix", _cache),
    Lever("KV store", ("prefill", "stalls"), "disk space; prompts must share a prefix that was written", _store),
    Lever("offload", ("prefill", "stalls"), "host memory, and a transfer at each hit", _offload),
    Lever("LayerKV", ("queue",), "TPOT, by as much as the first token gains", _layer_kv),
    Lever(
        "prompt compression", ("prefill", "stalls"), "quality, the compressor's time, and prefix-cache hits", _compress
    ),
)
