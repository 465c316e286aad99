"""Loads the model of ``run``, ``chat``, ``batch`` and ``bench engine``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Final

from twofold.cli.console import DownloadProgress, is_terminal, note, print_hint, status
from twofold.cli.options import ModelOptions
from twofold.core.units import format_bytes
from twofold.engine.llm import LLM
from twofold.formats.fetch import sources
from twofold.formats.fetch.names import ALIASES, DEFAULT_MODEL
from twofold.host.paths import CacheFolders
from twofold.observe.trace import Tracer

BETTER: Final = "qwen2.5-coder-1.5b"
TOLD: Final = "default_model_told"
"""A file in the cache folder, which shows that the hint about the default model was printed."""


def hint_at_better_models(model: str) -> None:
    """Says once what the default model is, where it was not chosen. Its first answers may be wrong or loops."""
    told = CacheFolders.of().root / TOLD
    if model != DEFAULT_MODEL or told.exists():
        return
    size = format_bytes(ALIASES[BETTER].size)
    print_hint(
        f"{DEFAULT_MODEL} is a 135M model for trying out; better: twofold run -m {BETTER} ({size}), or -m qwen3-1.7b"
    )
    with suppress(OSError):
        told.touch()


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
