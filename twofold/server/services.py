"""What a server has: the parts that its endpoints use, and its stores of tenants' objects."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from twofold.host.paths import private_folder
from twofold.observe.metrics.server import ServerMetrics
from twofold.server.accounting import Accounting
from twofold.server.admission import Admission
from twofold.server.batches.run import RunBody
from twofold.server.batches.service import BatchService
from twofold.server.config import ServerConfig
from twofold.server.edge.quotas import Quotas
from twofold.server.files.service import FileService
from twofold.server.live import LiveService
from twofold.server.models.registry import ModelRegistry
from twofold.server.planning.jobs import PlanJobs
from twofold.server.planning.process import PlannerProcess
from twofold.server.pool import ByteBudget, WorkPool
from twofold.server.responses import ResponseService
from twofold.server.runner import RequestRunner
from twofold.web.page import WebPage


@dataclass(frozen=True, slots=True)
class Stores:
    """The services that own the stored objects of tenants."""

    files: FileService
    batches: BatchService
    responses: ResponseService


@asynccontextmanager
async def open_stores(folder: Path, run_body: RunBody) -> AsyncIterator[Stores]:
    """Opens the stores in ``folder`` and continues its unfinished batches.

    Raises UsageError if another server uses the folder, ResourceError if it cannot be used.
    """
    private_folder(folder)
    async with AsyncExitStack() as stack:
        files = await FileService.open(folder / "files")
        stack.push_async_callback(files.close)
        responses = await ResponseService.open(folder / "responses.sqlite")
        stack.push_async_callback(responses.close)
        batches = await BatchService.open(folder / "batches", files, run_body)
        stack.push_async_callback(batches.close)
        yield Stores(files, batches, responses)


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """The parts of a server that its endpoints use.

    bodies    counts the bytes of all bodies
    document  the OpenAPI document, as JSON
    features  the first words of the server's own paths
    page      the web page; None without one
    is_ready  returns whether a request for the first model would run now
    stop      shuts the server down as SIGTERM does
    """

    config: ServerConfig
    registry: ModelRegistry
    admission: Admission
    runner: RequestRunner
    accounting: Accounting
    metrics: ServerMetrics
    quotas: Quotas
    pool: WorkPool
    bodies: ByteBudget
    stores: Stores
    live: LiveService
    planner: PlannerProcess
    plans: PlanJobs
    document: bytes
    features: Sequence[str]
    page: WebPage | None
    is_ready: Callable[[], bool]
    stop: Callable[[], None]
