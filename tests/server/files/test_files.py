"""Files: uploads as SDKs send them, isolation of tenants, pages, limits, and recovery after a crash."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai import OpenAI
from openai.types import FileDeleted, FileObject

from tests.api.completions import data_of
from tests.server.files.uploads import FORM, ending, form, part, pieces
from twofold.api.fields import FieldError
from twofold.core.errors import BusyError, NotFoundError, ResourceError, TooLargeError, TwofoldError, UsageError
from twofold.server.files import service as services
from twofold.server.files.form import UploadForm
from twofold.server.files.service import FileLimits, FileService
from twofold.server.storage.database import Database

SMALL = FileLimits(file_bytes=1000, tenant_bytes=3000, tenant_files=5)


class Wall:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def wall() -> Wall:
    return Wall()


Opened = Callable[[], Any]


@pytest.fixture
def opened(tmp_path: Path, wall: Wall) -> Opened:
    """``async with opened() as files``: the endpoint over the test's folder."""

    @asynccontextmanager
    async def open_files() -> AsyncIterator[FileService]:
        files = await FileService.open(tmp_path / "data", SMALL, wall=wall)
        try:
            yield files
        finally:
            await files.close()

    return open_files


def run(test: Callable[[FileService], Awaitable[None]], opened: Opened) -> None:
    async def inside() -> None:
        async with opened() as files:
            await test(files)

    asyncio.run(inside())


async def content_of(files: FileService, tenant: str, id: str) -> bytes:
    content = await files.content(tenant, id)
    return b"".join([piece async for piece in content.pieces])


def on_disk(folder: Path) -> list[str]:
    return sorted(os.listdir(folder / "data" / "contents"))


def sent_by_sdk(**given: Any) -> tuple[str, bytes]:
    """Content type and body of an upload by OpenAI's SDK."""
    seen: list[tuple[str, bytes]] = []

    def answer(request: Any) -> Any:
        seen.append((request.headers["content-type"], request.read()))
        body: Mapping[str, Any] = {
            "id": "file-1", "object": "file", "bytes": 1, "created_at": 1, "filename": "a", "purpose": "batch",
            "status": "processed",
        }  # fmt: skip
        return httpx2.Response(200, json=body)

    transport = httpx2.MockTransport(answer)
    with httpx2.Client(transport=transport) as http:
        OpenAI(api_key="k", base_url="http://test/v1", http_client=http).files.create(**given)
    return seen[0]


@pytest.mark.parametrize("size", [1, 7, 1 << 16])
def test_files_uploaded_by_the_sdk_come_back_unchanged(opened: Opened, size: int) -> None:
    data = b'{"a": "\r\n--"}\n' * 20
    kind, body = sent_by_sdk(
        file=("my in.jsonl", data), purpose="batch", expires_after={"anchor": "created_at", "seconds": 3600}
    )

    async def test(files: FileService) -> None:
        told = await files.upload("one", kind, pieces(body, size))
        file = FileObject.model_validate(data_of(told), strict=True)
        assert (file.filename, file.bytes, file.purpose, file.status) == ("my in.jsonl", 280, "batch", "processed")
        assert file.expires_at == file.created_at + 3600
        assert await files.get("one", file.id) == told
        assert await content_of(files, "one", file.id) == data

    run(test, opened)


def test_a_file_belongs_to_its_tenant(opened: Opened, tmp_path: Path) -> None:
    async def test(files: FileService) -> None:
        id = (await files.upload("one", FORM, pieces(form()))).id
        for ask in (files.get, files.content, files.delete):
            with pytest.raises(NotFoundError, match=id):
                await ask("two", id)
        assert (await files.page("two", {})).data == []
        with pytest.raises(FieldError, match="after is not the id of a file"):
            await files.page("two", {"after": id})
        deleted = FileDeleted.model_validate(data_of(await files.delete("one", id)), strict=True)
        assert (deleted.id, deleted.deleted) == (id, True)
        with pytest.raises(NotFoundError):
            await files.get("one", id)
        assert on_disk(tmp_path) == []

    run(test, opened)


def test_pages_reach_every_file_once(opened: Opened) -> None:
    async def test(files: FileService) -> None:
        made = [(await files.upload("one", FORM, pieces(form(filename=f"{n}")))).id for n in range(5)]
        for order in ("asc", "desc"):
            seen: list[str] = []
            query = {"limit": "2", "order": order, "purpose": "batch"}
            while True:
                page = await files.page("one", query)
                seen += [file.id for file in page.data]
                if not page.has_more:
                    break
                assert page.last_id == seen[-1]
                query["after"] = seen[-1]
            assert seen == (made if order == "asc" else made[::-1])
        assert (await files.page("one", {"purpose": "batch_output"})).data == []

    run(test, opened)


@pytest.mark.parametrize(
    ("query", "param"),
    [({"limit": "0"}, "limit"), ({"limit": "x"}, "limit"), ({"limit": "9" * 5000}, "limit"), ({"limit": "٣"}, "limit"),
     ({"order": "up"}, "order"), ({"ordr": "asc"}, "ordr"), ({"after": "file-0"}, "after")],
)  # fmt: skip
def test_queries_that_cannot_be(opened: Opened, query: dict[str, str], param: str) -> None:
    async def test(files: FileService) -> None:
        with pytest.raises(FieldError) as raised:
            await files.page("one", query)
        assert raised.value.param == param

    run(test, opened)


@pytest.mark.parametrize(
    ("kind", "body", "said"),
    [
        (None, form(), "multipart/form-data with a boundary"),
        ("application/json", b"{}", "multipart/form-data with a boundary"),
        ("multipart/form-data", form(), "multipart/form-data with a boundary"),
        (f"multipart/form-data; boundary={'b' * 71}", form(), "longer than 70"),
        (FORM, b"", "ends before its last boundary"),
        (FORM, form()[:-8], "ends before its last boundary"),
        (FORM, b"nonsense" * 100, "not multipart/form-data"),
        (FORM, form(purpose="assistants"), "purpose must be batch"),
        (FORM, part("purpose", b"batch") + ending(), "file is required"),
        (FORM, part("file", b"{}", "a") + ending(), "purpose is required"),
        (FORM, part("file", b"{}") + ending(), "file needs a file name"),
        (FORM, part("purpos", b"batch") + form(), "purpos is not a known field"),
        (FORM, part("purpose", b"batch") + form(), "purpose is given twice"),
        (FORM, part("file", b"", "a") + form(), "file is given twice"),
        (FORM, form(purpose="b" * 2000), "longer than 1024"),
        (FORM, part("purpose", b"\xff") + part("file", b"{}", "a") + ending(), "not UTF-8"),
        (FORM, part("purpose\xff", b"b").decode().encode("latin-1") + ending(), "not UTF-8"),
        (FORM, form(anchor="created_at"), "expires_after.seconds is required"),
        (FORM, form(seconds="4000"), "expires_after.anchor is required"),
        (FORM, form(anchor="created_at", seconds="9"), "from 3600 to"),
        (FORM, form(anchor="created_at", seconds="-4000"), "from 3600 to"),
        (FORM, f"--a-boundary\r\n{'X: y' * 2000}\r\n\r\n".encode() + form(), "header size"),
        (FORM, b"--a-boundary\r\n" + b"X: y\r\n" * 20 + b"\r\n" + form(), "header count"),
        (FORM, b"--a-boundary\r\nX: y\r\n\r\n" + form(), "has no name"),
    ],
    ids=lambda value: str(value)[-30:],
)
def test_forms_that_cannot_be_leave_nothing(
    opened: Opened, tmp_path: Path, kind: str | None, body: bytes, said: str
) -> None:
    async def test(files: FileService) -> None:
        for size in (5, 1 << 16):
            with pytest.raises(FieldError, match=said):
                await files.upload("one", kind, pieces(body, size))
        assert on_disk(tmp_path) == []
        assert (await files.page("one", {})).data == []

    run(test, opened)


class Trash:
    def write(self, data: bytes, /) -> int:
        return len(data)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_bytes_are_a_form_or_an_error(data: st.DataObject) -> None:
    body = bytearray(form(b"{}\n" * 5, anchor="created_at", seconds="3600"))
    for _ in range(data.draw(st.integers(0, 4))):
        start = data.draw(st.integers(0, len(body) - 1))
        body[start : start + data.draw(st.integers(0, 9))] = data.draw(st.binary(max_size=9))
    read = UploadForm(FORM, Trash(), 1000)
    size = data.draw(st.integers(1, 200))
    try:
        for start in range(0, len(body), size):
            read.feed(bytes(body[start : start + size]))
        read.finish()
    except TwofoldError as error:
        told = error.status
    else:
        told = 200
    assert told in (200, 400, 413)


@pytest.mark.parametrize(
    ("given", "kept"),
    [("../../etc/passwd", "passwd"), ("C:\\\\a\\\\b.jsonl", "b.jsonl"), ("a\x01b", "ab"), ("", "upload"),
     ("é" * 300, "é" * 255), ("dir/", "upload")],
)  # fmt: skip
def test_file_names_are_only_shown(opened: Opened, tmp_path: Path, given: str, kept: str) -> None:
    async def test(files: FileService) -> None:
        told = await files.upload("one", FORM, pieces(form(filename=given)))
        assert told.filename == kept
        assert on_disk(tmp_path) == [told.id]

    run(test, opened)


@pytest.mark.parametrize("size", [1000, 1001])
def test_the_size_of_a_file_is_limited(opened: Opened, tmp_path: Path, size: int) -> None:
    async def test(files: FileService) -> None:
        if size > SMALL.file_bytes:
            with pytest.raises(TooLargeError):
                await files.upload("one", FORM, pieces(form(b"x" * size)))
            assert on_disk(tmp_path) == []
        else:
            assert (await files.upload("one", FORM, pieces(form(b"x" * size)))).bytes == size

    run(test, opened)


def test_a_tenant_has_a_share_of_the_disk(opened: Opened) -> None:
    async def test(files: FileService) -> None:
        first = [(await files.upload("one", FORM, pieces(form(b"x" * 1000)))).id for _ in range(3)]
        with pytest.raises(TooLargeError, match="All files together"):
            await files.upload("one", FORM, pieces(form()))
        await files.upload("two", FORM, pieces(form()))
        await files.delete("one", first[0])
        for _ in range(3):
            await files.upload("one", FORM, pieces(form()))
        with pytest.raises(TooLargeError, match="The limit of 5 files"):
            await files.upload("one", FORM, pieces(form()))

    run(test, opened)


def test_files_expire(opened: Opened, tmp_path: Path, wall: Wall) -> None:
    async def test(files: FileService) -> None:
        id = (await files.upload("one", FORM, pieces(form(anchor="created_at", seconds="3600")))).id
        wall.now += 3599
        await files.get("one", id)
        wall.now += 1
        with pytest.raises(NotFoundError):
            await files.get("one", id)
        assert (await files.page("one", {})).data == []
        await files.sweep()
        assert on_disk(tmp_path) == []

    run(test, opened)


def test_whole_files_survive_a_crash_and_partial_ones_do_not(opened: Opened, tmp_path: Path) -> None:
    ids: list[str] = []

    async def first(files: FileService) -> None:
        ids.extend([(await files.upload("one", FORM, pieces(form()))).id for _ in range(2)])

    async def second(files: FileService) -> None:
        assert [file.id for file in (await files.page("one", {})).data] == ids[:1]
        assert await content_of(files, "one", ids[0]) == b"{}\n"
        assert on_disk(tmp_path) == ids[:1]

    run(first, opened)
    folder = tmp_path / "data" / "contents"
    (folder / f"upload-{24 * 'a'}").write_bytes(b"x")
    (folder / ids[1]).unlink()
    run(second, opened)


def test_stored_files_are_readable_by_their_owner_only(opened: Opened, tmp_path: Path) -> None:
    async def test(files: FileService) -> None:
        await files.upload("one", FORM, pieces(form()))
        for path in (tmp_path / "data", *(tmp_path / "data").rglob("*")):
            assert path.stat().st_mode & 0o077 == 0, path.name

    run(test, opened)


def test_one_server_has_the_folder(opened: Opened, tmp_path: Path, wall: Wall) -> None:
    async def test(_: FileService) -> None:
        with pytest.raises(UsageError, match="Another server"):
            await FileService.open(tmp_path / "data", SMALL, wall=wall)

    run(test, opened)


@pytest.mark.parametrize("content", [b"not a database" * 200, b""])
def test_a_broken_database_is_an_error(opened: Opened, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "files.sqlite3").write_bytes(content)

    async def test(files: FileService) -> None:
        await files.page("one", {})

    if not content:
        run(test, opened)
        return
    with pytest.raises(ResourceError, match=r"files\.sqlite3"):
        run(test, opened)


def test_a_disconnected_client_leaves_nothing(opened: Opened, tmp_path: Path) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield form()[:50]
        raise ConnectionResetError

    async def stuck() -> AsyncIterator[bytes]:
        yield form()[:50]
        await asyncio.Event().wait()

    async def test(files: FileService) -> None:
        with pytest.raises(ConnectionResetError):
            await files.upload("one", FORM, broken())
        waiting = [asyncio.create_task(files.upload("one", FORM, stuck())) for _ in range(services.UPLOADS_AT_ONCE)]
        await asyncio.sleep(0.05)
        with pytest.raises(BusyError):
            await files.upload("one", FORM, pieces(form()))
        other = await files.upload("two", FORM, pieces(form()))  # no tenant keeps others out
        await files.delete("two", other.id)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        assert on_disk(tmp_path) == []
        await files.upload("one", FORM, pieces(form()))

    run(test, opened)


def test_a_full_disk_is_told(opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: UploadForm, __: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(UploadForm, "feed", full)

    async def test(files: FileService) -> None:
        with pytest.raises(ResourceError, match="No space left") as raised:
            await files.upload("one", FORM, pieces(form()))
        assert str(tmp_path) not in str(raised.value)
        assert on_disk(tmp_path) == []

    run(test, opened)


def test_a_database_on_a_full_disk_leaves_no_bytes(
    opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Database.write

    def full(base: Database, statement: str, *values: Any) -> None:
        if statement.startswith("INSERT"):
            raise ResourceError("The server's database cannot be used: database or disk is full.")
        write(base, statement, *values)

    async def test(files: FileService) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(Database, "write", full)
            with pytest.raises(ResourceError, match="disk is full"):
                await files.upload("one", FORM, pieces(form()))
            assert on_disk(tmp_path) == []
            made = tmp_path / "output.jsonl"
            made.write_bytes(b"{}")
            with pytest.raises(ResourceError, match="disk is full"):
                await files.adopt("file-x", "one", made, "output.jsonl", None)
            assert made.read_bytes() == b"{}", "what a batch made is there for another try"
        assert on_disk(tmp_path) == []
        await files.adopt("file-x", "one", made, "output.jsonl", None)
        assert on_disk(tmp_path) == ["file-x"]

    run(test, opened)


def test_only_files_of_ours_are_cleared_away(opened: Opened, tmp_path: Path) -> None:
    async def nothing(files: FileService) -> None:
        assert (await files.page("one", {})).data == []

    run(nothing, opened)
    folder = tmp_path / "data" / "contents"
    strange = ["file-mine.txt", "notes", "upload-half"]
    for name in (*strange, f"file-{24 * '0'}", f"upload-{24 * 'f'}"):
        (folder / name).write_bytes(b"x")
    run(nothing, opened)
    assert on_disk(tmp_path) == strange
