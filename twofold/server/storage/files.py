"""Files that tenants gave and that batches made: bytes in a folder, what is known of them in SQLite.

Laws
- A file belongs to one tenant; to others it does not exist.
- It is there whole or not at all: bytes come under their name first, then into the table, and go in the other order.
- Names on the disk are ids that were made here, never what a caller wrote.
- Nothing here may be used by two threads at once, and the folder by one server only.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, BinaryIO, Final

from twofold.api.fields import FieldError
from twofold.core.errors import NotFoundError, TooLargeError, quoted
from twofold.server.files.form import UploadedForm
from twofold.server.storage.database import Database, Value
from twofold.server.storage.folder import DataFolder
from twofold.server.storage.paging import PageQuery

ID_PREFIX: Final = "file-"
_TEMPORARY: Final = "upload-"
_OURS: Final = re.compile(f"({ID_PREFIX}|{_TEMPORARY})[0-9a-f]{{24}}")
_VERSION: Final = 1
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS files (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    tenant TEXT NOT NULL,
    filename TEXT NOT NULL,
    purpose TEXT NOT NULL,
    bytes INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    expires_at INTEGER
);
CREATE INDEX IF NOT EXISTS files_of_tenant ON files (tenant, number);
"""


@dataclass(frozen=True, slots=True)
class FileLimits:
    """Most bytes of one uploaded file; bytes and files that a tenant may have when it uploads another."""

    file_bytes: int = 200 << 20
    tenant_bytes: int = 8 << 30
    tenant_files: int = 10_000


@dataclass(frozen=True, slots=True)
class StoredFile:
    """What is known of a file. Times are in seconds since 1970; ``expires_at`` is None where it stays."""

    id: str
    tenant: str
    filename: str
    purpose: str
    bytes: int
    created_at: int
    expires_at: int | None

    def as_object(self) -> dict[str, Any]:
        """OpenAI's file object."""
        told = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "tenant"}
        return {"object": "file", "status": "processed", "status_details": None, **told}


_COLUMNS: Final = ", ".join(field.name for field in fields(StoredFile))


def new_file_id() -> str:
    return ID_PREFIX + secrets.token_hex(12)


class FileStore:
    """The files in ``folder``; ``wall`` tells seconds since 1970.

    ``limits`` and ``folder`` are those of the store. What an earlier server left half done is removed.

    Raises UsageError where another server uses the folder, ResourceError where it cannot be used.
    """

    def __init__(self, folder: Path, limits: FileLimits, wall: Callable[[], float]) -> None:
        self.limits, self._wall = limits, wall
        with ExitStack() as opened:
            self.folder = opened.enter_context(DataFolder(folder))
            self._contents = self.folder.inner("contents")
            self._base = Database(folder / "files.sqlite3", _SCHEMA, _VERSION, durable=True)
            opened.callback(self._base.close)
            self._mend()
            self.sweep()
            self._opened = opened.pop_all()

    def close(self) -> None:
        self._opened.close()

    def begin(self, tenant: str) -> tuple[Path, BinaryIO]:
        """A new empty file for an upload, which ``add`` or ``drop`` ends. TooLargeError where a tenant is full."""
        self._check_room(tenant, 0)
        path = self._contents / (_TEMPORARY + secrets.token_hex(12))
        with self.folder.told():
            return path, os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb")

    def add(self, tenant: str, path: Path, form: UploadedForm) -> StoredFile:
        """Takes an upload in, whose bytes are at ``path``."""
        self.sweep()
        self._check_room(tenant, form.bytes)
        return self._keep(new_file_id(), tenant, path, form.filename, form.purpose, form.lifetime_s)

    def adopt(self, id: str, tenant: str, path: Path, filename: str, lifetime_s: int | None) -> StoredFile:
        """Takes in what a batch made, under the ``id`` that it has already; doing it twice is doing it once."""
        return self._keep(id, tenant, path, filename, "batch_output", lifetime_s)

    def drop(self, path: Path) -> None:
        """Removes an upload that came to nothing."""
        path.unlink(missing_ok=True)

    def get(self, tenant: str, id: str) -> StoredFile:
        """Raises NotFoundError."""
        return self._find(tenant, id)[1]

    def content(self, tenant: str, id: str) -> tuple[StoredFile, Path]:
        """The file and where its bytes are. Raises NotFoundError."""
        file = self.get(tenant, id)
        return file, self._contents / file.id

    def link(self, tenant: str, id: str, target: Path) -> StoredFile:
        """Gives a file's bytes a second name, under which they stay whatever becomes of the file."""
        file, path = self.content(tenant, id)
        with self.folder.told():
            os.link(path, target)
        return file

    def page(self, tenant: str, query: PageQuery, purpose: str | None) -> tuple[list[StoredFile], bool]:
        """A page of a tenant's files, and whether more follow."""
        clauses = ["tenant = ?", "(expires_at IS NULL OR expires_at > ?)"]
        values: list[Value] = [tenant, self._wall()]
        if purpose is not None:
            clauses.append("purpose = ?")
            values.append(purpose)
        if query.after is not None:
            clauses.append("number > ?" if query.forward else "number < ?")
            values.append(self._after(tenant, query.after))
        rows = self._base.rows(
            f"SELECT {_COLUMNS} FROM files WHERE {' AND '.join(clauses)} "
            f"ORDER BY number {'ASC' if query.forward else 'DESC'} LIMIT ?",
            *values,
            query.limit + 1,
        )
        return [StoredFile(*row) for row in rows[: query.limit]], len(rows) > query.limit

    def delete(self, tenant: str, id: str) -> None:
        """Raises NotFoundError."""
        self.get(tenant, id)
        self._remove(id)

    def sweep(self) -> None:
        """Removes what has expired."""
        for (id,) in self._base.rows("SELECT id FROM files WHERE expires_at <= ?", self._wall()):
            self._remove(id)

    def _keep(
        self, id: str, tenant: str, path: Path, filename: str, purpose: str, lifetime_s: int | None
    ) -> StoredFile:
        now = int(self._wall())
        with self.folder.told():
            size = path.stat().st_size
            os.replace(path, self._contents / id)
        file = StoredFile(id, tenant, filename, purpose, size, now, None if lifetime_s is None else now + lifetime_s)
        values = [getattr(file, field.name) for field in fields(file)]
        places = ", ".join("?" * len(values))
        try:
            self._base.write(f"INSERT OR REPLACE INTO files ({_COLUMNS}) VALUES ({places})", *values)
        except BaseException:  # a full disk: whoever gave the bytes has them back, to drop them or to try again
            os.replace(self._contents / id, path)
            raise
        return file

    def _find(self, tenant: str, id: str) -> tuple[int, StoredFile]:
        found = self._base.rows(
            f"SELECT number, {_COLUMNS} FROM files "
            "WHERE id = ? AND tenant = ? AND (expires_at IS NULL OR expires_at > ?)",
            id,
            tenant,
            self._wall(),
        )
        if not found:
            raise NotFoundError(f"There is no file {quoted(id)}.", hint="GET /v1/files lists all files.")
        return found[0][0], StoredFile(*found[0][1:])

    def _after(self, tenant: str, id: str) -> int:
        try:
            return self._find(tenant, id)[0]
        except NotFoundError as error:
            raise FieldError(f"after names no file: {quoted(id)}.", param="after") from error

    def _check_room(self, tenant: str, more: int) -> None:
        ((count, used),) = self._base.rows("SELECT COUNT(*), TOTAL(bytes) FROM files WHERE tenant = ?", tenant)
        if count >= self.limits.tenant_files:
            raise TooLargeError(f"The limit of {count} files is reached.", hint="Delete some.")
        if used + more > self.limits.tenant_bytes:
            raise TooLargeError(
                f"All files together are limited to {self.limits.tenant_bytes >> 20} MiB.", hint="Delete some."
            )

    def _remove(self, id: str) -> None:
        self._base.write("DELETE FROM files WHERE id = ?", id)
        (self._contents / id).unlink(missing_ok=True)

    def _mend(self) -> None:
        """Removes bytes without a row, which a killed server left, and rows without bytes. What has none of our names
        is not ours."""
        with self.folder.told():
            there = set(os.listdir(self._contents))
        known = {id for (id,) in self._base.rows("SELECT id FROM files")}
        for id in known - there:
            self._remove(id)
        for name in filter(_OURS.fullmatch, there - known):
            (self._contents / name).unlink(missing_ok=True)
