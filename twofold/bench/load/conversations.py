"""What the sessions of a made-up load are about: how many turns, how long each, and the pauses between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from twofold.bench.load.base import Ask, PromptMessage, Shared
from twofold.bench.load.checks import whole
from twofold.bench.load.draws import Draws, RandomStream, generator
from twofold.bench.load.lengths import Lengths
from twofold.bench.load.pauses import Pauses
from twofold.bench.load.shared import SharedPrefix
from twofold.core.errors import ParameterError

MAX_TURNS: Final = 1000


@dataclass(frozen=True, slots=True)
class SessionPlan:
    """One session. ``first`` is the index of its first request; the others hold a value for each turn, and
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
    """How conversations are drawn.

    turns          of a session
    new_tokens     that each turn adds to the prompt; ``first_tokens`` of the first one, where it differs
    output_tokens  of each answer
    pauses         between an answer and the next turn
    shared         how first turns begin
    """

    turns: Lengths
    new_tokens: Lengths
    output_tokens: Lengths
    pauses: Pauses
    first_tokens: Lengths | None = None
    shared: SharedPrefix | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.turns.most > MAX_TURNS:
            raise ParameterError(
                f"A session may have {MAX_TURNS} turns, but {self.turns.most} could be drawn.",
                param="turns",
                hint="Give a maximum as third number: lognormal:5,1,20.",
            )

    @property
    def first(self) -> Lengths:
        return self.new_tokens if self.first_tokens is None else self.first_tokens

    def describe(self) -> Mapping[str, Any]:
        return {
            "turns": self.turns.describe(),
            "first_tokens": self.first.describe(),
            "new_tokens": self.new_tokens.describe(),
            "output_tokens": self.output_tokens.describe(),
            "think_s": self.pauses.describe(),
            "shared": None if self.shared is None else self.shared.describe(),
        }


class Conversations:
    """The sessions of a seed by their number: each is the same whenever, and however often, it is asked for."""

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
        (first,) = shape.first.draw(rng, 1).tolist()
        pieces: tuple[Shared, ...] = ()
        if shape.shared is not None:
            pieces = shape.shared.pieces(int(shape.shared.draw(rng, 1)[0]), first)
        return SessionPlan(session, self._index(session), (first, *new[1:]), tuple(output), (0.0, *pauses[1:]), pieces)

    def ask(self, plan: SessionPlan, turn: int, due_s: float, history: tuple[PromptMessage, ...] = ()) -> Ask:
        """The request of a turn. Requests are numbered through, session after session."""
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

    def _index(self, session: int) -> int:
        known = self._first
        while len(known) <= session:
            known.append(known[-1] + self._turns[len(known) - 1])
        return known[session]
