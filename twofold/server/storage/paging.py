"""Stores of objects that belong to tenants, and lists of them page by page, as in OpenAI's API.

OpenAI's client writes a list in a query string as ``include[]=a&include[]=b``, which means the same as
``include=a&include=b``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, Final, Generic, Literal, TypeAlias, TypeVar

from msgspec import Meta

from twofold.api.body import ReplyObject, RequestObject, object_of
from twofold.api.fields import FieldError
from twofold.core.errors import MAX_QUOTED, NotFoundError, quoted, spelled
from twofold.server.storage.database import Database, Value
from twofold.server.storage.folder import DataFolder

T = TypeVar("T")
Q = TypeVar("Q", bound=RequestObject)
Query: TypeAlias = Mapping[str, str] | Sequence[tuple[str, str]]
"""Names and values of a query string; in a sequence, names may repeat."""
FLAGS: Final = {"true": True, "false": False}
MAX_DIGITS: Final = 9
MAX_LISTED: Final = 100
VERSION: Final = 1


class PageQuery(RequestObject):
    """A part of a list, newest first: at most ``limit`` entries, those ``after`` the one with this id."""

    limit: Annotated[int, Meta(ge=1, le=MAX_LISTED)] = 20
    after: str | None = None


class OrderedQuery(PageQuery):
    """The same in either order of creation."""

    order: Literal["asc", "desc"] = "desc"


def read_query(kind: type[Q], query: Query) -> Q:
    """Reads a query string as a body. Raises FieldError."""
    kinds = object_of(kind).kinds
    found: dict[str, Any] = {}
    for given, text in query.items() if isinstance(query, Mapping) else query:
        name = given.removesuffix("[]")
        types = kinds[name].types if name in kinds else ()
        if list in types:
            found.setdefault(name, []).append(text)
        elif name in found:
            raise FieldError(f"{spelled(name)} is given twice.", param=name[:MAX_QUOTED])
        elif int in types and text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS:
            found[name] = int(text)
        else:
            found[name] = FLAGS.get(text, text) if bool in types else text
    return kind.read(found)


class ObjectPage(ReplyObject, kw_only=True):
    """OpenAI's list of objects with ids, page by page; subclasses have the objects in ``data``."""

    object: Literal["list"] = "list"
    first_id: str | None
    last_id: str | None
    has_more: bool


def page_fields(objects: Sequence[Any], more: bool, absent: str | None = None) -> dict[str, Any]:
    """The fields of an ``ObjectPage``; ``more``: others follow; ``absent`` replaces the ids of an empty list."""
    first, last = (objects[0].id, objects[-1].id) if objects else (absent, absent)
    return {"data": objects, "first_id": first, "last_id": last, "has_more": more}


class TenantStore(ABC, Generic[T]):
    """Objects that exist for their tenants alone: rows with number, id and tenant in SQLite, and files in a folder.

    folder    of the store, which one server uses; the files are in its folder ``inner``
    columns   what ``read`` takes
    present   condition of rows that exist; ``:now`` is the time

    Not thread-safe. Raises UsageError where another server uses the folder, ResourceError where it cannot be used.
    """

    def __init__(
        self,
        folder: Path,
        inner: str,
        name: Literal["batches", "files"],
        schema: str,
        columns: str,
        read: Callable[..., T],
        now: Callable[[], float],
        present: str = "TRUE",
    ) -> None:
        self._name, self._columns, self._read, self._now = name, columns, read, now
        self._where = f"FROM {name} WHERE tenant = :tenant AND {present}"
        self._noun: Final = {"batches": "batch", "files": "file"}[name]
        with ExitStack() as opened:
            self.folder: Final = opened.enter_context(DataFolder(folder))
            self._inner = self.folder.inner(inner)
            self._base = Database(folder / f"{name}.sqlite3", schema, VERSION, durable=True)
            opened.callback(self._base.close)
            self._mend()
            self.close = opened.pop_all().close

    @abstractmethod
    def _mend(self) -> None:
        """Removes what a killed server left; only files with names of ours."""

    def get(self, tenant: str, id: str) -> T:
        """Raises NotFoundError."""
        return self._read(*self._row(tenant, id)[1:])

    def page(self, tenant: str, query: PageQuery, where: str = "TRUE", **values: Value) -> tuple[list[T], bool]:
        """A page of a tenant's objects for which ``where`` holds, and whether more follow. Raises FieldError."""
        ascending = isinstance(query, OrderedQuery) and query.order == "asc"
        order, sign, after = ("ASC", ">", 0) if ascending else ("DESC", "<", 1 << 62)
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
