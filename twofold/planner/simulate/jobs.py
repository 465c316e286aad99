"""Jobs of a simulated server, made of loads, and records of what happened to them and to replicas.

A job's prompt begins with the pieces that its ask shares with others and continues with tokens of a ``stream``: its
own, or its session's. Each turn of a session repeats all before it, so its prompts are prefixes of one stream, with the
completions where they were generated."""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from twofold.bench.load.base import Ask, Load, Outcome, PromptMessage, Shared
from twofold.core.errors import ParameterError


class SimulatedJob(NamedTuple):
    """A request of ``prompt`` and ``output`` tokens, due at ``due_s`` seconds.

    stream  name of the tokens after the ``pieces``; below 0: of a session
    given   prompt tokens whose keys and values come with it, as does the first token of the completion: a job that was
            prefilled elsewhere
    """

    number: int
    due_s: float
    prompt: int
    output: int
    pieces: tuple[Shared, ...] = ()
    stream: int = 0
    given: int = 0

    @property
    def shares(self) -> bool:
        """Whether another job's prompt may have a common prefix."""
        return bool(self.pieces) or self.stream < 0


def spans(job: SimulatedJob) -> Iterator[tuple[int | tuple[int], int, int]]:
    """Name, start and end of each part of a prompt; the last one, the stream, includes the completion."""
    start = 0
    for piece in job.pieces:
        yield piece.key, start, start + piece.tokens
        start += piece.tokens
    yield (job.stream,), start, job.prompt + job.output


@dataclass(frozen=True, slots=True)
class EndedJob:
    """A request that ended, as loads take it."""

    ask: Ask
    outcome: Outcome
    ended_s: float | None
    text: str = "…"


class Jobs:
    """The jobs of a load, and those that follow from the end of others; ``follows``: whether there can be any."""

    def __init__(self, load: Load) -> None:
        described = load.describe()
        self._load = load
        self.max_open = load.max_open
        self.follows = described["kind"] != "open" and bool(described.get("later_turns", True))
        self._asks: dict[int, Ask] = {}
        self._history: dict[int, tuple[int, tuple[Shared, ...]]] = {}

    def begin(self) -> Iterator[SimulatedJob]:
        """The jobs that wait for no other, ascending in time."""
        return map(self._job, self._load.begin())

    def ended(self, job: SimulatedJob, outcome: Outcome, ended_s: float) -> SimulatedJob | None:
        """The job that follows from the end of another, or None."""
        ask = self._asks.pop(job.number, None)
        if ask is None:
            return None
        if ask.session is not None:
            self._history[ask.session] = job.prompt + job.output, job.pieces
        following = self._load.follow(EndedJob(ask, outcome, ended_s), ended_s)
        return None if following is None else self._job(following)

    def _job(self, ask: Ask) -> SimulatedJob:
        if self.follows:
            self._asks[ask.index] = ask
        if ask.session is None:
            return SimulatedJob(ask.index, ask.due_s, prompt_tokens(ask), ask.output_tokens, ask.shared, ask.index)
        before, pieces = self._history.get(ask.session, (0, ask.shared)) if ask.turn else (0, ask.shared)
        stream = -1 - ask.session
        return SimulatedJob(ask.index, ask.due_s, before + prompt_tokens(ask), ask.output_tokens, pieces, stream)


def prompt_tokens(ask: Ask) -> int:
    """Tokens of a request's prompt. Raises ParameterError if only its text is known."""
    if not ask.input_tokens:
        raise ParameterError(
            f"Request {ask.index} has a text but no token count.",
            param="trace",
            hint="Add input_tokens to the trace.",
        )
    return ask.input_tokens


def prompt_history(ask: Ask) -> tuple[PromptMessage, ...]:
    """The messages of a request, which loads continue; a simulation has no text to add."""
    return ask.history


class IndependentJobs:
    """Jobs that depend on no other, ascending in time; at most ``max_open`` of them run at once."""

    follows = False

    def __init__(self, jobs: Iterable[SimulatedJob], max_open: int | None = None) -> None:
        self._jobs, self.max_open = jobs, max_open

    def begin(self) -> Iterator[SimulatedJob]:
        return iter(self._jobs)

    def ended(self, job: SimulatedJob, outcome: Outcome, ended_s: float) -> None:
        """No job follows from the end of another."""


def repeated(jobs: Jobs, times: int) -> IndependentJobs:
    """The jobs of an open load several times. A round begins where the one before ended, one mean gap later.

    Pieces are shared between the rounds as they are within one; streams are not. Raises ParameterError for loads in
    which jobs follow from others.
    """
    if times < 1 or jobs.follows:
        raise ParameterError(
            "--repeat must be at least 1, and needs a load without conversations.",
            param="repeat",
            hint="Remove --repeat, or use a trace without later turns.",
        )
    return IndependentJobs(_rounds(list(jobs.begin()), times), jobs.max_open)


def _rounds(jobs: list[SimulatedJob], times: int) -> Iterator[SimulatedJob]:
    last_s = jobs[-1].due_s if jobs else 0.0
    began_s = 0.0
    for turn in range(times):
        for job in jobs:
            number = turn * len(jobs) + job.number
            yield SimulatedJob(number, began_s + job.due_s, job.prompt, job.output, job.pieces, number)
        began_s += last_s + last_s / max(1, len(jobs) - 1)


class Done(NamedTuple):
    """A job that ended. Times are seconds of the simulation.

    admitted_s, first_s, last_s  when it was admitted, and of its first and last token; None if it was refused,
                                 because it never could run
    cached                       cached tokens of its prompt
    """

    job: SimulatedJob
    admitted_s: float | None
    first_s: float | None
    last_s: float | None
    cached: int = 0
    preemptions: int = 0


@dataclass(slots=True)
class Busy:
    """What a replica did: seconds by kind of step, steps, tokens, and KV blocks in use.

    prefill_s, decode_s, mixed_s   seconds of steps of prompts alone, of decoding alone, of both
    block_s                        Σ blocks in use · seconds
    max_blocks                     most blocks in use at once
    """

    prefill_s: float = 0.0
    decode_s: float = 0.0
    mixed_s: float = 0.0
    steps: int = 0
    prefill_rows: int = 0
    decode_rows: int = 0
    block_s: float = 0.0
    max_blocks: int = 0

    @property
    def seconds(self) -> float:
        return self.prefill_s + self.decode_s + self.mixed_s

    def add(self, seconds: float, prefill_rows: int, decode_rows: int, blocks: float, steps: int = 1) -> None:
        """Counts steps of one kind, ``seconds`` together, with ``decode_rows`` rows in each."""
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


class Replica(ABC):
    """One engine on a virtual clock. ``open_jobs`` were submitted and are not in ``done`` yet."""

    def __init__(self) -> None:
        self.done: list[Done] = []
        self.busy = Busy()
        self.open_jobs = 0
        self._now = 0.0
        self._inbox: deque[tuple[float, SimulatedJob]] = deque()

    @property
    @abstractmethod
    def next_s(self) -> float:
        """The time to advance to, so that no end is noticed late; infinite when idle."""

    @abstractmethod
    def advance(self, until_s: float) -> None:
        """Runs every step that begins before ``until_s``; jobs that end are appended to ``done``."""

    @abstractmethod
    def matched(self, job: SimulatedJob) -> int:
        """Tokens of the job's prompt that are in this replica's cache now."""

    def submit(self, job: SimulatedJob, at_s: float) -> None:
        """Adds a job that arrives at ``at_s``, no sooner than any before it."""
        self.open_jobs += 1
        self._inbox.append((at_s, job))

    def _end(self, done: Done) -> None:
        self.open_jobs -= 1
        self.done.append(done)


@dataclass(slots=True)
class Columns:
    """Jobs that ended, in columns: a million in some 80 MB. Times that a job never reached are infinite."""

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
