"""Levers on how requests run together: batch, chunks, speculation, more devices, prefill elsewhere."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from twofold.bench.draw.form import duration, share
from twofold.core.errors import ParameterError
from twofold.core.model import RecurrentAttention
from twofold.core.units import count
from twofold.planner.count.crossover import knee_rows
from twofold.planner.explain.levers.base import Assumptions, Effect, Lever, LeverRefusal
from twofold.planner.explain.scenario import UniformScenario, retimed
from twofold.planner.explain.words import factor, scaled, size
from twofold.planner.predict.queueing import Queue
from twofold.planner.predict.request import Prediction
from twofold.planner.predict.speculation import check_ratio, min_acceptance, speed_up

CHUNK: Final = 512
"""Rows of a step: the default of engines."""


def _batch(scenario: UniformScenario, now: Prediction, _given: Assumptions) -> Effect | LeverRefusal:
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
        return LeverRefusal("in use", "Concurrency is 1.")
    fewer = open_now // 2
    return Effect(f"concurrency {open_now} → {fewer}", scenario.having(case=replace(scenario.case, concurrency=fewer)))


def _chunks(scenario: UniformScenario, now: Prediction, _given: Assumptions) -> Effect | LeverRefusal:
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


def _draft(scenario: UniformScenario, now: Prediction, given: Assumptions) -> Effect | LeverRefusal:
    if not scenario.further:
        return LeverRefusal("cannot", "The only output token comes from prefill.")
    turns = {
        guesses: check_ratio(
            scenario.predictor.steps, scenario.predictor.constants, now.batch, scenario.case.halfway, guesses
        )
        for guesses in range(1, given.max_drafted + 1)
    }
    speeds = {guesses: speed_up(given.acceptance, guesses, given.draft, check) for guesses, check in turns.items()}
    guesses = max(speeds, key=lambda each: speeds[each])
    speed, check = speeds[guesses], turns[guesses]
    after = retimed(
        now,
        ttft=now.ttft - now.queue + given.draft * now.prefill.seconds,
        tpot=(now.tpot - now.interference) / speed + now.interference,
    )
    needed = min_acceptance(given.draft, turns[1])
    pays = f"Pays off above an acceptance rate of {share(max(0.0, needed))}." if needed < 1 else "It never pays off."
    why = f"Verifying {count(guesses, 'draft token')} takes {check:.2f} steps. {pays}"
    what = (
        f"{guesses} draft tokens per step, {share(given.acceptance)} accepted, each at {share(given.draft)} of a step"
    )
    return Effect(f"{what}: decode {factor(speed)}", scenario, why, after)


def _split(scenario: UniformScenario, now: Prediction, _given: Assumptions) -> Effect | LeverRefusal:
    before = scenario.how.tp
    try:
        changed = scenario.having(how=replace(scenario.how, tp=2 * before))
        after = changed.prediction
    except ParameterError as error:
        return LeverRefusal("cannot", str(error))
    links = after.decode.links / after.decode.seconds
    why = f"Each device reads half as much; communication is {share(round(links, 3))} of a decode step."
    if after.tpot > now.tpot:
        why = f"Communication and overhead cost more than is saved. {why}"
    return Effect(f"{before} → {2 * before} devices", changed, why)


def _disaggregate(scenario: UniformScenario, now: Prediction, given: Assumptions) -> Effect | LeverRefusal:
    """Splitwise (Patel et al. 2024), DistServe (Zhong et al. 2024): no prompt in the steps of a decoding machine.

    Prompts come at random to machines that are busy for a given share of time, and wait there in a queue.
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
    devices = scenario.how.tp * (1 + prefilling)
    why = (
        f"{size(moved)} of KV cache per prompt and device take {duration(moved / link)} at {scaled(link)}B/s. "
        f"Each decode machine needs {prefilling:.2f} prefill machines."
    )
    return Effect("prefill on separate machines", scenario, why, after, devices)


SCORE_BYTES: Final = 2
SCORE_PASSES: Final = 4
"""Scores are written, read by the softmax, written as probabilities and read again (Dao et al. 2022, algorithm 0)."""


def _cached(scenario: UniformScenario, given: Assumptions) -> tuple[int, UniformScenario]:
    more = int(scenario.case.fresh * given.shared)
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
        f"{more:,} of {scenario.case.fresh:,} fresh tokens from the cache",
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
        f"{more:,} of {scenario.case.fresh:,} fresh tokens back from host memory",
        changed,
        f"Reading {size(moved)} per device at {scaled(link)}B/s takes {duration(moved / link)}, {verdict} than "
        f"computing them ({duration(computed)}). Only for prefixes that do not fit in device memory.",
        after,
    )


def _squeeze(scenario: UniformScenario, _now: Prediction, given: Assumptions) -> Effect | LeverRefusal:
    left = max(1, round(scenario.case.fresh * given.keeps))
    if left == scenario.case.fresh:
        return LeverRefusal("cannot", "Only one prompt token is computed, which is the minimum.")
    changed = scenario.having(case=replace(scenario.case, prompt=scenario.case.cached + left))
    cached = "The cached part is not compressed, since a compressed prompt would not match the cache." * bool(
        scenario.case.cached
    )
    return Effect(f"{scenario.case.fresh:,} → {left:,} fresh tokens", changed, cached)


def _flash(scenario: UniformScenario, now: Prediction, _given: Assumptions) -> LeverRefusal:
    """It is what the cost model counts: scores that never leave the chip."""
    case = scenario.case
    pairs = sum(rows.new * (rows.cached + rows.new) for rows in case.chunks())
    heads = sum(
        number * layer.attention.heads
        for number, layer in scenario.shape.runs
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


SERVING: Final = (
    Lever("batch", ("queue",), "a higher TPOT, and KV-cache memory for each sequence", _batch),
    Lever("smaller batch", ("decode", "stalls"), "throughput, thus money", _smaller_batch),
    Lever(
        "chunked prefill",
        ("stalls",),
        "a slightly higher TTFT of the prompt itself; mean TPOT does not change",
        _chunks,
    ),
    Lever("speculation", ("decode",), "memory for a draft model or a lookup, and compute for rejected tokens", _draft),
    Lever("tensor parallelism", ("prefill", "decode"), "twice the devices, and communication in each layer", _split),
    Lever("disaggregation", ("stalls",), "machines for prefill, and transfers of the KV cache", _disaggregate),
)
"""They need no other weights."""


PROMPTS: Final = (
    Lever("prefix cache", ("prefill", "stalls"), "memory for the cached blocks; prompts must share a prefix", _cache),
    Lever("offload", ("prefill", "stalls"), "host memory, and a transfer at each hit", _offload),
    Lever(
        "prompt compression",
        ("prefill", "stalls"),
        "quality, the compressor's time, and prefix-cache hits",
        _squeeze,
    ),
    Lever("flash attention", ("prefill",), "nothing", _flash),
    Lever("shorter output", ("decode", "stalls"), "content of the answer", _shorter),
    Lever("streaming", ("decode",), "nothing; a proxy in between must not buffer", _stream),
)
"""They change prompts and completions, or how a prompt is computed."""
