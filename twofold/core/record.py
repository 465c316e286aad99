"""The work and the waits of a sequence, in counts and seconds.

The loop writes it; metrics, traces and explanations read it. Counts become bytes and FLOPs only with a model's sizes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Final, NamedTuple

from twofold.core.model import read_positions, visible

MAX_PAUSES: Final = 256
"""Maximum number of pauses that a record lists; later ones count only in ``stalls``."""


class WaitReason(Enum):
    """Why a sequence did not advance although it could have."""

    BLOCKS = "queued for blocks"
    TURN = "waiting behind others"
    PREFILL = "waiting behind others' prefill"
    PREEMPTED = "preempted"
    GRAMMAR = "compiling its grammar"
    READER = "waiting for its reader"
    LOADING = "loading from the KV store"
    FETCHING = "fetching from another replica"


@dataclass(frozen=True, slots=True)
class Pause:
    """When a sequence did not advance, in seconds on the engine's clock, and why."""

    cause: WaitReason
    start: float
    end: float


class Repetition(NamedTuple):
    """The end of a completion, or a part of it, is ``times`` times the same ``tokens`` tokens."""

    tokens: int
    times: int

    @classmethod
    def longest(cls, found: Iterable[Repetition | None]) -> Repetition | None:
        """The one of the most tokens."""
        return max(filter(None, found), key=lambda each: each.tokens * each.times, default=None)


@dataclass(slots=True)
class AttendedPositions:
    """Positions that rows attended to, and positions that steps read, in layers with a window."""

    attended: int = 0
    read: int = 0


@dataclass(slots=True)
class PhaseWork:
    """Work of one phase. A row is a token computed.

    attended    positions that its rows attended to, summed over rows
    read        cached positions that its steps read, summed over steps
    steps       steps that it took part in
    share       its part of the weights that these steps read: Σ own rows / rows of the step
    seconds     of these steps; ``predicted_s`` was predicted for them, except for ``unpredicted_s`` seconds of steps
                before the first prediction
    machine_s   its part of ``seconds``: Σ seconds · own rows / rows of the step. The parts of all requests in a step
                add up to the step's seconds, so this is the machine time that the request cost
    logit_rows  rows whose logits were computed
    windowed    ``attended`` and ``read`` for layers with a window, by window, without windows as long as the context
    """

    rows: int = 0
    attended: int = 0
    read: int = 0
    steps: int = 0
    share: float = 0.0
    seconds: float = 0.0
    predicted_s: float = 0.0
    unpredicted_s: float = 0.0
    machine_s: float = 0.0
    logit_rows: int = 0
    windowed: dict[int, AttendedPositions] = field(default_factory=dict)

    def add_step(
        self,
        start: int,
        rows: int,
        *,
        step_rows: int,
        logit_rows: int,
        seconds: float,
        predicted_s: float | None = None,
        windows: Iterable[int] = (),
    ) -> None:
        """Counts a step of ``step_rows`` rows, of which this sequence has ``rows`` at positions ``start`` and on."""
        self.rows += rows
        self.attended += visible(start, rows)
        self.read += read_positions(start, rows)
        self.steps += 1
        self.share += rows / step_rows
        self.seconds += seconds
        self.machine_s += seconds * rows / step_rows
        if predicted_s is None:
            self.unpredicted_s += seconds
        else:
            self.predicted_s += predicted_s
        self.logit_rows += logit_rows
        for window in windows:
            seen = self.windowed.setdefault(window, AttendedPositions())
            seen.attended += visible(start, rows, window)
            seen.read += read_positions(start, rows, window)

    def merge(self, other: PhaseWork) -> None:
        """Adds the work of another sequence."""
        for name in (each.name for each in fields(self) if each.name != "windowed"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for window, seen in other.windowed.items():
            mine = self.windowed.setdefault(window, AttendedPositions())
            mine.attended += seen.attended
            mine.read += seen.read


@dataclass(frozen=True, slots=True, order=True)
class HeldPin:
    """The first ``tokens`` tokens of a prompt stay cached for ``ttl_s`` seconds after their last use."""

    tokens: int
    ttl_s: float


@dataclass(slots=True)
class SequenceRecord:
    """One sequence. ``cached`` prompt tokens came from a cache, ``fresh`` were computed. ``stalls``: seconds by cause.
    ``loaded`` of the cached tokens came from the KV store on the disk.

    ``drafted`` tokens were computed as drafts, of which ``accepted`` became tokens of the completion; ``saved_s`` are
    the seconds that the completion would have taken longer without drafts, by the step-time model: below 0 if drafts
    cost more than they saved. Each accepted token saves a step. ``predicted`` of the drafted tokens came from the
    client's prediction, of which ``predicted_accepted`` were accepted.
    ``recomputed`` tokens had to be computed again after a preemption, ``swapped`` blocks went out and in again.
    ``pauses`` are waits with a start and an end, in order. ``pins`` are those of the request that were granted; they
    hold whole blocks, so they may have a few tokens fewer than requested.
    """

    prefill: PhaseWork = field(default_factory=PhaseWork)
    decode: PhaseWork = field(default_factory=PhaseWork)
    stalls: dict[WaitReason, float] = field(default_factory=dict)
    pauses: list[Pause] = field(default_factory=list)
    preemptions: int = 0
    recomputed: int = 0
    swapped: int = 0
    cached: int = 0
    loaded: int = 0
    fresh: int = 0
    drafted: int = 0
    accepted: int = 0
    saved_s: float = 0.0
    predicted: int = 0
    predicted_accepted: int = 0
    pins: list[HeldPin] = field(default_factory=list)

    @classmethod
    def merged(cls, records: Iterable[SequenceRecord]) -> SequenceRecord:
        """The sum over the sequences of a request; a step of several sequences counts for each."""
        whole = cls()
        for record in records:
            whole._merge(record)
        whole.pauses = sorted(whole.pauses, key=lambda pause: pause.start)[:MAX_PAUSES]
        whole.pins = sorted(set(whole.pins))
        return whole

    def speculate(self, drafted: int, accepted: int, saved_s: float) -> None:
        """Counts the drafts of a step."""
        self.drafted += drafted
        self.accepted += accepted
        self.saved_s += saved_s

    def predict(self, predicted: int, accepted: int) -> None:
        """Counts the first ``predicted`` drafts of a step, which came from the client's prediction."""
        self.predicted += predicted
        self.predicted_accepted += min(predicted, accepted)

    def stall(self, cause: WaitReason, seconds: float, until: float | None = None) -> None:
        """Adds to the seconds lost to ``cause``. ``until`` is when the wait ended; None if steps only took longer."""
        if seconds <= 0:
            return
        self.stalls[cause] = self.stalls.get(cause, 0.0) + seconds
        if until is not None and len(self.pauses) < MAX_PAUSES:
            self.pauses.append(Pause(cause, until - seconds, until))

    def _merge(self, other: SequenceRecord) -> None:
        self.prefill.merge(other.prefill)
        self.decode.merge(other.decode)
        for cause, seconds in other.stalls.items():
            self.stalls[cause] = self.stalls.get(cause, 0.0) + seconds
        self.pauses += other.pauses
        self.preemptions += other.preemptions
        self.recomputed += other.recomputed
        self.swapped += other.swapped
        self.cached += other.cached
        self.loaded += other.loaded
        self.fresh += other.fresh
        self.drafted += other.drafted
        self.accepted += other.accepted
        self.saved_s += other.saved_s
        self.predicted += other.predicted
        self.predicted_accepted += other.predicted_accepted
        self.pins += other.pins
