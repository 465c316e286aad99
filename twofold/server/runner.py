"""Runs requests that were read.

    lease the model → render and tokenise → tier, quotas, queue → run its jobs → outputs

    with runner.track(exchange):
        async with runner.open(exchange, request) as run:
            async for job, delta in run.deltas(): …
            run.outputs

Leaving early aborts what runs, and what was computed until then counts. Every exchange, whatever its end, is told to
the observers once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any, Final, TypeVar

from twofold.api.base import DialectRequest, ModelFacts, ReplyHead
from twofold.core.errors import BusyError, TimeLimitError, TwofoldError
from twofold.core.request import EngineRequest
from twofold.engine.outputs import OutputDelta, RequestOutput
from twofold.server.accounts.accounting import Accounting
from twofold.server.admission import Admission
from twofold.server.base import DispatchHandle, ModelRegistry, ServedModel
from twofold.server.edge.limits import KIB
from twofold.server.exchange import RequestContext
from twofold.server.pool import WorkPool
from twofold.server.response_cache.answers import deltas as told_again
from twofold.server.response_cache.cache import ResponseCache

LEAVING_S: Final = 10.0
"""How long to wait for what there was of a job that ended early: about a step, unless its process hangs."""
LEAVING_CUT_S: Final = 0.5
"""… where the server ends."""
STARTED_AT_ONCE: Final = 32
"""Jobs of a request that are started, or left, before others get their turn."""
INLINE_REPLY: Final = 64 * KIB
"""Replies up to so many bytes are made on the event loop."""
LONG_REPLY: Final = 128 * KIB
"""What a longer one counts for in the pool, where it is never refused for its length: it was paid for."""
VALUE_BYTES: Final = 16
"""Of a number in JSON."""
PLACE_BYTES: Final = 1 * KIB
"""Of a position's log-probabilities."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StoredOutputs:
    """``kept`` outputs, None where the jobs must be run; ``keep`` takes what they gave, before all of it is told."""

    kept: Sequence[RequestOutput] | None = None
    keep: Callable[[Sequence[RequestOutput]], Awaitable[None]] | None = None


class RequestRun:
    """A request that was admitted. ``outputs`` is complete once ``deltas`` has ended; what ended early is in it once
    the run is settled."""

    def __init__(
        self,
        exchange: RequestContext,
        request: DialectRequest,
        model: ServedModel,
        jobs: Sequence[EngineRequest],
        replay: StoredOutputs,
        numbers: Iterator[int],
    ) -> None:
        self.exchange = exchange
        self.request = request
        self.facts: ModelFacts = model.facts
        self.head = ReplyHead(
            exchange.reply_id,
            int(exchange.arrived_at),
            request.model or model.name,
            exchange.tier,
            tuple(len(job.token_ids) for job in jobs),
            time.monotonic() - exchange.arrived,
        )
        self._model = model
        self._jobs = jobs
        self._replay = replay
        self._numbers = numbers
        self._outputs: list[RequestOutput | None] = [None] * len(jobs) if replay.kept is None else [*replay.kept]
        self._passages = [DispatchHandle() for _ in jobs]

    @property
    def model(self) -> str:
        """Its name."""
        return self._model.name

    @property
    def outputs(self) -> Sequence[RequestOutput]:
        return [output for output in self._outputs if output is not None]

    async def deltas(self) -> AsyncGenerator[tuple[int, OutputDelta], None]:
        """What the jobs give, in the order in which it comes."""
        if self._replay.kept is not None:
            stream = _told_again(self._replay.kept)
        elif len(self._jobs) == 1:
            stream = self._job(0)
        else:
            stream = self._merged()
        try:
            async with aclosing(stream):
                async for given in stream:
                    yield given
            if self._replay.keep is not None:
                await self._replay.keep(self.outputs)
        finally:
            self.exchange.outputs = self.outputs

    async def whole(self) -> Sequence[RequestOutput]:
        """Runs it to its end; an output for each job."""
        async with aclosing(self.deltas()) as deltas:
            async for _ in deltas:
                if self.exchange.first_token is None:
                    self.exchange.told()
        return self.outputs

    async def settle(self) -> None:
        """Learns what there was of the jobs that ended early."""
        exchange = self.exchange
        until = time.monotonic() + (LEAVING_S if exchange.cut is None else LEAVING_CUT_S)
        for index, passage in enumerate(self._passages):
            if self._outputs[index] is None:
                self._outputs[index] = await passage.remains(max(0.0, until - time.monotonic()))
        exchange.outputs = self.outputs
        exchange.retries = sum(passage.retries for passage in self._passages)

    async def _job(self, index: int) -> AsyncGenerator[tuple[int, OutputDelta], None]:
        name = f"{self.exchange.request_id}-{next(self._numbers)}"  # clients may give two requests the same id
        request = replace(self._jobs[index], request_id=name, prompt=None, stream=self.request.stream)
        async with aclosing(self._model.run(request, self._passages[index])) as deltas:
            async for delta in deltas:
                if delta.request is not None:
                    self._outputs[index] = delta.request
                    _check_begun(delta.request)
                yield index, delta

    async def _merged(self) -> AsyncGenerator[tuple[int, OutputDelta], None]:
        """Several jobs at once. The first that fails ends all of them."""
        ready: asyncio.Queue[tuple[int, OutputDelta] | BaseException | None] = asyncio.Queue(maxsize=64)

        async def pump(index: int) -> None:
            try:
                async with aclosing(self._job(index)) as deltas:
                    async for given in deltas:
                        await ready.put(given)
                await ready.put(None)
            except Exception as error:  # any other error too: the request would hang
                await ready.put(error)

        pumps: list[asyncio.Task[None]] = []
        try:
            for index in range(len(self._jobs)):
                pumps.append(asyncio.create_task(pump(index)))
                if index % STARTED_AT_ONCE == STARTED_AT_ONCE - 1:
                    await asyncio.sleep(0)
            open_jobs = len(pumps)
            while open_jobs:
                given = await ready.get()
                if isinstance(given, BaseException):
                    raise given
                if given is None:
                    open_jobs -= 1
                else:
                    yield given
        finally:
            for start in range(0, len(pumps), STARTED_AT_ONCE):
                part = pumps[start : start + STARTED_AT_ONCE]
                for task in part:
                    task.cancel()
                await asyncio.gather(*part, return_exceptions=True)


class RequestRunner:
    """Runs requests over the models of ``hub``. While ``closing``, new ones are refused."""

    def __init__(
        self,
        hub: ModelRegistry,
        admission: Admission,
        ledger: Accounting,
        pool: WorkPool,
        kept: ResponseCache | None = None,
    ) -> None:
        self._hub = hub
        self._admission = admission
        self._ledger = ledger
        self._kept = kept
        self._pool = pool
        self._open: dict[int, RequestContext] = {}
        self._numbers = count()
        self.closing = False

    @property
    def under_way(self) -> int:
        return len(self._open)

    def interrupt(self, error: TwofoldError) -> None:
        """Ends all that is under way."""
        for exchange in list(self._open.values()):
            exchange.interrupt(error)

    def check_open(self) -> None:
        """Raises BusyError where no new requests are taken."""
        if self.closing:
            raise BusyError("The server is shutting down.", retry_after_s=5, hint="Retry in a moment.")

    @contextmanager
    def track(self, exchange: RequestContext, *, waits: bool = True) -> Iterator[None]:
        """Tells the observers how an exchange ended. ``waits``: the server does not end before it has."""
        if waits:
            self._open[id(exchange)] = exchange
        try:
            yield
        finally:
            self._open.pop(id(exchange), None)
            self._ledger.close(exchange)

    @asynccontextmanager
    async def open(self, exchange: RequestContext, request: DialectRequest) -> AsyncIterator[RequestRun]:
        """Admits a request. Raises TwofoldError where it cannot be."""
        exchange.begin(request)
        async with self._hub.lease(request.model, keep_s=exchange.keep_alive_s) as model:
            exchange.model, exchange.facts, exchange.ceilings = model.name, model.facts, model.ceilings
            prepare = partial(request.prepare, model.facts)
            prepared = await self._pool.prepare(model.name, exchange.source, exchange.size, prepare)
            jobs = self._admission.tiered(exchange, request, prepared)
            exchange.jobs = jobs
            replay = await self._replayed(exchange, model, jobs)
            admitted = nullcontext() if replay.kept is not None else self._admission.admit(exchange, jobs, model)
            with admitted:
                run = RequestRun(exchange, request, model, jobs, replay, self._numbers)
                try:
                    yield run
                finally:
                    await run.settle()

    async def _replayed(
        self, exchange: RequestContext, model: ServedModel, jobs: Sequence[EngineRequest]
    ) -> StoredOutputs:
        """What the response cache has for these jobs, and what it does with their outputs."""
        cache = self._kept
        key = None if cache is None else cache.key(exchange.caller.tenant, model.identity, jobs, exchange.replay)
        if cache is None or key is None:
            return StoredOutputs()
        exchange.cache_asked = True
        kept = await cache.get(key, exchange.request_id)
        exchange.cached_answer = kept is not None
        return StoredOutputs(kept) if kept is not None else StoredOutputs(keep=partial(cache.put, key))

    async def reply(self, exchange: RequestContext, request: DialectRequest) -> dict[str, Any]:
        """The whole reply's body. Raises TwofoldError."""
        async with self.open(exchange, request) as run:
            await run.whole()
            body = await self.body(run)
            extra = self.explained(run)
            return body if extra is None else body | {"twofold": extra}

    async def body(self, run: RequestRun) -> dict[str, Any]:
        """The body of a reply that is whole."""
        return await self.beside(run, reply_size(run), partial(run.request.reply, run.head, run.outputs, run.facts))

    async def beside(self, run: RequestRun, size: int, work: Callable[[], T]) -> T:
        """What ``work`` makes of a reply of about ``size`` bytes: beside the event loop where that may take long,
        because it is much, or because the chat template is asked how the model thinks."""
        thinking, source = run.facts.format.thinking, run.exchange.source
        if size > INLINE_REPLY:
            return await self._pool.run(source, LONG_REPLY, work)
        if thinking is None or thinking.switch is None:
            return work()
        return await self._pool.prepare(run.model, source, size, work)

    def explained(self, run: RequestRun) -> dict[str, Any] | None:
        """What goes under ``twofold`` in a reply that was asked to carry it; to be asked for once it is whole."""
        return self._ledger.explained(run.exchange) if run.request.explain else None


def _check_begun(output: RequestOutput) -> None:
    """Raises TimeLimitError for a job whose time was up before it gave anything: nothing is no answer."""
    nothing = output.embedding is None and not output.metrics.output_tokens
    if nothing and "deadline" in output.report.finish_reasons:
        raise TimeLimitError("The request timed out before its first token.", hint="Retry later, or lower max_tokens.")


def reply_size(run: RequestRun) -> int:
    """About how many bytes of JSON the answers become."""
    size = 0
    for output in run.outputs:
        places = len(output.prompt_logprobs or ()) + sum(len(answer.logprobs or ()) for answer in output.outputs)
        texts = sum(VALUE_BYTES * len(answer.token_ids) + len(answer.text) for answer in output.outputs)
        size += VALUE_BYTES * len(output.embedding or ()) + PLACE_BYTES * places + texts
    return size


async def _told_again(outputs: Sequence[RequestOutput]) -> AsyncGenerator[tuple[int, OutputDelta], None]:
    """Kept answers, as if they came now."""
    for job, output in enumerate(outputs):
        for delta in told_again(output):
            yield job, delta
