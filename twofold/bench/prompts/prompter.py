"""Makes prompts with exact numbers of tokens, without counting tokens during the load.

A message is ``START`` and units: pieces of text with one token each in any context. So its tokens are its units,
``START``, and the tokens of the chat template, which are counted once before the run, for first and for later turns.

A tokenizer that splits before spaces encodes a word alike in any text, so many words are tested with one count: if it
grows by as many tokens as words, each word is one token. If not, the words are tested in smaller groups. In a
vocabulary without words, single characters are tested. If that fails too, or without a counter, words have a mean
number of tokens, and lengths of prompts are approximate.

A prompt depends only on the seed and its request, its shared prefix only on the seed and the key. The rest begins with
units that encode the request's index, so that prompts differ as early as possible and no prefix cache hits by accident.
Another run against the same server needs another seed, or all its prompts are cached.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

import numpy as np

from twofold.bench.load.base import Ask, PromptMessage, Shared

_TEXT: Final = """
time year people way day man thing woman life child world school state family student group country problem hand part
place case week company system program question work number night point home water room mother area money story fact
month lot right study book eye job word business issue side kind head house service friend father power hour game line
end member law car city community name president team minute idea kid body back parent face others level office door
health person art history party result change morning reason research girl guy moment air teacher force education foot
boy age policy music market sense nation plan college interest effect use class control care field role effort rate
heart show leader light voice wife mind price report decision son view town road arm value building action season
society tax director position player record paper space ground form event official matter center couple site project
activity star table need court produce oil situation cost industry figure street image phone data picture practice piece
land product doctor wall patient worker news test movie north love step south east west film tree source summer winter
spring hair weight science training garden glass green blue red black white yellow brown orange river sea mountain
island beach forest bird fish dog cat horse cow sheep stone metal wood gold silver cotton cloth shirt dress shoe hat
ring bag box bottle cup plate knife fork spoon chair desk bed lamp window floor roof kitchen bath soap brush bread milk
cheese butter meat rice corn fruit apple cake sugar salt coffee tea dinner lunch meal hotel bank shop store church
hospital museum park station airport train plane ship boat truck bus bike wheel engine machine computer keyboard screen
camera radio video letter email page sentence paragraph chapter language english math physics chemistry biology sport
football tennis golf race match score goal ball run walk jump swim climb drive ride fly travel visit stay leave arrive
start begin finish stop continue open close turn move push pull carry hold keep give take bring send get put make build
create design draw write read speak listen hear see watch look find search learn teach know think believe remember
forget explain describe discuss agree argue ask answer call tell say talk laugh smile sleep wake eat drink cook clean
wash wear buy sell pay spend save win lose help support protect break fix cut join share follow lead serve choose decide
hope wish want like enjoy prefer feel touch smell taste big small large little long short high low tall wide deep thick
thin heavy fast slow hot cold warm cool wet dry hard soft strong weak rich poor young old new early late good bad best
worst better worse easy difficult simple complex clear dark bright full empty busy free ready safe quiet loud happy sad
angry proud tired hungry healthy beautiful strange common rare special normal local global public private national
foreign modern ancient recent future past present daily weekly final first second third next last main major minor human
natural social political economic legal medical digital physical mental personal several many few more most less least
much such same different other another each every both all some any none one two three four five six seven eight nine
ten hundred thousand million half quarter double single pair dozen always never often sometimes usually rarely again
still already yet soon later today tomorrow yesterday now then here there inside outside above below under over between
among across along around through toward near far away together alone almost nearly quite very too enough only just even
also perhaps maybe indeed instead however therefore although because since unless until while where when why how what
which who whose from into with without within against during before after about per plus minus via able method model
order process type theory series section sample signal path network node memory object option output package pattern
phase platform pool port post pressure print profile protocol query queue range reference region release request
response return review route rule scale scene scheme script select sequence server session size skill solution sort
sound speed stage standard status storage strategy stream string structure style subject success surface switch symbol
target task term text theme title tone tool topic total track trade tradition transfer treatment trend trial trip truth
unit update user version vote wave width wind wire yard zone
"""

WORDS: Final = tuple(_TEXT.split())
START: Final = "A"
"""The start of every message: one token in any vocabulary, and no space, which templates would strip."""

CHARACTERS: Final = tuple("BCDEFGHIJKLMNOPQRSTUVWXYZ0123456789")
BATCH: Final = 256
MIN_WORDS: Final = 96
MIN_GROUP: Final = 16
MAX_CALLS: Final = 64

INDEXES: Final = 1 << 24
"""Number of prompts whose first units differ."""

TRIALS: Final = (
    Ask(INDEXES - 1, 0.0, 48, 1),
    Ask(INDEXES - 2, 0.0, 200, 1, shared=(Shared(-1, 60),)),
    Ask(INDEXES - 3, 0.0, 1000, 1),
)
"""Prompts that are counted to check their lengths; no load has their indexes."""

_CACHED: Final = 128
_MASK: Final = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class TokenCounter:
    """Counts the tokens of prompts as the measured server does.

    source  what counts the tokens, for the report
    count   tokens of the whole prompt, chat template included; None if unknown
    """

    source: str
    count: Callable[[tuple[PromptMessage, ...]], int | None]


@dataclass(frozen=True, slots=True)
class Units:
    """Texts of which prompts are made.

    each   mean number of tokens of a text
    start  tokens of a prompt whose only message is ``START``; None without a counter
    exact  whether every text has exactly one token
    """

    texts: tuple[str, ...]
    each: float
    start: int | None
    exact: bool


def find_units(counter: TokenCounter | None) -> Units:
    """The units of a vocabulary. Counts four texts if all words are units, else some tens of texts."""
    words = tuple(f" {word}" for word in WORDS)
    start = None if counter is None else counter.count(user_message(START))
    if counter is None or start is None:
        return Units(words, 1.0, None, exact=False)
    probe = _Probe(counter, start)
    good = tuple(word for group in _groups(words, BATCH) for word in probe.good(group))
    if len(good) >= MIN_WORDS:
        return Units(good, 1.0, start, exact=True)
    drawn = [np.random.default_rng(seed).choice(CHARACTERS, BATCH).tolist() for seed in range(2)]
    if all(_Probe(counter, start).excess(tuple(texts)) == 0 for texts in drawn):
        return Units(CHARACTERS, 1.0, start, exact=True)
    excess = _Probe(counter, start).excess(words)
    return Units(words, 1.0 if excess is None else 1.0 + excess / len(words), start, exact=False)


def user_message(text: str) -> tuple[PromptMessage, ...]:
    return (PromptMessage("user", text),)


class _Probe:
    """Tests texts for units with a limited number of counts."""

    def __init__(self, counter: TokenCounter, start: int) -> None:
        self._counter = counter
        self._start = start
        self._left = MAX_CALLS

    def excess(self, texts: tuple[str, ...]) -> int | None:
        """Number of tokens beyond one per text; None if it is unknown or MAX_CALLS counts were used."""
        if self._left == 0:
            return None
        self._left -= 1
        count = self._counter.count(user_message(START + "".join(texts)))
        return None if count is None else count - self._start - len(texts)

    def good(self, texts: tuple[str, ...]) -> Iterator[str]:
        """The texts that are units. Drops groups with many other texts, and small groups with any."""
        excess = self.excess(texts)
        if excess == 0:
            yield from texts
        elif excess is not None and len(texts) > MIN_GROUP and excess <= len(texts) // 2:
            for part in _groups(texts, max(len(texts) // 4, MIN_GROUP)):
                yield from self.good(part)


def _groups(texts: tuple[str, ...], size: int) -> Iterator[tuple[str, ...]]:
    for at in range(0, len(texts), size):
        yield texts[at : at + size]


@dataclass(frozen=True, slots=True)
class Recipe:
    """Properties of a server's tokenizer and template.

    first, later   tokens of a prompt besides its units: in a first turn, and added by a later one
    start_later    whether a later turn begins with ``START``, as in chats; a plain text continues with a space
    source         what counts the tokens, for the report
    exact          whether prompts have exact numbers of tokens; checked with the counter
    """

    units: Units
    first: int
    later: int
    start_later: bool
    source: str
    exact: bool


class Prompter:
    """Makes all messages of a request. The result does not depend on the order of calls."""

    def __init__(self, recipe: Recipe, seed: int) -> None:
        self.recipe = recipe
        self._seed = seed & _MASK
        self._units = np.array(recipe.units.texts, dtype=object)
        self._places = np.random.default_rng((self._seed, 0)).permutation(len(self._units))
        self._shared = lru_cache(_CACHED)(lambda key, count: "".join(self._random((self._seed, 1, key & _MASK), count)))

    def with_seed(self, seed: int) -> Prompter:
        """A prompter for another run, with other prompts."""
        return Prompter(self.recipe, seed)

    @property
    def min_tokens(self) -> int:
        """The minimum number of tokens of a first prompt without a shared prefix."""
        return self.recipe.first + 1

    def describe(self) -> Mapping[str, Any]:
        """Properties for the report, plain data."""
        recipe = self.recipe
        return {
            "counted_by": recipe.source,
            "exact": recipe.exact,
            "seed": self._seed,
            "template_tokens": recipe.first,
            "template_tokens_later": recipe.later,
            "tokens_each": recipe.units.each,
            "units": len(recipe.units.texts),
        }

    def __call__(self, ask: Ask) -> tuple[PromptMessage, ...]:
        if ask.messages is not None:
            return (*ask.history, *ask.messages)
        is_later_turn = bool(ask.history)
        recipe = self.recipe
        begin = START if recipe.start_later or not is_later_turn else ""
        room = self._unit_count(ask.input_tokens - (recipe.later if is_later_turn else recipe.first))
        parts = [begin]
        for piece in ask.shared:
            count = min(self._unit_count(piece.tokens), room)
            parts.append(self._shared(piece.key, count))
            room -= count
        own = self._index_units(ask.index) + self._random((self._seed, 2, ask.index & _MASK), room)
        return (*ask.history, PromptMessage("user", "".join(parts + own[:room])))

    def _unit_count(self, tokens: int) -> int:
        """The number of units that have about ``tokens`` tokens in all."""
        each = self.recipe.units.each
        return max(tokens if each == 1.0 else round(tokens / each), 0)

    def _index_units(self, index: int) -> list[str]:
        """The index in as many digits as ``INDEXES`` needs; the digits are units, permuted by the seed."""
        base = len(self._places)
        digits = []
        left = INDEXES
        while left > 0:
            index, digit = divmod(index, base)
            digits.append(str(self._units[self._places[digit]]))
            left //= base
        return digits

    def _random(self, seed: tuple[int, ...], count: int) -> list[str]:
        """``count`` random units. For one seed, a smaller count gives a prefix of the result for a larger count."""
        draws = np.random.default_rng(seed).random(count)
        drawn: list[str] = self._units[(draws * len(self._units)).astype(np.intp)].tolist()
        return drawn


def make_prompter(counter: TokenCounter | None, *, chat: bool, seed: int) -> Prompter:
    """A prompter for the tokenizer of ``counter``, checked with trial prompts. Without a counter, a word is one token.

    chat  whether the endpoint takes messages; otherwise one text
    """
    units = find_units(counter)
    if counter is None or units.start is None:
        return Prompter(Recipe(units, 1, 1, chat, "not counted; one word is taken as one token", exact=False), seed)
    later = _later(counter, units) if chat else 0
    recipe = Recipe(units, units.start, units.start if later is None else later, chat, counter.source, units.exact)
    prompter = Prompter(recipe, seed)
    if recipe.exact:  # trial prompts that are too short for the template are skipped
        asks = [ask for ask in TRIALS if ask.input_tokens >= prompter.min_tokens]
        counts = [(counter.count(prompter(ask)), ask.input_tokens) for ask in asks]
        exact = [count == asked for count, asked in counts if count is not None]
        prompter.recipe = replace(recipe, exact=bool(exact) and all(exact))
    return prompter


def _later(counter: TokenCounter, units: Units) -> int | None:
    """Tokens that a second turn adds besides its units and the previous completion; None if the chat is rejected."""
    text = START + "".join(units.texts[:8])
    once = (PromptMessage("user", text),)
    first, second = counter.count(once), counter.count((*once, PromptMessage("assistant", text), *once))
    if first is None or second is None:
        return None
    return max(second - first - 1 - round(16 * units.each), 0)
