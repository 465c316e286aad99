"""Tables of objects that belong to tenants, and their lists page by page, as in OpenAI's API."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, Literal, Self, TypeVar, cast

from twofold.api.fields import UNKNOWN, FieldError, impossible
from twofold.core.errors import MAX_QUOTED, NotFoundError, closest_match, quoted, spelled
from twofold.server.storage.database import Database, Value

T = TypeVar("T")
Order = Literal["asc", "desc"]


@dataclass(frozen=True, slots=True)
class PageQuery:
    """A part of a list in order of creation: at most ``limit`` entries, those ``after`` the one with this id."""

    limit: int
    after: str | None = None
    order: Order = "desc"

    @classmethod
    def read(cls, query: Mapping[str, str], *, default: int, most: int, others: Sequence[str] = ()) -> Self:
        """Reads the fields of a query string; ``others`` are fields that the caller reads. Raises FieldError."""
        check_names(query, ("limit", "after", *others))
        order = query.get("order", "desc")
        if order not in ("asc", "desc"):
            raise impossible("order", order, "asc or desc")
        return cls(read_limit(query, default, most), query.get("after"), cast(Order, order))


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
    """The most entries of a page. Raises FieldError."""
    text = query.get("limit", str(default))
    if not (text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= most):
        raise impossible("limit", text, f"a whole number from 1 to {most}")
    return int(text)


def page_of(objects: Sequence[Mapping[str, Any]], more: bool) -> dict[str, Any]:
    """OpenAI's list object; ``more``: others follow."""
    return {
        "object": "list",
        "data": list(objects),
        "first_id": objects[0]["id"] if objects else None,
        "last_id": objects[-1]["id"] if objects else None,
        "has_more": more,
    }


class TenantTable(Generic[T]):
    """Rows of a table with the columns number, id and tenant: an object each, which exists for its tenant alone.

    columns   what ``read`` takes
    present   condition of rows that exist; ``:now`` is the time
    """

    def __init__(
        self,
        base: Database,
        name: Literal["batches", "files"],
        columns: str,
        read: Callable[..., T],
        now: Callable[[], float],
        present: str = "TRUE",
    ) -> None:
        self._base, self._name, self._columns, self._read, self._now = base, name, columns, read, now
        self._where = f"FROM {name} WHERE tenant = :tenant AND {present}"
        self._noun: Final = {"batches": "batch", "files": "file"}[name]

    def get(self, tenant: str, id: str) -> T:
        """Raises NotFoundError."""
        return self._read(*self._row(tenant, id)[1:])

    def page(self, tenant: str, query: PageQuery, where: str = "TRUE", **values: Value) -> tuple[list[T], bool]:
        """A page of a tenant's objects for which ``where`` holds, and whether more follow. Raises FieldError."""
        order, sign, after = ("ASC", ">", 0) if query.order == "asc" else ("DESC", "<", 1 << 62)
        if query.after is not None:
            try:
                after = self._row(tenant, query.after)[0]
            except NotFoundError as error:
                message = f"after is not the id of a {self._noun}: {quoted(query.after)}."
                raise FieldError(message, param="after") from error
        sql = f"SELECT {self._columns} {self._where} AND {where} AND number {sign} :after ORDER BY number {order}"
        rows = self._rows(f"{sql} LIMIT :limit", tenant=tenant, after=after, limit=query.limit + 1, **values)
        return [self._read(*row) for row in rows[: query.limit]], len(rows) > query.limit

    def _row(self, tenant: str, id: str) -> tuple[Any, ...]:
        rows = self._rows(f"SELECT number, {self._columns} {self._where} AND id = :id", tenant=tenant, id=id)
        if not rows:
            hint = f"GET /v1/{self._name} lists all {self._name}."
            raise NotFoundError(f"There is no {self._noun} {quoted(id)}.", hint=hint)
        return rows[0]

    def _rows(self, sql: str, **values: Value) -> list[tuple[Any, ...]]:
        values["now"] = self._now()
        return self._base.use(lambda connection: connection.execute(sql, values).fetchall())
