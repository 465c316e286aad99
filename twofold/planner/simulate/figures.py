"""Figures of a simulation: percentiles by nearest rank, goodput, cache hits, utilization of replicas.

The percentile q is the smallest value that at least the share q of the values does not exceed. A job that cannot run is
infinitely slow in every measure. TTFT and E2E count from the time at which a job was due. TPOT is (last − first) /
(tokens − 1), for completions of at least two tokens."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from twofold.core.ranks import nearest_rank
from twofold.core.report import StoreCounts
from twofold.core.units import count
from twofold.planner.explain.words import factor
from twofold.planner.plan.traffic import PlanSlo
from twofold.planner.simulate.fleet import Simulated
from twofold.planner.simulate.jobs import JobColumns, ReplicaWork

Floats: TypeAlias = npt.NDArray[np.float64]

SCHEMA: Final = "twofold.simulate/1"
SHARES: Final = (0.5, 0.9, 0.95, 0.99, 0.999)
PAYS: Final = 0.99
"""A lever pays if it lowers the mean TTFT to this share or less."""
NAMES: Final = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "E2E", "queue": "queue"}


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Mean and quantiles of ``n`` values in seconds, None without values; the mean is that of the finite values."""

    n: int
    mean: float | None
    p50: float | None
    p90: float | None
    p95: float | None
    p99: float | None
    p99_9: float | None
    max: float | None

    @classmethod
    def of(cls, values: Floats) -> Quantiles:
        n = len(values)
        if not n:
            return cls(0, None, None, None, None, None, None, None)
        ascending = np.sort(values)
        finite = ascending[np.isfinite(ascending)]
        p50, p90, p95, p99, p99_9 = (nearest_rank(ascending, share) for share in SHARES)
        mean = float(finite.mean()) if len(finite) else None
        return cls(n, mean, p50, p90, p95, p99, p99_9, float(ascending[-1]))


@dataclass(frozen=True, slots=True)
class SimulatedGoodput:
    """``attainment``: share of jobs within all limits; ``met``: whether it is at least that of the SLO."""

    slo: str
    attainment: float
    requests_per_s: float
    met: bool


@dataclass(frozen=True, slots=True)
class Usage:
    """The replicas of one kind together. Shares are of all their time until the last token of the simulation.

    prefill, decode, mixed  shares of steps with prompts only, with decoding only, with both
    kv_mean, kv_most        mean share of the KV blocks in use during steps, and the maximum in any replica
    rows_a_step             mean tokens computed in a step
    """

    replicas: int
    prefill: float
    decode: float
    mixed: float
    idle: float
    kv_mean: float
    kv_most: float
    steps: int
    rows_a_step: float

    @classmethod
    def of(cls, replicas: tuple[ReplicaWork, ...], seconds: float) -> Usage:
        """The use of replicas over ``seconds``."""
        time = seconds * len(replicas)
        prefill, decode, mixed = (
            sum(getattr(each, f"{kind}_s") for each in replicas) for kind in ("prefill", "decode", "mixed")
        )
        steps = sum(each.steps for each in replicas)
        busy = prefill + decode + mixed
        return cls(
            replicas=len(replicas),
            prefill=_ratio(prefill, time),
            decode=_ratio(decode, time),
            mixed=_ratio(mixed, time),
            idle=max(0.0, 1 - _ratio(busy, time)) if time else 1.0,
            kv_mean=_ratio(sum(each.block_s / each.blocks for each in replicas), busy),
            kv_most=max(each.max_blocks / each.blocks for each in replicas),
            steps=steps,
            rows_a_step=_ratio(sum(each.prefill_rows + each.decode_rows for each in replicas), steps),
        )


@dataclass(frozen=True, slots=True)
class StoreUse:
    """The KV stores of all replicas: ``loads`` brought ``loaded_share`` of all prompt tokens in ``load_s`` seconds
    together, ``declined`` ones would have taken longer than computing. They hold ``bytes`` in the end."""

    loads: int
    loaded_share: float
    load_s: float
    declined: int
    written: int
    evicted: int
    bytes: int

    @classmethod
    def of(cls, stored: tuple[StoreCounts, ...], loaded_share: float) -> StoreUse | None:
        """The use of the stores; None if there are none."""
        if not stored:
            return None

        def total(name: str) -> int:
            return sum(getattr(each, name) for each in stored)

        load_s = sum(each.load_s for each in stored)
        counts = (total(name) for name in ("declined", "written", "evicted", "bytes"))
        return cls(total("loads"), loaded_share, load_s, *counts)


@dataclass(frozen=True, slots=True)
class SimulatedFigures:
    """``queue``: seconds from due to admitted; ``waiting_mean`` and ``waiting_most``: jobs that wait at a time."""

    requests: int
    refused: int
    seconds: float
    requests_per_s: float
    output_tokens_per_s: float
    ttft: Quantiles
    tpot: Quantiles
    e2e: Quantiles
    queue: Quantiles
    waiting_mean: float
    waiting_most: int
    prompt_tokens: int
    cached_share: float
    output_tokens: int
    preemptions: int
    usage: dict[str, Usage]
    store: StoreUse | None
    goodput: SimulatedGoodput | None

    def plain(self) -> Any:
        """Plain data for JSON; infinite values are None."""
        return _bounded(asdict(self))


def figures(found: Simulated, slo: PlanSlo | None = None) -> SimulatedFigures:
    """The figures of a simulation."""
    jobs = found.jobs
    due, first, last = (np.array(column) for column in (jobs.due_s, jobs.first_s, jobs.last_s))
    admitted, output = np.array(jobs.admitted_s), np.array(jobs.output)
    ended = np.isfinite(last)
    seconds = float(last[ended].max()) if ended.any() else 0.0
    ttft, e2e = first - due, last - due
    tpot = per_token(jobs)
    prompt = int(np.sum(jobs.prompt))
    waited = np.where(np.isfinite(admitted), admitted - due, 0.0)
    return SimulatedFigures(
        requests=len(due),
        refused=int((~ended).sum()),
        seconds=seconds,
        requests_per_s=_ratio(int(ended.sum()), seconds),
        output_tokens_per_s=_ratio(int(output[ended].sum()), seconds),
        ttft=Quantiles.of(ttft),
        tpot=Quantiles.of(tpot[~np.isnan(tpot)]),
        e2e=Quantiles.of(e2e),
        queue=Quantiles.of(admitted - due),
        waiting_mean=_ratio(float(waited.sum()), seconds),
        waiting_most=_max_concurrent(due, admitted),
        prompt_tokens=prompt,
        cached_share=_ratio(int(np.sum(jobs.cached)), prompt),
        output_tokens=int(output[ended].sum()),
        preemptions=int(np.sum(jobs.preemptions)),
        usage=_usages(found, seconds),
        store=StoreUse.of(found.stored, _ratio(int(np.sum(jobs.loaded)), prompt)),
        goodput=None if slo is None else _goodput(slo, ttft, tpot, e2e, seconds),
    )


def per_token(jobs: JobColumns) -> Floats:
    """(jobs,) TPOT in seconds; NaN for a completion of one token."""
    first, last, output = np.array(jobs.first_s), np.array(jobs.last_s), np.array(jobs.output)
    never = ~np.isfinite(last)
    with np.errstate(invalid="ignore", divide="ignore"):
        found: Floats = (last - first) / (output - 1)
    found[never] = math.inf
    found[output < 2] = math.nan
    return found


def _goodput(slo: PlanSlo, ttft: Floats, tpot: Floats, e2e: Floats, seconds: float) -> SimulatedGoodput:
    limits = dict(slo.limits())
    met = ttft <= limits.get("ttft", math.inf)
    met &= np.isnan(tpot) | (tpot <= limits.get("tpot", math.inf))
    met &= (e2e <= limits.get("e2e", math.inf)) & np.isfinite(e2e)
    share = _ratio(int(met.sum()), len(met))
    return SimulatedGoodput(str(slo), share, _ratio(int(met.sum()), seconds), share >= slo.attainment)


def _usages(found: Simulated, seconds: float) -> dict[str, Usage]:
    split = found.prefill_replicas
    if split == len(found.work):
        return {"replicas": Usage.of(found.work, seconds)}
    return {
        "prefill": Usage.of(found.work[:split], seconds),
        "decode": Usage.of(found.work[split:], seconds),
    }


def _max_concurrent(began: Floats, ended: Floats) -> int:
    """Maximum of jobs at once between these times; a job that ends when another begins does not overlap it."""
    kept = np.isfinite(ended) & (ended > began)
    moments = np.concatenate([began[kept], ended[kept]])
    changes = np.concatenate([np.ones(int(kept.sum()), int), -np.ones(int(kept.sum()), int)])
    order = np.lexsort((changes, moments))
    return int(np.cumsum(changes[order]).max()) if len(order) else 0


def _ratio(count: float, of: float) -> float:
    return count / of if of else 0.0


def _bounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _bounded(each) for name, each in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def lines(found: SimulatedFigures) -> Iterator[str]:
    """The figures as lines for a terminal."""
    refused = f", {found.refused:,} rejected as too large" if found.refused else ""
    yield (
        f"{found.requests:,} requests in {time_words(found.seconds)}{refused}: {found.requests_per_s:.4g} requests/s, "
        f"{found.output_tokens_per_s:,.0f} output tokens/s"
    )
    yield f"{'':8}{'P50':>10}{'P90':>10}{'P95':>10}{'P99':>10}{'P99.9':>10}{'max':>10}"
    for name, label in NAMES.items():
        yield _row(label, getattr(found, name))
    yield (
        f"prompts  {found.cached_share:.1%} of {found.prompt_tokens:,} tokens cached; "
        f"{found.preemptions:,} preemptions; {found.waiting_mean:.3g} waiting on average, max {found.waiting_most:,}"
    )
    if found.store is not None:
        yield _store(found.store)
    for name, usage in found.usage.items():
        yield _usage(name, usage)
    if found.goodput is not None:
        verdict = "met" if found.goodput.met else "missed"
        yield (
            f"goodput  {found.goodput.requests_per_s:.4g} requests/s within {found.goodput.slo}: "
            f"{found.goodput.attainment:.2%}, {verdict}"
        )


def _row(label: str, values: Quantiles) -> str:
    shown = (values.p50, values.p90, values.p95, values.p99, values.p99_9, values.max)
    return f"{label:8}" + "".join(f"{time_words(value):>10}" for value in shown)


def _usage(name: str, usage: Usage) -> str:
    count = f"{usage.replicas} " if usage.replicas > 1 else ""
    return (
        f"{count}{name}: {usage.prefill:.1%} prefill, {usage.decode:.1%} decode, {usage.mixed:.1%} both, "
        f"{usage.idle:.1%} idle; {usage.rows_a_step:.3g} tokens per step; KV {usage.kv_mean:.1%} on average, "
        f"max {usage.kv_most:.1%}"
    )


def _store(use: StoreUse) -> str:
    return (
        f"KV store {use.loaded_share:.1%} of prompt tokens loaded, in {count(use.loads, 'load')}; {use.declined:,} "
        f"declined, since computing was faster; {use.written:,} segments written, {use.evicted:,} evicted"
    )


def store_effect(found: SimulatedFigures, without: SimulatedFigures) -> Iterator[str]:
    """What a KV store changed, beside the same load without it, and whether it paid."""
    use, computed = found.store, [round(each.prompt_tokens * (1 - each.cached_share)) for each in (without, found)]
    assert use is not None, "there is a store"
    yield (
        f"without  the store {computed[0]:,} prompt tokens are computed instead of {computed[1]:,}; TTFT "
        f"{_change(without.ttft.mean, found.ttft.mean)} on average, {_change(without.ttft.p99, found.ttft.p99)} at P99"
    )
    before, after = without.ttft.mean or 0.0, found.ttft.mean or 0.0
    if not use.written:
        yield "The store does not pay: nothing is written, since no prompt found 256 tokens of its prefix in memory."
    elif not (use.loads or use.declined):
        yield "The store does not pay: no prompt came back after its keys and values had left memory."
    elif not use.loads:
        yield "The store does not pay: computing was always faster than loading."
    elif after > PAYS * before:
        yield f"The store does not pay: the mean TTFT is {after / before:.2f} of that without it."


def lever_effect(name: str, found: SimulatedFigures, without: SimulatedFigures) -> Iterator[str]:
    """What a lever changed on average, beside the same load without it."""
    pairs = (("TTFT", without.ttft, found.ttft), ("TPOT", without.tpot, found.tpot), ("E2E", without.e2e, found.e2e))
    times = ", ".join(f"{label} {_change(before.mean, after.mean)}" for label, before, after in pairs)
    gain = ""
    if without.e2e.mean and found.e2e.mean:
        gain = f": E2E {factor(without.e2e.mean / found.e2e.mean)}"
    yield f"without  {name} {times} on average{gain}"


def _change(before: float | None, after: float | None) -> str:
    return f"{time_words(before)} instead of {time_words(after)}"


def time_words(seconds: float | None) -> str:
    """1.25 s, 380 ms, 12.5 µs."""
    if seconds is None:
        return "—"
    if math.isinf(seconds):
        return "∞"
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= scale:
            return f"{seconds / scale:.4g} {unit}"
    return f"{seconds * 1e6:.3g} µs"
