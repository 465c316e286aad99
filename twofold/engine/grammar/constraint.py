"""One completion under a grammar: the mask of each sample, and a guarantee that the output ends within its limit.

Laws
    A path is a list of tokens known to complete the output from here; ``room`` is how many tokens may still follow.
    room − len(path) > headroom     free: every token that the grammar allows may be sampled
    else                            near: only tokens from which a path of at most room − 1 tokens is proven

    The proofs of a free text come from its automaton, for all tokens at once: the shortest end of the text after the
    token, then the rest of the path. Other tokens are proven one by one, by the rest of the known path or by a search.

    Once near, the output always ends in time: each proof becomes the path of the next state. While free, the path is
    searched again before the output could be near, assuming that no token lengthens it by more than the headroom. If
    one did, and the shortest path found is longer than the room, only the tokens with the shortest path may be
    sampled: the output closes at once, and is in time again as soon as a path fits.
    A mask depends only on the grammar, the vocabulary, the limit and the tokens so far: searches are bounded by
    counts, never by a clock, and a state is the same whether or not its mask was requested.

An output needs no end token: an output that is complete when its limit is reached is valid.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from typing import Final

import numpy as np
from llguidance import LLMatcher
from numpy.typing import NDArray

from twofold.core.errors import ParameterError
from twofold.core.step import common_prefix
from twofold.engine.grammar.automaton import Automaton, Walk
from twofold.engine.grammar.completion import LONGEST, CompletionSearch, Path, completes
from twofold.engine.grammar.vocabulary import TokenVocabulary, allowed_ids, has_bits

PROVEN: Final = 2_048
"""Near the limit, a mask that allows more tokens than this outside of a known free text is reduced to the vocabulary's
most common ones."""
SEARCHES: Final = 64
"""Maximum number of tokens of one mask for which a path is searched if the known path does not fit."""
SEARCH_WORK: Final = 40_000
"""Limit of a search (``completion``) during generation, in the rare case that no rest of a path ends the output."""
LOST_CHECKS: Final = 32
"""After a failed search, the next one follows after 1 / LOST_CHECKS of the room: failing searches are the slowest."""
PROOF_WORK: Final = 8_000
"""Limit of the search for the path of one of the tokens in SEARCHES; a token without a path is not allowed."""
PROOFS_WORK: Final = 40_000
"""Limit of all these searches for one mask: far from the processor time that a host has for a mask (``host``), which
counts longer on a busy machine."""
_SPACE: Final = b" \t\r\n"
CUTS: Final = 4
"""The sampled token may have spelled fewer than this many tokens of a known path."""
RESTS: Final = 16
"""Maximum number of paths found for tokens of one mask that are tried for those that are not searched."""


@dataclass(frozen=True, slots=True)
class _FreeText:
    """A free text at the end of an output: the states after each token, the shortest path, and that of each state."""

    walk: Walk
    path: Path
    ends: dict[int, Path]


class GrammarConstraint:
    """A ``TokenConstraint`` for at most ``max_tokens`` tokens. Made by ``CompiledGrammar.start``; not thread-safe.

    ``path`` completes the empty output, in at most ``max_tokens`` tokens. Without one the grammar alone decides, no
    path is searched, and the limit may cut the output. ``masks`` and ``advance`` raise
    ParameterError where the grammar turns out to be too costly to go on with.

    ``_walked`` are the prepared drafts with the states after them, of which ``advance`` adopts one.
    """

    def __init__(
        self,
        matcher: LLMatcher,
        vocabulary: TokenVocabulary,
        search: CompletionSearch,
        *,
        max_tokens: int,
        path: Path | None,
        headroom: int,
    ) -> None:
        self._matcher = matcher
        self._vocabulary = vocabulary
        self._search = search
        self._room = max_tokens
        self._path = path or ()
        self._headroom = headroom
        self._proofs: dict[int, Path] = {}
        self._free: _FreeText | None = None
        self._walked: list[tuple[int, GrammarConstraint]] = []
        self._made: list[memoryview] = []
        self._untold: int | None = None
        self._unchecked = 0
        self._stale, self._lost = False, path is None
        self._spelled = bytearray()
        self._use_words(np.zeros(vocabulary.words, dtype=np.uint32))
        self._fresh = False
        self._finished = False
        self._shortened = self._narrowed = False
        self._plan_check()
        if path is None:
            self._unchecked = max_tokens

    @property
    def finished(self) -> bool:
        return self._finished

    @property
    def shortened(self) -> bool:
        return self._shortened

    @property
    def narrowed(self) -> list[bool]:
        """For each of ``masks``, whether the limit forbids tokens that the grammar allows."""
        return [state._narrowed for state in (self, *(after for _, after in self._walked))][: len(self._made)]

    @property
    def forced(self) -> list[int]:
        """``TokenConstraint.forced``."""
        if self._finished or self._matcher.is_error():
            return []
        forced: list[int] = self._matcher.compute_ff_tokens()
        return forced

    def masks(self) -> list[memoryview]:
        """``TokenConstraint.masks``."""
        if not self._made:
            self._made = [self._mask()]
        return self._made

    def prepare(self, drafts: Sequence[int] = ()) -> None:
        """``TokenConstraint.prepare``."""
        with suppress(ParameterError):  # ``masks`` raises it again
            if not self._made:
                self._walk(drafts)
            del self._made[1 + common_prefix([token for token, _ in self._walked], drafts) :]

    def _walk(self, drafts: Sequence[int]) -> None:
        """Makes the masks of this state and of those after the drafts, each in a copy of the state before it."""
        self._made, state = [self._mask()], self
        with suppress(ParameterError):  # the draft may not be sampled; if it is, its state raises the error again
            for token in drafts:
                if not has_bits(state._words, np.array([token]))[0]:
                    return
                state = state._fork()
                state._take(token)
                self._walked.append((token, state))
                if state._finished:
                    return
                self._made.append(state._mask())

    def _mask(self) -> memoryview:
        """The tokens that may follow, in one buffer that is filled again for the next state.

        llguidance fills the buffer without the interpreter's lock, except for forced text, which our tokenizer cuts
        into tokens; near the limit the proofs run with the lock.
        """
        self._follow()
        if not self._fresh:
            self._fill()
            self._fresh = True
        return self._view

    @property
    def ready(self) -> bool:
        return True

    def wait(self) -> bool:
        """``TokenConstraint.wait``."""
        return True

    def advance(self, tokens: Sequence[int]) -> None:
        """``TokenConstraint.advance``. The path of the new state is updated with its mask: ``finished`` is known
        before."""
        walked, self._walked, self._made = self._walked, [], []
        same = common_prefix([token for token, _ in walked], tokens)
        if same:
            vars(self).update(vars(walked[same - 1][1]))
        for token in tokens[same:]:
            self._take(token)

    def _take(self, token: int) -> None:
        assert not self._finished, "no token can follow a finished output"
        self._mask()  # its proofs are part of the state
        self._fresh = False
        self._room -= 1
        if token in self._vocabulary.end_ids:
            assert self._matcher.is_accepting(), "the output ended before it was complete"
            self._finished = True
            return
        if not self._matcher.consume_token(token):
            raise self._broken(f"Token {token} cannot follow")
        self._spelled += self._vocabulary.tokens[token]
        self._finished = self._matcher.is_stopped()
        self._untold = token

    def _follow(self) -> None:
        """Updates the path for the state after the last token, or decides when to search for one."""
        token, self._untold = self._untold, None
        if self._finished or token is None:
            return
        if self._unchecked > 0:
            self._unchecked -= 1
            self._stale = True
            return
        proof = self._proof(token)
        if proof is not None:
            self._path = proof
        elif not self._stale and not self._lost and self._path[:1] == (token,):
            self._path = self._path[1:]
        else:
            self._look()
        self._plan_check()

    def _fork(self) -> GrammarConstraint:
        """An independent copy with the same tokens."""
        other = copy(self)
        other._matcher, other._walked, other._made = self._matcher.deep_copy(), [], []
        other._use_words(self._words.copy())
        other._spelled = self._spelled[:]
        return other

    def _use_words(self, words: NDArray[np.uint32]) -> None:
        """Sets the buffer of masks."""
        self._words, self._address, self._view = words, words.ctypes.data, words.data

    def _fill(self) -> None:
        self._narrowed = False
        if self._finished:
            self._words[:] = self._vocabulary.end_bits
            return
        self._matcher.unsafe_compute_mask_ptr(self._address, self._words.nbytes)
        if self._matcher.is_error():
            raise self._broken("The mask cannot be computed")
        if not self._matcher.is_accepting():
            self._words &= ~self._vocabulary.end_bits
        if not self._words.any():
            raise self._broken("No token can follow")
        if self._search.lexemes.in_number(self._spelled):
            ended = self._words & ~self._vocabulary.digit_bits
            self._words[:] = ended if ended.any() else self._words
        if self._near:
            self._narrow()

    def _broken(self, what: str) -> ParameterError:
        reason = self._matcher.get_error().split("\n")[0][:120]
        return ParameterError(
            f"{what}: the structured output's grammar is too complex here ({reason}).",
            param="structured_outputs",
            hint="Simplify the grammar: fewer alternatives that begin alike, smaller repetition counts.",
        )

    @property
    def _near(self) -> bool:
        return not self._lost and self._room - len(self._path) <= self._headroom

    def _look(self) -> None:
        """Finds a path: the rest of the last path if it fits, else the shorter one of that rest and a new path."""
        rest = self._rest_of_path()
        found = rest if 0 < len(rest) <= self._room else self._searched()
        if rest and (found is None or len(rest) < len(found)):
            found = rest
        self._lost = found is None
        if found is not None:
            self._path = found

    def _rest_of_path(self) -> Path:
        end = self._vocabulary.end_ids[0]
        cuts = (self._path[cut:] for cut in reversed(range(min(CUTS, len(self._path)))))
        return next((rest for rest in cuts if completes(self._matcher, rest, end)), ())

    def _searched(self) -> Path | None:
        if self._matcher.is_accepting():
            return ()
        spelled = bytes(self._spelled)
        fitting = self._search.find(self._matcher, max(self._room, 1), spelled, SEARCH_WORK)
        return fitting or self._search.walk(self._matcher, LONGEST, spelled, SEARCH_WORK)

    def _plan_check(self) -> None:
        """Decides for how many tokens no search is needed: each may lengthen the path by the headroom, and uses one
        token of the room."""
        self._stale = False
        self._proofs, self._free = {}, None
        if self._lost:
            self._unchecked = self._room // LOST_CHECKS
            return
        slack = self._room - len(self._path) - self._headroom
        self._unchecked = max(0, slack // (1 + self._headroom) - 1)

    def _narrow(self) -> None:
        """Restricts the mask to tokens after which the output is proven to end within its limit."""
        complete = self._matcher.is_accepting()
        if complete and self._room <= 0:
            return
        self._free = self._free_text()
        if self._free is not None and len(self._free.path) < len(self._path):
            self._path = self._free.path
        self._prove(self._others(self._free))
        ends = {} if self._free is None else self._free.ends
        longest = self._room - 1
        if len(self._path) > self._room:  # it closes as soon as it can
            longest = -1 if complete else min(map(len, [*self._proofs.values(), *ends.values()]), default=-1)
        kept = self._vocabulary.bits([token for token, path in self._proofs.items() if len(path) <= longest])
        allowed = kept  # llguidance's mask may lack the path's first token where it forces a text
        if self._free is not None:
            walk = self._free.walk
            late = [state for state in walk.reached if state not in ends or len(ends[state]) > longest]
            fitting = walk.live & ~self._vocabulary.bits(self._vocabulary.order[walk.to(late)]) if late else walk.live
            allowed = kept | fitting
        if complete:
            allowed = allowed | self._vocabulary.end_bits
        if (self._words & ~allowed).any():
            self._narrowed = True
            self._shortened = self._shortened or (not complete and self._ruled_out(self._words & ~allowed, kept))
            self._words[:] = (self._words & allowed) | kept

    def _ruled_out(self, forbidden: NDArray[np.uint32], kept: NDArray[np.uint32]) -> bool:
        """Whether forbidding tokens rules out a text. One that begins as an allowed token does is ruled out, if at all,
        after that token."""
        if self._free is not None:
            return self._room <= len(self._path)
        gone, texts = allowed_ids(forbidden), [self._vocabulary.tokens[token] for token in allowed_ids(kept)]
        begun = tuple(filter(None, texts))
        return len(gone) > PROVEN or not all(self._vocabulary.tokens[token].startswith(begun) for token in gone)

    def _free_text(self) -> _FreeText | None:
        """The free text at the end of the output; None if there is none that is known."""
        found = [
            (automaton.walk(state, self._vocabulary), automaton, state)
            for automaton, state in self._search.lexemes.states(bytes(self._spelled), named=False)
        ]
        found = [each for each in found if not (each[0].live & ~self._words).any()]
        found.sort(
            key=lambda each: (-each[0].count, len(each[1].end(each[2]) or b""))
        )  # within a character all are equal
        return next(filter(None, (self._with_ends(*each) for each in found)), None)

    def _with_ends(self, walk: Walk, automaton: Automaton, state: int) -> _FreeText | None:
        """The paths from the states of a free text; None if llguidance does not accept its end here."""
        end, after = automaton.end(state), self._matcher.deep_copy()
        if end is None or not after.consume_tokens(cut := self._vocabulary.cut(end)):
            return None
        rest = self._known_rest(after, end) or self._search.walk(
            after, LONGEST, bytes(self._spelled) + end, SEARCH_WORK
        )
        if rest is None:
            return None
        ends = {}
        for reached, example in zip(walk.reached, walk.examples, strict=True):
            path = self._joined(automaton.end(reached), rest)
            if path is not None and completes(self._matcher, path, self._vocabulary.end_ids[0], example):
                ends[reached] = path
        return _FreeText(walk, (*cut, *rest), ends)

    def _joined(self, end: bytes | None, rest: Path) -> Path | None:
        """The tokens of ``end``, then ``rest``, whose first tokens may be cut in another way."""
        if not end:
            return rest if end is not None else None
        cut = self._vocabulary.cut(end)
        if not cut:
            return None
        best, text = (*cut, *rest), end
        for place, token in enumerate(rest[:CUTS], 1):
            if not self._vocabulary.is_plain[token]:
                break
            text += self._vocabulary.tokens[token]
            best = min(best, (*self._vocabulary.cut(text), *rest[place:]), key=len)
        return best

    def _others(self, free: _FreeText | None) -> list[int]:
        """The allowed tokens that neither end the output nor belong to its free text; if there are too many, the
        common ones among them."""
        words = self._words & ~self._vocabulary.end_bits
        if free is not None:
            words &= ~free.walk.live
        tokens = allowed_ids(words)
        if len(tokens) > PROVEN:
            common = self._vocabulary.preferences.common
            tokens = common[np.flatnonzero(has_bits(words, common))].astype(np.intp)
        found: list[int] = tokens.tolist()
        return found

    def _prove(self, tokens: list[int]) -> None:
        """Finds paths from the states after tokens: rests of the known path, or new ones; those that were found for the
        first tokens prove the others, too."""
        searches, work = SEARCHES, PROOFS_WORK
        self._proofs = {self._path[0]: self._path[1:]} if self._path else {}
        rests = [self._path[cut:] for cut in range(min(CUTS, len(self._path) + 1))]
        found: dict[Path, None] = {}
        for token in tokens:
            if token in self._proofs:
                continue
            proof = self._proof_by_path(token, [*self._cut_rest(self._vocabulary.tokens[token]), *rests])
            if proof is None and searches > 0 and work > 0:
                searches -= 1
                proof = self._proof_by_search(token)
                work -= PROOF_WORK - self._search.left
                if proof is not None and len(found) < RESTS:
                    found[proof] = None
            elif proof is None:
                proof = self._proof_by_path(token, found)
            if proof is not None:
                self._proofs[token] = proof

    def _proof(self, token: int) -> Path | None:
        """The path after a token that the last mask proved."""
        proof = self._proofs.get(token)
        if proof is None and self._free is not None and self._vocabulary.is_plain[token]:
            proof = self._free.ends.get(int(self._free.walk.states[self._vocabulary.place[token]]))
        return proof

    @property
    def _longest_proof(self) -> int:
        """The maximum length of a proof, which starts after the next token."""
        return max(self._room, len(self._path)) - 1

    def _proof_by_path(self, token: int, rests: Iterable[Path]) -> Path | None:
        end = self._vocabulary.end_ids[0]
        for rest in rests:
            if len(rest) <= self._longest_proof and completes(self._matcher, rest, end, token):
                return rest
        return None

    def _known_rest(self, after: LLMatcher, text: bytes) -> Path | None:
        """Returns the rest of the known path after ``text``; None if the path does not begin with that text."""
        end = self._vocabulary.end_ids[0]
        return next((rest for rest in self._cut_rest(text) if completes(after, rest, end)), None)

    def _cut_rest(self, text: bytes) -> Iterator[Path]:
        """The rest of the path after ``text``, if the first tokens of the path spell it, apart from white space."""
        text = text.strip(_SPACE) or text
        for place, token in enumerate(self._path):
            spelled = self._vocabulary.tokens[token]
            if not self._vocabulary.is_plain[token] or not (spelled.startswith(text) or text.startswith(spelled)):
                return
            if len(spelled) >= len(text):
                left, rest = spelled[len(text) :], self._path[place + 1 :]
                yield from [] if (joined := self._joined(left, rest)) is None else [joined]
                return
            text = text[len(spelled) :]

    def _proof_by_search(self, token: int) -> Path | None:
        after = self._matcher.deep_copy()
        if not after.consume_token(token):
            return None
        spelled = bytes(self._spelled) + self._vocabulary.tokens[token]
        return self._search.walk(after, self._longest_proof, spelled, PROOF_WORK)
