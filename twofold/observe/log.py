"""The requests that ended last, by id: what an explanation, asked for afterwards, is made of."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from twofold.core.report import RequestMetrics, StepReport

DEFAULT_MOST: Final = 1_000


class RequestLog:
    """An observer that keeps the reports of the ``most`` requests that ended last."""

    def __init__(self, most: int = DEFAULT_MOST) -> None:
        self._most = most
        self._reports: OrderedDict[str, RequestMetrics] = OrderedDict()

    def on_step(self, report: StepReport) -> None:
        """Steps are not kept."""

    def on_request(self, report: RequestMetrics) -> None:
        self._reports[report.request_id] = report
        self._reports.move_to_end(report.request_id)
        if len(self._reports) > self._most:
            self._reports.popitem(last=False)

    def get(self, request_id: str) -> RequestMetrics | None:
        """The report of the request that last bore this id; None if it runs, never was, or is too long ago."""
        return self._reports.get(request_id)

    def __len__(self) -> int:
        return len(self._reports)
