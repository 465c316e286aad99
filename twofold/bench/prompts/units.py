"""Units: pieces of text with one token each in any context, of which prompts of exact lengths are made.

A tokenizer that splits before spaces encodes a word alike in any text, so many words are tested with one count: if it
grows by as many tokens as words, each word is one token. If not, groups are divided to find the other words. A
vocabulary without words is tested with single characters. If that fails too, or without a counter, words have a mean
number of tokens, and lengths of prompts are approximate.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from twofold.bench.base import TokenCounter
from twofold.bench.load.base import PromptMessage

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


@dataclass(frozen=True, slots=True)
class Units:
    """Texts to concatenate.

    each   tokens of one text
    start  tokens of a prompt whose only message is ``START``; None without a counter
    exact  whether each text has exactly one token
    """

    texts: tuple[str, ...]
    each: float
    start: int | None
    exact: bool


def find_units(counter: TokenCounter | None) -> Units:
    """The units of a vocabulary, found with four counts if all words are units, else with some tens."""
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
        """Tokens beyond one per text; None without a count, or when the limit is reached."""
        if self._left == 0:
            return None
        self._left -= 1
        count = self._counter.count(user_message(START + "".join(texts)))
        return None if count is None else count - self._start - len(texts)

    def good(self, texts: tuple[str, ...]) -> Iterator[str]:
        """The units among texts. Groups with many other texts, and small ones with any, are dropped."""
        excess = self.excess(texts)
        if excess == 0:
            yield from texts
        elif excess is not None and len(texts) > MIN_GROUP and excess <= len(texts) // 2:
            for part in _groups(texts, max(len(texts) // 4, MIN_GROUP)):
                yield from self.good(part)


def _groups(texts: tuple[str, ...], size: int) -> Iterator[tuple[str, ...]]:
    for at in range(0, len(texts), size):
        yield texts[at : at + size]
