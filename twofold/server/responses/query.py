"""Query strings of /v1/responses/{id}: names with their values, as they stand in the address.

OpenAI's client writes a list as ``include[]=a&include[]=b``; ``include=a&include=b`` is as good.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from twofold.api.fields import FieldError, Fields
from twofold.api.openai.responses.items import Item, optional_choice
from twofold.api.openai.responses.settings import included
from twofold.core.errors import MAX_QUOTED, quoted, spelled

Pairs = Sequence[tuple[str, str]]

MOST_LISTED: Final = 100
USUALLY_LISTED: Final = 20
WORDS: Final = {"true": True, "false": False}


def read_include(query: Pairs) -> frozenset[str]:
    """What a response that is told again shall include; it is never told as a stream."""
    fields = _fields(query)
    for name in ("stream", "include_obfuscation"):
        fields.only(name, False)
    fields.only("starting_after")
    return _include(fields)


@dataclass(frozen=True, slots=True)
class ItemsQuery:
    """Which part of a list of items: at most ``limit`` that come ``after`` one, newest first unless ``ascending``."""

    limit: int
    after: str | None
    ascending: bool
    include: frozenset[str]

    @classmethod
    def read(cls, query: Pairs) -> Self:
        """Reads a query string. Raises FieldError."""
        fields = _fields(query)
        limit = fields.whole("limit", 1, MOST_LISTED) or USUALLY_LISTED
        after = fields.text("after")
        ascending = optional_choice(fields, "order", ("asc", "desc")) == "asc"
        return cls(limit, after, ascending, _include(fields))

    def page(self, items: Sequence[Item]) -> tuple[list[Item], bool]:
        """The part that is asked for of ``items``, which come oldest first; and whether more follow.

        Raises FieldError where ``after`` is none of them.
        """
        ordered = list(items) if self.ascending else list(reversed(items))
        start = 0
        if self.after is not None:
            places = (place for place, item in enumerate(ordered, 1) if item["id"] == self.after)
            start = next(places, 0)
            if not start:
                raise FieldError(f"after {quoted(self.after)}is not one of the items.", param="after")
        end = start + self.limit
        return ordered[start:end], end < len(ordered)


def _include(fields: Fields) -> frozenset[str]:
    include = included(fields.take("include") or [])
    fields.close()
    return include


def _fields(query: Pairs) -> Fields:
    """The names with plain values: numbers, true and false, and a list for ``include``."""
    found: dict[str, Any] = {}
    for given, text in query:
        name = given.removesuffix("[]")
        if name == "include":
            found.setdefault(name, []).append(text)
        elif name in found:
            raise FieldError(f"{spelled(name)} is given twice.", param=name[:MAX_QUOTED])
        else:
            found[name] = _plain(name, text)
    return Fields(found)


def _plain(name: str, text: str) -> Any:
    if name in ("after", "order"):
        return text
    number = text.isascii() and text.isdigit() and len(text) < 10
    return int(text) if number else WORDS.get(text, text)
