"""``AsyncLLM``: the same words as ``LLM``, for programs that serve many at once.

A thread owns the engine's loop. Coroutines hand it requests and iterate over what comes back. A reader that does not
keep up holds its own request and nobody else's: past HIGH_WATER characters the request rests, its blocks the first to
be swapped out, until the reader has caught up.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import AsyncGenerator, Callable
from functools import partial
from types import TracebackType
from typing import Final, Self, Unpack

from twofold.core.clock import Clock, MonotonicClock
from twofold.core.errors import ParameterError
from twofold.core.params import BeamSearchParams, SamplingParams
from twofold.core.request import RequestOptions
from twofold.core.step import Pooling
from twofold.engine.config import EngineKeywords
from twofold.engine.embedding import check_pooling
from twofold.engine.engine import DEFAULT_OPTIONS, Engine
from twofold.engine.llm import DEFAULT_PARAMS
from twofold.engine.load import LoadedModel
from twofold.engine.opened import OpenModel, open_model
from twofold.engine.outputs import OutputDelta, RequestOutput
from twofold.engine.prompts import GivenPrompt, Prompt, read_prompts
from twofold.engine.runner import EngineThread
from twofold.formats.fetch import sources

HIGH_WATER: Final = 64 << 10
LOW_WATER: Final = 16 << 10
"""Characters that wait for a reader: above the one its request rests, below the other it goes on."""
TOKEN_CHARS: Final = 4
"""What a token without text counts."""
LONG_PROMPT: Final = 4096
"""Characters from which on a prompt is tokenised beside the event loop."""
DRAIN_LOOK_S: Final = 0.01


class OutputStream:
    """What one request gave and its reader has not taken. ``rest`` and ``resume`` are called at the water marks."""

    def __init__(self, loop: asyncio.AbstractEventLoop, rest: Callable[[], None], resume: Callable[[], None]) -> None:
        self.loop = loop
        self._rest, self._resume = rest, resume
        self._deltas: deque[OutputDelta] = deque()
        self._ready = asyncio.Event()
        self._error: Exception | None = None
        self._waiting = 0
        self._resting = False

    def push(self, deltas: list[OutputDelta]) -> None:
        """Adds what came; on the event loop's thread."""
        self._deltas.extend(deltas)
        self._waiting += sum(map(_weight, deltas))
        if self._waiting > HIGH_WATER and not self._resting:
            self._resting = True
            self._rest()
        self._ready.set()

    def break_off(self, error: Exception) -> None:
        """The reader gets ``error`` after what is there."""
        self._error = error
        self._ready.set()

    async def take(self) -> OutputDelta:
        """The next delta. Raises what ended the request early."""
        while not self._deltas:
            if self._error is not None:
                raise self._error
            self._ready.clear()
            await self._ready.wait()
        delta = self._deltas.popleft()
        if delta.error is not None:
            raise delta.error
        self._waiting -= _weight(delta)
        if self._resting and self._waiting < LOW_WATER:
            self._resting = False
            self._resume()
        return delta


def _weight(delta: OutputDelta) -> int:
    return max(len(delta.text), TOKEN_CHARS * len(delta.token_ids))


class _Mailman:
    """Carries what a step gave from the engine's thread to event loops: one wake-up for all streams of a loop."""

    def __init__(self) -> None:
        self._bags: dict[asyncio.AbstractEventLoop, list[Callable[[], None]]] = {}

    def post(self, stream: OutputStream, deliver: Callable[[], None]) -> None:
        self._bags.setdefault(stream.loop, []).append(deliver)

    def flush(self) -> None:
        bags, self._bags = self._bags, {}
        for loop, bag in bags.items():
            if not loop.is_closed():
                loop.call_soon_threadsafe(_deliver_all, bag)


def _deliver_all(bag: list[Callable[[], None]]) -> None:
    for deliver in bag:
        deliver()


class _Letterbox:
    """The outbox of one request: its stream, by mail."""

    def __init__(self, mailman: _Mailman, stream: OutputStream) -> None:
        self._mailman = mailman
        self._stream = stream

    def give(self, deltas: list[OutputDelta]) -> None:
        self._mailman.post(self._stream, partial(self._stream.push, deltas))

    def fail(self, error: Exception) -> None:
        self._mailman.post(self._stream, partial(self._stream.break_off, error))


class AsyncLLM(OpenModel):
    """A model that answers many coroutines at once. Use it as an async context manager, or await ``close``.

        async with AsyncLLM(model="smollm2-135m") as llm:
            async for delta in llm.generate("Once upon a time", SamplingParams(max_tokens=32)):
                print(delta.text, end="", flush=True)

    The keywords are those of ``LLM``.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        tokenizer: str | os.PathLike[str] | None = None,
        progress: sources.Progress = sources.SILENT,
        **options: Unpack[EngineKeywords],
    ) -> None:
        self._start(open_model("AsyncLLM", model, tokenizer, progress, options), MonotonicClock())

    def _start(self, loaded: LoadedModel, clock: Clock) -> None:
        super()._start(loaded, clock)
        self._mailman = _Mailman()
        self._thread = EngineThread(self._engine, self._mailman.flush)

    @property
    def under_way(self) -> int:
        """Requests that have not ended."""
        return self._thread.under_way

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        options: RequestOptions = DEFAULT_OPTIONS,
    ) -> AsyncGenerator[OutputDelta, None]:
        """One request, delta by delta; the last one carries the whole. Leaving the iterator aborts the request."""
        params = sampling_params or DEFAULT_PARAMS
        arrival = self._engine.now()
        given = await self._prepared(prompt, params)
        grammar, began = None, self._engine.now()
        compiling = self._engine.compile(params, options)
        if compiling is not None:
            grammar = await asyncio.wrap_future(compiling)
        grammar_s = self._engine.now() - began

        def add(engine: Engine) -> str:
            return engine.add(given, params, request_id, options, grammar=grammar, grammar_s=grammar_s, arrival=arrival)

        async for delta in self._deltas(add):
            yield delta

    async def beam_search(
        self, prompt: Prompt, params: BeamSearchParams, *, options: RequestOptions = DEFAULT_OPTIONS
    ) -> RequestOutput:
        """The most likely answers, best first."""
        given = await self._prepared(prompt, params)
        return await self._whole(lambda engine: engine.add_beams(given, params, options=options))

    async def embed(
        self,
        prompt: Prompt,
        *,
        pooling: Pooling = "mean",
        normalize: bool = True,
        options: RequestOptions = DEFAULT_OPTIONS,
    ) -> RequestOutput:
        """The text's vector, in ``embedding``."""
        check_pooling(pooling)
        given = await self._prepared(prompt, None)
        return await self._whole(
            lambda engine: engine.add_embedding(given, pooling, options=options, normalize=normalize)
        )

    async def score(
        self, prompt: Prompt, *, alternatives: int = 0, options: RequestOptions = DEFAULT_OPTIONS
    ) -> RequestOutput:
        """The log-probabilities of the text's tokens, in ``prompt_logprobs``."""
        given = await self._prepared(prompt, None)
        return await self._whole(lambda engine: engine.add_scoring(given, alternatives, options=options))

    async def abort(self, request_id: str) -> RequestOutput | None:
        """Ends a request within a step and frees all it holds; what there is of it."""
        return await asyncio.wrap_future(self._thread.abort(request_id))

    async def drain(self, timeout_s: float | None = None) -> bool:
        """Takes no new requests and waits for those under way; whether all ended in time."""
        self._thread.refuse()
        try:
            async with asyncio.timeout(timeout_s):
                while self._thread.under_way:
                    await asyncio.sleep(DRAIN_LOOK_S)
        except TimeoutError:
            return False
        return True

    async def check_idle(self) -> None:
        """Asserts that an engine without work holds nothing."""
        await asyncio.wrap_future(self._thread.call(lambda engine: engine.check_idle()))

    async def close(self) -> None:
        """Aborts what runs and lets the model go. Closing twice is fine."""
        if not self._closed:
            self._closed = True
            await asyncio.to_thread(self._thread.close)
            self._engine.close()
            self._loaded.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _prepared(self, prompt: Prompt, params: SamplingParams | BeamSearchParams | None) -> GivenPrompt:
        """The prompt's token ids; long texts become tokens while the event loop goes on."""
        given = read_prompts(prompt)
        if len(given) != 1:
            raise ParameterError("A request takes one prompt.", param="prompt", hint="Make a request for each.")
        if given[0].text is not None and len(given[0].text) > LONG_PROMPT:
            return await asyncio.to_thread(self._engine.prepare, given[0], params)
        return self._engine.prepare(given[0], params)

    async def _whole(self, add: Callable[[Engine], str]) -> RequestOutput:
        async for delta in self._deltas(add):
            if delta.request is not None:
                return delta.request
        raise AssertionError("a request ends with a delta that carries it")

    async def _deltas(self, add: Callable[[Engine], str]) -> AsyncGenerator[OutputDelta, None]:
        request_id: list[str] = []

        def add_and_note(engine: Engine) -> str:
            request_id.append(add(engine))
            return request_id[0]

        def tell(hold: bool) -> None:
            self._thread.call(lambda engine: engine.hold(request_id[0], hold=hold))

        stream = OutputStream(asyncio.get_running_loop(), partial(tell, True), partial(tell, False))
        self._thread.submit(add_and_note, _Letterbox(self._mailman, stream))
        finished = False
        try:
            while not finished:
                delta = await stream.take()
                finished = delta.request is not None
                yield delta
        finally:
            if not finished:
                self._thread.abandon(request_id)
