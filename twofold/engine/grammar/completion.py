"""Searches for the shortest rest of a structured output: an upper bound of the tokens that it still needs.

Greedy walks come first: they take the tokens that the grammar forces, else the token that usually closes an open part.
If no walk ends (a regex such as ``[a-z]+x`` never ends by itself), a search by layers follows, which tries the literals
of the grammar's text and then every character: states with equal masks count as one, states after a literal come first,
and a layer keeps at most ``WIDTH``. Every path found is valid, so its length is a true bound; it may not be the
shortest, and an existing path may be missed.

A search is bounded by its work, not by a clock, so its result depends only on the grammar, the vocabulary and the
tokens so far. The unit of work is one token tried or taken, about a microsecond; ``…_WORK`` are the costs of other
operations, measured for a vocabulary of 50,000.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from llguidance import LLMatcher

from twofold.engine.grammar.lexemes import Lexemes
from twofold.engine.grammar.vocabulary import I32, TokenVocabulary, allowed_ids, has_bits

Path: TypeAlias = tuple[int, ...]

LONGEST: Final = 8_192
"""Maximum length of a path: of a grammar whose shortest output needs more tokens, no end is known."""
WIDTH: Final = 8
MAX_TEXTS: Final = 64
MAX_OTHERS: Final = 16
MAX_REPEATS: Final = 512
"""A walk is given up after this many equal tokens in a row."""
SHORT_PATH: Final = 8
CUTTING: Final = 4
"""A walk may be this many times as long as its limit: it may be cut into fewer tokens."""
MAX_FORCED_BYTES: Final = 65_536
PROBES: Final = 8
"""Preferred tokens that are tried one by one before a mask, which costs more, is computed for all."""
MASK_WORK: Final = 20
COPY_WORK: Final = 10
STEP_WORK: Final = 3
"""The cost of asking for forced bytes and whether the output is complete."""


@dataclass(slots=True)
class _State:
    matcher: LLMatcher
    path: Path


class CompletionSearch:
    """Finds completions for one grammar. It holds a scratch mask, so each thread needs its own."""

    def __init__(
        self,
        vocabulary: TokenVocabulary,
        lexemes: Lexemes,
        texts: tuple[bytes, ...] = (),
        literals: tuple[Path, ...] = (),
    ) -> None:
        self.lexemes = lexemes
        self._vocabulary = vocabulary
        self._texts = texts
        self._literals = literals
        self._words = np.zeros(vocabulary.words, dtype=np.uint32)
        self._address = self._words.ctypes.data
        self._work = 0

    @property
    def left(self) -> int:
        """What the last search left of its work."""
        return self._work

    def find(self, matcher: LLMatcher, limit: int, spelled: bytes, work: int) -> Path | None:
        """At most ``limit`` tokens after which the output is complete, or None if the search finds no such tokens.

        ``work`` is a limit, which the last step may exceed. ``spelled`` is the output so far.
        """
        path = self.walk(matcher, limit, spelled, work)
        return path if path is not None or self._texts else self._layers(matcher, limit)

    def walk(self, matcher: LLMatcher, limit: int, spelled: bytes, work: int) -> Path | None:
        """As ``find``, by greedy walks only."""
        self._work = work
        if self._texts:
            return self._remainder(matcher, limit, spelled)
        path = self._cut_walk(matcher, limit, spelled)
        return self._branched(matcher, limit, spelled) if path is None else path

    def _cut_walk(self, matcher: LLMatcher, limit: int, spelled: bytes) -> Path | None:
        path = self._walk(matcher, CUTTING * limit, spelled)
        path = None if path is None else self._recut(matcher, path)
        return None if path is None or len(path) > limit else path

    def _branched(self, matcher: LLMatcher, limit: int, spelled: bytes) -> Path | None:
        """The shortest walk after one of the few tokens that may follow, such as those that begin names of properties:
        a walk takes one of them, and the value of another name may be shorter."""
        tokens = self._ordered(matcher, np.arange(0, dtype=np.int32)) if self._work > 0 else []
        best: Path | None = None
        for token in tokens if len(tokens) < MAX_OTHERS else ():
            after = matcher.deep_copy()
            if self._work > 0 and after.consume_token(token):
                most = (limit if best is None else len(best) - 1) - 1
                rest = self._cut_walk(after, most, spelled + self._vocabulary.tokens[token])
                best = best if rest is None else (token, *rest)
        return best

    def _recut(self, matcher: LLMatcher, path: Path) -> Path:
        """The path cut into fewer tokens, if possible: a walk cuts each of its steps by itself."""
        cut, text = list[int](), b""
        for token in path:
            if self._vocabulary.is_plain[token]:
                text += self._vocabulary.tokens[token]
            else:
                cut += [*self._vocabulary.cut(text), token]
                text = b""
        cut += self._vocabulary.cut(text)
        shorter = len(cut) < len(path) and completes(matcher, tuple(cut), self._vocabulary.end_ids[0])
        return tuple(cut) if shorter else path

    def _walk(self, matcher: LLMatcher, limit: int, spelled: bytes) -> Path | None:
        """The shorter of two walks; only one if the first is short enough."""
        preferences = self._vocabulary.preferences
        path = self._greedy(matcher.deep_copy(), limit, preferences.text, spelled)
        if path is not None and len(path) <= SHORT_PATH:
            return path
        other = self._greedy(matcher.deep_copy(), limit if path is None else len(path) - 1, preferences.words, spelled)
        return path if other is None else other

    def _remainder(self, matcher: LLMatcher, limit: int, spelled: bytes) -> Path | None:
        """The shortest rest of one of the texts, up to the way in which it is cut into tokens."""
        rests = [text[len(spelled) :] for text in self._texts if text.startswith(spelled)]
        paths = (tuple(self._vocabulary.spell(rest)) for rest in sorted(rests, key=len)[:MAX_TEXTS])
        valid = [path for path in paths if completes(matcher, path, self._vocabulary.end_ids[0])]
        best = min(valid, key=len, default=None) if valid else self._walk(matcher, limit, spelled)
        return best if best is not None and len(best) <= limit else None

    def _greedy(self, matcher: LLMatcher, limit: int, text_order: I32, spelled: bytes) -> Path | None:
        path: list[int] = []
        text = bytearray(spelled)
        same = 0
        self._work -= COPY_WORK
        while not matcher.is_accepting():
            step = (
                self._forced(matcher, limit - len(path))
                or self._hinted(matcher, bytes(text))
                or self._chosen(matcher, text_order, path)
            )
            for token in step:
                text += self._vocabulary.tokens[token]
            same = same + 1 if step == path[-1:] else 0
            path += step
            self._work -= STEP_WORK + len(step)
            if not step or len(path) > limit or same > MAX_REPEATS or matcher.is_error() or self._work < 0:
                return None
        return tuple(path)

    def _forced(self, matcher: LLMatcher, room: int) -> list[int]:
        """Consumes and returns the tokens that the grammar forces."""
        data = matcher.compute_ff_bytes()
        if not data or len(data) > MAX_FORCED_BYTES:
            return []
        ids = self._vocabulary.spell(data)[: room + 1]
        return ids[: matcher.try_consume_tokens(ids)] if ids else []

    def _hinted(self, matcher: LLMatcher, text: bytes) -> list[int]:
        """Consumes and returns the shortest end of the free text, if it is in one."""
        self._work -= STEP_WORK
        for end in self.lexemes.ends(text):
            ids = self._vocabulary.cut(end)
            self._work -= len(ids)
            if ids and matcher.validate_tokens(ids) == len(ids) and matcher.consume_tokens(ids):
                return ids
        return []

    def _chosen(self, matcher: LLMatcher, text_order: I32, before: list[int]) -> list[int]:
        """Consumes and returns the preferred one of the allowed tokens; empty if none is allowed."""
        preferences = self._vocabulary.preferences
        last = before[-1] if before else -1
        order = text_order if self._is_text(matcher) else preferences.after.get(last, preferences.structure)
        tokens = self._probed(matcher, order) or self._ordered(matcher, order)[:1]
        return tokens if tokens and matcher.consume_token(tokens[0]) else []

    def _probed(self, matcher: LLMatcher, order: I32) -> list[int]:
        """The first allowed one of the first PROBES tokens of ``order``, without computing a mask."""
        return next(([token] for token in order[:PROBES].tolist() if self._allows(matcher, token)), [])

    def _allows(self, matcher: LLMatcher, token: int) -> bool:
        self._work -= 1
        return matcher.validate_tokens([token]) == 1

    def _ordered(self, matcher: LLMatcher, order: I32) -> list[int]:
        """The allowed tokens of ``order``; if all of them are forbidden, up to MAX_OTHERS other allowed tokens."""
        self._work -= MASK_WORK
        matcher.unsafe_compute_mask_ptr(self._address, self._words.nbytes)
        found = order[np.flatnonzero(has_bits(self._words, order))]
        if not len(found):
            found = allowed_ids(self._words & ~self._vocabulary.end_bits).astype(np.int32)[:MAX_OTHERS]
        ids: list[int] = found.tolist()
        return ids

    def _is_text(self, matcher: LLMatcher) -> bool:
        """Whether the grammar seems to allow free text here: a letter as well as a brace."""
        marks = self._vocabulary.preferences.marks
        return len(marks) > 0 and all(self._allows(matcher, mark) for mark in marks.tolist())

    def _layers(self, matcher: LLMatcher, limit: int) -> Path | None:
        layer = [_State(matcher.deep_copy(), ())]
        while layer:
            following: dict[bytes, _State] = {}
            for after in self._successors(layer):
                self._work -= MASK_WORK
                if len(after.path) > limit or self._work < 0:
                    return None
                if after.matcher.is_accepting():
                    return after.path
                following.setdefault(after.matcher.compute_bitmask(), after)
            layer = list(following.values())[:WIDTH]
        return None

    def _successors(self, layer: list[_State]) -> Iterator[_State]:
        """Every state one literal or one character further; the literals of all states come first."""
        for state in layer:
            for literal in self._literals:
                self._work -= COPY_WORK + len(literal)
                after = state.matcher.deep_copy()
                if after.validate_tokens([*literal]) == len(literal) and after.consume_tokens([*literal]):
                    yield _State(after, (*state.path, *literal))
        for state in layer:
            for token in self._ordered(state.matcher, self._vocabulary.preferences.single):
                self._work -= COPY_WORK
                after = state.matcher.deep_copy()
                if after.consume_token(token):
                    yield _State(after, (*state.path, token))


def completes(matcher: LLMatcher, path: Path, end: int, *before: int) -> bool:
    """Whether ``before`` and then ``path`` lead from here to where the output may end with token ``end``."""
    tokens = [*before, *path, end]
    return matcher.validate_tokens(tokens) == len(tokens)
