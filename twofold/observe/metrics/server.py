"""All metrics of a server: an observer of engines and requests, and the page that Prometheus reads."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Executor

from twofold.core.clock import Clock, MonotonicClock
from twofold.core.report import EngineSnapshot
from twofold.observe.metrics.engine import EngineMetrics
from twofold.observe.metrics.goodput import DEFAULT_OBJECTIVES, Objective
from twofold.observe.metrics.instruments import Instruments
from twofold.observe.metrics.page import MetricsPage, Page
from twofold.observe.metrics.recent import Recent
from twofold.observe.metrics.requests import RequestMetricsObserver
from twofold.observe.served import ServedRequest


class ServerMetrics(EngineMetrics):
    """``EngineObserver`` and ``ServedObserver``. All of it but the writing of pages runs on the event loop.

    ``objectives`` has the latency targets of each tier; a tier without an entry has none.
    """

    def __init__(
        self,
        objectives: Mapping[str, Objective] = DEFAULT_OBJECTIVES,
        *,
        clock: Clock | None = None,
        executor: Executor | None = None,
    ) -> None:
        now, self.instruments = (clock or MonotonicClock()).now, Instruments()
        super().__init__(self.instruments)
        self._requests = RequestMetricsObserver(self.instruments, Recent(self.instruments, now), objectives)
        self._page = MetricsPage(self.instruments, now, executor)

    def on_snapshot(self, model: str, snapshot: EngineSnapshot) -> None:
        self._requests.know(model)
        super().on_snapshot(model, snapshot)

    def on_served(self, served: ServedRequest) -> None:
        self._requests.on_served(served)

    async def read(self, accept: str = "", tenant: str | None = None) -> Page:
        """The page for ``GET /metrics`` with this Accept header; with ``tenant``, without series of other tenants."""
        return await self._page.read(accept, tenant)
