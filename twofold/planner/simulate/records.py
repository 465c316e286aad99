"""What became of each job, and what its replica did meanwhile."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from twofold.planner.simulate.jobs import SimulatedJob


class Done(NamedTuple):
    """A job that ended. Moments are seconds of the simulation.

    admitted_s, first_s, last_s  when it began to run, and when its first and last token came; None where it was
                                 refused, because it never could run
    cached                       tokens of its prompt that needed no computing
    """

    job: SimulatedJob
    admitted_s: float | None
    first_s: float | None
    last_s: float | None
    cached: int = 0
    preemptions: int = 0


@dataclass(slots=True)
class Busy:
    """What a replica did: seconds by kind of step, steps, tokens, and KV blocks held over time.

    prefill_s, decode_s, mixed_s   of steps of prompts alone, of answers alone, of both
    block_s                        Σ blocks held · seconds
    max_blocks                    held at once
    until_s                        when its last step ended
    """

    prefill_s: float = 0.0
    decode_s: float = 0.0
    mixed_s: float = 0.0
    steps: int = 0
    prefill_rows: int = 0
    decode_rows: int = 0
    block_s: float = 0.0
    max_blocks: int = 0
    until_s: float = 0.0

    @property
    def seconds(self) -> float:
        return self.prefill_s + self.decode_s + self.mixed_s

    def add(self, seconds: float, prefill_rows: int, decode_rows: int, blocks: float, steps: int = 1) -> None:
        """Counts steps of one kind that took so long together, ``decode_rows`` rows in each."""
        if not prefill_rows:
            self.decode_s += seconds
        elif decode_rows:
            self.mixed_s += seconds
        else:
            self.prefill_s += seconds
        self.steps += steps
        self.prefill_rows += prefill_rows
        self.decode_rows += decode_rows * steps
        self.block_s += blocks * seconds
        if blocks > self.max_blocks:
            self.max_blocks = int(blocks)


class Replica(Protocol):
    """One engine on a virtual clock.

    ``open_jobs`` counts those that were submitted and are not among ``done`` yet.
    """

    done: list[Done]
    busy: Busy
    open_jobs: int

    @property
    def next_s(self) -> float:
        """A time to advance to, so that nothing that ends there or before is heard of late; infinite when idle."""
        ...

    def submit(self, job: SimulatedJob, at_s: float) -> None:
        """Adds a job that arrives at ``at_s``, no sooner than any before it."""
        ...

    def advance(self, until_s: float) -> None:
        """Runs every step that begins before ``until_s``; what ends is put into ``done``."""
        ...

    def matched(self, job: SimulatedJob) -> int:
        """Tokens of the job's prompt that this replica has in its cache now."""
        ...


@dataclass(slots=True)
class Columns:
    """Jobs that ended, in columns: a million in some 80 MB. Moments that never came are infinite."""

    index: array[int] = field(default_factory=lambda: array("q"))
    due_s: array[float] = field(default_factory=lambda: array("d"))
    admitted_s: array[float] = field(default_factory=lambda: array("d"))
    first_s: array[float] = field(default_factory=lambda: array("d"))
    last_s: array[float] = field(default_factory=lambda: array("d"))
    prompt: array[int] = field(default_factory=lambda: array("i"))
    output: array[int] = field(default_factory=lambda: array("i"))
    cached: array[int] = field(default_factory=lambda: array("i"))
    preemptions: array[int] = field(default_factory=lambda: array("i"))
    replica: array[int] = field(default_factory=lambda: array("i"))

    def __len__(self) -> int:
        return len(self.index)

    def add(self, done: Done, replica: int) -> None:
        job, admitted, first, last, cached, preemptions = done
        never = float("inf")
        self.index.append(job.number)
        self.due_s.append(job.due_s)
        self.admitted_s.append(never if admitted is None else admitted)
        self.first_s.append(never if first is None else first)
        self.last_s.append(never if last is None else last)
        self.prompt.append(job.prompt)
        self.output.append(job.output)
        self.cached.append(cached)
        self.preemptions.append(preemptions)
        self.replica.append(replica)
