"""``twofold run``: one prompt, from words on the command line and from standard input."""

from __future__ import annotations

import io
import select
import stat
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from os import fstat
from pathlib import Path
from typing import Annotated, Final

from cyclopts import Parameter

from twofold.cli.chat.base import ChatModel, Prompt, PromptRequest, end_notes
from twofold.cli.chat.command import open_chat_model
from twofold.cli.console import INTERRUPTED, completion_writer, fold, is_terminal, note, print_json
from twofold.cli.main import STANDARD_INPUT
from twofold.cli.options import (
    FLAG,
    DisplayOptions,
    ModelOptions,
    RemoteOptions,
    SamplingOptions,
    StructuredOutputOptions,
)
from twofold.core.errors import ParameterError, UsageError

MORE_TOKENS: Final = "-n raises the limit"
WAIT_S: Final = 2.0
"""Seconds without input from a pipe until a note: a program may have left the pipe open by accident."""
_HINT: Final = 'Give one: twofold run "Why is the sky blue?", or: twofold chat'


def run(
    *words: Annotated[str, Parameter(name="PROMPT")],
    prompt: Annotated[str | None, Parameter(name=("--prompt", "-p"), allow_leading_hyphen=True)] = None,
    system: Annotated[str | None, Parameter(name=("--system", "-sys"))] = None,
    raw: Annotated[bool, FLAG, Parameter(name=("--raw", "--no-chat-template"))] = False,
    json: Annotated[bool, FLAG] = False,
    timeline: Annotated[bool, FLAG] = False,
    trace: Path | None = None,
    model: ModelOptions = ModelOptions(),  # noqa: B008 - frozen
    sampling: SamplingOptions = SamplingOptions(),  # noqa: B008 - frozen
    structured: StructuredOutputOptions = StructuredOutputOptions(),  # noqa: B008 - frozen
    output: DisplayOptions = DisplayOptions(),  # noqa: B008 - frozen
    server: RemoteOptions = RemoteOptions(),  # noqa: B008 - frozen
) -> int:
    """Run one prompt.

    Parameters
    ----------
    words
        The prompt; words are joined by spaces. Piped text is appended after an empty line, or replaces a "-"; without
        words it is the prompt.
    prompt
        The prompt, before PROMPT.
    system
        System message.
    raw
        Complete the raw prompt, without the model's chat template.
    json
        Print one JSON object when the completion is finished, instead of streaming text.
    timeline
        Draw queue, prefill and decode after the completion, and where their time went.
    trace
        Write a trace of every step to this file; ui.perfetto.dev shows it.
    """
    structure = structured.params()
    sampling.params(structure)
    _check(raw, system, model)
    text = read_prompt((*(() if prompt is None else (prompt,)), *words))
    with open_chat_model(model, server, trace, limits=True) as loaded:
        given = prompt_for(loaded, text, system, raw=raw, quiet=output.quiet)
        markdown = output.markdown and structure is None and not isinstance(given, str)
        with nullcontext(lambda _text: None) if json else completion_writer(markdown=markdown) as write:
            completion = loaded.complete(PromptRequest(given, sampling, structure), write)
        if json:
            print_json(loaded.as_json())
        elif not output.quiet:
            for line in end_notes(completion, sampling.max_tokens, loaded.context, MORE_TOKENS):
                note(fold(line))
            if output.statistics and (line := loaded.statistics()):
                note(fold(line))
        if output.verbose:
            note(loaded.loading())
        if timeline or output.verbose:
            for line in loaded.explain():
                note(line)
    if server.url is None and not output.quiet:
        from twofold.cli.loading import hint_at_better_models  # noqa: PLC0415 - imports the engine

        hint_at_better_models(model.model)
    return INTERRUPTED if completion.interrupted else 0


def _check(raw: bool, system: str | None, model: ModelOptions) -> None:
    if raw and system is not None:
        raise ParameterError("A raw prompt has no system message.", param="system", hint="Remove --raw or --system.")
    if raw and model.chat_template is not None:
        raise ParameterError(
            "A raw prompt uses no chat template.", param="chat_template", hint="Remove --raw or --chat-template."
        )


def prompt_for(model: ChatModel, text: str, system: str | None, *, raw: bool, quiet: bool = False) -> Prompt:
    """A chat of one message, or the raw text (``raw``, or no template). Raises UsageError if a template is missing."""
    if raw:
        return text
    if not model.has_template:
        if system is not None:
            raise UsageError(
                "The model has no chat template, which a system message needs.",
                hint="Remove --system, or choose a template with --chat-template.",
            )
        if not quiet:
            note("The model has no chat template: it completes the raw prompt.")
        return text
    system_message = [] if system is None else [{"role": "system", "content": system}]
    return [*system_message, {"role": "user", "content": text}]


def read_prompt(words: Sequence[str]) -> str:
    """The words joined by spaces; a "-" among them is the text on standard input.

    Without a "-", piped text follows the words after an empty line. Raises UsageError if there is no text.
    """
    parts = list(words)
    if STANDARD_INPUT in parts:
        piped = _read()
        if piped is None:
            raise UsageError('"-" reads the prompt from standard input, which is a terminal.', hint=_HINT)
        at = parts.index(STANDARD_INPUT)
        before, after = " ".join(parts[:at]), " ".join(part for part in parts[at + 1 :] if part != STANDARD_INPUT)
    else:
        piped = _read() if not parts or _is_piped() else None
        before, after = " ".join(parts), ""
    if not parts and piped is None:
        raise UsageError("No prompt was given.", hint=_HINT)
    given = [part for part in (before, piped or "", after) if part.strip()]
    if not given:
        where = "on standard input " if piped is not None and not before else ""
        raise UsageError(f"The prompt {where}is empty.", hint=_HINT)
    return given[0] if len(given) == 1 else "\n\n".join(part.strip("\n") for part in given)


def _is_piped() -> bool:
    """Whether standard input is a pipe or a file, so it was redirected on purpose."""
    if sys.stdin is None or sys.stdin.closed:
        return False
    try:
        mode = fstat(sys.stdin.fileno()).st_mode
    except (OSError, io.UnsupportedOperation):
        return isinstance(sys.stdin, io.StringIO)
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)


def _read() -> str | None:
    """All of standard input; None if it is closed or a terminal. Raises UsageError for text not in UTF-8."""
    if sys.stdin is None or sys.stdin.closed or is_terminal(sys.stdin):
        return None
    _note_silence()
    try:
        text = sys.stdin.read()
        text.encode()  # some locales read other bytes as lone surrogates
    except UnicodeError as error:
        raise UsageError(
            "Standard input is not UTF-8 text.", hint="Convert it first, for example with iconv."
        ) from error
    return text


def _note_silence() -> None:
    """Prints a note if there is no input within ``WAIT_S``."""
    try:
        ready, _, _ = select.select([sys.stdin], [], [], WAIT_S)
    except (OSError, ValueError, io.UnsupportedOperation):
        return  # select cannot wait for it
    if not ready:
        note("Reading the prompt from standard input, until it ends …")
