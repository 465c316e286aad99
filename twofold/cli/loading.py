"""Loads the model of ``run``, ``chat``, ``batch`` and ``bench engine``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from twofold.cli.console import DownloadProgress, is_terminal, note, status
from twofold.cli.options import ModelOptions
from twofold.engine.llm import LLM
from twofold.formats.fetch import sources
from twofold.host.paths import CacheFolders
from twofold.observe.trace import Tracer


def resolved_files(options: ModelOptions) -> tuple[sources.ResolvedModel, Path | None]:
    """The file of the model, and the file of --tokenizer if it is given. Downloads them if needed."""
    folder, progress = CacheFolders.of().create().models, DownloadProgress()
    names = [options.model] if options.tokenizer is None else [options.model, options.tokenizer]
    model, *others = (sources.resolve(name, cache=folder, progress=progress) for name in names)
    return model, others[0].path if others else None


@contextmanager
def loaded_model(options: ModelOptions, trace: Path | None = None) -> Iterator[tuple[LLM, sources.ResolvedModel]]:
    """Downloads the model if needed, and loads it. ``trace`` is the file for a trace of all steps, or None."""
    options.check()
    with nullcontext() if trace is None else Tracer(trace) as tracer:  # created before the model is loaded
        found, tokenizer = resolved_files(options)
        first = not any(CacheFolders.of().kernels.glob("*.o"))
        what = f"Loading {found.name}" + (" and compiling kernels for this processor, once" if first else "")
        if first and not is_terminal(sys.stderr):
            note(f"{what} …")
        with status(f"{what} …"):
            llm = LLM(found.path, tokenizer=tokenizer, **options.engine_keywords())
        with llm:
            if tracer is not None:
                llm.engine.observe(tracer)
            yield llm, found
