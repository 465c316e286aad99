"""The metrics page: its formats, its age, and that writing it does not block the event loop."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import parser

from tests.observe.served import served, snapshot, step
from tests.support.clock import VirtualClock
from twofold.observe.metrics.instruments import Instruments
from twofold.observe.metrics.server import MetricsPage, ServerMetrics, wants_openmetrics

PROMETHEUS = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;version=0.0.4;q=0.4,*/*;q=0.1"
)


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        ("", False),
        ("*/*", False),
        ("text/plain", False),
        (PROMETHEUS, True),
        ("APPLICATION/OPENMETRICS-TEXT", True),
        ("application/openmetrics-text; version=nonsense\x00", True),
        ("application/openmetrics-text;q=0", False),
        (",;,;;=", False),
    ],
)
def test_the_format_is_the_one_asked_for(accept: str, wanted: bool) -> None:
    assert wants_openmetrics(accept) is wanted
    page = asyncio.run(ServerMetrics().read(accept))
    assert page.content_type.startswith("application/openmetrics-text" if wanted else "text/plain; version=0.0.4")
    assert page.body.endswith(b"# EOF\n") is wanted


def test_openmetrics_readers_understand_it() -> None:
    metrics = ServerMetrics()
    metrics.on_step("small", step())
    metrics.on_snapshot("small", snapshot())
    metrics.on_served(served())
    body = asyncio.run(metrics.read(PROMETHEUS)).body.decode()
    families: Callable[[str], Iterable[Metric]] = parser.text_string_to_metric_families
    names = {family.name for family in families(body)}
    assert names == {snapshot.family().name for snapshot in metrics.instruments.snapshots()}


def test_a_page_is_reused_for_a_second() -> None:
    async def read() -> None:
        first = await metrics.read()
        metrics.on_served(served())
        clock.advance(0.9)
        assert await metrics.read() is first
        clock.advance(0.2)
        assert b"vllm:prompt_tokens_total{" in (await metrics.read()).body

    clock = VirtualClock()
    metrics = ServerMetrics(clock=clock)
    asyncio.run(read())


def test_concurrent_readers_get_the_same_page() -> None:
    async def read() -> None:
        pages = await asyncio.gather(*(page.read() for _ in range(20)))
        assert all(each is pages[0] for each in pages)

    page = MetricsPage(Instruments(), VirtualClock().now)
    asyncio.run(read())


def test_pages_are_written_on_another_thread() -> None:
    async def read() -> None:
        await page.read()

    class Recorder:
        def family(self) -> Metric:
            writers.append(threading.get_ident())
            return Metric("own", "Nothing.", "gauge")

    writers: list[int] = []
    instruments = Instruments()
    instruments.source("own", Recorder)
    page = MetricsPage(instruments, VirtualClock().now)
    asyncio.run(read())
    assert writers
    assert threading.get_ident() not in writers


def test_copying_the_numbers_of_a_busy_server_does_not_hold_up_the_loop() -> None:
    metrics = ServerMetrics()
    for i in range(400):
        metrics.on_served(served(model=f"model-{i % 4}", tenant=f"tenant-{i}", duration_s=i / 10))
    times = []
    for _ in range(5):
        began = time.thread_time()
        metrics.instruments.snapshots()
        times.append(time.thread_time() - began)
    assert min(times) < 0.005
