"""Runs lines of batches as requests of the batch tier: by the same models, after all other requests."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from twofold.api.base import DialectRequest
from twofold.api.batch.endpoints import read_body
from twofold.api.batch.lines import LineCall
from twofold.api.fields import ignoring
from twofold.api.openai.errors import OpenAIDialect
from twofold.core.errors import BusyError, QuotaError, TwofoldError, WorkerError
from twofold.observe.served import ServedRequest
from twofold.server.context import RequestContext
from twofold.server.edge.keys import Caller
from twofold.server.edge.limits import KIB
from twofold.server.edge.quotas import Quotas
from twofold.server.pool import WorkPool
from twofold.server.runner import RequestRunner

LINE_BYTES: Final = 128 * KIB
"""Weight of a line beside HTTP requests, by the size of their bodies: it may take long."""
log = logging.getLogger("twofold.serve")


class LineRunner:
    """``RunBody``. ``caller_of`` returns a key's caller by tenant and id. A line beyond its quota is a QuotaError, so
    it is retried later; with ``tolerant``, unknown fields are omitted."""

    def __init__(
        self,
        runner: RequestRunner,
        caller_of: Callable[[str, str], Caller],
        quotas: Quotas,
        pool: WorkPool,
        *,
        tolerant: bool = False,
    ) -> None:
        self._runner, self._caller_of, self._quotas = runner, caller_of, quotas
        self._pool, self._tolerant = pool, tolerant
        self._dialect = OpenAIDialect()

    async def __call__(self, line: LineCall) -> tuple[int, object]:
        caller = self._caller_of(line.tenant, line.key)
        record = ServedRequest(
            line.request_id,
            line.endpoint,
            self._dialect.name,
            caller.tenant,
            caller.key_id,
            time.time(),
            tier="batch",
        )
        context = RequestContext(record, self._dialect, caller, f"batch of {caller.key_id}", LINE_BYTES)
        context.quota = self._quotas.enter(caller.key_id, caller.quota, context.arrived)
        with self._runner.track(context):
            try:
                self._runner.check_open()
                request = await self._pool.run(context.source, LINE_BYTES, partial(self._read, line))
                async with self._runner.open(context, request) as run:
                    return 200, await self._runner.reply(run)
            except (BusyError, QuotaError, WorkerError) as error:
                context.fail(error)
                raise
            except TwofoldError as error:
                context.fail(error)
                return record.status, self._dialect.error(error, line.request_id)
            finally:
                context.leave()

    def _read(self, line: LineCall) -> DialectRequest:
        if not self._tolerant:
            return read_body(line)
        with ignoring(unknown=True) as ignored:
            request = read_body(line)
        if ignored.shown:
            log.warning("batch line %s: omitted: %s", line.request_id, ", ".join(ignored.logged))
        return request
