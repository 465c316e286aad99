"""Jobs of a simulated server, made from loads, and their results; the interface of replicas, and the work they did.

A job's prompt begins with the pieces that it shares with other jobs and continues with tokens of a ``stream``: its own,
or its session's. Each turn of a session repeats the turns before it, so a session's prompts are prefixes of one stream,
which contains the completions too."""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from twofold.bench.load.base import Ask, Load, Outcome, PromptMessage, Shared
from twofold.core.errors import ParameterError
from twofold.core.report import StoreCounts
from twofold.engine.scheduler.forecast import WorkAhead


class SimulatedJob(NamedTuple):
    """A request of ``prompt`` and ``output`` tokens, due at ``due_s`` seconds.

    stream     number of the stream after the ``pieces``; negative for a session's
    prefilled  prompt tokens whose keys and values another replica computed, with the first token of the completion
    matched    cached tokens of the prompt that the router saw on the replica
    """

    number: int
    due_s: float
    prompt: int
    output: int
    pieces: tuple[Shared, ...] = ()
    stream: int = 0
    prefilled: int = 0
    matched: int = 0

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
    """An ended request, in the form that ``Load.follow`` takes."""

    ask: Ask
    outcome: Outcome
    ended_s: float | None
    text: str = "…"


class Jobs:
    """The jobs of a load, with those that follow from the end of other jobs; ``follows``: whether there can be any."""

    def __init__(self, load: Load) -> None:
        described = load.describe()
        self._load = load
        self.max_open = load.max_open
        self.follows = described["kind"] != "open" and bool(described.get("later_turns", True))
        self._asks: dict[int, Ask] = {}
        self._history: dict[int, tuple[int, tuple[Shared, ...]]] = {}

    def begin(self) -> Iterator[SimulatedJob]:
        """The jobs that follow from no other, ascending in time."""
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
    """Tokens of a request's prompt. Raises ParameterError if the trace has only its text."""
    if not ask.input_tokens:
        raise ParameterError(
            f"Request {ask.index} has a text but no token count.",
            param="trace",
            hint="Add input_tokens to the trace.",
        )
    return ask.input_tokens


def prompt_history(ask: Ask) -> tuple[PromptMessage, ...]:
    """The messages before a request's own, for loads; a simulation generates no text to add."""
    return ask.history


class IndependentJobs:
    """Jobs that follow from no other, ascending in time; at most ``max_open`` of them are open at once."""

    follows = False

    def __init__(self, jobs: Iterable[SimulatedJob], max_open: int | None = None) -> None:
        self._jobs, self.max_open = jobs, max_open

    def begin(self) -> Iterator[SimulatedJob]:
        return iter(self._jobs)

    def ended(self, job: SimulatedJob, outcome: Outcome, ended_s: float) -> None:
        """Returns None: no job follows."""


def repeated(jobs: Jobs, times: int) -> IndependentJobs:
    """The jobs of an open load, ``times`` times. A round begins one mean gap after the last job of the round before.

    Pieces are shared between rounds, streams are not. Raises ParameterError for loads in which jobs follow from others.
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
    for rounds in range(times):
        for job in jobs:
            number = rounds * len(jobs) + job.number
            yield SimulatedJob(number, began_s + job.due_s, job.prompt, job.output, job.pieces, number)
        began_s += last_s + last_s / max(1, len(jobs) - 1)


class JobResult(NamedTuple):
    """The result of a job. Times are seconds on the simulation's clock.

    admitted_s, first_s, last_s  times of admission, first and last token; None if the job was refused because it can
                                 never run
    cached                       cached tokens of its prompt, of which ``loaded`` came from a KV store
    """

    job: SimulatedJob
    admitted_s: float | None
    first_s: float | None
    last_s: float | None
    cached: int = 0
    preemptions: int = 0
    loaded: int = 0


@dataclass(slots=True)
class ReplicaWork:
    """The work of a replica: seconds by kind of step, steps, tokens computed, and KV blocks in use.

    prefill_s, decode_s, mixed_s   seconds of steps with prompts only, with decoding only, with both
    block_s                        Σ blocks in use · seconds
    max_blocks                     maximum of blocks in use at once, of ``blocks``
    """

    blocks: int

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
        """Counts ``steps`` steps of one kind: ``seconds`` and ``prefill_rows`` of all, ``decode_rows`` of each."""
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
    """One engine on a virtual clock. ``done``: results not yet collected; ``open_jobs``: number that have not ended."""

    def __init__(self, blocks: int) -> None:
        self.done: list[JobResult] = []
        self.work = ReplicaWork(blocks)
        self.open_jobs = 0
        self._now = 0.0
        self._inbox: deque[tuple[float, SimulatedJob]] = deque()

    @property
    @abstractmethod
    def next_s(self) -> float:
        """The time to advance to, at most to the next step in which a job may end; infinite when idle."""

    @abstractmethod
    def advance(self, until_s: float) -> None:
        """Runs every step that begins before ``until_s`` and appends the results of jobs that end to ``done``."""

    @abstractmethod
    def matched(self, job: SimulatedJob) -> int:
        """Tokens of the job's prompt that are in this replica's cache now."""

    @abstractmethod
    def ahead(self, now: float) -> WorkAhead:
        """The work of the jobs that were submitted, as a router sees it."""

    @property
    def stored(self) -> StoreCounts | None:
        """The counts of its KV store; None without one."""
        return None

    def submit(self, job: SimulatedJob, at_s: float) -> None:
        """Adds a job that arrives at ``at_s``, not before any job already submitted."""
        self.open_jobs += 1
        self._inbox.append((at_s, job))

    def _end(self, done: JobResult) -> None:
        self.open_jobs -= 1
        self.done.append(done)


@dataclass(slots=True)
class JobColumns:
    """Results of jobs in columns: a million take about 80 MB. Times that a job never reached are infinite."""

    index: array[int] = field(default_factory=lambda: array("q"))
    due_s: array[float] = field(default_factory=lambda: array("d"))
    admitted_s: array[float] = field(default_factory=lambda: array("d"))
    first_s: array[float] = field(default_factory=lambda: array("d"))
    last_s: array[float] = field(default_factory=lambda: array("d"))
    prompt: array[int] = field(default_factory=lambda: array("i"))
    output: array[int] = field(default_factory=lambda: array("i"))
    cached: array[int] = field(default_factory=lambda: array("i"))
    loaded: array[int] = field(default_factory=lambda: array("i"))
    preemptions: array[int] = field(default_factory=lambda: array("i"))
    replica: array[int] = field(default_factory=lambda: array("i"))

    def __len__(self) -> int:
        return len(self.index)

    def add(self, done: JobResult, replica: int) -> None:
        job, admitted, first, last, cached, preemptions, loaded = done
        never = float("inf")
        self.index.append(job.number)
        self.due_s.append(job.due_s)
        self.admitted_s.append(never if admitted is None else admitted)
        self.first_s.append(never if first is None else first)
        self.last_s.append(never if last is None else last)
        self.prompt.append(job.prompt)
        self.output.append(job.output)
        self.cached.append(cached)
        self.loaded.append(loaded)
        self.preemptions.append(preemptions)
        self.replica.append(replica)
