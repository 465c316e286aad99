"""The page that Prometheus reads, in the format that it asks for.

Numbers are copied on the event loop, which takes well below a millisecond; text is made of them on a thread. A page is
kept for a second, so whoever asks more often reads it again, and those who ask at once wait for one page together.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, exposition
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from twofold.observe.metrics.instruments import Instruments, Snapshot, Values

MIN_AGE_S: Final = 1.0
"""A page that is younger is not made again."""
PLAIN: Final = "text/plain"
OPENMETRICS: Final = "application/openmetrics-text"
MAX_PAGES: Final = 32
"""Pages that are kept: one for each format, and for each tenant that may only see its own."""
FORMATS: Final[dict[str, tuple[Callable[[Collector], bytes], str]]] = {
    PLAIN: (exposition.generate_latest, CONTENT_TYPE_PLAIN_0_0_4),
    OPENMETRICS: (
        partial(openmetrics.generate_latest, escaping=openmetrics.ALLOWUTF8),
        openmetrics.CONTENT_TYPE_LATEST,
    ),
}
"""Names have colons; prometheus_client 0.26 would escape them in samples of OpenMetrics, though they are allowed."""


@dataclass(frozen=True, slots=True)
class Page:
    """The body and type of a response, made at ``made``."""

    body: bytes
    content_type: str
    made: float


@dataclass(frozen=True, slots=True)
class _Families:
    """What prometheus_client writes: a registry, as far as it looks at one."""

    stills: Sequence[Snapshot]

    def collect(self) -> Iterable[Metric]:
        for still in self.stills:
            yield still.family()
            time.sleep(0)  # lets the event loop have the interpreter, which is otherwise handed over every 5 ms


@dataclass(slots=True)
class _CachedPage:
    """The last page of a format, and whose turn it is to make the next one."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    page: Page | None = None


class MetricsPage:
    """Makes pages of instruments. ``executor`` runs the writing; None is the event loop's own."""

    def __init__(self, instruments: Instruments, now: Callable[[], float], executor: Executor | None = None) -> None:
        self._instruments = instruments
        self._now = now
        self._executor = executor
        self._kept: OrderedDict[tuple[str, str | None], _CachedPage] = OrderedDict()

    async def read(self, accept: str = "", tenant: str | None = None) -> Page:
        """The page for a request with this Accept header, at most MIN_AGE_S old; of series that bear a tenant only
        those of ``tenant``, of all for None."""
        form = OPENMETRICS if wants_openmetrics(accept) else PLAIN
        kept = self._kept.setdefault((form, tenant), _CachedPage())
        self._kept.move_to_end((form, tenant))
        if len(self._kept) > MAX_PAGES:
            self._kept.popitem(last=False)
        async with kept.lock:
            if kept.page is None or self._now() - kept.page.made >= MIN_AGE_S:
                made, stills = self._now(), self._instruments.still()
                if tenant is not None:
                    stills = [still.only("tenant", tenant) if isinstance(still, Values) else still for still in stills]
                loop = asyncio.get_running_loop()
                kept.page = await loop.run_in_executor(self._executor, _write, form, stills, made)
            return kept.page


def wants_openmetrics(accept: str) -> bool:
    """Whether an Accept header names OpenMetrics without ruling it out."""
    for media in accept.lower().split(","):
        kind, *parameters = (part.strip() for part in media.split(";"))
        if kind == OPENMETRICS:
            return not any(part in ("q=0", "q=0.0") for part in parameters)
    return False


def _write(form: str, stills: Sequence[Snapshot], made: float) -> Page:
    generate, content_type = FORMATS[form]
    return Page(generate(_Families(stills)), content_type, made)
