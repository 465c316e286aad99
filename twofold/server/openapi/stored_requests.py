"""The form of an upload, and the query strings of lists."""

from __future__ import annotations

from typing import Any, Final

from twofold.server.files import form
from twofold.server.openapi.shapes import Schema, said, text, told, whole, word

SECONDS: Final = whole(form.MIN_SECONDS, form.MAX_SECONDS)


def upload() -> Schema:
    """The form of an upload; in a form nothing is null."""
    return told(
        {"file": said({"type": "string", "format": "binary"}, "Comes with a file name."), "purpose": word("batch")},
        **{"expires_after[anchor]": word("created_at"), "expires_after[seconds]": SECONDS},
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
