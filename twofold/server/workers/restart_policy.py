"""How long a worker process may be silent, and how often it may end."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """When a worker counts as hung, and how often it may end.

    ping_s      between two questions whether it is there
    idle_s      how long it may leave them unanswered when it has nothing to do
    busy_s      … when it has requests: a step of a large model is long
    ends        so many ends within ``ends_within_s`` and it is not started again
    pause_s     before the second start in that time; it doubles with each further one
    """

    ping_s: float = 5.0
    idle_s: float = 30.0
    busy_s: float = 300.0
    ends: int = 5
    ends_within_s: float = 60.0
    pause_s: float = 0.25
