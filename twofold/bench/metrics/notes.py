"""Warnings about the figures of a run: a kind and a sentence each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from twofold.bench.metrics.chunks import InterTokenLatency
from twofold.bench.metrics.counts import RequestCounts, Tokens
from twofold.bench.metrics.distribution import MeasureDistribution, needed
from twofold.bench.record import Client, RequestSample, RunRecord

MAX_CPU: Final = 0.8
"""Share of one core above which the client may be the bottleneck."""

MAX_LAG_S: Final = 2e-3
"""P99 of the lag."""

MAX_DELAY: Final = 0.1
"""P99 of the schedule delay as a share of P99 of TTFT."""

MAX_MERGED: Final = 0.01
"""Share of chunks with the time of the next one."""

MAX_CACHED: Final = 0.5
"""Cached share of the tokens of prompts that share nothing with others."""

PERCENTILES: Final = ((0.99, "P99"), (0.999, "P99.9"))
"""Percentiles that may need more requests."""


@dataclass(frozen=True, slots=True)
class Note:
    """A warning; ``kind`` is for programs."""

    kind: str
    text: str


def run_notes(record: RunRecord, requests: RequestCounts) -> Iterator[Note]:
    """Warnings about outcomes."""
    if not requests.measured:
        yield Note("nothing_measured", "no request was measured: warm-up and cool-down exclude all, or none became due")
    open_still = requests.outcomes["unfinished"]
    if record.interrupted:
        left = f"; {open_still} open requests are excluded" if open_still else ""
        yield Note("interrupted", f"the run was stopped early{left}")
    elif open_still:
        yield Note("unfinished", f"{open_still} requests did not finish within the drain period; counted as failed")
    done = requests.outcomes["ok"]
    if requests.whole:
        yield Note(
            "whole",
            f"{requests.whole} of {done} responses arrived in one piece: their TTFT equals E2E, and they have no TPOT",
        )
    if requests.empty:
        yield Note("empty", f"{requests.empty} of {done} responses are complete but empty")


def size_notes(ttft: MeasureDistribution) -> Iterator[Note]:
    """Warnings about percentiles of too few requests."""
    short = [(name, needed(share)) for share, name in PERCENTILES if 0 < ttft.n < needed(share)]
    if short:
        names = " and ".join(name for name, _ in short)
        verb = "are" if len(short) > 1 else "is"
        least = " and ".join(f"{count:,}" for _, count in short)
        yield Note(
            "few_requests",
            f"{names} {verb} unreliable with {ttft.n:,} requests: a 95% confidence bound needs {least}",
        )


def client_notes(client: Client) -> Iterator[Note]:
    """Warnings about the client as a possible bottleneck."""
    busy = cpu_share(client)
    if busy > MAX_CPU:
        yield Note("client_busy", f"the client used {busy:.0%} of a core and may have been the bottleneck")
    if client.lag_p99_s > MAX_LAG_S:
        lag = f"{client.lag_p99_s * 1e3:.1f} ms"
        sent = "schedule delay shows how late requests were sent"
        late = sent if client.stamps == "kernel" else "timestamps may be late"
        yield Note("client_lag", f"client lag up to {lag} (P99): {late}")


def measure_notes(
    ttft: MeasureDistribution, schedule_delay: MeasureDistribution, itl: InterTokenLatency, tokens: Tokens
) -> Iterator[Note]:
    """Warnings about single measures."""
    delay, first = schedule_delay.p99, ttft.p99
    if delay is not None and first is not None and delay > MAX_DELAY * first and delay >= 1e-3:
        yield Note(
            "schedule_delay",
            f"requests waited in the client for up to {delay:.3g} s (P99) before they were sent; TTFT includes that",
        )
    if itl.chunk_tokens.n and itl.merged > MAX_MERGED * itl.chunk_tokens.n:
        part = f"{itl.merged / itl.chunk_tokens.n:.0%} of chunks"
        yield Note("merged", f"{part} arrived together with the next one; the gaps between them count as 0")
    if itl.assumed_share:
        yield Note(
            "assumed_tokens",
            f"token counts are missing for {itl.assumed_share:.0%} of chunks; tokens were spread evenly across them",
        )
    if tokens.output.fewer:
        yield Note("ended_early", f"{tokens.output.fewer} of {tokens.output.told} responses are shorter than requested")
    if tokens.prompt.told > tokens.prompt.equal:
        wrong = tokens.prompt.told - tokens.prompt.equal
        yield Note(
            "inexact_prompts",
            f"{wrong} of {tokens.prompt.told} prompts differ from the requested length, by up to "
            f"{tokens.prompt.max_difference} tokens",
        )


def prompt_notes(measured: Iterable[RequestSample], template: int = 0) -> Iterator[Note]:
    """Warnings about cached prompts that should be new, except the ``template`` tokens that all prompts share.

    If the server counts more tokens in every prompt than were requested, they belong to the template too.
    """
    new = [
        (sample.answer.prompt_tokens, sample.answer.cached_tokens or 0, sample.ask.input_tokens)
        for sample in measured
        if sample.outcome == "ok"
        and sample.answer.prompt_tokens
        and not (sample.ask.shared or sample.ask.history or sample.ask.messages)
    ]
    common = template + max(0, min((counted - sent for counted, _, sent in new), default=0))
    prompts = sum(max(0, counted - common) for counted, _, _ in new)
    cached = sum(max(0, found - common) for _, found, _ in new)
    if cached > MAX_CACHED * prompts:
        yield Note(
            "seen_before",
            f"{cached / prompts:.0%} of the prompt tokens after the chat template came from the server's prefix cache: "
            "it has seen these prompts before. Use another --seed, or none",
        )


def cpu_share(client: Client) -> float:
    """The share of one core that the client used."""
    return client.cpu_s / client.wall_s if client.wall_s else 0.0
