"""How probable a proposed token is, by where it came from: a beta distribution for each class, with forgetting."""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

DECAY: Final = 0.97
"""What remains of the evidence after each observation."""
FADE: Final = 0.99
"""What remains of the difference to PRIOR after a step in which a class could have been tried."""
INHERITED: Final = 4.0
"""The evidence of a salt counts at most as this many observations of a new sequence."""
LENGTHS: Final = (2, 3, 5, 9)
"""Matches are classed by their length: 2, 3 to 4, 5 to 8, 9 and more tokens."""

NO_LENGTH: Final = 1 << 30

FORCED: Final = 0
PREDICTED: Final = 1
REALIGNED: Final = 2
MODEL: Final = 3
OWN: Final = 4
PAST: Final = OWN + len(LENGTHS)
CLASSES: Final = PAST + len(LENGTHS)
"""Classes of proposed tokens: forced by the grammar; the client's prediction; the place after a replaced token; the
draft model; and, by length, matches in the sequence's own text or in past completions."""

PRIOR: Final = (
    (8.0, 0.5),
    (4.0, 1.0),
    (2.0, 2.0),
    (4.0, 1.0),
    *((1.0, 2.0), (2.0, 2.0), (3.0, 1.5), (8.0, 1.0)),
    *((1.0, 3.0), (2.0, 2.0), (3.0, 2.0), (6.0, 1.5)),
)
"""Right and wrong tokens of each class that are assumed at first."""


def class_of(kind: int, length: int) -> int:
    """The class of the token after a match of ``length``; ``kind`` is OWN or PAST."""
    return kind + max(bisect_right(LENGTHS, length) - 1, 0)


def least_length(kind: int, chances: list[float], least: float) -> int:
    """The length from which on a match of ``kind`` (OWN or PAST) has a chance of at least ``least``; NO_LENGTH if
    none."""
    for index, length in enumerate(LENGTHS):
        if chances[kind + index] >= least:
            return length
    return NO_LENGTH


class Odds:
    """Evidence of right and wrong tokens for each class."""

    __slots__ = ("_right", "_wrong", "chances")

    def __init__(self, inherited: Odds | None = None) -> None:
        if inherited is None:
            self._right, self._wrong = [right for right, _ in PRIOR], [wrong for _, wrong in PRIOR]
        else:
            pairs = zip(inherited._right, inherited._wrong, strict=True)
            scaled = [(right, wrong, min(1.0, INHERITED / (right + wrong))) for right, wrong in pairs]
            self._right = [right * scale for right, _, scale in scaled]
            self._wrong = [wrong * scale for _, wrong, scale in scaled]
        self.chances = [right / (right + wrong) for right, wrong in zip(self._right, self._wrong, strict=True)]

    def learn(self, kind: int, right: int, wrong: int) -> None:
        """Adds tokens of a class that were right and wrong."""
        a = self._right[kind] = self._right[kind] * DECAY + right
        b = self._wrong[kind] = self._wrong[kind] * DECAY + wrong
        self.chances[kind] = a / (a + b)

    def fade(self, kind: int) -> None:
        """Moves the evidence of a class that is not tried towards PRIOR, so that it is tried again."""
        right, wrong = PRIOR[kind]
        a = self._right[kind] = right + FADE * (self._right[kind] - right)
        b = self._wrong[kind] = wrong + FADE * (self._wrong[kind] - wrong)
        self.chances[kind] = a / (a + b)
