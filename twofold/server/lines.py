"""Lines of batches, answered as requests of the batch tier: by the same models, behind everybody who waits."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from twofold.api.base import DialectRequest
from twofold.api.batch.endpoints import check_batched
from twofold.api.batch.lines import check_body
from twofold.api.fields import leaving_out
from twofold.api.openai.errors import OpenAIDialect
from twofold.core.errors import BusyError, QuotaError, TwofoldError, WorkerError
from twofold.server.batches.run import LineCall
from twofold.server.edge.keys import Caller
from twofold.server.edge.limits import KIB
from twofold.server.edge.quotas import Quotas
from twofold.server.exchange import RequestContext
from twofold.server.pool import WorkPool
from twofold.server.runner import RequestRunner

LINE_BYTES: Final = 128 * KIB
"""What a line counts for beside requests: it is long work, for it may be."""
log = logging.getLogger("twofold.serve")


class LineRunner:
    """``RunBody``. ``readers`` read bodies by endpoint, ``caller_of`` gives a key's caller by tenant and id; what its
    quota has no room for is a QuotaError, so that the line is tried again later."""

    def __init__(
        self,
        runner: RequestRunner,
        readers: Mapping[str, Callable[[object], DialectRequest]],
        caller_of: Callable[[str, str], Caller],
        quotas: Quotas,
        pool: WorkPool,
        *,
        tolerant: bool = False,
    ) -> None:
        self._runner = runner
        self._readers = readers
        self._caller_of = caller_of
        self._quotas = quotas
        self._pool = pool
        self._tolerant = tolerant
        self._dialect = OpenAIDialect()

    async def __call__(self, line: LineCall) -> tuple[int, Mapping[str, Any]]:
        caller = self._caller_of(line.tenant, line.key)
        exchange = RequestContext(
            line.request_id,
            line.endpoint,
            self._dialect,
            caller,
            size=LINE_BYTES,
            source=f"batch of {caller.key_id}",
            forced="batch",
        )
        exchange.enter(self._quotas)
        with self._runner.track(exchange):
            try:
                self._runner.check_open()
                request = await self._pool.run(exchange.source, LINE_BYTES, partial(self._read, line))
                check_batched(request)
                return 200, await self._runner.reply(exchange, request)
            except (BusyError, QuotaError, WorkerError) as error:
                exchange.fail(error)
                raise
            except TwofoldError as error:
                exchange.fail(error)
                return exchange.status, self._dialect.error(error, line.request_id)
            finally:
                exchange.leave()

    def _read(self, line: LineCall) -> DialectRequest:
        """Nobody reads headers of a line, so what it cannot have is an error unless the server was told otherwise."""
        check_body(line.body)
        read = self._readers[line.endpoint]
        if not self._tolerant:
            return read(line.body)
        with leaving_out(unknown=True) as left_out:
            request = read(line.body)
        if left_out.told:
            log.warning("%s: omitted: %s", line.request_id, ", ".join(left_out.logged))
        return request
