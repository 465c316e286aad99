"""``twofold run``: one prompt, one answer."""

from __future__ import annotations

import sys
from pathlib import Path
from shutil import get_terminal_size
from typing import Annotated

from cyclopts import Parameter

from twofold.cli.console import answer, is_terminal, note, print_json
from twofold.cli.form import FormOptions
from twofold.cli.options import FLAG, ModelOptions, SamplingOptions
from twofold.core.errors import ParameterError, UsageError

INTERRUPTED = 130


def run(
    prompt: Annotated[str | None, Parameter(name=("--prompt", "-p"))] = None,
    *,
    system: Annotated[str | None, Parameter(name=("--system", "-sys"))] = None,
    raw: Annotated[bool, FLAG, Parameter(name=("--raw", "--no-chat-template"))] = False,
    json: Annotated[bool, FLAG] = False,
    timeline: Annotated[bool, FLAG] = False,
    trace: Path | None = None,
    model: ModelOptions = ModelOptions(),  # noqa: B008 - frozen
    sampling: SamplingOptions = SamplingOptions(),  # noqa: B008 - frozen
    form: FormOptions = FormOptions(),  # noqa: B008 - frozen
) -> int:
    """Answers one prompt.

    Parameters
    ----------
    prompt
        What to answer; "-" or nothing reads it from standard input.
    system
        A system message before the prompt.
    raw
        Completes the prompt as it stands, without the model's chat template.
    json
        Prints one JSON object when the answer is done, instead of streaming it.
    timeline
        Draws queue, prefill and decode after the answer, and says where their time went.
    trace
        A file for a trace of every step, which ui.perfetto.dev shows.
    """
    params = sampling.params(form.params())
    text = _read_prompt(prompt)
    if raw and system is not None:
        raise ParameterError("A raw prompt has no system message.", param="system", hint="Leave out --raw or --system.")
    if raw and model.chat_template is not None:
        raise ParameterError(
            "A raw prompt uses no chat template.", param="chat_template", hint="Leave out --raw or --chat-template."
        )
    # What follows brings in the engine; flags are checked before that.
    from twofold.cli.generate import generator  # noqa: PLC0415
    from twofold.cli.prompt import prompt_for  # noqa: PLC0415
    from twofold.cli.report import Roofline, as_json, phase_line  # noqa: PLC0415

    with generator(model, trace) as loaded:
        given = prompt_for(loaded.llm.get_tokenizer(), text, system, raw=raw)
        output, interrupted = loaded.answer(given, params, _silent if json else answer)
        if not json:
            answer("\n")
        report = loaded.report(output)
        roofline = None if interrupted else Roofline.measured(loaded)
        if json:
            print_json(as_json(loaded, output, report, roofline))
        else:
            note(phase_line(output.metrics, roofline.shares(output.metrics) if roofline else None))
    if timeline:
        from twofold.observe.timeline import draw_timeline  # noqa: PLC0415

        note(draw_timeline(output.metrics, get_terminal_size().columns, report.record))
        for line in roofline.explain(report) if roofline else ():
            note(line)
    return INTERRUPTED if interrupted else 0


def _read_prompt(prompt: str | None) -> str:
    if prompt is not None and prompt != "-":
        return prompt
    if sys.stdin is None or sys.stdin.closed or is_terminal(sys.stdin):
        raise UsageError("There is no prompt.", hint='Give one: twofold run "Why is the sky blue?", or: twofold chat')
    try:
        text = sys.stdin.read()
    except UnicodeDecodeError as error:
        raise UsageError(
            "Standard input is not UTF-8 text.", hint="Convert it first, for example with iconv."
        ) from error
    if not text.strip():
        raise UsageError("The prompt on standard input is empty.", hint='Give one: twofold run "Why is the sky blue?"')
    return text


def _silent(_text: str) -> None:
    return
