"""All metrics of a server: an observer of engines and requests, and the page that Prometheus reads.

The event loop copies the numbers, which takes well below a millisecond; a thread writes the text. A page is reused for
a second, and concurrent readers wait for the same page.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, exposition
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from twofold.core.clock import Clock, MonotonicClock
from twofold.core.report import EngineSnapshot
from twofold.observe.metrics.engine import EngineMetrics
from twofold.observe.metrics.instruments import Instruments, Snapshot, Values
from twofold.observe.metrics.recent import Recent
from twofold.observe.metrics.replicas import ReplicaMetrics
from twofold.observe.metrics.requests import DEFAULT_OBJECTIVES, Objective, RequestMetricsObserver

MIN_AGE_S: Final = 1.0
"""A younger page is reused."""
PLAIN: Final = "text/plain"
OPENMETRICS: Final = "application/openmetrics-text"
MAX_PAGES: Final = 32
"""Cached pages: one per format, and per tenant that sees only its own series."""
FORMATS: Final[dict[str, tuple[Callable[[Collector], bytes], str]]] = {
    PLAIN: (exposition.generate_latest, CONTENT_TYPE_PLAIN_0_0_4),
    OPENMETRICS: (
        partial(openmetrics.generate_latest, escaping=openmetrics.ALLOWUTF8),
        openmetrics.CONTENT_TYPE_LATEST,
    ),
}
"""Names have colons; prometheus_client 0.26 would escape them in samples of OpenMetrics, though they are allowed."""


class ServerMetrics(EngineMetrics):
    """``EngineObserver`` and ``ServedObserver``. Everything but the writing of pages runs on the event loop.

    ``objectives`` has the latency targets of tiers; a tier without an entry has none. ``replicas.read`` is set by the
    server. ``read`` is ``MetricsPage.read``.
    """

    def __init__(
        self,
        objectives: Mapping[str, Objective] = DEFAULT_OBJECTIVES,
        *,
        clock: Clock | None = None,
    ) -> None:
        now, self.instruments = (clock or MonotonicClock()).now, Instruments()
        super().__init__(self.instruments)
        self.replicas = ReplicaMetrics(self.instruments)
        self.recent = Recent(self.instruments, now)
        self._requests = RequestMetricsObserver(self.instruments, self.recent, objectives)
        self.on_served = self._requests.on_served
        self.read = MetricsPage(self.instruments, now).read

    def on_snapshot(self, model: str, snapshot: EngineSnapshot, replica: int = 0) -> None:
        self._requests.add_model(model)
        super().on_snapshot(model, snapshot, replica)


@dataclass(frozen=True, slots=True)
class Page:
    """The body and the type of a response, and when it was made, in seconds of the clock."""

    body: bytes
    content_type: str
    made: float


@dataclass(frozen=True, slots=True)
class _Families:
    """The part of a registry that prometheus_client reads."""

    snapshots: Sequence[Snapshot]

    def collect(self) -> Iterable[Metric]:
        for snapshot in self.snapshots:
            yield snapshot.family()
            time.sleep(0)  # yields the interpreter to the event loop, which otherwise gets it only every 5 ms


@dataclass(slots=True)
class _CachedPage:
    """The last page of a format. The request that makes the next page holds the lock."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    page: Page | None = None


class MetricsPage:
    """Pages of instruments, written on threads."""

    def __init__(self, instruments: Instruments, now: Callable[[], float]) -> None:
        self._instruments = instruments
        self._now = now
        self._pages: OrderedDict[tuple[str, str | None], _CachedPage] = OrderedDict()

    async def read(self, accept: str = "", tenant: str | None = None) -> Page:
        """Returns the metrics page for this Accept header, at most MIN_AGE_S old.

        With ``tenant`` it excludes series of other tenants.
        """
        form = OPENMETRICS if wants_openmetrics(accept) else PLAIN
        cached = self._pages.setdefault((form, tenant), _CachedPage())
        self._pages.move_to_end((form, tenant))
        if len(self._pages) > MAX_PAGES:
            self._pages.popitem(last=False)
        async with cached.lock:
            if cached.page is None or self._now() - cached.page.made >= MIN_AGE_S:
                made, copies = self._now(), self._instruments.snapshots()
                if tenant is not None:
                    copies = [copy.only("tenant", tenant) if isinstance(copy, Values) else copy for copy in copies]
                cached.page = await asyncio.to_thread(_write, form, copies, made)
            return cached.page


def wants_openmetrics(accept: str) -> bool:
    """Whether an Accept header accepts OpenMetrics."""
    for media in accept.lower().split(","):
        kind, *parameters = (part.strip() for part in media.split(";"))
        if kind == OPENMETRICS:
            return not any(part in ("q=0", "q=0.0") for part in parameters)
    return False


def _write(form: str, snapshots: Sequence[Snapshot], made: float) -> Page:
    generate, content_type = FORMATS[form]
    return Page(generate(_Families(snapshots)), content_type, made)
