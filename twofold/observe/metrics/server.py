"""All metrics of a server behind one object: it hears of engines and requests, and gives the page to read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Executor

from twofold.core.clock import Clock, MonotonicClock
from twofold.core.report import EngineSnapshot, StepReport
from twofold.observe.metrics.engine import EngineMetrics
from twofold.observe.metrics.goodput import DEFAULT_OBJECTIVES, Objective
from twofold.observe.metrics.instruments import Instruments
from twofold.observe.metrics.page import MetricsPage, Page
from twofold.observe.metrics.recent import Recent
from twofold.observe.metrics.requests import RequestMetricsObserver
from twofold.observe.served import ServedRequest


class ServerMetrics:
    """``EngineObserver`` and ``ServedObserver``. Everything but the writing of pages runs on the event loop.

    ``objectives`` say by tier how fast an answer should be; a tier without one asks for nothing.
    """

    def __init__(
        self,
        objectives: Mapping[str, Objective] = DEFAULT_OBJECTIVES,
        *,
        clock: Clock | None = None,
        executor: Executor | None = None,
    ) -> None:
        now = (clock or MonotonicClock()).now
        self._instruments = Instruments()
        self._engines = EngineMetrics(self._instruments)
        self._requests = RequestMetricsObserver(self._instruments, Recent(self._instruments, now), objectives)
        self._page = MetricsPage(self._instruments, now, executor)

    def on_step(self, model: str, report: StepReport) -> None:
        self._engines.on_step(model, report)

    def on_snapshot(self, model: str, snapshot: EngineSnapshot) -> None:
        self._requests.know(model)
        self._engines.on_snapshot(model, snapshot)

    def on_restart(self, model: str) -> None:
        self._engines.on_restart(model)

    def on_served(self, served: ServedRequest) -> None:
        self._requests.on_served(served)

    def on_answer(self, endpoint: str, status: int) -> None:
        """Counts an answer of which nobody hears otherwise: a refusal at the door, or a route that runs no model.

        ``endpoint`` is the path of a route, "" where there is none, and never what a caller wrote.
        """
        self._requests.on_answer(endpoint, status)

    async def read(self, accept: str = "", tenant: str | None = None) -> Page:
        """The page for ``GET /metrics`` with this Accept header: a body and its content type. For a ``tenant`` the
        series of other tenants are left out."""
        return await self._page.read(accept, tenant)

    @property
    def names(self) -> Iterable[str]:
        """All families, without suffixes."""
        return self._instruments.names
