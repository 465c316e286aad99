"""What a request would meet if it arrived at an engine now, and how far one is that has no token yet."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Forecast:
    """A prediction for a prompt.

    cached      tokens of the prompt that are in the prefix cache
    ahead       waiting sequences before it; ``running``: sequences that run
    queue_s, prefill_s, tpot_s   predicted seconds of its queue, its prefill, and of each token after the first; None
                before the engine predicts steps
    error       recent mean error of predicted steps, as a share; None before the first one
    queues_s    the queue's seconds of this request and of like ones that follow it at once, ascending
    """

    cached: int
    ahead: int
    running: int
    queue_s: float | None = None
    prefill_s: float | None = None
    tpot_s: float | None = None
    error: float | None = None
    queues_s: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class RequestProgress:
    """A request before its first token, ``at_s`` seconds after its arrival.

    ahead    waiting sequences that go first; None once it runs
    cached   tokens of its prompt that came from a cache; ``done``: these and the computed ones; ``of``: all
    first_token_s   predicted seconds from its arrival to its first token; None while it waits, or without a prediction
    """

    request_id: str
    at_s: float
    ahead: int | None
    cached: int
    done: int
    of: int
    first_token_s: float | None = None
