"""What a workload costs, in words for a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from typing import Final

from twofold.core.request import TTL_SECONDS
from twofold.cost.predict.errors import error_words, errors_for
from twofold.cost.predict.known import constants_for
from twofold.cost.price.caching import CacheCost
from twofold.cost.price.catalog import Catalog
from twofold.cost.price.compression import Compression, against_cache, compression_saved
from twofold.cost.price.own import OwnCost, OwnMachines
from twofold.cost.price.rates import ApiModel, Tier
from twofold.cost.price.traced import TracedCost
from twofold.cost.price.workload import (
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
    yield f"{model.name}{priced}: dollars of a million tokens, by {catalog.source}"
    parts = [f"input {prices.input:f}", f"cache read {prices.cache_read:f}"]
    if prices.cache_write_5m != prices.input:
        parts.append(f"cache write {prices.cache_write_5m:f}")
    if prices.cache_write_1h != prices.cache_write_5m:
        parts.append(f"for an hour {prices.cache_write_1h:f}")
    yield f"  {', '.join(parts)}, output {prices.output:f}"
    if model.context is not None and tokens > model.context:
        yield f"  it takes {model.context:,} tokens, and the prompt has {tokens:,}"
    if model.other_charges:
        yield f"  not counted here: {', '.join(model.other_charges)}"


def tell_api(cost: ApiCost, at: datetime) -> Iterator[str]:
    """What the workload costs with every way of caching, and what else decides."""
    workload = cost.workload
    yield (
        f"a request of {workload.input_tokens:,} + {workload.output_tokens:,} tokens, "
        f"{workload.requests_per_day:,.6g} a day"
    )
    for option in caching_options(cost, at):
        yield _line("no cache" if option.caching != "on" else f"cache for {option.workload.ttl}", *_amounts(option))
    if cost.caching == "too short":
        yield (
            f"  A prefix of {workload.prefix_tokens:,} tokens is not cached: {cost.model.name} keeps "
            f"{cost.least_cached:,} and more. The cache saves $0."
        )
    if cost.caching == "on":
        yield from _tell_cache(cost)
    if workload.output_tokens:
        saved = half_answers(cost)
        share = saved / cost.per_request if cost.per_request else Decimal(0)
        yield _line("answers halved", f"{dollars(saved)} less", f"{share:.0%} of a request")
    cliff = cliff_above(cost, at)
    if cliff is not None:
        yield f"  Prompts above {cliff.above:,} tokens are dearer: {dollars(cliff.paid)} of it is for being there."


def tell_trace(traced: TracedCost, mean: ApiCost) -> Iterator[str]:
    """What a trace costs; the mean request leaves out cliffs, which single requests may be above."""
    workload = mean.workload
    yield (
        f"a trace of {traced.requests:,} requests in {minutes(traced.seconds)}: {workload.input_tokens:,} + "
        f"{workload.output_tokens:,} tokens on average"
    )
    found = [("no cache", traced.plain, "")]
    if traced.read or traced.written:
        note = f"{traced.read_share:.1%} of the prompts' tokens read"
        found.append((f"cache for {traced.ttl}", traced.cached, note))
    for label, total, note in found:
        yield _line(label, dollars(total), f"{dollars(traced.per_month(total))} a month", note)
    if len(found) > 1:
        share = traced.saved_share
        does = f"saves {share:.1%}" if share >= 0 else f"makes it {-share:.1%} dearer"
        yield f"  The cache {does}: {traced.written:,} tokens are written, and {traced.read:,} read."
    if workload.output_tokens:
        yield _line("answers halved", f"{dollars(half_answers(mean) * traced.requests)} less")


def _amounts(cost: ApiCost) -> tuple[str, str, str]:
    note = f"{cost.miss_share:.1%} of the requests write it" if cost.caching == "on" else ""
    return dollars(cost.per_request), f"{dollars(cost.per_month)} a month", note


def _tell_cache(cost: ApiCost) -> Iterator[str]:
    if not cost.prices.input:
        return
    found = cache_cost(cost)
    ttl = cost.workload.ttl
    paid = "Writing costs no more than input."
    if found.write > 1:
        paid = f"A write for {ttl} has paid after {found.break_even_reads:.2f} reads."
    yield f"  {paid} {dollars(cost.most_saved)} a request would be saved if all read it; {dollars(cost.saved)} are."
    if cost.workload.session is None:
        yield f"  {_gaps(found, TTL_SECONDS[ttl], DAY_S / cost.workload.requests_per_day)}"


def _gaps(found: CacheCost, ttl_s: float, gap_s: float) -> str:
    longest = found.longest_gap_s(ttl_s)
    here = f"here it is {minutes(gap_s)}"
    if longest == float("inf"):
        return f"It pays at any mean gap between requests; {here}."
    if longest == 0:
        return "It never pays: reading costs no less than input."
    return f"It pays while the mean gap between requests is below {minutes(longest)}; {here}."


def tell_own(own: OwnMachines, cost: OwnCost, api_request: float) -> Iterator[str]:
    """What the workload costs on own hardware, beside an API that takes ``api_request`` for a request."""
    yield (
        f"on {cost.devices} × {own.machine.name} with {own.shape.name}, {dollars(cost.per_hour)} an hour, "
        f"busy {cost.busy_share:.0%} of it: predicted"
    )
    errors = errors_for(own.shape, own.machine, constants_for(own.machine, own.shape))
    yield f"  {error_words(replace(errors, ttft=None))}"
    yield _line("a million tokens", f"{dollars(cost.per_million_input)} in", f"{dollars(cost.per_million_output)} out")
    yield _line(
        "a request",
        dollars(cost.per_request),
        f"{cost.prefill_s * 1000:,.1f} ms of prefill, {cost.decode_s * 1000:,.1f} ms of decode",
        f"(steps of {cost.batch:,} sequences, {cost.step_s * 1000:,.1f} ms)",
    )
    yield _line("answers halved", f"{dollars(cost.half_answers)} less", _share(cost.half_answers, cost.per_request))
    replicas = f"{cost.replicas:,} replica{'' if cost.replicas == 1 else 's'}, all day"
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
        f"compressed {compression.ratio:g} to 1, for {dollars(compression.cost)} a prompt: {dollars(saved)} a request "
        f"saved against fresh input, {dollars(saved * workload.requests_per_day * float(MONTH_DAYS))} a month"
    )
    against = against_cache(cost, compression)
    if against is not None:
        yield (
            f"  Against reading the cached prefix it pays from {against.least_ratio:.1f} to 1 on: here "
            f"{dollars(against.saved)} a request."
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
