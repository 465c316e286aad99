"""A simulation's figures in lines, for people."""

from __future__ import annotations

import math
from collections.abc import Iterator

from twofold.planner.simulate.check import PercentileError
from twofold.planner.simulate.figures import Quantiles, SimulatedFigures, Usage

_NAMES = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "E2E", "queue": "queue"}


def lines(found: SimulatedFigures) -> Iterator[str]:
    """What came out, the most wanted first."""
    refused = f", {found.refused:,} rejected as too large" if found.refused else ""
    yield (
        f"{found.requests:,} requests in {_time(found.seconds)}{refused}: {found.requests_per_s:.4g} requests/s, "
        f"{found.output_tokens_per_s:,.0f} output tokens/s"
    )
    yield f"{'':8}{'P50':>10}{'P90':>10}{'P95':>10}{'P99':>10}{'P99.9':>10}{'max':>10}"
    for name, label in _NAMES.items():
        yield _row(label, getattr(found, name))
    yield (
        f"prompts  {found.cached_share:.1%} of {found.prompt_tokens:,} tokens cached; "
        f"{found.preemptions:,} preemptions; {found.waiting_mean:.3g} waiting on average, max {found.waiting_most:,}"
    )
    for name, usage in found.usage.items():
        yield _usage(name, usage)
    if found.goodput is not None:
        verdict = "met" if found.goodput.met else "missed"
        yield (
            f"goodput  {found.goodput.requests_per_s:.4g} requests/s within {found.goodput.slo}: "
            f"{found.goodput.attainment:.2%}, {verdict}"
        )


def compared_lines(found: tuple[PercentileError, ...]) -> Iterator[str]:
    """A measurement beside its simulation."""
    yield f"{'':10}{'measured':>12}{'simulated':>12}{'error':>9}"
    for each in found:
        label = f"{_NAMES[each.measure]} {each.percentile.upper()}"
        yield f"{label:10}{_time(each.measured):>12}{_time(each.simulated):>12}{each.error:>+9.1%}"


def _row(label: str, values: Quantiles) -> str:
    told = (values.p50, values.p90, values.p95, values.p99, values.p99_9, values.max)
    return f"{label:8}" + "".join(f"{_time(value):>10}" for value in told)


def _usage(name: str, usage: Usage) -> str:
    count = f"{usage.replicas} " if usage.replicas > 1 else ""
    return (
        f"{count}{name}: {usage.prefill:.1%} prefill, {usage.decode:.1%} decode, {usage.mixed:.1%} both, "
        f"{usage.idle:.1%} idle; {usage.rows_a_step:.3g} tokens per step; KV {usage.kv_mean:.1%} on average, "
        f"max {usage.kv_most:.1%}"
    )


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "—"
    if math.isinf(seconds):
        return "∞"
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= scale:
            return f"{seconds / scale:.4g} {unit}"
    return f"{seconds * 1e6:.3g} µs"
