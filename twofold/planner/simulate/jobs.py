"""What is asked of a simulated server: loads, told as jobs.

A job's prompt begins with the pieces that its ask shares with others and goes on with tokens of a ``stream``: its own,
or its session's. Of a session every turn repeats all before it, so each prompt is the beginning of one stream into
which the answers fall where they were given.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

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
