"""Bodies of files and batches as their readers take them, and the query strings of lists."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from twofold.server.batches import body
from twofold.server.files import form
from twofold.server.openapi.shapes import Schema, asked, mapped, said, text, told, whole, word

SECONDS: Final = whole(form.LEAST_SECONDS, form.MOST_SECONDS)
EXPIRY: Final = asked({"anchor": word("created_at"), "seconds": SECONDS})


def upload() -> Schema:
    """The form of an upload; in a form nothing is null."""
    return told(
        {
            "file": said({"type": "string", "format": "binary"}, "Comes with a file name."),
            "purpose": word(*form.PURPOSES),
        },
        **{"expires_after[anchor]": word("created_at"), "expires_after[seconds]": SECONDS},
    )


def batch(endpoints: Iterable[str]) -> Schema:
    """What POST /v1/batches takes."""
    return asked(
        {
            "input_file_id": text(0, body.MAX_ID_CHARS),
            "endpoint": word(*endpoints),
            "completion_window": word(body.WINDOW),
        },
        metadata=mapped(text(0, body.MAX_VALUE_CHARS), body.MAX_PAIRS, names=text(0, body.MAX_KEY_CHARS)),
        output_expires_after=EXPIRY,
    )


def in_query(name: str, schema: Schema, description: str, **more: Any) -> Schema:
    """A field of a query string."""
    return {"name": name, "in": "query", "required": False, "schema": schema, "description": description, **more}


def in_path(name: str, schema: Schema) -> Schema:
    """A part of a path."""
    return {"name": name, "in": "path", "required": True, "schema": schema}


def in_header(name: str, schema: Schema, description: str) -> Schema:
    """A header of a request."""
    return {"name": name, "in": "header", "required": False, "schema": schema, "description": description}


def page(most: int, *others: Schema) -> tuple[Schema, ...]:
    """The query of a list that comes page by page."""
    return (
        in_query("limit", whole(1, most), "Most entries of a page."),
        in_query("after", text(), "The id of the entry behind which the page begins."),
        *others,
    )


ORDER: Final = in_query("order", word("asc", "desc"), "By the time when they were made; the newest first by default.")
