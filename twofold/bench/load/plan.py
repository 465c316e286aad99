"""Which load a user asked for, so that it can be made again at another rate or concurrency."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from twofold.bench.load.arrivals import Arrivals
from twofold.bench.load.base import Load
from twofold.bench.load.conversations import Conversations, Shape
from twofold.bench.load.lengths import Fixed, Lengths
from twofold.bench.load.loops import ClosedLoop, OpenLoop
from twofold.bench.load.pauses import Pauses
from twofold.bench.load.requests import RandomRequests
from twofold.bench.load.sessions import Held, Sessions
from twofold.bench.load.shared import SharedPrefix
from twofold.bench.load.turns import Prompt
from twofold.core.errors import ParameterError

DURATION_S: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """A made-up load.

    rate         requests a second, of an open loop; of sessions where there are ``turns``
    concurrency  without a rate, how many clients a closed loop has; with one, the most requests open at once
    duration_s   for which requests become due; DURATION_S where neither this nor ``requests`` is said
    kind         of arrivals, with ``burstiness`` for gamma ones
    ramp_s       over which a closed loop starts
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
        """The load. ``prompt`` says what a request sent, for the turns after it.

        Raises ParameterError where neither a rate nor a concurrency is known, and for what is impossible.
        """
        if self.rate is None and self.concurrency is None:
            raise ParameterError(
                "A load needs a rate or a concurrency.",
                param="rate",
                hint="Give --rate 2 (open loop), --concurrency 8 (closed loop) or --trace FILE.",
            )
        return self._sessions(prompt, seed) if self.multi_turn else self._single(seed)

    def _single(self, seed: int) -> Load:
        asks = RandomRequests(self.input_tokens, self.output_tokens, seed=seed, shared=self.shared, fields=self.fields)
        if self.rate is not None:
            return OpenLoop(self._arrivals(self.rate), asks, self.until_s, self.requests, self.concurrency)
        assert self.concurrency is not None
        return ClosedLoop(self.concurrency, asks, duration_s=self.until_s, requests=self.requests, ramp_s=self.ramp_s)

    def _sessions(self, prompt: Prompt, seed: int) -> Load:
        shape = Shape(
            self.turns, self.input_tokens, self.output_tokens, self.pauses, shared=self.shared, fields=self.fields
        )
        opens: Arrivals | Held
        if self.rate is not None:
            opens = self._arrivals(self.rate)
        else:
            assert self.concurrency is not None
            opens = Held(self.concurrency, self.ramp_s)
        return Sessions(
            opens,
            Conversations(shape, seed=seed),
            prompt,
            duration_s=self.until_s,
            sessions=self.requests,
            max_open=self.concurrency,
        )

    def _arrivals(self, rate: float) -> Arrivals:
        return Arrivals(rate, self.kind, self.burstiness)  # type: ignore[arg-type]
