"""A model that runs in this process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from shutil import get_terminal_size
from typing import Any, Self

from twofold.cli.chat.base import ChatCompletion, Message, PromptRequest, Write
from twofold.cli.chat.timeline import draw_timeline
from twofold.cli.generate import Generator, generator
from twofold.cli.options import ModelOptions
from twofold.cli.phases import phase_line
from twofold.cli.progress import DownloadProgress
from twofold.cli.report import Roofline, as_json
from twofold.core.errors import ContextLengthError, TwofoldError, UsageError
from twofold.core.sampling_defaults import SamplingDefaults
from twofold.core.units import count
from twofold.engine.outputs import RequestOutput
from twofold.formats.fetch import sources
from twofold.host.paths import CacheFolders


class LocalModel:
    """``ChatModel`` with an engine in this process. ``limits`` compares completions with the limits of the machine."""

    def __init__(self, options: ModelOptions, trace: Path | None = None, *, limits: bool = False) -> None:
        self._options = options
        self._trace = trace
        self._limits = limits
        self._last: RequestOutput | None = None
        self._open()

    @classmethod
    @contextmanager
    def opened(cls, options: ModelOptions, trace: Path | None = None, *, limits: bool = False) -> Iterator[Self]:
        """Downloads the model if needed, loads it, and closes it at the end."""
        model = cls(options, trace, limits=limits)
        try:
            yield model
        finally:
            model.close()

    @property
    def name(self) -> str:
        return self._loaded.name

    @property
    def context(self) -> int:
        return self._loaded.llm.config.context

    @property
    def has_template(self) -> bool:
        return self._loaded.llm.get_tokenizer().has_chat_template

    @property
    def defaults(self) -> SamplingDefaults:
        return self._loaded.llm.loaded.sampling

    def answer(self, request: PromptRequest, write: Write) -> ChatCompletion:
        """``ChatModel.answer``."""
        prompt, params = request.prompt, request.sampling.params(request.form, self.defaults)
        given = prompt if isinstance(prompt, str) else self._rendered(prompt, request.room)
        output, interrupted = self._loaded.answer(given, params, write)
        self._last = output
        self._roofline = Roofline.measured(self._loaded) if self._limits and not interrupted else None
        completion = output.outputs[0]
        return ChatCompletion(
            completion.text,
            None if interrupted else completion.finish_reason,
            output.metrics.prompt_tokens,
            output.metrics.output_tokens,
        )

    def statistics(self) -> str:
        """``ChatModel.statistics``."""
        if self._last is None:
            return ""
        metrics = self._last.metrics
        return phase_line(metrics, None if self._roofline is None else self._roofline.shares(metrics))

    def explain(self) -> list[str]:
        """``ChatModel.explain``."""
        if self._last is None:
            return []
        drawn = draw_timeline(self._last.metrics, get_terminal_size().columns)
        roofline = self._roofline or Roofline.measured(self._loaded)
        return [*drawn.splitlines(), *(roofline.explain(self._last.metrics) if roofline is not None else ())]

    def loading(self) -> str:
        """Load times, context and threads."""
        loaded, config = self._loaded.llm.loaded, self._loaded.llm.config
        threads = "" if config.options.threads is None else f", {count(config.options.threads, 'thread')}"
        return (
            f"{self.name}: loaded in {loaded.load_s:.2f} s, kernels in {loaded.compile_s:.2f} s; "
            f"context {config.context:,} tokens{threads}"
        )

    def as_json(self) -> dict[str, Any]:
        """``ChatModel.as_json``."""
        assert self._last is not None, "there is an answer"
        return as_json(self._loaded, self._last, self._last.metrics, self._roofline)

    def models(self) -> list[str]:
        """``ChatModel.models``: the downloaded ones."""
        return [model.name for model in sources.installed(CacheFolders.of().models)]

    def use(self, name: str) -> None:
        """``ChatModel.use``. Closes the current model first: two models may not fit into memory."""
        if self._trace is not None:
            raise UsageError("A chat with --trace keeps its model.", hint="Start another chat.")
        sources.resolve(name, cache=CacheFolders.of().create().models, progress=DownloadProgress())
        before = self._options
        self.close()
        self._options = replace(before, model=name)
        try:
            self._open()
        except TwofoldError:
            self._options = before
            self._open()
            raise

    def close(self) -> None:
        self._stack.close()

    def _open(self) -> None:
        self._last, self._roofline = None, None
        with ExitStack() as stack:
            self._loaded: Generator = stack.enter_context(generator(self._options, self._trace))
            self._stack = stack.pop_all()

    def _rendered(self, messages: Sequence[Message], room: int) -> tuple[int, ...]:
        """The token ids of a conversation. Raises ContextLengthError, and TemplateError where the template refuses."""
        ids = self._loaded.llm.get_tokenizer().apply_chat_template(messages)
        if len(ids) + room > self.context:
            raise ContextLengthError(
                f"The prompt has {len(ids):,} tokens; it does not fit the context of {self.context:,}.",
                hint="Shorten the prompt, or raise the context with -c if the model allows it.",
            )
        return tuple(ids)
