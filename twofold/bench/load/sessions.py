"""Synthetic conversations: each turn waits for the completion before it, and repeats it in its history.

Sessions are opened by an arrival process, as in an open loop, or a fixed number is open at all times, as in a closed
loop. A turn is due when the completion before it ended and the pause is over. A session ends after its last turn, or
with a turn that failed or got an empty completion.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

from twofold.bench.load.base import (
    FAILURES,
    Ask,
    EndedRequest,
    Prompt,
    PromptMessage,
    Shared,
    continues,
    ended_s,
    history_after,
)
from twofold.bench.load.checks import MAX_REQUESTS, MAX_SECONDS, an_end, before, number, whole
from twofold.bench.load.lengths import Draws, Lengths, Pauses, RandomStream, generator
from twofold.bench.load.loops import PAUSE_S, Arrivals
from twofold.bench.load.requests import SharedPrefix
from twofold.core.errors import ParameterError

MAX_TURNS: Final = 1000


@dataclass(frozen=True, slots=True)
class SessionPlan:
    """One session. ``first`` is the index of its first request; the tuples have a value for each turn, and
    ``pauses_s`` the pause before it."""

    session: int
    first: int
    input_tokens: tuple[int, ...]
    output_tokens: tuple[int, ...]
    pauses_s: tuple[float, ...]
    shared: tuple[Shared, ...]

    @property
    def turns(self) -> int:
        return len(self.input_tokens)


@dataclass(frozen=True, slots=True)
class Shape:
    """Distributions of conversations.

    turns          of a session
    new_tokens     that each turn adds to the prompt
    output_tokens  of each completion
    pauses         between a completion and the next turn
    shared         prefix of first turns
    """

    turns: Lengths
    new_tokens: Lengths
    output_tokens: Lengths
    pauses: Pauses
    shared: SharedPrefix | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.turns.most > MAX_TURNS:
            message = f"A session may have {MAX_TURNS} turns, but {self.turns.most} could be drawn."
            raise ParameterError(message, param="turns", hint="Give a maximum as third number: lognormal:5,1,20.")

    def describe(self) -> Mapping[str, Any]:
        return {
            "turns": self.turns.describe(),
            "first_tokens": self.new_tokens.describe(),
            "new_tokens": self.new_tokens.describe(),
            "output_tokens": self.output_tokens.describe(),
            "think_s": self.pauses.describe(),
            "shared": None if self.shared is None else self.shared.describe(),
        }


class Conversations:
    """The sessions of a seed by their number; each is the same in whatever order they are taken."""

    def __init__(self, shape: Shape, *, seed: int = 0) -> None:
        self.seed = whole("seed", seed, 0, 2**63 - 1)
        self._shape = shape
        self._turns = Draws[int](seed, RandomStream.TURNS, shape.turns.draw)
        self._first = [0]

    def describe(self) -> Mapping[str, Any]:
        return {**self._shape.describe(), "seed": self.seed}

    def plan(self, session: int) -> SessionPlan:
        shape, turns = self._shape, self._turns[session]
        rng = generator(self.seed, RandomStream.SESSIONS, session)
        new = shape.new_tokens.draw(rng, turns).tolist()
        output = shape.output_tokens.draw(rng, turns).tolist()
        pauses = shape.pauses.draw(rng, turns).tolist()
        (first,) = shape.new_tokens.draw(rng, 1).tolist()
        pieces: tuple[Shared, ...] = ()
        if shape.shared is not None:
            pieces = shape.shared.pieces(int(shape.shared.draw(rng, 1)[0]), first)
        while len(self._first) <= session:
            self._first.append(self._first[-1] + self._turns[len(self._first) - 1])
        inputs, waits = (first, *new[1:]), (0.0, *pauses[1:])
        return SessionPlan(session, self._first[session], inputs, tuple(output), waits, pieces)

    def ask(self, plan: SessionPlan, turn: int, due_s: float, history: tuple[PromptMessage, ...] = ()) -> Ask:
        """The request of a turn. Requests are numbered session after session."""
        return Ask(
            plan.first + turn,
            due_s,
            plan.input_tokens[turn],
            plan.output_tokens[turn],
            plan.shared if turn == 0 else (),
            history=history,
            session=plan.session,
            turn=turn,
            fields=self._shape.fields,
        )


@dataclass(frozen=True, slots=True)
class Held:
    """``sessions`` are open at all times; the first ones start evenly spread over ``ramp_s`` seconds."""

    sessions: int
    ramp_s: float = 0.0

    def __post_init__(self) -> None:
        whole("concurrency", self.sessions, 1, MAX_REQUESTS)
        number("ramp", self.ramp_s, 0, MAX_SECONDS)

    def describe(self) -> Mapping[str, Any]:
        return {"concurrency": self.sessions, "ramp_s": self.ramp_s, "pause_after_failure_s": PAUSE_S}


@dataclass(slots=True)
class Sessions:
    """Sessions of ``talks``, opened by ``opens`` for ``duration_s`` seconds or until ``sessions`` were opened.

    No turn is due after ``duration_s``. ``prompt`` gives the messages of a request, for the history of later turns. At
    most ``max_open`` requests are open at once. Raises ParameterError for invalid values.
    """

    opens: Arrivals | Held
    talks: Conversations
    prompt: Prompt
    duration_s: float | None = None
    sessions: int | None = None
    max_open: int | None = None
    _next: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        an_end(self.duration_s, self.sessions, "A load of sessions", "sessions")
        if isinstance(self.opens, Arrivals) and self.opens.rate == float("inf") and self.sessions is None:
            raise ParameterError("An infinite rate needs a number of sessions.", param="sessions")
        if self.max_open is not None:
            whole("concurrency", self.max_open, 1, MAX_REQUESTS)

    def describe(self) -> Mapping[str, Any]:
        opens = self.opens
        return {
            "kind": "sessions",
            **({"arrivals": opens.describe()} if isinstance(opens, Arrivals) else opens.describe()),
            "most_open": self.max_open,
            "duration_s": self.duration_s,
            "sessions": self.sessions,
            **self.talks.describe(),
        }

    def begin(self) -> Iterator[Ask]:
        opens = self.opens
        if isinstance(opens, Arrivals):
            return self._opened(islice(opens.moments(self.talks.seed), self.sessions or MAX_REQUESTS))
        first = self._next = min(opens.sessions, self.sessions or MAX_REQUESTS)
        return self._opened(session * opens.ramp_s / opens.sessions for session in range(first))

    def follow(self, ended: EndedRequest, now_s: float) -> Ask | None:
        """The next turn; after the last one, with a fixed number of sessions, the first turn of a new session."""
        ask, over_s = ended.ask, ended_s(ended, now_s)
        assert ask.session is not None
        if continues(ended):
            plan = self.talks.plan(ask.session)
            turn = ask.turn + 1
            if turn < plan.turns:
                due_s = over_s + plan.pauses_s[turn]
                if not before(due_s, self.duration_s):
                    return None
                return self.talks.ask(plan, turn, due_s, history_after(ended, self.prompt))
        due_s = max(over_s, ask.due_s + PAUSE_S) if ended.outcome in FAILURES else over_s
        if (
            not isinstance(self.opens, Held)
            or self._next >= (self.sessions or MAX_REQUESTS)
            or not before(due_s, self.duration_s)
        ):
            return None
        self._next += 1
        return self.talks.ask(self.talks.plan(self._next - 1), 0, due_s)

    def _opened(self, moments: Iterator[float]) -> Iterator[Ask]:
        for session, due_s in enumerate(moments):
            if not before(due_s, self.duration_s):
                return
            yield self.talks.ask(self.talks.plan(session), 0, due_s)
