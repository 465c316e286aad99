"""Which steps a request took part in, and which of them made its tokens; kept only for requests that ask for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

DRAWN: Final = "d"
"""The origin of a token that was sampled by the row of the token before it."""
ACCEPTED: Final = "s"
"""The origin of a draft token that was accepted."""
FORCED: Final = "g"
"""The origin of a token that was the only one that its constraint allowed, drafted or not."""


@dataclass(frozen=True, slots=True)
class TokensMade:
    """The tokens that a step added to a completion: seconds from the request's arrival to the end of the step, the
    step's number, and the origin of each token, one letter a token."""

    at_s: float
    step: int
    origins: str


@dataclass(slots=True)
class RequestSteps:
    """The steps in which the sequences of a request had rows, as columns.

    number       of the step, as in its ``StepReport``
    ended_s      seconds from the request's arrival to the end of the step
    seconds      how long its rows took
    prompt_rows, answer_rows    rows of all requests that computed prompts and generated tokens
    own_prompt_rows, own_answer_rows    those of this request
    alone_s      seconds that its own rows alone would have taken, by the step-time model; None before it predicts
    """

    number: list[int] = field(default_factory=list)
    ended_s: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    prompt_rows: list[int] = field(default_factory=list)
    answer_rows: list[int] = field(default_factory=list)
    own_prompt_rows: list[int] = field(default_factory=list)
    own_answer_rows: list[int] = field(default_factory=list)
    alone_s: list[float | None] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class RequestTimeline:
    """The steps of a request, and for each completion the step and the origin of each token."""

    steps: RequestSteps
    token_steps: tuple[tuple[int, ...], ...]
    origins: tuple[str, ...]


def origins(sampled: int, taken: int, forced: Sequence[int] = ()) -> str:
    """The origins of the first ``taken`` of ``sampled`` tokens, of which all but the last are accepted drafts, and
    those at the places ``forced`` were the only ones that were allowed."""
    letters = ACCEPTED * (sampled - 1) + DRAWN
    return "".join(FORCED if place in forced else letter for place, letter in enumerate(letters[:taken]))
