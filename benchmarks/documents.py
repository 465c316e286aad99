"""Documents with planted facts, and questions whose answers are these facts.

A document is filler with facts between its sentences, one fact for each question. The filler is prose without names or
numbers (``village``), or paragraphs of this repository's documents (``manual``), which are dense with both.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

Filler = Literal["village", "manual"]
FILLERS: Final[tuple[Filler, ...]] = ("village", "manual")
DOCS: Final = Path(__file__).parents[1] / "docs"
MANUALS: Final = ("serving.md", "server.md", "metrics.md", "kernels.md", "install.md", "predict.md", "simulate.md")
WORDS: Final = 700
"""About as many words of filler has a document: 900 to 1,200 tokens."""
FACTS: Final = 6


@dataclass(frozen=True, slots=True)
class Fact:
    """A sentence, a question about it, and the word or number that a right answer contains."""

    sentence: str
    question: str
    answer: str


@dataclass(frozen=True, slots=True)
class Document:
    """A text and the facts in it."""

    text: str
    facts: tuple[Fact, ...]


def _words(text: str) -> list[str]:
    return text.split()


PLACES: Final = _words(
    "Harrow Brenton Calder Dunmore Eskdale Farley Gorsley Hexton Ingram Jarrow Kelso Lorton Marsden Norbury"
)
PEOPLE: Final = _words(
    "Amira Boris Chandra Dolores Edmund Fatima Gustav Helga Ismael Jocasta Kwame Leonora Matthias Nadia"
)
COLOURS: Final = _words("crimson turquoise violet orange indigo yellow purple scarlet")
ANIMALS: Final = _words("otter heron badger falcon lynx hedgehog raven tortoise")
TRADES: Final = _words("cooper glazier farrier locksmith tanner weaver chandler saddler")
MONTHS: Final = _words("January February March April May June July August September October November December")
TEMPLATES: Final = (
    ("The access code of the {place} depot is {number}.", "What is the access code of the {place} depot?", "number"),
    (
        "{person} keeps the spare key in a {colour} box.",
        "In a box of which colour does {person} keep the key?",
        "colour",
    ),
    ("The bridge at {place} was opened in {year}.", "In which year was the bridge at {place} opened?", "year"),
    ("{person} was trained as a {trade}.", "As what was {person} trained?", "trade"),
    (
        "The emblem of the {place} club shows a {animal}.",
        "Which animal does the emblem of the {place} club show?",
        "animal",
    ),
    (
        "The next inspection in {place} is due in {month}.",
        "In which month is the next inspection in {place} due?",
        "month",
    ),
    ("The archive in {place} holds {number} maps.", "How many maps does the archive in {place} hold?", "number"),
    (
        "{person} has asked for a refund of {number} crowns.",
        "How many crowns of refund has {person} asked for?",
        "number",
    ),
    (
        "The new door of the {place} library is {colour}.",
        "What colour is the new door of the {place} library?",
        "colour",
    ),
    (
        "The contract with {place} ends in {month} {year}.",
        "In which month does the contract with {place} end?",
        "month",
    ),
    ("{person} signed for parcel {number} at the gate.", "Which parcel did {person} sign for at the gate?", "number"),
    ("A {animal} was seen near the mill at {place}.", "Which animal was seen near the mill at {place}?", "animal"),
)

VILLAGE = """
The road went down to the river and then along the bank for a while.
Most people who live here say that they like the quiet.
In the morning the market opens and the stalls fill the square.
A little rain fell, and the people did not mind it.
The children walked home together and talked about the day.
It is often said that the best time to visit is the spring.
The houses are old, but they are kept in good order.
When the work was done, everyone sat down and had something to eat.
The path is easy to follow and there are places to rest along it.
As the weeks went by, the days grew longer and the evenings warmer.
Nobody could say for certain how long the building had been there.
The meeting began late, as it usually does, and ended without a decision.
Some of the members wanted to wait, and others wanted to go on at once.
They agreed in the end that it would be better to ask for advice.
The garden behind the house is small, but there is always something in flower.
On most days the bus is on time, and on some days it is not.
The food was simple and good, and there was enough of it for all.
After the summer the visitors leave and the streets are empty again.
It was the kind of day on which nothing much happens.
The old men sat on the bench and watched the people go by.
Everyone was asked to bring a chair and something to share.
The wind came from the west and carried the smell of the sea.
She closed the door behind her and went up the stairs.
He took the letter out of his pocket and read it once more.
There are many ways to do this, and none of them is wrong.
The shop on the corner sells bread, milk and a few other things.
In the evening the lights come on one after the other.
It took some time to find the right words for what they had seen.
The water was cold and clear, and you could see the stones on the ground.
People came from all around to hear the music and to dance.
If the weather is good, the party will be in the garden.
The teacher said that there was no need to hurry.
He had not thought about it for a long time, and now it came back to him.
The room was warm and there was a fire in the fireplace.
Many of the trees were planted a long time ago by people we do not know.
It is not far to the next village, and the walk is a pleasant one.
The committee thanked everyone for their help and closed the meeting.
There was not much to see, but the view from the top was worth the effort.
A few of them stayed behind to clean up and put the chairs away.
People have told the story so often that they do not know how much of it is true.
By the time they arrived, the sun was already low over the hills.
The first part of the work is easy, and the second part takes longer.
It would be nice to have a larger room, but this one will do for now.
They had coffee and cake and talked about old times.
The report says that things are going well and that more can be done.
At the end of the day, what matters is that everyone is safe.
The cat lay in the sun and did not move for the whole afternoon.
Every year there is a small festival, and every year it rains.
The plan was good, but there was not enough time to carry it out.
In winter the road is closed, and you have to take the long way round.
The baker gets up before everyone else and goes to bed early.
They looked at the map, but it did not help them very much.
He said that he would think about it and let them know.
Later in the week there will be another chance to ask questions.
The field was wet and the grass was high, so they went around it.
What they liked best was the silence in the early morning.
For a long time there was no answer, and then the door opened.
The tools are in the shed, and the shed is behind the house.
It is always a good idea to take something warm to wear.
There was a sound in the distance, but it was only a train.
The boats stay in the harbour when the sea is rough.
Most of the letters are about small things, such as the weather and the garden.
The song was new to most of them, but they soon learned it.
At the crossing you turn left and then go straight on until you see the church.
The younger ones wanted to swim, and the older ones wanted to sit in the shade.
It had been a good year for apples, and there was more than they could eat.
The owner of the inn knows everyone and is known by everyone.
They put up the tent, made a fire and waited for the others.
The window looks out on the yard, where the washing hangs to dry.
In the end it did not matter who had been right.
""".strip().splitlines()


def documents(count: int, filler: Filler, seed: int = 0) -> list[Document]:
    """``count`` documents with FACTS facts each, determined by ``seed``."""
    return [_document(random.Random(f"{seed} {filler} {number}"), filler) for number in range(count)]


def _document(rng: random.Random, filler: Filler) -> Document:
    paragraphs = _village(rng) if filler == "village" else _manual(rng)
    facts = _facts(rng)
    places = [(p, s) for p, paragraph in enumerate(paragraphs) for s in range(len(paragraph) + 1)]
    for fact, (paragraph, sentence) in zip(facts, sorted(rng.sample(places, FACTS), reverse=True), strict=True):
        paragraphs[paragraph].insert(sentence, fact.sentence)
    return Document("\n\n".join(" ".join(paragraph) for paragraph in paragraphs), facts)


def _facts(rng: random.Random) -> tuple[Fact, ...]:
    places, people = rng.sample(PLACES, FACTS), rng.sample(PEOPLE, FACTS)
    facts = []
    for (sentence, question, asked), place, person in zip(rng.sample(TEMPLATES, FACTS), places, people, strict=True):
        values = {
            "place": place,
            "person": person,
            "number": str(rng.randrange(1_000, 10_000)),
            "year": str(rng.randrange(1_850, 1_990)),
            "month": rng.choice(MONTHS),
            "colour": rng.choice(COLOURS),
            "animal": rng.choice(ANIMALS),
            "trade": rng.choice(TRADES),
        }
        facts.append(Fact(sentence.format(**values), question.format(**values), values[asked]))
    return tuple(facts)


def _village(rng: random.Random) -> list[list[str]]:
    sentences = rng.sample(VILLAGE, len(VILLAGE))
    paragraphs: list[list[str]] = []
    words = 0
    while words < WORDS and sentences:
        paragraph = [sentences.pop() for _ in range(min(len(sentences), rng.randrange(4, 8)))]
        words += sum(len(sentence.split()) for sentence in paragraph)
        paragraphs.append(paragraph)
    return paragraphs


def _manual(rng: random.Random) -> list[list[str]]:
    """Paragraphs of prose, without tables, lists, headings and code."""
    found = []
    for name in MANUALS:
        plain = re.sub(r"```.*?```", "", (DOCS / name).read_text(encoding="utf-8"), flags=re.DOTALL)
        for block in plain.split("\n\n"):
            text = " ".join(block.split())
            if len(text) > 200 and text[0].isalpha() and "|" not in text:
                found.append(re.split(r"(?<=[.!?]) +(?=[A-Z`\[])", text))
    start = rng.randrange(len(found))
    paragraphs: list[list[str]] = []
    words = 0
    while words < WORDS:
        paragraph = list(found[(start + len(paragraphs)) % len(found)])
        words += sum(len(sentence.split()) for sentence in paragraph)
        paragraphs.append(paragraph)
    return paragraphs
