"""A server that freezes for 5 s: requests that were due meanwhile count as waiting, even if not sent."""

from __future__ import annotations

from typing import Final

from tests.bench.stub.live import LiveStub
from tests.bench.stub.script import Script
from tests.bench.truth.runs import CLOSE_S, Play, percentile_bounds, play, since
from twofold.bench.metrics.summary import summarise

RATE: Final = 160.0
SECONDS: Final = 6.5
MAX_OPEN: Final = 8
SERVICE_S: Final = 0.01
FREEZE_S: Final = 5.0


def test_a_freeze_shows_from_when_requests_were_due_and_not_from_when_they_were_sent(stub: LiveStub) -> None:
    """Eight of a thousand requests are open at the freeze: P99 of the sent requests would not show them."""
    stub.rules(freeze_at_s=0.5, freeze_s=FREEZE_S)
    script = Script(first_s=SERVICE_S)
    plays = [Play(script, due_s=index / RATE, output_tokens=1) for index in range(int(RATE * SECONDS))]
    run = play(stub, plays, max_open=MAX_OPEN)
    latency = summarise(run.record).latency
    assert latency.ttft_s.p99 is not None
    assert latency.ttft_sent_s.p99 is not None
    assert latency.schedule_delay_s.p99 is not None
    truth = percentile_bounds([since(row.play.due_s, row.first) for row in run.rows], 99)
    print(
        f"P99 of TTFT: {latency.ttft_s.p99:.4f} s from due (truth {truth.least:.4f} to {truth.most:.4f}), "
        f"{latency.ttft_sent_s.p99:.4f} s from the send; schedule delay {latency.schedule_delay_s.p99:.4f} s"
    )
    assert truth.error(latency.ttft_s.p99) < CLOSE_S
    assert latency.ttft_s.p99 > 0.9 * FREEZE_S
    assert latency.schedule_delay_s.p99 > 0.9 * FREEZE_S
    assert latency.ttft_sent_s.p99 < 0.1 * FREEZE_S
    assert latency.ttft_sent_s.max is not None
    assert latency.ttft_sent_s.max > 0.9 * FREEZE_S
