"""What a simulation found: percentiles by nearest rank, goodput, hits, how busy replicas were.

The percentile q of values is the least of them that at least the share q of them does not exceed; a job that could not
run is infinitely slow in every measure. TTFT and E2E count from when a job was due. TPOT is (last − first) /
(tokens − 1), of answers of at least two tokens.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from twofold.planner.plan.slo import Slo
from twofold.planner.simulate.fleet import Simulated
from twofold.planner.simulate.records import Busy, Columns

Floats: TypeAlias = npt.NDArray[np.float64]

SCHEMA: Final = "twofold.simulate/1"
PER_MILLE: Final = (500, 900, 950, 990, 999)


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Of one measure, in seconds. ``mean`` is that of the finite values. None where there are no values."""

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
        p50, p90, p95, p99, p99_9 = (float(ascending[max(0, -(-n * share // 1000) - 1)]) for share in PER_MILLE)
        mean = float(finite.mean()) if len(finite) else None
        return cls(n, mean, p50, p90, p95, p99, p99_9, float(ascending[-1]))


@dataclass(frozen=True, slots=True)
class SimulatedGoodput:
    """``attainment``: the share of jobs within all limits; ``met``: whether that is as high as it should be."""

    slo: str
    attainment: float
    requests_per_s: float
    met: bool


@dataclass(frozen=True, slots=True)
class Usage:
    """Of the replicas of one kind, together. Shares are of all their time until the last token of all.

    prefill, decode, mixed  in steps of prompts alone, of answers alone, of both
    kv_mean, kv_most        share of the KV blocks that was held while there were steps, and the most of any replica
    rows_a_step             tokens computed in a step, on average
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


@dataclass(frozen=True, slots=True)
class SimulatedFigures:
    """``queue`` is from due to admitted; ``waiting_mean`` and ``waiting_most`` are how many jobs were between these."""

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
    goodput: SimulatedGoodput | None

    def plain(self) -> dict[str, Any]:
        """Plain data for JSON: what has no bound is None."""
        return _plain(asdict(self))


def figures(found: Simulated, blocks: int, slo: Slo | None = None) -> SimulatedFigures:
    """The figures of a simulation whose replicas have ``blocks`` KV blocks each."""
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
        requests_per_s=_rate(int(ended.sum()), seconds),
        output_tokens_per_s=_rate(int(output[ended].sum()), seconds),
        ttft=Quantiles.of(ttft),
        tpot=Quantiles.of(tpot[~np.isnan(tpot)]),
        e2e=Quantiles.of(e2e),
        queue=Quantiles.of(admitted - due),
        waiting_mean=_rate(float(waited.sum()), seconds),
        waiting_most=_most_between(due, admitted),
        prompt_tokens=prompt,
        cached_share=_rate(int(np.sum(jobs.cached)), prompt),
        output_tokens=int(output[ended].sum()),
        preemptions=int(np.sum(jobs.preemptions)),
        usage=_usages(found, blocks, seconds),
        goodput=None if slo is None else _goodput(slo, ttft, tpot, e2e, seconds),
    )


def per_token(jobs: Columns) -> Floats:
    """(jobs,) TPOT; no number where an answer has one token."""
    first, last, output = np.array(jobs.first_s), np.array(jobs.last_s), np.array(jobs.output)
    never = ~np.isfinite(last)
    with np.errstate(invalid="ignore", divide="ignore"):
        found: Floats = (last - first) / (output - 1)
    found[never] = math.inf
    found[output < 2] = math.nan
    return found


def _goodput(slo: Slo, ttft: Floats, tpot: Floats, e2e: Floats, seconds: float) -> SimulatedGoodput:
    limits = dict(slo.limits())
    met = ttft <= limits.get("ttft", math.inf)
    met &= np.isnan(tpot) | (tpot <= limits.get("tpot", math.inf))
    met &= (e2e <= limits.get("e2e", math.inf)) & np.isfinite(e2e)
    share = _rate(int(met.sum()), len(met))
    return SimulatedGoodput(str(slo), share, _rate(int(met.sum()), seconds), share >= slo.attainment)


def _usages(found: Simulated, blocks: int, seconds: float) -> dict[str, Usage]:
    split = found.prefill_replicas
    if split == len(found.busy):
        return {"replicas": _usage(found.busy, blocks, seconds)}
    return {
        "prefill": _usage(found.busy[:split], blocks, seconds),
        "decode": _usage(found.busy[split:], blocks, seconds),
    }


def _usage(replicas: tuple[Busy, ...], blocks: int, seconds: float) -> Usage:
    time = seconds * len(replicas)
    prefill = sum(each.prefill_s for each in replicas)
    decode = sum(each.decode_s for each in replicas)
    mixed = sum(each.mixed_s for each in replicas)
    steps = sum(each.steps for each in replicas)
    rows = sum(each.prefill_rows + each.decode_rows for each in replicas)
    held = sum(each.block_s for each in replicas)
    busy = prefill + decode + mixed
    return Usage(
        replicas=len(replicas),
        prefill=_rate(prefill, time),
        decode=_rate(decode, time),
        mixed=_rate(mixed, time),
        idle=max(0.0, 1 - _rate(busy, time)) if time else 1.0,
        kv_mean=_rate(held, busy * blocks),
        kv_most=max(each.max_blocks for each in replicas) / blocks,
        steps=steps,
        rows_a_step=_rate(rows, steps),
    )


def _most_between(began: Floats, ended: Floats) -> int:
    """The most jobs that were at once between these moments; who ends when another begins is gone."""
    kept = np.isfinite(ended) & (ended > began)
    moments = np.concatenate([began[kept], ended[kept]])
    changes = np.concatenate([np.ones(int(kept.sum()), int), -np.ones(int(kept.sum()), int)])
    order = np.lexsort((changes, moments))
    return int(np.cumsum(changes[order]).max()) if len(order) else 0


def _rate(count: float, of: float) -> float:
    return count / of if of else 0.0


def _bounded(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return _plain(value) if isinstance(value, dict) else value


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    return {name: _bounded(each) for name, each in values.items()}
