"""When a worker process counts as hung, and how often it is restarted."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """Times are in seconds.

    ping_s      interval of pings
    idle_s      time without a response after which an idle process is killed
    busy_s      the same for one with requests, because a step of a large model is long
    ends        ends within ``ends_within_s`` after which the process is not restarted
    pause_s     pause before the second restart in that time; it doubles with each further one
    """

    ping_s: float = 5.0
    idle_s: float = 30.0
    busy_s: float = 300.0
    ends: int = 5
    ends_within_s: float = 60.0
    pause_s: float = 0.25
