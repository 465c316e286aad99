"""What one sequence will probably generate next: tokens that its grammar forces, the client's prediction, and what
followed the same tokens before, in its own text or in past completions.

A proposal costs rows of a step and can be wrong; it never changes what is sampled.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from twofold.engine.draft.index import MAX_MATCH, MIN_MATCH, NO_MATCH, PastTexts, TokenIndex
from twofold.engine.draft.odds import FORCED, MODEL, OWN, PAST, PREDICTED, REALIGNED, Odds, class_of, least_length

SURE_MATCH: Final = 8
"""A match of this length is followed without another search, and resumed after one replaced token."""
GOOD_MATCH: Final = 5
"""Below this length, past completions are searched, too."""
PAST_MATCH: Final = 3
"""Shorter matches in past completions are rarely right."""


@dataclass(slots=True)
class Proposal:
    """The tokens of ``text`` from ``start`` on, up to ``end`` if the prediction ends there.

    kind       FORCED, PREDICTED, OWN or PAST
    length     tokens before ``start`` that agree with the sequence
    realigned  the token before ``start`` was replaced by another one
    """

    text: Sequence[int]
    start: int
    kind: int
    length: int
    realigned: bool = False
    end: int | None = None

    def __len__(self) -> int:
        return (len(self.text) if self.end is None else self.end) - self.start

    def tokens(self, count: int) -> array[int]:
        """The first ``count`` tokens."""
        return array("i", self.text[self.start : self.start + count])

    def kind_at(self, index: int) -> int:
        """The class of its token ``index``."""
        if self.realigned and not index:
            return REALIGNED
        if self.kind in {FORCED, PREDICTED}:
            return self.kind
        return class_of(self.kind, self.length + index)


class SequenceDrafter:
    """Proposals for one sequence. ``past`` and ``shared`` are the completions and the odds of its salt; ``sampled`` are
    the tokens of its completion that are known already."""

    __slots__ = ("_index", "_next", "_offset", "_past", "_shared", "odds")

    def __init__(self, prediction: Sequence[int], past: PastTexts, shared: Odds, sampled: Sequence[int] = ()) -> None:
        self._index = TokenIndex()
        self._index.extend(prediction)
        self._offset = len(prediction)
        self._next: Proposal | None = None
        if (start := len(sampled)) < len(prediction):
            right = tuple(prediction[:start]) == tuple(sampled)
            length = start if right else 0
            self._next = Proposal(self._index.tokens, start, PREDICTED, length, not right, self._offset)
        self._past = past
        self._shared = shared
        self.odds = Odds(shared)

    def behind(self, known: int) -> int:
        """How many of the sequence's first ``known`` tokens are not indexed."""
        return known - (len(self._index.tokens) - self._offset)

    def feed(self, tokens: array[int], most: int) -> int:
        """Indexes the next tokens of the sequence ``tokens``, at most ``most``; returns how many."""
        start = len(self._index.tokens) - self._offset
        new = tokens[start : start + most]
        self._index.extend(new)
        return len(new)

    def propose(self, tokens: array[int], forced: Sequence[int] = (), least: float = 0.0) -> Proposal | None:
        """What follows ``tokens`` with a probability of at least ``least``; ``forced`` tokens are those that a grammar
        forces."""
        found = self._next if self._next is not None and len(self._next) else None
        if found is None or found.length < SURE_MATCH:
            found = self._search(tokens, found, least)
        if forced and (found is None or self._chance(found) < self.odds.chances[FORCED]):
            found = Proposal(forced, 0, FORCED, 0)
        if found is None or not len(found) or self._chance(found) < least:
            return None
        return found

    def learn(self, proposal: Proposal, sampled: Sequence[int]) -> None:
        """Compares a proposal with the tokens that were sampled, whether or not it was drafted."""
        text, start = proposal.text, proposal.start
        self._next = None
        for index, token in enumerate(sampled):
            if index >= len(proposal):
                return
            kind, right = proposal.kind_at(index), text[start + index] == token
            self.odds.learn(kind, right, not right)
            self._shared.learn(kind, right, not right)
            if not right:
                if proposal.kind == PREDICTED or (proposal.kind == OWN and proposal.length + index >= SURE_MATCH):
                    self._next = replace(proposal, start=start + index + 1, length=0, realigned=True)
                return
        if proposal.kind != FORCED:
            length = proposal.length + len(sampled)
            self._next = replace(proposal, start=start + len(sampled), length=length, realigned=False)

    def learn_model(self, right: bool) -> None:
        """Counts a draft of the draft model."""
        self.odds.learn(MODEL, right, not right)
        self._shared.learn(MODEL, right, not right)

    def lose(self) -> None:
        """Tokens were sampled without a proposal: the place in a text that was followed is lost."""
        self._next = None

    def _search(self, tokens: array[int], followed: Proposal | None, least: float) -> Proposal | None:
        """The longest match, or the text that is followed already if no match is longer."""
        longer, chances = 0, self.odds.chances
        if followed is not None and not followed.realigned:
            if followed.kind == PREDICTED:
                return followed
            longer = followed.length + 1
        found, match = followed, NO_MATCH
        length = MIN_MATCH if self._offset and least <= chances[PREDICTED] else least_length(OWN, chances, least)
        if length <= MAX_MATCH:
            match = self._index.longest(tokens, max(length, longer))
            if match is not NO_MATCH:
                kind, end = (PREDICTED, self._offset) if match.follows < self._offset else (OWN, None)
                found = Proposal(self._index.tokens, match.follows, kind, match.length, end=end)
        length = least_length(PAST, chances, least)
        if match.length < GOOD_MATCH and length <= MAX_MATCH and len(self._past):
            past, text = self._past.longest(tokens, max(PAST_MATCH, match.length + 1, length, longer))
            if past is not NO_MATCH:
                found = Proposal(text, past.follows, PAST, past.length)
        return found

    def _chance(self, proposal: Proposal) -> float:
        return self.odds.chances[proposal.kind_at(0)]
