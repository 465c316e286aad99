"""Levers on how requests run together: batch, chunks, speculation, more devices, prefill elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from twofold.bench.draw.form import duration, share
from twofold.core.errors import ParameterError
from twofold.planner.count.crossover import knee_rows
from twofold.planner.explain.levers.base import Assumptions, Effect, Lever, LeverRefusal
from twofold.planner.explain.scenario import UniformScenario, retimed
from twofold.planner.explain.words import count, factor, scaled, size
from twofold.planner.plan.queueing import Queue
from twofold.planner.predict.request import Prediction
from twofold.planner.predict.speculation import check_ratio, least_acceptance, speed_up

CHUNK: Final = 512
"""Rows of a step: what engines take if not told otherwise."""


def serving_levers() -> Iterator[Lever]:
    """Those that need no other weights."""
    yield Lever("batch", ("queue",), "each token takes longer, and each sequence needs its keys and values", _batch)
    yield Lever("smaller batch", ("decode", "stalls"), "tokens a second, so money", _smaller_batch)
    yield Lever(
        "chunked prefill", ("stalls",), "the prompt's own first token, a little; mean TPOT stays as it is", _chunks
    )
    yield Lever(
        "speculation", ("decode",), "a draft model's memory or a lookup; computes tokens that are thrown away", _draft
    )
    yield Lever("tensor parallelism", ("prefill", "decode"), "twice the devices, and messages in each layer", _split)
    yield Lever(
        "disaggregation", ("stalls",), "machines that only prefill, and keys and values on the way", _disaggregate
    )


def _batch(scenario: UniformScenario, now: Prediction, _given: Assumptions) -> Effect | LeverRefusal:
    room, open_now = scenario.room.sequences, scenario.case.concurrency
    if now.batch >= room:
        return LeverRefusal("cannot", f"One device's memory holds {room:,} such sequences, and as many run.")
    more = min(2 * open_now, room)
    by, machine = scenario.predictor.constants, scenario.predictor.machine
    knee = knee_rows(machine, scenario.weights, compute_efficiency=by.eta_c, memory_efficiency=by.eta_m)
    bound = "Rows share one reading of the weights" if more < knee else "Matrices are bound by arithmetic"
    return Effect(
        f"{open_now} → {more} at a time",
        scenario.having(case=replace(scenario.case, concurrency=more)),
        f"{bound}: the knee is at {knee:,.0f} rows. Memory holds {room:,} sequences.",
    )


def _smaller_batch(scenario: UniformScenario, _now: Prediction, _given: Assumptions) -> Effect | LeverRefusal:
    open_now = scenario.case.concurrency
    if open_now == 1:
        return LeverRefusal("in use", "It runs alone.")
    fewer = open_now // 2
    return Effect(f"{open_now} → {fewer} at a time", scenario.having(case=replace(scenario.case, concurrency=fewer)))


def _chunks(scenario: UniformScenario, now: Prediction, _given: Assumptions) -> Effect | LeverRefusal:
    case = scenario.case
    whole = scenario.having(case=replace(case, chunk=None))
    if case.chunk is not None and case.chunk < scenario.fresh:
        then, is_now = whole.longest_gap(now.batch), scenario.longest_gap(now.batch)
        why = f"No step computes more than {case.chunk:,} rows: the longest gap is {duration(is_now)}"
        why += f", and {duration(then)} with whole prompts." if now.batch > 1 else "."
        return LeverRefusal("in use", why, Effect("whole prompts in one step", whole))
    if now.batch == 1:
        return LeverRefusal("cannot", "It runs alone: nobody waits for its prompt.")
    if scenario.fresh <= CHUNK:
        return LeverRefusal("cannot", f"{scenario.fresh:,} rows of a prompt are no more than a chunk of {CHUNK}.")
    changed = scenario.having(case=replace(case, chunk=CHUNK))
    gap = f"{duration(scenario.longest_gap(now.batch))} → {duration(changed.longest_gap(now.batch))}"
    return Effect(f"{scenario.fresh:,} → {CHUNK} rows a step", changed, f"Longest gap between two tokens: {gap}.")


def _draft(scenario: UniformScenario, now: Prediction, given: Assumptions) -> Effect | LeverRefusal:
    if not scenario.further:
        return LeverRefusal("cannot", "There is one token, and the prompt's own steps give it.")
    turns = {
        guesses: check_ratio(
            scenario.predictor.steps, scenario.predictor.constants, now.batch, scenario.halfway, guesses
        )
        for guesses in range(1, given.most_drafted + 1)
    }
    speeds = {guesses: speed_up(given.acceptance, guesses, given.draft, check) for guesses, check in turns.items()}
    guesses = max(speeds, key=lambda each: speeds[each])
    speed, check = speeds[guesses], turns[guesses]
    after = retimed(
        now,
        ttft=now.ttft - now.queue + given.draft * now.prefill.seconds,
        tpot=(now.tpot - now.interference) / speed + now.interference,
    )
    needed = least_acceptance(given.draft, turns[1])
    pays = f"Pays where more than {share(max(0.0, needed))} of guesses are taken." if needed < 1 else "It never pays."
    why = f"Checking {count(guesses, 'guess')} takes {check:.2f} steps. {pays}"
    what = f"{guesses} guessed a step, {share(given.acceptance)} taken, each for {share(given.draft)} of a step"
    return Effect(f"{what}: decode {factor(speed)}", scenario, why, after)


def _split(scenario: UniformScenario, now: Prediction, _given: Assumptions) -> Effect | LeverRefusal:
    before = scenario.how.tp
    try:
        changed = scenario.having(how=replace(scenario.how, tp=2 * before))
        after = changed.prediction
    except ParameterError as error:
        return LeverRefusal("cannot", str(error))
    links = after.decode.links / after.decode.seconds
    why = f"Each device reads half as much; messages are {share(round(links, 3))} of a decode step."
    if after.tpot > now.tpot:
        why = f"Messages and what does not shrink cost more than is saved. {why}"
    return Effect(f"{before} → {2 * before} devices", changed, why)


def _disaggregate(scenario: UniformScenario, now: Prediction, given: Assumptions) -> Effect | LeverRefusal:
    """Splitwise (Patel et al. 2024), DistServe (Zhong et al. 2024): no prompt in the steps of a decoding machine.

    Prompts come at random to machines that are busy for a given share of time, and wait there in a queue.
    """
    machine = scenario.predictor.machine
    link = machine.host_link or machine.link
    if now.batch == 1:
        return LeverRefusal("cannot", "It runs alone: no other prompt is in its steps.")
    if link is None:
        return LeverRefusal("cannot", f"No link to another machine is known of {machine.name}.")
    moved = scenario.kv_bytes(scenario.case.prompt)
    first = float(scenario.predictor.constants.t_first)
    prefill_s = now.prefill.seconds
    wait = Queue(given.busy / prefill_s, prefill_s, prefill_s**2).mean_wait
    ttft = first + wait + prefill_s + moved / link
    after = retimed(now, ttft=ttft, tpot=now.tpot - now.interference, interference=0.0)
    prefilling = now.batch / (after.e2e - after.queue) * prefill_s / given.busy
    devices = scenario.how.tp * (1 + prefilling)
    why = (
        f"{size(moved)} of keys and values a prompt and device take {duration(moved / link)} over {scaled(link)}B/s. "
        f"For each machine that decodes {prefilling:.2f} must prefill."
    )
    return Effect("prompts on machines of their own", scenario, why, after, devices)
