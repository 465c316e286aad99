"""Control tokens: finding them in text, breaking them in untrusted text, and those for infilling.

They are found here and not in the encoder, so that one encoder serves trusted and untrusted text, and a vocabulary with
thousands of them loads quickly.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Final

from twofold.core.errors import TemplateError


def names(text: str) -> frozenset[str]:
    """The words of ``text``."""
    return frozenset(text.split())


_MARKS = [chr(code) for code in range(0xFDD0, 0xFDF0)]
"""Unicode noncharacters, which do not occur in normal text."""


BLANKS = re.compile(r"\s*")
MAX_FIRSTS = 16
"""If tokens begin with more different characters than this, a search compares only their first character, not two."""
WINDOW = 1 << 16
"""Characters per search, which holds the interpreter lock."""
MAX_BEGINNING = 64
"""Longest beginning of a control token, in characters, that is looked for at the end of a text."""
START, NOWHERE = 0, -1
"""Nodes of an automaton."""


@dataclass(frozen=True)
class Segment:
    """A stretch of plain text, or one control token (``token`` is its id)."""

    text: str
    token: int | None = None


class _Automaton:
    """Finds texts in time linear in the searched text, however many and similar they are (Aho, Corasick 1975).

    A node is a prefix of texts. ``_fallback`` of a node is its longest proper suffix that is a node, too, if nothing
    was found yet, else NOWHERE; ``_found`` is the text, as its length and id, that ends there and begins first.
    """

    def __init__(self, ids: Mapping[str, int]) -> None:
        self._next: dict[tuple[int, str], int] = {}
        self._fallback = [NOWHERE]
        self._found: list[tuple[int, int] | None] = [None]
        open_texts = [(text, START) for text in ids]
        depth = 0
        while open_texts:
            open_texts = [(text, self._child(node, text[depth])) for text, node in open_texts]
            depth += 1
            for text, node in open_texts:
                if len(text) == depth:
                    self._found[node], self._fallback[node] = (depth, ids[text]), NOWHERE
            open_texts = [(text, node) for text, node in open_texts if len(text) > depth]

    def _child(self, parent: int, char: str) -> int:
        child = self._next.get((parent, char))
        if child is not None:
            return child
        shorter = self._fallback[parent]
        while shorter > START and (shorter, char) not in self._next:
            shorter = self._fallback[shorter]
        if parent == START:
            fallback = START
        else:
            fallback = NOWHERE if shorter == NOWHERE else self._next.get((shorter, char), START)
        child = self._next[parent, char] = len(self._fallback)
        self._fallback.append(fallback)
        self._found.append(None if fallback == NOWHERE else self._found[fallback])
        return child

    def begins(self, text: str) -> bool:
        """Whether one of the texts begins with ``text``."""
        node: int | None = START
        for char in text:
            if node is None:
                break
            node = self._next.get((node, char))
        return node is not None

    def first(self, text: str, place: int) -> tuple[tuple[int, int, int] | None, int]:
        """Returns the start, end and id of the first text that begins at or soon after ``place`` (of several, the
        longest), or None; and the place at which the next search begins."""
        node, found, end = START, None, place
        for end in range(place, len(text)):
            after = None
            while node != NOWHERE and (after := self._next.get((node, text[end]))) is None:
                node = self._fallback[node]
            if after is None:
                break
            node = after
            if (match := self._found[node]) is not None:
                found = (end + 1 - match[0], end + 1, match[1])
        return found, end + 1 if found is None else found[1]


class SpecialTokens:
    """Finds control tokens in a text from left to right, the longest one at each place.

    ``ids`` maps texts to ids; after those in ``eats_space`` (ids) following white space belongs to the token.
    """

    def __init__(self, ids: Mapping[str, int], eats_space: frozenset[int] = frozenset()) -> None:
        self._ids = {text: token for text, token in ids.items() if text}
        self._eats_space = eats_space

    @cached_property
    def _first(self) -> re.Pattern[str]:
        """Finds where a token may begin, in time that does not grow with the number of tokens."""
        seconds: dict[str, set[str]] = {}
        for text in self._ids:
            seconds.setdefault(text[0], set()).add(text[1:2])
        if len(seconds) > MAX_FIRSTS:
            return re.compile(_one_of(seconds))
        starts = [
            re.escape(first) + ("" if "" in then else f"(?={_one_of(then)})") for first, then in sorted(seconds.items())
        ]
        return re.compile("|".join(starts))

    @cached_property
    def _automaton(self) -> _Automaton:
        return _Automaton(self._ids)

    @property
    def texts(self) -> frozenset[str]:
        """The texts of the control tokens."""
        return frozenset(self._ids)

    def id_of(self, text: str) -> int | None:
        """Id of the control token written ``text``."""
        return self._ids.get(text)

    def split(self, text: str) -> Iterator[Segment]:
        """The segments of the text in order; none is empty."""
        done = 0
        for start, end, token in self._occurrences(text):
            if start > done:
                yield Segment(text[done:start])
            yield Segment(text[start:end], token)
            blanks = BLANKS.match(text, end) if token in self._eats_space else None
            done = end if blanks is None else blanks.end()
        if done < len(text):
            yield Segment(text[done:])

    def _occurrences(self, text: str) -> Iterator[tuple[int, int, int]]:
        place = 0
        while self._ids and (candidate := self._candidate(text, place)) is not None:
            found, place = self._automaton.first(text, candidate)
            if found is not None:
                yield found

    def _candidate(self, text: str, place: int) -> int | None:
        """Where a token may begin, from ``place`` on."""
        for window in range(place, len(text), WINDOW):
            match = self._first.search(text, window, window + WINDOW + 1)
            if match is not None:
                return match.start()
        return None

    @cached_property
    def _punctuation(self) -> re.Pattern[str]:
        """Finds the characters of control tokens that names of tools and arguments seldom have."""
        found = {char for text in self._ids for char in text if not (char.isalnum() or char in "_-. ")}
        return re.compile(_one_of(found) if found else "(?!)")

    def broken(self, text: str, mark: str, *, is_name: bool = False) -> str:
        """``text`` with ``mark`` inserted, so that it has no control token, and makes none with the text around it.

        The mark follows the first character of each control token, and of a beginning of one at the end of the text. In
        a name, which some templates write as <name>, it also follows each punctuation mark of control tokens.
        """
        shorter = range(max(0, len(text) - MAX_BEGINNING), len(text))
        places = {start + 1 for start in shorter if self._ids and self._automaton.begins(text[start:])}
        place = 0
        while self._ids and (candidate := self._candidate(text, place)) is not None:
            found, place = self._automaton.first(text, candidate)
            if found is not None:
                place = found[0] + 1  # without this token, another one may begin inside of it
                places.add(place)
        if is_name:
            places.update(match.end() for match in self._punctuation.finditer(text))
        if not places:
            return text
        return mark.join(text[begin:end] for begin, end in pairwise([0, *sorted(places), len(text)]))


def _one_of(characters: Iterable[str]) -> str:
    """The class of these characters in a regular expression."""
    return f"[{''.join(map(re.escape, sorted(characters)))}]"


def unused_mark(text: str) -> str:
    """A noncharacter that does not occur in ``text``, nor its escape. Raises TemplateError if all occur."""
    for mark in _MARKS:
        if mark not in text and escaped(mark) not in text:
            return mark
    raise TemplateError(
        "The messages hold every Unicode noncharacter, so control tokens in them cannot be marked.",
        hint="Remove U+FDD0 to U+FDEF from the messages.",
    )


def escaped(mark: str) -> str:
    """A mark as JSON in ASCII and Python's ``repr`` write it."""
    return f"\\u{ord(mark):04x}"


PREFIX_NAMES: Final = names("<|fim_prefix|> <fim-prefix> <fim_prefix> <PRE> ▁<PRE> <|code_prefix|> <｜fim▁begin｜>")
SUFFIX_NAMES: Final = names("<|fim_suffix|> <fim-suffix> <fim_suffix> <SUF> ▁<SUF> <|code_suffix|> <｜fim▁hole｜>")
MIDDLE_NAMES: Final = names("<|fim_middle|> <fim-middle> <fim_middle> <MID> ▁<MID> <|code_middle|> <｜fim▁end｜>")
END_NAMES: Final = names(
    "<|fim_pad|> <fim-pad> <fim_pad> <PAD> <|repo_name|> <|fim_repo|> <fim-repo> <reponame> <REPO> <|file_sep|> "
    "<EOT> ▁<EOT>"
)
"""Tokens after which another file begins or the text ends: they end the completion."""


@dataclass(frozen=True, slots=True)
class InfillTokens:
    """Ids of the tokens for infilling, in the order prefix, suffix, middle (Bavarian et al. 2022).

    A GGUF file has them in ``tokenizer.ggml.fim_*_token_id`` or, older, ``prefix_token_id`` etc.; otherwise they are
    found by their texts in the vocabularies of Qwen, StarCoder, CodeLlama, DeepSeek and others. The names are those
    that llama.cpp knows (``src/llama-vocab.cpp``). ``ends`` end the completion, in addition to the model's own.
    """

    prefix: int
    suffix: int
    middle: int
    ends: tuple[int, ...]


def infill_tokens(given: Mapping[str, int | None], marks: Mapping[str, int]) -> InfillTokens | None:
    """The tokens of a vocabulary; None if one of the three is missing.

    given   ids by the file's own names for them: prefix, suffix, middle
    marks   ids of all tokens that are not plain text, by how they are written
    """
    known = {"prefix": PREFIX_NAMES, "suffix": SUFFIX_NAMES, "middle": MIDDLE_NAMES}
    found: dict[str, int] = {}
    for part, written in known.items():
        named = given.get(part)
        token = named if named is not None else next((marks[name] for name in sorted(written & marks.keys())), None)
        if token is None:
            return None
        found[part] = token
    others = {marks[name] for name in END_NAMES & marks.keys()}
    return InfillTokens(**found, ends=tuple(sorted(others | set(found.values()))))
