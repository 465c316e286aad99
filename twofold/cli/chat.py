"""``twofold chat``: a conversation in the terminal."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final

from cyclopts import Parameter

from twofold.cli.console import answer, is_terminal, note, print_failure
from twofold.cli.generate import Generator, generator
from twofold.cli.options import ModelOptions, SamplingOptions
from twofold.cli.prompt import conversation
from twofold.cli.report import phase_line
from twofold.core.errors import UsageError, nearest
from twofold.core.params import SamplingParams
from twofold.engine.prompts import GivenPrompt

HELP: Final = """\
/system TEXT   sets the system message and starts over; without TEXT shows it
/reset         forgets the conversation, keeps the system message
/help          shows this
/exit          leaves; so does Ctrl-D
Ctrl-C stops an answer; at the prompt it leaves."""
COMMANDS: Final = ("/system", "/reset", "/help", "/exit")
PROMPT: Final = "> "


def chat(
    *,
    system: Annotated[str | None, Parameter(name=("--system", "-sys"))] = None,
    trace: Path | None = None,
    model: ModelOptions = ModelOptions(),  # noqa: B008 - frozen
    sampling: SamplingOptions = SamplingOptions(),  # noqa: B008 - frozen
) -> int:
    """Talks to a model, turn by turn. /help lists what can be typed.

    Parameters
    ----------
    system
        A system message for the whole conversation.
    trace
        A file for a trace of every step, which ui.perfetto.dev shows.
    """
    params = sampling.params()
    with generator(model, trace) as loaded:
        if is_terminal(sys.stdin):
            with contextlib.suppress(ImportError):
                import readline  # noqa: F401, PLC0415 - gives input() its history and line editing

            note(f"{loaded.name}. /help lists what can be typed.")
        if not loaded.llm.get_tokenizer().has_chat_template:
            note("The model has no chat template: it completes each message by itself.")
        return Conversation(loaded, params, system).loop()


@dataclass(slots=True)
class Conversation:
    """What was said so far."""

    loaded: Generator
    params: SamplingParams
    system: str | None
    turns: list[dict[str, str]] = field(default_factory=list)

    def loop(self) -> int:
        """Reads and answers until the end of input."""
        while True:
            try:
                line = input(PROMPT if is_terminal(sys.stdin) else "").strip()
            except EOFError:
                return 0
            if line == "/exit":
                return 0
            try:
                self._take(line)
            except UsageError as error:
                print_failure(error)

    def _take(self, line: str) -> None:
        if line.startswith("/"):
            self._command(*line.split(maxsplit=1))
        elif line:
            self._answer(line)

    def _command(self, name: str, text: str = "") -> None:
        if name == "/help":
            note(HELP)
        elif name == "/reset":
            self.turns.clear()
        elif name == "/system" and text:
            self.system = text
            self.turns.clear()
        elif name == "/system":
            note(self.system or "There is no system message.")
        else:
            close = nearest(name, COMMANDS)
            raise UsageError(f"There is no {name}.", hint=f"Did you mean {close}?" if close else "/help lists them.")

    def _answer(self, line: str) -> None:
        question = {"role": "user", "content": line}
        output, _ = self.loaded.answer(self._prompt(question), self.params, answer)
        answer("\n")
        note(phase_line(output.metrics, None))
        self.turns += [question, {"role": "assistant", "content": output.outputs[0].text}]

    def _prompt(self, question: dict[str, str]) -> GivenPrompt:
        tokenizer = self.loaded.llm.get_tokenizer()
        if not tokenizer.has_chat_template:
            return GivenPrompt(text=question["content"])
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        return conversation(tokenizer, [*system, *self.turns, question])
