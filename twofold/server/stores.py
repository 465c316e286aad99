"""The data that clients store on the server: files, batches, responses."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from twofold.host.paths import private_folder
from twofold.server.batches.run import RunBody
from twofold.server.batches.service import BatchService
from twofold.server.files.service import FileService
from twofold.server.responses.service import ResponseService


@dataclass(frozen=True, slots=True)
class Stores:
    """The services that own it."""

    files: FileService
    batches: BatchService
    responses: ResponseService


@asynccontextmanager
async def open_stores(folder: Path, run_body: RunBody) -> AsyncIterator[Stores]:
    """Opens the stores in ``folder`` and continues its unfinished batches. Raises UsageError, ResourceError."""
    private_folder(folder)
    async with AsyncExitStack() as stack:
        files = await FileService.open(folder / "files")
        stack.push_async_callback(files.close)
        responses = await ResponseService.open(folder / "responses.sqlite")
        stack.push_async_callback(responses.close)
        batches = await BatchService.open(folder / "batches", files, run_body)
        stack.push_async_callback(batches.close)
        yield Stores(files, batches, responses)
