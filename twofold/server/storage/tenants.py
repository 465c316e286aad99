"""Stores of objects that belong to tenants, and lists of them page by page, as in OpenAI's API.

OpenAI's client writes a list in a query string as ``include[]=a&include[]=b``, which means the same as
``include=a&include=b``.

A store is in a data folder, which only one server uses at a time.
"""

from __future__ import annotations

import fcntl
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any, Final, Generic, Literal, TypeAlias, TypeVar

from msgspec import Meta

from twofold.api.body import ReplyObject, RequestObject, object_of
from twofold.api.fields import FieldError
from twofold.core.errors import MAX_QUOTED, NotFoundError, ResourceError, UsageError, quoted, spelled
from twofold.host.paths import open_own
from twofold.server.storage.database import Database, Value

MAX_SERVERS: Final = 100
PORT_BYTES: Final = 8
T = TypeVar("T")
Q = TypeVar("Q", bound=RequestObject)
Query: TypeAlias = Mapping[str, str] | Sequence[tuple[str, str]]
"""Names and values of a query string; in a sequence, names may repeat."""
FLAGS: Final = {"true": True, "false": False}
MAX_DIGITS: Final = 9
MAX_LISTED: Final = 100
VERSION: Final = 1


class DataFolder:
    """The folder at ``path``, created if it is missing, readable by its owner only, and locked while it is open.

    Raises UsageError if another process has it open, ResourceError if it cannot be used.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with self.guarded():
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = open_own(path / "lock", os.O_CREAT | os.O_RDWR)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            raise UsageError(
                f"Another server keeps its data in {path}.",
                hint="Stop it, or choose another folder with --data-folder.",
            ) from error

    def inner(self, name: str) -> Path:
        """A folder inside this one, created if it is missing."""
        folder = self.path / name
        with self.guarded():
            folder.mkdir(mode=0o700, exist_ok=True)
        return folder

    @property
    def port(self) -> int | None:
        """The port of the last server that used the folder; None if unknown."""
        noted = os.pread(self._lock, PORT_BYTES, 0)
        return int(noted) if noted.isdigit() else None

    def serve(self, port: int) -> None:
        """Writes the port of the server that uses the folder into the lock file, unless ``port`` is 0."""
        if port:
            with self.guarded():
                os.truncate(self._lock, 0)
                os.pwrite(self._lock, str(port).encode(), 0)

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Turns OSError into ResourceError, whose text does not contain the folder's path."""
        try:
            yield
        except OSError as error:
            raise ResourceError(
                f"The server's data folder cannot be used: {error.strerror}.",
                hint="Free disk space, or choose another folder with --data-folder.",
            ) from error

    def close(self) -> None:
        os.close(self._lock)


def claim_folder(base: Path, port: int) -> DataFolder:
    """A data folder that no other server uses: ``base``, or one inside it.

    Of the free folders it is the one that a server on this port used last, so that several servers find their own
    again; else the first one. Raises UsageError if too many servers are running, ResourceError if none can be used.
    """
    free: list[DataFolder] = []
    for number in range(1, MAX_SERVERS + 1):
        path = base if number == 1 else base / "servers" / str(number)
        if free and not path.exists():
            break
        try:
            free.append(DataFolder(path))
        except UsageError:
            continue
    if not free:
        raise UsageError(f"{MAX_SERVERS} servers keep their data in {base}.", hint="Name a folder with --data-folder.")
    chosen = next((folder for folder in free if port and folder.port == port), free[0])
    for folder in free:
        if folder is not chosen:
            folder.close()
    chosen.serve(port)
    return chosen


class PageQuery(RequestObject):
    """A part of a list, newest first: at most ``limit`` entries, from the one after the id ``after``."""

    limit: Annotated[int, Meta(ge=1, le=MAX_LISTED)] = 20
    after: str | None = None


class OrderedQuery(PageQuery):
    """A part of a list in either order of creation."""

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
    """A page of OpenAI's lists of objects with ids; subclasses have the objects in ``data``."""

    object: Literal["list"] = "list"
    first_id: str | None
    last_id: str | None
    has_more: bool


def page_fields(objects: Sequence[Any], more: bool, absent: str | None = None) -> dict[str, Any]:
    """The fields of an ``ObjectPage``. ``more``: whether others follow; ``absent``: the ids of an empty page."""
    first, last = (objects[0].id, objects[-1].id) if objects else (absent, absent)
    return {"data": objects, "first_id": first, "last_id": last, "has_more": more}


class TenantStore(ABC, Generic[T]):
    """Objects that only their tenants can find: rows with number, id and tenant in SQLite, and files in a folder.

    folder    folder of the store, which only one server uses; the files are in its folder ``inner``
    columns   columns of the rows, which are the arguments of ``read``
    present   SQL condition of rows that count; ``:now`` is the time

    Not thread-safe. Raises UsageError if another server uses the folder, ResourceError if it cannot be used.
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
            self.folder: Final = DataFolder(folder)
            opened.callback(self.folder.close)
            self._inner = self.folder.inner(inner)
            self._base = Database(folder / f"{name}.sqlite3", schema, VERSION, durable=True)
            opened.callback(self._base.close)
            self._recover()
            self.close = opened.pop_all().close

    @abstractmethod
    def _recover(self) -> None:
        """Makes rows and files consistent after a crash; deletes only files that have names of this store."""

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
