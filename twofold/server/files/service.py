"""The files of /v1/files, OpenAI's API. Their bytes are in a folder, their metadata in SQLite.

Invariants
- A file belongs to one tenant; for others it does not exist.
- A file exists whole or not at all: its bytes are written before its row, and its row is deleted before its bytes.
- Names on disk are ids generated here, never text of a caller.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Generator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final, Literal, Self

from msgspec import Meta

from twofold.api.body import NonNegativeInt, ReplyObject
from twofold.core.errors import TooLargeError
from twofold.server.files.form import UploadedForm, UploadForm
from twofold.server.pool import ByteBudget
from twofold.server.storage.database import SingleThread
from twofold.server.storage.tenants import ObjectPage, OrderedQuery, Query, TenantStore, page_fields, read_query

MAX_LISTED: Final = 10_000
UPLOADS_AT_ONCE: Final = 16
PIECE_BYTES: Final = 1 << 20
"""Bytes of an upload that are written in one call of the thread."""
READ_BYTES: Final = 256 << 10
ID_PREFIX: Final = "file-"
_TEMPORARY: Final = "upload-"
_OURS: Final = re.compile(f"({ID_PREFIX}|{_TEMPORARY})[0-9a-f]{{24}}")
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
class FileContent:
    """A file and its bytes, piece by piece; the file is opened when the first piece is read."""

    file: FileReply
    pieces: AsyncGenerator[bytes, None]


class FileQuery(OrderedQuery):
    """Query of a list of files."""

    limit: Annotated[int, Meta(ge=1, le=MAX_LISTED)] = MAX_LISTED
    purpose: str | None = None


class FilePage(ObjectPage, kw_only=True):
    """A page of files."""

    data: list[FileReply]


class FileDeleted(ReplyObject, kw_only=True):
    """A file that was deleted."""

    id: str
    object: Literal["file"] = "file"
    deleted: Literal[True] = True


class FileService:
    """The files of all tenants. Methods raise TwofoldError: NotFoundError, FieldError, TooLargeError, BusyError."""

    def __init__(self, store: FileStore, thread: SingleThread) -> None:
        self._store, self._thread = store, thread
        self._uploads = ByteBudget(UPLOADS_AT_ONCE, full="Too many files are being uploaded.")

    @classmethod
    async def open(
        cls, folder: Path, limits: FileLimits | None = None, *, wall: Callable[[], float] = time.time
    ) -> Self:
        """Opens the store in ``folder``. Raises the errors of ``FileStore``."""
        thread, store = await SingleThread.open("files", FileStore, folder, limits or FileLimits(), wall)
        return cls(store, thread)

    async def close(self) -> None:
        await self._thread.end(self._store.close)

    async def upload(self, tenant: str, content_type: str | None, body: AsyncIterable[bytes]) -> FileReply:
        """POST /v1/files: ``body`` is a multipart form, which is written to disk as it arrives. Raises BusyError if
        too many others are, of which a tenant may have half."""
        self._uploads.take(tenant, 1)
        try:
            return await self._upload(_uploading(self._store, tenant, content_type), body)
        finally:
            self._uploads.give(tenant, 1)

    async def page(self, tenant: str, query: Query) -> FilePage:
        """GET /v1/files with limit, after, order and purpose."""
        asked = read_query(FileQuery, query)
        where = ":purpose IS NULL OR purpose = :purpose"
        page = partial(self._store.page, tenant, asked, f"({where})", purpose=asked.purpose)
        files, more = await self._thread.call(page)
        return FilePage(**page_fields(files, more))

    async def get(self, tenant: str, id: str) -> FileReply:
        """GET /v1/files/{id}."""
        return await self._thread.call(self._store.get, tenant, id)

    async def delete(self, tenant: str, id: str) -> FileDeleted:
        """DELETE /v1/files/{id}."""
        await self._thread.call(self._store.delete, tenant, id)
        return FileDeleted(id=id)

    async def content(self, tenant: str, id: str) -> FileContent:
        """GET /v1/files/{id}/content."""
        file, path = await self._thread.call(self._store.content, tenant, id)
        return FileContent(file, self._thread.each(_pieces(path)))

    async def link(self, tenant: str, id: str, target: Path) -> FileReply:
        """Makes ``target``, in the same file system, a second name of a file's bytes, which outlives the file."""
        return await self._thread.call(self._store.link, tenant, id, target)

    async def adopt(self, id: str, tenant: str, path: Path, filename: str, lifetime_s: int | None) -> FileReply:
        """Stores the results of a batch, at ``path``, under the ``id`` that was reserved for them. Idempotent."""
        return await self._thread.call(self._store.adopt, id, tenant, path, filename, lifetime_s)

    async def sweep(self) -> None:
        """Removes expired files."""
        await self._thread.call(self._store.sweep)

    async def _upload(
        self, upload: Generator[FileReply | None, bytes | None, None], body: AsyncIterable[bytes]
    ) -> FileReply:
        """Writes a body to disk as it arrives."""
        try:
            await self._thread.call(next, upload)
            gathered = bytearray()
            async for piece in body:
                gathered += piece
                if len(gathered) >= PIECE_BYTES:
                    await self._thread.call(upload.send, bytes(gathered))
                    gathered.clear()
            await self._thread.call(upload.send, bytes(gathered))
            stored = await self._thread.call(upload.send, None)
            assert stored is not None
            return stored
        finally:
            await self._thread.call_even_if_cancelled(upload.close)


def _uploading(
    store: FileStore, tenant: str, content_type: str | None
) -> Generator[FileReply | None, bytes | None, None]:
    """A generator to which the pieces of a body are sent, then None, for which it yields the stored file.

    It runs on the store's thread.
    """
    path, file = store.begin(tenant)
    try:
        form = UploadForm(content_type, file, store.limits.file_bytes)
        with store.folder.guarded():
            while (piece := (yield None)) is not None:
                form.feed(piece)
            file.flush()
            os.fsync(file.fileno())
        yield store.add(tenant, path, form.finish())
    finally:
        with contextlib.suppress(OSError):  # a full disk, which was reported before
            file.close()
        store.drop(path)


def _pieces(path: Path) -> Generator[bytes, None, None]:
    with path.open("rb") as file:
        while piece := file.read(READ_BYTES):
            yield piece


@dataclass(frozen=True, slots=True)
class FileLimits:
    """Maximum bytes of an uploaded file; maximum bytes and number of a tenant's files."""

    file_bytes: int = 200 << 20
    tenant_bytes: int = 8 << 30
    tenant_files: int = 10_000


class FileReply(ReplyObject, kw_only=True):
    """OpenAI's file object. Times are in seconds since 1970; ``expires_at`` is None for a file that does not expire."""

    object: Literal["file"] = "file"
    status: Literal["processed"] = "processed"
    status_details: None = None
    id: str
    filename: str
    purpose: str
    bytes: NonNegativeInt
    created_at: NonNegativeInt
    expires_at: NonNegativeInt | None


_COLUMNS: Final = ("id", "filename", "purpose", "bytes", "created_at", "expires_at")


def _read(*row: Any) -> FileReply:
    """The file that a row with ``_COLUMNS`` describes."""
    return FileReply(**dict(zip(_COLUMNS, row, strict=True)))


def new_file_id() -> str:
    return ID_PREFIX + secrets.token_hex(12)


class FileStore(TenantStore[FileReply]):
    """The files in ``folder``; ``wall`` returns seconds since 1970."""

    def __init__(self, folder: Path, limits: FileLimits, wall: Callable[[], float]) -> None:
        self.limits = limits
        present = "(expires_at IS NULL OR expires_at > :now)"
        super().__init__(folder, "contents", "files", _SCHEMA, ", ".join(_COLUMNS), _read, wall, present)

    def begin(self, tenant: str) -> tuple[Path, BinaryIO]:
        """A new empty file for an upload, to be passed to ``add`` or ``drop``. Raises TooLargeError at a limit."""
        self._check_room(tenant, 0)
        path = self._inner / (_TEMPORARY + secrets.token_hex(12))
        with self.folder.guarded():
            return path, os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb")

    def add(self, tenant: str, path: Path, form: UploadedForm) -> FileReply:
        """Stores an upload, whose bytes are at ``path``."""
        self.sweep()
        self._check_room(tenant, form.bytes)
        return self._put(new_file_id(), tenant, path, form.filename, form.purpose, form.lifetime_s)

    def adopt(self, id: str, tenant: str, path: Path, filename: str, lifetime_s: int | None) -> FileReply:
        """Stores the results of a batch, see ``FileService``."""
        return self._put(id, tenant, path, filename, "batch_output", lifetime_s)

    def drop(self, path: Path) -> None:
        """Removes an unfinished upload."""
        path.unlink(missing_ok=True)

    def content(self, tenant: str, id: str) -> tuple[FileReply, Path]:
        """The file and the path of its bytes. Raises NotFoundError."""
        file = self.get(tenant, id)
        return file, self._inner / file.id

    def link(self, tenant: str, id: str, target: Path) -> FileReply:
        """Gives a file's bytes a second name, see ``FileService``."""
        file, path = self.content(tenant, id)
        with self.folder.guarded():
            os.link(path, target)
        return file

    def delete(self, tenant: str, id: str) -> None:
        """Raises NotFoundError."""
        self.get(tenant, id)
        self._remove(id)

    def sweep(self) -> None:
        """Removes expired files."""
        for (id,) in self._base.rows("SELECT id FROM files WHERE expires_at <= ?", self._now()):
            self._remove(id)

    def _put(self, id: str, tenant: str, path: Path, filename: str, purpose: str, lifetime_s: int | None) -> FileReply:
        now = int(self._now())
        with self.folder.guarded():
            size = path.stat().st_size
            os.replace(path, self._inner / id)
        expires_at = None if lifetime_s is None else now + lifetime_s
        row = (id, filename, purpose, size, now, expires_at)
        try:
            columns = ", ".join(_COLUMNS)
            self._base.write(
                f"INSERT OR REPLACE INTO files ({columns}, tenant) VALUES (?, ?, ?, ?, ?, ?, ?)", *row, tenant
            )
        except BaseException:  # such as a full disk: the caller gets the bytes back, to delete them or to retry
            os.replace(self._inner / id, path)
            raise
        return _read(*row)

    def _check_room(self, tenant: str, more: int) -> None:
        ((count, used),) = self._base.rows("SELECT COUNT(*), TOTAL(bytes) FROM files WHERE tenant = ?", tenant)
        if count >= self.limits.tenant_files:
            raise TooLargeError(f"The limit of {count} files is reached.", hint="Delete some.")
        if used + more > self.limits.tenant_bytes:
            limit = self.limits.tenant_bytes >> 20
            raise TooLargeError(f"All files together are limited to {limit} MiB.", hint="Delete some.")

    def _remove(self, id: str) -> None:
        self._base.write("DELETE FROM files WHERE id = ?", id)
        (self._inner / id).unlink(missing_ok=True)

    def _recover(self) -> None:
        with self.folder.guarded():
            there = set(os.listdir(self._inner))
        known = {id for (id,) in self._base.rows("SELECT id FROM files")}
        for id in known - there:
            self._remove(id)
        for name in filter(_OURS.fullmatch, there - known):
            (self._inner / name).unlink(missing_ok=True)
        self.sweep()
