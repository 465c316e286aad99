"""Conversations: each turn waits for the answer to the one before, and says what was really answered.

Sessions are opened by an arrival process, as in an open loop, or so many are held at all times, as in a closed one.
Within a session the next turn is due when the answer before it ended and the pause is over. A session ends after its
last turn, and where a turn failed or was answered with no text: there is nothing to go on from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from twofold.bench.load.arrivals import Arrivals
from twofold.bench.load.base import FAILURES, Ask, EndedRequest
from twofold.bench.load.checks import MAX_REQUESTS, MAX_SECONDS, an_end, before, number, whole
from twofold.bench.load.conversations import Conversations
from twofold.bench.load.loops import PAUSE_S
from twofold.bench.load.turns import Prompt, ended_s, goes_on, history_after
from twofold.core.errors import ParameterError


@dataclass(frozen=True, slots=True)
class Held:
    """So many sessions are open at all times; the first begin evenly spread over ``ramp_s`` seconds."""

    sessions: int
    ramp_s: float = 0.0

    def __post_init__(self) -> None:
        whole("concurrency", self.sessions, 1, MAX_REQUESTS)
        number("ramp", self.ramp_s, 0, MAX_SECONDS)

    def describe(self) -> Mapping[str, Any]:
        return {"concurrency": self.sessions, "ramp_s": self.ramp_s, "pause_after_failure_s": PAUSE_S}


class Sessions:
    """Sessions of ``talks``, opened as ``opens`` says until ``duration_s`` is over or ``sessions`` were.

    No turn becomes due after ``duration_s``. ``prompt`` says what a request sent, for the turns after it. At most
    ``max_open`` requests are open at once. ParameterError for what is impossible.
    """

    def __init__(
        self,
        opens: Arrivals | Held,
        talks: Conversations,
        prompt: Prompt,
        *,
        duration_s: float | None = None,
        sessions: int | None = None,
        max_open: int | None = None,
    ) -> None:
        an_end(duration_s, sessions, "A load of sessions", "sessions")
        if isinstance(opens, Arrivals) and opens.rate == float("inf") and sessions is None:
            raise ParameterError("An infinite rate needs a number of sessions.", param="sessions")
        if max_open is not None:
            whole("concurrency", max_open, 1, MAX_REQUESTS)
        self._opens, self._talks, self._prompt = opens, talks, prompt
        self._most = MAX_REQUESTS if sessions is None else sessions
        self._max_open = max_open
        self.duration_s, self.sessions = duration_s, sessions
        self._next = 0

    @property
    def max_open(self) -> int | None:
        return self._max_open

    def describe(self) -> Mapping[str, Any]:
        opens = self._opens
        return {
            "kind": "sessions",
            **({"arrivals": opens.describe()} if isinstance(opens, Arrivals) else opens.describe()),
            "most_open": self._max_open,
            "duration_s": self.duration_s,
            "sessions": self.sessions,
            **self._talks.describe(),
        }

    def begin(self) -> Iterator[Ask]:
        opens = self._opens
        if isinstance(opens, Arrivals):
            return self._opened(islice(opens.moments(self._talks.seed), self._most))
        first = self._next = min(opens.sessions, self._most)
        return self._opened(session * opens.ramp_s / opens.sessions for session in range(first))

    def follow(self, ended: EndedRequest, now_s: float) -> Ask | None:
        """The next turn; where there is none and so many sessions are held, the first of a new session."""
        ask, over_s = ended.ask, ended_s(ended, now_s)
        assert ask.session is not None
        if goes_on(ended):
            plan = self._talks.plan(ask.session)
            turn = ask.turn + 1
            if turn < plan.turns:
                due_s = over_s + plan.pauses_s[turn]
                if not before(due_s, self.duration_s):
                    return None
                return self._talks.ask(plan, turn, due_s, history_after(ended, self._prompt))
        due_s = max(over_s, ask.due_s + PAUSE_S) if ended.outcome in FAILURES else over_s
        return self._another(due_s) if isinstance(self._opens, Held) else None

    def _another(self, due_s: float) -> Ask | None:
        if self._next >= self._most or not before(due_s, self.duration_s):
            return None
        self._next += 1
        return self._talks.ask(self._talks.plan(self._next - 1), 0, due_s)

    def _opened(self, moments: Iterator[float]) -> Iterator[Ask]:
        for session, due_s in enumerate(moments):
            if not before(due_s, self.duration_s):
                return
            yield self._talks.ask(self._talks.plan(session), 0, due_s)
