"""What run and chat share: a loaded model, and one answer after the other, streamed and stopped by Ctrl-C."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from twofold.cli.console import LazyProgress, Status, is_terminal, note
from twofold.cli.options import ModelOptions
from twofold.core.params import SamplingParams
from twofold.engine.llm import LLM
from twofold.engine.outputs import RequestOutput
from twofold.engine.prompts import GivenPrompt
from twofold.formats import sources
from twofold.host.paths import CacheFolders


@dataclass(frozen=True, slots=True)
class Generator:
    """A loaded model. ``path`` is its file, ``name`` what it is called."""

    llm: LLM
    name: str
    path: Path

    def answer(
        self, prompt: GivenPrompt, params: SamplingParams, write: Callable[[str], None]
    ) -> tuple[RequestOutput, bool]:
        """Streams one answer into ``write``; the whole, and whether Ctrl-C cut it short.

        The first Ctrl-C ends the answer between two steps, and what there is of it stays; a second one raises
        KeyboardInterrupt.
        """
        engine = self.llm.engine
        with _interrupts() as interrupted:
            request_id = engine.add(prompt, params)
            try:
                while not interrupted.is_set():
                    for delta in engine.step():
                        write(delta.text)
                        if delta.request is not None:
                            return delta.request, False
            except BaseException:
                engine.abort(request_id)
                raise
            whole = engine.abort(request_id)
            assert whole is not None, "the request runs until its last delta"
            return whole, True


@contextmanager
def generator(options: ModelOptions) -> Iterator[Generator]:
    """Fetches the model if need be and loads it, with a word on a terminal about what takes long."""
    options.check()
    folders = CacheFolders.of().create()
    progress = LazyProgress()
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
    try:
        yield Generator(llm, found.name, found.path)
    finally:
        llm.close()


@contextmanager
def _interrupts() -> Iterator[threading.Event]:
    """An event that the first Ctrl-C sets, instead of breaking into the middle of a step."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return

    def on_interrupt(_signal: int, _frame: FrameType | None) -> None:
        if event.is_set():
            raise KeyboardInterrupt
        event.set()

    before = signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield event
    finally:
        signal.signal(signal.SIGINT, before)
