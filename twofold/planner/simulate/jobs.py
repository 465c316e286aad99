"""What is asked of a simulated server: loads, told as jobs.

A job's prompt begins with the pieces that its ask shares with others and goes on with tokens of a ``stream``: its own,
or its session's. Of a session every turn repeats all before it, so each prompt is the beginning of one stream into
which the answers fall where they were given.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from twofold.bench.load.base import Ask, Load, Outcome, PromptMessage, Shared
from twofold.core.errors import ParameterError


class SimulatedJob(NamedTuple):
    """A request of ``prompt`` and ``output`` tokens, due at ``due_s`` seconds.

    stream  of the tokens after the ``pieces``; below 0: of a session
    given   tokens of the prompt whose keys and values come with it, the first token of the answer too: a job that was
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
        """Whether another job's prompt may begin alike."""
        return bool(self.pieces) or self.stream < 0


def spans(job: SimulatedJob) -> Iterator[tuple[int | tuple[int], int, int]]:
    """Name, start and end of each part of a prompt; the last one, the stream, goes on as long as the answer does."""
    start = 0
    for piece in job.pieces:
        yield piece.key, start, start + piece.tokens
        start += piece.tokens
    yield (job.stream,), start, job.prompt + job.output


@dataclass(frozen=True, slots=True)
class EndedJob:
    """A request that ended, as loads want to hear of it."""

    ask: Ask
    outcome: Outcome
    ended_s: float | None
    text: str = "…"


class Jobs:
    """The jobs of a load, and those that come of the end of others.

    ``follows`` says whether there can be any of these.
    """

    def __init__(self, load: Load) -> None:
        said = load.describe()
        self._load = load
        self.max_open = load.max_open
        self.follows = said["kind"] != "open" and bool(said.get("later_turns", True))
        self._asks: dict[int, Ask] = {}
        self._history: dict[int, tuple[int, tuple[Shared, ...]]] = {}

    def begin(self) -> Iterator[SimulatedJob]:
        """The jobs that wait for no other, ascending in time."""
        return map(self._job, self._load.begin())

    def ended(self, job: SimulatedJob, outcome: Outcome, ended_s: float) -> SimulatedJob | None:
        """What the end of a job calls for."""
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
            return SimulatedJob(ask.index, ask.due_s, _tokens(ask), ask.output_tokens, ask.shared, ask.index)
        before, pieces = self._history.get(ask.session, (0, ask.shared)) if ask.turn else (0, ask.shared)
        stream = -1 - ask.session
        return SimulatedJob(ask.index, ask.due_s, before + _tokens(ask), ask.output_tokens, pieces, stream)


def _tokens(ask: Ask) -> int:
    if not ask.input_tokens:
        raise ParameterError(
            f"Request {ask.index} has a text but no token count.",
            param="trace",
            hint="Add input_tokens to the trace.",
        )
    return ask.input_tokens


def said_nothing(ask: Ask) -> tuple[PromptMessage, ...]:
    """The messages of a request, for loads that go on from them: a simulation has no texts."""
    return ask.history


class Repeated:
    """The jobs of an open load again and again. A round begins where the one before ended, one mean gap later.

    Pieces are shared between the rounds as they are within one; streams are not. ParameterError for loads in which
    jobs follow from others.
    """

    follows = False

    def __init__(self, jobs: Jobs, times: int) -> None:
        if times < 1 or jobs.follows:
            raise ParameterError(
                "--repeat must be at least 1, and needs a load without conversations.",
                param="repeat",
                hint="Remove --repeat, or use a trace without later turns.",
            )
        self._jobs, self._times = jobs, times
        self.max_open = jobs.max_open

    def begin(self) -> Iterator[SimulatedJob]:
        """All rounds; the jobs of one are kept."""
        kept, began = list(self._jobs.begin()), 0.0
        if not kept:
            return
        last_s = kept[-1].due_s
        gap_s = last_s / max(1, len(kept) - 1)
        for turn in range(self._times):
            for job in kept:
                number = turn * len(kept) + job.number
                yield SimulatedJob(number, began + job.due_s, job.prompt, job.output, job.pieces, number)
            began += last_s + gap_s

    def ended(self, job: SimulatedJob, outcome: Outcome, ended_s: float) -> SimulatedJob | None:
        """Nothing."""
        del job, outcome, ended_s
        return None


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
