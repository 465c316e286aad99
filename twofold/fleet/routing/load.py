"""The work of a replica, as its hub knows it: what it reported after its last step, and what was sent to it since.

A step that began when the replica reported is under way: it ends after as many seconds as the replica's step-time model
says, less those that have passed. The rows in it do not wait any more.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from twofold.core.step_basis import StepBasis
from twofold.engine.scheduler.forecast import EngineWork, WorkAhead
from twofold.engine.scheduler.step_time import StepShape, StepTimeModel

STEPS: Final = 2
"""Steps of prompts that are sent ahead: one that runs, and the next one, so that the engine need not wait for it."""
BESIDE: Final = 2
"""Sequences that may wait in an engine for a slot or for blocks, so that it has one when they become free."""
SHARE_S: Final = 10.0
"""Time constant of a replica's share of time on prompts."""
MAX_SHARE: Final = 0.95
GREEDY: Final = 2
"""A tenant that has so many requests fewer than another one at a replica gets a request there: the engine then shares
its slots evenly."""


class SentPrompt(NamedTuple):
    """A prompt that was sent to a replica: its tokens, those that were predicted to be cached, and its completions."""

    tokens: int
    cached: int
    completions: int = 1


class ReplicaLoad:
    """The load of a replica. Times are seconds on the hub's clock.

    slots     most running sequences of its engine, with at most ``rows`` rows a step
    step_time its step-time model, as last reported
    tenants   open requests by tenant
    """

    def __init__(self, slots: int, rows: int, basis: StepBasis) -> None:
        self.slots, self.rows = slots, rows
        self.step_time = StepTimeModel(basis)
        self.tenants: Counter[str] = Counter()
        self._work = EngineWork(chunk=rows)
        self._since = 0.0
        self._sent: deque[SentPrompt] = deque()
        self._count = 0
        self._prompt_s = self._prompt_at = 0.0

    def learn(self, weights: Sequence[float] | None) -> None:
        """The weights of the replica's step-time model; None before it predicts."""
        if weights is not None:
            self.step_time = StepTimeModel.of_weights(self.step_time.basis, weights)

    def report(self, received: int, work: EngineWork, now: float) -> None:
        """The replica reported its work, after it had received so many requests."""
        while self._sent and self._count - len(self._sent) < received:
            self._sent.popleft()
        self._work, self._since = work, now

    def send(self, prompt: SentPrompt, now: float) -> None:
        """A request was sent to the replica."""
        if not (self._sent or self._work.decode.rows or self._work.pending.rows):
            self._since = now  # it was idle, and begins at once
        self._sent.append(prompt)
        self._count += 1
        more = StepShape().plus(prompt.cached, prompt.tokens - prompt.cached, prompt.completions)
        self._prompt_s, self._prompt_at = self._prompts(now) + (self.step_time.predict(more) or 0.0), now

    def prompt_share(self, now: float) -> float:
        """The share of its time that the prompts sent lately take, by its step-time model: each counts for SHARE_S."""
        return min(MAX_SHARE, self._prompts(now) / SHARE_S)

    def _prompts(self, now: float) -> float:
        """Seconds of the prompts sent so far; half of them are forgotten in SHARE_S · ln 2."""
        return self._prompt_s * math.exp((self._prompt_at - now) / SHARE_S)

    def takes(self, tenant: str) -> bool:
        """Whether a request of a tenant may be sent to it: it has less than STEPS steps of prompts before it, and soon
        a slot for it."""
        work, sent = self._work, self._sent
        if work.pending.rows + sum(each.tokens - each.cached for each in sent) >= STEPS * work.chunk:
            return False
        if work.queued < BESIDE and work.running + sum(each.completions for each in sent) < self.slots + BESIDE:
            return True
        return max(self.tenants.values(), default=0) >= self.tenants[tenant] + GREEDY

    def ahead(self, now: float) -> WorkAhead:
        """The work before a request that is sent now."""
        work, pending = self._work, self._work.pending
        decode, chunk = work.decode, max(1, work.chunk)
        sent = StepShape()
        for each in self._sent:
            sent = sent.plus(each.cached, each.tokens - each.cached, each.completions)
        if not (pending.rows or decode.rows):  # it was idle: what was sent began when it arrived
            pending, sent = sent, StepShape()
        if not (pending.rows or decode.rows):
            return WorkAhead(decode, pending, chunk, self.step_time)
        part = min(1.0, chunk / pending.rows) if pending.rows else 0.0
        step = StepShape(*(own + round(part * more) for own, more in zip(decode, pending, strict=True)))
        known = self.step_time if self.step_time.ready else StepTimeModel.of_weights(self.step_time.basis)
        step_s, passed_s = known.predict(step) or 0.0, max(0.0, now - self._since)
        if not pending.rows:
            passed_s = math.fmod(passed_s, step_s) if step_s else 0.0  # without open streams it reports rarely
        left = StepShape(*(round((1 - part) * own) + more for own, more in zip(pending, sent, strict=True)))
        return WorkAhead(decode, left, decode.rows + chunk, self.step_time, max(0.0, step_s - passed_s))
