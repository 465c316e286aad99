"""The same server and load, measured by ``twofold bench`` and by aiperf: the figures agree within noise.

aiperf takes the moment of a chunk when its event loop comes to it, and begins to count before it builds the request; on
an idle machine that adds 1 to 2 ms to its TTFT and E2E. That and the jitter of two runs is the noise allowed for.
Percentiles are ours (nearest rank) on both sides, since aiperf interpolates: docs/metrics.md has all differences.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from tests.bench.peers import aiperf
from tests.bench.peers.aiperf import Found
from tests.bench.stub.live import stub_server
from tests.bench.stub.script import Script
from tests.bench.truth.runs import at_best
from twofold.bench.client.loop import ClientOptions
from twofold.bench.client.target import ServerTarget
from twofold.bench.endpoints.endpoint import EndpointOptions
from twofold.bench.load.lengths import Fixed
from twofold.bench.load.synthetic import LoadPlan
from twofold.bench.metrics.distribution import MeasureDistribution
from twofold.bench.metrics.summary import Summary, summarise
from twofold.bench.study import Setup, connect

INPUT, OUTPUT = 64, 32
SCRIPT: Final = Script(first_s=0.05, gap_s=0.01)
MAX_BUSY: Final = 0.75
PLANS: Final = {
    "idle": (LoadPlan(rate=20.0, requests=60, kind="constant"), None),
    "overloaded": (LoadPlan(rate=20.0, requests=60, kind="constant"), 4),
    "closed loop": (LoadPlan(concurrency=2, requests=24), None),
}
"""A load, and how many requests the stub serves at a time. More clients than two start their requests in the same
moment as long as completions take equally long, and each waits for aiperf to build those before it."""


def ours(url: str, plan: LoadPlan) -> Summary:
    setup = Setup(ServerTarget.of(url), "chat", None, EndpointOptions("", extra=SCRIPT.fields), ClientOptions())
    with connect(setup) as session:
        return summarise(session.run(plan.load))


def theirs(url: str, folder: Path, plan: LoadPlan) -> Found:
    load: list[object] = ["--isl", INPUT, "--osl", OUTPUT, "--request-count", plan.requests]
    if plan.rate is None:
        load += ["--concurrency", plan.concurrency]
    else:
        load += ["--request-rate", plan.rate, "--arrival-pattern", "constant"]
    return aiperf.run(url, folder, load, SCRIPT.fields)


@pytest.mark.parametrize("name", PLANS)
def test_both_find_the_same(name: str, tmp_path: Path) -> None:
    """A test of times: the better of two tries counts, since a busy machine disturbs them."""
    aiperf.executable()
    plan, capacity = PLANS[name]
    plan = replace(plan, input_tokens=Fixed(INPUT), output_tokens=Fixed(OUTPUT))
    folders = iter((tmp_path / "first", tmp_path / "second"))

    def check() -> None:
        folder = next(folders)
        folder.mkdir()
        with stub_server() as stub:
            stub.rules(capacity=capacity)
            summary = ours(stub.url, plan)
            stub.rules(capacity=capacity)
            found = theirs(stub.url, folder, plan)
        print(f"\n{name}: ms, ours and aiperf's at P50 and P99")
        assert not [*apart(summary, found), *unequal(summary, found)]

    busy = os.getloadavg()[0] / len(os.sched_getaffinity(0))
    try:
        at_best(check, tries=2)
    except AssertionError:
        if busy > MAX_BUSY:
            pytest.skip(f"the machine is too busy: {busy:.1f} processes wait for each core")
        raise


def apart(summary: Summary, found: Found) -> list[str]:
    """Measures that differ by more than noise. A chunk that arrives one gap late is read with the next one."""
    latency = summary.latency
    rows = (
        ("TTFT", latency.ttft_sent_s, found.ttft, 0.005, 0.025),
        ("TPOT", latency.tpot_s, found.tpot, 0.0002, 0.001),
        ("gaps", summary.itl.gap_s, found.gaps, 0.0005, 0.010),
        ("E2E", latency.e2e_s, found.e2e, 0.005, 0.025),
    )
    return [row[0] for row in rows if difference(*row)]


def unequal(summary: Summary, found: Found) -> list[str]:
    """Rates that differ by more than 3 %."""
    achieved = summary.rates.achieved
    assert achieved is not None
    rows = (
        ("requests/s", achieved.requests_per_s, found.requests_per_s),
        ("output tokens/s", achieved.output_tokens_per_s, found.output_tokens_per_s),
    )
    for unit, own, other in rows:
        print(f"{unit:16} {own:9.2f} {other:9.2f}")
    return [unit for unit, own, other in rows if own != pytest.approx(other, rel=0.03)]


def difference(name: str, own: MeasureDistribution, other: Sequence[float], p50: float, p99: float) -> bool:
    """Whether P50 or P99 differ by more than that."""
    second = MeasureDistribution.of(list(other))
    assert own.p50 is not None
    assert own.p99 is not None
    assert second.p50 is not None
    assert second.p99 is not None
    print(f"{name:16} {own.p50 * 1e3:9.3f} {second.p50 * 1e3:9.3f} {own.p99 * 1e3:9.3f} {second.p99 * 1e3:9.3f}")
    assert own.n == second.n
    return abs(own.p50 - second.p50) >= p50 or abs(own.p99 - second.p99) >= p99
