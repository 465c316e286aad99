"""``AsyncLLM``: the methods of ``LLM``, for programs that serve many requests at once.

A thread runs the engine's loop. Coroutines send it requests and iterate over their deltas. A slow reader pauses only
its own request (``stream``).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import count
from types import TracebackType
from typing import Final, Self, Unpack

from twofold.core.clock import Clock, MonotonicClock
from twofold.core.errors import ParameterError, ResourceError
from twofold.core.params import BeamSearchParams, RequestParams, SamplingParams
from twofold.core.request import DEFAULT_OPTIONS, EngineRequest, PoolingParams, RequestOptions, ScoringParams
from twofold.core.step import Pooling
from twofold.engine.compress import SCORING, CompressedText, CompressionParams
from twofold.engine.config import EngineKeywords
from twofold.engine.llm import DEFAULT_PARAMS, OpenModel
from twofold.engine.load import LoadedModel
from twofold.engine.loop import EngineThread
from twofold.engine.outputs import OutputDelta, RequestOutput
from twofold.engine.prompts import Prompt, TokensPrompt, read_prompts
from twofold.engine.stream import OutputStream
from twofold.formats.fetch import sources
from twofold.text.spans import Range

LONG_PROMPT: Final = 4096
"""Longer texts, in characters, are tokenised on another thread than the event loop's."""
DRAIN_POLL_S: Final = 0.01


class _Delivery:
    """Carries the deltas of a step from the engine's thread to event loops, waking each loop once for all streams."""

    def __init__(self) -> None:
        self._batches: dict[asyncio.AbstractEventLoop, list[Callable[[], None]]] = {}

    def post(self, loop: asyncio.AbstractEventLoop, deliver: Callable[[], None]) -> None:
        self._batches.setdefault(loop, []).append(deliver)

    def flush(self) -> None:
        batches, self._batches = self._batches, {}
        for loop, batch in batches.items():
            if not loop.is_closed():
                loop.call_soon_threadsafe(_deliver_all, batch)


def _deliver_all(batch: list[Callable[[], None]]) -> None:
    for deliver in batch:
        deliver()


class _StreamOutbox:
    """The outbox of one request: passes results to the request's stream, in the stream's event loop."""

    def __init__(self, delivery: _Delivery, loop: asyncio.AbstractEventLoop, stream: OutputStream) -> None:
        self._delivery, self._loop, self._stream = delivery, loop, stream

    def give(self, deltas: list[OutputDelta]) -> None:
        for delta in deltas:
            self._delivery.post(self._loop, partial(self._stream.push, delta))

    def fail(self, error: Exception) -> None:
        self._delivery.post(self._loop, partial(self._stream.break_off, error))


class AsyncLLM(OpenModel):
    """A model for many coroutines at once. Use it as an async context manager, or await ``close``.

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
        self._start(self._load(model, tokenizer, progress, options), MonotonicClock())

    def _start(self, loaded: LoadedModel, clock: Clock) -> None:
        super()._start(loaded, clock)
        self._delivery = _Delivery()
        self._thread = EngineThread(self._engine, self._delivery.flush)
        self._numbers = count()

    @property
    def under_way(self) -> int:
        """Requests that have not ended."""
        return self._thread.under_way

    def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        options: RequestOptions = DEFAULT_OPTIONS,
    ) -> AsyncGenerator[OutputDelta, None]:
        """One request, delta by delta; the last delta has the whole output. Leaving the iterator aborts the request."""
        return self._deltas(prompt, sampling_params or DEFAULT_PARAMS, options, request_id)

    async def beam_search(
        self, prompt: Prompt, params: BeamSearchParams, *, options: RequestOptions = DEFAULT_OPTIONS
    ) -> RequestOutput:
        """The most likely completions, best first."""
        return await self._whole(prompt, params, options)

    async def embed(
        self,
        prompt: Prompt,
        *,
        pooling: Pooling = "mean",
        normalize: bool = True,
        options: RequestOptions = DEFAULT_OPTIONS,
    ) -> RequestOutput:
        """The text's vector, in ``embedding``."""
        return await self._whole(prompt, PoolingParams(pooling, normalize=normalize), options)

    async def score(
        self, prompt: Prompt, *, alternatives: int = 0, options: RequestOptions = DEFAULT_OPTIONS
    ) -> RequestOutput:
        """The log-probabilities of the text's tokens, in ``prompt_logprobs``."""
        return await self._whole(prompt, ScoringParams(alternatives), options)

    async def compress(
        self,
        text: str,
        keep: float = 0.5,
        question: str | None = None,
        *,
        protect: Iterable[Range | str] = (),
        target: OpenModel | None = None,
        output_tokens: int = 0,
        force: bool = False,
        options: RequestOptions = DEFAULT_OPTIONS,
    ) -> CompressedText:
        """``LLM.compress``: its windows run beside other requests."""
        params = CompressionParams(keep=keep, question=question, output_tokens=output_tokens, force=force)
        compression, verdict = await asyncio.to_thread(self._compression, text, protect, params, target)
        outputs: list[RequestOutput] = []
        if verdict.applied:
            prompts = [TokensPrompt(prompt_token_ids=prompt) for prompt in compression.prompts]
            outputs = await asyncio.gather(*(self._whole(prompt, SCORING, options) for prompt in prompts))
        return compression.finish(outputs, verdict)[0]

    async def abort(self, request_id: str) -> RequestOutput | None:
        """Ends a request within a step and frees all it holds; its output so far, or None if it has ended before."""
        return await asyncio.wrap_future(self._thread.abort(request_id))

    async def drain(self, timeout_s: float | None = None) -> bool:
        """Refuses new requests and waits for the others; whether all ended within ``timeout_s`` (None: no limit)."""
        self._thread.refuse()
        try:
            async with asyncio.timeout(timeout_s):
                while self._thread.under_way:
                    await asyncio.sleep(DRAIN_POLL_S)
        except TimeoutError:
            return False
        return True

    async def check_idle(self) -> None:
        """Asserts that an engine without work holds nothing."""
        await asyncio.wrap_future(self._thread.call(lambda engine: engine.check_idle()))

    async def close(self) -> None:
        """Aborts all requests and frees the model. Closing twice is fine."""
        if not self._closed:
            self._closed = True
            await asyncio.to_thread(self._thread.close)
            await asyncio.to_thread(self._engine.close)
            self._loaded.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _whole(self, prompt: Prompt, params: RequestParams, options: RequestOptions) -> RequestOutput:
        async for delta in self._deltas(prompt, params, options):
            if delta.request is not None:
                return delta.request
        raise AssertionError("a request ends with a delta that carries it")

    async def _deltas(
        self, prompt: Prompt, params: RequestParams, options: RequestOptions, name: str | None = None
    ) -> AsyncGenerator[OutputDelta, None]:
        arrival = self._engine.now()
        request_id = f"request-{next(self._numbers)}" if name is None else name
        request = await self._request(prompt, params, options)
        request = replace(request, request_id=request_id, arrival=arrival)

        def pause(paused: bool) -> None:
            with suppress(ResourceError):  # a closed engine has ended the request
                self._thread.call(lambda engine: engine.pause(request_id, paused=paused))

        stream = OutputStream(pause)
        self._thread.submit(request, _StreamOutbox(self._delivery, asyncio.get_running_loop(), stream))
        try:
            while True:
                delta = await stream.take()
                yield delta
                if delta.request is not None:
                    return
        finally:
            if not stream.over:
                self._thread.abandon(request_id)

    async def _request(self, prompt: Prompt, params: RequestParams, options: RequestOptions) -> EngineRequest:
        """The checked request; long texts become tokens while the event loop goes on."""
        given = read_prompts(prompt)
        if len(given) != 1:
            raise ParameterError("A request takes one prompt.", param="prompt", hint="Make a request for each.")
        if isinstance(given[0], str) and len(given[0]) > LONG_PROMPT:
            return await asyncio.to_thread(self._engine.request, given[0], params, options)
        return self._engine.request(given[0], params, options)
