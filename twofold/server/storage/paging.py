"""Lists that come page by page, as OpenAI's API gives them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self, cast

from twofold.api.fields import UNKNOWN, FieldError, impossible
from twofold.core.errors import MAX_QUOTED, closest_match, spelled

Order = Literal["asc", "desc"]


@dataclass(frozen=True, slots=True)
class PageQuery:
    """Which part of a list: at most ``limit`` entries that come ``after`` one, by the time when they were made."""

    limit: int
    after: str | None = None
    order: Order = "desc"

    @classmethod
    def read(cls, query: Mapping[str, str], *, default: int, most: int, others: Sequence[str] = ()) -> Self:
        """Reads a query string's fields; ``others`` are the caller's. Raises FieldError."""
        check_names(query, ("limit", "after", *others))
        order = query.get("order", "desc")
        if order not in ("asc", "desc"):
            raise impossible("order", order, "asc or desc")
        return cls(read_limit(query, default, most), query.get("after"), cast(Order, order))

    @property
    def forward(self) -> bool:
        return self.order == "asc"


def check_names(query: Mapping[str, str], known: Sequence[str]) -> None:
    """Raises FieldError for the first field of a query string that is not ``known``."""
    for name in query:
        if name not in known:
            close = closest_match(name, known)
            hint = f"Did you mean {close!r}?" if close else f"Known: {', '.join(known)}."
            raise FieldError(
                f"{spelled(name)} is not a known query field.", param=name[:MAX_QUOTED], code=UNKNOWN, hint=hint
            )


def read_limit(query: Mapping[str, str], default: int, most: int) -> int:
    """How many entries a page may hold."""
    text = query.get("limit", str(default))
    if not (text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= most):
        raise impossible("limit", text, f"a whole number from 1 to {most}")
    return int(text)


def page_of(objects: Sequence[Mapping[str, Any]], more: bool) -> dict[str, Any]:
    """A page as OpenAI tells it; ``more`` says that others follow."""
    return {
        "object": "list",
        "data": list(objects),
        "first_id": objects[0]["id"] if objects else None,
        "last_id": objects[-1]["id"] if objects else None,
        "has_more": more,
    }
