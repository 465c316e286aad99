"""The loop of a chat: reads a message, obeys or answers it, and says what happened."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from twofold.cli.chat.base import ChatCompletion, ChatModel, Prompt, PromptRequest, cut_note
from twofold.cli.chat.commands import is_command, run_command
from twofold.cli.chat.screen import answer_writer
from twofold.cli.chat.settings import ChatSettings
from twofold.cli.chat.talk import Talk
from twofold.cli.console import faint, fold, note, print_failure
from twofold.core.errors import ContextLengthError, TwofoldError

MORE_TOKENS: Final = "/set max_tokens raises the limit"
ROOM_SHARE: Final = 4
"""An answer has at least a quarter of the context, while there are turns that can be left out."""
LEAVE: Final = "Press Ctrl-C again to leave, or type /bye."


class Reader(Protocol):
    """Where messages come from."""

    def read(self) -> str:
        """The next message. Raises EOFError at the end, KeyboardInterrupt for Ctrl-C at an empty prompt."""


@dataclass(slots=True)
class Chat:
    """A conversation with a model. ``left`` ends it."""

    model: ChatModel
    settings: ChatSettings
    talk: Talk
    left: bool = False

    def run(self, reader: Reader) -> int:
        """Reads and answers until the end; the exit code."""
        warned = False
        while not self.left:
            try:
                text = reader.read()
            except EOFError:
                return 0
            except KeyboardInterrupt:
                if warned:
                    return 0
                warned = True
                note(LEAVE)
                continue
            warned = False
            self.take(text)
        return 0

    def take(self, text: str) -> None:
        """Obeys a command or answers a message; prints an error instead of raising it."""
        try:
            if is_command(text):
                run_command(self, text)
            elif text.strip():
                self.ask(text)
        except TwofoldError as error:
            print_failure(error)

    def ask(self, question: str) -> None:
        """Answers a question, and keeps it with its answer. Leaves out the oldest turns where the context is full."""
        answer = self._answer(question) if self.model.has_template else self._answered(question, 1)
        self.talk.add(question, answer.text)
        if self.settings.output.quiet:
            return
        cut = cut_note(answer, self.settings.sampling.max_tokens, self.model.context, MORE_TOKENS)
        if cut:
            note(cut)
        if self.settings.output.stats and (line := self.model.statistics()):
            note(faint(fold(line)))
        if self.settings.output.verbose:
            note(faint("\n".join(self.model.explain())))

    def say(self, line: str) -> None:
        """Confirms what a command did."""
        if not self.settings.output.quiet:
            note(line)

    def greet(self) -> None:
        """Names the model."""
        self.say(f"{self.model.name}. /help lists the commands.")
        self.mention_template()

    def mention_template(self) -> None:
        """Says so where the model takes no conversations."""
        if not self.model.has_template:
            self.say("The model has no chat template: it completes each message by itself.")

    def _answer(self, question: str) -> ChatCompletion:
        while True:
            more = len(self.talk.turns) > 2 * self.talk.dropped
            try:
                return self._answered(self.talk.messages(question), self._room() if more else 1)
            except ContextLengthError:
                if not more:
                    raise
                count = self.talk.drop()
                self.say(f"The context is full: the oldest {_turns(count)} dropped.")

    def _answered(self, prompt: Prompt, room: int) -> ChatCompletion:
        markdown = self.settings.output.markdown and not isinstance(prompt, str)
        with answer_writer(markdown=markdown) as write:
            return self.model.answer(PromptRequest(prompt, self.settings.sampling, room=room), write)

    def _room(self) -> int:
        wanted = self.settings.sampling.max_tokens
        return wanted if self.model.context is None else max(1, min(wanted, self.model.context // ROOM_SHARE))


def _turns(count: int) -> str:
    return "turn is" if count == 1 else f"{count} turns are"
