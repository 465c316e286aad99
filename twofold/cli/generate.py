"""What run and chat share: a loaded model, and one answer after the other, streamed and stopped by Ctrl-C; and what is
kept about them."""

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
        """Streams one answer into ``write``; the whole, and whether Ctrl-C cut it short. Raises what ended it early.

        The first Ctrl-C ends the answer between two steps, and what there is of it stays; a second one raises
        KeyboardInterrupt.
        """
        request = self.llm.engine.request(prompt, params)
        with interrupts() as interrupted, closing(self.llm.client.stream(request, interrupted.is_set)) as deltas:
            for delta in deltas:
                write(delta.text)
                if delta.request is not None:
                    return delta.request, delta.finish_reason == "abort"
        raise AssertionError("a request ends with a delta that carries the whole")


def tracer(path: Path | None) -> AbstractContextManager[Tracer | None]:
    """The trace file that was asked for, made before anything takes long; or none."""
    return nullcontext() if path is None else Tracer(path)


@contextmanager
def generator(options: ModelOptions, trace: Path | None = None) -> Iterator[Generator]:
    """Fetches the model if need be and loads it, with a word on a terminal about what takes long.

    ``trace`` is a file for a trace of all that it does.
    """
    options.check()
    with tracer(trace) as observer, _loaded(options) as loaded:
        if observer is not None:
            loaded.llm.engine.observe(observer)
        yield loaded


@contextmanager
def _loaded(options: ModelOptions) -> Iterator[Generator]:
    folders = CacheFolders.of().create()
    progress = DownloadProgress()
    found = sources.resolve(options.model, cache=folders.models, progress=progress)
    tokenizer = None
    if options.tokenizer is not None:
        tokenizer = sources.resolve(options.tokenizer, cache=folders.models, progress=progress).path
    first = not any(folders.kernels.glob("*.o"))
    what = f"Loading {found.name}" + (" and compiling kernels for this processor, once" if first else "")
    if first and not is_terminal(sys.stderr):
        note(f"{what} …")
    with Status(f"{what} …"):
        llm = LLM(found.path, tokenizer=tokenizer, **options.engine_keywords())
    with llm:
        yield Generator(llm, found.name, found.path)
