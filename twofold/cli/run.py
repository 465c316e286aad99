"""``twofold run``: answers one prompt."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from twofold.cli.chat.base import ChatModel, Prompt, PromptRequest, cut_note
from twofold.cli.chat.command import open_chat_model
from twofold.cli.console import fold, note, print_json
from twofold.cli.options import FLAG, DisplayOptions, FormOptions, ModelOptions, RemoteOptions, SamplingOptions
from twofold.cli.stdin import read_prompt
from twofold.core.errors import ParameterError, UsageError

INTERRUPTED = 130
MORE_TOKENS = "-n raises the limit"


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
    form: FormOptions = FormOptions(),  # noqa: B008 - frozen
    output: DisplayOptions = DisplayOptions(),  # noqa: B008 - frozen
    server: RemoteOptions = RemoteOptions(),  # noqa: B008 - frozen
) -> int:
    """Answer one prompt.

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
        Print one JSON object when the answer is complete, instead of streaming it.
    timeline
        Draw queue, prefill and decode after the answer, and where their time went.
    trace
        Write a trace of every step to this file; ui.perfetto.dev shows it.
    """
    structure = form.params()
    sampling.params(structure)
    _check(raw, system, model)
    text = read_prompt((*(() if prompt is None else (prompt,)), *words))
    from twofold.cli.chat.screen import answer_writer  # noqa: PLC0415

    with open_chat_model(model, server, trace, limits=True) as loaded:
        given = prompt_for(loaded, text, system, raw=raw, quiet=output.quiet)
        markdown = output.markdown and structure is None and not isinstance(given, str)
        with nullcontext(lambda _text: None) if json else answer_writer(markdown=markdown) as write:
            answer = loaded.answer(PromptRequest(given, sampling, structure), write)
        if json:
            print_json(loaded.as_json())
        elif not output.quiet:
            cut = cut_note(answer, sampling.max_tokens, loaded.context, MORE_TOKENS)
            for line in (cut, loaded.statistics() if output.statistics else None):
                if line:
                    note(fold(line))
        if output.verbose:
            note(loaded.loading())
        if timeline or output.verbose:
            for line in loaded.explain():
                note(line)
    return INTERRUPTED if answer.interrupted else 0


def _check(raw: bool, system: str | None, model: ModelOptions) -> None:
    if raw and system is not None:
        raise ParameterError("A raw prompt has no system message.", param="system", hint="Remove --raw or --system.")
    if raw and model.chat_template is not None:
        raise ParameterError(
            "A raw prompt uses no chat template.", param="chat_template", hint="Remove --raw or --chat-template."
        )


def prompt_for(model: ChatModel, text: str, system: str | None, *, raw: bool, quiet: bool = False) -> Prompt:
    """The prompt of one question. A model without a chat template completes the text, which a note says."""
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
