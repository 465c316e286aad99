"""The documents of plans, and of whether a model fits: what ``twofold plan --json`` and ``plan fit --json`` print, and
what POST /v1/twofold/plans returns. Bytes are of each device; a time without a bound is null."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any, Final, Literal, Self, TypeAlias

from msgspec import structs

from twofold.api.body import NonNegativeInt, ReplyObject
from twofold.planner.count.memory import DeviceMemory
from twofold.planner.documents import ChartReply, Number
from twofold.planner.plan.commands import fleet_commands
from twofold.planner.plan.fitting import FitResult
from twofold.planner.plan.offers import LeverOffer, offers
from twofold.planner.plan.plan import CapacityPlan, Configuration, Estimate, PlanRefusal
from twofold.planner.plan.report import PlanAnswer
from twofold.planner.plan.traffic import Traffic

SCHEMA: Final = "twofold.plan/1"
FIT_SCHEMA: Final = "twofold.plan-fit/1"
Fields: TypeAlias = dict[str, Any]


class PlanReply(ReplyObject, kw_only=True):
    """The cheapest plans, the frontier and its chart, and why other configurations were refused."""

    schema: Literal["twofold.plan/1"] = SCHEMA
    slo: dict[str, Number]
    traffic: dict[str, float]
    tried: NonNegativeInt
    plans: list[Fields]
    frontier: list[Fields]
    refusals: list[Fields]
    offers: list[Fields]
    chart: ChartReply | None

    @classmethod
    def of(cls, answer: PlanAnswer) -> Self:
        study, traffic = answer.study, answer.traffic
        return cls(
            slo=structs.asdict(answer.slo),
            traffic=_traffic(traffic),
            tried=study.tried,
            plans=[_plan(plan) for plan in study.plans[: answer.shown]],
            frontier=[asdict(point) for point in study.frontier],
            refusals=[_refusal(each) for each in study.refusals],
            offers=[_offer(each) for each in offers(study.plans[0], traffic)],
            chart=ChartReply.of(answer.chart()),
        )


def _traffic(traffic: Traffic) -> dict[str, float]:
    """The rate, and means over requests."""
    kinds = traffic.kinds
    return {
        "rate": traffic.rate,
        "input_tokens": traffic.mean(kind.prompt for kind in kinds),
        "cached_share": traffic.cached_share,
        "output_tokens": traffic.mean(kind.output for kind in kinds),
        "decode_context": traffic.context,
        "longest_request": traffic.longest,
    }


def _plan(plan: CapacityPlan) -> Fields:
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
        "memory": _room(plan.room) | {"kv_bytes_per_token": plan.token_bytes, "sequences": plan.sequences},
        "reasons": list(plan.reasons),
        "commands": list(fleet_commands(plan)),
    }


def _room(room: DeviceMemory) -> Fields:
    """Bytes by part of a device's memory."""
    return {f"{name}_bytes": size for name, size in asdict(room).items()}


def fit_document(found: FitResult, others: Iterable[FitResult]) -> Fields:
    """Whether a model fits as asked, and in other ways."""
    return {"schema": FIT_SCHEMA, **fit_result_document(found), "ways": [fit_result_document(each) for each in others]}


def fit_result_document(found: FitResult) -> Fields:
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
        "memory": _room(found.room),
        "needed_kv_bytes": found.needed,
        "missing_bytes": found.missing,
        "sequences": found.sequences,
        "longest_context": found.longest,
    }


def _configuration(configuration: Configuration) -> Fields:
    speculation = configuration.speculation
    return {
        "model": configuration.shape.name,
        "hardware": configuration.machine.name,
        "tp": configuration.tp,
        "weights": configuration.weights,
        "kv": configuration.setup.kv.name,
        "chunk": None if configuration.split else configuration.chunk,
        "split": configuration.split,
        "speculation": speculation
        and {
            "drafts": speculation.drafts,
            "acceptance": speculation.acceptance,
            "draft": speculation.draft.name if speculation.draft else None,
        },
    }


def _estimate(found: Estimate) -> Fields:
    band = found.band
    return {
        "mean_s": _bounded(found.mean),
        "at_attainment_s": _bounded(found.at),
        "floor_s": found.floor,
        "low_s": band and _bounded(band[0]),
        "high_s": band and _bounded(band[1]),
    }


def _refusal(refusal: PlanRefusal) -> Fields:
    found = {**_configuration(refusal.configuration), "bound": refusal.bound, "why": refusal.why}
    if refusal.measure:
        found |= {"measure": refusal.measure, "value_s": refusal.value, "limit_s": refusal.limit}
    return found


def _offer(offer: LeverOffer) -> Fields:
    """A lever that the first plan leaves out, with its times before and after; null where it would not pay."""
    before, after = (
        each and {"ttft_s": each.ttft, "tpot_s": each.tpot, "e2e_s": each.e2e} for each in (offer.before, offer.after)
    )
    return {
        "lever": offer.lever,
        "why": offer.why,
        "condition": offer.condition,
        "before": before,
        "after": after,
        "benchmark": offer.benchmark,
    }


def _bounded(seconds: float) -> float | None:
    return seconds if math.isfinite(seconds) else None
