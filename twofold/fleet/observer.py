"""What a fleet reports to others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from twofold.core.lanes import LaneEvent
from twofold.core.report import EngineSnapshot, KVPicture, StepReport
from twofold.observe.served import ServedRequest


class EngineObserver(Protocol):
    """Receives the reports of the engines of all models, on the event loop."""

    def on_step(self, model: str, report: StepReport, replica: int = 0) -> None: ...

    def on_snapshot(self, model: str, snapshot: EngineSnapshot, replica: int = 0) -> None: ...

    def on_lanes(self, model: str, events: Sequence[LaneEvent], served: Callable[[str], ServedRequest | None]) -> None:
        """Events of a watched model; ``served`` returns the record of the request to which a job belongs."""

    def on_picture(self, model: str, at: float, picture: KVPicture) -> None: ...

    def on_restart(self, model: str, replica: int = 0) -> None:
        """The replica's process ended unexpectedly and is restarted."""

    def on_leave(self, model: str, replica: int = 0) -> None:
        """The replica has ended, and will not come back."""
