"""A loaded model of ``run``, ``chat`` and ``batch``, and its completions, which Ctrl-C stops."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from twofold.cli.console import Status, is_terminal, note
from twofold.cli.interrupts import interrupts
from twofold.cli.options import ModelOptions
from twofold.cli.progress import DownloadProgress
from twofold.core.params import SamplingParams
from twofold.core.request import TextOrTokens
from twofold.engine.llm import LLM
from twofold.engine.outputs import RequestOutput
from twofold.formats.fetch import sources
from twofold.host.paths import CacheFolders
from twofold.observe.trace import Tracer


@dataclass(frozen=True, slots=True)
class Generator:
    """A loaded model: the engine, its name, and its file."""

    llm: LLM
    name: str
    path: Path

    def answer(
        self, prompt: TextOrTokens, params: SamplingParams, write: Callable[[str], None]
    ) -> tuple[RequestOutput, bool]:
        """Streams a completion into ``write``. Returns it, and whether Ctrl-C stopped it. Raises errors of the engine.

        The first Ctrl-C ends the completion between two steps, a second one raises KeyboardInterrupt.
        """
        request = self.llm.engine.request(prompt, params)
        with interrupts() as interrupted, closing(self.llm.client.stream(request, interrupted.is_set)) as deltas:
            for delta in deltas:
                write(delta.text)
                if delta.request is not None:
                    return delta.request, delta.finish_reason == "abort"
        raise AssertionError("a request ends with a delta that carries the whole")


def tracer(path: Path | None) -> AbstractContextManager[Tracer | None]:
    """The trace file, created before the model is loaded; or none."""
    return nullcontext() if path is None else Tracer(path)


@contextmanager
def generator(options: ModelOptions, trace: Path | None = None) -> Iterator[Generator]:
    """Downloads the model if needed, and loads it. ``trace`` is a file for a trace of all its steps."""
    options.check()
    with tracer(trace) as observer, _loaded(options) as loaded:
        if observer is not None:
            loaded.llm.engine.observe(observer)
        yield loaded


def resolved_files(options: ModelOptions) -> tuple[sources.ResolvedModel, Path | None]:
    """The model's file and another tokenizer's, if there is one; downloads them if needed."""
    folder, progress = CacheFolders.of().create().models, DownloadProgress()
    names = [options.model] if options.tokenizer is None else [options.model, options.tokenizer]
    model, *others = (sources.resolve(name, cache=folder, progress=progress) for name in names)
    return model, others[0].path if others else None


@contextmanager
def _loaded(options: ModelOptions) -> Iterator[Generator]:
    found, tokenizer = resolved_files(options)
    first = not any(CacheFolders.of().kernels.glob("*.o"))
    what = f"Loading {found.name}" + (" and compiling kernels for this processor, once" if first else "")
    if first and not is_terminal(sys.stderr):
        note(f"{what} …")
    with Status(f"{what} …"):
        llm = LLM(found.path, tokenizer=tokenizer, **options.engine_keywords())
    with llm:
        yield Generator(llm, found.name, found.path)
