"""A thousand streams and 20,000 chunks a second on one core: the figures of the client stay correct.

This is a test of time by its nature: client and stub have a core each, and whatever else runs there takes from both. So
the best of a few tries counts. The stub's own lateness does not matter, for what was measured is compared with when
chunks truly left; but where the stub does not come to 20,000 chunks a second, or others kept the client from its core
and it failed, nothing was learnt, and the test is skipped. (What a client that is kept away for longer than a gap then
reads together has one moment: that is ``merged``.)
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from tests.bench.stub.live import stub_server
from tests.bench.stub.script import Script
from tests.bench.truth.runs import CLOSE_S, Bounds, Play, Run, at_best, percentile, percentile_bounds, play, since
from twofold.bench.metrics.summary import summarise

STREAMS: Final = 1000
CHUNKS: Final = 80
GAP_S: Final = 0.05
START_S: Final = 0.8
FIRST_S: Final = 0.9
MAX_WAITING: Final = 0.05
"""Share of the time without a core, above which a failure says nothing about the client."""

CORES: Final = sorted(os.sched_getaffinity(0))

pytestmark = pytest.mark.skipif(len(CORES) < 2, reason="client and stub need a core each")


@dataclass(frozen=True, slots=True)
class Errors:
    """How far a measure is from the middle of its bounds, seconds: of single values, and of their percentiles."""

    p50: float
    p99: float
    of_p50: float
    of_p99: float

    @classmethod
    def of(cls, measured: list[float], truth: list[Bounds]) -> Errors:
        single = [abs(value - bounds.middle) for value, bounds in zip(measured, truth, strict=True)]
        percentiles = [abs(percentile(measured, q) - percentile_bounds(truth, q).middle) for q in (50, 99)]
        return cls(percentile(single, 50), percentile(single, 99), *percentiles)

    def __str__(self) -> str:
        told = (f"{name} {value * 1e3:.3f} ms" for name, value in zip(self.__slots__, self.seconds, strict=True))
        return ", ".join(told)

    @property
    def seconds(self) -> tuple[float, ...]:
        return self.p50, self.p99, self.of_p50, self.of_p99


class TooBusyError(AssertionError):
    """The machine is too busy for the stub or the client."""


def waited_s() -> float:
    """How long this thread was ready and had no core, by the kernel's account (schedstat of proc(5))."""
    return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) * 1e-9


@contextmanager
def on_one_core(core: int) -> Iterator[None]:
    """This thread stays on one core, as the client has only one thread."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def test_a_thousand_streams_do_not_bend_the_figures() -> None:
    with stub_server(cpu=CORES[-1]) as stub:

        def check() -> None:
            stub.rules()
            script = Script(first_s=FIRST_S, gap_s=GAP_S)
            plays = [Play(script, START_S * index / STREAMS, CHUNKS) for index in range(STREAMS)]
            with on_one_core(CORES[0]):
                before = waited_s()
                run = play(stub, plays)
                waited = (waited_s() - before) / run.record.client.wall_s
            try:
                judge(run)
            except AssertionError as error:
                if waited > MAX_WAITING:
                    raise TooBusyError(
                        f"The machine is too busy: the client waited {waited:.0%} of the time."
                    ) from error
                raise

        try:
            at_best(check, tries=3)
        except TooBusyError as error:
            pytest.skip(str(error))


def judge(run: Run) -> None:
    """Prints what was measured, and holds it to the issue's limit."""
    latency, itl = ttft_errors(run), itl_errors(run)
    load, summary = run.record.client, summarise(run.record)
    print(f"\nchunks/s {pace(run):.0f}, streams at once {summary.concurrency.max}, core {load.cpu_s / load.wall_s:.0%}")
    print(f"lag P50 {load.lag_p50_s * 1e3:.3f} ms, P99 {load.lag_p99_s * 1e3:.3f} ms, moments by the {load.stamps}")
    late = [row.truth.arrived - row.play.due_s for row in run.rows]
    print(f"requests arrived late by P50 {percentile(late, 50) * 1e3:.3f} ms, P99 {percentile(late, 99) * 1e3:.3f} ms")
    print(f"stub late by {max(row.truth.late_s for row in run.rows) * 1e3:.1f} ms at most")
    print(f"error of TTFT: {latency}\nerror of ITL:  {itl}")
    if pace(run) < 0.95 * STREAMS / GAP_S:
        raise TooBusyError(f"The machine is too busy: the stub came to {pace(run):.0f} chunks/s.")
    assert {row.sample.outcome for row in run.rows} == {"ok"}
    assert summary.concurrency.max == STREAMS
    assert percentile(late, 50) < CLOSE_S
    assert max(latency.seconds) < CLOSE_S
    assert max(itl.seconds) < CLOSE_S


def ttft_errors(run: Run) -> Errors:
    measured = [(row.sample.first_s or 0.0) - row.play.due_s for row in run.rows]
    return Errors.of(measured, [since(row.play.due_s, row.first) for row in run.rows])


def itl_errors(run: Run) -> Errors:
    measured, truth = [], []
    for row in run.rows:
        moments = row.sample.response.moments
        measured += [after - before for before, after in itertools.pairwise(moments)]
        truth += row.gaps
    return Errors.of(measured, truth)


def pace(run: Run) -> float:
    """Chunks a second that the stub sent while all streams were open."""
    last_begun = max(row.first.least for row in run.rows)
    first_ended = min(row.last.least for row in run.rows)
    chunks = sum(last_begun <= moment < first_ended for row in run.rows for moment in row.truth.before)
    return chunks / (first_ended - last_begun)
