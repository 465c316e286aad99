"""Records of the stub, on the monotonic clock (``time.perf_counter``), which all processes share."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Truth:
    """Of one request.

    arrived        when the kernel had the last bytes of the request, and ``taken`` when the stub began to serve it
    before, after  the moments between which each chunk with output was handed to the kernel; the stub may be put off
                   the processor between them, so the truth lies somewhere in there
    late_s         the longest that a write left after it was due
    ended          when the last byte left
    connection     counts the connections that the stub took
    """

    id: str
    connection: int
    arrived: float
    taken: float
    before: array[float] = field(default_factory=lambda: array("d"))
    after: array[float] = field(default_factory=lambda: array("d"))
    late_s: float = 0.0
    ended: float | None = None

    @classmethod
    def of(cls, told: dict[str, Any]) -> Truth:
        """As ``plain`` told it."""
        moments = {name: array("d", told[name]) for name in ("before", "after")}
        return cls(**{**told, **moments})

    @property
    def plain(self) -> dict[str, Any]:
        moments = {"before": self.before.tolist(), "after": self.after.tolist()}
        rest = ("id", "connection", "arrived", "taken", "late_s", "ended")
        return {**{name: getattr(self, name) for name in rest}, **moments}
