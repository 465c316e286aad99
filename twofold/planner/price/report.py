"""What a workload costs, and its lines for a terminal. Amounts are dollars."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from typing import Final

from twofold.bench.draw.chart import Axis, Chart, Guide, Line, Mark
from twofold.core.request import TTL_SECONDS
from twofold.core.units import count
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

LABEL: Final = 18
GAPS_S: Final = tuple(10 ** (n / 20) for n in range(81))
"""Gaps between requests in the chart: 1 s to 3 h."""


@dataclass(frozen=True, slots=True)
class PriceAnswer:
    """A workload at an API; or a trace, whose mean request ``api`` is. ``own``: the same on own hardware, compared with
    that many dollars of a request."""

    api: ApiCost
    catalog: Catalog
    at: datetime
    traced: TracedCost | None = None
    compression: Compression | None = None
    own: tuple[OwnMachines, OwnCost, float] | None = None

    def lines(self) -> Iterator[str]:
        """Lines for a terminal."""
        api, at = self.api, self.at
        yield from price_lines(api.model, self.catalog, api.workload.input_tokens, at, api.workload.tier)
        yield from api_lines(api, at) if self.traced is None else trace_lines(self.traced, api)
        if self.compression is not None:
            yield from compression_lines(api, self.compression)
        if self.own is not None:
            yield from own_lines(*self.own)


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
    yield from (f"  {line}" for line in cache_lines(cost))
    if workload.output_tokens:
        yield _half_line(cost.half_output_saves, cost.per_request)
    yield from (f"  {line}" for line in cliff_lines(cost, at))


def cliff_lines(cost: ApiCost, at: datetime) -> Iterator[str]:
    cliff = cliff_above(cost, at)
    if cliff is not None:
        yield f"Prompts above {cliff.above:,} tokens cost more: that adds {dollars(cliff.paid)} per request."


def cache_lines(cost: ApiCost) -> Iterator[str]:
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
    yield f"  {cheaper_words(cost, api_request)}"


def cheaper_words(cost: OwnCost, api_request: float) -> str:
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


def _half_line(saved: Decimal | float, request: Decimal | float) -> str:
    share = f"{float(saved) / float(request):.0%} of a request" if request else ""
    return _line("half the output", f"{dollars(saved)} less", share)


def _line(label: str, *parts: str) -> str:
    first, *rest = parts
    return f"  {label:<{LABEL}} {first:>14}  {', '.join(part for part in rest if part)}".rstrip()
