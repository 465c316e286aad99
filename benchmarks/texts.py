"""Prompts by class of text: how much a completion repeats of its prompt or of earlier completions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from twofold.core.params import StructuredOutputsParams

FILE: Final = '''"""A shopping cart."""

from dataclasses import dataclass, field


@dataclass
class Item:
    name: str
    price_cents: int
    quantity: int = 1

    def total(self) -> int:
        return self.price_cents * self.quantity


@dataclass
class Cart:
    items: list[Item] = field(default_factory=list)
    discount_percent: int = 0

    def add(self, name: str, price_cents: int, quantity: int = 1) -> None:
        for item in self.items:
            if item.name == name and item.price_cents == price_cents:
                item.quantity += quantity
                return
        self.items.append(Item(name, price_cents, quantity))

    def remove(self, name: str) -> bool:
        for index, item in enumerate(self.items):
            if item.name == name:
                del self.items[index]
                return True
        return False

    def total(self) -> int:
        whole = sum(item.total() for item in self.items)
        return whole - whole * self.discount_percent // 100
'''
LOG: Final = "\n".join(
    f"2026-03-{1 + n // 9:02d} 0{n % 9}:{(7 * n) % 60:02d} {'ERROR' if n % 5 == 2 else 'INFO'} "
    f"{('billing', 'search', 'mail')[n % 3]}: {what} (request {4000 + 37 * n})"
    for n, what in enumerate(
        ["connection to the database lost", "message sent", "disk almost full", "index rebuilt", "queue is empty"] * 6
    )
)
LETTER: Final = """Dear Ms Okafor, thank you for your order of 14 March. We shipped two boxes of Darjeeling tea and one
teapot on 17 March with parcel number DE-4471-9921; the invoice over 84.50 euros is attached. The second teapot,
which you ordered in blue, will arrive in our warehouse on 2 April, and we will send it to 12 Canal Street, Leeds, free
of charge. If the address changes before then, please write to orders@teahouse.example or call 0113 496 0182.
Kind regards, Jonas Weber, Weber & Daughters, Hamburg."""
PEOPLE: Final = (
    "Mira Novak, 34, is a welder from Brno who plays the cello and collects maps.",
    "Samuel Adeyemi, 51, teaches chemistry in Lagos. He swims and repairs radios.",
    "Ingrid Dahl, 27, is a nurse in Bergen; she climbs, bakes bread and speaks Portuguese.",
)
PERSON: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {
        "full_name": {"type": "string"},
        "age_in_years": {"type": "integer"},
        "profession": {"type": "string"},
        "place_of_work": {"type": "string"},
        "hobbies": {"type": "array", "items": {"type": "string"}},
        "speaks_foreign_languages": {"type": "boolean"},
    },
    "required": ["full_name", "age_in_years", "profession", "place_of_work", "hobbies", "speaks_foreign_languages"],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class Task:
    """A user's message, at most ``tokens`` tokens of completion, and its form."""

    text: str
    tokens: int = 320
    form: StructuredOutputsParams | None = None


def _rewrite(how: str) -> Task:
    return Task(f"{how} Print the whole file and nothing else.\n\n```python\n{FILE}```")


PROSE: Final = tuple(
    Task(text, 200)
    for text in (
        "Tell me about the history of the city of Lisbon.",
        "Why do leaves change their colour in autumn? Explain it to a child.",
        "Write a short story about a lighthouse keeper who finds a letter.",
        "What should one consider when buying a used bicycle?",
    )
)
CLASSES: Final[Mapping[str, Sequence[Task]]] = {
    "rewriting a file": (
        _rewrite("Rename the class Cart to Basket."),
        _rewrite("Add a type alias Cents = int and use it for all prices."),
        _rewrite("Add a docstring to every method."),
    ),
    "extraction": (
        Task(f"Copy all lines of this log that contain ERROR, unchanged.\n\n{LOG}"),
        Task(f"List every date, number and address in this letter, each with the sentence it is in.\n\n{LETTER}"),
        Task(f"Quote the sentences of this letter that contain a promise.\n\n{LETTER}"),
    ),
    "JSON by schema": tuple(
        Task(f"Describe this person as JSON.\n\n{person}", 400, StructuredOutputsParams(json=PERSON))
        for person in PEOPLE
    ),
    "code": (
        Task("Write a Python class for a cache that forgets the least recently used entry, with a short example."),
        Task("Write a function in C that reverses a singly linked list, and explain it."),
        Task("Write a Python script that counts the words of a text file and prints the ten most frequent ones."),
    ),
    "prose": PROSE[:3],
}
