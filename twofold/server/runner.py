"""Runs requests.

    lease the model → render and tokenise → tier, quotas, queue → run the prompts → outputs

    with runner.track(context):
        async with runner.open(GenerationRun(context, request)) as run:
            async for job, delta in run.deltas(): …
            await run.finish()
            run.outputs

Leaving early aborts the request; its work until then is accounted for. Every request is accounted for once, however it
ends.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import Final, TypeVar

from msgspec import UNSET, UnsetType

from twofold.api.base import DialectRequest, GeneratedReply, ReplyHead
from twofold.api.completion import CacheUsage, reasoning_tokens
from twofold.api.compression import Compressible
from twofold.api.fields import ignoring
from twofold.core.errors import BusyError, TimeLimitError, TwofoldError
from twofold.core.request import EngineRequest
from twofold.core.tasks import start_task
from twofold.engine.outputs import OutputDelta, RequestOutput
from twofold.fleet.fleet import Fleet
from twofold.fleet.streams import RequestStream, StreamReader
from twofold.observe.served import AskedParams, ServedRequest
from twofold.planner.predict.phase import phase_floor
from twofold.server.accounting import Accounting
from twofold.server.admission import Admission
from twofold.server.context import RequestContext
from twofold.server.edge.limits import KIB
from twofold.server.models.registry import ModelRegistry
from twofold.server.pool import WorkPool
from twofold.server.records import RequestRecord
from twofold.server.response_cache import ResponseCache
from twofold.server.response_cache import deltas as cached_deltas

LEAVING_S: Final = 10.0
"""How long to wait for the output of an aborted job: about a step, unless its process hangs."""
LEAVING_CUT_S: Final = 0.5
"""How long to wait for it while the server shuts down."""
OPEN_ENDED: Final = "no complete output of the grammar was found in time: max_tokens may cut the structured output"
STARTED_AT_ONCE: Final = 32
"""Jobs of a request that are started before other requests get their turn."""
MIN_LEFT_S: Final = 1e-3
"""A job that starts after its request's deadline gets so many seconds, and ends at it."""
INLINE_REPLY: Final = 64 * KIB
"""Replies of up to this size are made on the event loop."""
LONG_REPLY: Final = 128 * KIB
"""Bytes that a longer reply counts as in the pool, which must not refuse it: its completion exists already."""
VALUE_BYTES: Final = 16
"""Bytes of a number in JSON, estimated."""
COMPRESSING: Final = "/v1/compress"
"""The endpoint in the records of requests that score the texts of a chat."""
POSITION_BYTES: Final = 1 * KIB
"""Bytes of the log-probabilities of a position in JSON, estimated."""

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class GenerationRun:
    """A request whose reply a model generates. ``RequestRunner.open`` admits it and sets the fields up to ``numbers``.

    jobs     one request to the engine for each of its prompts
    head     what is known of the reply before its first token
    numbers  make the ids of the jobs unique
    cached   the outputs from the response cache; None if the jobs must run
    store    puts their outputs into the response cache
    """

    context: RequestContext
    request: DialectRequest
    model: Fleet = field(init=False)
    jobs: Sequence[EngineRequest] = field(init=False)
    head: ReplyHead = field(init=False)
    numbers: Iterator[int] = field(init=False)
    cached: Sequence[RequestOutput] | None = None
    store: Callable[[Sequence[RequestOutput]], Awaitable[None]] | None = None
    _began: float = field(default_factory=time.monotonic)
    _outputs: dict[int, RequestOutput] = field(default_factory=dict)
    _streams: dict[int, RequestStream] = field(default_factory=dict)

    @property
    def outputs(self) -> Sequence[RequestOutput]:
        """Outputs in the order of ``jobs``: all after ``deltas`` has ended; those of aborted jobs after ``settle``."""
        return [output for _, output in sorted(self._outputs.items())] if self.cached is None else self.cached

    def reader(self) -> StreamReader:
        """What reads a stream of it."""
        return StreamReader(record=self.context.record)

    def deltas(self) -> AsyncGenerator[tuple[int, OutputDelta], None]:
        """The deltas of all jobs that its ``reader`` does not take at once, with the job's index, in their order."""
        if self.cached is not None:
            return _cached(self.cached)
        return self._job(0) if len(self.jobs) == 1 else self._merged()

    async def finish(self) -> None:
        """Stores the outputs in the response cache, once all jobs have ended and before the client knows that."""
        if self.store is not None:
            await self.store(self.outputs)

    async def settle(self) -> None:
        """Waits for the outputs of jobs that were aborted, and records them."""
        until = time.monotonic() + (LEAVING_S if self.context.cut is None else LEAVING_CUT_S)
        for index, stream in self._streams.items():
            if index not in self._outputs:
                output = await stream.partial_output(max(0.0, until - time.monotonic()))
                if output is not None:
                    self._outputs[index] = output
        self.record()
        self._streams.clear()  # this run is their reader: the two would keep each other

    def record(self) -> None:
        """Fills the request's record with what its jobs computed."""
        record, outputs, steps = self.context.record, self.outputs, self.context.steps
        record.retries = sum(stream.route.retries for stream in self._streams.values())
        record.reasoning_tokens = reasoning_tokens(outputs, self.model.facts)
        if self.cached is not None:
            return
        record.routes = (
            tuple(
                stream.route.served(self._outputs.get(index))
                for index, stream in sorted(self._streams.items())
                if stream.route.choice
            )
            if self.model.routes
            else ()
        )
        record.reports = tuple(output.metrics for output in outputs)
        record.written_tokens = CacheUsage.of(outputs).written_by_seconds
        if steps is not None:
            record.limits_s = {"prefill": 0.0, "decode": 0.0}
            for report in record.reports:
                for phase, work in (("prefill", report.record.prefill), ("decode", report.record.decode)):
                    if work.rows:
                        record.limits_s[phase] += phase_floor(work, steps, report.completions).seconds

    async def _job(self, index: int) -> AsyncGenerator[tuple[int, OutputDelta], None]:
        name = f"{self.context.record.request_id}-{next(self.numbers)}"  # clients may give two requests the same id
        request = replace(self.jobs[index], request_id=name, prompt=None, stream=self.request.stream)
        if index:  # its request has begun: only the deadline of that counts
            passed = time.monotonic() - self._began
            left_s = (
                None if request.options.deadline_s is None else max(request.options.deadline_s - passed, MIN_LEFT_S)
            )
            request = replace(request, options=replace(request.options, deadline_s=left_s, queue_limit_s=None))
        stream = self._streams[index] = self.model.run(request, self.reader())
        async with aclosing(stream) as deltas:
            async for delta in deltas:
                if delta.open_ended or (delta.request is not None and delta.request.metrics.open_ended):
                    self.context.note(OPEN_ENDED)
                if delta.request is not None:
                    output = self._outputs[index] = delta.request
                    nothing = output.embedding is None and not output.metrics.output_tokens
                    if nothing and "deadline" in output.metrics.finish_reasons:
                        raise TimeLimitError(
                            "The request timed out before its first token.", hint="Retry later, or lower max_tokens."
                        )
                yield index, delta

    async def _merged(self) -> AsyncGenerator[tuple[int, OutputDelta], None]:
        """Several jobs at once, in portions: as many as the model's engines can use, a few in each turn of the event
        loop. The first that fails ends all of them."""
        ready: asyncio.Queue[tuple[int, OutputDelta] | BaseException | int] = asyncio.Queue(maxsize=64)

        async def pump(index: int) -> None:
            try:
                async with aclosing(self._job(index)) as deltas:
                    async for each in deltas:
                        await ready.put(each)
                await ready.put(index)
            except Exception as error:  # not only TwofoldError: the request would wait for this job forever
                await ready.put(error)

        pumps: dict[int, asyncio.Task[None]] = {}
        room, following, left = self.model.portion, 0, len(self.jobs)
        try:
            while left:
                end = min(len(self.jobs), following + STARTED_AT_ONCE)
                while following < end and (room > 0 or not pumps):
                    pumps[following] = start_task(pump(following), "a prompt of a request")
                    room -= self.jobs[following].completions
                    following += 1
                if following == end < len(self.jobs):
                    await asyncio.sleep(0)
                    continue
                each = await ready.get()
                if isinstance(each, BaseException):
                    raise each
                if isinstance(each, int):
                    del pumps[each]
                    room += self.jobs[each].completions
                    left -= 1
                else:
                    yield each
        finally:
            for task in pumps.values():
                task.cancel()
            await asyncio.gather(*pumps.values(), return_exceptions=True)


class RequestRunner:
    """Runs requests on the models of ``registry``. While ``closing``, new ones are refused."""

    def __init__(
        self,
        registry: ModelRegistry,
        admission: Admission,
        accounting: Accounting,
        pool: WorkPool,
        cache: ResponseCache | None = None,
    ) -> None:
        self._registry = registry
        self._admission = admission
        self._accounting = accounting
        self._cache = cache
        self._pool = pool
        self._open: set[RequestContext] = set()
        self._numbers = count()
        self.closing = False

    @property
    def in_progress(self) -> int:
        return len(self._open)

    def interrupt(self, error: TwofoldError) -> None:
        """Ends all requests in progress."""
        for context in list(self._open):
            context.interrupt(error)

    def check_open(self) -> None:
        """Raises BusyError while the server shuts down."""
        if self.closing:
            raise BusyError("The server is shutting down.", retry_after_s=5, hint="Retry in a moment.")

    @contextmanager
    def track(self, context: RequestContext, *, waits: bool = True) -> Iterator[None]:
        """Accounts for a request when it ends. ``waits``: whether a shutdown waits for it."""
        if waits:
            self._open.add(context)
        try:
            yield
        finally:
            self._open.discard(context)
            context.leave()
            self._accounting.close(context)

    @asynccontextmanager
    async def open(self, run: GenerationRun) -> AsyncIterator[GenerationRun]:
        """Admits a request. Raises the TwofoldError that refuses it."""
        context, request, record = run.context, run.request, run.context.record
        record.stream = request.stream
        context.references = self._accounting.references.find(request.compared)
        waits = self._admission.waits(context, request.tier)
        async with self._registry.lease(request.model, waits, keep_s=context.keep_alive_s) as model:
            record.model, context.steps = model.name, model.ceilings

            def prepare() -> Sequence[EngineRequest]:  # on a thread, since there may be thousands
                return self._admission.tiered(context, request.tier, request.prepare(model.facts))

            with ignoring(unknown=False) as ignored:
                jobs = await self._pool.prepare(model.name, context.source, context.size, prepare)
            context.notes += ignored.notes
            if jobs:
                record.params = AskedParams.of(jobs[0].params)
                asked = (context.caller.id, model.name, jobs[0].token_ids)
                context.estimated_ttft_s = self._accounting.estimates.match(*asked)
            run.model, run.jobs, run.numbers = model, jobs, self._numbers
            run.head = ReplyHead(
                secrets.token_hex(12),
                int(record.arrived_at),
                request.model or model.name,
                record.tier,
                [job.token_ids for job in jobs],
                time.monotonic() - context.arrived,
            )
            if self._cache is not None and jobs:
                await self._ask_cache(run, self._cache)
            if run.cached is None:
                await self._admission.check_wait(context, jobs, model)
            with self._admission.admit(context, jobs, model) if run.cached is None else nullcontext():
                try:
                    yield run
                finally:
                    await run.settle()

    async def compress(self, context: RequestContext, request: Compressible) -> None:
        """Compresses texts of a chat, if it asks for that, before it is opened. They are scored by a request that has a
        record of its own and counts for the same quota. Raises TwofoldError."""
        outer, scoring = context.record, request.scoring()
        if scoring is None:
            return
        async with self._registry.lease(request.model, self._admission.waits(context, request.tier)) as model:
            outer.model = model.name
            scoring.read_by(model.reading_time())
        name, arrived = f"{outer.request_id}-compress", time.time()
        record = ServedRequest(name, COMPRESSING, outer.dialect, outer.tenant, outer.key, arrived, tier=outer.tier)
        inner = RequestContext(record, context.dialect, context.caller, context.source, context.size)
        inner.quota = context.quota
        with self.track(inner, waits=False):
            try:
                async with self.open(GenerationRun(inner, scoring)) as run:
                    async with aclosing(run.deltas()) as deltas:
                        async for _ in deltas:
                            pass
                    await run.finish()
                    apply = partial(scoring.apply, run.outputs)
                    outer.compression = await self.work_on_reply(run, reply_size(run), apply)
            except TwofoldError as error:
                inner.fail(error)
                raise
            finally:
                inner.quota = None  # the request itself returns it
                context.scored_tokens += record.prompt_tokens

    async def _ask_cache(self, run: GenerationRun, cache: ResponseCache) -> None:
        """Takes the outputs from the response cache, or stores them there later, if the request may be cached."""
        context = run.context
        key = cache.key(context.caller.tenant, run.model.identity, run.jobs, context.store)
        if key is None:
            return
        context.record.cache_asked = True
        run.cached = await cache.get(key, context.record.request_id)
        context.record.cached_answer = run.cached is not None
        run.store = None if run.cached is not None else partial(cache.put, key)

    async def reply(self, run: GenerationRun) -> GeneratedReply:
        """Runs a request to its end; returns the body of the reply. Raises TwofoldError."""
        async with aclosing(run.deltas()) as deltas:
            async for _ in deltas:
                if run.context.last_delta is None:
                    run.context.delta_sent()
        await run.finish()
        body = await self.body(run)
        body.twofold = self.explained(run)
        return body

    async def body(self, run: GenerationRun) -> GeneratedReply:
        """The body of the reply of a run that has ended."""
        make = partial(run.request.reply, run.head, run.outputs, run.model.facts)
        return await self.work_on_reply(run, reply_size(run), make)

    async def work_on_reply(self, run: GenerationRun, size: int, work: Callable[[], T]) -> T:
        """The result of ``work`` on a reply of about ``size`` bytes. It runs on a thread if it may take long: if the
        reply is long, or if the chat template must be rendered to find out how the model thinks."""
        thinking, source = run.model.facts.format.thinking, run.context.source
        if size > INLINE_REPLY:
            return await self._pool.run(source, LONG_REPLY, work)
        if thinking is None or thinking.switch is None:
            return work()
        return await self._pool.prepare(run.model.name, source, size, work)

    def explained(self, run: GenerationRun) -> RequestRecord | UnsetType:
        """The record of a finished run; UNSET if the request does not ask for it."""
        if not run.request.explain:
            return UNSET
        run.record()
        return self._accounting.explain(run.context)


def reply_size(run: GenerationRun) -> int:
    """Bytes of JSON of the reply, estimated."""
    size = 0
    for output in run.outputs:
        positions = len(output.prompt_logprobs or ()) + sum(len(each.logprobs or ()) for each in output.outputs)
        texts = sum(VALUE_BYTES * len(each.token_ids) + len(each.text) for each in output.outputs)
        size += VALUE_BYTES * len(output.embedding or ()) + POSITION_BYTES * positions + texts
    return size


async def _cached(outputs: Sequence[RequestOutput]) -> AsyncGenerator[tuple[int, OutputDelta], None]:
    """The deltas of cached outputs."""
    for job, output in enumerate(outputs):
        for delta in cached_deltas(output):
            yield job, delta
