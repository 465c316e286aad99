"""/v1/files: OpenAI's files, without HTTP."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Generator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from msgspec import Meta

from twofold.api.body import ReplyObject
from twofold.core.errors import BusyError
from twofold.server.files.form import UploadForm
from twofold.server.storage.files import FileLimits, FileReply, FileStore, StoredFile
from twofold.server.storage.paging import ObjectPage, OrderedQuery, Query, page_fields, read_query
from twofold.server.storage.thread import SingleThread

MAX_LISTED: Final = 10_000
UPLOADS_AT_ONCE: Final = 16
PIECE_BYTES: Final = 1 << 20
"""Of an upload: bytes that a thread writes at once."""
READ_BYTES: Final = 256 << 10
DEFAULT_LIMITS: Final = FileLimits()


@dataclass(frozen=True, slots=True)
class FileContent:
    """A file and its bytes, piece by piece; it is opened with the first piece."""

    file: StoredFile
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
        self._uploads = 0

    @classmethod
    async def open(
        cls, folder: Path, limits: FileLimits = DEFAULT_LIMITS, *, wall: Callable[[], float] = time.time
    ) -> Self:
        """Opens the store in ``folder``; see FileStore for what it raises."""
        thread, store = await SingleThread.open("files", FileStore, folder, limits, wall)
        return cls(store, thread)

    async def close(self) -> None:
        await self._thread.end(self._store.close)

    async def upload(self, tenant: str, content_type: str | None, body: AsyncIterable[bytes]) -> FileReply:
        """POST /v1/files: ``body`` is a multipart form, which is written to disk as it arrives."""
        if self._uploads >= UPLOADS_AT_ONCE:
            raise BusyError(f"{UPLOADS_AT_ONCE} files are already being uploaded.", retry_after_s=1.0)
        self._uploads += 1
        try:
            return (await self._upload(_uploading(self._store, tenant, content_type), body)).reply()
        finally:
            self._uploads -= 1

    async def page(self, tenant: str, query: Query) -> FilePage:
        """GET /v1/files with limit, after, order and purpose."""
        asked = read_query(FileQuery, query)
        where = ":purpose IS NULL OR purpose = :purpose"
        page = partial(self._store.page, tenant, asked, f"({where})", purpose=asked.purpose)
        files, more = await self._thread.call(page)
        return FilePage(**page_fields([file.reply() for file in files], more))

    async def get(self, tenant: str, id: str) -> FileReply:
        """GET /v1/files/{id}."""
        return (await self._thread.call(self._store.get, tenant, id)).reply()

    async def delete(self, tenant: str, id: str) -> FileDeleted:
        """DELETE /v1/files/{id}."""
        await self._thread.call(self._store.delete, tenant, id)
        return FileDeleted(id=id)

    async def content(self, tenant: str, id: str) -> FileContent:
        """GET /v1/files/{id}/content."""
        file, path = await self._thread.call(self._store.content, tenant, id)
        return FileContent(file, self._thread.each(_pieces(path)))

    async def link(self, tenant: str, id: str, target: Path) -> StoredFile:
        """Gives a file's bytes the second name ``target`` in the same file system."""
        return await self._thread.call(self._store.link, tenant, id, target)

    async def adopt(self, id: str, tenant: str, path: Path, filename: str, lifetime_s: int | None) -> StoredFile:
        """Stores a file of a batch; see FileStore."""
        return await self._thread.call(self._store.adopt, id, tenant, path, filename, lifetime_s)

    async def sweep(self) -> None:
        """Removes expired files."""
        await self._thread.call(self._store.sweep)

    async def _upload(
        self, upload: Generator[StoredFile | None, bytes | None, None], body: AsyncIterable[bytes]
    ) -> StoredFile:
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
            await self._thread.surely(upload.close)


def _uploading(
    store: FileStore, tenant: str, content_type: str | None
) -> Generator[StoredFile | None, bytes | None, None]:
    """Takes the pieces of a body and then None, for which it yields the stored file. Runs on the store's thread."""
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
