"""What a workload costs as plain data, for ``--json``. Amounts are dollars, as numbers."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from twofold.core.request import TTL_SECONDS
from twofold.observe.accounting.bill import Bill
from twofold.planner.price.catalog import Catalog
from twofold.planner.price.compression import Compression, against_cache, compression_saved
from twofold.planner.price.own import OwnCost, OwnMachines
from twofold.planner.price.traced import TracedCost
from twofold.planner.price.workload import ApiCost, cache_cost, caching_options, cliff_above, half_answers

SCHEMA = "twofold.price/1"


def as_json(cost: ApiCost, catalog: Catalog, at: datetime) -> dict[str, Any]:
    """What a workload costs at an API."""
    cliff = cliff_above(cost, at)
    return _prices_as_json(cost, catalog, at) | {
        "caching": _caching(cost),
        "cost": _amounts(cost),
        "options": [_amounts(option) for option in caching_options(cost, at)],
        "bills": {"fresh": _lines(cost.plain), "miss": _lines(cost.miss), "hit": _lines(cost.hit)},
        "half_answers_save": float(half_answers(cost)),
        "cliff": None if cliff is None else {"above": cliff.above, "paid": float(cliff.paid)},
    }


def _prices_as_json(cost: ApiCost, catalog: Catalog, at: datetime) -> dict[str, Any]:
    workload, prices = cost.workload, cost.prices
    return {
        "schema": SCHEMA,
        "model": cost.model.name,
        "tier": workload.tier,
        "prices_from": catalog.source,
        "at": at.isoformat(),
        "per_million": {
            "input": float(prices.input),
            "cache_read": float(prices.cache_read),
            "cache_write_5m": float(prices.cache_write_5m),
            "cache_write_1h": float(prices.cache_write_1h),
            "output": float(prices.output),
        },
        "context": cost.model.context,
        "cliffs": list(cost.model.cliffs(at, workload.tier)),
        "other_charges": list(cost.model.other_charges),
        "workload": {
            "input_tokens": workload.input_tokens,
            "output_tokens": workload.output_tokens,
            "requests_per_day": workload.requests_per_day,
            "prefix_tokens": workload.prefix_tokens,
            "session": workload.session,
        },
    }


def own_as_json(own: OwnMachines, cost: OwnCost, api_request: float) -> dict[str, Any]:
    """The same on own hardware, beside an API that takes ``api_request`` for a request."""
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
        "half_answers_save": cost.half_answers,
        "cheaper_from_requests_per_day": cost.cheaper_from(api_request),
    }


def compression_as_json(cost: ApiCost, compression: Compression) -> dict[str, Any]:
    """Whether compressing the prompts pays."""
    against = against_cache(cost, compression)
    return {
        "ratio": compression.ratio,
        "cost": compression.cost,
        "saved": compression_saved(cost, compression),
        "saved_against_cache": None if against is None else against.saved,
        "least_ratio_against_cache": None if against is None else finite(against.min_ratio),
    }


def traced_as_json(traced: TracedCost, mean: ApiCost, catalog: Catalog, at: datetime) -> dict[str, Any]:
    """What a trace costs at an API; prices and workload are those of its mean request."""
    cost = {
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
        "half_answers_save": float(half_answers(mean) * traced.requests),
    }
    return _prices_as_json(mean, catalog, at) | {"trace": cost}


def finite(number: float) -> float | None:
    """JSON has no infinity."""
    return number if number < float("inf") else None


def _caching(cost: ApiCost) -> dict[str, Any]:
    found: dict[str, Any] = {"state": cost.caching, "least_tokens": cost.min_cached, "ttl": cost.workload.ttl}
    if cost.caching == "on" and cost.prices.input:
        by = cache_cost(cost)
        found |= {
            "miss_share": cost.miss_share,
            "break_even_reads": finite(by.break_even_reads),
            "longest_mean_gap_s": finite(by.longest_gap_s(TTL_SECONDS[cost.workload.ttl])),
            "saved": float(cost.saved),
            "most_saved": float(cost.max_saved),
        }
    return found


def _amounts(cost: ApiCost) -> dict[str, Any]:
    return {
        "ttl": cost.workload.ttl if cost.caching == "on" else None,
        "per_request": float(cost.per_request),
        "per_day": float(cost.per_day),
        "per_month": float(cost.per_month),
    }


def _lines(bill: Bill) -> list[dict[str, Any]]:
    fields = ((line.kind, int(line.quantity), float(line.price), float(line.amount)) for line in bill.lines)
    return [dict(zip(("kind", "tokens", "per_million", "amount"), each, strict=True)) for each in fields]
