"""A user's choice of a synthetic load, from which it can be made at any rate or concurrency."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from twofold.bench.load.base import Load, Prompt
from twofold.bench.load.lengths import Fixed, Lengths, Pauses
from twofold.bench.load.loops import Arrivals, ClosedLoop, OpenLoop
from twofold.bench.load.requests import RandomRequests, SharedPrefix
from twofold.bench.load.sessions import Conversations, Held, Sessions, Shape
from twofold.core.errors import ParameterError

DURATION_S: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """A synthetic load.

    rate         of an open loop, in requests a second; with ``turns``, in sessions a second
    concurrency  without a rate, clients of a closed loop; with a rate, the maximum of open requests
    duration_s   time in which requests become due; default: DURATION_S, or none with ``requests``
    kind         of arrivals; ``burstiness`` is for gamma arrivals
    ramp_s       time over which the clients of a closed loop start
    """

    rate: float | None = None
    concurrency: int | None = None
    duration_s: float | None = None
    requests: int | None = None
    kind: str = "poisson"
    burstiness: float = 1.0
    ramp_s: float = 0.0
    input_tokens: Lengths = field(default_factory=lambda: Fixed(512))
    output_tokens: Lengths = field(default_factory=lambda: Fixed(128))
    shared: SharedPrefix | None = None
    turns: Lengths = field(default_factory=lambda: Fixed(1))
    pauses: Pauses = field(default_factory=lambda: Pauses("fixed", 0.0))
    fields: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.ramp_s and self.rate is not None:
            raise ParameterError("A ramp is for a closed loop, which has a concurrency and no rate.", param="ramp")
        if self.kind != "poisson" and self.rate is None and self.concurrency is not None:
            raise ParameterError("Arrivals are drawn for a rate; a closed loop has none.", param="arrivals")

    @property
    def until_s(self) -> float | None:
        return DURATION_S if self.duration_s is None and self.requests is None else self.duration_s

    @property
    def multi_turn(self) -> bool:
        return self.turns.most > 1

    def load(self, prompt: Prompt, seed: int) -> Load:
        """The load. ``prompt`` gives the messages of a request, for the history of later turns.

        Raises ParameterError without a rate and a concurrency, and for invalid values.
        """
        end, fields, shared = self.until_s, self.fields, self.shared
        if self.rate is not None:
            arrivals = Arrivals(self.rate, self.kind, self.burstiness)  # type: ignore[arg-type]
        elif self.concurrency is None:
            hint = "Give --rate 2 (open loop), --concurrency 8 (closed loop) or --trace FILE."
            raise ParameterError("A load needs a rate or a concurrency.", param="rate", hint=hint)
        clients = self.concurrency or 0
        if self.multi_turn:
            shape = Shape(self.turns, self.input_tokens, self.output_tokens, self.pauses, shared=shared, fields=fields)
            opens = Held(clients, self.ramp_s) if self.rate is None else arrivals
            return Sessions(
                opens,
                Conversations(shape, seed=seed),
                prompt,
                duration_s=end,
                sessions=self.requests,
                max_open=self.concurrency,
            )
        asks = RandomRequests(self.input_tokens, self.output_tokens, seed=seed, shared=shared, fields=fields)
        if self.rate is None:
            return ClosedLoop(clients, asks, duration_s=end, requests=self.requests, ramp_s=self.ramp_s)
        return OpenLoop(arrivals, asks, end, self.requests, self.concurrency)
