"""What a workload costs, in words for a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from typing import Final

from twofold.core.request import TTL_SECONDS
from twofold.core.units import count
from twofold.planner.predict.errors import error_words, errors_for
from twofold.planner.predict.known import constants_for
from twofold.planner.price.caching import CacheCost
from twofold.planner.price.catalog import Catalog
from twofold.planner.price.compression import Compression, against_cache, compression_saved
from twofold.planner.price.own import OwnCost, OwnMachines
from twofold.planner.price.rates import ApiModel, Tier
from twofold.planner.price.traced import TracedCost
from twofold.planner.price.workload import (
    DAY_S,
    MONTH_DAYS,
    ApiCost,
    cache_cost,
    caching_options,
    cliff_above,
    half_answers,
)

LABEL: Final = 18


def dollars(amount: Decimal | float) -> str:
    """An amount with cents from a dollar on, and three digits below."""
    value = float(amount)
    sign = "-" if value < 0 else ""
    value = abs(value)
    if value >= 1 or value == 0:
        return f"{sign}${value:,.2f}"
    return f"{sign}${value:.3g}" if value >= 1e-4 else f"{sign}${value:.2e}"


def tell_prices(model: ApiModel, catalog: Catalog, tokens: int, at: datetime, tier: Tier) -> Iterator[str]:
    """What a million tokens cost for prompts of that length."""
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


def tell_api(cost: ApiCost, at: datetime) -> Iterator[str]:
    """What the workload costs with every way of caching, and what else decides."""
    workload = cost.workload
    yield (
        f"{workload.input_tokens:,} input and {workload.output_tokens:,} output tokens per request, "
        f"{workload.requests_per_day:,.6g} requests per day"
    )
    for option in caching_options(cost, at):
        yield _line("no cache" if option.caching != "on" else f"{option.workload.ttl} cache", *_amounts(option))
    if cost.caching == "too short":
        yield (
            f"  A prefix of {workload.prefix_tokens:,} tokens is not cached: the minimum for {cost.model.name} is "
            f"{cost.min_cached:,}. The cache saves $0."
        )
    if cost.caching == "on":
        yield from _tell_cache(cost)
    if workload.output_tokens:
        saved = half_answers(cost)
        share = saved / cost.per_request if cost.per_request else Decimal(0)
        yield _line("half the output", f"{dollars(saved)} less", f"{share:.0%} of a request")
    cliff = cliff_above(cost, at)
    if cliff is not None:
        yield f"  Prompts above {cliff.above:,} tokens cost more: that adds {dollars(cliff.paid)} per request."


def tell_trace(traced: TracedCost, mean: ApiCost) -> Iterator[str]:
    """What a trace costs; the mean request leaves out cliffs, which single requests may be above."""
    workload = mean.workload
    yield (
        f"trace of {traced.requests:,} requests in {minutes(traced.seconds)}: {workload.input_tokens:,} input and "
        f"{workload.output_tokens:,} output tokens on average"
    )
    found = [("no cache", traced.plain, "")]
    if traced.read or traced.written:
        note = f"{traced.read_share:.1%} of prompt tokens read"
        found.append((f"{traced.ttl} cache", traced.cached, note))
    for label, total, note in found:
        yield _line(label, dollars(total), f"{dollars(traced.per_month(total))} per month", note)
    if len(found) > 1:
        share = traced.saved_share
        does = f"saves {share:.1%}" if share >= 0 else f"costs {-share:.1%} more"
        yield f"  The cache {does}: {traced.written:,} tokens are written and {traced.read:,} read."
    if workload.output_tokens:
        yield _line("half the output", f"{dollars(half_answers(mean) * traced.requests)} less")


def _amounts(cost: ApiCost) -> tuple[str, str, str]:
    note = f"{cost.miss_share:.1%} of requests write it" if cost.caching == "on" else ""
    return dollars(cost.per_request), f"{dollars(cost.per_month)} per month", note


def _tell_cache(cost: ApiCost) -> Iterator[str]:
    if not cost.prices.input:
        return
    found = cache_cost(cost)
    ttl = cost.workload.ttl
    paid = "A cache write costs no more than input."
    if found.write > 1:
        paid = f"A {ttl} cache write breaks even after {found.break_even_reads:.2f} reads."
    saved = f"this workload saves {dollars(cost.saved)}"
    yield f"  {paid} Best case saves {dollars(cost.max_saved)} per request; {saved}."
    if cost.workload.session is None:
        yield f"  {_gaps(found, TTL_SECONDS[ttl], DAY_S / cost.workload.requests_per_day)}"


def _gaps(found: CacheCost, ttl_s: float, gap_s: float) -> str:
    longest = found.longest_gap_s(ttl_s)
    here = f"here it is {minutes(gap_s)}"
    if longest == float("inf"):
        return f"It pays off at any mean gap between requests; {here}."
    if longest == 0:
        return "It never pays off: a cache read costs no less than input."
    return f"It pays off while the mean gap between requests is below {minutes(longest)}; {here}."


def tell_own(own: OwnMachines, cost: OwnCost, api_request: float) -> Iterator[str]:
    """What the workload costs on own hardware, beside an API that takes ``api_request`` for a request."""
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
    yield _line("half the output", f"{dollars(cost.half_answers)} less", _share(cost.half_answers, cost.per_request))
    replicas = f"{count(cost.replicas, 'replica')}, all day"
    api_month = api_request * cost.workload.requests_per_day * float(MONTH_DAYS)
    yield _line("a month", dollars(cost.per_month), replicas, f"the API takes {dollars(api_month)}")
    yield f"  {_cheaper(cost, api_request)}"


def _cheaper(cost: OwnCost, api_request: float) -> str:
    start = cost.cheaper_from(api_request)
    most = f"one replica serves {cost.requests_per_day:,.0f} requests a day"
    if start is None:
        return f"The API is cheaper at any volume: {most}, for {dollars(cost.per_hour * 24)}."
    return f"Own hardware is cheaper from {start:,.0f} requests a day on; {most}."


def tell_compression(cost: ApiCost, compression: Compression) -> Iterator[str]:
    """Whether compressing the prompts pays: against fresh input, and against a prefix in the cache."""
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


def minutes(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.0%} of a request" if whole else ""


def _line(label: str, *parts: str) -> str:
    first, *rest = parts
    return f"  {label:<{LABEL}} {first:>14}  {', '.join(part for part in rest if part)}".rstrip()
