"""The document of a price: what ``twofold price --json`` prints and ``POST /v1/twofold/price`` returns. Amounts are
dollars."""

from __future__ import annotations

from typing import Any, Final, Literal, Self

from msgspec import UNSET, UnsetType

from twofold.api.body import NonNegativeFloat, NonNegativeInt, ReplyObject
from twofold.core.request import TTL_SECONDS
from twofold.observe.billing import Bill
from twofold.planner.documents import ChartReply, Number
from twofold.planner.price.own import OwnCost, OwnMachines
from twofold.planner.price.report import PriceAnswer, cache_lines, caching_chart, cheaper_words, cliff_lines
from twofold.planner.price.workload import (
    ApiCost,
    Compression,
    TracedCost,
    against_cache,
    caching_options,
    cliff_above,
    compression_saved,
)

SCHEMA: Final = "twofold.price/1"
KINDS: Final = ("input", "cache_read", "cache_write_5m", "cache_write_1h", "output")
SIZES: Final = ("input_tokens", "output_tokens", "requests_per_day", "prefix_tokens", "session")


class PriceOption(ReplyObject):
    """Dollars with one way of caching; ``ttl`` is null without a cache."""

    ttl: str | None
    per_request: float
    per_day: float
    per_month: float

    @classmethod
    def of(cls, cost: ApiCost) -> Self:
        return cls(
            ttl=cost.workload.ttl if cost.caching == "on" else None,
            per_request=float(cost.per_request),
            per_day=float(cost.per_day),
            per_month=float(cost.per_month),
        )


class PriceLine(ReplyObject):
    """A line of a bill."""

    kind: str
    tokens: NonNegativeInt
    per_million: float
    amount: float


class PriceBills(ReplyObject):
    """Bills of a request without a cache, of one that writes it, and of one that reads it."""

    fresh: list[PriceLine]
    miss: list[PriceLine]
    hit: list[PriceLine]


class PriceFields(ReplyObject, kw_only=True):
    """The prices and sizes of a workload."""

    schema: Literal["twofold.price/1"] = SCHEMA
    model: str
    tier: str
    prices_from: str
    at: str
    per_million: dict[str, NonNegativeFloat]
    context: NonNegativeInt | None
    cliffs: list[NonNegativeInt]
    other_charges: list[str]
    workload: dict[str, Number]


class PriceReply(PriceFields, kw_only=True):
    """A workload at an API, and on own hardware."""

    caching: dict[str, str | Number]
    cost: PriceOption
    options: list[PriceOption]
    bills: PriceBills
    half_answers_save: float
    cliff: dict[str, float] | None
    notes: list[str]
    chart: ChartReply | None
    compression: dict[str, Number] | UnsetType = UNSET
    own: dict[str, str | Number] | UnsetType = UNSET


class TracePriceReply(PriceFields, kw_only=True):
    """A trace at an API, and on own hardware; prices and workload are those of its mean request."""

    trace: dict[str, Any]
    compression: dict[str, Number] | UnsetType = UNSET
    own: dict[str, str | Number] | UnsetType = UNSET


def price_document(answer: PriceAnswer) -> PriceReply | TracePriceReply:
    """The document of an answer."""
    api, at = answer.api, answer.at
    fields = _fields(answer)
    if answer.traced is not None:
        return TracePriceReply(**fields, trace=_trace(answer.traced, api))
    cliff, ways = cliff_above(api, at), list(caching_options(api, at))
    return PriceReply(
        **fields,
        caching=_caching(api),
        cost=PriceOption.of(api),
        options=[PriceOption.of(way) for way in ways],
        bills=PriceBills(fresh=_bill(api.plain), miss=_bill(api.miss), hit=_bill(api.hit)),
        half_answers_save=float(api.half_output_saves),
        cliff=None if cliff is None else {"above": cliff.above, "paid": float(cliff.paid)},
        notes=[line for way in (*map(cache_lines, ways), cliff_lines(api, at)) if (line := " ".join(way))],
        chart=ChartReply.of(caching_chart(api, at)),
    )


def _fields(answer: PriceAnswer) -> dict[str, Any]:
    """Fields of both documents."""
    api, workload = answer.api, answer.api.workload
    return {
        "model": api.model.name,
        "tier": workload.tier,
        "prices_from": answer.catalog.source,
        "at": answer.at.isoformat(),
        "per_million": {kind: float(getattr(api.prices, kind)) for kind in KINDS},
        "context": api.model.context,
        "cliffs": list(api.model.cliffs(answer.at, workload.tier)),
        "other_charges": list(api.model.other_charges),
        "workload": {name: getattr(workload, name) for name in SIZES},
        "compression": UNSET if answer.compression is None else _compression(api, answer.compression),
        "own": UNSET if answer.own is None else own_document(*answer.own),
    }


def _trace(traced: TracedCost, mean: ApiCost) -> dict[str, Any]:
    return {
        "requests": traced.requests,
        "seconds": traced.seconds,
        "ttl": traced.ttl,
        "tokens": {
            "fresh": traced.fresh,
            "cache_read": traced.read,
            "cache_written": traced.written,
            "output": traced.output,
        },
        "without_cache": float(traced.plain),
        "with_cache": float(traced.cached),
        "saved_share": traced.saved_share,
        "per_month_without_cache": traced.per_month(traced.plain),
        "per_month_with_cache": traced.per_month(traced.cached),
        "half_answers_save": float(mean.half_output_saves * traced.requests),
    }


def own_document(own: OwnMachines, cost: OwnCost, api_request: float) -> dict[str, str | Number]:
    """The workload on own hardware, compared with an API at ``api_request`` dollars a request."""
    return {
        "model": own.shape.name,
        "machine": own.machine.name,
        "devices": cost.devices,
        "per_hour": cost.per_hour,
        "busy_share": cost.busy_share,
        "batch": cost.batch,
        "sequences_that_fit": cost.sequences,
        "step_s": cost.step_s,
        "prefill_s": cost.prefill_s,
        "decode_s": cost.decode_s,
        "per_million_input": cost.per_million_input,
        "per_million_output": cost.per_million_output,
        "per_request": cost.per_request,
        "replicas": cost.replicas,
        "requests_per_day_a_replica": cost.requests_per_day,
        "per_month": cost.per_month,
        "half_answers_save": cost.half_output_saves,
        "cheaper_from_requests_per_day": cost.cheaper_from(api_request),
        "note": cheaper_words(cost, api_request),
    }


def _compression(cost: ApiCost, compression: Compression) -> dict[str, Number]:
    against = against_cache(cost, compression)
    return {
        "ratio": compression.ratio,
        "cost": compression.cost,
        "saved": compression_saved(cost, compression),
        "saved_against_cache": None if against is None else against.saved,
        "least_ratio_against_cache": None if against is None else _finite(against.min_ratio),
    }


def _caching(cost: ApiCost) -> dict[str, str | Number]:
    found: dict[str, str | Number] = {"state": cost.caching, "least_tokens": cost.min_cached, "ttl": cost.workload.ttl}
    if cost.caching == "on" and cost.prices.input:
        by = cost.cache
        found |= {
            "miss_share": cost.miss_share,
            "break_even_reads": _finite(by.break_even_reads),
            "longest_mean_gap_s": _finite(by.longest_gap_s(TTL_SECONDS[cost.workload.ttl])),
            "saved": float(cost.saved),
            "most_saved": float(cost.max_saved),
        }
    return found


def _bill(bill: Bill) -> list[PriceLine]:
    return [
        PriceLine(kind=line.kind, tokens=int(line.quantity), per_million=float(line.price), amount=float(line.amount))
        for line in bill.lines
    ]


def _finite(number: float) -> float | None:
    """None for infinity, which JSON lacks."""
    return number if number < float("inf") else None
