"""Plans, studies and answers as plain data, for JSON. Bytes are of each device; a time without a bound is null."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any, Final

from twofold.planner.count.memory import DeviceMemory
from twofold.planner.plan.choices import Configuration
from twofold.planner.plan.fitting import FitResult
from twofold.planner.plan.plan import CapacityPlan, Estimate, PlanRefusal
from twofold.planner.plan.search import PlanStudy
from twofold.planner.plan.slo import Slo
from twofold.planner.plan.traffic import Traffic

SCHEMA: Final = "twofold.plan/1"
FIT_SCHEMA: Final = "twofold.plan-fit/1"


def study_document(study: PlanStudy, traffic: Traffic, slo: Slo, shown: int) -> Mapping[str, Any]:
    """The ``shown`` cheapest plans, and why the others are none."""
    return {
        "schema": SCHEMA,
        "slo": asdict(slo),
        "traffic": traffic_document(traffic),
        "tried": study.tried,
        "plans": [plan_document(plan) for plan in study.plans[:shown]],
        "frontier": [asdict(point) for point in study.frontier],
        "refusals": [_refusal(each) for each in study.refusals],
    }


def traffic_document(traffic: Traffic) -> Mapping[str, Any]:
    """Means of what is asked."""
    kinds = traffic.kinds
    return {
        "rate": traffic.rate,
        "input_tokens": traffic.mean(kind.prompt for kind in kinds),
        "cached_share": traffic.cached_share,
        "output_tokens": traffic.mean(kind.output for kind in kinds),
        "decode_context": traffic.context,
        "longest_request": traffic.longest,
    }


def plan_document(plan: CapacityPlan) -> Mapping[str, Any]:
    return {
        **_configuration(plan.configuration),
        **asdict(plan.count),
        "devices": plan.devices,
        "dollars_per_hour": plan.cost,
        "dollars_per_million_output_tokens": plan.cost_per_million,
        "source": plan.source,
        "attained": plan.attained,
        **{name: _estimate(each) for name, each in plan.estimates().items()},
        "meets_with_error": plan.sure,
        "batch": plan.batch,
        "batch_limit": plan.batch_limit,
        "prompt_share": plan.prompt_share,
        "memory": room_document(plan.room) | {"kv_bytes_per_token": plan.token_bytes, "sequences": plan.sequences},
        "reasons": list(plan.reasons),
    }


def room_document(room: DeviceMemory) -> dict[str, int]:
    """``kv`` is what is left for keys and values; below 0, what is missing already."""
    return {f"{name}_bytes": size for name, size in asdict(room).items()}


def fit_document(found: FitResult, others: Iterable[FitResult]) -> Mapping[str, Any]:
    """An answer, and the same question asked of other ways."""
    return {"schema": FIT_SCHEMA, **answer_document(found), "ways": [answer_document(each) for each in others]}


def answer_document(found: FitResult) -> Mapping[str, Any]:
    asked = found.question
    return {
        "model": asked.shape.name,
        "hardware": asked.machine.name,
        "tp": asked.tp,
        "weights": found.weights,
        "kv": asked.kv.name,
        "context": asked.context,
        "concurrency": asked.concurrency,
        "fits": found.fits,
        "memory": room_document(found.room),
        "needed_kv_bytes": found.needed,
        "missing_bytes": found.missing,
        "sequences": found.sequences,
        "longest_context": found.longest,
    }


def _configuration(configuration: Configuration) -> Mapping[str, Any]:
    guessing = configuration.speculation
    return {
        "model": configuration.shape.name,
        "hardware": configuration.machine.name,
        "tp": configuration.tp,
        "weights": configuration.weights,
        "kv": configuration.how.kv.name,
        "chunk": None if configuration.split else configuration.chunk,
        "split": configuration.split,
        "speculation": guessing
        and {
            "drafts": guessing.drafts,
            "acceptance": guessing.acceptance,
            "draft": guessing.draft.name if guessing.draft else None,
        },
    }


def _estimate(found: Estimate) -> Mapping[str, Any]:
    band = found.band
    return {
        "mean_s": _bounded(found.mean),
        "at_attainment_s": _bounded(found.at),
        "floor_s": found.floor,
        "low_s": band and _bounded(band[0]),
        "high_s": band and _bounded(band[1]),
    }


def _refusal(refusal: PlanRefusal) -> Mapping[str, Any]:
    found = {**_configuration(refusal.configuration), "bound": refusal.bound, "why": refusal.why}
    if refusal.measure:
        found |= {"measure": refusal.measure, "value_s": refusal.value, "limit_s": refusal.limit}
    return found


def _bounded(seconds: float) -> float | None:
    return seconds if math.isfinite(seconds) else None
