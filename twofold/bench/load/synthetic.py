"""Synthetic loads: open loops, closed loops and conversations, and a plan that makes one of them.

An open loop sends requests at given times. Each client of a closed loop waits for a response before its next request,
so a closed loop measures a server at a concurrency, not at a rate: a server that stalls gets no further requests.

Gaps between arrivals have a gamma distribution with mean 1/rate and shape ``burstiness``, as in vLLM's benchmark: their
coefficient of variation is 1/√burstiness. 1 is a Poisson process, less is burstier, more is more even; a constant rate
is the limit of infinite burstiness.

In a conversation each turn waits for the previous completion, and repeats it in its history. Sessions are opened by an
arrival process, as in an open loop, or a fixed number is open at all times, as in a closed loop. A turn is due when the
previous completion has ended and the pause is over. A session ends after its last turn, or with a turn that failed or
had an empty completion.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import accumulate, count, islice
from typing import Any, Final, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from twofold.bench.load.base import (
    FAILURES,
    MAX_RATE,
    MAX_REQUESTS,
    MAX_SECONDS,
    Ask,
    EndedRequest,
    Load,
    Prompt,
    PromptMessage,
    Shared,
    can_continue,
    check_end,
    check_number,
    check_positive,
    check_whole,
    ended_s,
    history_after,
    is_before_end,
)
from twofold.bench.load.lengths import Fixed, Lengths, Pauses, RandomStream, RandomValues, generator
from twofold.core.errors import ParameterError, describe_name, did_you_mean

Kind: TypeAlias = Literal["constant", "poisson", "gamma"]

KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
MAX_TURNS: Final = 1000
DURATION_S: Final = 60.0
PAUSE_S: Final = 0.1
"""Minimum time from a failed request of a client to its next one: a server that refuses at once would otherwise
receive thousands of requests a second."""


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """Every prompt belongs to one of ``groups``; all prompts of a group begin with the same tokens.

    fraction  of each prompt that is shared, from 0 to 1
    zipf      skew of the groups: group k = 1, 2, … is sampled in proportion to 1/k^zipf; 0 is uniform

    Raises ParameterError for invalid values.
    """

    fraction: float
    groups: int = 1
    zipf: float = 0.0

    def __post_init__(self) -> None:
        check_number("the shared fraction", self.fraction, 0, 1)
        check_whole("prefix groups", self.groups, 1, 1_000_000)
        check_number("zipf", self.zipf, 0, 10)

    def sample(self, rng: np.random.Generator, size: int) -> NDArray[np.int64]:
        """Returns (size,) numbers of groups, from 0."""
        if self.zipf == 0:
            return rng.integers(self.groups, size=size)
        weights = np.arange(1, self.groups + 1, dtype=np.float64) ** -self.zipf
        edges = np.cumsum(weights / weights.sum())
        drawn = np.searchsorted(edges, rng.random(size), side="right")
        return np.minimum(drawn, self.groups - 1).astype(np.int64)

    def pieces(self, group: int, input_tokens: int) -> tuple[Shared, ...]:
        """The shared prefix of a prompt of ``group``."""
        shared = round(self.fraction * input_tokens)
        return (Shared(group, shared),) if shared else ()


class RandomRequests:
    """Requests with lengths from two distributions. Request ``index`` is always the same for a seed."""

    def __init__(
        self,
        input_tokens: Lengths,
        output_tokens: Lengths,
        *,
        seed: int = 0,
        shared: SharedPrefix | None = None,
    ) -> None:
        self.seed = seed
        self.description: Final = {
            "input_tokens": input_tokens.describe(),
            "output_tokens": output_tokens.describe(),
            "shared": None if shared is None else asdict(shared),
            "seed": seed,
        }
        self._input = RandomValues[int](seed, RandomStream.INPUT, input_tokens.sample)
        self._output = RandomValues[int](seed, RandomStream.OUTPUT, output_tokens.sample)
        self._shared = shared
        self._groups = None if shared is None else RandomValues[int](seed, RandomStream.GROUPS, shared.sample)

    def ask(self, index: int, due_s: float) -> Ask:
        """Request ``index`` of the run, due at ``due_s``."""
        tokens = self._input[index]
        pieces: tuple[Shared, ...] = ()
        if self._shared is not None and self._groups is not None:
            pieces = self._shared.pieces(self._groups[index], tokens)
        return Ask(index, due_s, tokens, self._output[index], pieces)


@dataclass(frozen=True, slots=True)
class Arrivals:
    """An arrival process of ``rate`` requests a second; with an infinite rate all requests arrive at the start.

    At a constant rate the first request arrives at 0, otherwise after a random gap. ``burstiness`` is only for
    "gamma". Raises ParameterError for invalid values.
    """

    rate: float
    kind: Kind = "poisson"
    burstiness: float = 1.0

    def __post_init__(self) -> None:
        if self.rate != math.inf:
            check_positive("rate", self.rate, MAX_RATE)
        if self.kind not in KINDS:
            message = f"{describe_name(self.kind)} is not an arrival process."
            raise ParameterError(message, param="arrivals", hint=did_you_mean(self.kind, KINDS))
        if self.kind != "gamma" and self.burstiness != 1:
            message = f"burstiness is for gamma arrivals, not for {self.kind} arrivals."
            raise ParameterError(message, param="burstiness", hint="Give --arrivals gamma.")
        check_positive("burstiness", self.burstiness, 1e6)

    def describe(self) -> Mapping[str, Any]:
        rate = None if math.isinf(self.rate) else self.rate
        found = {"kind": self.kind, "rate": rate}
        return found | {"burstiness": self.burstiness} if self.kind == "gamma" else found

    def moments(self, seed: int) -> Iterator[float]:
        """Arrival times in seconds, ascending and endless."""
        if self.kind == "constant":
            return (index / self.rate for index in count())
        mean = 1 / self.rate
        gaps = RandomValues[float](
            seed, RandomStream.ARRIVALS, lambda rng, size: rng.gamma(self.burstiness, mean / self.burstiness, size)
        )
        return accumulate(gaps)


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """Requests that arrive by ``arrivals`` for ``duration_s`` seconds, at most ``requests``.

    At most ``max_open`` are open at once; others wait in the client. Raises ParameterError without an end.
    """

    arrivals: Arrivals
    asks: RandomRequests
    duration_s: float | None = None
    requests: int | None = None
    max_open: int | None = None

    def __post_init__(self) -> None:
        check_end(self.duration_s, self.requests, "An open loop")
        if self.max_open is not None:
            check_whole("concurrency", self.max_open, 1, MAX_REQUESTS)
        if self.requests is None and self.arrivals.rate == math.inf:
            raise ParameterError("An infinite rate needs a number of requests.", param="requests")

    def describe(self) -> Mapping[str, Any]:
        return {
            "kind": "open",
            "arrivals": self.arrivals.describe(),
            "duration_s": self.duration_s,
            "requests": self.requests,
            "concurrency": self.max_open,
            **self.asks.description,
        }

    def begin(self) -> Iterator[Ask]:
        moments = islice(self.arrivals.moments(self.asks.seed), self.requests)
        for index, due_s in enumerate(moments):
            if not is_before_end(due_s, self.duration_s):
                return
            yield self.asks.ask(index, due_s)

    def follow(self, ended: EndedRequest, now_s: float) -> Ask | None:
        """Returns None, because no request waits for another."""
        del ended, now_s
        return None


@dataclass(slots=True)
class ClosedLoop:
    """``max_open`` clients, each of which sends its next request when its previous one has ended.

    They start evenly spread over ``ramp_s`` seconds, and stop after ``duration_s`` seconds or ``requests`` requests.
    Raises ParameterError for invalid values.
    """

    max_open: int
    asks: RandomRequests
    duration_s: float | None = None
    requests: int | None = None
    ramp_s: float = 0.0
    _next: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        check_end(self.duration_s, self.requests, "A closed loop")
        check_whole("concurrency", self.max_open, 1, MAX_REQUESTS)
        check_number("ramp", self.ramp_s, 0, MAX_SECONDS)
        if not is_before_end(self.ramp_s, self.duration_s):
            message = f"A ramp of {self.ramp_s:g} s must be shorter than the run of {self.duration_s:g} s."
            raise ParameterError(message, param="ramp", hint="Make it shorter than --duration.")

    def describe(self) -> Mapping[str, Any]:
        return {
            "kind": "closed",
            "concurrency": self.max_open,
            "ramp_s": self.ramp_s,
            "pause_after_failure_s": PAUSE_S,
            "duration_s": self.duration_s,
            "requests": self.requests,
            **self.asks.description,
        }

    def begin(self) -> Iterator[Ask]:
        self._next = min(self.max_open, self.requests or MAX_REQUESTS)
        return (self.asks.ask(index, index * self.ramp_s / self.max_open) for index in range(self._next))

    def follow(self, ended: EndedRequest, now_s: float) -> Ask | None:
        """The next request of the client whose request ended."""
        due_s = max(now_s, ended.ask.due_s + PAUSE_S) if ended.outcome in FAILURES else now_s
        if self._next >= (self.requests or MAX_REQUESTS) or not is_before_end(due_s, self.duration_s):
            return None
        self._next += 1
        return self.asks.ask(self._next - 1, due_s)


@dataclass(frozen=True, slots=True)
class SessionPlan:
    """One session. ``first`` is the index of its first request. The tuples have a value for each turn; ``pauses_s`` are
    the pauses before the turns."""

    session: int
    first: int
    input_tokens: tuple[int, ...]
    output_tokens: tuple[int, ...]
    pauses_s: tuple[float, ...]
    shared: tuple[Shared, ...]

    @property
    def turns(self) -> int:
        return len(self.input_tokens)


class Conversations:
    """The sessions of a seed by number. A session does not depend on the order in which sessions are taken.

    turns          number of turns of a session
    new_tokens     tokens that each turn adds to the prompt
    output_tokens  tokens of each completion
    pauses         pause between a completion and the next turn
    shared         shared prefix of first turns
    """

    def __init__(
        self,
        turns: Lengths,
        new_tokens: Lengths,
        output_tokens: Lengths,
        pauses: Pauses,
        shared: SharedPrefix | None = None,
        *,
        seed: int = 0,
    ) -> None:
        if turns.most > MAX_TURNS:
            message = f"A session may have {MAX_TURNS} turns, but this distribution allows {turns.most}."
            raise ParameterError(message, param="turns", hint="Give a maximum as the third number: lognormal:5,1,20.")
        self.seed = check_whole("seed", seed, 0, 2**63 - 1)
        self._new_tokens, self._output_tokens, self._pauses, self._shared = new_tokens, output_tokens, pauses, shared
        self._turns = RandomValues[int](seed, RandomStream.TURNS, turns.sample)
        self._first = [0]
        self.description: Final = {
            "turns": turns.describe(),
            "first_tokens": new_tokens.describe(),
            "new_tokens": new_tokens.describe(),
            "output_tokens": output_tokens.describe(),
            "think_s": pauses.describe(),
            "shared": None if shared is None else asdict(shared),
            "seed": seed,
        }

    def plan(self, session: int) -> SessionPlan:
        turns = self._turns[session]
        rng = generator(self.seed, RandomStream.SESSIONS, session)
        new = self._new_tokens.sample(rng, turns).tolist()
        output = self._output_tokens.sample(rng, turns).tolist()
        pauses = self._pauses.sample(rng, turns).tolist()
        (first,) = self._new_tokens.sample(rng, 1).tolist()
        pieces: tuple[Shared, ...] = ()
        if self._shared is not None:
            pieces = self._shared.pieces(int(self._shared.sample(rng, 1)[0]), first)
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
        )


@dataclass(frozen=True, slots=True)
class ConstantSessions:
    """``sessions`` sessions are open at all times; the first ones start evenly spread over ``ramp_s`` seconds."""

    sessions: int
    ramp_s: float = 0.0

    def __post_init__(self) -> None:
        check_whole("concurrency", self.sessions, 1, MAX_REQUESTS)
        check_number("ramp", self.ramp_s, 0, MAX_SECONDS)

    def describe(self) -> Mapping[str, Any]:
        return {"concurrency": self.sessions, "ramp_s": self.ramp_s, "pause_after_failure_s": PAUSE_S}


@dataclass(slots=True)
class Sessions:
    """Sessions of ``conversations``, opened by ``opens`` for ``duration_s`` seconds or until ``sessions`` are opened.

    No turn is due after ``duration_s``. ``prompt`` gives the messages of a request, for the history of later turns. At
    most ``max_open`` requests are open at once. Raises ParameterError for invalid values.
    """

    opens: Arrivals | ConstantSessions
    conversations: Conversations
    prompt: Prompt
    duration_s: float | None = None
    sessions: int | None = None
    max_open: int | None = None
    _next: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        check_end(self.duration_s, self.sessions, "A load of sessions", "sessions")
        if isinstance(self.opens, Arrivals) and self.opens.rate == math.inf and self.sessions is None:
            raise ParameterError("An infinite rate needs a number of sessions.", param="sessions")
        if self.max_open is not None:
            check_whole("concurrency", self.max_open, 1, MAX_REQUESTS)

    def describe(self) -> Mapping[str, Any]:
        opens = self.opens
        return {
            "kind": "sessions",
            **({"arrivals": opens.describe()} if isinstance(opens, Arrivals) else opens.describe()),
            "most_open": self.max_open,
            "duration_s": self.duration_s,
            "sessions": self.sessions,
            **self.conversations.description,
        }

    def begin(self) -> Iterator[Ask]:
        opens = self.opens
        if isinstance(opens, Arrivals):
            return self._first_turns(islice(opens.moments(self.conversations.seed), self.sessions or MAX_REQUESTS))
        first = self._next = min(opens.sessions, self.sessions or MAX_REQUESTS)
        return self._first_turns(session * opens.ramp_s / opens.sessions for session in range(first))

    def follow(self, ended: EndedRequest, now_s: float) -> Ask | None:
        """The next turn; after the last one, with a fixed number of sessions, the first turn of a new session."""
        ask, over_s = ended.ask, ended_s(ended, now_s)
        assert ask.session is not None
        if can_continue(ended):
            plan = self.conversations.plan(ask.session)
            turn = ask.turn + 1
            if turn < plan.turns:
                due_s = over_s + plan.pauses_s[turn]
                if not is_before_end(due_s, self.duration_s):
                    return None
                return self.conversations.ask(plan, turn, due_s, history_after(ended, self.prompt))
        due_s = max(over_s, ask.due_s + PAUSE_S) if ended.outcome in FAILURES else over_s
        over = self._next >= (self.sessions or MAX_REQUESTS) or not is_before_end(due_s, self.duration_s)
        if over or not isinstance(self.opens, ConstantSessions):
            return None
        self._next += 1
        return self.conversations.ask(self.conversations.plan(self._next - 1), 0, due_s)

    def _first_turns(self, moments: Iterator[float]) -> Iterator[Ask]:
        for session, due_s in enumerate(moments):
            if not is_before_end(due_s, self.duration_s):
                return
            yield self.conversations.ask(self.conversations.plan(session), 0, due_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """A synthetic load.

    rate         rate of an open loop, in requests a second; with ``turns``, in sessions a second
    concurrency  without a rate, clients of a closed loop; with a rate, the maximum number of open requests
    duration_s   time in which requests become due; default: DURATION_S, or no limit with ``requests``
    kind         kind of arrivals; ``burstiness`` is for gamma arrivals
    ramp_s       time over which the clients of a closed loop start
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

    def __post_init__(self) -> None:
        if self.ramp_s and self.rate is not None:
            raise ParameterError("A ramp is for a closed loop, which has a concurrency and no rate.", param="ramp")
        if self.kind != "poisson" and self.rate is None and self.concurrency is not None:
            raise ParameterError("An arrival process needs a rate; a closed loop has none.", param="arrivals")

    @property
    def until_s(self) -> float | None:
        return DURATION_S if self.duration_s is None and self.requests is None else self.duration_s

    @property
    def multi_turn(self) -> bool:
        return self.turns.most > 1

    def load(self, prompt: Prompt, seed: int) -> Load:
        """The load. ``prompt`` gives the messages of a request, for the history of later turns.

        Raises ParameterError without a rate and a concurrency, and for invalid values.
        """
        end, shared = self.until_s, self.shared
        if self.rate is not None:
            arrivals = Arrivals(self.rate, self.kind, self.burstiness)  # type: ignore[arg-type]
        elif self.concurrency is None:
            hint = "Give --rate 2 (open loop), --concurrency 8 (closed loop) or --trace FILE."
            raise ParameterError("A load needs a rate or a concurrency.", param="rate", hint=hint)
        clients = self.concurrency or 0
        if self.multi_turn:
            conversations = Conversations(
                self.turns, self.input_tokens, self.output_tokens, self.pauses, shared, seed=seed
            )
            opens = ConstantSessions(clients, self.ramp_s) if self.rate is None else arrivals
            return Sessions(opens, conversations, prompt, end, self.requests, self.concurrency)
        asks = RandomRequests(self.input_tokens, self.output_tokens, seed=seed, shared=shared)
        if self.rate is None:
            return ClosedLoop(clients, asks, duration_s=end, requests=self.requests, ramp_s=self.ramp_s)
        return OpenLoop(arrivals, asks, end, self.requests, self.concurrency)
