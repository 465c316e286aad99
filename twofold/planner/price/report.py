"""What a workload costs, as lines for a terminal and as plain data for ``--json``. Amounts are dollars."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from typing import Any, Final

from twofold.bench.draw.chart import Axis, Chart, Guide, Line, Mark
from twofold.core.request import TTL_SECONDS
from twofold.core.units import count
from twofold.observe.billing import Bill
from twofold.planner.predict.constants import constants_for, error_words, errors_for
from twofold.planner.price.catalog import ApiModel, Catalog, Tier
from twofold.planner.price.own import OwnCost, OwnMachines
from twofold.planner.price.workload import (
    DAY_S,
    MONTH_DAYS,
    ApiCost,
    CacheCost,
    Compression,
    TracedCost,
    against_cache,
    caching_options,
    cliff_above,
    compression_saved,
    miss_share,
)

SCHEMA: Final = "twofold.price/1"
LABEL: Final = 18
GAPS_S: Final = tuple(10 ** (n / 20) for n in range(81))
"""Gaps between requests in the chart: 1 s to 3 h."""


def dollars(amount: Decimal | float) -> str:
    """An amount with cents from one dollar on, and with three digits below."""
    value = float(amount)
    sign = "-" if value < 0 else ""
    value = abs(value)
    if value >= 1 or value == 0:
        return f"{sign}${value:,.2f}"
    return f"{sign}${value:.3g}" if value >= 1e-4 else f"{sign}${value:.2e}"


def time_words(seconds: float) -> str:
    """3 s, 1.5 min, 2.0 h."""
    if seconds < 60:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def price_lines(model: ApiModel, catalog: Catalog, tokens: int, at: datetime, tier: Tier) -> Iterator[str]:
    """Prices of a million tokens, for prompts of that length."""
    prices = model.prices(tokens, at, tier)
    priced = "" if tier == "default" else f", tier {tier}"
    yield f"{model.name}{priced}: dollars per million tokens ({catalog.source})"
    parts = [f"input {prices.input:f}", f"cache read {prices.cache_read:f}"]
    if prices.cache_write_5m != prices.input:
        parts.append(f"cache write {prices.cache_write_5m:f}")
    if prices.cache_write_1h != prices.cache_write_5m:
        parts.append(f"cache write for 1 hour {prices.cache_write_1h:f}")
    yield f"  {', '.join(parts)}, output {prices.output:f}"
    if model.context is not None and tokens > model.context:
        yield f"  the prompt of {tokens:,} tokens exceeds its context of {model.context:,}"
    if model.other_charges:
        yield f"  not included: {', '.join(model.other_charges)}"


def api_lines(cost: ApiCost, at: datetime) -> Iterator[str]:
    """The cost with each way of caching, and the effects of the cache, shorter output and price cliffs."""
    workload = cost.workload
    yield (
        f"{workload.input_tokens:,} input and {workload.output_tokens:,} output tokens per request, "
        f"{workload.requests_per_day:,.6g} requests per day"
    )
    for option in caching_options(cost, at):
        cached = option.caching == "on"
        yield _line(
            f"{option.workload.ttl} cache" if cached else "no cache",
            dollars(option.per_request),
            f"{dollars(option.per_month)} per month",
            f"{option.miss_share:.1%} of requests write it" if cached else "",
        )
    yield from (f"  {line}" for line in _cache_lines(cost))
    if workload.output_tokens:
        yield _half_line(cost.half_output_saves, cost.per_request)
    yield from (f"  {line}" for line in _cliff_lines(cost, at))


def _cliff_lines(cost: ApiCost, at: datetime) -> Iterator[str]:
    cliff = cliff_above(cost, at)
    if cliff is not None:
        yield f"Prompts above {cliff.above:,} tokens cost more: that adds {dollars(cliff.paid)} per request."


def _cache_lines(cost: ApiCost) -> Iterator[str]:
    """What a cache of the workload's time to live is worth, and when."""
    if cost.caching == "too short":
        yield (
            f"A prefix of {cost.workload.prefix_tokens:,} tokens is not cached: the minimum for {cost.model.name} is "
            f"{cost.min_cached:,}. The cache saves $0."
        )
    if cost.caching != "on" or not cost.prices.input:
        return
    found, ttl = cost.cache, cost.workload.ttl
    paid = "A cache write costs no more than input."
    if found.write > 1:
        paid = f"A {ttl} cache write breaks even after {found.break_even_reads:.2f} reads."
    saved = f"this workload saves {dollars(cost.saved)}"
    yield f"{paid} Best case saves {dollars(cost.max_saved)} per request; {saved}."
    if cost.workload.session is None:
        yield _gaps(found, TTL_SECONDS[ttl], DAY_S / cost.workload.requests_per_day)


def caching_chart(cost: ApiCost, at: datetime) -> Chart | None:
    """Dollars that the cached prefix saves by the mean gap between requests; None if nothing is cached."""
    if cost.caching != "on" or not cost.prices.input:
        return None
    prefix = cost.workload.prefix_tokens * float(cost.prices.input) / 1e6
    marks: list[Mark] = [
        Guide("y", 0.0, "no cache"),
        Guide("x", DAY_S / cost.workload.requests_per_day / 60, "here"),
    ]
    for series, option in enumerate(each for each in caching_options(cost, at) if each.caching == "on"):
        by, ttl = option.cache, option.workload.ttl
        saved = [prefix * (1 - by.mean(miss_share(1 / gap, TTL_SECONDS[ttl]))) for gap in GAPS_S]
        points = [(gap / 60, amount) for gap, amount in zip(GAPS_S, saved, strict=True)]
        marks.append(Line(points, f"{ttl} cache", series))
        longest = by.longest_gap_s(TTL_SECONDS[ttl])
        if 0 < longest < float("inf"):
            marks.append(Guide("x", longest / 60, time_words(longest)))
    return Chart(
        "Savings of a cached prefix",
        tuple(marks),
        Axis("minutes between requests", "log", tight=True),
        Axis("dollars saved", form=dollars),
        "per request, by mean gap between requests (random arrivals)",
    )


def _gaps(found: CacheCost, ttl_s: float, gap_s: float) -> str:
    longest = found.longest_gap_s(ttl_s)
    here = f"here it is {time_words(gap_s)}"
    if longest == float("inf"):
        return f"It pays off at any mean gap between requests; {here}."
    if longest == 0:
        return "It never pays off: a cache read costs no less than input."
    return f"It pays off while the mean gap between requests is below {time_words(longest)}; {here}."


def trace_lines(traced: TracedCost, mean: ApiCost) -> Iterator[str]:
    """The cost of a trace. ``mean`` is its mean request, whose price ignores the cliffs that single requests exceed."""
    workload = mean.workload
    yield (
        f"trace of {traced.requests:,} requests in {time_words(traced.seconds)}: {workload.input_tokens:,} input and "
        f"{workload.output_tokens:,} output tokens on average"
    )
    found = [("no cache", traced.plain, "")]
    if traced.read or traced.written:
        found.append((f"{traced.ttl} cache", traced.cached, f"{traced.read_share:.1%} of prompt tokens read"))
    for label, total, note in found:
        yield _line(label, dollars(total), f"{dollars(traced.per_month(total))} per month", note)
    if len(found) > 1:
        share = traced.saved_share
        effect = f"saves {share:.1%}" if share >= 0 else f"costs {-share:.1%} more"
        yield f"  The cache {effect}: {traced.written:,} tokens are written and {traced.read:,} read."
    if workload.output_tokens:
        yield _line("half the output", f"{dollars(mean.half_output_saves * traced.requests)} less")


def own_lines(own: OwnMachines, cost: OwnCost, api_request: float) -> Iterator[str]:
    """The workload on own hardware, compared with an API at ``api_request`` dollars a request."""
    yield (
        f"{own.shape.name} on {cost.devices} × {own.machine.name}, {dollars(cost.per_hour)} per hour, "
        f"{cost.busy_share:.0%} utilization (predicted)"
    )
    errors = errors_for(own.shape, own.machine, constants_for(own.machine, own.shape))
    yield f"  {error_words(replace(errors, ttft=None))}"
    yield _line("million tokens", f"{dollars(cost.per_million_input)} in", f"{dollars(cost.per_million_output)} out")
    yield _line(
        "request",
        dollars(cost.per_request),
        f"{cost.prefill_s * 1000:,.1f} ms of prefill, {cost.decode_s * 1000:,.1f} ms of decode",
        f"in steps of {cost.batch:,} sequences and {cost.step_s * 1000:,.1f} ms",
    )
    yield _half_line(cost.half_output_saves, cost.per_request)
    replicas = f"{count(cost.replicas, 'replica')}, all day"
    api_month = api_request * cost.workload.requests_per_day * float(MONTH_DAYS)
    yield _line("a month", dollars(cost.per_month), replicas, f"the API takes {dollars(api_month)}")
    yield f"  {_cheaper(cost, api_request)}"


def _cheaper(cost: OwnCost, api_request: float) -> str:
    start = cost.cheaper_from(api_request)
    capacity = f"one replica serves {cost.requests_per_day:,.0f} requests a day, for {dollars(cost.per_hour * 24)}"
    if start is None:
        return f"The API is cheaper at any volume: {capacity}."
    return f"Own hardware is cheaper from {start:,.0f} requests a day on; {capacity}."


def compression_lines(cost: ApiCost, compression: Compression) -> Iterator[str]:
    """Savings by compressed prompts, against fresh input and against a cached prefix."""
    workload, saved = cost.workload, compression_saved(cost, compression)
    yield (
        f"prompts compressed {compression.ratio:g}:1 for {dollars(compression.cost)} each: saves {dollars(saved)} per "
        f"request against uncached input, {dollars(saved * workload.requests_per_day * float(MONTH_DAYS))} per month"
    )
    against = against_cache(cost, compression)
    if against is not None:
        yield (
            f"  Against cache reads it pays off from {against.min_ratio:.1f}:1: here {dollars(against.saved)} per "
            "request."
        )


def api_document(cost: ApiCost, catalog: Catalog, at: datetime) -> dict[str, Any]:
    """The workload at an API."""
    cliff, chart = cliff_above(cost, at), caching_chart(cost, at)
    ways = caching_options(cost, at)
    return _prices(cost, catalog, at) | {
        "caching": _caching(cost),
        "cost": _amounts(cost),
        "options": [_amounts(option) for option in caching_options(cost, at)],
        "bills": {"fresh": _bill(cost.plain), "miss": _bill(cost.miss), "hit": _bill(cost.hit)},
        "half_answers_save": float(cost.half_output_saves),
        "cliff": None if cliff is None else {"above": cliff.above, "paid": float(cliff.paid)},
        "notes": [line for way in (*map(_cache_lines, ways), _cliff_lines(cost, at)) if (line := " ".join(way))],
        "chart": None if chart is None else chart.document(),
    }


def price_document(
    api: ApiCost,
    catalog: Catalog,
    at: datetime,
    *,
    traced: TracedCost | None = None,
    compression: Compression | None = None,
    own: tuple[OwnMachines, OwnCost, float] | None = None,
) -> dict[str, Any]:
    """A workload, or a trace, at an API; with the effect of compressed prompts and the cost on own hardware."""
    found = api_document(api, catalog, at) if traced is None else trace_document(traced, api, catalog, at)
    if compression is not None:
        found["compression"] = compression_document(api, compression)
    if own is not None:
        found["own"] = own_document(*own)
    return found


def trace_document(traced: TracedCost, mean: ApiCost, catalog: Catalog, at: datetime) -> dict[str, Any]:
    """A trace at an API; prices and workload are those of its mean request."""
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
        "half_answers_save": float(mean.half_output_saves * traced.requests),
    }
    return _prices(mean, catalog, at) | {"trace": cost}


def own_document(own: OwnMachines, cost: OwnCost, api_request: float) -> dict[str, Any]:
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
        "note": _cheaper(cost, api_request),
    }


def compression_document(cost: ApiCost, compression: Compression) -> dict[str, Any]:
    against = against_cache(cost, compression)
    return {
        "ratio": compression.ratio,
        "cost": compression.cost,
        "saved": compression_saved(cost, compression),
        "saved_against_cache": None if against is None else against.saved,
        "least_ratio_against_cache": None if against is None else _finite(against.min_ratio),
    }


def _prices(cost: ApiCost, catalog: Catalog, at: datetime) -> dict[str, Any]:
    workload, prices = cost.workload, cost.prices
    kinds = ("input", "cache_read", "cache_write_5m", "cache_write_1h", "output")
    sizes = ("input_tokens", "output_tokens", "requests_per_day", "prefix_tokens", "session")
    return {
        "schema": SCHEMA,
        "model": cost.model.name,
        "tier": workload.tier,
        "prices_from": catalog.source,
        "at": at.isoformat(),
        "per_million": {kind: float(getattr(prices, kind)) for kind in kinds},
        "context": cost.model.context,
        "cliffs": list(cost.model.cliffs(at, workload.tier)),
        "other_charges": list(cost.model.other_charges),
        "workload": {name: getattr(workload, name) for name in sizes},
    }


def _caching(cost: ApiCost) -> dict[str, Any]:
    found: dict[str, Any] = {"state": cost.caching, "least_tokens": cost.min_cached, "ttl": cost.workload.ttl}
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


def _amounts(cost: ApiCost) -> dict[str, Any]:
    return {
        "ttl": cost.workload.ttl if cost.caching == "on" else None,
        "per_request": float(cost.per_request),
        "per_day": float(cost.per_day),
        "per_month": float(cost.per_month),
    }


def _bill(bill: Bill) -> list[dict[str, Any]]:
    return [
        {
            "kind": line.kind,
            "tokens": int(line.quantity),
            "per_million": float(line.price),
            "amount": float(line.amount),
        }
        for line in bill.lines
    ]


def _finite(number: float) -> float | None:
    """None for infinity, which JSON lacks."""
    return number if number < float("inf") else None


def _half_line(saved: Decimal | float, request: Decimal | float) -> str:
    share = f"{float(saved) / float(request):.0%} of a request" if request else ""
    return _line("half the output", f"{dollars(saved)} less", share)


def _line(label: str, *parts: str) -> str:
    first, *rest = parts
    return f"  {label:<{LABEL}} {first:>14}  {', '.join(part for part in rest if part)}".rstrip()
